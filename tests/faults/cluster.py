"""The SLURM of `tests/slurm/cluster`: its jobs and its daemons, which nobody else has jobs on."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from multicard.measure.timing import clock_s, pause

CLUSTER = Path(__file__).parent.parent / "slurm" / "cluster"
NODES = ("n1", "n2")
WITHIN_S = 120.0


def ask(*words: str) -> str:
    """The output of a command of SLURM.

    Raises:
        CalledProcessError: it fails.
    """
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def problem() -> str:
    """Why there is no such SLURM, "" where there is; points SLURM's commands at it."""
    with suppress(OSError, subprocess.SubprocessError):
        os.environ["SLURM_CONF"] = ask(str(CLUSTER), "env").partition("SLURM_CONF=")[2]
        ask("sinfo")
        return ""
    return "needs `tests/slurm/cluster up`"


def home() -> Path:
    return Path(os.environ["SLURM_CONF"]).parent


def kill(name: str) -> None:
    """Kill a daemon: slurmctld, slurmdbd, or slurmd-n1."""
    os.kill(int((home() / "run" / f"{name}.pid").read_text()), signal.SIGKILL)


def start(name: str) -> None:
    """Start a daemon again, and wait until SLURM answers with all of its nodes."""
    program, _, node = name.partition("-")
    variables = os.environ | {"MYSQL_UNIX_PORT": str(home() / "db" / "sock")}
    subprocess.run([program, *(("-N", node) if node else ())], check=True, env=variables, timeout=60)
    wait_until_idle() if node else _wait_for(states)


def states() -> list[str]:
    try:
        return ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
    except subprocess.SubprocessError:
        return []


def wait_until_idle() -> None:
    """Wait until every node can take jobs."""
    _wait_for(lambda: (now := states()) and all(re.fullmatch("idle|mixed|allocated", state) for state in now))


def _wait_for(holds: Callable[[], object]) -> None:
    until_s = clock_s() + WITHIN_S
    while not holds():
        if clock_s() > until_s:
            raise TimeoutError("SLURM did not come back")
        pause(0.5)


def update(node: str, state: str) -> None:
    ask("scontrol", "update", f"nodename={node}", f"state={state}", *(["reason=fault"] if state != "resume" else []))


def resume() -> None:
    """Have every node take jobs again."""
    for node in NODES:
        with suppress(subprocess.SubprocessError):  # it was not drained
            update(node, "resume")
    wait_until_idle()


def cancel_all() -> None:
    with suppress(subprocess.SubprocessError):
        ask("scancel", "--user", ask("id", "-un"))
