"""`best`, the end of a sweep, effects, charts and the page say the same of the same runs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import answers, conclusion, report
from analysis.answers import Answer
from analysis.commands import best
from analysis.commands.ranking import Limits
from analysis.figures.effect_charts import what_matters
from analysis.figures.setting_charts import efficiency
from analysis.report.blocks import Recommendation, Report, SortableTable
from analysis.runs import load
from analysis.runs.load import Run
from multicard.records import table as table_at_end
from multicard.records.run_folder import RecordedRun as EndedRun
from tests.conftest import ROOT
from tests.helpers import records
from tests.helpers.messages import Told, told

EXAMPLES = ROOT / "docs" / "example" / "records"
World = Callable[[Path], Path]


def example(name: str) -> World:
    return lambda _: EXAMPLES / name


def over_gpus(
    one: tuple[float, ...], two: tuple[float, ...], slow_s: float | None = None, **changes: Any
) -> World:
    """Runs on one and two GPUs of these times; with `slow_s` one more on two,
    which others disturbed.
    """

    def written(folder: Path) -> Path:
        for gpus, times in ((1, one), (2, two)):
            for seed, total_s in enumerate(times):
                record = records.vision(gpus=gpus, seed=seed, total_s=total_s, **changes)
                records.write(folder / "sweep" / f"{gpus}-{seed}", record | records.accurate(0.99))
        if slow_s is not None:
            record = records.vision(
                gpus=2, seed=9, total_s=slow_s, load=records.load(12.0), **changes
            )
            records.write(folder / "sweep" / "slow", record | records.accurate(0.99))
        return folder / "sweep"

    return written


def apart(folder: Path) -> Path:
    """A script whose ranks trained apart."""
    for gpus, total_s in ((1, 100.0), (2, 30.0)):
        own = (
            {"trained": "apart", "apart_by": "group", "seen_codes": ["script.no-process-group"]}
            if gpus > 1
            else {}
        )
        records.write(
            folder / "sweep" / str(gpus), records.script(gpus=gpus, total_s=total_s, **own)
        )
    return folder / "sweep"


def passed_over(folder: Path) -> Path:
    """The fastest of three settings is far less accurate, so that the second is recommended."""
    for gpus, total_s, share in ((1, 100.0, 0.99), (2, 60.0, 0.99), (4, 30.0, 0.90)):
        for seed in range(2):
            record = records.vision(
                gpus=gpus, seed=seed, total_s=total_s + seed
            ) | records.accurate(share)
            records.write(folder / "sweep" / f"{gpus}-{seed}", record)
    return folder / "sweep"


def tuned(*settings: tuple[str, float, float], seeds: int = 2, rows: int = 100) -> World:
    """Tuning by method, training time and held-out loss,
    on rows that differ far more than methods do.
    """

    def written(folder: Path) -> Path:
        draw = np.random.default_rng(0)
        of_rows, tokens = draw.lognormal(0.0, 0.6, rows), draw.integers(5, 60, rows)
        for method, total_s, loss in settings:
            for seed in range(seeds):
                losses = (
                    loss * of_rows * (1 + 0.01 * draw.standard_normal(rows)) * (1 + 0.001 * seed)
                )
                own = records.llm(method=method, seed=seed, total_s=total_s + 0.1 * seed)
                scored = records.held_out_rows(losses, tokens)
                records.write(folder / "sweep" / f"{method}-{seed}", own, held_out=scored)
        return folder / "sweep"

    return written


WORLDS: dict[str, World] = {
    "example": example("example"),
    "first": example("first"),
    "repeated": over_gpus((100.0, 101.0, 102.0), (60.0, 61.0, 60.5)),
    "equal": over_gpus((100.0, 100.5, 101.0), (100.2, 100.4, 100.6)),
    "single": over_gpus((100.0,), (60.0,)),
    "single, near": over_gpus((100.0,), (99.0,)),
    "disturbed": over_gpus((100.0, 101.0), (60.0, 61.0), slow_s=300.0),
    "one calm run": over_gpus((100.0, 101.0), (60.0,), slow_s=300.0),
    "on CPU ranks": over_gpus((100.0, 104.0), (60.0, 61.0), device="cpu"),
    "slower": over_gpus((100.0, 101.0), (140.0, 141.0)),
    "apart": apart,
    "passed over": passed_over,
    "tuning": tuned(("lora", 100.0, 2.0), ("qlora", 60.0, 2.0)),
    "tuning, worse": tuned(("lora", 100.0, 2.0), ("qlora", 60.0, 2.2), ("full", 150.0, 1.99)),
    "tuning, single": tuned(("lora", 100.0, 2.0), ("qlora", 60.0, 2.1), seeds=1),
    "tuning, few rows": tuned(("lora", 100.0, 2.0), ("qlora", 60.0, 2.1), rows=12),
}


@dataclass(frozen=True)
class Everywhere:
    """What is said of some runs: in Python, by `best`, at the end of a sweep, and on the page."""

    runs: list[Run]
    answer: Answer
    best: str
    end: list[Told]
    marked_at_end: set[Path]
    page: Report

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the page's table of settings, in their order."""
        (grid,) = [
            block
            for block in self.page.blocks()
            if isinstance(block, SortableTable) and block.name in KINDS
        ]
        columns = {column.name: column for column in grid.columns}
        whole = [at for at, parent in enumerate(grid.parents) if parent is None]
        return [{name: one.values[at] for name, one in columns.items()} for at in whole]


KINDS = ("training", "tuning", "script")


@pytest.fixture(params=WORLDS, scope="module")  # a world is read once for all tests of a worker
def everywhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Everywhere:
    folder = WORLDS[request.param](tmp_path_factory.mktemp("world"))
    runs = load.read_runs([folder]).runs
    (answer,) = answers.answers(runs)
    printed = best.output(runs, None, Limits(), False, answers.sentences)
    end = conclusion([run.folder for run in runs])
    page = report.build(load.read_runs([folder]), "a title", mix=False)
    lines = told("\n".join(map(str, end.lines)))
    return Everywhere(runs, answer, "\n".join(printed.lines(None)), lines, {*end.recommended}, page)


def test_the_sentence_is_one_everywhere(everywhere: Everywhere):
    said = told(str(everywhere.answer.sentence))
    assert said and told(everywhere.best)[: len(said)] == said
    assert told("\n".join(everywhere.page.answer)) == said
    assert everywhere.end[: len(said)] == (
        said if len(everywhere.answer.ranking.settings) > 1 else []
    )
    (card,) = [block for block in everywhere.page.blocks() if isinstance(block, Recommendation)]
    assert told(card.statement) == told(str(everywhere.answer.statement))


def test_the_end_of_a_sweep_says_which_faster_settings_were_passed_over(everywhere: Everywhere):
    passed_over = everywhere.answer.passed_over
    assert (passed_over is not None) == (
        "answer.passed-over" in [one.code for one in everywhere.end]
    )
    if passed_over is not None:
        (said,) = told(str(passed_over))
        assert said in everywhere.end


def test_the_recommended_row_is_first_and_the_only_one_that_is_marked(everywhere: Everywhere):
    recommended = everywhere.answer.recommended
    folders = {run.folder for run in recommended.runs} if recommended else set[Path]()
    assert everywhere.marked_at_end == folders
    rows = everywhere.rows
    assert [row.get("recommended") == "yes" for row in rows] == [
        recommended is not None and at == 0 for at in range(len(rows))
    ]
    ranking = everywhere.answer.ranking
    columns = {column.name: column for column in ranking.columns((), recommended)}
    assert [*columns["recommended"].values] == [
        recommended is not None and at == 0 for at in range(len(ranking.settings))
    ]
    if recommended is not None:
        assert {key: rows[0][key] for key in ranking.keys} == {
            key: dict(recommended.cell)[key] for key in ranking.keys
        }
        assert columns[ranking.column].values[0] == pytest.approx(rows[0]["total_s"])
        assert columns["rank"].values[0] == ranking.settings.index(recommended) + 1


def test_figures_of_all_settings_are_the_same_in_best_and_on_the_page(everywhere: Everywhere):
    ranking = everywhere.answer.ranking
    ranked = sorted((one.cost, *learned(one.learned), len(one.counted)) for one in ranking.settings)
    shown = [(row["total_s"], *learned(row), row.get("runs")) for row in everywhere.rows]
    untold = sum(ranking.untold.values())
    assert len(shown) == len(ranked) + untold
    if not untold:
        assert [one[:3] for one in sorted(shown, key=str)] == [
            pytest.approx(one[:3]) for one in sorted(ranked, key=str)
        ]


def learned(figures: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(figures.get(column) or 0.0 for column in ("test_accuracy", "held_out_loss"))


def test_an_effect_has_the_ratio_and_the_hedge_of_the_recommendation(everywhere: Everywhere):
    """Where settings differ in the number of GPUs alone, both are the same comparison."""
    answer = everywhere.answer
    if len(answer.ranking.settings) != 2 or answer.ranking.keys != ["gpus"]:
        return
    one, two = (
        next(each for each in answer.ranking.settings if each.gpus == gpus) for gpus in (1, 2)
    )
    ratio = answer.ranking.repeated.ratio(answer.ranking.column, two.runs, one.runs)
    time = next(each for each in what_matters([answer.ranking]) if each.measure == "total_s")
    ((effect,),) = time.by_axis
    # of geometric means
    assert math.exp(effect.gain.estimate) == pytest.approx(ratio.ratio, rel=2e-3)
    assert effect.gain.excludes_zero == (
        answer.ranking.cheaper(one, two) or answer.ranking.cheaper(two, one)
    )
    bounds = ratio.bounds()
    assert bounds is not None and effect.gain.low is not None and effect.gain.high is not None
    assert (math.exp(effect.gain.low), math.exp(effect.gain.high)) == pytest.approx(
        bounds, rel=5e-3
    )


def test_a_speed_up_is_the_ratio_of_the_means_of_best(everywhere: Everywhere):
    ranking = everywhere.answer.ranking
    if ranking.untold:
        assert efficiency(everywhere.runs) == [] and all(
            row.get("speedup") is None for row in everywhere.rows
        )
        return
    costs = [one.cost for one in ranking.settings]
    ratios = [first / second for first in costs for second in costs]
    charted = [row for figure in efficiency(everywhere.runs) for row in figure.rows]
    speedups = [
        row["mean"] for row in charted if row["measure"] == "speedup" and row["of"] == "measured"
    ]
    speedups += [row["speedup"] for row in everywhere.rows if row.get("speedup") is not None]
    has_several = len({one.gpus for one in ranking.settings}) > 1
    assert bool(speedups) == has_several and all(
        any(math.isclose(one, other) for other in ratios) for one in speedups
    )


def test_the_table_at_the_end_marks_the_row_in_the_swept_order(everywhere: Everywhere):
    ended = [EndedRun(run.folder, run.record()) for run in everywhere.runs]
    named = {run.folder for run in ended if run.folder in everywhere.marked_at_end}
    plain = table_at_end.lines(ended, None)
    marked = table_at_end.lines(ended, None, sorted(named))
    is_marked = [" yes " in line for line in marked]
    assert sum(is_marked) == bool(named)
    assert len(plain) == len(marked)


def test_a_setting_that_is_not_the_fastest_is_first_all_the_same(tmp_path: Path):
    runs = load.read_runs([passed_over(tmp_path)]).runs
    output = best.output(runs, None, Limits(), False, answers.sentences)
    (table,) = output.tables()
    ranked, use = table.headings.index("#"), table.headings.index("use")
    assert [(row[ranked], row[use]) for row in table.rows] == [("2", "yes"), ("1", ""), ("3", "")]
    assert [(row["rank"], row["recommended"]) for row in output.rows] == [
        (1, False),
        (2, True),
        (3, False),
    ]
