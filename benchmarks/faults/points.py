"""Points of a command, and what is done to it there."""

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.faults import work
from benchmarks.faults.fault import Act, Point, Trial


def held(trial: Trial) -> bool:
    """A rank, or the controller, holds at the point that `inside` names."""
    return (trial.folder / work.REACHED).exists()


def wrote(pattern: str) -> Point:
    """A file of the sweep is there."""
    return lambda trial: next(trial.sweep.glob(pattern), None)


def computed(seconds: float) -> Point:
    """The command's first process has used so much of a core: a place in its start-up, on any machine."""

    def reached(trial: Trial) -> bool:
        with suppress(psutil.Error):
            times = psutil.Process(trial.commands[-1].process.pid).cpu_times()
            return times.user + times.system >= seconds
        return False

    return reached


def said(pattern: str) -> Point:
    """A line of the output has this regular expression."""
    return lambda trial: trial.commands[-1].said_s(pattern) is not None


def kill_command(number: signal.Signals = signal.SIGKILL) -> Act:
    return lambda trial: trial.command.process.send_signal(number)


def kill_holder(number: signal.Signals = signal.SIGKILL) -> Act:
    return lambda trial: os.kill(trial.holder(), number)


def kill_child(of: Callable[[Trial], int], name: str) -> Act:
    """Kill the descendants of a process whose command line has `name`."""

    def act(trial: Trial) -> None:
        for process in psutil.Process(of(trial)).children(recursive=True):
            if name in " ".join(process.cmdline()):
                process.kill()

    return act


def from_terminal(number: signal.Signals = signal.SIGINT, times: int = 1) -> Act:
    """Signal all processes of the command, as a terminal does."""

    def act(trial: Trial) -> None:
        for _ in range(times):
            with suppress(ProcessLookupError):
                os.killpg(trial.command.process.pid, number)

    return act


def then_release(act: Act) -> Act:
    """Do it, and let what holds go on."""

    def both(trial: Trial) -> None:
        act(trial)
        trial.release()

    return both


def type_beside(trial: Trial) -> None:
    """Type the same command beside the first, wait for its end, and let the first go on."""
    trial.start(again=True).wait()
    trial.release()


def measure_first(trial: Trial) -> None:
    """Have all cells measured, before the command is typed again."""
    trial.start(again=True).wait()


def run_folder_of(trial: Trial) -> Path:
    """The folder of the cell that the fault hits."""
    return next(trial.sweep.glob(f"*seed={work.SEED}*"))


def remove_run(trial: Trial) -> None:
    shutil.rmtree(run_folder_of(trial))


def edit(pattern: str, change: Callable[[bytes], bytes]) -> Act:
    """Change the files of the sweep with this name."""

    def act(trial: Trial) -> None:
        for path in trial.sweep.glob(pattern):
            path.write_bytes(change(path.read_bytes()))

    return act


def both(*acts: Act) -> Act:
    def act(trial: Trial) -> None:
        for each in acts:
            each(trial)

    return act


def root() -> str:
    return "" if os.geteuid() == 0 else "needs root"
