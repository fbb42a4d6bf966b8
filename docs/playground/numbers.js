// Numbers that the panels share: random streams, softmax, and numbers that carry their slopes.
"use strict";

// Mulberry32: the same stream of uniform numbers in every browser.
function uniformStream(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

// Standard normal numbers by Box and Muller.
function normalStream(seed) {
  const uniform = uniformStream(seed);
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

function logSoftmax(logits) {
  const top = Math.max(...logits);
  const log = Math.log(logits.reduce((sum, each) => sum + Math.exp(each - top), 0));
  return logits.map((each) => each - top - log);
}

function softmax(logits) {
  return logSoftmax(logits).map(Math.exp);
}

function mean(values) {
  return values.reduce((sum, each) => sum + each, 0) / values.length;
}

function deviation(values) {
  const middle = mean(values);
  return Math.sqrt(mean(values.map((each) => (each - middle) ** 2)));
}

// A number with its derivative by each logit: a loss is its equation, the gradient comes along.
class Slope {
  constructor(value, by) {
    this.value = value;
    this.by = by;
  }

  // The logits themselves, each with slope 1 by itself.
  static variables(logits) {
    return logits.map((value, place) =>
      new Slope(value, logits.map((_, other) => Number(other === place))));
  }

  map(value, slope) {
    return new Slope(value, this.by.map((each) => each * slope));
  }

  plus(other) {
    if (typeof other === "number") return new Slope(this.value + other, this.by);
    return new Slope(this.value + other.value, this.by.map((each, i) => each + other.by[i]));
  }

  minus(other) {
    return this.plus(typeof other === "number" ? -other : other.times(-1));
  }

  times(other) {
    if (typeof other === "number") return this.map(this.value * other, other);
    return new Slope(this.value * other.value,
      this.by.map((each, i) => each * other.value + other.by[i] * this.value));
  }

  exp() {
    return this.map(Math.exp(this.value), Math.exp(this.value));
  }

  expm1() {
    return this.map(Math.expm1(this.value), Math.exp(this.value));
  }

  log() {
    return this.map(Math.log(this.value), 1 / this.value);
  }

  power(exponent) {
    return this.map(this.value ** exponent, exponent * this.value ** (exponent - 1));
  }

  relu() {
    return this.value > 0 ? this : this.map(0, 0);
  }

  abs() {
    return this.times(Math.sign(this.value));
  }

  // Held constant for the gradient.
  constant() {
    return this.map(this.value, 0);
  }
}

function sum(terms) {
  return terms.reduce((total, each) => total.plus(each));
}

// The largest (sign 1) or smallest (sign -1); ties share the slope.
function extreme(terms, sign) {
  const best = Math.max(...terms.map((each) => sign * each.value)) * sign;
  const tied = terms.filter((each) => each.value === best);
  return sum(tied).times(1 / tied.length);
}

function logSumExp(terms) {
  const top = Math.max(...terms.map((each) => each.value));
  return sum(terms.map((each) => each.minus(top).exp())).log().plus(top);
}

// log sigmoid(x) = -log(1 + exp(-x)), without overflow.
function logSigmoid(x) {
  const low = Math.min(x.value, 0) - Math.log1p(Math.exp(-Math.abs(x.value)));
  return x.map(low, 1 / (1 + Math.exp(x.value)));
}
