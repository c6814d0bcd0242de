"""The page of `report` in a browser that is offline: where the browser is,
and what tests ask of a page.
"""

import csv
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multicard.measure.timing import clock_s
from tests.conftest import PATIENCE_S

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
ARGUMENTS = (
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
)
ARGUMENTS = tuple(f"--{word}" for word in (*ARGUMENTS, "disable-component-update", "disable-sync"))
LETTERS = "t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a"


def launched() -> Iterator[Any]:
    """A browser without a window; the test is skipped where none is installed."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))


class View:
    """A page, and all that it said or asked for."""

    def __init__(
        self, browser: Any, report: Path | str, width: int = 1300, scheme: str = "light"
    ) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.width = width
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(report.as_uri() if isinstance(report, Path) else report)

    def rows(self) -> list[list[str]]:
        cells = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
        return self.page.eval_on_selector_all("[data-grid=training] tr.run", cells)

    def headings(self) -> list[str]:
        return self.page.eval_on_selector_all(
            "[data-grid=training] .sort", "all => all.map(each => each.innerText)"
        )

    def column(self, heading: str) -> list[str]:
        place = self.headings().index(heading) + 2  # beside what opens a row, and what ticks it
        return [row[place] for row in self.rows()]

    def sort(self, heading: str) -> Any:
        return self.page.locator("[data-grid=training] .sort", has_text=re.compile(f"^{heading}$"))

    def filter(self, wanted: str, count: int) -> None:
        """Type a filter, and see so many rows of runs."""
        self.page.fill("[data-grid=training] input[type=search]", wanted)
        shown = "rows => rows.map(row => row.innerText)"
        rows = self.page.eval_on_selector_all("[data-grid=training] tr.run", shown)
        assert len(rows) == count, (wanted, rows)

    def until(self, true: Callable[[], bool]) -> None:
        """Wait; not by Playwright's own means, which need the eval that the page forbids."""
        deadline_s = clock_s() + PATIENCE_S
        while not true():
            assert clock_s() < deadline_s
            self.page.wait_for_timeout(20)

    def downloaded(self, button: Any, folder: Path) -> list[dict[str, str]]:
        """The rows of the CSV file that a button hands out."""
        with self.page.expect_download() as download:
            button.click()
        download.value.save_as(folder / "rows.csv")
        with (folder / "rows.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def draw_all(self) -> None:
        self.page.evaluate(
            "document.querySelectorAll('main details').forEach(each => (each.open = true))"
        )
        for figure in self.page.locator(".drawing").all():
            figure.scroll_into_view_if_needed()
        self.until(lambda: self.page.locator(".drawing:not(.done)").count() == 0)

    def letters_px(self) -> list[float]:
        """The size of every text in a figure, as it is on the screen."""
        return self.page.eval_on_selector_all(".drawing svg text", f"all => all.map({LETTERS})")

    def wider_than_their_place(self, selector: str) -> list[str]:
        wider = (
            "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).map(each =>"
            " each.className)"
        )
        return self.page.eval_on_selector_all(selector, wider)

    def sound(self) -> None:
        """No error, no request but for the file, no script of a stranger, no sideways scrolling."""
        assert (
            self.messages == []
            and len(self.requests) == 1
            and self.requests[0].startswith("file://")
        )
        assert self.page.title() == "Runs"
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width
        self.page.close()
