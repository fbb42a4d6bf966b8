// Panel 3: a feature map, bounded by Prob and averaged by Blur.
"use strict";

const KERNELS = { "1": [1], "2": [1, 1], "3": [1, 2, 1], "5": [1, 4, 6, 4, 1] };
// Four filters as a first layer has them: edges across and down, spots, and brightness.
const FILTERS = [
  [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]],
  [[-1, -2, -1], [0, 0, 0], [1, 2, 1]],
  [[0, -1, 0], [-1, 4, -1], [0, -1, 0]],
  [[0, 0, 0], [0, 2, 0], [0, 0, 0]],
];

function filtered(grey, filter, gain) {
  const inside = (place) => Math.max(0, Math.min(SIZE - 1, place));
  return Float64Array.from(grey, (_, place) => {
    const [row, column] = [Math.floor(place / SIZE), place % SIZE];
    let total = 0;
    filter.forEach((line, down) => line.forEach((weight, right) => {
      total += weight * grey[inside(row + down - 1) * SIZE + inside(column + right - 1)];
    }));
    return gain * total;
  });
}

function greyOf({ channels }) {
  return channels[0].map((red, place) => 0.299 * red + 0.587 * channels[1][place]
    + 0.114 * channels[2][place]);
}

// Each point is kept with probability 1 - rate, and then larger, so that the mean stays.
function dropped(map, rate, uniform) {
  return map.map((each) => (uniform() < rate ? 0 : each / (1 - rate)));
}

// Eq. (6) and (7): ReLU of tau tanh(z / tau).
function prob(map, tau) {
  return map.map((each) => Math.max(0, tau * Math.tanh(each / tau)));
}

// Eq. (8): the mean of neighbours with weights k k^T; zeros outside.
function blur(map, kernel) {
  const norm = kernel.reduce((total, each) => total + each, 0);
  const before = Math.floor((kernel.length - 1) / 2);
  const along = (source, rowStep, columnStep) => source.map((_, place) => {
    const [row, column] = [Math.floor(place / SIZE), place % SIZE];
    return kernel.reduce((total, weight, number) => {
      const [r, c] = [row + rowStep * (number - before), column + columnStep * (number - before)];
      const inside = r >= 0 && c >= 0 && r < SIZE && c < SIZE;
      return total + (inside ? (weight / norm) * source[r * SIZE + c] : 0);
    }, 0);
  });
  return along(along(map, 0, 1), 1, 0);
}

// Mean difference of neighbours: how rough a map is.
function roughness(map) {
  let total = 0;
  for (let row = 0; row < SIZE; row += 1) {
    for (let column = 1; column < SIZE; column += 1) {
      total += Math.abs(map[row * SIZE + column] - map[row * SIZE + column - 1]);
    }
  }
  return total / (SIZE * (SIZE - 1));
}

const featureState = { picture: 0, filter: 0, gain: 8, rate: 0.3, tau: 10, kernel: "2", seed: 1 };

function featureMaps({ picture: place, filter, gain, rate, tau, kernel, seed }) {
  const map = filtered(greyOf(PICTURES[place]), FILTERS[filter], gain);
  const given = dropped(map, rate, uniformStream(seed));
  const bounded = prob(given, tau);
  return { given, bounded, smoothed: blur(bounded, KERNELS[kernel]) };
}

function paintMap(canvas, map, most) {
  const [paper, positive, negative] = ["--panel", "--bar", "--over"].map(themeColour);
  paint(canvas, (row, column) => {
    const value = map[row * SIZE + column];
    const share = Math.min(1, Math.sqrt(Math.abs(value) / most)); // the root shows faint points too
    const colour = value < 0 ? negative : positive;
    return paper.map((each, channel) => each + share * (colour[channel] - each));
  });
}

function startFeatures() {
  const stages = [["given", "z, with dropout"], ["bounded", "Prob(z)"],
    ["smoothed", "Blur(Prob(z))"]].map(([name, title]) => ({ name, title,
    canvas: el("canvas", { width: SIZE, height: SIZE, role: "img", "aria-label": title }),
    largest: el("output", { class: "number" }) }));
  const facts = { before: figureOf("difference of neighbours in z", "rough-before"),
    after: figureOf("after Prob and Blur", "rough-after") };
  const update = () => {
    const maps = featureMaps(featureState);
    const most = Math.max(4, ...maps.bounded);
    for (const { name, canvas, largest } of stages) {
      paintMap(canvas, maps[name], most);
      largest.textContent = `max ${show(Math.max(...maps[name]), 1)}`;
    }
    facts.before.set(show(roughness(maps.given), 2));
    facts.after.set(show(roughness(maps.smoothed), 2));
  };
  const set = (key) => (value) => { featureState[key] = value; update(); };
  const range = (title, key, options) => slider(title, { id: `feature-${key}`,
    value: featureState[key], ...options }, set(key)).node;
  panel("features", el("div", { class: "split" },
    el("div", { class: "controls" },
      choice("picture", PICTURES.map(({ label }, place) => [place, label]), 0, set("picture")).node,
      choice("filter", [[0, "across"], [1, "down"], [2, "spots"], [3, "bright"]], 0, set("filter")).node,
      choice("kernel", [["1", "none"], ["2", "1 1"], ["3", "1 2 1"], ["5", "1 4 6 4 1"]], "2",
        set("kernel")).node,
      range("bound τ", "tau", { low: 1, high: 20, step: 0.5, digits: 1 }),
      range("gain", "gain", { low: 1, high: 20, step: 0.5, digits: 1 }),
      range("dropout", "rate", { low: 0, high: 0.8, step: 0.05, digits: 2 }),
      el("div", { class: "facts" }, facts.before.node, facts.after.node),
      button("other dropout mask", () => set("seed")(featureState.seed + 1))),
    el("div", { class: "maps" }, stages.map(({ title, canvas, largest }) =>
      el("figure", null, canvas, el("figcaption", null, title, largest))))),
  key(["raise", "positive"], ["lower", "negative, which Prob cuts off"]));
  redrawn.push(update);
  update();
}
