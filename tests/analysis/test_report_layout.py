"""The layout of the page of `report` in a browser: figures with long names of settings,
places that become narrower, and paper.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.figures import vega
from analysis.report import page
from tests.analysis.test_report import build
from tests.helpers import records
from tests.helpers.report_view import View

SCREEN, PHONE = 1300, 390
# Settings that differ in many keys, as presets do; the last one differs in its last key only.
PRESETS: tuple[dict[str, Any], ...] = (
    {"precision": "fp32", "loader": "torch", "batch_size": 16, "lr": 0.1, "strategy": "ddp"},
    {"precision": "bf16", "loader": "batched", "batch_size": 32, "lr": 0.25, "strategy": "ddp_ds"},
    {"precision": "bf16", "loader": "batched", "batch_size": 32, "lr": 0.25, "strategy": "ddp_rr"},
)
KEPT_SHARE = 0.6  # The least share of a figure's place that its chart keeps beside a legend.
LABELS = ".drawing .role-legend-label text, .drawing .role-title text, .drawing .role-header text"
CHART_WIDTHS = """all => all.map(place => Math.max(
    ...[...place.querySelectorAll(".cell > g > path.background")].map(
        each => each.getBoundingClientRect().width)) / place.clientWidth)"""
DRAWN_WIDTHS = """all => all.map(place => [
    place.querySelector("svg").getBoundingClientRect().width,
    place.querySelector("svg").width.baseVal.value,
    place.clientWidth])"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of presets on one and on two GPUs."""
    folder = tmp_path_factory.mktemp("runs")
    for index, preset in enumerate(PRESETS):
        for gpus in (1, 2):
            total_s = (100.0 + 20 * index) / gpus**0.9
            record = records.vision(gpus=gpus, total_s=total_s, **preset)
            records.write(folder / f"{index}-{gpus}", record | records.accurate(0.9 + index / 100))
    page.write(folder / "report.html", build(folder))
    return folder / "report.html"


@pytest.mark.parametrize("width", [SCREEN, PHONE])
def test_long_names_of_settings_are_whole_and_leave_charts_most_of_their_place(
    browser: Any, report: Path, width: int
):
    view = View(browser, report, width)
    view.draw_all()
    labels = view.page.eval_on_selector_all(LABELS, "all => all.map(each => each.textContent)")
    assert any("ddp_rr" in label for label in labels)
    assert not any("…" in label for label in labels)
    shares = view.page.eval_on_selector_all("[data-plot=trade_off]", CHART_WIDTHS)
    assert min(shares) >= KEPT_SHARE
    view.sound()


def test_no_figure_is_cut_in_a_place_that_becomes_narrower(browser: Any, report: Path):
    view = View(browser, report)
    view.draw_all()
    view.page.evaluate("document.querySelector('main').style.width = '900px'")
    # Before they are drawn again, they are scaled.
    for shown, _, room in view.page.eval_on_selector_all(".drawing", DRAWN_WIDTHS):
        assert shown <= room
    view.until(
        lambda: all(
            drawn <= room
            for _, drawn, room in view.page.eval_on_selector_all(".drawing", DRAWN_WIDTHS)
        )
    )
    view.sound()


def test_without_a_chart_the_answer_takes_its_whole_place(browser: Any, tmp_path: Path):
    """A single setting has no trade-off."""
    records.write(tmp_path / "0", records.vision())
    page.write(tmp_path / "report.html", build(tmp_path))
    view = View(browser, tmp_path / "report.html")
    words, card = (
        view.page.locator(place).bounding_box()["width"]
        for place in (".recommendation .words", ".recommendation")
    )
    assert words > 0.9 * card
    view.sound()


def test_paper_begins_with_the_answer_and_has_no_control_to_choose(
    browser: Any, report: Path, tmp_path: Path
):
    view = View(browser, report)
    view.draw_all()
    assert view.page.locator(".chooser").count() == 1
    footer = view.page.inner_text("footer").split()
    view.page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
    view.page.emulate_media(media="print")
    assert not view.page.locator(".chooser").is_visible()
    view.sound()
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext is installed")
    command = ["pdftotext", "report.pdf", "-"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *_, last = printed.stdout.rstrip("\f").split("\f")
    assert "strategy=ddp" in first
    assert len(last.split()) > len(footer)


@pytest.mark.parametrize(
    ("scheme", "card", "least"), [("light", "#ffffff", 1.5), ("dark", "#1c2026", 2.0)]
)
def test_faint_marks_are_seen_on_either_page(scheme: str, card: str, least: float):
    """By their contrast with the page's cards, as WCAG 2 defines it."""

    def channels(color: str) -> Any:
        return np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])

    def luminance(color: Any) -> float:
        return float(np.dot((0.2126, 0.7152, 0.0722), ((color + 0.055) / 1.055) ** 2.4))

    assert card in (Path(page.FOLDER) / "page.css").read_text()
    for color in vega.SERIES_COLORS[scheme]:
        mixed = vega.FAINT * channels(color) + (1 - vega.FAINT) * channels(card)
        low, high = sorted(map(luminance, (mixed, channels(card))))
        assert (high + 0.05) / (low + 0.05) > least, color
