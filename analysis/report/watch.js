// A page that is served: the cells that run now, and the page anew when runs have ended. Once the reader has touched it,
// it stays as it is until it is reloaded: nobody is interrupted, and what was typed, ticked or opened is not lost.

const EVERY_MS = 1500; // between two questions
const running = document.getElementById("running");
let isTouched = false;

function show(text, cells) {
  const status = running.querySelector("[role=status]");
  if (status.textContent !== text) status.textContent = text; // else a screen reader would say it again and again
  const line = ({ sweep, setting, share, facts }) => {
    const bar = element("progress", { aria: { label: `Progress: ${sweep} ${setting}` }, ...(share === null ? {} : { value: share }) });
    return element("li", {}, element("span", {}, `${sweep} `, element("code", {}, setting)), bar, element("span", { className: "quiet" }, facts.join(" · ")));
  };
  running.querySelector("ul").replaceChildren(...cells.map(line));
}

async function ask() {
  try {
    const { version, running: cells, notes } = await (await fetch(`${location.pathname.replace(/\/$/, "")}/state`)).json();
    const isNew = String(version) !== running.dataset.version;
    if (isNew && !isTouched) return location.reload();
    const state = cells.length ? `Running now: ${cells.length}.` : "Nothing runs now; new runs appear here by themselves.";
    show([isNew ? "There are new runs: reload the page to see them." : state, ...notes].join(" "), cells);
  } catch {
    show("No answer from the command that serves this page: it shows what was measured until it ended.", []);
  }
  setTimeout(ask, EVERY_MS);
}

for (const kind of ["keydown", "pointerdown", "wheel", "touchmove"]) document.addEventListener(kind, () => (isTouched = true), { passive: true });
ask();
