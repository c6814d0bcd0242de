// What grids and figures share, and the columns of a grid. Texts come from records, so they are always set as text, never
// as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const MOST_CHOICES = 24; // distinct texts of a column that are offered as a list
const FIGURE = String.raw`(-?\d*\.?\d+(?:[eE][+-]?\d+)?)\s*(%|[kMGT]?[BJ])?`; // of a filter, with its unit or without
const RANGE = new RegExp(String.raw`^\s*${FIGURE}\s*\.\.\s*${FIGURE}\s*$`);
const BOUND = new RegExp(String.raw`^\s*(>=|<=|>|<|=)\s*${FIGURE}\s*$`);
const UNITS = { "%": 1e-2, B: 1, J: 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
const LONG = 24; // letters of a text, from which on it may be cut, and is shown whole where the pointer rests on it

function element(name, properties = {}, ...children) {
  const { dataset, aria, ...plain } = properties;
  const node = Object.assign(document.createElement(name), plain);
  for (const [key, value] of Object.entries(aria ?? {})) node.setAttribute(`aria-${key}`, value);
  Object.assign(node.dataset, dataset ?? {});
  node.append(...children);
  return node;
}

function button(text, properties, onClick) {
  const node = element("button", { type: "button", textContent: text, ...properties });
  node.addEventListener("click", onClick);
  return node;
}

function save(name, rows) {
  const quoted = (cell) => {
    const text = cell === null || cell === undefined ? "" : typeof cell === "object" ? JSON.stringify(cell) : String(cell);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const text = rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  element("a", { href: address, download: `${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function marks(signs) {
  return [...signs].map((sign) => element("abbr", { className: "mark", title: data.legend[sign] ?? "", textContent: sign }));
}

class Column {
  constructor(packed) {
    Object.assign(this, packed);
    this.numbers = packed.values !== null;
    this.visible = packed.shown;
    this.style = ["right", "long", "code"].filter((name) => packed[name]).join(" ");
  }

  static of(packed, row) {
    return packed.all ? packed.all[row] : packed.of[packed.at[row]];
  }

  text(row) {
    return Column.of(this.texts, row);
  }

  has(row) {
    return !["-", ""].includes(this.text(row));
  }

  // The value for a download: the figure as the record has it, or the text
  raw(row) {
    return this.numbers ? Column.of(this.values, row) : this.text(row);
  }

  cell(row) {
    const text = this.text(row);
    const cell = element("td", { className: this.style });
    if (this.key === "marks") cell.append(...marks(text));
    else cell.textContent = text;
    if (this.key === "status" && text !== "ok") cell.classList.add("bad");
    if (!this.long && text.length > LONG) cell.title = text;
    return cell;
  }

  choices() {
    if (this.numbers && this.texts.all) return [];
    const texts = [...new Set(this.texts.of ?? this.texts.all)];
    return texts.length > 1 && texts.length <= MOST_CHOICES ? texts : [];
  }

  compare(a, b) {
    return this.numbers ? a - b : a.localeCompare(b, undefined, { numeric: true });
  }

  // Rows in this column's order; those without a figure are last in either direction
  sorted(rows, descending) {
    const key = (row) => (this.numbers ? Column.of(this.values, row) : this.text(row));
    const absent = (value) => value === null || value === "-" || value === "";
    const pairs = rows.map((row) => [key(row), row]);
    const sign = descending ? -1 : 1;
    pairs.sort(([a, i], [b, j]) => absent(a) - absent(b) || (absent(a) ? 0 : sign * this.compare(a, b)) || i - j);
    return pairs.map(([, row]) => row);
  }

  // The greatest figure: its row, -1 where there is none
  greatest() {
    const rows = (this.texts.all ?? this.texts.at).map((_, row) => row);
    const size = (row) => Math.abs(Column.of(this.values, row) ?? 0);
    return rows.reduce((best, row) => (size(row) > (best < 0 ? 0 : size(best)) ? row : best), -1);
  }

  // The unit in which its cell has the greatest figure: "%", " GB", or none
  get unit() {
    const row = this.numbers ? this.greatest() : -1;
    return row < 0 ? "" : (/ ?(%|[kMGT]?[BJ])$/.exec(this.text(row))?.[0] ?? "");
  }

  // By how much a figure is larger than the number that its cell shows: 0.01 of a percentage, 1e9 of GB
  get scale() {
    const row = this.greatest();
    const shown = row < 0 ? 0 : Number.parseFloat(this.text(row).replaceAll(",", ""));
    return shown ? 10 ** Math.round(Math.log10(Column.of(this.values, row) / shown)) : 1;
  }

  // A figure of a filter; without a unit it has that of the greatest figure's cell
  figure(number, unit) {
    return Number(number) * (unit ? UNITS[unit[0]] : this.scale);
  }

  // A test of rows: a value of the list, a range of figures (">2", "<=10 GB", "1..4"), or else a part of the text
  test(wanted, exact) {
    if (exact) return (row) => this.text(row) === wanted;
    const range = RANGE.exec(wanted);
    const bound = BOUND.exec(wanted);
    if (this.numbers && (range || bound)) {
      const limit = this.figure(...(range ?? bound.slice(1)).slice(1, 3));
      const most = range && this.figure(range[3], range[4]);
      const matches = range
        ? (value) => value >= limit && value <= most
        : { ">=": (v) => v >= limit, "<=": (v) => v <= limit, ">": (v) => v > limit, "<": (v) => v < limit, "=": (v) => Math.abs(v - limit) <= 1e-9 * Math.abs(v) }[bound[1]];
      return (row) => Column.of(this.values, row) !== null && matches(Column.of(this.values, row));
    }
    const part = wanted.trim().toLowerCase();
    return (row) => this.text(row).toLowerCase().includes(part);
  }
}
