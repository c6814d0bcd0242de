// Grids: tables of any length with filters by text and column, sorting, pages, columns that a menu chooses, and rows that
// open.

const FEW = 5; // rows that need no filter

class Grid {
  constructor(place) {
    const packed = data.grids[place.dataset.grid];
    Object.assign(this, { place, name: place.dataset.grid, label: packed.label, total: packed.rows });
    Object.assign(this, { pageRows: packed.page_rows, printedRows: packed.printed_rows });
    this.columns = packed.columns.map((column) => new Column(column));
    this.details = packed.details.map((column) => new Column(column));
    this.rows = Array.from({ length: this.total }, (_, row) => row);
    Object.assign(this, { page: 0, sort: null, descending: false, filters: new Map(), wanted: "", opened: new Set(), chosen: false });
    this.build();
    this.lay();
    this.fit();
  }

  get visible() {
    return this.columns.filter((column) => column.visible);
  }

  // The parts of the table

  build() {
    this.count = element("span", { className: "count", role: "status" });
    const search = element("input", { type: "search", placeholder: "Filter rows", aria: { label: "Filter rows by text" } });
    let waiting;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.filter(() => (this.wanted = search.value.trim().toLowerCase())), 120);
    });
    const filters = button("Filter columns", { className: "plain", aria: { pressed: "false" } }, () => {
      this.filtering.hidden = !this.filtering.hidden;
      filters.setAttribute("aria-pressed", String(!this.filtering.hidden));
    });
    const csv = button("Download rows (CSV)", { className: "plain" }, () => this.download());
    if (this.total <= FEW) search.hidden = filters.hidden = true;
    const menu = this.columns.every((column) => column.shown) ? [] : [this.menu()];
    const bar = element("div", { className: "bar" }, search, ...menu, filters, csv, this.count);

    this.headingCells = new Map(this.columns.map((column) => [column, this.headingCell(column)]));
    this.filterCells = new Map(this.columns.map((column) => [column, this.filterCell(column)]));
    this.heading = element("tr", { className: "heads" });
    this.filtering = element("tr", { className: "filters", hidden: true });
    this.body = element("tbody");
    this.body.addEventListener("click", (event) => this.clicked(event));
    const table = element("table", {}, element("thead", {}, this.heading, this.filtering), this.body);
    this.scroll = element("div", { className: "scroll", tabIndex: 0, role: "region", aria: { label: `Table: ${this.label}` } }, table);
    this.pages = element("div", { className: "pages" }, (this.where = element("span")), (this.before = this.step("Previous", -1)), (this.after = this.step("Next", 1)));
    this.place.append(bar, this.scroll, this.pages);
  }

  step(label, by) {
    return button(label, { className: "plain" }, () => {
      this.page += by;
      this.show();
      this.place.scrollIntoView({ block: "nearest" });
    });
  }

  headingCell(column) {
    const sorts = button(column.heading, { className: "sort", title: column.key }, () => this.order(column));
    return element("th", { scope: "col", className: column.right ? "right" : "", aria: { sort: "none" } }, sorts);
  }

  filterCell(column) {
    const choices = column.choices();
    const label = `Filter ${column.heading}`;
    const options = choices.map((text) => element("option", { value: text, textContent: text }));
    const input = choices.length
      ? element("select", { aria: { label } }, element("option", { value: "", textContent: "all" }), ...options)
      : element("input", { placeholder: column.numbers ? `>1${column.unit}, 1..4${column.unit}` : "text", aria: { label } });
    input.addEventListener(choices.length ? "change" : "input", () => {
      this.filter(() => {
        if (input.value === "") this.filters.delete(column);
        else this.filters.set(column, column.test(input.value, choices.length > 0));
      });
    });
    return element("td", {}, input);
  }

  // Columns

  menu() {
    this.boxes = new Map();
    const groups = [...new Set(this.columns.map((column) => column.group))].map((group) => {
      const choices = this.columns.filter((column) => column.group === group).map((column) => {
        const box = element("input", { type: "checkbox", checked: column.visible });
        box.addEventListener("change", () => this.choose(() => (column.visible = box.checked)));
        this.boxes.set(column, box);
        return element("label", { title: column.key }, box, element("span", { textContent: column.heading }));
      });
      return element("fieldset", {}, element("legend", { textContent: group }), ...choices);
    });
    const reset = button("As at first", { className: "plain" }, () => {
      this.chosen = false;
      this.fit();
    });
    this.menuName = element("summary", { className: "plain" });
    const menu = element("details", { className: "menu" }, this.menuName, element("div", { className: "choices" }, ...groups, reset));
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      this.menuName.focus();
    });
    document.addEventListener("click", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
    return menu;
  }

  choose(change) {
    this.chosen = true;
    change();
    this.lay();
  }

  // Those that a page begins with, as far as they have room, until a person chooses
  fit() {
    if (this.chosen || !this.columns.some((column) => column.kept)) return;
    const fits = () => this.scroll.scrollWidth <= this.scroll.clientWidth + 1;
    this.columns.forEach((column) => (column.visible = column.shown && column.kept));
    this.lay();
    for (const column of this.columns.filter((each) => each.shown && !each.kept)) {
      column.visible = true;
      this.lay();
      column.visible = fits();
    }
    this.lay();
  }

  lay() {
    const first = () => (this.details.length ? [element("td", { className: "opener" })] : []);
    this.heading.replaceChildren(...first(), ...this.visible.map((column) => this.headingCells.get(column)));
    this.filtering.replaceChildren(...first(), ...this.visible.map((column) => this.filterCells.get(column)));
    this.boxes?.forEach((box, column) => (box.checked = column.visible));
    if (this.menuName) this.menuName.textContent = `Columns: ${this.visible.length} of ${this.columns.length}`;
    this.show();
  }

  // Rows

  order(column) {
    this.descending = this.sort === column && !this.descending;
    this.sort = column;
    this.headingCells.forEach((cell, each) =>
      cell.setAttribute("aria-sort", each !== column ? "none" : this.descending ? "descending" : "ascending"));
    this.page = 0;
    this.rows = column.sorted(this.rows, this.descending);
    this.show();
  }

  filter(change) {
    change();
    const words = this.wanted.split(/\s+/).filter(Boolean);
    const tests = [...this.filters.values()];
    const rows = Array.from({ length: this.total }, (_, row) => row).filter(
      (row) => tests.every((test) => test(row)) && words.every((word) => this.searchable(row).includes(word)));
    this.rows = this.sort === null ? rows : this.sort.sorted(rows, this.descending);
    this.page = 0;
    this.show();
  }

  searchable(row) {
    this.texts ??= new Map();
    if (!this.texts.has(row)) {
      this.texts.set(row, [...this.columns, ...this.details].map((column) => column.text(row)).join("\n").toLowerCase());
    }
    return this.texts.get(row);
  }

  show(most = this.pageRows) {
    const pages = Math.max(1, Math.ceil(this.rows.length / most));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const first = this.page * most;
    const shown = this.rows.slice(first, first + most);
    const lines = shown.flatMap((row) => (this.opened.has(row) ? [this.line(row), this.detail(row)] : [this.line(row)]));
    if (!lines.length) lines.push(element("tr", { className: "empty" }, element("td", { colSpan: this.visible.length + 1, textContent: "No row fits." })));
    this.body.replaceChildren(...lines);
    const all = this.total.toLocaleString("en");
    const counted = this.rows.length < this.total ? `${this.rows.length.toLocaleString("en")} of ${all}` : all;
    this.count.textContent = `${counted} row${this.total === 1 ? "" : "s"}`;
    this.where.textContent = `Rows ${first + 1} to ${first + shown.length} of ${this.rows.length.toLocaleString("en")}`;
    this.pages.hidden = pages === 1;
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page === pages - 1;
  }

  // A row in words, by the settings that tell it from others
  named(row) {
    const telling = this.columns.filter((column) => column.names && column.has(row));
    return telling.map((column) => `${column.heading} ${column.text(row)}`).join(", ") || `row ${row + 1}`;
  }

  line(row) {
    const cells = this.visible.map((column) => column.cell(row));
    if (!this.details.length) return element("tr", { className: "run", dataset: { row } }, ...cells);
    const aria = { label: `Details: ${this.named(row)}`, expanded: String(this.opened.has(row)), controls: `${this.name}-${row}` };
    const opens = button("", { className: "opens", aria }, () => this.toggle(row, opens));
    return element("tr", { className: "run openable", dataset: { row } }, element("td", { className: "opener" }, opens), ...cells);
  }

  // The whole row opens, unless the click was on something of its own, or text was selected
  clicked(event) {
    const line = event.target.closest("tr.openable");
    if (!line || event.target.closest("button, a, summary") || !document.getSelection().isCollapsed) return;
    this.toggle(Number(line.dataset.row), line.querySelector(".opens"));
  }

  toggle(row, opens) {
    const line = opens.closest("tr");
    if (this.opened.delete(row)) line.nextElementSibling.remove();
    else {
      this.opened.add(row);
      line.after(this.detail(row));
    }
    opens.setAttribute("aria-expanded", String(this.opened.has(row)));
  }

  detail(row) {
    const fact = (column, value) => element("div", {}, element("dt", { textContent: column.heading }), element("dd", {}, value));
    const texts = this.details.filter((column) => column.has(row)).map((column) => fact(column, element("code", { textContent: column.text(row) })));
    const groups = [...new Set(this.columns.map((column) => column.group))].map((group) => {
      const known = this.columns.filter((column) => column.group === group && column.has(row) && column.key !== "marks");
      const facts = known.map((column) => fact(column, element("span", { textContent: column.text(row) })));
      return element("div", { hidden: facts.length === 0 }, element("p", { className: "group", textContent: group }), element("dl", {}, ...facts));
    });
    const whole = element("div", { className: "whole" }, element("dl", { className: "texts", hidden: texts.length === 0 }, ...texts), ...groups);
    return element("tr", { className: "detail", id: `${this.name}-${row}` }, element("td", { colSpan: this.visible.length + 1 }, whole));
  }

  download() {
    const all = [...this.columns, ...this.details];
    save(this.name, [all.map((column) => column.key), ...this.rows.map((row) => all.map((column) => column.raw(row)))]);
  }
}

const grids = [...document.querySelectorAll("[data-grid]")].map((place) => new Grid(place));
