// Figures: Vega draws each as SVG when it comes near the window, the others while the browser is idle, so that a saved page has
// them, and all of them, light, before the page is printed. Its
// expressions are interpreted (ast), since the page forbids eval. A figure that is wider than its place is drawn again
// with narrower charts, and with its legend below them if it would take much of their width: letters keep their size.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const NARROW = 600; // In a window of fewer pixels, charts stand below each other.
const MOST_TRIES = 5; // The most attempts to make a figure fit.
const SCROLLBAR = 20; // In pixels. A place that changes by less, as when a scrollbar comes, keeps its figure, which is scaled.
const LEAST_FACTOR = 0.2; // The smallest factor for the width of charts. If a figure still does not fit, it is scaled.
const LEAST_BESIDE = 0.8; // Charts that a legend beside them makes narrower than this have it below.
const LEGEND_WIDTH = 300; // In pixels, of a column of a legend below charts, whose lines are broken (LABEL_LETTERS).
const DRAWN = ["chart", "shown", "shown_low", "shown_high", "least", "most"]; // Fields of rows that are not data.
const ERRORS = 1; // Vega logs only errors. It would warn of a bound that no row has.
const OPTIONS = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: false, logLevel: ERRORS };

// Return the chart `factor` times as wide. In a narrow window, its parts stand below each other.
function adapted(chart, factor, isNarrow) {
  const { spec, columns, ...facet } = chart;
  const inner = spec ?? chart;
  const narrower = { ...inner, width: Math.floor(inner.width * factor) };
  return spec ? { ...facet, columns: isNarrow ? 1 : columns, spec: narrower } : narrower;
}

// Return the theme with legends below the charts, in as many columns as have room.
function withLegendBelow(theme, room, isNarrow) {
  const width = Math.min(room, window.innerWidth);
  const columns = Math.max(1, Math.floor(width / LEGEND_WIDTH));
  const layout = { bottom: { anchor: "start", direction: "vertical", margin: 6 } };
  const legend = { ...theme.legend, orient: "bottom", direction: "vertical", columns, labelLimit: width / columns - 25, layout };
  return { ...theme, legend, header: isNarrow ? { ...theme.header, labelLimit: width - 50 } : theme.header };
}

// Return the factor at which a figure fits. The width grows linearly with the factor, so two drawings give the slope.
function nextFactor(drawn, room) {
  const [factor, width] = drawn.at(-1);
  const [before, widthBefore] = drawn.at(-2) ?? [0, 0];
  return Math.max(LEAST_FACTOR, factor + ((room - 1 - width) * (factor - before)) / (width - widthBefore) || 0);
}

class Plot {
  constructor(place) {
    Object.assign(this, { place, packed: data.plots[place.dataset.plot], drawn: null });
    const charts = [...new Set(this.packed.rows.map((row) => row.chart))];
    if (!this.packed.one_at_a_time || charts.length < 2) return;
    const chooser = element("select", {}, ...charts.map((chart) => element("option", { textContent: chart })));
    chooser.addEventListener("change", () => {
      this.shown = chooser.value;
      this.drawn = null;
      this.draw();
    });
    this.shown = chooser.value;
    place.parentElement.before(element("label", { className: "chooser" }, "Against ", chooser));
  }

  get rows() {
    return this.shown ? this.packed.rows.filter((row) => row.chart === this.shown) : this.packed.rows;
  }

  // Return the runs of the chosen points, or of all points if none is chosen, for the tables of the page.
  choose(points) {
    const series = new Set(points.map((point) => point.values[0]));
    const folders = this.rows.filter((row) => series.has(row.series)).flatMap((row) => row.folders);
    document.dispatchEvent(new CustomEvent("choose", { detail: { folders } }));
  }

  get room() {
    return this.place.parentElement.clientWidth; // 0 if it is folded away.
  }

  async draw(theme = dark.matches ? "dark" : "light") {
    const room = Math.abs(this.room - this.drawnRoom) < SCROLLBAR ? this.drawnRoom : this.room || Infinity;
    const drawing = `${theme} ${room}`;
    if (this.drawn === drawing) return;
    this.drawn = drawing;
    this.drawnRoom = room;
    const isNarrow = window.innerWidth < NARROW;
    let isBelow = isNarrow;
    let sizes = [];
    for (let factor = 1; sizes.length < MOST_TRIES; factor = nextFactor(sizes, room)) {
      if (!isBelow && factor < LEAST_BESIDE) [isBelow, sizes, factor] = [true, [], 1];
      this.view?.finalize();
      const spec = { ...adapted(this.packed.spec, factor, isNarrow), data: { values: structuredClone(this.rows) } };
      const config = isBelow ? withLegendBelow(data.themes[theme], room, isNarrow) : data.themes[theme];
      this.view = (await window.vegaEmbed(this.place, spec, { ...OPTIONS, config })).view;
      if (this.drawn !== drawing) return; // Meanwhile, another theme or width was requested.
      if (this.packed.one_at_a_time) this.view.addDataListener("chosen_store", (_, points) => this.choose(points));
      const svg = this.place.querySelector("svg");
      svg.setAttribute("aria-hidden", "true"); // For screen readers, the place is one image with a name, whose data can be downloaded.
      sizes.push([factor, svg.width.baseVal.value]);
      if (sizes.at(-1)[1] <= room || factor === LEAST_FACTOR) break;
    }
    this.place.classList.add("done");
  }

  download() {
    const names = [...new Set(this.packed.rows.flatMap((row) => Object.keys(row)))].filter((name) => !DRAWN.includes(name));
    save(this.place.dataset.plot, [names, ...this.packed.rows.map((row) => names.map((name) => row[name]))]);
  }
}

const plots = [...document.querySelectorAll("[data-plot]")].map((place) => new Plot(place));
const redraw = () => plots.filter((plot) => plot.drawn !== null && plot.room > 0).forEach((plot) => plot.draw());
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => plots.find((plot) => plot.place === target).draw()),
  { rootMargin: "600px" },
);
for (const plot of plots) {
  near.observe(plot.place);
  document.querySelector(`[data-csv="${CSS.escape(plot.place.dataset.plot)}"]`).addEventListener("click", () => plot.download());
}
// One at a time: drawing a figure takes a tenth of a second, during which the page does not answer
const whenIdle = window.requestIdleCallback ?? ((draw) => setTimeout(draw, 100));
function drawRest() {
  const next = plots.find((plot) => plot.drawn === null && plot.room > 0);
  if (next) next.draw().then(() => whenIdle(drawRest));
}
window.addEventListener("load", () => whenIdle(drawRest));
dark.addEventListener("change", redraw);
let resized;
const widths = new ResizeObserver(() => {
  clearTimeout(resized);
  resized = setTimeout(redraw, 200);
});
plots.forEach((plot) => widths.observe(plot.place.parentElement));

// Vega draws in microtasks, which end before the browser lays out the printed page.
window.addEventListener("beforeprint", () => {
  plots.forEach((plot) => plot.draw("light"));
  document.querySelectorAll("details.command").forEach((details) => (details.open = true));
});
window.addEventListener("afterprint", redraw);
