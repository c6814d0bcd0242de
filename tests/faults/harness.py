"""A fault as data, the trial that causes it, and what must be true afterwards of every one.

A fault strikes a tiny command at a point that the command has come to. Afterwards the same command
is typed again,
without the fault: every cell must end with one whole record, none measured twice,
and nothing may be left.
"""

import math
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any, Self

import psutil

from multicard.measure.timing import clock_s, pause
from multicard.records import run_folder
from tests.faults import work

ROOT = Path(__file__).parent.parent.parent
POLL_S = 0.02
WITHIN_S = 400.0  # a command ends, or comes to a point
GONE_WITHIN_S = 60.0  # what a command started ends after it
# in the environment of all that the command starts, jobs of SLURM too
TOKEN = "MULTICARD_FAULT_TRIAL"
# What a sweep's folder has while its runs go on, and no longer
PASSING = (
    ".*.running",
    ".progress*",
    ".agent*",
    ".work*",
    ".*.json.*",
    ".*.parquet.*",
    "segments.json",
    "checkpoint",
)

Act = Callable[["Trial"], object]
Records = dict[Path, dict[str, Any]]

ENTRY = "tests/faults/entry.py"
TINY = (
    *(
        "device=cpu",
        "dataset.image_size=32",
        "dataset.train_limit=64",
        "dataset.test_limit=32",
        "epochs=2",
    ),
    *(
        "batch_size=16",
        "model.width=0.35",
        "warmup_steps=1",
        "num_workers=0",
        "tracker.mode=disabled",
    ),
)
# the fault strikes the first cell
SWEEP = ("-m", "hydra.sweep.dir={sweep}", *TINY, "gpus=2", "seed=1,2")
RUN = ("hydra.run.dir={sweep}", *TINY)


def nothing(_: "Trial") -> None: ...


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        words: the command's; {sweep} is the sweep's folder, {trial} the folder of this trial.
        entry: the script, in the repository's root.
        inside: what a rank or the controller of the first cell does at one of its own points
            (work.py): "hold@step3".
        prefix: a command that runs the command, as prlimit does.
        variables: added to the command's environment.
        prepare: called before the command is typed.
        at: true once the command has come to the point at which `act` is called; None: no act.
        mend: called before the command is typed again.
        code: the command's exit code; a negative number is a signal, None any.
        says: a regular expression that matches exactly one line of the output.
        lines: the most lines that the output may have.
        statuses: of the records, sorted, when the command has ended; None: any.
        ends: the same after the command was typed again; None: it is not typed again.
        check: says what else is wrong; None where nothing is.
        needs: says why the fault cannot be caused on this machine; "" where it can.
    """

    name: str
    words: tuple[str, ...] = SWEEP
    entry: str = ENTRY
    inside: str = ""
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Act = nothing
    at: Act | None = None
    act: Act = nothing
    mend: Act = nothing
    code: int | None = 1
    says: str = ""
    lines: int | None = None
    statuses: tuple[str, ...] | None = None
    ends: tuple[str, ...] | None = ("ok", "ok")
    check: Callable[["Trial"], str | None] = nothing
    needs: Callable[[], str] = str


class Command:
    """A running command, in a session of its own, and its lines."""

    def __init__(self, line: list[str], variables: dict[str, str], root: Path) -> None:
        self.lines: list[str] = []
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=both,
            cwd=root,
            env=variables,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    def wait(self) -> int:
        """The exit code.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        code = self.process.wait(WITHIN_S)
        self._reader.join(1.0)  # longer only where something else still holds the pipe
        return code

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def said(self, pattern: str) -> list[str]:
        """The lines with this regular expression."""
        return [line for line in [*self.lines] if re.search(pattern, line)]


class Trial:
    """A fault's command in a folder of its own."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self.fault, self.folder, self.sweep = fault, folder, folder / "sweep"
        self.root = ROOT  # where commands are typed
        self.commands: list[Command] = []
        self.command: Command  # that the fault strikes
        # a short path: sockets are made in it
        self.temporary = Path(tempfile.mkdtemp(prefix="fault"))
        self.after = ExitStack()  # undoes what `prepare` and `act` have done to the machine
        self._token = secrets.token_hex(8)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.stop()
        self.after.close()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def start(self, again: bool = False) -> Command:
        """Start the command: `again` without the fault."""
        own = {
            TOKEN: self._token,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(self.root),
            "OMP_NUM_THREADS": "1",
        }
        own |= {work.FOLDER: str(self.folder)}
        line = [sys.executable, self.fault.entry, *self.fault.words]
        if not again:
            line = [*self.fault.prefix, *line]
            own |= {work.VARIABLE: self.fault.inside, **self.fault.variables}
        line = [
            word.replace("{sweep}", str(self.sweep)).replace("{trial}", str(self.folder))
            for word in line
        ]
        self.commands.append(Command(line, os.environ | own, self.root))
        return self.commands[-1]

    def wait_for(self, point: Act) -> None:
        """Wait until the last command has come to a point."""
        command, until_s = self.commands[-1], clock_s() + WITHIN_S
        while not point(self):
            ended = command.process.poll() is not None
            assert not ended or point(self), (
                f"it ended before the point of the fault: {command.output}"
            )
            assert clock_s() < until_s, "the point of the fault was not reached"
            pause(POLL_S)

    def release(self) -> None:
        """Let a rank, or a controller, that holds go on."""
        (self.folder / work.GO).touch()

    def holder(self) -> int:
        """The process that holds."""
        return int((self.folder / work.REACHED).read_text())

    def starts(self) -> Counter[str]:
        """How often each rank was started so far: "RANK FOLDER"."""
        path = self.folder / work.STARTS
        return Counter(path.read_text().splitlines() if path.exists() else ())

    def first_run(self) -> Path:
        """The folder of the cell that the fault strikes."""
        return next(self.sweep.glob(f"[!.]*seed={work.SEED}*"))  # its claim lies beside it

    def family(self) -> list[psutil.Process]:
        """All processes of this trial, wherever they were started."""
        own = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if (
                    process.environ().get(TOKEN) == self._token
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    own.append(process)
        return own

    def left(self, files: bool) -> list[str]:
        """Processes that outlast the command by some time, and files that no ended run needs."""
        until_s = clock_s() + GONE_WITHIN_S
        while (family := self.family()) and clock_s() < until_s:
            pause(0.2)
        names = []
        for process in family:
            with suppress(psutil.NoSuchProcess):
                names.append(" ".join(process.cmdline()[:6]) or process.name())
        return names + [path.name for path in passing(self.sweep)] * files

    def stop(self) -> None:
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def wrong(fault: Fault, folder: Path) -> list[str]:
    """Cause a fault. What is not as it must be, in words."""
    with Trial(fault, folder) as trial:
        fault.prepare(trial)
        command = trial.command = trial.start()
        if fault.at is not None:
            trial.wait_for(fault.at)
            fault.act(trial)
        code, first = command.wait(), records(trial.sweep)
        problems = _of_the_command(fault, command, code)
        problems += _of_the_records(fault.statuses, {}, first, trial.starts())
        problems += [f"left behind: {name}" for name in trial.left(files=False)]
        if fault.ends is not None:
            trial.release()
            fault.mend(trial)
            before, starts = measured(trial.sweep), trial.starts()
            again = trial.start(again=True)
            if again.wait() or "Traceback" in again.output:
                problems.append(
                    f"typed again, it ends with {again.process.returncode}: {again.output}"
                )
            last = records(trial.sweep)
            problems += _of_the_records(fault.ends, before, last, trial.starts() - starts)
            problems += [
                f"not whole: {run.name}"
                for run, record in last.items()
                if not is_whole(run, record)
            ]
            problems += [f"left behind: {name}" for name in trial.left(files=True)]
        return problems + [problem for problem in [fault.check(trial)] if problem]


def _of_the_command(fault: Fault, command: Command, code: int) -> list[str]:
    problems, said = [], command.said(fault.says) if fault.says else [""]
    if fault.code is not None and code != fault.code:
        problems.append(f"exit code {code}, not {fault.code}: {command.output}")
    if "Traceback" in command.output:
        problems.append(f"a traceback is printed: {command.output}")
    if fault.lines is not None and len(command.lines) > fault.lines:
        problems.append(f"{len(command.lines)} lines are printed, not {fault.lines}")
    if len(said) != 1:
        problems.append(f"{len(said)} lines say {fault.says!r}, not one: {command.output}")
    return problems


def _of_the_records(
    expected: tuple[str, ...] | None, before: Records, after: Records, starts: Counter[str]
) -> list[str]:
    statuses = tuple(sorted(record["status"] for record in after.values()))
    problems = (
        [f"the records are {statuses}, not {expected}"] if expected not in (None, statuses) else []
    )
    return problems + ["cells are measured twice"] * bool(again_measured(before, after, starts))


def records(sweep: Path) -> Records:
    """The records of a sweep, by folder."""
    read = {path.parent: run_folder.read_json(path) for path in sorted(sweep.glob("*/result.json"))}
    return {folder: record for folder, record in read.items() if record is not None}


def measured(sweep: Path) -> Records:
    """Those that the same command does not measure again."""
    return {
        folder: record
        for folder, record in records(sweep).items()
        if record["status"] in run_folder.DONE
    }


def again_measured(before: Records, after: Records, starts: Counter[str]) -> int:
    """How many cells have another measurement than before, or two records,
    and how many ranks were started too often.

    Args:
        starts: of ranks, between `before` and `after`: one for each attempt,
            and none where there was a measurement.
    """
    changed = sum(
        after.get(folder, {}).get("started_at") != record["started_at"]
        for folder, record in before.items()
    )
    done = [record for record in after.values() if record["status"] in run_folder.DONE]
    identities = {(record.get("identity"), record.get("repetition")) for record in done}
    most = {
        str(folder): max(1, len(record.get("segments", []))) for folder, record in after.items()
    }
    most |= {str(folder): 0 for folder in before}
    too_often = sum(
        number > most.get(start.partition(" ")[2], number) for start, number in starts.items()
    )
    return changed + len(done) - len(identities) + too_often


def is_whole(folder: Path, record: dict[str, Any]) -> bool:
    """True if a record that says "ok" has every step of every rank and epoch exactly once: those
    that follow from its configuration, and that its attempts trained.
    """
    if record["status"] != "ok":
        return True
    steps = run_folder.read_steps(folder)
    if steps is None or list(folder.glob("steps/*")):
        return False
    rows = list(zip(*(steps[key].to_pylist() for key in ("epoch", "rank", "step")), strict=True))
    config, ranks = record["config"], record["axes"]["gpus"] * record["axes"]["nodes"]
    images = config["dataset"]["train_limit"] or record["epochs"][0]["samples"]
    numbers = range(math.ceil(images / (ranks * config["batch_size"])))
    every = sorted(product(range(config["epochs"]), range(ranks), numbers))
    return sorted(rows) == every and sum(
        part["steps"] for part in record["segments"]
    ) * ranks == len(every)


def passing(sweep: Path) -> list[Path]:
    """Files that are there only while runs go on."""
    return [
        path for pattern in PASSING for place in ("", "*/") for path in sweep.glob(place + pattern)
    ]
