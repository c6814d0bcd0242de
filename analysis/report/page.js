// The theme's button, the section in sight, and printing.

const themeButton = document.getElementById("theme");

function nameTheme() {
  themeButton.textContent = chosenTheme() === "dark" ? "Light theme" : "Dark theme";
}

themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  document.documentElement.dataset.theme = chosenTheme() === "dark" ? "light" : "dark";
  nameTheme();
  redraw();
});
dark.addEventListener("change", () => {
  nameTheme();
  redraw();
});
nameTheme();

let resized;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    grids.forEach((grid) => grid.fit());
    redraw();
  }, 200);
});

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const inSight = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(target.id)?.setAttribute("aria-current", "true");
    }
  },
  { rootMargin: "-20% 0px -70% 0px" },
);
document.querySelectorAll(".section").forEach((section) => inSight.observe(section));

// Vega draws in microtasks, which are done before the browser lays out the printed page
let unfolded = [];
window.addEventListener("beforeprint", () => {
  grids.forEach((grid) => grid.show(grid.printedRows));
  plots.forEach((plot) => plot.draw("light"));
  unfolded = [...document.querySelectorAll("details.command:not([open])")];
  unfolded.forEach((details) => (details.open = true));
});
window.addEventListener("afterprint", () => {
  grids.forEach((grid) => grid.show());
  unfolded.forEach((details) => (details.open = false));
  redraw();
});
