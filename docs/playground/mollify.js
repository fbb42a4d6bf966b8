// Panel 2: a picture drowned in noise or melted by heat, and what is left of its label.
"use strict";

const SIZE = TABLES.size;
// Every picture as [channel][row * SIZE + column] in [0, 1].
const PICTURES = TABLES.pictures.map(({ label, bytes }) => {
  const text = atob(bytes);
  const channels = [0, 1, 2].map((channel) => Float64Array.from({ length: SIZE * SIZE },
    (_, place) => text.charCodeAt(3 * place + channel) / 255));
  return { label, channels };
});

// Eq. (5) on a line of `size` points: K_ij = (g(i - j) + g(i + j + 1)) / 2.
function heatKernel(size, sigma) {
  const g = (offset) => {
    let total = 0;
    for (let frequency = 0; frequency < size; frequency += 1) {
      const radians = (Math.PI * frequency) / size;
      const angle = ((frequency * Math.abs(offset)) % (2 * size)) * (Math.PI / size);
      total += (frequency ? 2 : 1) * Math.exp(-0.5 * (sigma * radians) ** 2) * Math.cos(angle);
    }
    return total / size;
  };
  const sums = Array.from({ length: 2 * size }, (_, offset) => g(offset));
  return Array.from({ length: size }, (_, i) => Array.from({ length: size }, (__, j) =>
    (sums[Math.abs(i - j)] + sums[i + j + 1]) / 2));
}

// Eq. (6): from 0.3 pixels to the width of the picture, logarithmic in t.
function blurScale(t) {
  return Math.exp((1 - t) * Math.log(0.3) + t * Math.log(SIZE));
}

function dissipate(channel, t) {
  const kernel = heatKernel(SIZE, blurScale(t));
  const product = (read, row, column) => {
    let total = 0;
    for (let k = 0; k < SIZE; k += 1) total += kernel[row][k] * read(k, column);
    return total;
  };
  const lines = channel.map((_, place) =>
    product((k, row) => channel[row * SIZE + k], place % SIZE, Math.floor(place / SIZE)));
  return channel.map((_, place) =>
    product((k, column) => lines[k * SIZE + column], Math.floor(place / SIZE), place % SIZE));
}

// Eq. (4), on pictures standardised by their own mean and deviation, and back.
function diffuse(channel, t, noise) {
  const [middle, spread] = [mean([...channel]), deviation([...channel])];
  const [keep, add] = [Math.cos((Math.PI * t) / 2), Math.sin((Math.PI * t) / 2)];
  return channel.map((each, place) =>
    middle + spread * (keep * ((each - middle) / spread) + add * noise[place]));
}

// Eq. (12) and (13): the share of the label that is lost.
function labelDecay(kind, t, k) {
  return kind === "noise" ? Math.sin((Math.PI * t) / 2) ** (2 * k) : t ** k;
}

function smoothedLabel(label, decay) {
  return TABLES.classes.map((name) =>
    (1 - decay) * Number(name === label) + decay / TABLES.classes.length);
}

function noiseOf(seed) {
  const normal = normalStream(seed);
  return [0, 1, 2].map(() => Float64Array.from({ length: SIZE * SIZE }, normal));
}

const mollifyState = { picture: 0, kind: "noise", t: 0.3, k: 1, noise: noiseOf(1) };

function mollified({ picture: place, kind, t, noise }) {
  return PICTURES[place].channels.map((channel, number) =>
    (kind === "noise" ? diffuse(channel, t, noise[number]) : dissipate(channel, t)));
}

function startMollify() {
  const canvas = el("canvas", { width: SIZE, height: SIZE, role: "img", class: "large" });
  const bars = TABLES.classes.map((name) => {
    const bar = el("span", { class: "bar" });
    const share = el("output", { class: "number" });
    return { bar, share, node: el("div", { class: "class" }, el("span", { class: "name" }, name),
      el("span", { class: "track" }, bar), share) };
  });
  const facts = { decay: figureOf("of the label is lost", "decay"), scale: figureOf("noise : image, or blur", "strength") };
  const update = () => {
    const { picture: place, kind, t, k } = mollifyState;
    const channels = mollified(mollifyState);
    paint(canvas, (row, column) => channels.map((each) => 255 * each[row * SIZE + column]));
    const decay = labelDecay(kind, t, k);
    const { label } = PICTURES[place];
    smoothedLabel(label, decay).forEach((each, number) => {
      bars[number].bar.style.width = `${100 * each}%`;
      bars[number].share.textContent = `${show(100 * each, 1)} %`;
      bars[number].node.classList.toggle("true", TABLES.classes[number] === label);
    });
    facts.decay.set(`${show(100 * decay, 1)} %`);
    facts.scale.set(kind === "blur" ? `σ ${show(blurScale(t), 2)} px`
      : `${show(Math.sin((Math.PI * t) / 2), 2)} : ${show(Math.cos((Math.PI * t) / 2), 2)}`);
    canvas.setAttribute("aria-label", `a ${label} under ${kind} of temperature ${show(t, 2)}`);
  };
  const set = (key) => (value) => { mollifyState[key] = value; update(); };
  panel("mollify", el("div", { class: "split even" },
    el("div", { class: "controls" },
      choice("damage", [["noise", "noise"], ["blur", "heat blur"]], "noise", set("kind")).node,
      choice("picture", PICTURES.map(({ label }, place) => [place, label]), 0, set("picture")).node,
      slider("temperature", { id: "temperature-t", low: 0, high: 1, step: 0.01, value: 0.3,
        digits: 2 }, set("t")).node,
      slider("slope", { id: "slope-k", low: 0.25, high: 4, step: 0.05, value: 1, digits: 2 },
        set("k")).node,
      el("div", { class: "facts" }, facts.decay.node, facts.scale.node),
      button("other noise", () => set("noise")(noiseOf(Math.floor(Math.random() * 1e9))))),
    shown("what the network sees", canvas),
    el("div", { class: "classes" }, bars.map((each) => each.node),
      el("p", { class: "note" }, "and what it is asked to say"))));
  update();
}
