// Runs before the first paint (a classic script in the head), so that a chosen theme never flashes the other one.
try {
  const theme = localStorage.getItem("firsttoken.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage can be forbidden; the system's preference then decides.
}
