"""The page of `report` in a browser that is offline: tables, figures, print, access,
and fit on screen and phone.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.report import page
from analysis.report.runs_columns import SETTINGS
from tests.analysis.test_figure_files import sampled
from tests.analysis.test_predictions import scaled
from tests.analysis.test_report import EVIL, ROWS, THEMES, build, inlined, strangers_section, sweep
from tests.helpers import grids, records
from tests.helpers.messages import says
from tests.helpers.report_view import View

SEVERE = ("moderate", "serious", "critical")
SCREEN, PHONE = 1300, 390
LEAST_LETTERS_PX = 10
BLOCKS = "main div:not(.drawing), main p, main dl, main details"
EXPERIMENTS = ("table2", "image_size", "loss_curves", "vision_metrics", "peak_memory")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of some 200 runs, more than are shown at first, and of texts of strangers."""
    folder = sweep(tmp_path_factory.mktemp("runs"))
    for number in range(1, 200):
        steps = (
            records.steps([0.1] * 100) | {"loss": [9.0 / (1 + step) for step in range(100)]}
            if number < 3
            else None
        )
        seed = number if number != 2 else 20231121  # more than seven digits
        lr = 1e-4 * (number + (number == 1))  # the first two repeat one setting
        records.write(
            folder / "rates" / str(number),
            records.vision(seed=seed, lr=lr, total_s=1000.0 + number),
            steps,
        )
    whole = build(folder)
    sections = [
        section
        for section in whole.sections
        if section.name not in ("matters", "settings", "papers")
    ]
    path = folder / "report.html"
    page.write(path, replace(whole, sections=[*sections, strangers_section()], themes=THEMES))
    return path


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every sort of figure: experiments, timelines, predictions, failures,
    training and tuning.
    """
    folder = tmp_path_factory.mktemp("runs")
    for name in EXPERIMENTS:
        grids.fill(folder, name, (0,) if name != "table2" else (0, 1))
    for gpus in (1, 2):
        for loader in ("torch", "dali"):
            own = {
                "dataset": "images",
                "strategy": "ddp_ds",
                "dataset__image_size": 300,
                "loader": loader,
            }
            sampled(folder / "gpus" / f"{loader}{gpus}", gpus=gpus, **own)
        steps = records.steps([0.1] * 100, per_epoch=100) | {
            "loss": [9.0 / (1 + step) for step in range(100)]
        }
        records.write(folder / "tuned" / str(gpus), records.llm(gpus=gpus, seed=gpus), steps)
    path = sweep(scaled(folder)) / "report.html"
    page.write(path, build(folder))
    return path


def test_rows_sort_filter_and_open_without_a_mouse(browser: Any, report: Path):
    view = View(browser, report)
    assert len(view.rows()) == 50 and "208" in view.page.inner_text("[data-grid=training] .count")
    view.sort("total s").click()
    times = [float(text.replace(",", "").split()[0]) for text in view.column("total s")]
    assert times == sorted(times) and times[0] == pytest.approx(100 / 4**0.9, abs=0.05)
    view.sort("total s").focus()
    view.page.keyboard.press("Enter")
    assert view.column("total s")[0] == "1,199.0"
    assert (
        view.page.get_attribute("[data-grid=training] th[aria-sort=descending]", "scope") == "col"
    )
    view.page.locator("[data-grid=training] .more-rows").click()
    assert len(view.rows()) == 100

    for wanted, count in (
        ("fp16 grid", 3),
        ("precision=fp64 gpus=4", 1),
        ("total_s>=100 totals<=250 grid", 4),
    ):
        view.filter(wanted, count)
    view.filter("oom", 0)
    failed = view.page.locator("[data-grid=failed]")
    assert not failed.is_visible()
    view.page.locator("details:has(> [data-grid=failed]) > summary").click()
    assert f"out of memory {EVIL}" in failed.inner_text()
    view.filter("precision=fp64 gpus=1", 1)
    opener = view.page.get_by_role("button", name=re.compile("precision fp64")).first
    opener.focus()
    for key in ("Enter", "Space"):
        view.page.keyboard.press(key)
        assert (
            opener.get_attribute("aria-expanded") == "true"
            and view.page.locator(".detail").is_visible()
        )
        assert view.page.locator(f"#{opener.get_attribute('aria-controls')}").count() == 1
        detail = view.page.inner_text(".detail")
        assert (
            "python train_vision.py precision=fp64" in detail
            and str(report.parent / "grid/fp64-1") in detail
        )
        assert SETTINGS in detail and not view.page.locator(".detail a").count()
        view.page.keyboard.press(key)
        assert (
            opener.get_attribute("aria-expanded") == "false"
            and not view.page.locator(".detail").count()
        )

    before, box = (
        view.headings(),
        view.page.locator("[data-grid=training]").get_by_role("checkbox", name="columns"),
    )
    box.focus()
    view.page.keyboard.press("Space")
    assert {*view.headings()} > {*before, "startup_s"}
    view.page.keyboard.press("Space")
    assert view.headings() == before
    view.sound()


# browsers have none where they do not trust a page
@pytest.mark.parametrize("clipboard", [True, False])
def test_a_command_is_copied_and_that_is_said(browser: Any, report: Path, clipboard: bool):
    view = View(browser, report)
    if not clipboard:
        view.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    copies = view.page.locator("[data-copy]", has_text="Copy").first
    command = copies.get_attribute("data-copy")
    view.page.evaluate(
        "document.querySelectorAll('main details').forEach(each => (each.open = true))"
    )
    copies.focus()
    view.page.keyboard.press("Enter")
    view.until(lambda: view.page.get_by_role("status").get_by_text("Copied").count() == 1)
    assert view.page.evaluate("document.activeElement.dataset.copy") == command
    view.page.locator("[data-grid=training] input[type=search]").focus()
    view.page.keyboard.press("Control+V")
    assert command and view.page.input_value("[data-grid=training] input[type=search]") == command
    view.sound()


def test_a_repeated_setting_opens_to_its_runs_with_their_losses(browser: Any, report: Path):
    view = View(browser, report)
    view.filter("lr=0.0002", 1)
    assert view.column("n") == ["2"] and re.fullmatch(
        r"1,001.5 ± [\d.]+", view.column("total s")[0]
    )
    view.page.locator("[data-grid=training] .opens").press("Enter")
    assert view.column("n") == ["2", "run 1", "run 2"] and view.column("total s")[1:] == [
        "1,001.0",
        "1,002.0",
    ]
    curve = view.page.get_by_role("img", name=re.compile("loss.* 6.75 .* 0.09"))
    assert curve.locator("polyline").count() == 2
    for part in (1, 2):
        view.page.locator("[data-grid=training] .opens").nth(part).press("Enter")
    assert str(report.parent / "rates/2") in view.page.locator(".detail").last.inner_text()
    assert curve.locator("polyline").count() == 4
    view.page.locator("[data-grid=training] .opens").first.press("Enter")
    assert (
        view.column("n") == ["2"]
        and view.page.evaluate("document.activeElement.className") == "opens"
    )
    view.sound()


def test_two_ticked_rows_stand_side_by_side_and_a_chart_chooses_rows(browser: Any, report: Path):
    view = View(browser, report)
    view.filter("grid", 9)
    side = view.page.get_by_role("region", name="Two rows compared")
    ticks = view.page.locator("[data-grid=training] td input")
    rows = list(zip(view.column("precision"), view.column("gpus"), strict=True))
    first, second, third = (
        rows.index(row) for row in (("fp16", "1"), ("fp16", "2"), ("fp32", "2"))
    )
    for number in (first, second, third):  # a third takes the place of the first
        assert side.count() == (number == third)
        ticks.nth(number).press("Space")
    assert ticks.nth(third).evaluate("box => box === document.activeElement")
    rows = [line.split("\t") for line in side.inner_text().splitlines() if "\t" in line]
    assert (
        rows[1] == ["precision", "fp16", "fp32", ""]
        and rows[2][0] == "total s"
        and rows[2][3] == "1.60"
    )
    assert "gpus" not in [row[0] for row in rows]  # in which they are the same
    ticks.nth(third).press("Space")
    assert side.count() == 0

    view.filter("", 50)
    folders = [str(report.parent / name) for name in ("grid/fp16-1", "rates/2")]
    choose = "folders => document.dispatchEvent(new CustomEvent('choose', {detail: {folders}}))"
    view.page.evaluate(choose, folders)
    assert len(view.rows()) == 2
    chip = view.page.locator("[data-grid=training] .chip")
    assert chip.inner_text().startswith("2 ")
    chip.press("Enter")
    assert len(view.rows()) == 50 and not chip.is_visible()
    view.sound()


def test_filters_compare_figures_with_their_units(browser: Any, tmp_path: Path):
    shares, sizes = (
        (0.985, 0.991, 0.97, 0.96, 0.95, 0.94),
        (
            8e8,
            1.2e10,
            25_769_803_776,
            9e8,
            7e8,
            6e8,
        ),
    )
    for number, (share, memory_bytes) in enumerate(zip(shares, sizes, strict=True)):
        record = records.vision(
            lr=1 + number, test_accuracy=share, peak_memory_bytes={"max": int(memory_bytes)}
        )
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


def test_every_figure_is_drawn_in_the_systems_theme_and_hands_out_its_data(
    browser: Any, report: Path, tmp_path: Path
):
    view = View(browser, report, scheme="dark")
    count = view.page.locator(".drawing").count()
    assert count == len(inlined(report.read_text())["plots"]) == 3
    # A page that is saved has all figures, also those that were never scrolled to.
    view.until(lambda: view.page.locator(".drawing svg").count() == count)
    view.draw_all()
    for figure in view.page.locator(".drawing").all():
        assert figure.locator("svg").count() == 1
        assert figure.locator(".role-mark path").count() >= 3
    view.page.locator("#figure-bars .mark-rect.role-mark path").first.hover()
    view.until(lambda: EVIL in (view.page.get_attribute("#figure-bars .drawing", "title") or ""))

    colour = "getComputedStyle(document.body).backgroundColor"
    label = "document.querySelector('#figure-bars .role-axis-label text').getAttribute('fill')"
    dark = view.page.evaluate(colour)
    assert view.page.evaluate(label) == "#eee"
    view.page.emulate_media(color_scheme="light")
    view.until(lambda: view.page.evaluate(label) == "#111")
    assert view.page.evaluate(colour) != dark

    bars = view.downloaded(view.page.locator("[data-csv=bars]"), tmp_path)
    assert bars == [
        {key: f"{value:g}" if key != "label" else value for key, value in row.items()}
        for row in ROWS
    ]
    runs = view.downloaded(
        view.page.locator("[data-grid=training] button", has_text="Download"), tmp_path
    )
    assert len(runs) == 209 and {run["total_s"] for run in runs} > {"400", "1199", "1002"}
    assert [run["seed"] for run in runs].count("20231121") == 1
    view.sound()


def test_time_is_drawn_against_what_is_chosen_and_points_choose_runs(browser: Any, tmp_path: Path):
    page.write(tmp_path / "report.html", build(sweep(tmp_path)))
    view = View(browser, tmp_path / "report.html")
    view.page.evaluate(
        "document.addEventListener('choose', e => (window.chosen ??= []).push(e.detail.folders))"
    )
    view.draw_all()
    figure = view.page.locator("#figure-trade_off")
    drawing = figure.locator("svg")
    assert figure.locator(".mark-symbol.role-mark path").count() == 10
    assert "test accuracy (%)" in (drawing.text_content() or "")
    figure.get_by_role("combobox", name="Against").focus()
    view.page.keyboard.press("ArrowDown")
    view.until(lambda: "peak memory" in (drawing.text_content() or ""))
    point = figure.locator(".mark-symbol.role-mark path").first
    point.click()
    view.until(lambda: view.page.evaluate("window.chosen?.length") == 1)
    (folder,) = view.page.evaluate("window.chosen[0]")
    assert folder == str(tmp_path / "grid/fp16-4")  # the fastest
    drawing.click(position={"x": 90, "y": 150})
    view.until(lambda: view.page.evaluate("window.chosen.at(-1)") == [])
    view.sound()


def test_print_is_light_with_every_figure_and_without_controls(browser: Any, report: Path):
    view = View(browser, report, scheme="dark")
    view.page.pdf(format="A4", print_background=True)
    assert view.page.locator(".drawing svg").count() == view.page.locator(".drawing").count()
    view.page.emulate_media(media="print")
    for control in ("nav", "[data-grid=training] .bar", "[data-csv=bars]"):
        assert not view.page.locator(control).first.is_visible()
    assert (
        view.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    view.sound()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(SCREEN, "light"), (PHONE, "dark")])
def test_all_fits_with_letters_that_can_be_read_and_axe_finds_no_serious_fault(
    browser: Any, everything: Path, width: int, scheme: str
):
    view = View(browser, everything, width, scheme)
    for role, name in (
        ("region", "What to run: "),
        ("group", "Table: training runs"),
        ("group", "Table: tuning runs"),
    ):
        assert view.page.get_by_role(role, name=name).count() >= 1, name
    view.draw_all()
    letters_px = view.letters_px()
    assert len(letters_px) > 500 and min(letters_px) >= LEAST_LETTERS_PX
    view.page.locator("[data-grid=training] .opens").first.click()
    assert view.wider_than_their_place(".drawing") == []
    assert set(view.wider_than_their_place(BLOCKS)) <= {"scroll"}
    assert [name for name in view.headings() if name != "use"][:2] == ["precision", "gpus"]
    for tick in view.page.locator("[data-grid=training] td input").all()[:2]:
        tick.check()
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install -r requirements-dev.txt"
    )
    view.page.locator("[data-grid=training]").get_by_role("checkbox", name="columns").check()
    found = axe.Axe().run(view.page).response  # which finds what has no name
    assert len(found["passes"]) > 25  # it looked
    severe = [rule for rule in found["violations"] if rule["impact"] in SEVERE]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]][:3]) for rule in severe] == []
    view.sound()


@pytest.mark.parametrize("width", [SCREEN, PHONE])
def test_each_mark_has_its_words_beside_it_in_sight(browser: Any, tmp_path: Path, width: int):
    """Without a pointer to rest on it, as on a phone: below each table,
    and under the title of each figure.
    """
    for gpus, times in ((1, (100.0, 101.0)), (2, (60.0, 300.0))):
        for seed, total_s in enumerate(times):
            own = {"load": records.load(12.0)} if total_s == 300.0 else {}
            record = records.vision("cpu", gpus=gpus, seed=seed, total_s=total_s, **own)
            records.write(tmp_path / "s" / f"{gpus}{seed}", record)
    path = tmp_path / "report.html"
    page.write(path, build(tmp_path))
    view = View(browser, path, width=width)
    for block in (".grid + .meanings", "figure .meanings"):
        for place in view.page.locator(block).all():
            if place.is_visible():
                signs = place.locator(".mark").all_inner_texts()
                words = place.locator("li").all_inner_texts()
                assert "CPU ranks" in signs and all(len(line.split()) > 1 for line in words)
    legend = view.page.locator("[data-grid=training] + .meanings")
    shown = {*view.page.locator("[data-grid=training] td .mark").all_inner_texts()}
    assert shown <= {*legend.locator(".mark").all_inner_texts()}
    assert says(legend.inner_text(), "runs.left-out", runs=1, of=4)
    view.sound()
