"""Races that were cut off go on as they would have gone."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.race_replays import Kind, MadeGrid
from multicard.decide.race import live
from multicard.decide.race.live import LiveRace
from multicard.decide.race.rules import OUT
from multicard.sweep.cells import Cell
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
    (cell,) = faked(SIZES[:1], tmp_path / "sweep", monkeypatch)
    cells = [of_size(cell, size) for size in SIZES]
    Process.rates = dict(zip(SIZES, np.exp(made.truth[::4]).tolist(), strict=True))

    def resume(lines: list[str]) -> LiveRace:
        folder = tmp_path / str(next(numbers))
        path = folder / ".race" / "images_per_s.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(lines))
        return LiveRace([replace(cell, folder=folder / cell.folder.name) for cell in cells])

    return resume


def of_size(cell: Cell, size: int) -> Cell:
    assert cell.config is not None
    cfg = deepcopy(cell.cfg)
    cfg.batch_size = size
    config = replace(cell.config, batch_size=size)
    return replace(cell, number=size, cfg=cfg, config=config, folder=cell.folder.parent / f"{size}-{config.identity()}")


def decide(race: LiveRace) -> tuple[Any, ...]:
    """What the rules say next, and what they rest on beside the blocks."""
    order, told = race.rules.next_round(), race.rules
    learned = told._model.log_scales.tolist()
    return order, told.fresh, told.finalists, told.ending, told._spent, dict(told._enough_s), learned


def run(race: LiveRace, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[Any, ...]], list[str]]:
    """What the rules decided in a race that runs to its end, and its lines."""
    decided: list[tuple[Any, ...]] = []
    real = race.rules.next_round

    def note() -> list[int]:
        with monkeypatch.context() as patched:
            patched.setattr(race.rules, "next_round", real)
            decided.append(decide(race))
        return decided[-1][0]

    monkeypatch.setattr(race.rules, "next_round", note)
    race.run(SHARE)
    race.journal.close()
    return decided, race.journal.path.read_text().splitlines(keepends=True)


def ends_of_rounds(lines: list[str]) -> list[int]:
    return [place for place, line in enumerate(lines, 1) if "round_s" in line]


def test_at_the_end_of_each_round_it_is_where_the_uncut_one_is(resumed: Resumed, monkeypatch: pytest.MonkeyPatch):
    decided, lines = run(resumed([]), monkeypatch)
    ends = ends_of_rounds(lines)
    assert len(ends) == len(decided) - 1 > 4 and decided[-1][4] > 0  # cells dropped out
    for number, end in enumerate(ends, 1):
        for more in (0, 1):  # the beginning of the next round, of which nothing came
            race = resumed(lines[: end + more])
            assert decide(race) == decided[number]
            race.journal.close()


def test_cut_off_within_a_round_and_again_it_is_where_it_was(resumed: Resumed, monkeypatch: pytest.MonkeyPatch):
    _, lines = run(resumed([]), monkeypatch)
    blocks = [place for place, line in enumerate(lines, 1) if "log_figure" in line]
    decided, lines = run(resumed(lines[: blocks[1]]), monkeypatch)
    ends = ends_of_rounds(lines)
    assert json.loads(lines[blocks[1]]) == {"resumed": True} and len(ends) == len(decided) - 1
    for number, end in enumerate(ends, 1):
        race = resumed(lines[:end])
        assert decide(race) == decided[number]
        race.journal.close()


def test_a_cell_that_was_killed_is_in_again(resumed: Resumed, monkeypatch: pytest.MonkeyPatch):
    first = resumed([])
    (place,) = first.rules.next_round()[:1]
    first.journal.close()
    again = resumed([])
    Process.statuses = {("block", SIZES[place]): ["killed"]}
    _, lines = run(again, monkeypatch)
    assert again.rules.standings[place].reason == "failed: rank 0 was killed by SIGKILL"
    assert [json.loads(line)["lost"] for line in lines if '"lost"' in line] == [again.rules.standings[place].reason]
    race = resumed(lines)
    assert race.rules.standings[place].state != OUT and place not in race.ended
    race.journal.close()


def test_a_race_that_was_interrupted_goes_on_and_refuses_other_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(live, "Race", Rules(2))  # two cells do not pay for themselves by the real ones
    race = LiveRace(faked([8, 16], tmp_path, monkeypatch))
    ended: list[Any] = []
    monkeypatch.setattr(Executor, "interrupt", lambda self: ended.extend(self.running))
    Process.statuses = {("block", 8): ["ok", "interrupted"], ("block", 16): ["ok", "interrupted"]}
    with pytest.raises(KeyboardInterrupt):
        race.run(SHARE)
    race.journal.close()
    assert len(ended) == 1  # that of the other cell
    capsys.readouterr()
    monkeypatch.setattr(live, "Race", told := Rules(2))
    again = LiveRace(faked([8, 16], tmp_path, monkeypatch))
    assert "goes on after 2 blocks" in capsys.readouterr().out
    known = {(block.cell, block.round) for block in told.blocks}
    assert known == {(0, 0), (1, 0)} and again.peaks == {0: [8 * 10**6], 1: [16 * 10**6]} and again.started == 2
    again.journal.close()
    with pytest.raises(ValueError, match="its race: it was cut off with another cells; choose another name"):
        LiveRace(faked([16, 8, 32], tmp_path, monkeypatch))
