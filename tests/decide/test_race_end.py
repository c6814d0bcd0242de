"""How cells of a race end, what it says at its own end,
and races that were cut off: they go on as they would have.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.race import MadeGrid, WorldKind
from multicard.decide.race import command, final_runs, live, outcome, race_cells, readings
from multicard.decide.race.final_runs import FinalRuns
from multicard.decide.race.live import LiveRace
from multicard.decide.race.outcome import BEATEN, CLOSE, IN, OUT, RaceVerdict, Standing
from multicard.messages import Message
from multicard.records.figures import FIGURES
from multicard.sweep.executor import Executor
from tests.conftest import typed_llm
from tests.helpers import records
from tests.helpers.messages import codes, find, says
from tests.helpers.race_fakes import KILLED_BY, SHARE, Process, Rules, faked

MB = 10**6


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 120 columns, and rules that end a race
    after two rounds and one full run of each.
    """
    monkeypatch.setattr(command.text_table, "terminal_width", lambda: 120)
    monkeypatch.setattr(live, "FINAL_RUNS", 1)
    monkeypatch.setattr(live, "Race", Rules)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("status", ["oom", "diverged", "failed", "not finite"])
def test_a_cell_that_ends_by_itself_is_out_and_the_race_goes_on(
    status: str, tmp_path: Path, monkeypatch
):
    race = LiveRace(faked([8, 16, 32], tmp_path, monkeypatch))
    Process.statuses = {("block", 32): [status] * 9}
    race.run(SHARE)
    race.journal.close()
    reason = race.rules.standings[2].reason
    assert race.rules.standings[2].failed
    if status == "not finite":
        assert codes(reason) == ["race.loss-not-finite"]
    else:
        assert says(reason, "race.ended-by-itself", status=status, cause="of its own")
    assert {block.cell for block in race.rules._blocks} == {0, 1} and race.rules.finalists == (1, 0)
    # what failed may be tried again
    lines = [json.loads(line) for line in race.journal.path.read_text().splitlines()]
    assert [line["out"] for line in lines if "out" in line] == [reason] * (status != "failed")


# ---- full runs


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("accuracies", "winner", "missed"),
    [
        ((0.95, 0.92, 0.85), "[2/3]", ["[3/3]"]),
        ((0.95, 0.92, 0.91), "[3/3]", []),
        ((0.8, 0.82, 0.85), None, ["[1/3]", "[2/3]", "[3/3]"]),
    ],
)
def test_a_cell_that_missed_its_target_does_not_win(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accuracies: Sequence[float],
    winner: str | None,
    missed: list[str],
):
    """Three cells, of which each was measured in full and ended at this accuracy;
    90 % were asked for.
    """
    monkeypatch.setattr(
        readings, "full_run_reading", lambda run, _: (float(run.record.repetition), 0.01)
    )
    race = LiveRace(faked([8, 16, 32], tmp_path, monkeypatch, "target_accuracy=0.9"))
    race.run(SHARE)
    finals = FinalRuns(race).cells()
    for cell in finals:
        accuracy = accuracies[cell.number - 1]
        own = {
            "repetition": cell.number,
            "time_to_target_s": 5.0 if accuracy >= 0.9 else None,
            "total_s": 9.0,
        }
        cell.result = records.as_run(own | {"test_accuracy": accuracy})
    FinalRuns(race).take(finals)
    race.journal.close()
    lines = command.end_lines(race, finals)
    said = "\n".join(line for line in lines if isinstance(line, Message))
    assert says(said, "race.winner", cell=winner) == (winner is not None), said
    assert says(said, "race.none-reached-target") == (winner is None)
    assert says(said, "race.beaten-by-missed") == (winner is not None and bool(missed))
    assert "race.accuracy" not in codes(said)
    reasons = {each.cell: each.reason for each in race.rules.standings if each.missed}
    assert [race.cells[place].label.strip() for place in reasons] == missed
    for place, reason in reasons.items():
        assert says(reason, "race.missed-target", target=0.9, reached=accuracies[place])
    shown = [find(said, "race.out", cell=cell) for cell in missed if winner is None]
    assert [each.facts["reason"].facts["reached"] for each in shown] == [*accuracies][: len(shown)]


@pytest.mark.parametrize(
    ("target", "time_s", "code"),
    [(1.5, None, "race.missed-target-loss"), (1.5, 9.0, None), (None, None, None)],
)
def test_a_tuning_cell_that_missed_its_target_of_held_out_loss_does_not_win(
    target: float | None, time_s: float | None, code: str | None
):
    rows = records.held_out_rows([2.0] * 10)
    record = records.as_record(records.llm(time_to_target_s=time_s) | records.evaluated(rows))
    cell: Any = SimpleNamespace(cfg={"target_loss": target})
    reason = final_runs._missed_target(cell, record)
    if code is None:
        assert reason is None
    else:
        assert says(reason, code, target=1.5, reached=2.0)
        assert Standing(0, OUT, reason, 3, 1.0, 0.01).missed


@pytest.mark.parametrize("target", ["target_loss=null", "target_loss=1.5"])
def test_a_race_of_tuning_vouches_for_its_loss_where_it_has_a_target(target: str):
    configs = [
        typed_llm(f"method={method}", "dataset.split=0.1", target) for method in ("lora", "full")
    ]
    cells: Any = [SimpleNamespace(config=config) for config in configs]
    assert bool(command._differing(cells)) == (target == "target_loss=null")


# ---- what is said


def standing(cell: int, log_figure: float, error: float = 0.003, reason: str = "") -> Standing:
    return Standing(cell, OUT if reason else IN, reason, 3, log_figure, error)


@pytest.mark.usefixtures("wide")
def test_the_end_of_a_grid_of_five_axes_fits_120_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cells = faked([16, 128], tmp_path, monkeypatch, "precision=bf16", "gpus=2", "loader=batched")
    cells += faked([64, 256], tmp_path, monkeypatch, "layout=nhwc")
    cells = [
        replace(cell, number=place, label=f"[{place}/144] ") for place, cell in enumerate(cells, 11)
    ]
    known = [standing(place, 8.0 - place / 10) for place in range(3)]
    beaten = Message(BEATEN, "far behind", behind=0.642, at_least=0.639)
    known.append(standing(3, 7.0, reason=beaten))
    told = SimpleNamespace(
        ending=outcome.TIME,
        standings=known,
        verdict=lambda: RaceVerdict(0, 0.83, (1,)),
        final_runs=[(0, 0)],
        bursts=False,
    )
    race: Any = SimpleNamespace(
        cells=cells, options=cells[0].config.race, figure=FIGURES["images_per_s"], rules=told, raced_s=60.0,
        peaks={place: [570 * MB] for place in range(4)}, full_s=lambda: 100.0, on_gpus=False,
    )  # fmt: skip
    final = replace(cells[0], result=records.as_run({"test_accuracy": 0.875, "total_s": 60.0}))
    said = command.end_lines(race, [final])
    assert max(map(len, said[1:6])) <= 120 and "64.2%" in said[5], "\n".join(said)
    for axis in ("precision", "gpus", "loader", "batch_size", "layout"):
        assert axis in said[1], said[1]
    text = "\n".join(line for line in said if isinstance(line, Message))
    assert find(text, "race.ended").facts["reason"].code == outcome.ENDINGS[outcome.TIME].code
    assert says(text, "race.equal", cells="[12/144]") and says(text, "race.winner", cell="[11/144]")
    assert says(text, "race.less-sure", key="race.confidence", value=0.95, sure=0.83)
    assert says(text, "race.accuracy", keys=["precision", "batch_size", "gpus"])
    assert find(text, "race.cost").facts == {
        "seconds": 120.0,
        "final_runs_s": 60.0,
        "grid_s": 400.0,
    }


SIZES = [*range(100, 124)]  # batch sizes, by which cells are told apart
SEED = 20_003  # the best is so by 8 %
Resumed = Callable[..., LiveRace]


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resumed:
    """A race of a quarter of a made grid, which goes on after these lines of an earlier one."""
    made, numbers = MadeGrid(WorldKind(), SEED), count()
    monkeypatch.setattr(race_cells, "settings", lambda _: made.settings[::4])
    cells = faked(SIZES, tmp_path / "sweep", monkeypatch)
    Process.rates = dict(zip(SIZES, np.exp(made.truth[::4]).tolist(), strict=True))

    def resume(lines: list[str]) -> LiveRace:
        folder = tmp_path / str(next(numbers))
        path = folder / ".race" / "images_per_s.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(lines))
        return LiveRace([replace(cell, folder=folder / cell.folder.name) for cell in cells])

    return resume


def ran(race: LiveRace) -> list[dict[str, Any]]:
    """The journal of a race that runs to its end."""
    race.run(SHARE)
    race.journal.close()
    return [json.loads(line) for line in race.journal.path.read_text().splitlines()]


def test_a_race_goes_on_with_all_that_an_earlier_command_measured(resumed: Resumed):
    first = resumed([])
    entries = ran(first)
    ends = [place for place, entry in enumerate(entries, 1) if "round_s" in entry]
    assert len(ends) > 4 and first.rules._outs.spent > 0  # cells dropped out
    # at the end of a round, within one, and before the full runs
    for kept in (ends[1], ends[2] + 3, ends[-1]):
        again = resumed([json.dumps(entry) + "\n" for entry in entries[:kept]])
        blocks = [entry for entry in entries[:kept] if "log_figure" in entry]
        assert [(each.cell, each.process) for each in again.rules._blocks] == [
            (e["cell"], e["process"]) for e in blocks
        ]
        assert again.raced_s == pytest.approx(
            sum(entry.get("round_s", 0.0) for entry in entries[:kept])
        )
        ran(again)
        assert (
            again.rules.finalists == first.rules.finalists
            and again.rules.ending == first.rules.ending
        )


def test_a_race_that_was_cut_off_in_its_full_runs_has_its_finalists(resumed: Resumed):
    first = resumed([])
    entries = ran(first)
    entries[-1] |= {"ending": CLOSE, "finalists": [3, 5]}
    again = resumed([json.dumps(entry) + "\n" for entry in entries])
    Process.log.clear()
    assert ran(again)[: len(entries)] == entries and not Process.log
    assert (again.rules.ending, again.rules.finalists) == (CLOSE, (3, 5))
    beaten = [
        [each.cell for each in race.rules.standings if each.state == OUT] for race in (first, again)
    ]
    assert beaten[1] == beaten[0] != []


def test_a_cell_that_was_killed_is_in_again(resumed: Resumed):
    first = resumed([])
    (place,) = first.rules.next_round()[:1]
    first.journal.close()
    again = resumed([])
    Process.statuses = {("block", SIZES[place]): ["killed"]}
    entries = ran(again)
    assert says(
        again.rules.standings[place].reason,
        "race.ended-by-itself",
        status="failed",
        cause=KILLED_BY,
    )
    race = resumed([json.dumps(entry) + "\n" for entry in entries])
    assert race.rules.standings[place].state != OUT
    race.journal.close()


def test_a_race_that_was_interrupted_goes_on_and_refuses_other_cells(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setattr(live, "Race", Rules)  # two cells do not pay for themselves by the real ones
    race = LiveRace(faked([8, 16], tmp_path, monkeypatch))
    ended: list[Any] = []
    monkeypatch.setattr(Executor, "interrupt", lambda self: ended.extend(self.running))
    Process.statuses = {("block", 8): ["ok", "interrupted"], ("block", 16): ["ok", "interrupted"]}
    with pytest.raises(KeyboardInterrupt):
        race.run(SHARE)
    race.journal.close()
    assert len(ended) == 1  # that of the other cell
    capsys.readouterr()
    again = LiveRace(faked([8, 16], tmp_path, monkeypatch))
    assert says(capsys.readouterr().out, "race.resumed", blocks=2)
    known = {(block.cell, block.round) for block in again.rules._blocks}
    assert (
        known == {(0, 0), (1, 0)}
        and again.peaks == {0: [8 * 10**6], 1: [16 * 10**6]}
        and again.started == 2
    )
    again.journal.close()
    with pytest.raises(ValueError, match="cells"):
        LiveRace(faked([16, 8, 32], tmp_path, monkeypatch))
