// What the panels are made of: elements, sliders, pictures. No layout depends on a number.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") {
      for (const [event, call] of Object.entries(value)) node.addEventListener(event, call);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function el(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

function draw(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function picture(width, height, label) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

function show(value, digits) {
  return value.toFixed(digits).replace("-", "−");
}

// A labelled range with its number beside it, which has a width of its own.
function slider(title, { id, low, high, step, value, digits, unit = "" }, call) {
  const number = el("output", { class: "number" });
  const input = el("input", { type: "range", id, min: low, max: high, step, value });
  const write = () => {
    number.textContent = `${show(Number(input.value), digits)}${unit}`;
    input.setAttribute("aria-valuetext", number.textContent);
  };
  input.addEventListener("input", () => { write(); call(Number(input.value)); });
  write();
  const node = el("label", { class: "slider" }, el("span", { class: "name" }, title), input, number);
  return { node, input, set: (next) => { input.value = next; write(); } };
}

// One of a few, as buttons that stay pressed.
function choice(title, options, chosen, call) {
  const buttons = options.map(([value, text]) => el("button", {
    type: "button", "aria-pressed": String(value === chosen), "data-value": value,
    on: { click: () => { press(value); call(value); } },
  }, text));
  const press = (value) => buttons.forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.value === String(value))));
  return { node: el("div", { class: "choice", role: "group", "aria-label": title },
    el("span", { class: "name" }, title), buttons), press };
}

function button(text, call, id) {
  return el("button", { type: "button", id, on: { click: call } }, text);
}

// What the colours of a panel mean.
function key(...entries) {
  return el("ul", { class: "key" }, entries.map(([name, text]) =>
    el("li", null, el("span", { class: `swatch ${name}` }), text)));
}

// A number that a reader looks at, with its name below it.
function figureOf(title, id) {
  const value = el("output", { class: "value", id });
  return { node: el("div", { class: "fact" }, value, el("span", { class: "name" }, title)),
    set: (text) => { value.textContent = text; } };
}

// The current theme's colour as [red, green, blue], for canvases.
function themeColour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = text.length === 4 ? [...text.slice(1)].map((each) => each + each)
    : text.slice(1).match(/../g);
  return digits.map((each) => parseInt(each, 16));
}

// `colour(row, column)` of every point, [red, green, blue] from 0 to 255.
function paint(canvas, colour) {
  const { width, height } = canvas;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let place = 0; place < width * height; place += 1) {
    image.data.set([...colour(Math.floor(place / width), place % width), 255], 4 * place);
  }
  context.putImageData(image, 0, 0);
}

function shown(title, canvas) {
  return el("figure", null, canvas, el("figcaption", null, title));
}

// Axes of a chart: frame, ticks and titles; returns the two scales.
function axes(svg, box, x, y) {
  const across = (value) => box.left + ((value - x.low) / (x.high - x.low)) * (box.right - box.left);
  const up = (value) => box.bottom - ((value - y.low) / (y.high - y.low)) * (box.bottom - box.top);
  for (const [tick, text] of y.ticks) {
    svg.append(draw("path", { class: "gridline", d: `M${box.left} ${up(tick)}H${box.right}` }),
      draw("text", { class: "end", x: box.left - 6, y: up(tick) + 4 }, text));
  }
  for (const [tick, text] of x.ticks) {
    svg.append(draw("text", { class: "mid", x: across(tick), y: box.bottom + 17 }, text));
  }
  svg.append(draw("path", { class: "frame", d: `M${box.left} ${box.top}V${box.bottom}H${box.right}` }),
    draw("text", { class: "mid", x: (box.left + box.right) / 2, y: box.bottom + 36 }, x.title));
  const middle = (box.top + box.bottom) / 2;
  svg.append(draw("text", { class: "mid", x: 13, y: middle, transform: `rotate(-90 13 ${middle})` },
    y.title));
  return { across, up };
}

function path(points) {
  return points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// Panels that draw on canvases are drawn again when the theme changes.
const redrawn = [];

function panel(id, ...children) {
  document.getElementById(id).append(...children.flat());
}
