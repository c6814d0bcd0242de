"""`report`: what the page holds, read from its HTML and in a browser that is offline."""

import csv
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis import report as analysis_report
from analysis.__main__ import main
from analysis.commands.list_runs import lines
from analysis.figures.vega import Figure
from analysis.report import page, rerun_commands, runs_section, settings_section
from analysis.report.blocks import ClaimCard, Fold, PlainTable, Plot, Report, Section
from analysis.report.run_details import read
from analysis.runs import load
from multicard.config.base import plain
from multicard.measure.timing import clock_s
from tests import records
from tests.conftest import PATIENCE_S, typed, typed_llm

EVIL = "<img src=x onerror=document.title='run'></script><script>document.title='run'</script>&lt;"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")
ARGUMENTS = tuple(f"--{word}" for word in (*ARGUMENTS, "disable-component-update", "disable-sync"))


ROWS = [{"gpus": n, "total_s": 100.0 / n, "label": f'a "{n}", b{EVIL if n == 1 else ""}'} for n in (1, 2, 4)]
THEMES = {name: {"axis": {"labelColor": ink}} for name, ink in (("light", "#111"), ("dark", "#eee"))}


def plot(name: str) -> Plot:
    """A figure of two charts side by side, with a stranger's text in its rows."""
    encoding = {"x": {"field": "gpus", "type": "ordinal"}, "y": {"field": "total_s", "type": "quantitative"}}
    in_s = {"calculate": "datum.total_s * 1", "as": "shown_s"}  # an expression, which must not need eval
    chart = {"mark": "bar", "transform": [in_s], "encoding": encoding | {"tooltip": {"field": "label"}}}
    title = {"text": "below the chart", "style": "notes"}
    spec = {"title": "Time", "data": {"name": "rows"}, "vconcat": [{"hconcat": [chart, chart], "title": title}]}
    return Plot.of(Figure(name, "Time by precision", spec, ROWS, "c", "Time by precision. How to read it."), ["run me"])


def strangers_section() -> Section:
    """A figure, a table and a claim each, with a stranger's text in all of them."""
    claim = ClaimCard(EVIL, "holds", "good", [("gpus=2", f"1.8 {EVIL}")], "n=2", "1.9", "Table 2", "c")
    table = PlainTable(f"Table of {EVIL}", ["precision", "total s"], [["fp32", "1.5"], [EVIL, "-"]], ["a note"])
    return Section("others", "Others", "?", [plot("bars"), Fold("more", [plot("more_bars")]), table, claim])


def sweep(folder: Path, **changes: Any) -> Path:
    """Runs of GPUs: precisions and GPUs, one failed, one with a name of a stranger, and a broken record."""
    for precision in ("fp64", "fp32", "fp16"):
        for gpus in (1, 2, 4):
            total_s = {"fp64": 400.0, "fp32": 160.0, "fp16": 100.0}[precision] / gpus**0.9
            record = records.vision(precision=precision, gpus=gpus, total_s=total_s, **changes)
            steps = records.steps([total_s / 40 * (1 + step % 3 / 100) for step in range(40)])
            records.write(folder / "grid" / f"{precision}-{gpus}", record, steps)
    cause = {"rank": 0, "host": "node1", "message": f"out of memory {EVIL}"}
    records.write(folder / "grid" / "failed", records.vision(precision="bf16", status="oom", cause=cause))
    named = records.vision(precision="tf32", total_s=90.0) | {"name": EVIL}
    measured: dict[str, Any] = {"saves_s": {}, "step_s": {}, "spread": 0.0, "rounds_s": {}}
    diagnosis = {"bound": "input", "sentence": f"bound {EVIL}", **measured}
    path = EVIL.replace("/", "").replace("\n", "")
    records.write(folder / "other" / path, named | {"diagnosis": diagnosis})
    broken = records.write(folder / "grid" / "broken", record) / "result.json"
    broken.write_text("{")
    return folder


def build(folder: Path) -> Report:
    return analysis_report.build(load.read([folder]), "Runs", mix=False)


class Elements(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        (self.scripts if self.tags and self.tags[-1][0] == "script" else self.texts).append(data)


def inlined(text: str) -> dict[str, Any]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)


def unpacked(packed: dict[str, Any]) -> list[Any]:
    return packed.get("all") or [packed["of"][at] for at in packed["at"]]


def test_the_page_holds_every_run_and_nothing_of_a_run_is_html(tmp_path: Path):
    report = build(sweep(tmp_path))
    text = page.html(replace(report, sections=[*report.sections, strangers_section()]))
    elements = Elements(text)
    tags = [tag for tag, _ in elements.tags]
    assert "img" not in tags and tags.count("script") == 3  # the data, Vega, and the page's own
    assert not [name for _, attributes in elements.tags for name in attributes if name.startswith("on")]
    assert any(EVIL in part for part in elements.texts)  # whole, as text
    titles = [attributes["id"] for tag, attributes in elements.tags if tag == "section" and "id" in attributes]
    assert titles == ["answers", "machine", "runs", "settings", "papers", "claims", "gaps", "others"]

    grids = inlined(text)["grids"]
    columns = {column["key"]: unpacked(column["texts"]) for column in grids["runs"]["columns"]}
    assert grids["runs"]["rows"] == 11 and len(columns["total_s"]) == 11
    assert sorted(columns["precision"]) == sorted(["fp64", "fp32", "fp16"] * 3 + ["bf16", "tf32"])
    failed = columns["status"].index("oom")
    assert columns["total_s"][failed] == "-"
    details = {column["key"]: unpacked(column["texts"]) for column in grids["runs"]["details"]}
    assert details["cause"][failed] == f"out of memory {EVIL}"
    assert unpacked(grids["skipped"]["columns"][0]["texts"]) == [str(tmp_path / "grid/broken")]


def test_the_columns_are_those_of_the_list(tmp_path: Path):
    found = load.read([sweep(tmp_path)])
    printed = lines(found, found.runs, None, None)
    headings = next(line for line in printed if line.startswith("name"))
    grid = runs_section.grid(read(found.runs))
    assert re.split(r"\s{2,}", headings) == [column.heading for column in grid.columns]


def test_speedups_and_shares_of_a_step(tmp_path: Path):
    phases = {"data": 0.01, "h2d": 0.0, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}
    for seed in (0, 1):
        for precision, one_s in (("fp64", 300.0), ("fp32", 100.0)):
            for gpus, total_s in ((1, one_s + seed), (4, one_s / 2 + seed)):
                record = records.vision(precision=precision, gpus=gpus, seed=seed, total_s=total_s, phases_s=phases)
                records.write(tmp_path / f"{precision}-{gpus}-{seed}", record)
    settings = settings_section.by_setting(read(load.read([tmp_path]).runs), mix=False)
    assert [len(setting.runs) for setting in settings] == [2, 2, 2, 2]
    scaling = settings_section.scaling(settings)
    assert scaling is not None
    columns = {column.key: column for column in scaling.columns}
    at = columns["setting"].texts.index("precision=fp32")
    four = next(
        row
        for row, (setting, gpus) in enumerate(zip(columns["setting"].texts, columns["gpus"].texts, strict=True))
        if setting == "precision=fp32" and gpus == "4"
    )
    assert columns["speedup"].values is not None and columns["parallel_efficiency"].values is not None
    assert columns["speedup"].values[four] == pytest.approx(100.5 / 50.5)  # of the means over seeds
    assert columns["parallel_efficiency"].values[four] == pytest.approx(100.5 / 50.5 / 4)
    assert columns["speedup_fp64"].texts[at] == f"{300.5 / 100.5:.2f}"
    shares = settings_section.phases(settings)
    assert shares is not None
    texts = {column.key: column.texts for column in shares.columns}
    assert set(texts["backward_share"]) == {"50.0%"} and set(texts["h2d_share"]) == {"0.0%"}


def test_several_commits_are_settings_apart_unless_they_are_mixed(tmp_path: Path):
    for index, commit in enumerate(("a" * 40, "b" * 40)):
        records.write(tmp_path / str(index), records.vision(total_s=100.0 + index, commit=commit))
    details = read(load.read([tmp_path]).runs)
    assert [len(setting.runs) for setting in settings_section.by_setting(details, mix=False)] == [1, 1]
    (mixed,) = settings_section.by_setting(details, mix=True)
    assert mixed.mean("total_s") == 100.5


@pytest.mark.parametrize("kind", ["vision", "llm"])
def test_the_command_of_a_run_measures_the_same(kind: str):
    words = {
        "vision": "dataset=mnist precision=fp16 loader=dali lr=0.25 optimizer=adamw gpus=3 profile=kineto "
        "profile.skip=1 dataset.mean=[0.5,0.5,0.25] dataset.root='/data/photos\\ of\\'24'",
        "llm": "method=qat template=grammar model=llama3_8b precision=bf16 max_steps=7 epochs=2",
    }[kind]
    asked = [word.replace("_", " ") if "photos" in word else word for word in words.replace("\\ ", "_").split()]
    compose = typed if kind == "vision" else typed_llm
    meant = compose(*asked)
    command = rerun_commands.rerun(kind, plain(meant))
    assert command is not None
    _, entry, *again = shlex.split(command)
    assert entry == {"vision": "train_vision.py", "llm": "tune_llm.py"}[kind]
    assert compose(*again).identity() == meant.identity()
    assert len(again) == len(asked)  # nothing but what was asked for


def test_a_configuration_of_another_version_has_no_command():
    assert rerun_commands.rerun("vision", {"gpus": 2, "warp": 9}) is None
    assert rerun_commands.rerun("other", {"gpus": 2}) is None


def test_the_command_writes_beside_the_runs_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sweep(tmp_path)
    assert main(["report", str(tmp_path), "--title", "A & B"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{tmp_path / 'report.html'}: 11 runs, 1 of them did not end ok, measured 2026-11-21; ")
    text = (tmp_path / "report.html").read_text()
    assert "<title>A &amp; B</title>" in text and not list(tmp_path.glob(".report*"))
    assert main(["report", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "is a folder; name a file" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 1


def test_text_cannot_end_the_data():
    text = page.in_script({"a": "</script><!--&", "b": [float("nan")]})
    assert not set("<>&") & set(text) and json.loads(text) == {"a": "</script><!--&", "b": [None]}


# ---- in a browser


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
    claims = [block for block in report.blocks() if isinstance(block, ClaimCard)]
    faster = next(claim for claim in claims if "fp32 trains faster than fp64" in claim.title)
    assert faster.figures and faster.source.startswith("arXiv 2503.15252")
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
