// The results table: sorted, filtered, with values or differences to the baseline.
const view = { filter: "", front: false, all: false, show: "values", sort: null, reverse: false };
const watchers = [];
// At first the metrics that decide: they fit a screen.
const decisive = DATA.columns.filter((each) => each.deciding);
const picked = new Set((decisive.length ? decisive : DATA.columns.filter((each) => each.main))
  .map((each) => each.id));

function visible() {
  const wanted = view.filter.trim().toLowerCase();
  return DATA.methods.filter((method) =>
    method.name.toLowerCase().includes(wanted) && (!view.front || method.front));
}

function changed() {
  for (const call of watchers) call();
}

function badge(method) {
  return el("span", { class: "badge", style: `background:${method.colour}` }, String(method.number));
}

const COSTS = [
  { id: "cost.train", heading: "training time ↓", place: 0 },
  { id: "cost.image", heading: "time per image ↓", place: 1 },
].filter((cost) => DATA.methods.some((method) => method.cost[cost.place] !== null));

function sortValue(method, id) {
  if (id === "name") return method.name.toLowerCase();
  const cost = COSTS.find((each) => each.id === id);
  if (cost) return method.cost[cost.place];
  const found = (view.show === "values" ? method.values : method.differences)[id];
  return found ? found.mean : null;
}

function sorted(methods) {
  if (view.sort === null) return methods;
  const sign = view.reverse ? -1 : 1;
  return [...methods].sort((a, b) => {
    const [left, right] = [sortValue(a, view.sort), sortValue(b, view.sort)];
    if (left === null || right === null) return (left === null) - (right === null);
    return sign * (left < right ? -1 : left > right ? 1 : 0);
  });
}

// First the best on top, then the worst, then the order of the study again.
function sortBy(id) {
  const better = (column(id) || {}).better;
  const best = better === "higher";
  if (view.sort !== id) Object.assign(view, { sort: id, reverse: best });
  else if (view.reverse === best) view.reverse = !best;
  else view.sort = null;
  changed();
  document.querySelector(`#results th[data-id="${CSS.escape(id)}"] button`).focus();
}

function headCell(id, heading) {
  const active = view.sort === id;
  const order = active ? (view.reverse ? "descending" : "ascending") : "none";
  const mark = active ? (view.reverse ? " ▾" : " ▴") : "";
  return el("th", { scope: "col", "data-id": id, "aria-sort": order },
    el("button", { type: "button", on: { click: () => sortBy(id) } }, heading + mark));
}

const OVER = { "seeds and images": "over seeds and test images", seeds: "over seeds only",
  images: "over test images only", nothing: "no interval" };

function valueCell(method, id) {
  const value = method.values[id];
  const difference = method.differences[id];
  if (!value) return el("td", { "data-id": id }, "–");
  const verdict = difference ? difference.verdict : null;
  const text = view.show === "values" ? value.text : difference ? difference.text : "baseline";
  const [mean, interval] = text.split(" [");
  const cell = el("td", { "data-id": id, class: verdict ? CLASS[verdict] : null },
    el("span", { class: "mean" }, mean),
    verdict ? el("span", { class: "mark", title: verdict }, ` ${SYMBOL[verdict]}`,
      el("span", { class: "unseen" }, ` ${verdict}`)) : null,
    interval ? el("span", { class: "interval" }, `[${interval}`) : null,
    value.perfect && view.show === "values"
      ? el("span", { class: "interval" }, value.perfect) : null);
  const compared = difference ? [`${difference.text} against ${method.baseline} (${
    OVER[difference.over]})`, verdict ? `${verdict}: ${difference.reason}` : "no good direction"] : [];
  return withTip(cell, [`${value.text} (${OVER[value.over]})`, ...compared].join("\n"));
}

const LACKING = / \((.*)\)$/; // of seeds, as in "3 (2 unfinished)"

function bodyRow(method, columns) {
  const name = el("th", { scope: "row" }, badge(method), ` ${method.name}`,
    method.front ? el("span", { class: "front", title: "on the Pareto front" }, " ◆") : null,
    method.failures.map((why) => el("span", { class: "interval failure" }, why)));
  return el("tr", null, name, el("td", null, method.seeds.replace(LACKING, "*")),
    columns.map((each) => valueCell(method, each.id)),
    COSTS.map((cost) => el("td", { "data-id": cost.id }, seconds(method.cost[cost.place]))));
}

// The error over all methods of a column, where it has verdicts.
function errorRow(columns) {
  if (!columns.some((each) => each.error)) return null;
  return el("tfoot", null, el("tr", null, el("th", { scope: "row" }, "any false ✓ or ✗"),
    el("td", null, ""), columns.map((each) => el("td", null, each.error)),
    COSTS.map(() => el("td", null, ""))));
}

function drawTable(box, count) {
  const columns = chosenColumns();
  const methods = sorted(visible());
  box.replaceChildren(el("table", null,
    el("thead", null, el("tr", null, headCell("name", "method"), el("th", { scope: "col" }, "seeds"),
      columns.map((each) => headCell(each.id, each.heading)),
      COSTS.map((cost) => headCell(cost.id, cost.heading)))),
    el("tbody", null, methods.map((method) => bodyRow(method, columns))), errorRow(columns)));
  count.textContent = `${methods.length} of ${DATA.methods.length} methods`;
}

function checkbox(id, label, call) {
  const box = el("input", { type: "checkbox", id, on: { change: () => call(box.checked) } });
  return el("label", { class: "choice" }, box, ` ${label}`);
}

function chosenColumns() {
  return DATA.columns.filter((each) => view.all || picked.has(each.id));
}

const CSV_METRIC = /^(?:"(?:[^"]|"")*"|[^",]*),(?:"(?:[^"]|"")*"|[^",]*),([^,]*),/;

// A table with the chosen columns only: rows of a CSV file, cells of the others.
async function chosenText(name) {
  const columns = chosenColumns();
  const packed = Uint8Array.from(atob(DATA.downloads[name]), (each) => each.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const lines = (await new Response(unpacked).text()).split("\n");
  if (name.endsWith(".csv")) {
    const wanted = new Set(columns.map((each) => each.id));
    return lines.filter((line, at) => !at || !line || wanted.has((CSV_METRIC.exec(line) || [])[1]))
      .join("\n");
  }
  const [start, between, end] = name.endsWith(".tex") ? ["", " & ", " \\\\"] : ["| ", " | ", " |"];
  const places = [0, 1, ...columns.map((each) => DATA.columns.indexOf(each) + 2)];
  return lines.map((line) => {
    if (line.startsWith("\\begin{tabular}")) return `\\begin{tabular}{l${"r".repeat(places.length - 1)}}`;
    const cells = line.slice(start.length, line.length - end.length).split(between);
    if (!line.endsWith(end) || cells.length < DATA.columns.length + 2) return line;
    return start + places.map((at) => cells[at]).join(between) + end;
  }).join("\n");
}

function columnChoice() {
  const boxes = DATA.columns.map((each) => {
    const box = el("input", { type: "checkbox", checked: picked.has(each.id), on: { change: () => {
      if (box.checked) picked.add(each.id);
      else picked.delete(each.id);
      changed();
    } } });
    return el("label", { class: "choice" }, box, ` ${each.title}`);
  });
  return el("details", { id: "columns" }, el("summary", null, "Columns"),
    el("div", { class: "controls" }, boxes));
}

function controls() {
  const input = el("input", { type: "search", id: "filter", placeholder: "part of a name",
    on: { input: () => { view.filter = input.value; changed(); } } });
  return el("div", { class: "controls" },
    el("label", { class: "choice" }, "Methods with ", input),
    choice("Show", [["values", "values"], ["differences", "difference to the baseline"]],
      (value) => { view.show = value; changed(); }),
    checkbox("front", "Pareto front only ◆", (on) => { view.front = on; changed(); }),
    checkbox("all", "every metric", (on) => { view.all = on; changed(); }));
}

function resultsSection() {
  const box = el("div", { class: "wide", tabindex: "0", role: "region",
    "aria-label": "Results table" });
  const count = el("span", { class: "note", id: "count", role: "status" });
  const redraw = () => drawTable(box, count);
  watchers.push(redraw);
  redraw();
  const lacking = DATA.methods.filter((method) => LACKING.test(method.seeds))
    .map((method) => `${method.name}: ${LACKING.exec(method.seeds)[1]}`);
  const saves = Object.keys(DATA.downloads).map((name) => el("button", {
    type: "button", class: "small", "data-file": name,
    on: { click: async () =>
      download(name, await chosenText(name), "text/plain;charset=utf-8") },
  }, { "results.csv": "CSV", "results.tex": "LaTeX", "results.md": "Markdown" }[name]));
  return section("results", "Results on the test set", controls(), columnChoice(), box,
    el("div", { class: "saves" }, count, el("span", null, "Download "), saves),
    lacking.length ? el("p", { class: "note" }, `* ${lacking.join("; ")}.`) : null,
    el("p", { class: "note" }, DATA.note, " The filter acts on all figures below."));
}
