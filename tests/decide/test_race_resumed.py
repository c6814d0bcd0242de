"""Races that were cut off go on as they would have gone."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.race import Kind, MadeGrid
from multicard.decide.race import live
from multicard.decide.race.live import LiveRace
from multicard.decide.race.rules import CLOSE, OUT
from multicard.sweep.executor import Executor
from tests.helpers.race_fakes import SHARE, Process, Rules, faked

SIZES = [*range(100, 124)]  # batch sizes, by which cells are told apart
SEED = 20_000
Resumed = Callable[..., LiveRace]


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resumed:
    """A race of a quarter of a made grid, which goes on after these lines of an earlier one."""
    made, numbers = MadeGrid(Kind(), SEED), count()
    monkeypatch.setattr(live, "settings", lambda _: made.settings[::4])
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
    assert len(ends) > 4 and first.rules._spent > 0  # cells dropped out
    for kept in (ends[1], ends[2] + 3, ends[-1]):  # at the end of a round, within one, and before the full runs
        again = resumed([json.dumps(entry) + "\n" for entry in entries[:kept]])
        blocks = [entry for entry in entries[:kept] if "log_figure" in entry]
        assert [(each.cell, each.process) for each in again.rules._blocks] == [
            (e["cell"], e["process"]) for e in blocks
        ]
        assert again.raced_s == pytest.approx(sum(entry.get("round_s", 0.0) for entry in entries[:kept]))
        ran(again)
        assert again.rules.finalists == first.rules.finalists and again.rules.ending == first.rules.ending


def test_a_race_that_was_cut_off_in_its_full_runs_has_its_finalists(resumed: Resumed):
    first = resumed([])
    entries = ran(first)
    entries[-1] |= {"ending": CLOSE, "finalists": [3, 5]}
    again = resumed([json.dumps(entry) + "\n" for entry in entries])
    Process.log.clear()
    assert ran(again)[: len(entries)] == entries and not Process.log
    assert (again.rules.ending, again.rules.finalists) == (CLOSE, (3, 5))
    beaten = [[each.cell for each in race.rules.standings if each.state == OUT] for race in (first, again)]
    assert beaten[1] == beaten[0] != []


def test_a_cell_that_was_killed_is_in_again(resumed: Resumed):
    first = resumed([])
    (place,) = first.rules.next_round()[:1]
    first.journal.close()
    again = resumed([])
    Process.statuses = {("block", SIZES[place]): ["killed"]}
    entries = ran(again)
    assert again.rules.standings[place].reason == "failed: rank 0 was killed by SIGKILL"
    race = resumed([json.dumps(entry) + "\n" for entry in entries])
    assert race.rules.standings[place].state != OUT
    race.journal.close()


def test_a_race_that_was_interrupted_goes_on_and_refuses_other_cells(tmp_path: Path, monkeypatch, capsys):
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
    assert "goes on after 2 blocks" in capsys.readouterr().out
    known = {(block.cell, block.round) for block in again.rules._blocks}
    assert known == {(0, 0), (1, 0)} and again.peaks == {0: [8 * 10**6], 1: [16 * 10**6]} and again.started == 2
    again.journal.close()
    with pytest.raises(ValueError, match="its race: it was cut off with another cells; choose another name"):
        LiveRace(faked([16, 8, 32], tmp_path, monkeypatch))
