// Tables of any length: sorted, filtered, a number of rows at a time, with rows that open. Texts come from records, so they
// are always set as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const COMPARISON = /^([^<>=]+)(>=|<=|>|<|=)([^<>=]+)$/; // a word of a filter: gpus=4, total_s<100, accuracy>98%
const NUMBER = /^(-?\d*\.?\d+(?:e[+-]?\d+)?)(%|[kmgt]?)[bj]?$/; // of a comparison, with its unit or without
const UNITS = { "": 1, "%": 1e-2, k: 1e3, m: 1e6, g: 1e9, t: 1e12 };
const COMPARES = { ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, "<": (a, b) => a < b, "=": (a, b) => Math.abs(a - b) <= 1e-9 * Math.abs(b) };
const LONG = 24; // letters of a text, from which on it may be cut, and is shown whole where the pointer rests on it

function element(name, properties = {}, ...children) {
  const { aria, ...plain } = properties;
  const node = Object.assign(document.createElement(name), plain);
  for (const [key, value] of Object.entries(aria ?? {})) node.setAttribute(`aria-${key}`, value);
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

function number(text) {
  const [, digits, unit] = NUMBER.exec(text) ?? [null, "NaN", ""];
  return Number(digits) * UNITS[unit];
}

class Column {
  constructor(packed) {
    const whole = (list) => list && (list.all ?? list.at.map((place) => list.of[place]));
    Object.assign(this, packed, { texts: whole(packed.texts), values: whole(packed.values) });
    this.names = [this.key, this.heading].map((name) => name.toLowerCase().replaceAll(" ", ""));
    this.style = ["right", "long", "code"].filter((name) => packed[name]).join(" ");
  }

  has(row) {
    return !["-", ""].includes(this.texts[row]);
  }

  // The figure as the record has it, or the text
  raw(row) {
    return this.values ? this.values[row] : this.texts[row];
  }

  cell(row) {
    const text = this.texts[row];
    const cell = element("td", { className: this.style });
    if (this.key === "marks") cell.append(...[...text].map((sign) => element("abbr", { className: "mark", title: data.legend[sign] ?? "", textContent: sign })));
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
    [this.columns, this.details] = [columns, details].map((all) => all.map((column) => new Column(column)));
    this.opens = details.length > 0 || this.columns.some((column) => column.group);
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
    this.heading = element("tr");
    this.body = element("tbody");
    const table = element("table", {}, element("thead", {}, this.heading), this.body);
    const scroll = element("div", { className: "scroll", tabIndex: 0, role: "region", aria: { label: `Table: ${this.label}` } }, table);
    this.more = button("", { className: "plain more-rows" }, () => {
      this.most += this.page_rows;
      this.show();
    });
    this.place.append(element("div", { className: "bar" }, search, all, csv, this.count), scroll, this.more);
  }

  lay() {
    const cells = this.visible.map((column) => {
      const sorts = button(column.heading, { className: "sort", title: column.key }, () => this.order(column, this.sort === column && !this.descending));
      return element("th", { scope: "col", className: column.right ? "right" : "", aria: { sort: "none" } }, sorts);
    });
    this.heading.replaceChildren(...(this.opens ? [element("td", { className: "opener" })] : []), ...cells);
    this.order(this.sort, this.descending);
  }

  order(column, descending) {
    [this.sort, this.descending] = [column, descending];
    const cells = [...this.heading.querySelectorAll("th")];
    this.visible.forEach((each, at) => cells[at].setAttribute("aria-sort", each !== column ? "none" : descending ? "descending" : "ascending"));
    this.show();
  }

  // A test of rows for a word of the filter: a comparison with a column's figures, or else a part of any text
  test(word) {
    const [, name, sign, wanted] = COMPARISON.exec(word) ?? [];
    const columns = this.columns.filter((column) => column.names.includes(name) || column.key.endsWith(`.${name}`));
    if (columns.length) return (row) => columns.some((column) => column.matches(row, sign, wanted));
    this.whole ??= Array.from({ length: this.rows }, (_, row) => [...this.columns, ...this.details].map((column) => column.texts[row]).join("\n").toLowerCase());
    return (row) => this.whole[row].includes(word);
  }

  // The rows that fit the filter, in order; those without a figure are last in either direction
  get chosen() {
    const tests = this.wanted.toLowerCase().split(/\s+/).filter(Boolean).map((word) => this.test(word));
    const rows = Array.from({ length: this.rows }, (_, row) => row).filter((row) => tests.every((test) => test(row)));
    const [column, turn] = [this.sort, this.descending ? -1 : 1];
    if (!column) return rows;
    return rows.sort((a, b) => column.has(b) - column.has(a) || (column.has(a) ? turn * column.compare(a, b) : 0) || a - b);
  }

  show() {
    const rows = this.chosen;
    const lines = rows.slice(0, this.most).flatMap((row) => (this.opened.has(row) ? [this.line(row), this.detail(row)] : [this.line(row)]));
    if (!lines.length) lines.push(element("tr", { className: "empty" }, element("td", { colSpan: this.visible.length + 1, textContent: "No row fits." })));
    this.body.replaceChildren(...lines);
    const total = this.rows.toLocaleString("en");
    this.count.textContent = `${rows.length < this.rows ? `${rows.length.toLocaleString("en")} of ${total}` : total} row${this.rows === 1 ? "" : "s"}`;
    this.more.hidden = rows.length <= this.most;
    this.more.textContent = `Show ${Math.min(this.page_rows, rows.length - this.most)} more`;
  }

  line(row) {
    const cells = this.visible.map((column) => column.cell(row));
    if (!this.opens) return element("tr", { className: "run" }, ...cells);
    const telling = this.columns.filter((column) => column.telling && column.has(row));
    const named = telling.map((column) => `${column.heading} ${column.texts[row]}`).join(", ") || `row ${row + 1}`;
    const aria = { label: `Details: ${named}`, expanded: String(this.opened.has(row)), controls: `${this.name}-${row}` };
    const opener = button("", { className: "opens", aria }, () => this.toggle(row, opener));
    return element("tr", { className: "run" }, element("td", { className: "opener" }, opener), ...cells);
  }

  toggle(row, opener) {
    const line = opener.closest("tr");
    if (this.opened.delete(row)) line.nextElementSibling.remove();
    else {
      this.opened.add(row);
      line.after(this.detail(row));
    }
    opener.setAttribute("aria-expanded", String(this.opened.has(row)));
  }

  detail(row) {
    const fact = (column) => element("div", {}, element("dt", { textContent: column.heading }), element("dd", {}, element(column.code ? "code" : "span", { textContent: column.texts[row] })));
    const texts = this.details.filter((column) => column.has(row)).map(fact);
    const groups = [...new Set(this.columns.map((column) => column.group))].filter(Boolean).map((group) => {
      const known = this.columns.filter((column) => column.group === group && column.has(row) && column.key !== "marks");
      return element("div", { hidden: !known.length }, element("p", { className: "group", textContent: group }), element("dl", {}, ...known.map(fact)));
    });
    const whole = element("div", { className: "whole" }, element("dl", { className: "texts", hidden: !texts.length }, ...texts), ...groups);
    return element("tr", { className: "detail", id: `${this.name}-${row}` }, element("td", { colSpan: this.visible.length + 1 }, whole));
  }

  download() {
    const all = [...this.columns, ...this.details];
    save(this.name, [all.map((column) => column.key), ...this.chosen.map((row) => all.map((column) => column.raw(row)))]);
  }
}

document.querySelectorAll("[data-grid]").forEach((place) => new Grid(place));
