// Small helpers. Everything that a user wrote goes through textContent or setAttribute, never HTML.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const SYMBOL = { better: "✓", worse: "✗", "inconclusive": "?" };
const CLASS = { better: "better", worse: "worse", "inconclusive": "unsure" };
// Bright scheme of Paul Tol, told apart by colour-blind readers; dashes tell the next rounds apart.
const COLOURS = ["#4477aa", "#ee6677", "#228833", "#b89b1f", "#2fa3cc", "#aa3377", "#8a8a8a"];
const DASHES = ["", "7 3", "2 3"];

(DATA.methods || []).forEach((method, place) => {
  for (const [part, names] of Object.entries(DATA.fields)) {
    for (const [id, row] of Object.entries(method[part])) {
      method[part][id] = Object.fromEntries(names.map((name, at) =>
        [name, DATA.shared_fields.includes(name) ? DATA.shared[row[at]] : row[at]]));
    }
  }
  method.number = place + 1;
  method.colour = COLOURS[place % COLOURS.length];
  method.dash = DASHES[Math.floor(place / COLOURS.length) % DASHES.length];
});

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

function column(id) {
  return DATA.columns.find((each) => each.id === id);
}

function format(value, percent, digits) {
  if (value === null || value === undefined) return "–";
  const places = digits === undefined ? (percent ? 1 : 3) : digits;
  return ((percent ? 100 : 1) * value).toFixed(places).replace("-", "−");
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 90) return `${(value / 60).toFixed(1)} min`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  return value >= 1e-3 ? `${(1e3 * value).toFixed(1)} ms` : `${(1e6 * value).toFixed(0)} µs`;
}

const tip = el("div", { class: "tip", role: "status", hidden: true });

// Shows `text` while the pointer or the focus is on `node`.
function withTip(node, text) {
  const show = (event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = node.getBoundingClientRect();
    const left = event.clientX === undefined ? box.left : event.clientX;
    const top = event.clientY === undefined ? box.bottom : event.clientY;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(left + 12, room))}px`;
    tip.style.top = `${top + 14}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const name of ["pointerenter", "pointermove", "focus"]) node.addEventListener(name, show);
  for (const name of ["pointerleave", "blur"]) node.addEventListener(name, hide);
  return node;
}

function download(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity",
  "font-size", "font-family", "font-weight", "text-anchor"];

// The picture as a file of its own: the page's styles written into its elements.
function standalone(picture) {
  const copy = picture.cloneNode(true);
  const [, , width, height] = picture.getAttribute("viewBox").split(" ");
  build(copy, { xmlns: SVG, width, height }, []);
  const originals = [picture, ...picture.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, place) => {
    const style = getComputedStyle(originals[place]);
    for (const name of DRAWN) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
  });
  const paper = getComputedStyle(document.body).backgroundColor;
  copy.prepend(draw("rect", { width, height, fill: paper }));
  return new XMLSerializer().serializeToString(copy);
}

function downloadPng(name, picture) {
  const image = new Image();
  const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  image.onload = () => {
    const canvas = el("canvas", { width: 3 * width, height: 3 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 3 * width, 3 * height);
    canvas.toBlob((blob) => download(name, blob));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(picture))}`;
}

function fileName(title) {
  return title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "") || "figure";
}

// A captioned picture with its two download buttons.
function figure(title, note, picture) {
  const name = fileName(title);
  const save = (kind, call) => el("button", {
    type: "button", class: "small", "aria-label": `Download ${title} as ${kind}`,
    on: { click: call },
  }, kind);
  return el("figure", null,
    el("figcaption", null, title, note ? el("span", { class: "note" }, note) : null),
    picture,
    el("div", { class: "saves" },
      save("SVG", () => download(`${name}.svg`, standalone(picture), "image/svg+xml")),
      save("PNG", () => downloadPng(`${name}.png`, picture))));
}

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title), ...children);
}

function choice(label, options, call) {
  const entries = options.map(([value, text]) => el("option", { value }, text));
  const select = el("select", { on: { change: () => call(select.value) } }, entries);
  return el("label", { class: "choice" }, `${label} `, select);
}
