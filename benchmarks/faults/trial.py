"""The command of a fault: starting it, waiting for a point of it, what it printed, what it left running."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Self

import psutil

from benchmarks.common import ROOT
from benchmarks.faults import work
from benchmarks.faults.fault import Fault, Point
from multicard.measure.timing import clock_s, pause

POLL_S = 0.02
REACHED_WITHIN_S, ENDED_WITHIN_S = 300.0, 400.0
GONE_WITHIN_S = 60.0  # what a command started may live on for so long
TOKEN = "MULTICARD_FAULT_TRIAL"  # in the environment of whatever the command starts, jobs of SLURM too


class NotReachedError(Exception):
    """The command ended, or took too long, before the point at which the fault was to be caused."""


class Command:
    """A running command, in a session of its own, and its lines with the time of each."""

    def __init__(self, line: list[str], variables: dict[str, str], root: Path) -> None:
        self.started_s, self.ended_s = clock_s(), 0.0
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=root,
            env=variables,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((clock_s(), line.rstrip("\n")))

    def wait(self, seconds: float = ENDED_WITHIN_S) -> int:
        """Its exit code.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        code = self.process.wait(seconds)
        self.ended_s = clock_s()
        self._reader.join(1.0)  # longer only where something else still holds the pipe
        return code

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def said_s(self, pattern: str) -> float | None:
        """When the first line with this regular expression was printed."""
        return next((at_s for at_s, line in list(self.lines) if re.search(pattern, line)), None)


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
