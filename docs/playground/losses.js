// Every loss of the table of parts that is a function of single entries, as its equation.
// tests/playground/test_browser.py holds values and gradients against the library's.
"use strict";

function logProbabilities(z) {
  const total = logSumExp(z);
  return z.map((each) => each.minus(total));
}

function crossEntropy(z, label, smoothing = 0) {
  const log = logProbabilities(z);
  return log[label].times(smoothing - 1).minus(sum(log).times(smoothing / z.length));
}

function focal(z, label, exponent) {
  const log = logProbabilities(z)[label];
  return log.expm1().times(-1).power(exponent).times(log).times(-1);
}

// How far the others lie below the top beyond the margin; `hold` keeps the top constant.
function beyondMargin(z, margin, hold) {
  const top = extreme(z, 1);
  return z.map((each) => (hold ? top.constant() : top).minus(each).minus(margin).relu());
}

function acls(z, label, { margin, predicted_weight: first, other_weight: second }) {
  const spread = extreme(z, 1).minus(extreme(z, -1)).minus(margin).relu();
  const others = sum(beyondMargin(z, margin, true).map((each) => each.power(2)));
  return crossEntropy(z, label).plus(spread.power(2).times(first))
    .plus(others.times(second / (z.length - 1)));
}

function cpc(z, label, { discrimination_weight: first, exclusion_weight: second }) {
  const others = z.filter((_, place) => place !== label);
  const count = others.length;
  const wins = sum(others.map((each) => logSigmoid(z[label].minus(each)))).times(-1 / count);
  const pairs = sum(others.flatMap((one) => others.map((two) => logSigmoid(one.minus(two)))));
  const exclusion = pairs.times(-0.5 / (count * (count - 1)));
  return crossEntropy(z, label).plus(wins.times(first)).plus(exclusion.times(second));
}

function logSinhc(x) {
  const size = x.abs();
  if (size.value < 1e-3) return x.power(2).times(1 / 6); // the next term is below 1e-14
  return size.plus(size.times(-2).expm1().times(-1).log()).minus(size.times(2).log());
}

function normalisedCrossEntropy(z, label) {
  const log = logProbabilities(z);
  const middle = sum(log).times(1 / z.length);
  const parts = log.map((each) =>
    middle.plus(each).times(0.5).plus(logSinhc(middle.minus(each).times(0.5))));
  return logSumExp(parts).minus(log[label]);
}

// The label's lead over the class that follows it, in place of its probability.
function dualFocal(z, label, { gamma }) {
  const log = logProbabilities(z);
  const below = log.filter((each) => each.value < log[label].value);
  const miss = log[label].expm1().times(-1);
  const lacking = below.length ? miss.plus(extreme(below, 1).exp()) : miss;
  return lacking.power(gamma).times(log[label]).times(-1);
}

// Held constant, the distance between label and prediction is only a weight.
function bsce(z, label, { gamma }) {
  const probabilities = logProbabilities(z).map((each) => Math.exp(each.value));
  const brier = probabilities.reduce((total, each, place) =>
    total + (each - Number(place === label)) ** 2, 0);
  return crossEntropy(z, label).times(brier ** (gamma / 2));
}

function flsd(z, label, { gamma }) {
  const probability = Math.exp(logProbabilities(z)[label].value);
  return focal(z, label, probability < 0.2 ? 5 : probability < 0.5 ? 3 : gamma);
}

function ecp(z, label, { weight }) {
  const entropy = sum(logProbabilities(z).map((each) => each.exp().times(each)));
  return crossEntropy(z, label).plus(entropy.times(weight / z.length));
}

function mbls(z, label, { margin, weight }) {
  const excess = sum(beyondMargin(z, margin, false));
  return crossEntropy(z, label).plus(excess.times(weight / z.length));
}

function maxsup(z, label, { weight }) {
  const lead = extreme(z, 1).minus(sum(z).times(1 / z.length));
  return crossEntropy(z, label).plus(lead.times(weight));
}

// Of a single entry, whose neighbourhood is itself.
function nacl(z, label, { weight }) {
  const away = sum(z.map((each, place) => each.minus(Number(place === label)).abs()));
  return crossEntropy(z, label).plus(away.times(weight / z.length));
}

// With the multipliers of the first epoch, which are next to nothing.
function cals(z, label, { margin, rho }) {
  const multiplier = 1e-6;
  const top = extreme(z, 1);
  const parts = z.map((each) => top.minus(each).times(1 / margin).minus(1).times(rho)
    .plus(multiplier).relu().power(2).minus(multiplier ** 2));
  return crossEntropy(z, label).plus(sum(parts).times(1 / (2 * rho)));
}

// Title and equation of each; its options are the library's defaults (tables.js) unless set here.
// Those that learn while they train are as in their first epoch.
const LOSSES = {
  cross_entropy: ["cross entropy", (z, label, { smoothing }) => crossEntropy(z, label, smoothing)],
  mbls: ["MbLS", mbls],
  acls: ["ACLS", acls],
  maxsup: ["MaxSup", maxsup],
  ecp: ["ECP", ecp],
  cpc: ["CPC", cpc],
  focal: ["focal", (z, label, { gamma }) => focal(z, label, gamma)],
  flsd: ["FLSD-53", flsd],
  dual_focal: ["dual focal", dualFocal],
  bsce: ["BSCE-GRA", bsce],
  nacl: ["NACL", nacl],
  cals: ["CALS, at first", cals],
  adafocal: ["AdaFocal, at first", (z, label, { gamma }) => focal(z, label, gamma)],
  online_label_smoothing: ["OLS, at first", (z, label) => crossEntropy(z, label)],
  normalised_cross_entropy: ["normalised CE", normalisedCrossEntropy],
};

// Value and gradient of a loss for one sample.
function lossOf(name, logits, label, options = {}) {
  const [, equation] = LOSSES[name];
  const found = equation(Slope.variables(logits), label, { ...TABLES.options[name], ...options });
  return { value: found.value, gradient: found.by };
}
