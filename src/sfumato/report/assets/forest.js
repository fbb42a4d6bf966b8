// The first picture: differences to the baseline with intervals, beside two reliability diagrams.
const FOREST = { width: 360, left: 8, right: 8, row: 34 };

function forestPicture(metric) {
  const methods = DATA.methods.filter((method) => method.differences[metric.id]);
  const ends = methods.flatMap((method) => {
    const { mean: middle, low, high } = method.differences[metric.id];
    return [middle, low ?? middle, high ?? middle];
  });
  const [from, to] = extent([0, ...ends], 0.05);
  const across = (value) => FOREST.left +
    ((value - from) / (to - from)) * (FOREST.width - FOREST.left - FOREST.right);
  const base = methods.length * FOREST.row + 6;
  const picture = draw("svg", { viewBox: `0 0 ${FOREST.width} ${base + 22}`, role: "img",
    "aria-label": `${metric.title}: difference of each method to its baseline` });
  for (const tick of niceTicks(from, to, 5)) {
    picture.append(draw("path", { class: tick ? "gridline" : "ideal", d: `M${across(tick)} 0V${base}` }),
      draw("text", { class: "mid", x: across(tick), y: base + 15 }, tickText(tick, metric.percent)));
  }
  methods.forEach((method, at) => {
    const found = method.differences[metric.id];
    const y = at * FOREST.row + 25;
    const kind = CLASS[found.verdict] || "unsure";
    const row = draw("g", { class: `forest ${kind}` },
      draw("text", { x: FOREST.left, y: y - 10 }, method.name),
      found.low === null ? null
        : draw("path", { d: `M${across(found.low)} ${y}H${across(found.high)}` }),
      draw("circle", { cx: across(found.mean), cy: y, r: 5 }));
    picture.append(withTip(row, `${method.name}\n${found.text}\n${found.verdict || ""}: ${found.reason}`));
  });
  return picture;
}

// One figure for each metric that decides, then the diagrams of the baseline and the best method.
function firstPicture() {
  const metrics = DATA.columns.filter((each) => each.deciding &&
    DATA.methods.some((method) => method.differences[each.id]));
  if (!metrics.length) return null;
  const baseline = DATA.methods.find((method) => method.baseline === null);
  const best = DATA.methods.find((method) => method.name === DATA.recommendation.method);
  const drawn = [baseline, best].filter((method) => method && method.reliability);
  const forests = metrics.map((metric) => el("figure", null,
    el("figcaption", null, metric.heading), forestPicture(metric)));
  const diagrams = drawn.map((method) => el("figure", null,
    el("figcaption", null, method.name), reliabilityPicture(method)));
  return el("div", null, el("div", { class: "opening" },
    el("div", { class: "forests" }, forests), el("div", { class: "diagrams" }, diagrams)),
  el("p", { class: "note" }, "Difference to the baseline with its 95 % interval; filled: significant."));
}
