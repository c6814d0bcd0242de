"""Races that were cut off go on as they would have gone, also one on CPU ranks whose command was killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.race import Kind, MadeGrid
from multicard.decide.race import live
from multicard.decide.race.live import FOLDER, LiveRace
from multicard.decide.race.rules import CLOSE, OUT
from multicard.records import ownership, rank_files
from multicard.sweep.executor import Executor
from tests.conftest import PATIENCE_S, ROOT, SMALL, assert_gone, awaited
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


def test_a_race_that_was_interrupted_goes_on_and_refuses_other_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    assert "goes on after 2 blocks" in capsys.readouterr().out
    known = {(block.cell, block.round) for block in again.rules._blocks}
    assert known == {(0, 0), (1, 0)} and again.peaks == {0: [8 * 10**6], 1: [16 * 10**6]} and again.started == 2
    again.journal.close()
    with pytest.raises(ValueError, match="its race: it was cut off with another cells; choose another name"):
        LiveRace(faked([16, 8, 32], tmp_path, monkeypatch))


WORDS = (*SMALL, "lr=0.1,0.2", "model.width=0.35", "race=images_per_s", "race.block=0.5")


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_a_race_goes_on_after_a_killed_rank_and_after_a_killed_command(tmp_path: Path):
    def start() -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "tests.helpers.race_entry", "-m", *WORDS, f"hydra.sweep.dir={tmp_path}"]
        one = subprocess.STDOUT
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=one, text=True, cwd=ROOT, start_new_session=True)

    def known(wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        (path,) = tmp_path.glob(f"{FOLDER}/*.jsonl")
        lines = path.read_text().splitlines(keepends=True)
        return [line for line in map(json.loads, (each for each in lines if each.endswith("\n"))) if wanted(line)]

    def starts(cell: int) -> list[dict[str, Any]]:
        return known(lambda line: line.get("cell") == cell and "process" in line and "round" not in line)

    first = start()
    awaited(lambda: [*tmp_path.glob(f"{FOLDER}/*.jsonl")] and known(lambda line: "log_figure" in line))
    victim = known(lambda line: "log_figure" in line)[0]["cell"]
    (folder,) = tmp_path.glob(f"*{known(lambda line: 'cells' in line)[0]['cells'][victim]}-probe")
    (rank,) = rank_files.read(folder)
    assert len(starts(victim)) == 1
    os.kill(rank.pid, signal.SIGKILL)
    awaited(lambda: len(starts(victim)) == 2)  # tried again alone, as its rank may have wanted the other's memory
    family = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    assert_gone(family)

    second = start()
    said, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, said
    assert "goes on after" in said and "winner: [" in said
    results = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")}
    probes = [record for name, record in results.items() if name.endswith("-probe") and record["status"] == "ok"]
    (final,) = [record for name, record in results.items() if not name.endswith("-probe")]
    assert final["status"] == "ok" and final["probe"] is None and final["config"]["race"]["figure"] is None
    assert {probe["probe"]["ended_by"] for probe in probes} == {"race"}
    assert all(probe["load"]["others_cores"] >= 0 and probe["beside"] is None for probe in probes)
    assert not [*tmp_path.glob(f".*{ownership.RUNNING}")]
