// Tables of any length. They can be sorted and filtered, and show a number of rows at a time. A row opens to its details
// and to the rows of its runs, and two rows can be compared. Texts come from records, so they are set as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const COMPARISON = /^([^<>=]+)(>=|<=|>|<|=)([^<>=]+)$/; // A comparison in a filter: gpus=4, total_s<100, accuracy>98%.
const NUMBER = /^(-?\d*\.?\d+(?:e[+-]?\d+)?)(%|[kmgt]?)[bj]?$/; // A number of a comparison, with or without a unit.
const UNITS = { "": 1, "%": 1e-2, k: 1e3, m: 1e6, g: 1e9, t: 1e12 };
const COMPARES = { ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, "<": (a, b) => a < b, "=": (a, b) => Math.abs(a - b) <= 1e-9 * Math.abs(b) };
const LONG = 24; // A text with more letters may be cut. Then the pointer shows all of it.

function element(name, properties = {}, ...children) {
  const { aria, ...plain } = properties;
  const node = Object.assign(document.createElement(name), plain);
  for (const [key, value] of Object.entries(aria ?? {})) node.setAttribute(`aria-${key}`, value);
  node.append(...children);
  return node;
}

function fold(title, ...inner) {
  return element("details", {}, element("summary", { textContent: title }), ...inner);
}

// Draw lines of numbers on one scale, each over the full width.
function curves(lines, label) {
  const [width, height, edge] = [240, 60, 2];
  const [least, most] = [Math.min, Math.max].map((end) => end(...lines.flat()));
  const drawing = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const point = (line) => (value, at) => `${(edge + ((width - 2 * edge) * at) / (line.length - 1)).toFixed(1)},${(edge + ((height - 2 * edge) * (most - value)) / (most - least || 1)).toFixed(1)}`;
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": label });
  svg.append(...lines.map((line) => drawing("polyline", { points: line.map(point(line)).join(" ") })));
  return svg;
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

function number(text) {
  const [, digits, unit] = NUMBER.exec(text) ?? [null, "NaN", ""];
  return Number(digits) * UNITS[unit];
}

class Column {
  constructor(packed, rows) {
    const whole = (list) => list && (list.all ?? list.at?.map((place) => list.of[place]) ?? Array(rows).fill(list.each));
    Object.assign(this, packed, { texts: whole(packed.texts), values: whole(packed.values) });
    this.names = [this.key, this.heading].map((name) => name.toLowerCase().replaceAll(" ", ""));
    this.style = ["right", "long", "code"].filter((name) => packed[name]).join(" ");
  }

  has(row) {
    return !["-", ""].includes(this.texts[row]);
  }

  // Return the figure as the record has it, or the text.
  raw(row) {
    return this.values ? this.values[row] : this.texts[row];
  }

  cell(row) {
    const text = this.texts[row];
    const cell = element("td", { className: this.style });
    if (this.key === "marks") cell.append(...[...text].map((sign) => element("abbr", { className: "mark", title: data.legend[sign] ?? "", textContent: data.mark_names[sign] ?? sign })));
    else cell.textContent = text;
    if (this.key === "status" && text !== "ok") cell.classList.add("bad");
    if (!this.long && text.length > LONG) cell.title = text;
    return cell;
  }

  compare(a, b) {
    return this.values ? this.values[a] - this.values[b] : this.texts[a].localeCompare(this.texts[b], undefined, { numeric: true });
  }

  matches(row, sign, wanted) {
    if (sign === "=" && this.texts[row].toLowerCase() === wanted) return true;
    return Boolean(this.values) && this.values[row] !== null && COMPARES[sign](this.values[row], number(wanted));
  }
}

class Grid {
  constructor(place) {
    const { columns, details, ...packed } = data.grids[place.dataset.grid];
    Object.assign(this, packed, { place, name: place.dataset.grid, sort: null, descending: false, wanted: "", most: packed.page_rows });
    Object.assign(this, { folders: [], ticked: [], tops: [], parts: {} });
    for (let row = 0; row < this.rows; row++) (this.parents[row] == null ? this.tops : (this.parts[this.parents[row]] ??= [])).push(row);
    [this.columns, this.details] = [columns, details].map((all) => all.map((column) => new Column(column, packed.rows)));
    this.opens = details.length > 0 || this.columns.some((column) => column.group);
    this.compares = this.rows > 1 && this.columns.some((column) => column.telling);
    this.opened = new Set();
    this.visible = this.columns.filter((column) => column.shown);
    this.build();
    this.lay();
  }

  build() {
    const search = element("input", { type: "search", placeholder: "Filter: text, gpus=4, total_s<100", aria: { label: "Filter rows" } });
    search.addEventListener("input", () => {
      this.wanted = search.value.trim();
      this.show();
    });
    const box = element("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      this.visible = this.columns.filter((column) => column.shown || box.checked);
      this.lay();
    });
    const all = element("label", { hidden: this.columns.every((column) => column.shown) }, box, ` All ${this.columns.length} columns`);
    this.count = element("span", { className: "count", role: "status" });
    const csv = button("Download rows (CSV)", { className: "plain" }, () => this.download());
    this.chip = button("", { className: "plain chip", hidden: true }, () => document.dispatchEvent(new CustomEvent("choose", { detail: { folders: [] } })));
    document.addEventListener("choose", ({ detail }) => this.choose(detail.folders));
    this.comparison = element("div", { className: "comparison", hidden: true, role: "region", aria: { label: "Two rows compared" } });
    this.heading = element("tr");
    this.body = element("tbody");
    const table = element("table", {}, element("thead", {}, this.heading), this.body);
    const scroll = element("div", { className: "scroll", tabIndex: 0, role: "group", aria: { label: `Table: ${this.label}` } }, table);
    this.more = button("", { className: "plain more-rows" }, () => {
      this.most += this.page_rows;
      this.show();
    });
    this.place.append(element("div", { className: "bar" }, search, this.chip, all, csv, this.count), this.comparison, scroll, this.more);
  }

  lay() {
    const cells = this.visible.map((column) => {
      const sorts = button(column.heading, { className: "sort", title: column.key }, () => this.order(column, this.sort === column && !this.descending));
      return element("th", { scope: "col", className: column.right ? "right" : "", aria: { sort: "none" } }, sorts);
    });
    this.heading.replaceChildren(...Array.from({ length: this.opens + this.compares }, () => element("td", { className: "opener" })), ...cells);
    this.order(this.sort, this.descending);
  }

  order(column, descending) {
    [this.sort, this.descending] = [column, descending];
    const cells = [...this.heading.querySelectorAll("th")];
    this.visible.forEach((each, at) => cells[at].setAttribute("aria-sort", each !== column ? "none" : descending ? "descending" : "ascending"));
    this.show();
  }

  // Return a test of rows for a word of the filter: a comparison with a column's figures, or a search in all texts.
  test(word) {
    const [, name, sign, wanted] = COMPARISON.exec(word) ?? [];
    const columns = this.columns.filter((column) => column.names.includes(name) || column.key.endsWith(`.${name}`));
    if (columns.length) return (row) => columns.some((column) => column.matches(row, sign, wanted));
    this.whole ??= Array.from({ length: this.rows }, (_, row) => [...this.columns, ...this.details].map((column) => column.texts[row]).join("\n").toLowerCase());
    return (row) => this.whole[row].includes(word);
  }

  // Show only the rows of these runs, or all rows if none of the runs is in this table.
  choose(folders) {
    const own = this.details.find((column) => column.key === "folder");
    const known = new Set(own?.texts);
    this.folders = folders.filter((folder) => known.has(folder));
    this.show();
    const count = this.chosen.length;
    this.chip.hidden = !this.folders.length;
    this.chip.textContent = `${count} row${count === 1 ? "" : "s"} chosen in the chart: show all`;
  }

  // Return the rows that match the filter, or have a part that does, in order. Rows without a figure always come last.
  get chosen() {
    const tests = this.wanted.toLowerCase().split(/\s+/).filter(Boolean).map((word) => this.test(word));
    const [folder, folders] = [this.details.find((column) => column.key === "folder"), new Set(this.folders)];
    if (folders.size) tests.push((row) => folders.has(folder.texts[row]));
    const fits = (row) => tests.every((test) => test(row));
    const rows = this.tops.filter((row) => fits(row) || this.parts[row]?.some(fits));
    const [column, turn] = [this.sort, this.descending ? -1 : 1];
    if (!column) return rows;
    return rows.sort((a, b) => column.has(b) - column.has(a) || (column.has(a) ? turn * column.compare(a, b) : 0) || a - b);
  }

  show() {
    const rows = this.chosen;
    const lines = rows.slice(0, this.most).flatMap((row) => this.lines(row));
    if (!lines.length) lines.push(element("tr", { className: "empty" }, element("td", { colSpan: this.width, textContent: data.said.no_row })));
    this.body.replaceChildren(...lines);
    const total = this.tops.length;
    const counted = rows.length < total ? `${rows.length.toLocaleString("en")} of ${total.toLocaleString("en")}` : total.toLocaleString("en");
    this.count.textContent = `${counted} row${total === 1 ? "" : "s"}`;
    this.more.hidden = rows.length <= this.most;
    this.more.textContent = `Show ${Math.min(this.page_rows, rows.length - this.most)} more`;
  }

  get width() {
    return this.visible.length + this.opens + this.compares;
  }

  // Build a row and, if it is opened, its details and the rows of its runs.
  lines(row) {
    const line = this.line(row);
    return this.opened.has(row) ? [line, this.detail(row), ...(this.parts[row] ?? []).flatMap((part) => this.lines(part))] : [line];
  }

  named(row) {
    const telling = this.columns.filter((column) => column.telling && column.has(row));
    return telling.map((column) => `${column.heading} ${column.texts[row]}`).join(", ") || `row ${row + 1}`;
  }

  line(row) {
    const cells = this.visible.map((column) => column.cell(row));
    if (this.compares) {
      const box = element("input", { type: "checkbox", id: `${this.name}-tick-${row}`, checked: this.ticked.includes(row), aria: { label: `Compare: ${this.named(row)}` } });
      box.addEventListener("change", () => this.tick(row, box.checked));
      cells.unshift(element("td", { className: "opener" }, box));
    }
    if (this.opens) {
      const aria = { label: `Details: ${this.named(row)}`, expanded: String(this.opened.has(row)), controls: `${this.name}-${row}` };
      const opener = button("", { className: "opens", id: `${this.name}-open-${row}`, aria }, () => this.toggle(row));
      cells.unshift(element("td", { className: "opener" }, opener));
    }
    return element("tr", { className: this.parents[row] == null ? "run" : "run part" }, ...cells);
  }

  toggle(row) {
    if (!this.opened.delete(row)) this.opened.add(row);
    this.show();
    document.getElementById(`${this.name}-open-${row}`)?.focus();
  }

  // Show two rows side by side, beginning with their differences. A third row replaces the first.
  tick(row, on) {
    this.ticked = [...this.ticked.filter((other) => other !== row), ...(on ? [row] : [])].slice(-2);
    this.show();
    document.getElementById(`${this.name}-tick-${row}`)?.focus(); // It is missing if the filter hides it.
    this.comparison.hidden = this.ticked.length < 2;
    if (this.comparison.hidden) return;
    const [a, b] = this.ticked;
    const known = this.columns.filter((column) => column.has(a) || column.has(b));
    const same = known.filter((column) => column.texts[a] === column.texts[b]);
    const [main, more] = [true, false].map((shown) => known.filter((column) => column.shown === shown && !same.includes(column)));
    const facts = element("dl", {}, ...same.map((column) => this.fact(column, a)));
    const others = more.length ? [fold(`${more.length} more that differ`, this.sides(more, a, b))] : [];
    this.comparison.replaceChildren(this.sides(main, a, b), ...others, fold(`${same.length} the same`, facts));
  }

  sides(columns, a, b) {
    const ratio = ({ telling, values }) => (!telling && values?.[a] && values[b] !== null ? (values[b] / values[a]).toFixed(2) : "");
    const line = (tag, properties, texts) => element("tr", {}, ...texts.map((textContent) => element(tag, { textContent, ...properties })));
    const rows = columns.map((column) => line("td", { className: "right" }, [column.heading, column.texts[a], column.texts[b], ratio(column)]));
    const head = element("thead", {}, line("th", { scope: "col", className: "right" }, ["", "A", "B", "B / A"]));
    return element("div", { className: "scroll", tabIndex: 0, role: "group", aria: { label: "Differences" } }, element("table", {}, head, element("tbody", {}, ...rows)));
  }

  fact(column, row) {
    const text = column.texts[row];
    const value = element("dd", {}, element(column.code ? "code" : "span", { textContent: text }));
    if (column.code) {
      const copies = element("button", { type: "button", className: "plain", textContent: "Copy", aria: { label: `Copy ${column.heading}` } });
      copies.dataset.copy = text;
      value.className = "copied";
      value.append(copies);
    }
    return element("div", {}, element("dt", { textContent: column.heading }), value);
  }

  // Return the losses of a row, or of all its parts.
  losses(row) {
    const lines = (this.parts[row] ?? [row]).map((part) => this.curves[part] ?? []).filter((line) => line.length > 1);
    if (!lines.length) return [];
    const [first, last] = [lines[0][0], lines[0].at(-1)].map((loss) => loss.toPrecision(3));
    const text = `Training loss, from ${first} to ${last}`;
    return [element("figure", {}, curves(lines, text), element("figcaption", { className: "quiet", textContent: text }))];
  }

  detail(row) {
    const texts = this.details.filter((column) => column.has(row)).map((column) => this.fact(column, row));
    const groups = [...new Set(this.columns.map((column) => column.group))].filter(Boolean).map((group) => {
      const known = this.columns.filter((column) => column.group === group && column.has(row) && column.key !== "marks");
      return element("div", { hidden: !known.length }, element("p", { className: "group", textContent: group }), element("dl", {}, ...known.map((column) => this.fact(column, row))));
    });
    const whole = element("div", { className: "whole" }, element("dl", { className: "texts", hidden: !texts.length }, ...texts), ...this.losses(row), ...(this.parts[row] ? [fold("Means of all figures", ...groups)] : groups));
    return element("tr", { className: "detail", id: `${this.name}-${row}` }, element("td", { colSpan: this.width }, whole));
  }

  download() {
    const all = [...this.columns, ...this.details];
    const rows = this.chosen.flatMap((row) => this.parts[row] ?? [row]); // Each run, with the columns that only its setting has.
    save(this.name, [all.map((column) => column.key), ...rows.map((row) => all.map((column) => (column.has(row) ? column.raw(row) : column.raw(this.parents[row] ?? row))))]);
  }
}

const grids = [...document.querySelectorAll("[data-grid]")].map((place) => new Grid(place));
