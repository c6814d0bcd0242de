// Figures: Vega draws each as SVG when it comes near the window, and all of them, light, before the page is printed. Its
// expressions are interpreted (ast), since the page forbids eval. A figure that is wider than its place is drawn again
// with narrower charts: letters keep their size.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const NARROW = 600; // width of the window in pixels, below which charts stand below each other
const MOST_TRIES = 5; // drawings of a figure, until it fits
const LEAST_FACTOR = 0.3; // of the width of charts; a figure that does not fit then is scrolled
const DRAWN = ["chart", "shown", "shown_low", "shown_high", "least", "most"]; // fields of rows that are no data
const ERRORS = 1; // what Vega logs: no warnings, as of a bound that no row has
const BELOW = { bottom: { anchor: "start", direction: "vertical", margin: 6 } }; // legends, one below the other

function chosenTheme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

// A specification whose charts are so many times as wide, and stand below each other in a narrow window
function adapted(spec, factor, isNarrow) {
  if (Array.isArray(spec)) return spec.map((part) => adapted(part, factor, isNarrow));
  if (spec === null || typeof spec !== "object") return spec;
  const rename = (key) => (isNarrow && key === "hconcat" ? "vconcat" : key);
  const copy = Object.fromEntries(Object.entries(spec).map(([key, value]) => [rename(key), adapted(value, factor, isNarrow)]));
  if (isNarrow && "columns" in copy) copy.columns = 1;
  if (typeof copy.width === "number") copy.width = Math.floor(copy.width * factor);
  return copy;
}

// The factor with which a figure fits: its width grows linearly with it, by an amount that two drawings tell
function nextFactor(drawn, room) {
  const [factor, width] = drawn.at(-1);
  if (drawn.length === 1) return Math.max(LEAST_FACTOR, (factor * room) / width);
  const [before, widthBefore] = drawn.at(-2);
  const slope = (width - widthBefore) / (factor - before);
  return Math.max(LEAST_FACTOR, slope > 0 ? factor + (room - 1 - width) / slope : LEAST_FACTOR);
}

class Plot {
  constructor(place) {
    this.place = place;
    this.packed = data.plots[place.dataset.plot];
    this.drawn = null;
  }

  get room() {
    return this.place.parentElement.clientWidth; // 0 where it is folded away
  }

  async draw(theme = chosenTheme()) {
    const room = this.room || Infinity;
    const drawing = `${theme} ${room}`;
    if (this.drawn === drawing) return;
    this.drawn = drawing;
    const isNarrow = window.innerWidth < NARROW;
    const config = { ...data.themes[theme] };
    if (isNarrow) {
      const limit = Math.min(room, window.innerWidth) - 110;
      config.legend = { ...config.legend, orient: "bottom", direction: "vertical", columns: 1, labelLimit: limit, layout: BELOW };
      config.header = { ...config.header, labelLimit: limit + 60 };
    }
    const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config, tooltip: tip, logLevel: ERRORS };
    try {
      await this.fit(isNarrow, options, room, drawing);
    } catch (error) {
      console.error(error);
      this.place.textContent = `This figure cannot be drawn: ${error.message}. Its data can be downloaded.`;
    }
    this.place.classList.add("done");
  }

  async fit(isNarrow, options, room, drawing) {
    const { spec, rows } = this.packed;
    const sizes = [];
    let factor = 1;
    while (sizes.length < MOST_TRIES) {
      this.view?.finalize();
      const datasets = { [spec.data.name]: structuredClone(rows) };
      this.view = await window.vegaEmbed(this.place, { ...adapted(spec, factor, isNarrow), datasets }, options);
      if (this.drawn !== drawing) return; // another theme or width was asked for meanwhile
      const drawn = this.place.querySelector("svg");
      drawn.setAttribute("aria-hidden", "true"); // the place is one image with a name, whose data can be downloaded
      const width = drawn.width.baseVal.value;
      if (width <= room || factor === LEAST_FACTOR) break;
      sizes.push([factor, width]);
      factor = nextFactor(sizes, room);
    }
    const scrolls = this.place.scrollWidth > this.place.clientWidth;
    if (scrolls) this.place.tabIndex = 0; // so that the keyboard can scroll it
    else this.place.removeAttribute("tabindex");
  }

  download() {
    const names = [...new Set(this.packed.rows.flatMap((row) => Object.keys(row)))].filter((name) => !DRAWN.includes(name));
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
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => plots.find((plot) => plot.place === target).draw()),
  { rootMargin: "600px" },
);
plots.forEach((plot) => near.observe(plot.place));

function redraw() {
  return Promise.all(plots.filter((plot) => plot.drawn !== null && plot.room > 0).map((plot) => plot.draw()));
}

for (const button of document.querySelectorAll("[data-csv]")) {
  button.addEventListener("click", () => plots.find((plot) => plot.place.dataset.plot === button.dataset.csv).download());
}
