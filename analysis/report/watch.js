// Update a page that is served: show the cells that run now, and replace the page when runs have ended. What the reader
// has typed, ticked, opened, sorted and focused is kept, and so is the scroll position.

const EVERY_MS = 1500; // The interval between two requests.
const STILL_MS = 2000; // The page is replaced only this long after the last key or touch, so that nobody is interrupted.
const SETTLES_MS = 3000; // For this long, figures may still be drawn above the part that is being read.
const KEPT = `page ${location.pathname}`;
const running = document.getElementById("running");
const all = (selector) => [...document.querySelectorAll(`main :is(${selector})`)];
let touched_ms = -Infinity;

// Return the name of a control or a fold, which is the same on the next page.
function nameOf(node) {
  const place = node.closest("[data-grid], section[id], figure[id]");
  const text = node.ariaLabel ?? (node.labels?.[0] ?? node.querySelector("summary") ?? node).textContent;
  return [place.dataset.grid ?? place.id, node.tagName, node.type, text.replace(/\d+/g, "")].join(" ");
}

// Name a row by its run, or by its setting's first run. The name stays the same when rows are added.
function nameOfRow(grid, row) {
  const folders = grid.details.find((column) => column.key === "folder")?.texts;
  return `${grid.parents[row] == null} ${folders?.[grid.parts[row]?.[0] ?? row] ?? grid.named(row)}`;
}

// Return what the reader did with the page.
function kept() {
  const part = all("[id]").findLast((node) => node !== running && node.offsetParent && node.getBoundingClientRect().top < 100);
  const rows = (grid, chosen) => [...chosen].map((row) => nameOfRow(grid, row));
  return {
    tables: grids.map((grid) => [grid.name, rows(grid, grid.opened), rows(grid, grid.ticked), grid.sort?.key, grid.descending]),
    chosen: grids.flatMap((grid) => grid.folders),
    inputs: all("input:not(td input), select").map((node) => [nameOf(node), node.value, node.checked]),
    folds: all("details[open]").map(nameOf),
    focused: document.activeElement.matches("main *") ? nameOf(document.activeElement) : null,
    part: part && scrollY > 0 ? [part.id, part.getBoundingClientRect().top] : null,
  };
}

function restore({ tables, chosen, inputs, folds, focused, part }) {
  const values = new Map(inputs.map(([name, ...value]) => [name, value]));
  for (const node of all("input:not(td input), select")) {
    const [value, checked] = values.get(nameOf(node)) ?? [node.value, node.checked];
    if (node.value === value && node.checked === checked) continue;
    Object.assign(node, { value, checked });
    for (const kind of ["input", "change"]) node.dispatchEvent(new Event(kind, { bubbles: true }));
  }
  for (const [name, opened, ticked, sort, descending] of tables) {
    const grid = grids.find((each) => each.name === name);
    if (!grid) continue;
    const rows = Array.from({ length: grid.rows }, (_, row) => row);
    rows.filter((row) => opened.includes(nameOfRow(grid, row))).forEach((row) => grid.opened.add(row));
    grid.order(grid.columns.find((column) => column.key === sort) ?? null, descending);
    rows.filter((row) => ticked.includes(nameOfRow(grid, row))).forEach((row) => grid.tick(row, true));
  }
  document.dispatchEvent(new CustomEvent("choose", { detail: { folders: chosen } }));
  for (const fold of all("details")) fold.open ||= folds.includes(nameOf(fold));
  if (focused) all("button, input, select, summary, [tabindex]").find((node) => nameOf(node) === focused)?.focus({ preventScroll: true });
  const place = part && document.getElementById(part[0]);
  const began_ms = performance.now();
  (function hold() {
    if (!place || touched_ms > began_ms || performance.now() > began_ms + SETTLES_MS) return;
    scrollBy(0, place.getBoundingClientRect().top - part[1]);
    requestAnimationFrame(hold);
  })();
}

function show(text, cells) {
  const status = running.querySelector("[role=status]");
  if (status.textContent !== text) status.textContent = text; // Otherwise, a screen reader would repeat it.
  const line = ({ sweep, setting, share, facts }) => {
    const bar = element("progress", { aria: { label: `Progress: ${sweep} ${setting}` }, ...(share === null ? {} : { value: share }) });
    return element("li", {}, element("span", {}, `${sweep} `, element("code", {}, setting)), bar, element("span", { className: "quiet" }, facts.join(" · ")));
  };
  running.querySelector("ul").replaceChildren(...cells.map(line));
}

async function ask() {
  try {
    const { version, running: cells, said } = await (await fetch(`${location.pathname.replace(/\/$/, "")}/state`)).json();
    show(said.join(" "), cells);
    const isRead = performance.now() - touched_ms < STILL_MS || !getSelection().isCollapsed;
    if (String(version) !== running.dataset.version && (document.hidden || !isRead)) {
      sessionStorage.setItem(KEPT, JSON.stringify(kept()));
      return location.reload();
    }
  } catch {
    show(data.said.no_answer, []);
  }
  setTimeout(ask, EVERY_MS);
}

for (const kind of ["keydown", "pointerdown", "wheel", "touchmove"]) document.addEventListener(kind, () => (touched_ms = performance.now()), { passive: true });
history.scrollRestoration = "manual";
const before = sessionStorage.getItem(KEPT);
sessionStorage.removeItem(KEPT);
if (before) restore(JSON.parse(before));
ask();
