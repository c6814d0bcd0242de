"""`python -m docs.pictures`: the pictures of a report."""

from pathlib import Path

import pytest
from PIL import Image

from docs import pictures
from tests.analysis.test_report import sweep
from tests.conftest import ROOT
from tests.helpers.report_view import CHROMIUM

MOST_BYTES = 400_000


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_the_pictures_of_the_docs_are_made_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(pictures, "OUT", tmp_path / "img")
    assert pictures.main([str(sweep(tmp_path / "runs"))]) == 0
    made = {path.stem: path for path in (tmp_path / "img").iterdir()}
    assert {*made} == {path.stem for path in (ROOT / "docs" / "img").glob("report-*.png")}
    for name, path in made.items():
        with Image.open(path) as image:
            assert image.size[0] == (1300 if "screen" in name else 585)
            shade = image.convert("L").resize((1, 1)).getpixel((0, 0))
        assert isinstance(shade, int) and (shade > 200 if "light" in name else shade < 60)
        assert path.stat().st_size < MOST_BYTES
    assert pictures.main([str(tmp_path / "absent")]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_without_a_browser_it_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(pictures, "BROWSERS", ("no-such-browser",))
    assert pictures.main(["runs"]) == 1
    assert capsys.readouterr().err == "refused: no browser; install no-such-browser\n"
