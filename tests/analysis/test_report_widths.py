"""The page of `report` on a screen and on a phone: what is in sight, and that letters can be read."""

from pathlib import Path
from typing import Any

import pytest

from analysis.report import page
from tests.analysis.test_predictions import scaled
from tests.analysis.test_report import build, sweep
from tests.analysis.test_timelines import sampled
from tests.helpers import grids, records
from tests.helpers.report_view import View

SCREEN, PHONE = 1300, 390
LEAST_LETTERS_PX = 10
EXPERIMENTS = ("table2", "image_size", "loss_curves", "vision_metrics", "peak_memory")
# Words of buttons and headings that are broken within themselves
BROKEN = """
() => {
  const broken = [];
  for (const node of document.querySelectorAll("button, summary, h1, h2, h3, h4, th, caption, dt, legend")) {
    const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.textContent.matchAll(/[^\\s]+/g)) {
        if (word[0].length > 24) continue;
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word[0]);
      }
    }
  }
  return broken;
}
"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every sort of figure: experiments, timelines, predictions, failures, training and tuning."""
    folder = tmp_path_factory.mktemp("runs")
    for name in EXPERIMENTS:
        grids.fill(folder, name, (0,) if name != "table2" else (0, 1))
    for gpus in (1, 2):
        for loader in ("torch", "dali"):
            own = {"dataset": "images", "strategy": "ddp_ds", "dataset__image_size": 300, "loader": loader}
            sampled(folder / "gpus" / f"{loader}{gpus}", gpus=gpus, **own)
    for gpus in (1, 2):
        steps = records.steps([0.1] * 100, per_epoch=100) | {"loss": [9.0 / (1 + step) for step in range(100)]}
        records.write(folder / "tuned" / str(gpus), records.llm(gpus=gpus, seed=gpus), steps)
    path = sweep(scaled(folder)) / "report.html"
    page.write(path, build(folder))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(SCREEN, "light"), (PHONE, "dark")])
def test_figures_fit_their_place_with_letters_that_can_be_read(browser: Any, everything: Path, width: int, scheme: str):
    view = View(browser, everything, width, scheme)
    view.draw_all()
    letters_px = view.letters_px()
    assert len(letters_px) > 1000 and min(letters_px) >= LEAST_LETTERS_PX
    assert view.wider_than_their_place(".drawing") == []
    fill = "all => all.map(each => each.getAttribute('fill'))"
    marks = view.page.eval_on_selector_all("#figure-predicted .mark-symbol.role-mark path", fill)
    assert marks.count("transparent") == marks.count("#EEEEEE" if scheme == "dark" else "#1A1A1A") > 0
    view.sound()


@pytest.mark.parametrize("width", [SCREEN, PHONE])
def test_nothing_but_tables_is_wider_than_the_window(browser: Any, everything: Path, width: int):
    view = View(browser, everything, width)
    view.page.evaluate("document.querySelectorAll('main details').forEach(each => (each.open = true))")
    view.page.locator("[data-grid=runs] .opens").first.click()
    assert view.page.evaluate(BROKEN) == []
    assert set(view.wider_than_their_place("main div:not(.drawing), main p, main dl, main details")) <= {"scroll"}
    edges = "all => all.slice(0, 3).map(each => [each.innerText, each.getBoundingClientRect().right])"
    first = dict(view.page.eval_on_selector_all("[data-grid=runs] .sort", edges))
    assert [*first] == ["status", "total s", "accuracy"] and max(first.values()) <= width - 16
    bar = "getComputedStyle(document.querySelector('.scroll'), '::-webkit-scrollbar').height"
    assert view.page.evaluate(bar) == "10px"  # in sight, also where the system hides bars
    view.sound()
