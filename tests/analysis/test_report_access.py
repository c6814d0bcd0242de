"""The page of `report` for those who use a keyboard or a screen reader, and by axe-core's rules."""

import re
from pathlib import Path
from typing import Any

import pytest

from analysis.report import page
from tests.analysis.test_predictions import scaled
from tests.analysis.test_report import build, sweep
from tests.helpers.report_view import View

SEVERE = ("serious", "critical")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    path = sweep(scaled(folder)) / "report.html"
    page.write(path, build(folder))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (390, "dark")])
def test_axe_finds_no_serious_fault(browser: Any, report: Path, width: int, scheme: str):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -r requirements-dev.txt")
    view = View(browser, report, width, scheme)
    for role, name in (("region", "Headlines"), ("region", "Table: all runs"), ("img", "Predicted against measured")):
        assert view.page.get_by_role(role, name=name).count() >= 1, name
    view.draw_all()
    view.page.locator("[data-grid=runs] .opens").first.click()
    view.page.locator("[data-grid=runs]").get_by_role("checkbox").check()
    openers = view.page.get_by_role("button", name=re.compile("^Details: ")).all()
    assert any("precision fp64" in (opener.get_attribute("aria-label") or "") for opener in openers)
    found = axe.Axe().run(view.page).response  # which finds what has no name
    assert len(found["passes"]) > 25  # it looked
    severe = [rule for rule in found["violations"] if rule["impact"] in SEVERE]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]][:3]) for rule in severe] == []


def test_rows_and_all_columns_need_no_mouse(browser: Any, report: Path):
    view = View(browser, report)
    keyboard, opener = view.page.keyboard, view.page.locator("[data-grid=runs] .opens").first
    opener.focus()
    for key in ("Enter", "Space"):
        keyboard.press(key)
        assert opener.get_attribute("aria-expanded") == "true" and view.page.locator(".detail").is_visible()
        assert view.page.locator(f"#{opener.get_attribute('aria-controls')}").count() == 1
        keyboard.press(key)
        assert opener.get_attribute("aria-expanded") == "false" and not view.page.locator(".detail").count()

    before, box = view.headings(), view.page.locator("[data-grid=runs]").get_by_role("checkbox", name="columns")
    box.focus()
    keyboard.press("Space")
    assert {*view.headings()} > {*before, "step_s"}
    keyboard.press("Space")
    assert view.headings() == before
    view.sound()


def test_a_click_anywhere_opens_a_row_unless_text_is_selected(browser: Any, report: Path):
    view = View(browser, report)
    cell = view.page.locator("[data-grid=runs] tr.run").first.locator("td").nth(2)
    cell.click()
    assert "Settings" in view.page.inner_text(".detail")
    view.page.locator(".detail dd").first.click()
    assert view.page.locator(".detail").count() == 1  # an opened row stays open while it is read
    cell.click()
    assert not view.page.locator(".detail").count()
    cell.evaluate("each => document.getSelection().selectAllChildren(each)")
    cell.dispatch_event("click")
    assert not view.page.locator(".detail").count()
    view.sound()
