"""The process of a job of a plan: takes its place on the machine, and becomes the job's command.

    python multicard/decide/plan/job_process.py PARENT CPUS LEASES WORD...

It ends when the plan's command ends, however that happens: the command of an entry records that it was interrupted.
What it leases it holds to the end of its own last process.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path = [str(HERE.parents[2]), *(path for path in sys.path if path != str(HERE))]

from multicard.machine import leases
from multicard.ranks import os_calls


def words(parent: int, cpus: Sequence[int], leased: Sequence[str], command: Sequence[str]) -> list[str]:
    """The command line of such a process. No cores: those of the plan's command."""
    mine = [sys.executable, str(Path(__file__)), str(parent), ",".join(map(str, cpus)), ",".join(leased)]
    return [*mine, *command]


def main(parent: str, cpus: str, leased: str, *command: str) -> None:
    os_calls.die_with_parent(int(parent), signal.SIGTERM)
    held = leases.share(filter(None, leased.split(",")))
    for descriptor in held.files.values():
        os.set_inheritable(descriptor, True)
    if cpus:
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(*sys.argv[1:])
