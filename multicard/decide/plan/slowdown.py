"""How much slower a job of a plan is beside another: by a probe of it alone, and the steps of one that it trains while
the other is probed too."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from multicard.config.keys import require
from multicard.decide.plan import predicted_runs
from multicard.decide.plan.jobs_file import JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.places import Record, Start, ThisMachine
from multicard.decide.plan.predicted_runs import PredictedRun
from multicard.decide.plan.state import FOLDER
from multicard.estimate.history import NORMAL_95
from multicard.estimate.time.estimate import NORMAL_90
from multicard.machine import environment, private
from multicard.measure import series
from multicard.measure.timing import pause
from multicard.records import progress, run_folder, steps
from multicard.records.schema_parts import Interval
from multicard.run.session import say
from multicard.sweep import shares

POLL_S = 0.2
ALONE_S, BESIDE_S = 30.0, 60.0  # of a probe, at most; of a pair, whose trainings do not begin at once
RUN_SD, UNKNOWN_SD = 0.01, 0.05  # between two runs of the same; of a mean step whose error is not known
Steps = tuple[float, float]  # mean step in seconds, and its relative standard error


@dataclass(frozen=True)
class Measured:
    """A slowdown of the first of these jobs beside the second."""

    slowdown: Interval
    pair: tuple[str, str]
    machine: str

    def in_words(self) -> str:
        return f"as {self.pair[0]} beside {self.pair[1]} was probed on this machine"


@dataclass(frozen=True)
class _Probe:
    """A probe whose run leaves its folder in `folder`."""

    name: str
    start: Start
    folder: Path

    def run_folder(self) -> Path:
        """The run's; that above it, where it is not there yet."""
        files = (path for name in (progress.FILE, run_folder.RESULT) for path in self.folder.glob(f"*/{name}"))
        return next((path.parent for path in files), self.folder)

    def trained(self) -> int:
        """How many steps it has trained, while it trains; 0 before, and while it evaluates."""
        with suppress(OSError, ValueError):  # not there, or not whole
            now = progress.Board(self.run_folder(), 1, node=0).read(0)
            return 0 if now.evaluating else now.steps
        return 0

    def end(self) -> Mapping[str, Any]:
        """Its record's `probe`; empty where it has failed."""
        return (self.start.record() or {}).get("probe") or {}


def applied(file: JobsFile, where: PlannedNode, sweep: Path) -> JobsFile:
    """The file with the slowdown that was measured for it on this machine, where it names none."""
    known = None if file.is_slowdown_known or not is_here(file, where) else read(sweep)
    return file if known is None else replace(file, slowdown=known.slowdown, slowdown_source=known.in_words())


def is_here(file: JobsFile, where: PlannedNode) -> bool:
    """Whether the plan's runs would run beside each other on this machine."""
    is_own = file.node.gpu is None and not where.on_slurm
    return is_own and any(job.run for job in file.jobs) and where.gpus <= room(where)


def room(where: PlannedNode) -> int:
    """How many GPUs, or cores for CPU ranks, this machine has."""
    whole = shares.machine()
    return len(whole.gpus if where.on_gpus else whole.cpus)


def read(sweep: Path) -> Measured | None:
    """What was measured for a plan on this machine; None where nothing was."""
    content = run_folder.read_json(sweep / FOLDER / "slowdown.json") or {}
    try:
        value, low, high = (float(content[key]) for key in ("value", "low", "high"))
        first, second = map(str, content["pair"])
        known = Measured(Interval(value, low, high), (first, second), str(content["machine"]))
    except (KeyError, TypeError, ValueError):
        return None
    return known if known.machine == machine() and 1 <= low <= value <= high < math.inf else None


def machine() -> str:
    gpus = [str(gpu.get("name")) for gpu in environment.gpus()]
    return f"{', '.join(gpus) or environment.cpu_model()}, {environment.cores()} cores"


def measure(file: JobsFile, where: PlannedNode, place: ThisMachine, sweep: Path) -> Measured | None:
    """Probe a pair of the plan's jobs, and remember their slowdown; None, which is said, where no two fit side by side,
    or their probes hardly trained at once.

    Raises:
        ValueError: a probe has failed.
    """
    pair = chosen(file, where)
    if pair is None:
        say("no slowdown is probed: no two jobs of the plan fit beside each other")
        return None
    folder = (sweep / FOLDER / "slowdown").absolute()  # below a hidden folder: no prediction rests on these probes
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names, log = (pair[0].job.name, pair[1].job.name), folder / "probes.log"
    wanted = ((pair[0], "alone", ALONE_S), (pair[0], "beside0", BESIDE_S), (pair[1], "beside1", BESIDE_S))
    alone, *both = [
        _Probe(run.job.name, _start(run, where, folder / name, seconds), folder / name) for run, name, seconds in wanted
    ]
    say(f"probing {names[0]} alone, and beside {names[1]}, for how much runs side by side slow each other")
    _run(place, [alone], log)
    beside = _within(both[0], overlap(_run(place, both, log)))
    if beside is None:
        few = f"{names[0]} trained fewer than {series.MIN_SAMPLES} steps while {names[1]} trained"
        say(f"no slowdown is measured: {few}; slowdown: in the file sets it")
        return None
    known = Measured(ratio(_known(alone.end()), beside), names, machine())
    content = {"value": known.slowdown.value, "low": known.slowdown.low, "high": known.slowdown.high}
    run_folder.write_text(
        sweep / FOLDER / "slowdown.json", json.dumps(content | {"pair": names, "machine": known.machine}) + "\n"
    )
    return known


def chosen(file: JobsFile, where: PlannedNode) -> tuple[PredictedRun, PredictedRun] | None:
    """Two jobs on their fewest GPUs that fit beside each other: the first two of the file; a job beside itself where
    it alone repeats."""
    runs = [run for job in file.jobs if job.run for run in predicted_runs.configured(job, where)[:1] * job.repeat]
    sound = [run for run in runs if run.config is not None]
    pairs = [(one, other) for number, one in enumerate(sound) for other in sound[number + 1 :]
             if one.gpus + other.gpus <= where.gpus]  # fmt: skip
    return min(pairs, key=lambda pair: pair[0].job is pair[1].job, default=None)


def ratio(alone: Steps, beside: Steps) -> Interval:
    """How much longer a step takes beside another job, with its 90 % interval; not below 1."""
    sd = math.sqrt(alone[1] ** 2 + beside[1] ** 2 + RUN_SD**2)
    value, half = beside[0] / alone[0], math.exp(NORMAL_90 * sd)
    return Interval(*(max(each, 1.0) for each in (value, value / half, value * half)))


def _start(run: PredictedRun, where: PlannedNode, folder: Path, seconds: float) -> Start:
    assert run.config is not None
    entry, *words = run.job.run
    probe = ["probe=true", "probe.error=0.1%", f"probe.seconds={seconds:g}", f"hydra.sweep.dir={folder}"]
    command = (str(private.ROOT / entry), "-m", *predicted_runs.packing(where), *words, f"gpus={run.gpus}", *probe)

    def record() -> Record | None:
        return next((run_folder.read_json(path) for path in folder.glob(f"*/{run_folder.RESULT}")), None)

    gpus, cores = shares.demand(run.config, shares.machine())
    return Start(command, run.gpus, cores, gpus is not None, record)


def _run(place: ThisMachine, probes: Sequence[_Probe], log: Path) -> list[tuple[int, ...]]:
    """Run probes side by side. Returns how many steps each had trained, whenever that was looked at.

    Raises:
        ValueError: one has failed.
    """
    while not (processes := place.start_together([probe.start for probe in probes], log)):
        pause(POLL_S)
    place.wait_no_more()
    seen = []
    while not all(process.has_ended() for process in processes):
        seen.append(tuple(probe.trained() for probe in probes))
        pause(POLL_S)
    for probe, process in zip(probes, processes, strict=True):
        place.give_back(process)
        require(bool(probe.end()), f"the probe of {probe.name} for the slowdown has failed; see {log}")
    return seen


def overlap(seen: Sequence[tuple[int, ...]]) -> slice:
    """The steps of the first of two probes, from 0, that it trained while the second trained too: from the first look
    at which both had trained a step, to the last one before which the second ended another.

    Args:
        seen: how many steps each had trained; 0 while it does not.
    """
    both = [look for look, trained in enumerate(seen) if min(trained) > 0]
    later = [look for look in both[1:] if seen[look][1] > seen[look - 1][1]]
    return slice(seen[both[0]][0] + 1, seen[later[-1]][0]) if later else slice(0)


def _within(probe: _Probe, window: slice) -> Steps | None:
    """The mean of these steps of a probe, of which the first of an epoch do not count; None where they are few."""
    seconds = steps.step_times_s(probe.run_folder())
    is_first = np.arange(len(seconds)) % (probe.end().get("steps_per_epoch") or len(seconds)) == 0
    samples = seconds[window][~is_first[window]]
    return _known(asdict(series.mean_step(samples))) if len(samples) >= series.MIN_SAMPLES else None


def _known(end: Mapping[str, Any]) -> Steps:
    half_width = end["half_width"]
    return end["step_s"], UNKNOWN_SD if half_width is None else abs(half_width) / NORMAL_95
