"""`multicard.load`: runs in Python and in notebooks."""

import csv
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vl_convert

import multicard
from analysis.__main__ import main
from analysis.notebook import Runs, python_refusals
from multicard import messages
from multicard.messages import Refusal
from multicard.records import text_table
from tests.goldens import freeze
from tests.helpers import notebook, records
from tests.helpers.messages import refused, says


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
    rows, frame = (
        list(csv.DictReader((tmp_path / "runs.csv").open())),
        runs.to_pandas(all_columns=True),
    )
    assert [*frame.columns] == [*rows[0]] and len(frame) == len(rows) == len(runs)
    assert (frame.gpus.dtype, frame.total_s.dtype, frame.pin_memory.dtype) == (
        "int64",
        "float64",
        "bool",
    )
    assert (
        frame.total_s.tolist()
        == [float(row["total_s"]) for row in rows]
        == [run["total_s"] for run in runs]
    )
    assert frame.compile_s.isna().all()
    some = runs.where("gpus>=2 and precision='fp16'", sort="total_s desc")
    assert [run["seed"] for run in some] == some.to_arrow()["seed"].to_pylist() and len(some) == 3
    assert some[0]["total_s"] > some[1]["total_s"] and some[-1]["gpus"] == 2


def test_the_first_columns_are_those_to_look_at(runs: Runs):
    frame = runs.to_pandas()
    assert [*frame.columns][:4] == ["name", "precision", "gpus", "seed"]
    assert {"status", "total_s", "images_per_s", "test_accuracy", "marks"} <= {*frame.columns}
    assert len(frame.columns) < 15 and len(frame) == len(runs)
    assert not any(frame[name].isna().all() for name in frame.columns)


def test_a_plot_has_a_point_for_each_run(runs: Runs, tmp_path: Path):
    spec = runs.plot().to_dict()
    (points,) = spec["datasets"].values()
    assert sorted(point["total_s"] for point in points) == sorted(run["total_s"] for run in runs)
    assert [spec["encoding"][axis]["field"] for axis in "xy"] == ["gpus", "total_s"]
    assert spec["encoding"]["color"]["field"] == "precision"
    runs.plot("images_per_s", x="precision", color="gpus").save(tmp_path / "plot.svg")
    assert "(images_per_s)" in (tmp_path / "plot.svg").read_text()
    for wrong in ({"y": "speed"}, {"x": "cards"}, {"y": "joules"}):
        with pytest.raises(Refusal):
            runs.plot(**wrong)


@pytest.mark.parametrize("names", [("args.a.b", "args.c[0]"), ("args.d:N", "args.e-f")])
def test_settings_whose_names_read_as_paths_are_drawn_under_their_names(
    names: tuple[str, str], tmp_path: Path
):
    for index, values in enumerate(itertools.product(("lora", "qlora"), (3, 5, 7))):
        record = records.script(total_s=100.0 + 9 * index)
        axes = record["axes"] | dict(zip(names, values, strict=True))
        records.write(tmp_path / str(index), record | {"axes": axes})
    runs = multicard.load(tmp_path)
    plot, trade_off = runs.plot(x=names[0].upper(), color=names[1]), runs.figure("trade_off")
    for chart in (plot, trade_off):
        drawn = vl_convert.vegalite_to_svg(chart.to_dict())
        written = " ".join(re.findall(r">([^<>]+)</text>", drawn)).split()
        assert {"lora", "qlora", "3", "5", "7"} <= {*written} and "undefined" not in written


def test_labels_of_a_plot_stand_clear_of_each_other(tmp_path: Path):
    angles = []
    for length in (4, 40):
        for index in range(6):
            record = records.script(total_s=100.0 + 9 * index)
            axes = record["axes"] | {"args.method": str(index) * length}
            records.write(tmp_path / str(length) / str(index), record | {"axes": axes})
        plot = multicard.load(tmp_path / str(length)).plot().to_dict()
        angles.append(plot["encoding"]["x"]["axis"]["labelAngle"])
        assert plot["width"] >= 300
    assert angles[0] == 0 != angles[1]


@pytest.mark.parametrize(
    ("words", "show"),
    [
        ("best {0}/before", lambda runs, _: runs.best()),
        (
            "best {0}/before --goal memory --accuracy 99% --memory 80GB --gpus 4",
            lambda runs, _: runs.best("memory", accuracy=0.99, memory=80e9, gpus=4),
        ),
        # several works
        ("best {0} --goal time", lambda _, folder: multicard.load(folder).best("time")),
        (
            "compare {0}/before {0}/after --margin 1%",
            lambda runs, folder: runs.compare(folder / "after", margin="1%"),
        ),
        ("compare {0}/before --by precision", lambda runs, _: runs.compare(by="precision")),
    ],
)
def test_what_is_returned_prints_as_the_command_does_and_shows_its_tables(
    words: str,
    show: Callable[[Runs, Path], Any],
    runs: Runs,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
):
    assert main(words.format(folder).split()) == 0
    printed = [
        line for line in capsys.readouterr().out.splitlines() if line[:2] not in ("A:", "B:", "A,")
    ]
    shown = show(runs, folder)
    assert repr(shown).splitlines() == printed
    assert shown._repr_html_().count("<tr>") == len(shown._rows) + shown._repr_html_().count(
        "<table>"
    )
    assert len(shown.to_pandas()) == len(shown._rows)


def test_a_sweep_is_loaded_and_compared_by_its_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    freeze.make_records(tmp_path / "multirun")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before").mkdir()  # the photographs of the sweep, without a run
    before = multicard.load("before")
    assert len(before) == len(multicard.load("multirun/before"))
    by_name, by_path = before.compare("after"), before.compare("multirun/after")
    assert by_name.to_arrow() == by_path.to_arrow()


def test_the_steps_without_the_warmup_have_the_mean_of_the_run(runs: Runs):
    steps = runs.steps(0)
    assert (
        steps.columns[:4].tolist() == ["epoch", "rank", "step", "step_s"]
        and (~steps.measured).sum() == 1
    )
    assert steps[steps.measured].step_s.mean() == pytest.approx(runs[0]["step_s"])


@pytest.mark.parametrize(
    ("ask", "code", "key", "facts"),
    [
        (lambda _: multicard.load("absent"), "runs.no-folder", None, {"folder": "absent"}),
        (lambda runs: runs.where("cards>1"), "list.condition", "condition", {}),
        (lambda runs: runs.best("speed"), "notebook.goal", "goal", {"value": "speed"}),
        (lambda runs: runs.best(accuracy=99), "notebook.argument", "accuracy", {}),
        (lambda runs: runs.best("cost"), "best.no-figure", "price", {"runs": 12, "goal": "cost"}),
        (lambda runs: runs.compare(), "compare.no-other", None, {"missing": True}),
        (
            lambda runs: runs.where("gpus=1 or precision='fp16'").compare(by="precision"),
            *(
                "compare.missing-cells",
                None,
                {"missing": {"precision=fp32": ["gpus=2"]}, "common": True},
            ),
        ),
    ],
)
def test_a_refusal_has_the_code_of_the_command_and_names_the_argument(
    ask: Callable[[Runs], Any], code: str, key: str | None, facts: dict[str, Any], runs: Runs
):
    with refused(code, key=key, **facts):
        ask(runs)


def test_a_figure_that_there_is_not_is_refused(runs: Runs):
    with pytest.raises(ValueError, match="absent"):
        runs.figure("absent")


def test_what_a_condition_may_have_meant_is_said(runs: Runs):
    with refused("list.condition") as caught:
        runs.where("cards>1")
    assert says(str(caught.value), "list.no-column", column="cards")


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("add `--by KEY` or `--by gpus,layout`", 'add `by="KEY"` or `by="gpus,layout"`'),
        ("as `--price 2.49`", "as `price=2.49`"),
        ("`--mix` or `--common`", "`mix=True` or `common=True`"),
        ('--where: as `--where "gpus>=2"`', 'condition: as `condition="gpus>=2"`'),
        ("`python -m analysis list --csv FILE` writes all", "`to_arrow()` has all"),
    ],
)
def test_options_in_a_refusal_are_written_as_arguments(
    option: str, argument: str, monkeypatch: pytest.MonkeyPatch
):
    @python_refusals()
    def refuse() -> None:
        raise Refusal("a.b", option, key="--by", value=1)

    monkeypatch.setattr(messages, "BY_CODE", False)
    with pytest.raises(Refusal) as caught:
        refuse()
    assert (str(caught.value), caught.value.key, caught.value.facts) == (
        argument,
        "by",
        {"value": 1},
    )


def test_a_notebook_shows_the_first_rows_of_a_long_table():
    shown = text_table.TextTable(["a"], [["1"]] * 1000).html()
    assert shown.count("<tr>") == text_table.MOST_ROWS + 1 and "800" in shown


def test_a_notebook_shows_names_as_text(tmp_path: Path):
    names = ["<script>alert(1)</script>", "b"]
    runs = multicard.load(
        records.write_all(tmp_path, *(records.vision(hardware=name) for name in names))
    )
    assert "&lt;script&gt;" in runs._repr_html_() and "<script>" not in runs._repr_html_()


def test_figures_of_several_works_are_one_chart(tmp_path: Path):
    cells = (("digits", 0.1), ("mnist", 0.1), ("mnist", 0.2))
    works = (records.vision(dataset__name=name, lr=lr) for name, lr in cells)
    shown = (
        multicard.load(records.write_all(tmp_path, *works)).figure("losses").to_dict()["vconcat"]
    )
    assert len(shown) == len({json.dumps(part["data"]) for part in shown}) == 2


def shown_data(cell: dict[str, Any]) -> list[Any]:
    """What a cell shows, without sentences: kinds of outputs, the cells of tables,
    texts of what is no table.
    """
    found = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        html, plain = "".join(data.get("text/html", ())), data.get("text/plain")
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html)
        found.append(
            (
                output["output_type"],
                [*data],
                cells,
                None if html else plain,
                len(output.get("text", ())),
            )
        )
    return found


def test_the_worked_notebook_gives_its_outputs():
    stored = json.loads(notebook.NOTEBOOK.read_text())
    for cell, anew in zip(stored["cells"], notebook.carried_out(stored)["cells"], strict=True):
        assert shown_data(anew) == shown_data(cell), (
            "python -m tests.helpers.notebook writes the outputs anew"
        )
        assert {**anew, "outputs": None} == {**cell, "outputs": None}
