// Runs before the first paint, so that a page never flashes in the wrong colours. `data-theme` always says which colours
// are used: those that the user chose, or else the system's.
{
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("tally.theme");
    } catch {
      return document.documentElement.dataset.chosenTheme; // of a browser that keeps no data: see app.js
    }
  };
  const apply = () => {
    const theme = chosen();
    document.documentElement.dataset.theme = theme === "dark" || theme === "light" ? theme : system.matches ? "dark" : "light";
  };
  apply();
  system.addEventListener("change", apply);
}
