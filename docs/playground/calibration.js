// Panel 4: a classifier whose truth is known, its reliability diagram, and what may be accepted.
"use strict";

const BINS = 15;
const CLASSES = 10;
const RESAMPLES = 200;
// Thresholds of sfumato.predictions.decisions, ten for each further digit of confidence.
const STEPS = 10;
const GRID = [1, ...Array.from({ length: 7 * STEPS + 1 }, (_, place) =>
  1 - 10 ** (-(7 * STEPS - place) / STEPS))];
const DELTA = 0.05;

// Logits whose softmax is the truth, and a label drawn from it.
function simulate(count, seed) {
  const normal = normalStream(seed);
  const uniform = uniformStream(seed + 1);
  return Array.from({ length: count }, () => {
    const logits = Array.from({ length: CLASSES }, () => 5 * normal());
    let left = uniform();
    const label = softmax(logits).findIndex((each) => { left -= each; return left < 0; });
    return { logits, label: label < 0 ? CLASSES - 1 : label };
  });
}

// What the classifier says: the true logits times `sharpness`, divided by the temperature.
function stated(samples, sharpness, temperature) {
  return samples.map(({ logits, label }) => {
    const log = logSoftmax(logits.map((each) => (each * sharpness) / temperature));
    const top = Math.max(...log);
    return { confidence: Math.exp(top), correct: log[label] === top, nll: -log[label] };
  });
}

function binsOf(predictions) {
  const bins = Array.from({ length: BINS }, () => ({ count: 0, confidence: 0, correct: 0 }));
  for (const { confidence, correct } of predictions) {
    const bin = bins[Math.min(BINS - 1, Math.floor(confidence * BINS * (1 - 2 ** -51)))];
    bin.count += 1;
    bin.confidence += confidence;
    bin.correct += Number(correct);
  }
  return bins;
}

function ece(predictions) {
  return binsOf(predictions).reduce((total, { confidence, correct }) =>
    total + Math.abs(confidence - correct), 0) / predictions.length;
}

// Quantiles of resampled errors, moved so that their mean is the measured one.
function eceInterval(predictions, seed) {
  const uniform = uniformStream(seed);
  const value = ece(predictions);
  const draws = Array.from({ length: RESAMPLES }, () => ece(predictions.map(() =>
    predictions[Math.floor(uniform() * predictions.length)]))).sort((a, b) => a - b);
  const shift = value - mean(draws);
  const place = 0.025 * (RESAMPLES - 1);
  return { draws, low: Math.max(0, draws[Math.floor(place)] + shift),
    high: draws[Math.ceil(RESAMPLES - 1 - place)] + shift };
}

const LOG_FACTORIAL = [0];
function logChoose(n, k) {
  while (LOG_FACTORIAL.length <= n) {
    LOG_FACTORIAL.push(LOG_FACTORIAL.at(-1) + Math.log(LOG_FACTORIAL.length));
  }
  return LOG_FACTORIAL[n] - LOG_FACTORIAL[k] - LOG_FACTORIAL[n - k];
}

// De Moivre's mean deviation of a binomial number: E|X - n p|.
function binomialDeviation(n, p) {
  if (n === 0 || p <= 0 || p >= 1) return 0;
  const k = Math.min(Math.floor(n * p) + 1, n);
  return Math.exp(Math.log(2 * k) + logChoose(n, k) + k * Math.log(p) + (n - k + 1) * Math.log1p(-p));
}

// The error that a perfect classifier with these confidences would show on average.
function eceFloor(predictions) {
  return binsOf(predictions).reduce((total, { count, confidence }) =>
    total + binomialDeviation(count, confidence / (count || 1)), 0) / predictions.length;
}

// P(X <= errors) of a binomial number.
function binomialTail(errors, trials, rate) {
  if (errors >= trials) return 1;
  let total = 0;
  for (let k = 0; k <= errors; k += 1) {
    total += Math.exp(logChoose(trials, k) + k * Math.log(rate) + (trials - k) * Math.log1p(-rate));
  }
  return Math.min(1, total);
}

// The lowest confidence of GRID from which on at most `risk` is wrong, but for DELTA of all draws.
// Each threshold has an equal part of DELTA; a passed test hands its level on to the next.
function riskThreshold(predictions, risk) {
  const ordered = [...predictions].sort((a, b) => b.confidence - a.confidence);
  let [kept, errors, level, known, tail] = [0, 0, 0, -1, 1];
  let found = null;
  GRID.forEach((threshold) => {
    while (kept < ordered.length && ordered[kept].confidence >= threshold) {
      errors += Number(!ordered[kept].correct);
      kept += 1;
    }
    if (kept !== known) {
      tail = binomialTail(errors, kept, risk);
      known = kept;
    }
    level += DELTA / GRID.length;
    if (tail <= level) found = { threshold, kept, errors };
    else level = 0;
  });
  return found;
}

const calibrationState = { sharpness: 1.8, temperature: 1, risk: 0.05, count: 1000, seed: 1 };

function reliabilityDiagram(predictions, threshold) {
  const svg = picture(400, 360, "reliability diagram: accuracy over confidence in 15 bins");
  const box = { left: 48, right: 388, top: 12, bottom: 312 };
  const ticks = [0, 0.2, 0.4, 0.6, 0.8, 1].map((each) => [each, show(100 * each, 0)]);
  const { across, up } = axes(svg, box, { low: 0, high: 1, ticks, title: "confidence, %" },
    { low: 0, high: 1, ticks, title: "accuracy, %" });
  binsOf(predictions).forEach(({ count, confidence, correct }, place) => {
    if (!count) return;
    const [x, width] = [across(place / BINS) + 1, (box.right - box.left) / BINS - 2];
    const [said, was] = [confidence / count, correct / count];
    svg.append(
      draw("rect", { class: "accuracy", x, width, y: up(was), height: up(0) - up(was) }),
      draw("rect", { class: said > was ? "gap over" : "gap under", x, width,
        y: Math.min(up(said), up(was)), height: Math.abs(up(said) - up(was)) }));
  });
  svg.append(draw("path", { class: "ideal", d: `M${across(0)} ${up(0)}L${across(1)} ${up(1)}` }));
  if (threshold !== null) {
    svg.append(draw("path", { class: "threshold", d: `M${across(threshold)} ${up(0)}V${up(1)}` }));
  }
  return svg;
}

function startCalibration() {
  const diagram = el("div", { class: "diagram" });
  const facts = Object.fromEntries([["accuracy", "accuracy"], ["ece", "ECE"],
    ["interval", "its 95 % interval"], ["floor", "ECE if all were true"], ["nll", "NLL"],
    ["threshold", "accept from"], ["coverage", "of all is accepted"],
    ["errors", "of it is wrong"]].map(([id, title]) => [id, figureOf(title, `fact-${id}`)]));
  const share = (value, digits = 1) => `${show(100 * value, digits)} %`;
  let samples = [];
  const update = () => {
    const { sharpness, temperature, risk, count, seed } = calibrationState;
    if (samples.length !== count || samples.seed !== seed) {
      samples = simulate(count, seed);
      samples.seed = seed;
    }
    const predictions = stated(samples, sharpness, temperature);
    const { low, high } = eceInterval(predictions, seed + 7);
    const found = riskThreshold(predictions, risk);
    facts.accuracy.set(share(mean(predictions.map(({ correct }) => Number(correct)))));
    facts.ece.set(share(ece(predictions)));
    facts.interval.set(`${show(100 * low, 1)} – ${show(100 * high, 1)} %`);
    facts.floor.set(share(eceFloor(predictions)));
    facts.nll.set(show(mean(predictions.map(({ nll }) => nll)), 3));
    facts.threshold.set(found ? share(found.threshold, 2) : "nowhere");
    facts.coverage.set(share(found ? found.kept / count : 0));
    facts.errors.set(found ? share(found.errors / found.kept) : "–");
    diagram.replaceChildren(reliabilityDiagram(predictions, found && found.threshold));
  };
  const set = (key) => (value) => { calibrationState[key] = value; update(); };
  const range = (title, key, options, scale = 1) => slider(title, { id: `calibration-${key}`,
    value: calibrationState[key] / scale, ...options }, (value) => set(key)(value * scale));
  const temperature = range("temperature", "temperature", { low: 0.4, high: 4, step: 0.05, digits: 2 });
  panel("calibration", el("div", { class: "split even" },
    el("div", { class: "controls" },
      range("sharpness", "sharpness", { low: 0.4, high: 4, step: 0.05, digits: 2 }).node,
      temperature.node,
      range("wished risk", "risk", { low: 0.5, high: 25, step: 0.5, digits: 1, unit: " %" }, 0.01).node,
      choice("test images", [[300, "300"], [1000, "1,000"], [3000, "3,000"]], 1000, set("count")).node,
      el("div", { class: "buttons" }, button("the right temperature", () => {
        temperature.set(calibrationState.sharpness);
        set("temperature")(calibrationState.sharpness);
      }, "right-temperature"), button("other images", () => set("seed")(calibrationState.seed + 10))),
      el("p", { class: "note" }, "Sharpness above 1 is overconfidence, below 1 underconfidence. "
        + "The risk holds for 95 of 100 draws of the test images.")),
    diagram,
    el("div", { class: "facts column" }, Object.values(facts).map(({ node }) => node))),
  key(["bar", "accuracy"], ["over", "overconfident"], ["under", "underconfident"],
    ["cut", "accepted from here on"]));
  update();
}
