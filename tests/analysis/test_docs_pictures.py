"""`python -m docs.pictures`: the example report, and the pictures of a report and of a terminal."""

import re
from pathlib import Path

import pytest
from PIL import Image

from docs import pictures
from tests.helpers.report_view import CHROMIUM

MOST_BYTES = 400_000
MOST_BYTES_OF_PAGE = 1_300_000
STALE = "python -m docs.pictures makes it again"


def shown(page: Path) -> tuple[str, list[str]]:
    """What to run, and the sections, of a report."""
    text = page.read_text()
    return text[text.index('<section id="answer') :].partition("</section>")[0], re.findall(r'<h2 id="(.*?)"', text)


def test_the_example_is_what_report_makes_of_its_records(tmp_path: Path):
    committed = pictures.DOCS / "example" / "report.html"
    (answer, sections), (made_answer, made_sections) = shown(committed), shown(pictures.example(tmp_path))
    assert sections == made_sections, STALE
    assert re.sub("<.*?>", "", answer) == re.sub("<.*?>", "", made_answer), STALE
    assert "multirun/example" in committed.read_text() and committed.stat().st_size < MOST_BYTES_OF_PAGE


@pytest.mark.usefixtures("processes")
def test_the_terminal_is_what_the_first_command_prints(tmp_path: Path):
    assert pictures.terminal(tmp_path).read_text() == (pictures.DOCS / "demo.svg").read_text(), STALE
    printed = re.sub("<.*?>", "", (tmp_path / "demo.svg").read_text()).replace("&#160;", " ")
    first = re.search(
        r"^python train_vision.py -m (.*)$", (pictures.DOCS.parent / "README.md").read_text(), re.MULTILINE
    )
    assert first is not None and all(word in printed for word in first[1].split())


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_the_pictures_of_the_docs_are_made_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert pictures.main([], tmp_path) == 0
    made = {path.stem: path for path in (tmp_path / "img").iterdir()}
    assert {*made} == {path.stem for path in (pictures.DOCS / "img").glob("report-*.png")}
    for name, path in made.items():
        with Image.open(path) as image:
            assert image.size[0] == (1300 if "screen" in name else 585)
            shade = image.convert("L").resize((1, 1)).getpixel((0, 0))
        assert isinstance(shade, int) and (shade > 200 if "light" in name else shade < 60)
        assert path.stat().st_size < MOST_BYTES
    assert pictures.main([str(tmp_path / "absent")], tmp_path) == 1
    assert "absent/first/multirun.yaml" in capsys.readouterr().err


def test_without_a_browser_it_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(pictures, "BROWSERS", ("no-such-browser",))
    assert pictures.main([]) == 1
    assert capsys.readouterr().err == "refused: no browser; install no-such-browser\n"
