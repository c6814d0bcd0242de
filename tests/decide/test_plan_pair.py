"""The slowdown of jobs side by side, by probes of a pair."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicard.decide.plan import jobs_file, slowdown
from multicard.decide.plan.jobs_file import JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.places import Start, ThisMachine
from multicard.measure.timing import clock_s
from multicard.records import run_folder
from multicard.records.progress import Board
from multicard.records.schema_parts import Interval
from tests.conftest import PATIENCE_S
from tests.helpers.plan_world import World, in_folder

# Is there until it is let go
PROBE = """
import sys, time
from pathlib import Path
run = Path(sys.argv[1]) / "run"
run.mkdir(parents=True)
(run / "begun").touch()
while not (run / "result.json").exists():
    time.sleep(0.02)
"""
STEPS = 100  # of each probe, in epochs of 50
WHERE = PlannedNode(2, False, ("exclusive=false", "cpus_per_gpu=1"))


class Probes:
    """Probes that train a step of 1 s, and one of 1.2 s while another trains too.

    They are looked at instead of a pause, and move on from look to look. Those that never see one another end alone.

    Args:
        together: how many steps each of a pair has trained, look by look.
    """

    def __init__(self, folder: Path, together: list[tuple[int, int]]) -> None:
        self.folder, self.together, self.ends_s = folder, together, clock_s() + PATIENCE_S
        self.script = folder.parent.parent / "probe.py"
        self.script.write_text(PROBE)

    def start(self, run: Any, _: Any, folder: Path, seconds: float) -> Start:
        record = folder / "run" / "result.json"
        words = (str(self.script), str(folder), str(seconds))
        return Start(words, run.gpus, 0, True, lambda: run_folder.read_json(record))

    def look(self, _: float) -> None:
        assert clock_s() < self.ends_s, "the probes of the pair do not run at once"
        alone, *both = (self.folder / name / "run" for name in ("alone", "beside0", "beside1"))
        if (alone / "begun").exists() and not (alone / "result.json").exists():
            self.end(alone, slice(0))
        if all((run / "begun").exists() for run in both):
            steps = self.together.pop(0) if self.together else None
            for place, run in enumerate(both):
                if steps is None:
                    self.end(run, slice(20, 80))
                else:
                    board = Board(run, 1, create=not (run / ".progress").exists(), node=0)
                    board.post(0, steps[place], STEPS, 0, 0, 0.5)

    def end(self, run: Path, slow: slice) -> None:
        step_s = np.ones(STEPS)
        step_s[slow] = 1.2
        step_s[::50] = 30.0  # the first of an epoch waits for its batch
        epoch, step = np.divmod(np.arange(STEPS), 50)
        columns = {"epoch": epoch, "rank": np.zeros(STEPS, int), "step": step, "step_s": step_s}
        run_folder.write_parquet(run / "steps.parquet", columns)
        probe = {"step_s": 1.0, "half_width": 0.0196, "steps_per_epoch": 50}
        run_folder.write_json(run / "result.json", {"probe": probe})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return in_folder(tmp_path, monkeypatch)


def probed(world: World, monkeypatch: pytest.MonkeyPatch, together: list[tuple[int, int]]) -> tuple[JobsFile, Path]:
    """A file of two jobs, and the folder of its plan, of which the pair's probes train so."""
    sweep = world.folder / "multirun" / "mine"
    sweep.mkdir(parents=True)
    probes = Probes(sweep / ".plan" / "slowdown", together)
    monkeypatch.setattr(slowdown, "_start", probes.start)
    monkeypatch.setattr(slowdown, "pause", probes.look)
    monkeypatch.setattr(slowdown, "room", lambda _: 2)
    run = {"run": "train_vision.py device=cpu", "seconds": {1: 10, 2: 6}}
    file = jobs_file.parsed({"jobs": {"a": run, "b": run | {"run": "train_vision.py device=cpu seed=3"}}})
    return file, sweep


def test_a_pair_is_probed_alone_and_side_by_side(world: World, monkeypatch: pytest.MonkeyPatch):
    looks = [(0, 0), (8, 0), (20, 5), (50, 6), (80, 20), (95, 20)]
    file, sweep = probed(world, monkeypatch, looks)
    assert slowdown.applied(file, WHERE, sweep) is file and not file.slowdown_source
    place = ThisMachine(2)
    measured = slowdown.measure(file, WHERE, place, sweep)
    assert measured is not None and measured.pair == ("a", "b")
    assert measured.slowdown.value == pytest.approx(1.2)  # of the steps from 21 to 79, not the mean of all
    assert measured.slowdown.high / measured.slowdown.value == pytest.approx(math.exp(1.645 * 2**0.5 * 0.01))
    assert sorted(place.machine.free.gpus) == sorted(place.machine.whole.gpus)
    known = slowdown.applied(file, WHERE, sweep)
    assert known.slowdown == measured.slowdown and not known.is_slowdown_known
    assert known.slowdown_source == "as a beside b was probed on this machine"
    assert not slowdown.is_here(file, replace(WHERE, gpus=3))  # an imagined node
    monkeypatch.setattr(slowdown, "machine", lambda: "another")
    assert slowdown.applied(file, WHERE, sweep) is file  # it holds on the machine that it was measured on
    assert slowdown.chosen(file, replace(WHERE, gpus=1)) is None
    assert slowdown.ratio((1.0, 0.0), (0.9, 0.0)) == Interval(1.0, 1.0, 1.0)


def test_probes_that_hardly_train_at_once_tell_no_slowdown(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file, sweep = probed(world, monkeypatch, [(60, 0), (90, 1), (95, 2), (99, 2)])
    assert slowdown.measure(file, WHERE, ThisMachine(2), sweep) is None
    assert slowdown.applied(file, WHERE, sweep) is file
    assert "no slowdown is measured: a trained fewer than 8 steps while b trained; " in capsys.readouterr().out


def test_the_steps_of_a_probe_while_the_other_trains():
    for seen, steps in (
        ([], []),
        ([(5, 0), (9, 0), (0, 3), (0, 9)], []),  # one after the other
        ([(5, 0), (9, 1), (12, 1)], []),  # the second is not seen to train a step
        ([(5, 0), (9, 1), (12, 2), (15, 2)], [10, 11]),  # step 9 may have begun before
        ([(2, 1), (5, 4), (0, 8), (9, 9), (12, 10), (15, 0)], [3, 4, 5, 6, 7, 8, 9, 10, 11]),  # one evaluates
    ):
        assert [*range(STEPS)][slowdown.overlap(seen)] == steps
