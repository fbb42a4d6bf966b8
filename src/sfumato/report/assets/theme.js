// The button between light and dark; the choice is kept where the browser allows it.
function themeButton() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches
    ? "dark" : "light")) === "dark";
  const button = el("button", { type: "button", id: "theme" });
  const show = () => {
    button.textContent = dark() ? "☀ light" : "☾ dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  };
  const keep = (theme) => {
    try { localStorage.setItem("sfumato-theme", theme); } catch { /* not allowed from disk */ }
  };
  try {
    const kept = localStorage.getItem("sfumato-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* not allowed from disk */ }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    keep(root.dataset.theme);
    show();
  });
  show();
  return button;
}
