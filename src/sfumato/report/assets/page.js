// Puts the page together.
function recommendationSection() {
  const { headline, reasons, cost, certainty } = DATA.recommendation;
  const rest = [...reasons.slice(1), cost, certainty].filter(Boolean);
  return section("recommendation", "Which smoothing to use here",
    el("div", { class: "advice" }, el("p", { class: "headline" }, headline),
      reasons.slice(0, 1).map((text) => el("p", null, text))), firstPicture(),
    rest.length ? el("details", null, el("summary", null, "Other methods, cost, and how sure"),
      rest.map((text) => el("p", null, text))) : null);
}

function folded(title, text, open) {
  return el("details", { open }, el("summary", null, title), el("pre", { tabindex: "0" }, text));
}

function configurationSection() {
  const environment = Object.keys(DATA.environment).length
    ? folded("Environment", JSON.stringify(DATA.environment, null, 2)) : null;
  return section("configuration", "Configuration and environment",
    folded("Study file", DATA.study), environment,
    DATA.methods.filter((method) => method.config).map((method) =>
      folded(`${method.name}: everything resolved, first seed`, method.config)));
}

function main() {
  const sections = [recommendationSection(), resultsSection(), paretoSection(),
    reliabilitySection(), cleanSection(), corruptionSection(), cellSection(), frequencySection(),
    sequenceSection(), ensembleSection(), trainingSection(), profileSection(), sampleSection(),
    configurationSection()].filter(Boolean);
  const links = el("nav", { "aria-label": "Sections" }, sections.map((each) =>
    el("a", { href: `#${each.id}` }, each.firstChild.textContent)));
  const page = document.querySelector("main");
  page.prepend(el("div", { class: "top" }, page.querySelector("h1"), themeButton()));
  page.append(links, ...sections);
  document.body.append(tip);
}

main();
