// Figures: Vega draws them as SVG when they come near the window, and all of them, light, before the page is printed.
// Its expressions are interpreted (ast), since the page forbids eval.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const NARROW = 600; // of the window, in pixels, below which charts stand below each other

function chosenTheme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

// Charts side by side and legends at the right are for a desktop
function stacked(spec) {
  if (Array.isArray(spec)) return spec.map(stacked);
  if (spec === null || typeof spec !== "object") return spec;
  const { hconcat, data: values, ...rest } = spec;
  const made = Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, stacked(value)]));
  if (hconcat) made.vconcat = stacked(hconcat);
  if ("facet" in made && "columns" in made) made.columns = 1;
  return values === undefined ? made : { ...made, data: values };
}

class Plot {
  constructor(place) {
    this.place = place;
    this.packed = data.plots[place.dataset.plot];
    this.drawn = null;
  }

  async draw(theme = chosenTheme()) {
    const narrow = window.innerWidth < NARROW;
    const wanted = `${theme} ${narrow}`;
    if (this.drawn === wanted) return;
    this.drawn = wanted;
    const { spec, rows } = this.packed;
    const whole = spec.data || spec.datasets ? spec : { ...spec, data: { values: rows } };
    const config = { background: "transparent", ...data.themes[theme], background: "transparent" };
    if (narrow) config.legend = { ...config.legend, orient: "bottom", columns: 1, labelLimit: 300 };
    const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config, tooltip: tip };
    try {
      this.made?.finalize();
      this.made = await window.vegaEmbed(this.place, structuredClone(narrow ? stacked(whole) : whole), options);
    } catch (error) {
      console.error(error);
      this.place.textContent = `This figure cannot be drawn: ${error.message}. Its data can be downloaded.`;
    }
    this.place.classList.add("done");
  }

  download() {
    const names = [...new Set(this.packed.rows.flatMap((row) => Object.keys(row)))];
    save(this.place.dataset.plot, [names, ...this.packed.rows.map((row) => names.map((name) => row[name]))]);
  }
}

const bubble = element("div", { className: "tip", hidden: true });
document.body.append(bubble);

function tip(_handler, event, _item, value) {
  const found = value === null || value === undefined || value === "" ? [] : typeof value === "object" ? Object.entries(value) : [["", value]];
  bubble.hidden = found.length === 0;
  if (bubble.hidden) return;
  bubble.replaceChildren(...found.flatMap((pair) => pair.map((text) => element("span", { textContent: String(text) }))));
  const { offsetWidth: width, offsetHeight: height } = bubble;
  const at = (pointer, size, room) => `${Math.max(4, pointer + 14 + size > room ? pointer - size - 14 : pointer + 14)}px`;
  bubble.style.left = at(event.clientX, width, window.innerWidth);
  bubble.style.top = at(event.clientY, height, window.innerHeight);
}

const plots = [...document.querySelectorAll("[data-plot]")].map((place) => new Plot(place));
const near = new IntersectionObserver(
  (seen) => seen.filter((one) => one.isIntersecting).forEach(({ target }) => {
    near.unobserve(target);
    plots.find((plot) => plot.place === target).draw();
  }),
  { rootMargin: "600px" },
);
plots.forEach((plot) => near.observe(plot.place));

function redraw() {
  return Promise.all(plots.filter((plot) => plot.drawn !== null).map((plot) => plot.draw()));
}

for (const button of document.querySelectorAll("[data-csv]")) {
  button.addEventListener("click", () => plots.find((plot) => plot.place.dataset.plot === button.dataset.csv).download());
}
