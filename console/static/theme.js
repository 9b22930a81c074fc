// Runs before the first paint, so that a page never flashes in the wrong colours.
try {
  const theme = localStorage.getItem("tally.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps no data follows the system's colours.
}
