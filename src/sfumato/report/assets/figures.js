// The other figures; each section is left out where no method has its data.
const score = (name) => DATA.scores[name]; // its title, and whether it is shown in percent

// A grid of figures under a list of names, drawn again whenever the filter changes.
function charts(make, methodsWithData) {
  const names = el("div");
  const grid = el("div", { class: "grid broad" });
  const redraw = () => {
    const methods = visible().filter(methodsWithData);
    const made = methods.length ? make(methods).filter(Boolean) : [];
    names.replaceChildren(legend(methods));
    grid.replaceChildren(...(made.length ? made : [nothing()]));
  };
  watchers.push(redraw);
  redraw();
  return { parts: [names, grid], redraw };
}

function paretoSection() {
  const chosen = DATA.front_columns.map(column);
  if (chosen.length < 2) return null;
  const { parts } = charts((methods) => {
    const made = [];
    for (let a = 0; a < chosen.length; a += 1) {
      for (let b = a + 1; b < chosen.length; b += 1) {
        made.push(scatter(`${chosen[a].title} and ${chosen[b].title}`, methods, chosen[a],
          chosen[b]));
      }
    }
    return made;
  }, (method) => chosen.every((each) => method.values[each.id]));
  return section("pareto", "Trade-offs",
    el("p", null, "Filled marks (◆ in the table) are on the Pareto front: no other method is at " +
      `least as good in ${chosen.map((each) => each.title).join(", ")} on average.`), parts);
}

function heatColour(share) {
  return `color-mix(in oklab, var(--hot) ${Math.round(100 * share)}%, var(--paper))`;
}

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : null;
}

function heatMap(methods, metric) {
  const [title, percent] = score(metric);
  const names = [...new Set(methods.flatMap((method) => method.corrupted.names))];
  const rows = methods.map((method) => names.map((name) => {
    const place = method.corrupted.names.indexOf(name);
    return place < 0 ? null : mean(method.corrupted.cells[metric][place]);
  }));
  const [low, high] = extent(rows.flat(), 0);
  const cell = (value) => {
    const share = (value - low) / (high - low || 1);
    return el("td", value === null ? null : { style: `background:${heatColour(share)}`,
      class: share > 0.55 ? "hot" : null }, format(value, percent, percent ? 1 : 2));
  };
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Heat map" },
    el("table", { class: "heat" },
      el("caption", null, `${title}${percent ? " %" : ""} by type of damage, mean over severities`),
      el("thead", null, el("tr", null, el("th", { scope: "col" }, "method"),
        names.map((name) => el("th", { scope: "col" }, name.replaceAll("_", " "))))),
      el("tbody", null, methods.map((method, row) => el("tr", null,
        el("th", { scope: "row" }, badge(method), ` ${method.name}`),
        rows[row].map(cell))))));
}

function corruptionSection() {
  const having = (method) => method.corrupted;
  const first = DATA.methods.find(having);
  if (!first) return null;
  let metric = Object.keys(first.corrupted.cells)[0];
  let type = "";
  const map = el("div", { class: "spaced" });
  const { parts, redraw } = charts((methods) => {
    map.replaceChildren(heatMap(methods, metric));
    const [title, percent] = score(metric);
    const lines = methods.map((method) => {
      const { names, severities, cells } = method.corrupted;
      const rows = cells[metric].filter((_, place) => !type || names[place] === type);
      return { method, points: severities.map((severity, at) =>
        [severity, mean(rows.map((row) => row[at]))]) };
    });
    const severities = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))];
    if (severities.length < 2) {
      return [el("p", { class: "note" }, "A curve by severity needs more than one severity.")];
    }
    const what = `${title} by severity, ${type ? type.replaceAll("_", " ") : "all types"}`;
    return [lineChart(what, lines, { title: "severity", ticks: severities },
      { title: `${title}${percent ? " %" : ""}`, percent })];
  }, having);
  const options = Object.keys(first.corrupted.cells).map((name) => [name, score(name)[0]]);
  const types = first.corrupted.names.map((name) => [name, name.replaceAll("_", " ")]);
  return section("corruptions", "Scores by corruption and severity",
    el("div", { class: "controls" },
      choice("Metric", options, (value) => { metric = value; redraw(); }),
      choice("Curves of", [["", "all types"], ...types], (value) => { type = value; redraw(); })),
    map, parts);
}

// Each metric on clean and on corrupted images: what robustness costs, or doesn't.
const CLEAN_AND_CORRUPTED = [["test.accuracy", "corrupted.error"], ["test.nll", "corrupted.nll"],
  ["test.ece", "corrupted.ece"]];

function cleanSection() {
  const chosen = CLEAN_AND_CORRUPTED.map((ids) => ids.map((id) =>
    DATA.columns.find((each) => each.id === id))).filter((both) => both.every(Boolean));
  if (!chosen.length) return null;
  const { parts } = charts((methods) => chosen.map(([clean, corrupted]) =>
    scatter(`${corrupted.title} against ${clean.title}`, methods, clean, corrupted)),
  (method) => chosen.some((both) => both.every((each) => method.values[each.id])));
  return section("clean", "Clean and corrupted images", parts);
}

// Every type and severity of a method against its baseline's.
function cellSection() {
  const base = (method) => DATA.methods.find((each) => each.name === method.baseline);
  const same = (method) => method.corrupted && base(method) && base(method).corrupted &&
    ["names", "severities"].every((key) => JSON.stringify(method.corrupted[key]) ===
      JSON.stringify(base(method).corrupted[key]));
  const first = DATA.methods.find(same);
  if (!first) return null;
  let metric = Object.keys(first.corrupted.cells)[0];
  const { parts, redraw } = charts((methods) => methods.map((method) => {
    const [title, percent] = score(metric);
    const { names, severities, cells } = method.corrupted;
    const before = base(method).corrupted.cells[metric];
    const points = names.flatMap((name, row) => severities.map((severity, at) => ({
      x: before[row][at], y: cells[metric][row][at], size: severity, colour: method.colour,
      text: `${name.replaceAll("_", " ")}, severity ${severity}\n${method.baseline} ` +
        `${format(before[row][at], percent, 2)}\n${method.name} ` +
        `${format(cells[metric][row][at], percent, 2)}` }))
      .filter((point) => point.x !== null && point.y !== null));
    const unit = percent ? " %" : "";
    return pairs(`${method.name}: ${title} of every corruption`, points,
      { title: `${method.baseline}${unit}`, percent }, { title: `${method.name}${unit}`, percent },
      "Larger points are more severe; below the line is better than the baseline.");
  }), same);
  const options = Object.keys(first.corrupted.cells).map((name) => [name, score(name)[0]]);
  return section("cells", "Corruption by corruption, against the baseline",
    el("div", { class: "controls" },
      choice("Metric", options, (value) => { metric = value; redraw(); })), parts);
}

// How sure of the truth a network stays while an image changes little by little.
function sequenceSection() {
  const first = DATA.methods.find((method) => method.along);
  if (!first) return null;
  let name = Object.keys(first.along)[0];
  const { parts, redraw } = charts((methods) => first.along[name].map((_, image) => {
    const lines = methods.filter((method) => (method.along[name] || [])[image])
      .map((method) => ({ method, points: method.along[name][image]
        .map((value, frame) => [frame, value]) }));
    return lineChart(`Test image ${image + 1}`, lines, { title: "frame" },
      { title: "relative confidence" });
  }), (method) => method.along);
  const options = Object.keys(first.along).map((each) => [each, each.replaceAll("_", " ")]);
  return section("sequences", "While an image changes little by little",
    el("p", null, "Relative confidence, the probability of the true class over that of the " +
      "predicted one: 1 where the prediction is right. First seed."),
    el("div", { class: "controls" },
      choice("Perturbation", options, (value) => { name = value; redraw(); })), parts);
}

function frequencySection() {
  if (!DATA.methods.some((method) => method.frequency)) return null;
  const kinds = [["noise", "under noise of one frequency"], ["attack", "attacked in one band"]];
  const { parts } = charts((methods) => kinds.flatMap(([kind, how]) => ["error", "nll", "ece"]
    .map((metric) => {
      const [title, percent] = score(metric);
      const having = methods.filter((method) => method.frequency[kind]);
      const lines = having.map((method) => ({ method, points: method.frequency[kind].at
        .map((frequency, at) => [frequency, method.frequency[kind][metric][at]]) }));
      const said = [...new Set(having.map((method) => method.frequency[kind].change))].join("; ");
      return lineChart(`${title} ${how}`, lines, { title: "frequency / \u03c0" },
        { title: `${title}${percent ? " %" : ""}`, percent }, said);
    })), (method) => method.frequency);
  return section("frequencies", "Which frequencies a network can't stand",
    el("p", null, "Images changed in one band of spatial frequencies at a time: 0 is the mean, 1 " +
      "changes from pixel to pixel."), parts);
}

function ensembleSection() {
  if (!DATA.methods.some((method) => method.ensemble)) return null;
  const { parts } = charts((methods) => ["nll", "accuracy", "ece"].map((metric) => {
    const [title, percent] = score(metric);
    const lines = methods.filter((method) => method.ensemble[metric]).map((method) => ({ method,
      points: method.ensemble.sizes.map((size, at) => [size, method.ensemble[metric][at]]) }));
    const sizes = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))];
    const log = sizes.length > 1 && Math.max(...sizes) > 4 * Math.min(...sizes);
    return lineChart(`${title} against ensemble size`, lines,
      { title: "members or samples", log, ticks: sizes },
      { title: `${title}${percent ? " %" : ""}`, percent });
  }), (method) => method.ensemble);
  return section("ensembles", "What averaging predictions buys", parts);
}

function trainingSection() {
  const names = [...new Set(DATA.methods.flatMap((method) => Object.keys(method.training)))]
    .filter((name) => name !== "epoch");
  if (!names.length) return null;
  const { parts } = charts((methods) => names.map((name) => {
    const [title, percent] = score(name);
    return lineChart(title, methods.filter((m) => m.training[name])
      .map((method) => ({ method,
        points: method.training.epoch.map((epoch, at) => [epoch, method.training[name][at]]) })),
      { title: "epoch" }, { title: `${title}${percent ? " %" : ""}`, percent });
  }), (method) => method.training.epoch && method.training.epoch.length);
  return section("training", "Training curves",
    el("p", { class: "note" }, "Mean over seeds. Losses of different methods are not comparable."),
    parts);
}

function profileSection() {
  const entries = Object.entries(DATA.profiles || {}).filter(([, each]) => each.lead);
  if (!entries.length) return null;
  const grid = el("div", { class: "grid broad" }, entries.map(([name, profile]) => {
    const line = (title, colour, dash, values) => ({ method: { name: title, colour, dash },
      points: profile.lead.map((lead, at) => [lead, values[at]]) });
    return lineChart(name, [line("taken from the predicted class", COLOURS[1], "", profile.predicted),
      line("given to each other class, mean", COLOURS[0], "7 3", profile.others)],
    { title: "lead of the predicted logit" }, { title: "smoothing of the label" }, profile.loss);
  }));
  return section("profiles", "How each loss smooths the label",
    el("p", null, "Read off the gradient of the loss for one sample whose predicted class, the true " +
      "one, pulls ahead: what is taken from its label (solid) and given to the others (dashed)."),
    grid);
}

function sampleSection() {
  const having = DATA.methods.filter((method) => method.samples.length);
  if (!having.length) return null;
  const grid = el("div");
  const redraw = () => {
    const kept = visible().filter((method) => method.samples.length);
    grid.replaceChildren(...(kept.length ? kept : []).map((method) => el("div", null,
      el("h3", null, badge(method), ` ${method.name}`),
      el("div", { class: "samples" }, method.samples.map((sample) => el("figure", null,
        sample.text === undefined
          ? el("img", { src: DATA.shared[sample.image], alt: `test image ${sample.index}`,
            loading: "lazy" })
          : el("p", { class: "note" }, sample.text),
        el("figcaption", null, `${sample.predicted} ${format(sample.confidence, true)} %`,
          el("span", { class: "note" }, `is ${sample.label}: ${format(sample.true_confidence,
            true)} %`))))))));
  };
  watchers.push(redraw);
  redraw();
  return section("samples", "The most overconfident mistakes",
    el("p", { class: "note" }, "Test samples of the first seed that got the wrong class with the " +
      "highest confidence: what was said, how sure, and what it is."), grid);
}
