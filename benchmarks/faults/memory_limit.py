"""A memory cgroup of version 1 or 2, for a command to be killed in by the kernel."""

import os
from pathlib import Path

from benchmarks.faults.fault import Trial

LIMIT_BYTES = 2 << 30
NAME = f"multicard-faults-{os.getpid()}"
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
GROUP = (V1 if V1.is_dir() else V2) / NAME
LIMIT = "memory.limit_in_bytes" if V1.is_dir() else "memory.max"
PREFIX = ("sh", "-c", f'echo $$ > {GROUP}/cgroup.procs; exec "$@"', "sh")


def problem() -> str:
    """Why there can be no such cgroup; "" where there can."""
    try:
        GROUP.mkdir(exist_ok=True)
        (GROUP / LIMIT).write_text(str(LIMIT_BYTES))
        GROUP.rmdir()
    except OSError as error:
        return f"needs a memory cgroup ({error.strerror})"
    return ""


def create(trial: Trial) -> None:
    GROUP.mkdir(exist_ok=True)
    (GROUP / LIMIT).write_text(str(LIMIT_BYTES))
    trial.after.callback(GROUP.rmdir)
