// Line charts and scatter plots with shared axes.
const PLOT = { width: 460, height: 300, left: 56, right: 14, top: 12, bottom: 46 };

function niceTicks(low, high, wanted) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return ticks;
}

function extent(values, margin) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  const low = Math.min(...known);
  const high = Math.max(...known);
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}

function tickText(value, percent) {
  return String(Number(((percent ? 100 : 1) * value).toPrecision(6))).replace("-", "−");
}

// Scales, frame, ticks and titles; `x` and `y` are {range, title, percent, log}.
function axes(picture, x, y) {
  const place = (axis, from, to) => {
    const warp = axis.log ? Math.log : (value) => value;
    const [low, high] = axis.range.map(warp);
    return (value) => from + ((warp(value) - low) / (high - low || 1)) * (to - from);
  };
  const right = PLOT.width - PLOT.right;
  const base = PLOT.height - PLOT.bottom;
  const across = place(x, PLOT.left, right);
  const up = place(y, base, PLOT.top);
  for (const tick of y.ticks || niceTicks(...y.range, 5)) {
    picture.append(draw("path", { class: "gridline", d: `M${PLOT.left} ${up(tick)}H${right}` }),
      draw("text", { class: "end", x: PLOT.left - 6, y: up(tick) + 4 }, tickText(tick, y.percent)));
  }
  for (const tick of x.ticks || niceTicks(...x.range, 6)) {
    picture.append(draw("text", { class: "mid", x: across(tick), y: base + 16 },
      tickText(tick, x.percent)));
  }
  const middle = (PLOT.top + base) / 2;
  picture.append(
    draw("path", { class: "frame", d: `M${PLOT.left} ${PLOT.top}V${base}H${right}` }),
    draw("text", { class: "mid", x: (PLOT.left + right) / 2, y: base + 36 }, x.title),
    draw("text", { class: "mid", x: 14, y: middle, transform: `rotate(-90 14 ${middle})` },
      y.title));
  return { across, up };
}

function emptyPicture(label) {
  return draw("svg", { viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, role: "img",
    "aria-label": label });
}

function nothing() {
  return el("p", { class: "note" }, "No method that passes the filter has these numbers.");
}

// `lines`: {method, points: [[x, y], ...]}; a gap where y is null.
function lineChart(title, lines, x, y, note) {
  const kept = lines.filter((line) => line.points.some(([, value]) => value !== null));
  if (!kept.length) return null;
  const points = kept.flatMap((line) => line.points).filter(([, value]) => value !== null);
  const xs = points.map(([value]) => value);
  const picture = emptyPicture(`${title}: ${kept.map((line) => line.method.name).join(", ")}`);
  const ys = y.log ? extent(points.map(([, v]) => v), 0).map((v, i) => v * (i ? 1.15 : 0.87))
    : extent(points.map(([, value]) => value), 0.06);
  const range = x.log ? extent(xs, 0) : extent(xs, 0.02);
  const scales = axes(picture, { ...x, range }, { ...y, range: ys });
  for (const line of kept) {
    const known = line.points.filter(([, value]) => value !== null);
    const path = known.map(([a, b], i) =>
      `${i ? "L" : "M"}${scales.across(a).toFixed(1)} ${scales.up(b).toFixed(1)}`).join("");
    picture.append(draw("path", { class: "line", d: path, stroke: line.method.colour,
      "stroke-dasharray": line.method.dash }));
    for (const [a, b] of known) {
      const dot = draw("circle", { class: known.length > 40 ? "hit" : "dot", r: 3,
        cx: scales.across(a).toFixed(1), cy: scales.up(b).toFixed(1), fill: line.method.colour });
      picture.append(withTip(dot,
        `${line.method.name}\n${x.title} ${tickText(a, x.percent)}: ${format(b, y.percent, y.percent ? 2 : 4)}`));
    }
  }
  return figure(title, note, picture);
}

// One numbered mark a method, filled for those on the front.
function scatter(title, methods, first, second) {
  const kept = methods.filter((m) => m.values[first.id] && m.values[second.id]);
  if (!kept.length) return null;
  const picture = emptyPicture(`${title}: ${kept.map((method) => method.name).join(", ")}`);
  const spread = (id) => extent(kept.map((method) => method.values[id].mean), 0.1);
  const scales = axes(picture,
    { range: spread(first.id), title: first.heading, percent: first.percent },
    { range: spread(second.id), title: second.heading, percent: second.percent });
  for (const method of kept) {
    const [a, b] = [method.values[first.id], method.values[second.id]];
    const [x, y] = [scales.across(a.mean), scales.up(b.mean)];
    const mark = draw("g", { class: method.front ? "mark-front" : "mark-behind" },
      draw("circle", { cx: x, cy: y, r: 10, fill: method.front ? method.colour : null,
        stroke: method.colour, "stroke-width": 2 }),
      draw("text", { class: "mid number", x, y: y + 4 }, String(method.number)));
    picture.append(withTip(mark, `${method.name}${method.front ? " ◆" : ""}\n${first.title} ${a.text}\n${second.title} ${b.text}`));
  }
  return figure(title, null, picture);
}

function legend(methods) {
  return el("ul", { class: "legend" }, methods.map((method) => el("li", null,
    draw("svg", { viewBox: "0 0 28 8", class: "swatch", "aria-hidden": "true" },
      draw("path", { d: "M1 4H27", stroke: method.colour, "stroke-width": 3,
        "stroke-dasharray": method.dash })),
    ` ${method.number} ${method.name}`)));
}

// Two numbers of many cells: a point for each, larger where its size is, and the line of equals.
function pairs(title, points, x, y, note) {
  if (!points.length) return null;
  const picture = emptyPicture(title);
  const range = extent(points.flatMap((point) => [point.x, point.y]), 0.05);
  const scales = axes(picture, { ...x, range }, { ...y, range });
  picture.append(draw("path", { class: "ideal", d: `M${scales.across(range[0])} ` +
    `${scales.up(range[0])}L${scales.across(range[1])} ${scales.up(range[1])}` }));
  for (const point of points) {
    picture.append(withTip(draw("circle", { class: "cell", r: 1.5 + point.size, fill: point.colour,
      cx: scales.across(point.x).toFixed(1), cy: scales.up(point.y).toFixed(1) }), point.text));
  }
  return figure(title, note, picture);
}
