// Puts the figures of an audit in their places; sentences and tables are there already.
const FIGURES = { reliability: reliabilityFigure, risk: riskFigure, time: timeFigure,
  sets: setsFigure, coverage: coverageFigure, confidences: confidencesFigure };

function copyButton(code) {
  const button = el("button", { type: "button", class: "small copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch { // not allowed from disk: leave it selected, ready for the keyboard
      getSelection().selectAllChildren(code);
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

function main() {
  for (const box of document.querySelectorAll("[data-figure]")) {
    const place = Number(box.dataset.model);
    const made = FIGURES[box.dataset.figure](DATA.models[place], place);
    if (made) box.replaceChildren(made);
    else box.remove();
  }
  for (const code of document.querySelectorAll(".step code")) {
    code.parentElement.after(copyButton(code));
  }
  for (const box of document.querySelectorAll(".wide")) {
    build(box, { tabindex: "0", role: "region", "aria-label": "Table" }, []);
  }
  document.querySelector("#downloads .saves").append(...Object.keys(DATA.downloads).map((name) =>
    el("button", { type: "button", class: "small", "data-file": name, on: {
      click: () => download(name, DATA.downloads[name], "text/plain;charset=utf-8") } }, name)));
  document.querySelector("main").prepend(el("div", { class: "corner" }, themeButton()));
  document.body.append(tip);
}

main();
