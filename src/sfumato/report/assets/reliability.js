// Reliability diagrams side by side: accuracy as bars, the gap to the confidence on top.
function reliabilityPicture(method) {
  const bins = method.reliability;
  const size = 220, left = 46, top = 10, base = top + size;
  const count = bins.counts.length;
  const most = Math.max(...bins.counts);
  const total = bins.counts.reduce((sum, each) => sum + each, 0);
  const across = (value) => left + size * value;
  const up = (value) => base - size * value;
  const picture = draw("svg", { viewBox: "0 0 280 322", role: "img",
    "aria-label": `Reliability diagram of ${method.name}` });
  picture.append(draw("rect", { class: "frame", x: left, y: top, width: size, height: size }));
  for (const tick of [0, 0.5, 1]) {
    picture.append(draw("text", { class: "end", x: left - 6, y: up(tick) + 4 }, String(tick)),
      draw("text", { class: "mid", x: across(tick), y: base + 15 }, String(tick)));
  }
  bins.counts.forEach((samples, bin) => {
    if (!samples) return;
    const [accuracy, confidence] = [bins.accuracy[bin], bins.confidence[bin]];
    const [low, high] = [Math.min(accuracy, confidence), Math.max(accuracy, confidence)];
    const x = across(bin / count), width = size / count - 0.6;
    const tall = (34 * samples) / most;
    const group = draw("g", { class: "bin" },
      draw("rect", { class: "accuracy", x, width, y: up(accuracy), height: size * accuracy }),
      draw("rect", { class: `gap ${confidence > accuracy ? "over" : "under"}`, x, width,
        y: up(high), height: size * (high - low) }),
      draw("rect", { class: "count", x, width, y: base + 74 - tall, height: tall }),
      draw("rect", { class: "hit", x, width, y: top, height: size + 74 }));
    picture.append(withTip(group, `confidence ${format(confidence, true)} %\n` +
      `accuracy ${format(accuracy, true)} %\n${samples} of ${total} predictions`));
  });
  picture.append(
    draw("path", { class: "ideal", d: `M${across(0)} ${up(0)}L${across(1)} ${up(1)}` }),
    draw("text", { class: "mid", x: across(0.5), y: base + 31 }, "confidence"),
    draw("text", { class: "mid", x: 13, y: 120, transform: "rotate(-90 13 120)" }, "accuracy"),
    draw("text", { class: "mid", x: across(0.5), y: base + 90 },
      `where the ${total.toLocaleString("en")} predictions fell`));
  return picture;
}

function reliabilitySection() {
  if (!DATA.methods.some((method) => method.reliability)) return null;
  const grid = el("div", { class: "grid" });
  const redraw = () => {
    const kept = visible().filter((method) => method.reliability);
    grid.replaceChildren(...(kept.length ? kept.map((method) => {
      const ece = method.values["test.ece"];
      return figure(method.name, ece ? `ECE ${format(ece.mean, true)} %` : null,
        reliabilityPicture(method));
    }) : [nothing()]));
  };
  watchers.push(redraw);
  redraw();
  return section("reliability", "Do confidences match reality?",
    el("p", null, "Bars are the accuracy of predictions made with about that confidence, all seeds " +
      "together. On the diagonal a confidence means what it says. ",
      el("span", { class: "key over" }), " overconfident, ",
      el("span", { class: "key under" }), " underconfident."), grid);
}
