"""What is asked of SLURM: by a job about itself, and by a launcher about all of its jobs in one call."""

import os
import re
import secrets
import shutil
import subprocess
from dataclasses import dataclass

from multicard.machine.allocation import Allocation

FIRST_PORT, PORTS = 20_000, 5_000  # two a job; below what Linux hands out by itself
ENDED = {
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "CANCELLED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "REVOKED",
}


@dataclass(frozen=True)
class State:
    """Of one job: SLURM's word for it ("RUNNING"), its nodes, and its exit code as "code:signal"."""

    name: str
    nodes: str = ""
    exit_code: str = ""
    reason: str = ""

    @property
    def queued(self) -> bool:
        return self.name not in ENDED and self.name not in ("RUNNING", "COMPLETING")


def ask(*words: str, timeout_s: float = 60.0) -> str | None:
    """What a SLURM command prints; None where it is not there or fails."""
    if shutil.which(words[0]) is None:
        return None
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=timeout_s)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def allocation(key: str, grace_s: float) -> Allocation:
    """The nodes of the job that this process is a task of.

    Args:
        key: a secret of the submission, the same for all of its tasks.
        grace_s: between SLURM's warning and its kill.
    """
    from submitit.slurm.slurm import SlurmJobEnvironment

    env = SlurmJobEnvironment()
    port = FIRST_PORT + 2 * (int(os.environ["SLURM_JOB_ID"]) % PORTS)
    return Allocation(tuple(env.hostnames), env.node, env.job_id, port, f"{key} {env.job_id}".encode(), grace_s)


def new_key() -> str:
    return secrets.token_hex(16)


class SilentError(ValueError):
    """SLURM does not answer, so nothing is known of its jobs: its controller is being restarted, say."""

    def __init__(self) -> None:
        super().__init__("hydra/launcher=submitit_slurm: SLURM does not answer (squeue failed); try again when it does")


def is_alive(job: str) -> bool:
    """Whether SLURM has the job queued or running, as far as can be known."""
    try:
        return bool(queued([job]))
    except SilentError:
        return True


def queued(jobs: list[str]) -> dict[str, State]:
    """Those of `jobs` that are in the queue: pending, running, or on their way from one to the other.

    Raises:
        SilentError: where SLURM does not answer.
    """
    if not jobs:
        return {}
    text = ask("squeue", "-h", "-r", "--me", "-o", "%i|%T|%N|%r")
    if text is None:
        raise SilentError
    rows = [line.split("|", 3) for line in text.splitlines()]
    found = {row[0]: State(row[1], row[2], reason=row[3]) for row in rows if len(row) == 4}
    return {job: found[job] for job in jobs if job in found and found[job].name not in ENDED}


def accounted(jobs: list[str]) -> dict[str, State]:
    """How those of `jobs` ended that accounting knows; one call for all of them."""
    if not jobs:
        return {}
    words = ["sacct", "-X", "-P", "-n", "-o", "JobID,State,NodeList,ExitCode", "-j", ",".join(_bases(jobs))]
    found: dict[str, State] = {}
    for line in (ask(*words) or "").splitlines():
        name, state, nodes, code = [*line.split("|"), "", "", ""][:4]
        found[name] = State(state.split()[0] if state else "", nodes, code)  # "CANCELLED by 0"
    return {job: found[job] for job in jobs if job in found and found[job].name in ENDED}


def ranges(jobs: list[str]) -> list[str]:
    """The same jobs in few words, as SLURM's commands take them: "7_[0,2,3]"."""
    tasks: dict[str, list[str]] = {}
    for job in jobs:
        base, _, task = job.partition("_")
        tasks.setdefault(base, []).append(task)
    return [f"{base}_[{','.join(sorted(tasks[base], key=int))}]" if any(tasks[base]) else base for base in tasks]


def _bases(jobs: list[str]) -> list[str]:
    """The arrays that the jobs are of: one name stands for all tasks of an array."""
    return sorted({job.partition("_")[0] for job in jobs}, key=int)


def named(name: str) -> str | None:
    """The job, or array, of this name, whether it is queued or has ended."""
    for text in (
        ask("squeue", "-h", "--me", "-n", name, "-o", "%F"),
        ask("sacct", "-X", "-P", "-n", "-S", "now-30days", "--name", name, "-o", "JobID"),
    ):
        found = re.match(r"\d+", text or "")
        if found is not None:
            return found[0]
    return None


def why_warned(job: str) -> str:
    """Why SLURM signals this job: "cancelled", "preempted", or "timeout"."""
    text = ask("scontrol", "show", "job", "-o", job, timeout_s=10.0) or ""
    return why(dict(re.findall(r"(\w+)=(\S*)", text)))


def why(said: dict[str, str]) -> str:
    """The same, from what `scontrol show job` says."""
    if said.get("JobState") == "PREEMPTED" or said.get("PreemptTime", "None") not in ("None", "N/A", ""):
        return "preempted"
    ending = said.get("JobState") in ("COMPLETING", "CANCELLED")  # it is ended already, and not warned
    early = seconds(said.get("RunTime", "")) < seconds(said.get("TimeLimit", ""))
    return "cancelled" if ending and early else "timeout"


def seconds(span: str) -> float:
    """SLURM's "[days-]hours:minutes:seconds"; infinite for UNLIMITED and what it does not know."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", span)
    if found is None:
        return float("inf")
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def requeue(job: str) -> bool:
    """Put this job back into the queue; SLURM then ends all of its processes."""
    return ask("scontrol", "requeue", job) is not None
