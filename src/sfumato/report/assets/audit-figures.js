// The figures of an audit: reliability with what chance would show, risk and coverage, time, sets
// and how well they cover each class.
const whole = (value) => Math.round(value).toLocaleString("en");
const share = (value, digits = 1) => `${format(value, true, digits)} %`;

// Accuracy as bars, the gap to the confidence on top, and where an honest model's bars would end.
function reliabilityFigure(model) {
  const bins = model.reliability;
  const size = bins.counts.length;
  const most = Math.max(...bins.counts);
  const strip = 45;
  const picture = draw("svg", { role: "img", "aria-label": `Reliability diagram of ${model.name}`,
    viewBox: `0 0 ${PLOT.width} ${PLOT.height + strip}` });
  const scales = axes(picture,
    { range: [0, 1], title: "confidence %", percent: true },
    { range: [0, 1], title: "accuracy %", percent: true });
  const base = scales.up(0);
  bins.counts.forEach((samples, bin) => {
    if (!samples) return;
    const [accuracy, confidence] = [bins.accuracy[bin], bins.confidence[bin]];
    const [low, high] = [Math.min(accuracy, confidence), Math.max(accuracy, confidence)];
    const x = scales.across(bin / size);
    const width = scales.across(1 / size) - scales.across(0) - 1;
    const middle = x + width / 2;
    const tall = (strip - 19) * (samples / most);
    const [from, to] = [scales.up(bins.low[bin]), scales.up(bins.high[bin])];
    const group = draw("g", { class: "bin" },
      draw("rect", { class: "accuracy", x, width, y: scales.up(accuracy),
        height: base - scales.up(accuracy) }),
      draw("rect", { class: `gap ${confidence > accuracy ? "over" : "under"}`, x, width,
        y: scales.up(high), height: scales.up(low) - scales.up(high) }),
      draw("path", { class: "chance", d: `M${middle} ${from}V${to}M${middle - 4} ${from}h8M${
        middle - 4} ${to}h8` }),
      draw("rect", { class: "count", x, width, y: PLOT.height + strip - tall - 17, height: tall }),
      draw("rect", { class: "hit", x, width, y: PLOT.top, height: PLOT.height + strip - 20 }));
    picture.append(withTip(group, `it says ${share(confidence)}\nis right in ${share(accuracy)}\n` +
      `an honest model: ${share(bins.low[bin])} to ${share(bins.high[bin])}\n` +
      `${whole(samples)} of ${whole(model.samples)} predictions`));
  });
  picture.append(
    draw("path", { class: "ideal", d: `M${scales.across(0)} ${base}L${scales.across(1)} ${
      scales.up(1)}` }),
    draw("text", { class: "mid", x: scales.across(0.5), y: PLOT.height + strip - 3 },
      `where the ${whole(model.samples)} predictions fell`));
  return figure("Do confidences match reality?", "Bars: how often it is right. Whiskers: 95 % of " +
    "perfectly calibrated models.", picture);
}

function path(points, scales) {
  return points.map(([x, y], i) =>
    `${i ? "L" : "M"}${scales.across(x).toFixed(1)} ${scales.up(y).toFixed(1)}`).join("");
}

// Risk against coverage, with a mark that `move(place)` puts at a threshold.
function riskPicture(model, onPick) {
  const { kept, wrong, bound } = model.curve;
  const points = kept.map((count, i) => [count / model.samples, wrong[i] / count]);
  const limits = kept.map((count, i) => [count / model.samples, bound[i]]);
  const accept = model.thresholds ? model.thresholds.accept : null;
  const overall = points[0][1];
  const usual = limits.filter(([x]) => x >= 0.05).map(([, y]) => y);
  const highest = Math.min(1, Math.max(1.15 * Math.max(overall, ...points.filter(([x]) => x >= 0.02)
    .map(([, y]) => y)), accept ? 1.3 * accept.target_risk : 0, 0.01, ...usual.slice(0, 1)));
  const picture = emptyPicture(`Error of the predictions that are kept, of ${model.name}`);
  const scales = axes(picture,
    { range: [0, 1], title: "share of predictions kept %", percent: true },
    { range: [0, highest], title: "wrong among those kept %", percent: true });
  const inside = (pairs) => pairs.map(([x, y]) => [x, Math.min(y, highest)]);
  const area = [...inside(points), ...inside(limits).reverse()];
  picture.append(
    draw("path", { class: "doubt", d: `${path(area, scales)}Z` }),
    draw("path", { class: "line risk", d: path(inside(points), scales) }));
  if (accept) {
    const y = scales.up(accept.target_risk);
    picture.append(draw("path", { class: "target", d: `M${PLOT.left} ${y}H${PLOT.width - PLOT.right}` }),
      draw("text", { x: PLOT.left + 6, y: y - 4 },
        `target ${share(accept.target_risk)}`));
  }
  const rule = draw("path", { class: "rule" });
  const mark = draw("circle", { class: "mark", r: 6 });
  picture.append(rule, mark);
  const pick = (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * PLOT.width;
    const wanted = (x - PLOT.left) / (PLOT.width - PLOT.right - PLOT.left);
    let best = 0;
    points.forEach(([covered], i) => {
      if (Math.abs(covered - wanted) < Math.abs(points[best][0] - wanted)) best = i;
    });
    onPick(best);
  };
  picture.classList.add("pickable");
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    pick(event);
  });
  picture.addEventListener("pointermove", (event) => { if (event.buttons) pick(event); });
  const move = (place) => {
    const [x, y] = [scales.across(points[place][0]), scales.up(Math.min(points[place][1], highest))];
    rule.setAttribute("d", `M${x} ${PLOT.top}V${scales.up(0)}`);
    mark.setAttribute("cx", x);
    mark.setAttribute("cy", y);
  };
  return { picture, move };
}

// Where the slider begins: the promised threshold, else where four of five predictions are kept.
function beginning(model) {
  const { threshold, kept } = model.curve;
  const accept = model.thresholds ? model.thresholds.accept : null;
  const distance = accept && accept.confidence !== null
    ? threshold.map((value) => Math.abs(value - accept.confidence))
    : kept.map((count) => Math.abs(count / model.samples - 0.8));
  return distance.indexOf(Math.min(...distance));
}

function decimals(value) {
  const digits = value > 0.9995 ? 6 : value > 0.99 ? 4 : 3;
  return value.toFixed(digits);
}

function riskFigure(model, place) {
  const { threshold, kept, wrong, bound } = model.curve;
  const last = threshold.length - 1;
  const words = el("div", { class: "readout", role: "status", "aria-live": "polite" });
  const slider = el("input", { type: "range", min: 0, max: last, step: 1,
    id: `threshold-${place}`, value: beginning(model) });
  const { picture, move } = riskPicture(model, (at) => { slider.value = at; show(); });
  const output = el("output", { for: slider.id });
  const show = () => {
    const at = Number(slider.value);
    const covered = kept[at] / model.samples;
    const risk = wrong[at] / kept[at];
    const per = Math.round(1000 * covered);
    output.textContent = decimals(threshold[at]);
    slider.setAttribute("aria-valuetext", `confidence ${decimals(threshold[at])}`);
    words.replaceChildren(
      el("p", null, el("strong", null, `${whole(kept[at])} of ${whole(model.samples)} kept`),
        ` (${share(covered)}); `, el("strong", null, model.counts
          ? `about ${whole(wrong[at])} of them wrong, if confidences are right`
          : `${whole(wrong[at])} of them wrong`),
        `: ${share(risk, 2)}, at most ${share(bound[at], 2)} (95 %${model.most_per_image
          ? `; an image counts as ${model.most_per_image} at most` : ""}).`),
      el("p", null, `Of 1,000 predictions: ${whole(per)} accepted, ${
        format(1000 * covered * risk, false, 1)} of them wrong; ${whole(1000 - per)} left to decide.`));
    move(at);
  };
  slider.addEventListener("input", show);
  show();
  const made = figure(model.counts ? "What do its confidences promise?"
    : "From which confidence on can it be trusted?", "Drag the line, or move the " +
    "slider. Shaded: up to the 95 % bound.", picture);
  made.insertBefore(el("div", { class: "threshold" },
    el("label", { for: slider.id }, "Accept from a confidence of ", output), slider, words),
  made.lastChild);
  return made;
}

// Where the confidences fell, of predictions that have no labels to compare them with.
function confidencesFigure(model) {
  const size = model.counts.length;
  const shares = model.counts.map((count) => count / model.samples);
  const picture = emptyPicture(`Confidences of ${model.name}`);
  const scales = axes(picture, { range: [0, 1], title: "confidence %", percent: true },
    { range: [0, 1.08 * Math.max(...shares)], title: "share of predictions %", percent: true });
  shares.forEach((value, bin) => picture.append(withTip(
    draw("rect", { class: "accuracy", x: scales.across(bin / size), y: scales.up(value),
      width: scales.across(1 / size) - scales.across(0) - 1, height: scales.up(0) - scales.up(value) }),
    `it says ${share(bin / size, 0)} to ${share((bin + 1) / size, 0)}\n${
      whole(model.counts[bin])} of ${whole(model.samples)} predictions`)));
  return figure("How sure is it?", "Whether it is right to be so sure, only labels can tell.", picture);
}

// Confidence and accuracy of each period, with the interval of their difference.
function timeFigure(model) {
  const rows = model.by_time;
  if (rows.length < 2) return null;
  const picture = emptyPicture(`Calibration over time of ${model.name}`);
  const low = rows.map((row) => row.interval[0] ?? row.gap);
  const high = rows.map((row) => row.interval[1] ?? row.gap);
  const range = extent([...low, ...high, 0], 0.08);
  const place = (i) => (i + 0.5) / rows.length;
  const scales = axes(picture, { range: [0, 1], ticks: [], title: "time" },
    { range, title: "confidence − accuracy, points", percent: true });
  const band = [...rows.map((_, i) => [place(i), high[i]]),
    ...rows.map((_, i) => [place(i), low[i]]).reverse()];
  picture.append(draw("path", { class: "doubt", d: `${path(band, scales)}Z` }),
    draw("path", { class: "ideal", d: path([[0, 0], [1, 0]], scales) }),
    draw("path", { class: "line risk", d: path(rows.map((row, i) => [place(i), row.gap]), scales) }));
  rows.forEach((row, i) => picture.append(withTip(draw("circle", { class: "dot risk-dot", r: 3,
    cx: scales.across(place(i)), cy: scales.up(row.gap) }),
  `${row.name}\ngap ${format(row.gap, true)} points\n${whole(row.count)} predictions`)));
  for (const i of [0, rows.length - 1]) {
    picture.append(draw("text", { class: i ? "end" : null, x: i ? PLOT.width - PLOT.right : PLOT.left,
      y: scales.up(range[0]) + 16 }, rows[i].name));
  }
  return figure(`${model.name} over time`, "Above the dashed line it is overconfident, below underconfident; " +
    "band: 95 % for all periods together.", picture);
}

// How many classes the prediction sets hold; of the scaled ones only those that change most.
const DRAWN_SETS = ["THR", "APS", "APS, scaled", "RAPS"];

function setsFigure(model) {
  const found = model.sets;
  const rows = found.rows.filter((row) => DRAWN_SETS.includes(row.name));
  if (!rows.length) return null;
  const longest = Math.max(...rows.map((row) => row.sizes.length));
  const most = Math.max(...rows.flatMap((row) => row.sizes));
  const picture = emptyPicture(`Sizes of prediction sets of ${model.name}`);
  const scales = axes(picture, { range: [-0.5, longest - 0.5], title: "classes in the set",
    ticks: niceTicks(0, longest - 1, Math.min(longest, 8)).filter(Number.isInteger) },
  { range: [0, 1.08 * most], title: "share of predictions %", percent: true });
  const width = (scales.across(1) - scales.across(0)) / (rows.length + 0.6);
  rows.forEach((row, number) => row.sizes.forEach((value, size) => picture.append(withTip(
    draw("rect", { x: scales.across(size - 0.5) + (number + 0.3) * width, width: width * 0.92,
      y: scales.up(value), height: scales.up(0) - scales.up(value),
      fill: COLOURS[number % COLOURS.length] }),
    `${row.name}\n${size} classes: ${share(value)}`))));
  const names = rows.map((row, number) => ({ name: row.name, colour: COLOURS[number % COLOURS.length],
    dash: "", number: "" }));
  const made = figure(`${model.name}: sizes of the prediction sets`,
    `Each set is to hold the label in ${format(1 - found.alpha, true, 0)} % of cases.${
      longest > 12 ? " The last bars: 12 classes or more." : ""}`, picture);
  made.insertBefore(legend(names), made.lastChild);
  return made;
}

// How often the sets hold the label, class by class, the worst first; whiskers are 95 % intervals.
function coverageFigure(model) {
  const kinds = model.sets.by_class ?? [];
  if (!kinds.length || kinds[0].classes.length < 2) return null;
  const order = kinds[0].coverage.map((_, i) => i)
    .sort((a, b) => kinds[0].coverage[a] - kinds[0].coverage[b]);
  const picture = emptyPicture(`Coverage of prediction sets by class of ${model.name}`);
  const promise = 1 - model.sets.alpha;
  const lowest = Math.min(promise, ...kinds.flatMap((kind) => kind.low));
  const scales = axes(picture, { range: [-0.5, order.length - 0.5], ticks: [],
    title: `${whole(order.length)} classes, the worst first` },
  { range: [lowest, 1], title: "sets that hold the label %", percent: true });
  picture.append(draw("path", { class: "ideal",
    d: path([[-0.5, promise], [order.length - 0.5, promise]], scales) }));
  kinds.forEach((kind, number) => order.forEach((at, i) => {
    const colour = COLOURS[number % COLOURS.length];
    const x = scales.across(i + (number - (kinds.length - 1) / 2) * 0.3);
    const [low, high] = [scales.up(kind.low[at]), scales.up(kind.high[at])];
    picture.append(withTip(draw("g", null,
      draw("path", { d: `M${x} ${low}V${high}`, stroke: colour, "stroke-opacity": 0.5, fill: "none" }),
      draw("circle", { cx: x, cy: scales.up(kind.coverage[at]),
        r: order.length > 40 ? 1.5 : 3, fill: colour })),
    `${kind.name}, class ${kind.classes[at]}\n${share(kind.coverage[at])} hold the label\n95 %: ${
      share(kind.low[at])} to ${share(kind.high[at])}`));
  }));
  const names = kinds.map((kind, number) => ({ name: kind.name,
    colour: COLOURS[number % COLOURS.length], dash: "", number: "" }));
  const made = figure(`${model.name}: coverage by class`,
    `Dashed: the promise. Whiskers: 95 % intervals of each class.`, picture);
  made.insertBefore(legend(names), made.lastChild);
  return made;
}
