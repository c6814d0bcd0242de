// What grids and figures share, and the columns of a grid. Texts come from records, so they are always set as text, never
// as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const MOST_CHOICES = 24; // distinct texts of a column that are offered as a list
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

  // A test of rows: a value of the list, a range of figures (">2", "<=10", "1..4"), or else a part of the text
  test(wanted, exact) {
    if (exact) return (row) => this.text(row) === wanted;
    const range = /^\s*(-?[\d.eE+]+)\s*\.\.\s*(-?[\d.eE+]+)\s*$/.exec(wanted);
    const bound = /^\s*(>=|<=|>|<|=)\s*(-?[\d.eE+-]+)\s*$/.exec(wanted);
    if (this.numbers && (range || bound)) {
      const limit = bound && Number(bound[2]);
      const matches = range
        ? (value) => value >= Number(range[1]) && value <= Number(range[2])
        : { ">=": (v) => v >= limit, "<=": (v) => v <= limit, ">": (v) => v > limit, "<": (v) => v < limit, "=": (v) => v === limit }[bound[1]];
      return (row) => Column.of(this.values, row) !== null && matches(Column.of(this.values, row));
    }
    const part = wanted.trim().toLowerCase();
    return (row) => this.text(row).toLowerCase().includes(part);
  }
}
