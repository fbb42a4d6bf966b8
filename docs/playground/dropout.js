// Panel 5: the mean of MC dropout samples, with and without smoothing before down-sampling.
"use strict";

const STRIDE = 4;
const SAMPLES = 50;
const PLAIN = 0.75; // what both networks say of the truth without dropout

const dropoutState = { picture: 2, rate: 0.3, tau: 10, kernel: "2", seed: 1, shown: 50 };

// The maps of one picture as the toy network has them: filters, dropout, smoothing, every 4th point.
function toyFeatures(place, { rate, tau, kernel }, isSmoothed, uniform) {
  const grey = greyOf(PICTURES[place]);
  return FILTERS.flatMap((filter) => {
    let map = filtered(grey, filter, 8);
    if (uniform) map = dropped(map, rate, uniform);
    map = isSmoothed ? blur(prob(map, tau), KERNELS[kernel]) : map.map((each) => Math.max(0, each));
    return [...map].filter((_, at) => at % STRIDE === 0 && Math.floor(at / SIZE) % STRIDE === 0);
  });
}

function squaredDistance(one, two) {
  return one.reduce((total, each, place) => total + (each - two[place]) ** 2, 0);
}

// The sharpness at which distances of this many templates give the truth, at distance 0, `PLAIN`.
function sharpnessFor(distances) {
  let [low, high] = [0, 1];
  const said = (sharpness) => Math.max(...softmax(distances.map((each) => -sharpness * each)));
  while (said(high) < PLAIN) high *= 2;
  for (let step = 0; step < 60; step += 1) {
    const middle = (low + high) / 2;
    if (said(middle) < PLAIN) low = middle;
    else high = middle;
  }
  return high;
}

// Probability of the true picture, the likelier the nearer its features, in each sample.
function dropoutSamples(settings, isSmoothed) {
  const templates = PICTURES.map((_, place) => toyFeatures(place, settings, isSmoothed, null));
  const truth = templates[settings.picture];
  const sharpness = sharpnessFor(templates.map((each) => squaredDistance(truth, each)));
  const uniform = uniformStream(settings.seed);
  return Array.from({ length: SAMPLES }, () => {
    const found = toyFeatures(settings.picture, settings, isSmoothed, uniform);
    const logits = templates.map((each) => -sharpness * squaredDistance(found, each));
    return softmax(logits)[settings.picture];
  });
}

function runningMeans(samples) {
  let total = 0;
  return samples.map((each, place) => { total += each; return total / (place + 1); });
}

function startDropout() {
  const chart = el("div", { class: "diagram" });
  const facts = Object.fromEntries([["without", "one sample scatters by, without smoothing"],
    ["with", "with smoothing"], ["ratio", "samples without are worth one with"]]
    .map(([id, title]) => [id, figureOf(title, `dropout-${id}`)]));
  let [drawn, found] = ["", {}];
  const update = () => {
    const { shown: count, ...settings } = dropoutState;
    if (drawn !== JSON.stringify(settings)) {
      drawn = JSON.stringify(settings);
      found = { without: dropoutSamples(settings, false), with: dropoutSamples(settings, true) };
    }
    const svg = picture(500, 330, "probability of the true picture over the number of samples");
    const box = { left: 52, right: 488, top: 12, bottom: 280 };
    const { across, up } = axes(svg, box, { low: 0.5, high: SAMPLES + 0.5, title: "MC dropout samples",
      ticks: [1, 10, 20, 30, 40, 50].map((each) => [each, String(each)]) },
    { low: 0, high: 1, title: "probability of the truth, %",
      ticks: [0, 0.2, 0.4, 0.6, 0.8, 1].map((each) => [each, show(100 * each, 0)]) });
    for (const name of ["without", "with"]) {
      const samples = found[name].slice(0, count);
      samples.forEach((each, place) => svg.append(draw("circle", { class: `sample ${name}`, r: 2.6,
        cx: across(place + 1), cy: up(each) })));
      svg.append(draw("path", { class: `mean ${name}`,
        d: path(runningMeans(samples).map((each, place) => [across(place + 1), up(each)])) }));
    }
    svg.append(draw("path", { class: "ideal", d: `M${box.left} ${up(PLAIN)}H${box.right}` }));
    chart.replaceChildren(svg);
    const spread = { without: deviation(found.without), with: deviation(found.with) };
    facts.without.set(`± ${show(100 * spread.without, 1)} %`);
    facts.with.set(`± ${show(100 * spread.with, 1)} %`);
    facts.ratio.set(spread.with > 0 ? show((spread.without / spread.with) ** 2, 1) : "–");
  };
  const set = (name) => (value) => { dropoutState[name] = value; update(); };
  const range = (title, name, options) => slider(title, { id: `dropout-${name}`,
    value: dropoutState[name], ...options }, set(name));
  const counter = range("samples", "shown", { low: 1, high: SAMPLES, step: 1, digits: 0 });
  let timer = null;
  const play = button("play", () => {
    clearInterval(timer);
    let count = 1;
    timer = setInterval(() => {
      counter.set(count);
      set("shown")(count);
      count += 1;
      if (count > SAMPLES) clearInterval(timer);
    }, 60);
  }, "play");
  panel("dropout", el("div", { class: "split" },
    el("div", { class: "controls" },
      choice("picture", PICTURES.map(({ label }, place) => [place, label]), 2, set("picture")).node,
      choice("kernel", [["2", "1 1"], ["3", "1 2 1"], ["5", "1 4 6 4 1"]], "2", set("kernel")).node,
      range("dropout", "rate", { low: 0.05, high: 0.8, step: 0.05, digits: 2 }).node,
      range("bound τ", "tau", { low: 1, high: 20, step: 0.5, digits: 1 }).node,
      counter.node,
      el("div", { class: "buttons" }, play,
        button("other masks", () => set("seed")(dropoutState.seed + 1))),
      el("div", { class: "facts" }, Object.values(facts).map(({ node }) => node))),
    el("div", null, chart, key(["without", "without smoothing"],
      ["with", "with Prob and Blur"], ["none", "dots: single samples; lines: their means; "
        + "dashed: what both say without dropout"]))));
  update();
}
