"""`multicard.load`: runs in Python and in notebooks."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import multicard
from analysis.__main__ import main
from analysis.notebook import Runs
from multicard.records import text_table
from tests.goldens import freeze
from tests.helpers import notebook, records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("notebook")
    freeze.make_records(made)
    return made


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    return multicard.load(folder / "before")


def test_a_frame_has_the_columns_of_list_with_their_types(runs: Runs, folder: Path, tmp_path: Path):
    assert main(["list", str(folder / "before"), "--csv", str(tmp_path / "runs.csv")]) == 0
    rows, frame = list(csv.DictReader((tmp_path / "runs.csv").open())), runs.to_pandas()
    assert [*frame.columns] == [*rows[0]] and len(frame) == len(rows) == len(runs)
    assert (frame.gpus.dtype, frame.total_s.dtype, frame.pin_memory.dtype) == ("int64", "float64", "bool")
    assert frame.total_s.tolist() == [float(row["total_s"]) for row in rows] == [run["total_s"] for run in runs]
    assert frame.compile_s.isna().all()
    some = runs.where("gpus>=2 and precision='fp16'", sort="total_s desc")
    assert [run["seed"] for run in some] == some.to_arrow()["seed"].to_pylist() and len(some) == 3
    assert some[0]["total_s"] > some[1]["total_s"] and some[-1]["gpus"] == 2


@pytest.mark.parametrize(
    ("words", "show"),
    [
        ("best {0}/before", lambda runs, _: runs.best()),
        (
            "best {0}/before --goal memory --accuracy 99% --memory 80GB --gpus 4",
            lambda runs, _: runs.best("memory", accuracy=0.99, memory=80e9, gpus=4),
        ),
        ("best {0} --goal time", lambda _, folder: multicard.load(folder).best("time")),  # several works
        ("compare {0}/before {0}/after --margin 1%", lambda runs, folder: runs.compare(folder / "after", margin="1%")),
        ("compare {0}/before --by precision", lambda runs, _: runs.compare(by="precision")),
    ],
)
def test_what_is_returned_prints_as_the_command_does_and_shows_its_tables(
    words: str, show: Callable[[Runs, Path], Any], runs: Runs, folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(words.format(folder).split()) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line[:2] not in ("A:", "B:", "A,")]
    shown = show(runs, folder)
    assert repr(shown).splitlines() == printed
    assert shown._repr_html_().count("<tr>") == len(shown._rows) + shown._repr_html_().count("<table>")
    assert len(shown.to_pandas()) == len(shown._rows)


def test_the_steps_without_the_warmup_have_the_mean_of_the_run(runs: Runs):
    steps = runs.steps(0)
    assert steps.columns[:4].tolist() == ["epoch", "rank", "step", "step_s"] and (~steps.measured).sum() == 1
    assert steps[steps.measured].step_s.mean() == pytest.approx(runs[0]["step_s"])


@pytest.mark.parametrize(
    ("ask", "refusal"),
    [
        (lambda _: multicard.load("absent"), "absent is no folder"),
        (lambda runs: runs.where("cards>1"), 'condition: no column "cards"; did you mean marks'),
        (lambda runs: runs.best("speed"), "goal=speed: choose one of time, memory, energy"),
        (lambda runs: runs.best(accuracy=99), "accuracy: 99 is no share; write 99% or 0.99"),
        (lambda runs: runs.best("cost"), "of 12 runs none has cost; give the price of a GPU for an hour, as price=2.4"),
        (lambda runs: runs.compare(), 'B is missing: name another sweep as B, or by="KEY" to compare'),
        (
            lambda runs: runs.where("gpus=1 or precision='fp16'").compare(by="precision"),
            "precision=fp32 has no gpus=2 (common=True compares the",
        ),
        (lambda runs: runs.figure("absent"), "no figure absent; there are "),
    ],
)
def test_a_refusal_is_a_value_error_in_the_words_of_the_command(ask: Callable[[Runs], Any], refusal: str, runs: Runs):
    with pytest.raises(ValueError, match=f"^{re.escape(refusal)}"):
        ask(runs)


def test_a_notebook_shows_the_first_rows_of_a_long_table():
    shown = text_table.Table(["a"], [["1"]] * 1000).html()
    assert shown.count("<tr>") == text_table.MOST_ROWS + 1 and "800 more rows" in shown


def test_a_notebook_shows_names_as_text(tmp_path: Path):
    names = ["<script>alert(1)</script>", "b"]
    runs = multicard.load(records.write_all(tmp_path, *(records.vision(hardware=name) for name in names)))
    assert "&lt;script&gt;" in runs._repr_html_() and "<script>" not in runs._repr_html_()


def test_figures_of_several_works_are_one_chart(tmp_path: Path):
    cells = (("digits", 0.1), ("mnist", 0.1), ("mnist", 0.2))
    works = (records.vision(dataset__name=name, lr=lr) for name, lr in cells)
    shown = multicard.load(records.write_all(tmp_path, *works)).figure("losses").to_dict()["vconcat"]
    assert len(shown) == len({json.dumps(part["data"]) for part in shown}) == 2


def test_the_worked_notebook_gives_its_outputs():
    stored = json.loads(notebook.NOTEBOOK.read_text())
    for cell, anew in zip(stored["cells"], notebook.carried_out(stored)["cells"], strict=True):
        for outputs in (cell.get("outputs", []), anew.get("outputs", [])):
            for output in outputs:
                output.get("data", {}).pop("image/svg+xml", None)  # whose letters are as wide as the machine's fonts
        assert anew == cell, "python -m tests.helpers.notebook writes the outputs anew"
