// Grids: tables of any length with filters by text and column, sorting, pages, and rows that open. Their texts come from
// records, so they are always set as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const MOST_CHOICES = 24; // distinct texts of a column that are offered as a list

function element(name, properties = {}, ...children) {
  const { dataset, aria, ...plain } = properties;
  const node = Object.assign(document.createElement(name), plain);
  for (const [key, value] of Object.entries(aria ?? {})) node.setAttribute(`aria-${key}`, value);
  Object.assign(node.dataset, dataset ?? {});
  node.append(...children);
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
    this.style = ["right", "long", "code"].filter((name) => packed[name]).join(" ");
  }

  static of(packed, row) {
    return packed.all ? packed.all[row] : packed.of[packed.at[row]];
  }

  text(row) {
    return Column.of(this.texts, row);
  }

  // The value for a download: the figure as the record has it, or the text
  raw(row) {
    return this.numbers ? Column.of(this.values, row) : this.text(row);
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

class Grid {
  constructor(place) {
    const packed = data.grids[place.dataset.grid];
    Object.assign(this, { place, name: place.dataset.grid, total: packed.rows, pageRows: packed.page_rows, printedRows: packed.printed_rows });
    this.columns = packed.columns.map((column) => new Column(column));
    this.details = packed.details.map((column) => new Column(column));
    this.rows = Array.from({ length: this.total }, (_, row) => row);
    Object.assign(this, { page: 0, sort: null, descending: false, filters: new Map(), wanted: "", opened: new Set() });
    this.build();
    this.show();
  }

  build() {
    this.count = element("span", { className: "count", role: "status" });
    const search = element("input", { type: "search", placeholder: "Filter rows", aria: { label: "Filter rows by text" } });
    let waiting;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.filter(() => (this.wanted = search.value.trim().toLowerCase())), 120);
    });
    const columns = element("button", { type: "button", className: "plain", textContent: "Filter columns", aria: { pressed: "false" } });
    const csv = element("button", { type: "button", className: "plain", textContent: "Download rows (CSV)" });
    csv.addEventListener("click", () => this.download());
    const bar = element("div", { className: "bar" }, search, columns, csv, this.count);
    if (this.total <= 5) search.hidden = columns.hidden = true;

    this.body = element("tbody");
    this.heading = this.headings();
    this.filtering = this.filterRow();
    columns.addEventListener("click", () => {
      this.filtering.hidden = !this.filtering.hidden;
      columns.setAttribute("aria-pressed", String(!this.filtering.hidden));
    });
    const table = element("table", {}, element("thead", {}, this.heading, this.filtering), this.body);
    const scroll = element("div", { className: "scroll", tabIndex: 0, role: "region", aria: { label: "Table" } }, table);

    const step = (label, by) => {
      const button = element("button", { type: "button", className: "plain", textContent: label });
      button.addEventListener("click", () => {
        this.page += by;
        this.show();
        this.place.scrollIntoView({ block: "nearest" });
      });
      return button;
    };
    this.before = step("Previous", -1);
    this.after = step("Next", 1);
    this.pages = element("div", { className: "pages" }, (this.where = element("span")), this.before, this.after);
    this.place.append(bar, scroll, this.pages);
  }

  headings() {
    const cells = this.columns.map((column, index) => {
      const button = element("button", { type: "button", className: "sort", textContent: column.heading, title: column.key });
      button.addEventListener("click", () => this.order(index));
      const cell = element("th", { scope: "col", className: column.right ? "right" : "" }, button);
      cell.setAttribute("aria-sort", "none");
      return cell;
    });
    const first = this.details.length ? [element("td", { className: "opener" })] : [];
    return element("tr", { className: "heads" }, ...first, ...cells);
  }

  filterRow() {
    const cells = this.columns.map((column, index) => {
      const choices = column.choices();
      const label = `Filter ${column.heading}`;
      const options = choices.map((text) => element("option", { value: text, textContent: text }));
      const input = choices.length
        ? element("select", { aria: { label } }, element("option", { value: "", textContent: "all" }), ...options)
        : element("input", { placeholder: column.numbers ? ">1, 1..4" : "text", aria: { label } });
      input.addEventListener(choices.length ? "change" : "input", () => {
        this.filter(() => {
          if (input.value === "") this.filters.delete(index);
          else this.filters.set(index, column.test(input.value, choices.length > 0));
        });
      });
      return element("th", {}, input);
    });
    const first = this.details.length ? [element("td")] : [];
    return element("tr", { className: "filters", hidden: true }, ...first, ...cells);
  }

  order(index) {
    this.descending = this.sort === index && !this.descending;
    this.sort = index;
    [...this.heading.querySelectorAll("th")].forEach((cell, at) =>
      cell.setAttribute("aria-sort", at !== index ? "none" : this.descending ? "descending" : "ascending"));
    this.page = 0;
    this.rows = this.columns[index].sorted(this.rows, this.descending);
    this.show();
  }

  filter(change) {
    change();
    const words = this.wanted.split(/\s+/).filter(Boolean);
    const tests = [...this.filters.values()];
    const rows = Array.from({ length: this.total }, (_, row) => row).filter(
      (row) => tests.every((test) => test(row)) && words.every((word) => this.searchable(row).includes(word)));
    this.rows = this.sort === null ? rows : this.columns[this.sort].sorted(rows, this.descending);
    this.page = 0;
    this.show();
  }

  searchable(row) {
    this.texts ??= new Map();
    if (!this.texts.has(row)) {
      const all = [...this.columns, ...this.details.filter((column) => column.wide)];
      this.texts.set(row, all.map((column) => column.text(row)).join("\n").toLowerCase());
    }
    return this.texts.get(row);
  }

  show(most = this.pageRows) {
    const pages = Math.max(1, Math.ceil(this.rows.length / most));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const first = this.page * most;
    const shown = this.rows.slice(first, first + most);
    const lines = shown.flatMap((row) => (this.opened.has(row) ? [this.line(row), this.detail(row)] : [this.line(row)]));
    if (!lines.length) lines.push(element("tr", { className: "empty" }, element("td", { colSpan: this.columns.length + 1, textContent: "No row fits." })));
    this.body.replaceChildren(...lines);
    const all = this.total.toLocaleString("en");
    this.count.textContent = this.rows.length < this.total ? `${this.rows.length.toLocaleString("en")} of ${all} rows` : `${all} rows`;
    this.where.textContent = `Rows ${first + 1} to ${first + shown.length} of ${this.rows.length.toLocaleString("en")}`;
    this.pages.hidden = pages === 1;
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page === pages - 1;
  }

  line(row) {
    const cells = this.columns.map((column) => {
      const text = column.text(row);
      const cell = element("td", { className: column.style });
      if (column.key === "marks") cell.append(...marks(text));
      else cell.textContent = text;
      if (column.key === "status" && text !== "ok") cell.classList.add("bad");
      return cell;
    });
    if (this.details.length) {
      const button = element("button", { type: "button", className: "opens", aria: { label: "Details of this run", expanded: String(this.opened.has(row)) } });
      button.addEventListener("click", () => this.toggle(row, button));
      cells.unshift(element("td", { className: "opener" }, button));
    }
    return element("tr", { className: "run", dataset: { row } }, ...cells);
  }

  toggle(row, button) {
    const line = button.closest("tr");
    if (this.opened.delete(row)) line.nextElementSibling.remove();
    else {
      this.opened.add(row);
      line.after(this.detail(row));
    }
    button.setAttribute("aria-expanded", String(this.opened.has(row)));
  }

  detail(row) {
    const columns = this.details.filter((column) => !["-", ""].includes(column.text(row)));
    const rows = columns.map((column) => {
      const value = element(column.wide ? "code" : "span", { textContent: column.text(row) });
      return element("div", { className: column.wide ? "wide" : "" }, element("dt", { textContent: column.heading }), element("dd", {}, value));
    });
    const cell = element("td", { colSpan: this.columns.length + 1 }, element("dl", {}, ...rows));
    return element("tr", { className: "detail" }, cell);
  }

  download() {
    const all = [...this.columns, ...this.details];
    save(this.name, [all.map((column) => column.key), ...this.rows.map((row) => all.map((column) => column.raw(row)))]);
  }
}

const grids = [...document.querySelectorAll("[data-grid]")].map((place) => new Grid(place));
