"""The page of `report` in a browser that is offline."""

import csv
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.report import page
from analysis.report.blocks import ClaimTable, Plot
from multicard.measure.timing import clock_s
from tests import records
from tests.conftest import PATIENCE_S
from tests.test_analysis_predictions import scaled
from tests.test_analysis_report import EVIL, ROWS, THEMES, build, inlined, strangers_section, sweep

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
ARGUMENTS = tuple(f"--{word}" for word in (*ARGUMENTS, "disable-component-update", "disable-sync"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of some 200 runs, more than a page of them."""
    folder = sweep(tmp_path_factory.mktemp("runs"))
    for seed in range(1, 200):
        records.write(folder / "seeds" / str(seed), records.vision(seed=seed, total_s=1000.0 + seed))
    whole = build(folder)
    sections = [section for section in whole.sections if section.name not in ("settings", "papers", "claims")]
    path = folder / "report.html"
    page.write(path, replace(whole, sections=[*sections, strangers_section()], themes=THEMES))
    return path


class View:
    """A page, and all that it said or asked for."""

    def __init__(self, browser: Any, report: Path, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(report.as_uri())

    def rows(self) -> list[list[str]]:
        cells = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
        return self.page.eval_on_selector_all("[data-grid=runs] tr.run", cells)

    def column(self, heading: str) -> list[str]:
        names = self.page.eval_on_selector_all("[data-grid=runs] .sort", "all => all.map(each => each.innerText)")
        return [row[names.index(heading) + 1] for row in self.rows()]

    def sort(self, heading: str) -> Any:
        return self.page.locator("[data-grid=runs] .sort", has_text=re.compile(f"^{heading}$"))

    def until(self, true: Callable[[], bool]) -> None:
        """Wait; not by Playwright's own means, which need the eval that the page forbids."""
        deadline_s = clock_s() + PATIENCE_S
        while not true():
            assert clock_s() < deadline_s
            self.page.wait_for_timeout(20)

    def draw_all(self) -> None:
        self.page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = true))")
        for figure in self.page.locator(".drawing").all():
            figure.scroll_into_view_if_needed()
        self.until(lambda: self.page.locator(".drawing:not(.done)").count() == 0)

    def sound(self) -> None:
        """No error, no request but for the file, no script of a stranger."""
        assert self.messages == [] and len(self.requests) == 1 and self.requests[0].startswith("file://")
        assert self.page.title() == "Runs"
        self.page.close()


def test_rows_sort_filter_page_and_open(browser: Any, report: Path):
    view = View(browser, report)
    assert len(view.rows()) == 50 and "210 rows" in view.page.inner_text("[data-grid=runs] .count")
    view.sort("total_s").click()
    times = [float(text.replace(",", "")) for text in view.column("total_s")]
    assert times == sorted(times) and times[0] == pytest.approx(100 / 4**0.9, abs=0.05)
    view.sort("total_s").focus()
    view.page.keyboard.press("Enter")
    assert view.column("total_s")[0] == "1,199.0"
    assert view.page.get_attribute("[data-grid=runs] th[aria-sort=descending]", "scope") == "col"
    view.page.locator("[data-grid=runs] .pages button", has_text="Next").click()
    assert view.column("total_s")[0] == "1,149.0"

    view.page.fill("[data-grid=runs] input[type=search]", "fp16 grid")
    view.until(lambda: len(view.rows()) == 3)
    view.page.fill("[data-grid=runs] input[type=search]", "")
    view.page.locator("[data-grid=runs] button", has_text="Filter columns").click()
    view.page.select_option("[aria-label='Filter precision']", "fp64")
    view.page.select_option("[aria-label='Filter gpus']", "4")
    view.until(lambda: len(view.rows()) == 1)
    view.page.select_option("[aria-label='Filter gpus']", "")
    view.page.fill("[data-grid=runs] [aria-label='Filter total_s']", "100..250")
    assert len(view.rows()) == 2
    view.page.fill("[data-grid=runs] [aria-label='Filter total_s']", ">=350")
    assert len(view.rows()) == 1

    opener = view.page.locator("[data-grid=runs] .opens").first
    opener.press("Enter")
    detail = view.page.inner_text("[data-grid=runs] .detail")
    assert "python train_vision.py precision=fp64" in detail and str(report.parent / "grid/fp64-1") in detail
    assert opener.get_attribute("aria-expanded") == "true" and not view.page.locator(".detail a").count()
    opener.press("Enter")
    assert not view.page.locator(".detail").count()
    view.sound()


def test_failed_runs_open_with_their_cause_as_text(browser: Any, report: Path):
    view = View(browser, report)
    view.page.fill("[data-grid=runs] input[type=search]", "oom")
    view.until(lambda: len(view.rows()) == 1)
    assert view.column("status") == ["oom"] and view.column("total_s") == ["-"]
    view.page.locator("[data-grid=runs] .opens").click()
    assert f"out of memory {EVIL}" in view.page.inner_text(".detail")
    view.page.fill("[data-grid=runs] input[type=search]", "tf32")
    view.until(lambda: view.column("name") == [EVIL])
    view.sound()


def test_every_figure_is_drawn_and_hands_out_its_data(browser: Any, report: Path, tmp_path: Path):
    view = View(browser, report)
    count = view.page.locator(".drawing").count()
    assert count == len(inlined(report.read_text())["plots"]) == 2
    assert view.page.locator(".drawing svg").count() < count  # not before they are near
    view.draw_all()
    for figure in view.page.locator(".drawing").all():
        assert figure.locator("svg").count() == 1
        assert figure.locator("path[aria-roledescription=bar]").count() == 6
    view.page.locator("#figure-bars path[aria-roledescription=bar]").first.hover()
    view.page.wait_for_selector(".tip")
    assert EVIL in view.page.inner_text(".tip")
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
    view.sound()


def test_the_programs_own_figures_and_verdicts(browser: Any, tmp_path: Path):
    report = build(sweep(tmp_path))
    page.write(tmp_path / "report.html", report)
    names = {block.name for block in report.blocks() if isinstance(block, Plot)}
    assert names > {"table2", "efficiency", "phases", "losses"}
    claims = [row for block in report.blocks() if isinstance(block, ClaimTable) for row in block.rows]
    faster = next(claim for claim in claims if "fp32 trains 54 to 68 % faster" in claim.says)
    assert faster.figures and faster.places[0] == "2503.15252, Table 2"
    assert all(claim.command for claim in claims if claim.tone == "none")
    view = View(browser, tmp_path / "report.html")
    view.draw_all()
    drawn = view.page.eval_on_selector_all(
        ".drawing svg", "all => all.map(each => each.closest('.drawing').dataset.plot)"
    )
    assert set(drawn) == names
    view.sound()


def test_the_theme_is_the_systems_until_the_button_says_otherwise(browser: Any, report: Path):
    colour = "getComputedStyle(document.body).backgroundColor"
    label = "document.querySelector('#figure-bars .role-axis-label text').getAttribute('fill')"
    view = View(browser, report, scheme="dark")
    view.draw_all()
    dark = view.page.evaluate(colour)
    assert view.page.evaluate(label) == "#eee" and view.page.inner_text("#theme") == "Light theme"
    view.page.click("#theme")
    view.until(lambda: view.page.evaluate(label) == "#111")
    light = view.page.evaluate(colour)
    assert light != dark
    view.page.click("#theme")
    view.until(lambda: view.page.evaluate(label) == "#eee")
    assert view.page.evaluate(colour) == dark
    view.sound()


def test_a_phone_does_not_scroll_sideways_but_within_tables(browser: Any, report: Path):
    view = View(browser, report, width=390)
    view.draw_all()
    view.page.locator("[data-grid=runs] .opens").first.click()
    assert view.page.evaluate("document.documentElement.scrollWidth") == 390
    wider = "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.className)"
    assert view.page.eval_on_selector_all("main *:not(table *):not(svg *)", wider).count("scroll") >= 1
    assert set(view.page.eval_on_selector_all("main div, main p, main figure", wider)) == {"scroll"}
    boxes = "all => all.map(each => Math.round(each.getBoundingClientRect().x))"
    assert len(set(view.page.eval_on_selector_all("#figure-bars .role-axis-title", boxes))) <= 3  # below each other
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
    for control in ("nav", "#theme", "[data-grid=runs] .bar", "[data-csv=bars]"):
        assert not view.page.locator(control).first.is_visible()
    assert view.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    view.sound()


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (390, "dark")])
def test_predictions_can_be_read_on_a_screen_and_on_a_phone(browser: Any, tmp_path: Path, width: int, scheme: str):
    report = build(scaled(tmp_path))
    page.write(tmp_path / "report.html", report)
    view = View(browser, tmp_path / "report.html", width, scheme)
    view.page.evaluate("document.querySelectorAll('#predictions details').forEach(each => (each.open = true))")
    drawing = "#predictions .drawing"
    view.page.locator(drawing).scroll_into_view_if_needed()
    view.until(lambda: view.page.locator(f"{drawing}.done").count() == 1)
    size = "t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a"
    sizes = view.page.eval_on_selector_all(f"{drawing} svg text", f"all => all.map({size})")
    assert len(sizes) > 40 and min(sizes) >= 10
    assert view.page.evaluate("document.documentElement.scrollWidth") == width
    fill = "all => all.map(each => each.getAttribute('fill'))"
    marks = view.page.eval_on_selector_all(f"{drawing} .mark-symbol.role-mark path", fill)
    assert marks.count("transparent") == marks.count("#EEEEEE" if scheme == "dark" else "#1A1A1A") == 2 * 4 * 4
    view.sound()
