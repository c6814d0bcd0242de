"""The page of `report` in a browser that is offline."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.report import page
from tests.analysis.test_report import EVIL, ROWS, THEMES, build, inlined, strangers_section, sweep
from tests.helpers import records
from tests.helpers.report_view import View


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of some 200 runs, more than a page of them."""
    folder = sweep(tmp_path_factory.mktemp("runs"))
    for number in range(1, 200):
        seed = number if number > 1 else 20231121  # more than seven digits
        records.write(folder / "seeds" / str(number), records.vision(seed=seed, total_s=1000.0 + number))
    whole = build(folder)
    sections = [section for section in whole.sections if section.name not in ("settings", "papers", "claims")]
    path = folder / "report.html"
    page.write(path, replace(whole, sections=[*sections, strangers_section()], themes=THEMES))
    return path


def test_rows_sort_filter_page_and_open(browser: Any, report: Path):
    view = View(browser, report)
    assert len(view.rows()) == 50 and "210 rows" in view.page.inner_text("[data-grid=runs] .count")
    view.sort("total s").click()
    times = [float(text.replace(",", "")) for text in view.column("total s")]
    assert times == sorted(times) and times[0] == pytest.approx(100 / 4**0.9, abs=0.05)
    view.sort("total s").focus()
    view.page.keyboard.press("Enter")
    assert view.column("total s")[0] == "1,199.0"
    assert view.page.get_attribute("[data-grid=runs] th[aria-sort=descending]", "scope") == "col"
    view.page.get_by_role("button", name="Show 50 more").first.click()
    assert len(view.rows()) == 100

    for wanted, count in (("fp16 grid", 3), ("precision=fp64 gpus=4", 1), ("total_s>=100 totals<=250 grid", 4)):
        view.filter(wanted, count)
    view.filter("precision=fp64 gpus=1", 1)
    opener = view.page.locator("[data-grid=runs] .opens").first
    opener.press("Enter")
    detail = view.page.inner_text("[data-grid=runs] .detail")
    assert "python train_vision.py precision=fp64" in detail and str(report.parent / "grid/fp64-1") in detail
    assert opener.get_attribute("aria-expanded") == "true" and not view.page.locator(".detail a").count()
    opener.press("Enter")
    assert not view.page.locator(".detail").count()
    view.filter("oom", 1)
    assert view.column("status") == ["oom"]
    assert view.column("total s") == ["-"]
    view.page.locator("[data-grid=runs] .opens").click()
    assert f"out of memory {EVIL}" in view.page.inner_text(".detail")
    view.sound()


def test_filters_compare_figures_with_their_units(browser: Any, tmp_path: Path):
    shares, sizes = (0.985, 0.991, 0.97, 0.96, 0.95, 0.94), (8e8, 1.2e10, 25_769_803_776, 9e8, 7e8, 6e8)
    for number, (share, memory_bytes) in enumerate(zip(shares, sizes, strict=True)):
        record = records.vision(seed=number, test_accuracy=share, peak_memory_bytes={"max": int(memory_bytes)})
        records.write(tmp_path / str(number), record)
    page.write(tmp_path / "report.html", build(tmp_path))
    view = View(browser, tmp_path / "report.html")
    for wanted, count in (
        ("accuracy>98%", 2),
        ("accuracy=98.5%", 1),
        ("test_accuracy>=0.97 accuracy<=99%", 2),
        ("peakmemory>10GB", 2),
        ("peak_memory_bytes<1GB", 4),
        ("peakmemory>=650MB peakmemory<=13GB", 4),
        ("peakmemory>much", 0),
    ):
        view.filter(wanted, count)
    view.sound()


def test_every_figure_is_drawn_and_hands_out_its_data(browser: Any, report: Path, tmp_path: Path):
    view = View(browser, report)
    count = view.page.locator(".drawing").count()
    assert count == len(inlined(report.read_text())["plots"]) == 2
    assert view.page.locator(".drawing svg").count() < count  # not before they are near
    view.draw_all()
    for figure in view.page.locator(".drawing").all():
        assert figure.locator("svg").count() == 1
        assert figure.locator(".mark-rect.role-mark path").count() == 6
    view.page.locator("#figure-bars .mark-rect.role-mark path").first.hover()
    view.until(lambda: EVIL in (view.page.get_attribute("#figure-bars .drawing", "title") or ""))
    with view.page.expect_download() as download:
        view.page.click("[data-csv=bars]")
    download.value.save_as(tmp_path / "bars.csv")
    with (tmp_path / "bars.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{key: f"{value:g}" if key != "label" else value for key, value in row.items()} for row in ROWS]
    with view.page.expect_download() as download:
        view.page.locator("[data-grid=runs] button", has_text="Download").click()
    download.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="") as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 210 and {run["total_s"] for run in runs} > {"400", "1199", ""}
    assert [run["seed"] for run in runs].count("20231121") == 1
    view.sound()


def test_the_theme_is_the_systems(browser: Any, report: Path):
    colour = "getComputedStyle(document.body).backgroundColor"
    label = "document.querySelector('#figure-bars .role-axis-label text').getAttribute('fill')"
    view = View(browser, report, scheme="dark")
    view.draw_all()
    dark = view.page.evaluate(colour)
    assert view.page.evaluate(label) == "#eee"
    view.page.emulate_media(color_scheme="light")
    view.until(lambda: view.page.evaluate(label) == "#111")
    assert view.page.evaluate(colour) != dark
    view.sound()


def test_print_is_light_with_every_figure_and_without_controls(browser: Any, report: Path):
    view = View(browser, report, scheme="dark")
    printed = view.page.pdf(format="A4", print_background=True)
    assert view.page.locator(".drawing svg").count() == view.page.locator(".drawing").count()
    whole = View(browser, report)
    whole.draw_all()
    whole.page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = false))")
    again = whole.page.pdf(format="A4", print_background=True)
    assert abs(len(printed) - len(again)) < 0.02 * len(again)  # drawn before it was printed, and light
    whole.sound()
    view.page.emulate_media(media="print")
    for control in ("nav", "[data-grid=runs] .bar", "[data-csv=bars]"):
        assert not view.page.locator(control).first.is_visible()
    assert view.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    view.sound()
