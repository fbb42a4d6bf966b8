// Draws what pymdownx.arithmatex marked as mathematics; also after a page came without a reload.
"use strict";

function drawEquations() {
  for (const node of document.querySelectorAll(".arithmatex")) {
    const text = node.textContent.trim().replace(/^\\[([]|\\[)\]]$/g, "");
    katex.render(text, node, { displayMode: node.tagName === "DIV", throwOnError: false });
  }
}

if (typeof document$ === "undefined") document.addEventListener("DOMContentLoaded", drawEquations);
else document$.subscribe(drawEquations);
