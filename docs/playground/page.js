// Starts the panels, and lets a reader choose between light and dark.
"use strict";

for (const start of [startLogits, startMollify, startFeatures, startCalibration, startDropout]) start();

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

function nameTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  redrawn.forEach((call) => call());
}

theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
dark.addEventListener("change", nameTheme);
nameTheme();
