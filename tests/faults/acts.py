"""Points of a command, and what is done to it there."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.faults import work
from tests.faults.harness import Act, Trial

CHUNK = bytes(1 << 16)
RAN = "ran"  # a file of the trial's folder, made where what a stranger sends is unpickled
LIMIT_BYTES = 2 << 30
V1 = Path("/sys/fs/cgroup/memory")
GROUP = (V1 if V1.is_dir() else V1.parent) / f"multicard-faults-{os.getpid()}"
LIMIT = GROUP / ("memory.limit_in_bytes" if V1.is_dir() else "memory.max")
IN_GROUP = ("sh", "-c", f'echo $$ > {GROUP}/cgroup.procs; exec "$@"', "sh")


def held(trial: Trial) -> bool:
    """A rank, or the controller, holds at the point that `inside` names."""
    return (trial.folder / work.REACHED).exists()


def wrote(pattern: str) -> Act:
    """A file of the sweep is there."""
    return lambda trial: next(trial.sweep.glob(pattern), None)


def computed(seconds: float) -> Act:
    """The command's first process has used a core for this long: a place in its start-up,
    on any machine.
    """

    def reached(trial: Trial) -> bool:
        with suppress(psutil.Error):
            times = psutil.Process(trial.commands[-1].process.pid).cpu_times()
            return times.user + times.system >= seconds
        return False

    return reached


def both(*acts: Act) -> Act:
    """One after the other."""

    def act(trial: Trial) -> None:
        for each in acts:
            each(trial)

    return act


def then_release(act: Act) -> Act:
    """Do it, and let what holds go on."""
    return both(act, Trial.release)


def kill_command(number: signal.Signals = signal.SIGKILL) -> Act:
    return lambda trial: trial.command.process.send_signal(number)


def kill_holder(number: int = signal.SIGKILL) -> Act:
    return lambda trial: os.kill(trial.holder(), number)


def kill_children(parent: Callable[[Trial], int], name: str) -> Act:
    """Kill the descendants of a process whose command line has `name`."""

    def act(trial: Trial) -> None:
        for process in psutil.Process(parent(trial)).children(recursive=True):
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


def type_beside(trial: Trial) -> None:
    """Type the same command beside the first, and wait for its end."""
    trial.start(again=True).wait()


def send_nonsense(trial: Trial) -> None:
    """Send every port of the command what runs a program if it is unpickled."""
    pickled = f"cposix\nsystem\n(S'touch {trial.folder / RAN}'\ntR.".encode()
    # not srun's
    own = {process.pid for process in trial.family() if process.name().startswith("python")}
    every: list[Any] = psutil.net_connections("tcp")
    addresses = [one.laddr for one in every if one.status == psutil.CONN_LISTEN and one.pid in own]
    assert len(addresses) >= 3, "neither the store nor the ranks listen"
    for address in addresses:
        with suppress(OSError), socket.create_connection(address, timeout=5) as connection:
            connection.sendall(pickled * 100)


def is_unpickled(trial: Trial) -> str | None:
    return "what a stranger sent was run" if (trial.folder / RAN).exists() else None


# ---- the machine


def root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def mount(place: str, options: str) -> Act:
    """Give a folder of the trial, or its TMPDIR, a file system of its own."""

    def act(trial: Trial) -> None:
        folder = trial.temporary if place == "temporary" else trial.folder / place
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "faults", str(folder)], check=True)
        trial.after.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)

    return act


def remount(option: str) -> Act:
    """Change the file system of the sweep's folder."""
    return lambda trial: subprocess.run(
        ["mount", "-o", f"remount,{option}", str(trial.sweep)], check=True
    )


def fill(trial: Trial, place: str = "sweep") -> None:
    """Leave no byte on the sweep's file system, or on TMPDIR's."""
    path = (trial.temporary if place == "temporary" else trial.folder / place) / "filler"
    for chunk in (CHUNK, CHUNK[:1]):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(chunk)


def empty(trial: Trial) -> None:
    for folder in (trial.sweep, trial.temporary):
        (folder / "filler").unlink(missing_ok=True)


def no_memory_group() -> str:
    """Why there can be no memory cgroup; "" where there can."""
    try:
        GROUP.mkdir(exist_ok=True)
        LIMIT.write_text(str(LIMIT_BYTES))
        GROUP.rmdir()
    except OSError as error:
        return f"needs a memory cgroup ({error.strerror})"
    return ""


def limit_memory(trial: Trial) -> None:
    GROUP.mkdir(exist_ok=True)
    LIMIT.write_text(str(LIMIT_BYTES))
    trial.after.callback(GROUP.rmdir)


# ---- records and data


def photographs(trial: Trial) -> None:
    """Two classes of small pictures of noise."""
    from PIL import Image

    for part in ("train", "validation"):
        for name in ("cats", "dogs"):
            folder = trial.folder / "photographs" / part / name
            folder.mkdir(parents=True)
            for number in range(10):
                Image.frombytes("RGB", (40, 40), os.urandom(4800)).save(
                    folder / f"{number}.jpg", quality=90
                )
