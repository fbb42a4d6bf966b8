// Panel 1: logits on sliders, and where every loss would push them.
"use strict";

const LOGITS = { low: -4, high: 12 };
const START = [9, 2, 0, -1, 1, -2, 0.5, -3, 1.5, -1.5];
const PRESETS = {
  "sure and right": { logits: START, label: 0 },
  "sure and wrong": { logits: START, label: 1 },
  "unsure": { logits: [2, 1.5, 0.5, 0, 1, -0.5, 0.2, -1, 0.8, -0.2], label: 0 },
};
// A gradient g is drawn sqrt(g) times as long as this many logits, at most as long as `most`.
const ARROW = { scale: 8, most: 8 };

const logitState = { count: 5, label: 0, margin: 6, smoothing: 0.1, logits: [...START] };

function shownLosses() {
  const { margin, smoothing } = logitState;
  const cards = Object.entries(LOSSES).map(([name, [title]]) => ({
    name, title, options: "margin" in TABLES.options[name] ? { margin } : {},
  }));
  cards.splice(1, 0, { name: "cross_entropy", title: "label smoothing", options: { smoothing } });
  return cards;
}

function arrow(x, from, to) {
  if (Math.abs(to - from) < 1.5) return null;
  const direction = Math.sign(to - from);
  const head = Math.min(6, Math.abs(to - from));
  return draw("g", { class: direction < 0 ? "raise" : "lower" },
    draw("path", { class: "shaft", d: `M${x} ${from}V${to - direction * head * 0.6}` }),
    draw("path", { class: "head", d: `M${x} ${to}l-4 ${-direction * head}h8z` }));
}

function lossCard({ name, title, options }) {
  const logits = logitState.logits.slice(0, logitState.count);
  const { value, gradient } = lossOf(name, logits, logitState.label, options);
  const svg = picture(230, 180, `${title}: value ${show(value, 3)}, push on each logit ${
    gradient.map((each) => show(-each, 3)).join(", ")}`);
  const up = (logit) => 174 - ((logit - LOGITS.low + 2) / (LOGITS.high - LOGITS.low + 3)) * 168;
  const top = Math.max(...logits);
  if (options.margin !== undefined) {
    const low = Math.max(LOGITS.low - 2, top - options.margin);
    svg.append(draw("rect", { class: "margin", x: 8, width: 214, y: up(top),
      height: up(low) - up(top) }));
  }
  svg.append(draw("path", { class: "gridline", d: `M8 ${up(0)}H222` }));
  logits.forEach((logit, place) => {
    const x = 8 + (214 * (place + 0.5)) / logits.length;
    const length = Math.min(ARROW.most, ARROW.scale * Math.sqrt(Math.abs(gradient[place])));
    const push = -Math.sign(gradient[place]) * length;
    svg.append(draw("path", { class: "stem", d: `M${x} ${up(0)}V${up(logit)}` }));
    const pushed = arrow(x, up(logit), up(logit + push));
    svg.append(draw("circle", { class: place === logitState.label ? "dot label" : "dot", r: 4.5,
      cx: x, cy: up(logit) }));
    if (pushed) svg.append(pushed);
  });
  return el("figure", { class: "loss", "data-loss": name }, el("figcaption", null,
    el("strong", null, title), el("span", { class: "number" }, show(value, 3))), svg);
}

function gradientTable() {
  const logits = logitState.logits.slice(0, logitState.count);
  const head = el("tr", null, el("th", { scope: "col" }, "gradient"),
    logits.map((_, place) => el("th", { scope: "col" }, place === logitState.label
      ? `class ${place + 1} (true)` : `class ${place + 1}`)));
  const rows = shownLosses().map(({ name, title, options }) => el("tr", null,
    el("th", { scope: "row" }, title),
    lossOf(name, logits, logitState.label, options).gradient
      .map((each) => el("td", null, show(each, 4)))));
  return el("table", null, el("thead", null, head), el("tbody", null, rows));
}

function startLogits() {
  const cards = el("div", { class: "cards" });
  const numbers = el("div", { class: "wide" });
  const bars = [];
  const rows = START.map((value, place) => {
    const radio = el("input", { type: "radio", name: "label", value: place, checked: place === 0,
      "aria-label": `class ${place + 1} is the true one`,
      on: { change: () => { logitState.label = place; update(); } } });
    const control = slider(`class ${place + 1}`, { id: `logit-${place}`, ...LOGITS, step: 0.1, value,
      digits: 1 }, (next) => { logitState.logits[place] = next; update(); });
    const bar = el("span", { class: "bar" });
    const share = el("output", { class: "number" });
    bars.push({ bar, share });
    return { control, radio, node: el("div", { class: "logit" }, radio, control.node,
      el("span", { class: "track" }, bar), share) };
  });
  const update = () => {
    const kept = logitState.logits.slice(0, logitState.count);
    softmax(kept).forEach((each, place) => {
      bars[place].bar.style.width = `${100 * each}%`;
      bars[place].share.textContent = `${show(100 * each, 1)} %`;
    });
    rows.forEach((row, place) => { row.node.classList.toggle("off", place >= logitState.count); });
    rows.forEach((row, place) => { row.radio.checked = place === logitState.label; });
    cards.replaceChildren(...shownLosses().map(lossCard));
    numbers.replaceChildren(gradientTable());
  };
  const count = slider("classes", { id: "count", low: 3, high: 10, step: 1, value: 5, digits: 0 },
    (next) => {
      logitState.count = next;
      logitState.label = Math.min(logitState.label, next - 1);
      update();
    });
  const margin = slider("margin", { id: "margin", low: 0.5, high: 20, step: 0.5, value: 6, digits: 1 },
    (next) => { logitState.margin = next; update(); });
  const smoothing = slider("smoothing", { id: "smoothing", low: 0, high: 0.5, step: 0.01, value: 0.1,
    digits: 2 }, (next) => { logitState.smoothing = next; update(); });
  const presets = Object.entries(PRESETS).map(([text, { logits, label }]) => button(text, () => {
    logitState.logits = [...logits];
    logitState.label = label;
    rows.forEach((row, place) => row.control.set(logits[place]));
    update();
  }));
  panel("logits", el("div", { class: "split" },
    el("div", { class: "controls" }, el("div", { class: "buttons" }, presets),
      count.node, margin.node, smoothing.node,
      el("p", { class: "note" }, "Logits; the marked class is the true one."),
      el("div", { class: "rows" }, rows.map((row) => row.node))),
    el("div", null, cards, key(["raise", "pushed up"], ["lower", "pushed down"],
      ["ring", "the true class"], ["band", "within the margin of the top"],
      ["none", "arrows grow with the root of the gradient"]))),
  el("details", null, el("summary", null, "The gradients as numbers"), numbers));
  update();
}
