"""`repeat=N`: repetitions that were disturbed are measured once more,
as further ones of their setting.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.runs import load
from analysis.runs.grouping import undisturbed
from multicard.measure import formulas
from multicard.records import limits, run_folder
from multicard.records.limits import Forbids
from multicard.sweep import slurm_submit, slurm_wait
from multicard.sweep.again import Again
from tests.helpers import cells, records
from tests.helpers.messages import codes, find, says
from tests.sweep.conftest import Measure

TWO = ("precision=fp32,bf16", "repeat=3", "order=typed")
FIRST = [(precision, 0, repetition) for repetition in (1, 2, 3) for precision in ("fp32", "bf16")]


def at(*disturbed: tuple[str, int]) -> Any:
    """Others use the cores during these runs, by precision and repetition."""
    return lambda precision, repetition: (precision, repetition) in disturbed


def test_a_disturbed_repetition_is_measured_once_more_and_kept(sweep: Measure, tmp_path: Path):
    slow = lambda precision, repetition: 0.3 if (precision, repetition) == ("bf16", 2) else 0.1  # noqa: E731
    code, printed, measured = sweep(*TWO, step_s=slow, busy=at(("bf16", 2)))
    assert code == 0 and measured == [*FIRST, ("bf16", 0, 4)]
    assert says(printed, "repeat.again", key="repeat", runs=1, of=6, by={"loaded": 1})
    assert not says(printed, "repeat.still-disturbed")
    (folder,) = tmp_path.glob("s/*bf16*-r4")
    assert (run_folder.read_json(folder / "result.json") or {})["repetition"] == 4
    runs = [run for run in load.read_runs([tmp_path / "s"]).runs if run["precision"] == "bf16"]
    # the record of the first is kept
    assert sorted(run["repetition"] for run in runs) == [1, 2, 3, 4]
    assert sorted(run["repetition"] for run in undisturbed(runs)) == [1, 3, 4]


def test_a_quiet_sweep_is_as_long_as_it_was(sweep: Measure):
    _, printed, measured = sweep(*TWO)
    assert measured == FIRST and not says(printed, "repeat.again")


@pytest.mark.slow
def test_a_machine_that_is_always_busy_ends(sweep: Measure):
    always = lambda *_: True  # noqa: E731
    code, printed, measured = sweep(*TWO, busy=always)
    assert code == 0 and len(measured) == 18 and {r for _, _, r in measured} == {*range(1, 10)}
    assert codes(printed).count("repeat.again") == 2
    left = find(printed, "repeat.still-disturbed", key="repeat_disturbed", most=2)
    assert len(left.facts["cells"]) == 6
    _, printed, more = sweep(*TWO, busy=always)
    assert more == [] and says(printed, "repeat.still-disturbed")
    _, printed, more = sweep(*TWO, "repeat_disturbed=3")  # on a machine that is quiet again
    assert more == [
        (precision, 0, repetition) for repetition in (10, 11, 12) for precision in ("fp32", "bf16")
    ]
    assert not says(printed, "repeat.still-disturbed")


def test_that_can_be_switched_off(sweep: Measure):
    _, printed, measured = sweep(*TWO, "repeat_disturbed=0", busy=lambda *_: True)
    assert (
        measured == FIRST
        and not says(printed, "repeat.again")
        and not says(printed, "repeat.still-disturbed")
    )


@pytest.mark.parametrize(
    "words", [["precision=fp32,bf16"], ["precision=fp32,bf16", "seed=0,1"], [*TWO, "probe=true"]]
)
def test_single_runs_and_probes_are_not_measured_again(words: list[str], sweep: Measure):
    once = sweep(*words, "order=typed")[2]
    _, printed, measured = sweep(*words, "order=typed", "rerun=true", busy=lambda *_: True)
    assert measured == once and not says(printed, "repeat.again")


def test_an_interrupted_sweep_goes_on_with_what_is_owed(sweep: Measure):
    busy = at(("fp32", 1), ("bf16", 3), ("fp32", 4))
    _, _, first = sweep(*TWO, busy=busy, most=6)  # interrupted as the first is measured again
    assert first == FIRST
    _, printed, rest = sweep(*TWO, busy=busy)
    assert rest == [("fp32", 0, 4), ("bf16", 0, 4), ("fp32", 0, 5)]
    assert says(printed, "repeat.again", runs=2, of=6) and says(
        printed, "repeat.again", runs=1, of=8
    )
    _, _, none = sweep(*TWO, busy=busy)
    assert none == []
    _, _, more = sweep(*TWO, "repeat=5", busy=busy)  # what was measured once more counts
    assert more == [("bf16", 0, 5), ("fp32", 0, 6), ("bf16", 0, 6), ("fp32", 0, 7)]


def test_a_dry_run_shows_the_repetitions_and_what_is_owed(sweep: Measure):
    _, printed, _ = sweep(*TWO, "dry_run=true")
    assert says(printed, "sweep.dry-run", cells=6) and not says(printed, "repeat.again")
    sweep(*TWO, busy=at(("bf16", 2)), most=6)
    _, printed, none = sweep(*TWO, "dry_run=true")
    assert (
        none == []
        and says(printed, "repeat.again", runs=1)
        and says(printed, "sweep.dry-run", cells=1)
    )


def test_batches_of_a_sweep_are_all_measured_before(sweep: Measure):
    _, _, measured = sweep(*TWO, "hydra.sweeper.max_batch_size=2", busy=at(("bf16", 1)))
    assert measured == [*FIRST, ("bf16", 0, 4)]


def test_jobs_of_slurm_too(sweep: Measure, monkeypatch: pytest.MonkeyPatch):
    arrays: list[list[tuple[str, int]]] = []

    def submit(swept: Any) -> dict[int, str]:
        arrays.append([(cell.cfg.precision.name, cell.cfg.repetition) for cell in swept.left])
        return {cell.number: f"7_{cell.number}" for cell in swept.left}

    def wait(swept: Any, jobs: dict[int, str], _: Any) -> None:
        for cell in swept.left:
            assert cell.number in jobs
            number = cell.cfg.repetition
            others = (
                {"others_cores": 8.0} if (cell.cfg.precision.name, number) == ("fp32", 2) else {}
            )
            record = records.vision("cpu", repetition=number) | {
                "step_s": formulas.statistics([0.1] * 10, 1)
            }
            record["load"] = record["load"] | others
            cell.result = records.as_run(record | {"folder": str(cell.folder)})

    monkeypatch.setattr(slurm_submit, "submit", submit)
    monkeypatch.setattr(slurm_wait, "wait", wait)
    _, printed, _ = sweep(*TWO, "hydra/launcher=submitit_slurm")
    assert arrays == [
        [(precision, repetition) for precision, _, repetition in FIRST],
        [("fp32", 4)],
    ]
    assert says(printed, "repeat.again", runs=1, of=6)


def test_what_every_run_of_a_setting_has_is_not_measured_again():
    """More ranks than cores are crowded however often they run;
    on the cores of a smaller job they were by chance.
    """
    config = replace(cells.default_config(), repeat="3", order="typed")

    def owed(*cores: int) -> int:
        again, members = Again(config), []
        for number, own in enumerate(cores, 1):
            result = records.as_run(
                records.vision("cpu", gpus=4, repetition=number) | {"cores": own}
            )
            assert bool(limits.forbidding(limits.of(result.record), Forbids.rate)) == (own < 4)
            members.append(
                cells.cell(number, result=result, overrides=["gpus=4", f"repetition={number}"])
            )
        again.take(members)
        return len(again.next_round())

    assert owed(2, 2, 2) == 0
    assert owed(2, 8, 8) == 1
