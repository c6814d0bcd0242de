"""What a fault is, as data: the command, what is done to it and when, what must be true afterwards. And its trial."""

import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.common import ROOT
from benchmarks.faults import work
from benchmarks.faults.command import Command
from multicard.measure.timing import clock_s, pause

POLL_S = 0.02
REACHED_WITHIN_S = 300.0
GONE_WITHIN_S = 60.0  # what a command started may live on for so long
TOKEN = "MULTICARD_FAULT_TRIAL"  # in the environment of whatever the command starts, jobs of SLURM too

Act = Callable[["Trial"], object]
Point = Callable[["Trial"], object]  # true once the command has come to it

ENTRY = ("benchmarks/faults/entry.py",)
TINY = (
    *("device=cpu", "dataset.image_size=32", "dataset.train_limit=64", "dataset.test_limit=32", "epochs=2"),
    *("batch_size=16", "model.width=0.35", "warmup_steps=1", "num_workers=0", "tracker.mode=disabled"),
)
SWEEP = ("-m", "hydra.sweep.dir={sweep}", *TINY, "gpus=2", "seed=1,2")  # the first cell is the one that a fault hits
RUN = ("hydra.run.dir={sweep}", *TINY)


def nothing(_: "Trial") -> None: ...


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        what: it is, in words.
        words: of the command, after `program`; {sweep} is the sweep's folder, {trial} the folder of this trial.
        program: a script or `-m module` for Python, in the repository's root.
        inside: what a rank or the controller of the first cell does at one of its own points, as "raise@step3": see
            work.py.
        prefix: a command that runs the command, as prlimit does.
        variables: of the command's environment.
        prepare: called before the command is typed.
        at: the point at which `act` is called; None: once it has ended.
        mend: called before the command is typed again.
        undo: called at the end, however the trial went.
        code: the command's exit code; a negative number is a signal, None any.
        says: a regular expression of which the output has one line.
        lines: of the output, at most; None: any.
        statuses: of the records, sorted, when the command has ended; None: any.
        ends: the same when the command was typed again; None: it is not.
        within_s: seconds from the act (without one, from the start) to that line.
        leaves_jobs: jobs of SLURM go on after the command.
        check: says what else is wrong; None where nothing is.
        needs: says why the fault cannot be caused on this machine; "" where it can.
    """

    name: str
    what: str
    words: tuple[str, ...] = SWEEP
    program: tuple[str, ...] = ENTRY
    inside: str = ""
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Act = nothing
    at: Point | None = None
    act: Act = nothing
    mend: Act = nothing
    undo: Act = nothing
    code: int | None = 1
    says: str = ""
    lines: int | None = None
    statuses: tuple[str, ...] | None = None
    ends: tuple[str, ...] | None = ("ok", "ok")
    within_s: float = 60.0
    leaves_jobs: bool = False
    check: Callable[["Trial"], str | None] = nothing
    needs: Callable[[], str] = str


@dataclass
class Outcome:
    """What a fault did.

    Args:
        happened: the statuses of the records or the exit code, and the line that says why.
        lost: records that are not there, or not whole.
        twice: cells that were measured although they were measured before, or have two records.
        knew_s: seconds until the command said so; None where it did not, or was killed itself.
        left: processes and files that nothing needs any more.
        wrong: what is, in words.
        skipped: why the fault was not caused; "" where it was.
    """

    name: str
    happened: str = ""
    lost: int = 0
    twice: int = 0
    knew_s: float | None = None
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    skipped: str = ""


Records = dict[Path, dict[str, Any]]


class NotReachedError(Exception):
    """The command ended, or took too long, before the point at which the fault was to be caused."""


class Trial:
    """A fault's command in a folder of its own."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self.fault, self.folder, self.sweep = fault, folder.absolute(), folder.absolute() / "sweep"
        self.root = ROOT  # where commands are typed
        self.commands: list[Command] = []
        self.command: Command  # that the fault is caused to
        self.temporary = Path(tempfile.mkdtemp(prefix="fault"))  # a short path: sockets are made in it
        self.after = ExitStack()  # undoes what `prepare` and `act` have done to the machine
        self._token = secrets.token_hex(8)

    def __enter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.fault.undo(self)
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.after.close()
        shutil.rmtree(self.temporary, ignore_errors=True)
        for number, command in enumerate(self.commands):
            (self.folder / f"output{number}.txt").write_text(command.output + "\n")

    def variables(self, again: bool) -> dict[str, str]:
        own = {TOKEN: self._token, "TMPDIR": str(self.temporary), "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        inside = {work.VARIABLE: self.fault.inside, work.FOLDER: str(self.folder)} if self.fault.inside else {}
        return os.environ | own | ({} if again else {**inside, **self.fault.variables})

    def start(self, again: bool = False, words: tuple[str, ...] | None = None) -> Command:
        """Start the command.

        Args:
            again: without the fault.
            words: others than the fault's.
        """
        places = {"{sweep}": str(self.sweep), "{trial}": str(self.folder)}
        line = [*(() if again else self.fault.prefix), sys.executable, *self.fault.program]
        line += self.fault.words if words is None else words
        for place, path in places.items():
            line = [word.replace(place, path) for word in line]
        self.commands.append(Command(line, self.variables(again), self.root))
        return self.commands[-1]

    def wait_for(self, point: Point, seconds: float = REACHED_WITHIN_S) -> None:
        """Wait until the last command has come to a point.

        Raises:
            NotReachedError: it has ended before, or takes longer.
        """
        command, until_s = self.commands[-1], clock_s() + seconds
        while not point(self):
            if command.process.poll() is not None and not point(self):
                raise NotReachedError("the command ended before the point of the fault")
            if clock_s() > until_s:
                raise NotReachedError(f"the point of the fault was not reached in {seconds:.0f} s")
            pause(POLL_S)

    def release(self) -> None:
        """Let a rank, or a controller, that holds go on."""
        (self.folder / work.GO).touch()

    def holder(self) -> int:
        """The process that holds."""
        return int((self.folder / work.REACHED).read_text())

    def family(self) -> list[psutil.Process]:
        """All processes of this trial, wherever they were started."""
        own = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(TOKEN) == self._token and process.status() != psutil.STATUS_ZOMBIE:
                    own.append(process)
        return own

    def outlasting(self) -> list[psutil.Process]:
        """What is still running some time after the command has ended."""
        until_s = clock_s() + GONE_WITHIN_S
        while (family := self.family()) and clock_s() < until_s:
            pause(0.2)
        return family

    def stop(self) -> None:
        """End a command that does not end."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
