// Figures: Vega draws each as SVG when it comes near the window, and all of them, light, before the page is printed. Its
// expressions are interpreted (ast), since the page forbids eval.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const NARROW = 600; // width of the window in pixels, below which charts stand below each other

function chosenTheme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

// A specification whose charts stand below each other, for a narrow window
function stacked(spec) {
  if (Array.isArray(spec)) return spec.map(stacked);
  if (spec === null || typeof spec !== "object") return spec;
  const copy = Object.fromEntries(Object.entries(spec).map(([key, value]) => [key === "hconcat" ? "vconcat" : key, stacked(value)]));
  if ("facet" in copy && "columns" in copy) copy.columns = 1;
  return copy;
}

class Plot {
  constructor(place) {
    this.place = place;
    this.packed = data.plots[place.dataset.plot];
    this.drawn = null;
  }

  async draw(theme = chosenTheme()) {
    const narrow = window.innerWidth < NARROW;
    const drawing = `${theme} ${narrow}`;
    if (this.drawn === drawing) return;
    this.drawn = drawing;
    const { spec, rows } = this.packed;
    const datasets = { [spec.data.name]: rows };
    const config = { ...data.themes[theme] };
    if (narrow) config.legend = { ...config.legend, orient: "bottom", columns: 1, labelLimit: 300 };
    const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config, tooltip: tip };
    try {
      this.view?.finalize();
      const copy = structuredClone(narrow ? stacked(spec) : spec);
      this.view = await window.vegaEmbed(this.place, { ...copy, datasets: structuredClone(datasets) }, options);
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
  const pairs = value === null || value === undefined || value === "" ? [] : typeof value === "object" ? Object.entries(value) : [["", value]];
  bubble.hidden = pairs.length === 0;
  if (bubble.hidden) return;
  bubble.replaceChildren(...pairs.flatMap((pair) => pair.map((text) => element("span", { textContent: String(text) }))));
  const { offsetWidth: width, offsetHeight: height } = bubble;
  const at = (pointer, size, room) => `${Math.max(4, pointer + 14 + size > room ? pointer - size - 14 : pointer + 14)}px`;
  bubble.style.left = at(event.clientX, width, window.innerWidth);
  bubble.style.top = at(event.clientY, height, window.innerHeight);
}

const plots = [...document.querySelectorAll("[data-plot]")].map((place) => new Plot(place));
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
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
