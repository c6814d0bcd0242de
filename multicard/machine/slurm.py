"""Ask SLURM about the nodes of a run, the reason why a job ends, and the states of a sweep's jobs.

A job counts as ended only if two sources agree: it is not in the queue, and accounting or the
controller says so.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

from multicard.machine.environment import host
from multicard.messages import Message, Refusal

LOOPBACK = "127.0.0.1"
# Each job has two ports. They lie below the ports that Linux hands out by itself.
FIRST_PORT = 20_000
PORT_PAIRS = 5_000
ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENDED |= {"BOOT_FAIL", "DEADLINE", "REVOKED"}
# Variables of a user that change the answers of SLURM's commands.
CHANGES_ANSWERS = re.compile(r"(SQUEUE|SACCT|SCANCEL|SINFO)_|SLURM_(CLUSTERS|TIME_FORMAT)$")
# Variables that are passed on to sbatch: how to reach SLURM, and what users set for all their jobs.
REACHES_SBATCH = re.compile(
    r"SLURM_(CONF|CONF_SERVER|JWT)$|SBATCH_(ACCOUNT|PARTITION|QOS|RESERVATION|WCKEY)$"
)
# Pending reasons with which a job never starts unless somebody changes it.
NEVER_STARTS = re.compile(
    r"DependencyNeverSatisfied|PartitionTimeLimit|BadConstraints|Invalid(Account|QOS)|(Account|QOS)NotAllowed"
    r"|ReservationDeleted|(Assoc|QOS)Max\w*Per(Job|Node)\w*"
)
# Pending reasons that end once its nodes, or its partition, accept jobs again.
NODES_UNAVAILABLE = re.compile(
    r"ReqNodeNotAvail|Nodes.required.for.job|NodeDown|Partition(Down|Inactive|Config|NodeLimit)"
)
FIELD = re.compile(r"(\w+)=(\S*)")  # A field of scontrol's output.
# How scontrol says that it does not know a job. The second form is for a task of a known array.
UNKNOWN_JOB = re.compile(r"Invalid job id|^Job \S+ not found", re.MULTILINE)


@dataclass(frozen=True)
class Allocation:
    """The nodes of a run.

    Attributes:
        hosts: The nodes' names in SLURM's order.
        node: The number of this node among them. Node 0 writes the record.
        job: SLURM's name of the job ("12_3"). None outside of a job.
        port: The port on node 0 for the ranks' rendezvous. The controllers connect to the next one.
        key: A secret that this run's controllers share.
        grace_s: The time between SLURM's warning and its kill.
    """

    hosts: tuple[str, ...] = field(default_factory=lambda: (host(),))
    node: int = 0
    job: str | None = None
    port: int = 0
    key: bytes = b""
    grace_s: float = 0.0

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    def head_address(self) -> str:
        """Return the IPv4 address, seen from this node, at which node 0 listens.

        The other nodes and its own ranks connect there.

        Raises:
            OSError: The name of a node cannot be resolved.
        """
        if self.nodes == 1:
            return LOOPBACK
        address = socket.gethostbyname(self.hosts[0])
        if self.node > 0 or not ip_address(address).is_loopback:
            return address
        # Many machines resolve their own name to a loopback address. Other nodes see the address
        # of the interface that faces the next node.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(self.hosts[1]), self.port))  # Sends nothing (UDP).
            return probe.getsockname()[0]


@dataclass(frozen=True)
class State:
    """The state of a job.

    Attributes:
        name: SLURM's name for the state, such as "RUNNING".
        nodes: The job's nodes, as SLURM lists them.
        exit_code: The exit code as "code:signal".
        reason: Why a queued job has not started.
    """

    name: str
    nodes: str = ""
    exit_code: str = ""
    reason: str = ""

    @property
    def queued(self) -> bool:
        return self.name not in ENDED and self.name not in ("RUNNING", "COMPLETING")

    @property
    def held(self) -> bool:
        """Whether the job waits for its release: "JobHeldUser", "launch failed requeued held"."""
        return self.queued and "held" in self.reason.lower()

    @property
    def stuck(self) -> bool:
        """Whether the job will not start by itself."""
        reasons = (NEVER_STARTS, NODES_UNAVAILABLE)
        return self.held or (self.queued and any(pattern.match(self.reason) for pattern in reasons))


class SilentError(Refusal):
    """SLURM does not answer, so nothing is known about its jobs.

    Its controller may be restarting, for instance.
    """

    def __init__(self) -> None:
        message = Message(
            "slurm.silent",
            "hydra/launcher=submitit_slurm: SLURM does not answer (squeue failed); try again once"
            " it does",
            key="hydra/launcher",
        )
        super().__init__(message.code, message.sentence, key=message.key)


def ask(*words: str, timeout_s: float = 60.0) -> str | None:
    """Return the output of a SLURM command, or None if it is not installed or fails."""
    code, out, _ = _call(*words, timeout_s=timeout_s)
    return out if code == 0 else None


def _call(*words: str, timeout_s: float) -> tuple[int | None, str, str]:
    """Return a SLURM command's exit code, output and errors.

    The code is None if the command cannot be run.
    """
    if shutil.which(words[0]) is None:
        return None, "", ""
    variables = {
        name: value for name, value in os.environ.items() if not CHANGES_ANSWERS.match(name)
    }
    try:
        process = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            env=variables,
        )
    except (OSError, subprocess.SubprocessError):
        return None, "", ""
    return process.returncode, process.stdout, process.stderr


@contextmanager
def submitting(options: Container[str]) -> Iterator[None]:
    """Hide the variables that would override a job's options in sbatch.

    SBATCH_PARTITION and the like remain if the launcher does not set the option.
    """
    from submitit.helpers import clean_env

    passed_on = {name: value for name, value in os.environ.items() if REACHES_SBATCH.match(name)}
    overridden = {
        name for name in passed_on if name.startswith("SBATCH_") and name[7:].lower() in options
    }
    with clean_env():
        os.environ.update(
            {name: value for name, value in passed_on.items() if name not in overridden}
        )
        yield


# ---- The job to which this process belongs.


def allocation(key: str, grace_s: float) -> Allocation:
    """Return the nodes of this job.

    Args:
        key: A secret of the submission, the same for all of its tasks.
    """
    from submitit.slurm.slurm import SlurmJobEnvironment

    env = SlurmJobEnvironment()
    port = FIRST_PORT + 2 * (int(os.environ["SLURM_JOB_ID"]) % PORT_PAIRS)
    return Allocation(
        tuple(env.hostnames), env.node, env.job_id, port, f"{key} {env.job_id}".encode(), grace_s
    )


def task_of_node() -> int:
    """Return the number of this task on its node, from 0.

    A job of multicard has one task per node, which starts the ranks.
    """
    return int(os.environ.get("SLURM_LOCALID") or 0)


def several_tasks(nodes: int) -> Message | None:
    """Return why a job with more tasks than `nodes` is not measured, or None if it has no more.

    Each task would measure the same cell.
    """
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    if tasks <= nodes and task_of_node() == 0:
        return None
    return Message(
        "slurm.several-tasks",
        f"hydra.launcher: SLURM started {tasks} tasks on {nodes} node(s), and each would measure"
        " the same run; leave ntasks and ntasks_per_node out, as one task starts all ranks of its"
        " node",
        key="hydra.launcher",
        tasks=tasks,
        nodes=nodes,
    )


def why_warned(job: str) -> str:
    """Return why SLURM sent a signal: "cancelled", "preempted", "requeued" or "timeout".

    A job may be requeued because its node failed.
    """
    return reason_of_warning(_fields(job), _restarts())


def reason_of_warning(fields: dict[str, str], restarts: int = 0) -> str:
    """Return why SLURM sent a signal.

    Args:
        fields: The fields of `scontrol show job`.
        restarts: The number of restarts before the present start.
    """
    if fields.get("JobState") == "PREEMPTED" or fields.get("PreemptTime", "None") not in (
        "None",
        "N/A",
        "",
    ):
        return "preempted"
    if int(fields.get("Restarts", 0)) > restarts:
        return "requeued"  # JobState is PENDING or COMPLETING by now, and RunTime is 0.
    # These states mean that SLURM is ending the job already, without a warning.
    is_ending = fields.get("JobState") in ("COMPLETING", "CANCELLED")
    is_early = seconds(fields.get("RunTime", "")) < seconds(fields.get("TimeLimit", ""))
    return "cancelled" if is_ending and is_early else "timeout"


def seconds(span: str) -> float:
    """Convert SLURM's "[days-]hours:minutes:seconds" to seconds.

    UNLIMITED, and what SLURM does not know, is infinite.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", span)
    if match is None:
        return float("inf")
    days, hours, minutes, secs = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs


def requeue(job: str) -> bool:
    """Put this job back into the queue, and return whether SLURM will do it.

    SLURM then ends all of the job's processes.
    """
    return ask("scontrol", "requeue", job) is not None or is_requeued(job)


def is_requeued(job: str) -> bool:
    """Tell whether SLURM has requeued this job while the present start still runs.

    This happens if its node failed, for instance.
    """
    return int(_fields(job).get("Restarts", 0)) > _restarts()


def _restarts() -> int:
    """Return the number of earlier starts of this job."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _fields(job: str) -> dict[str, str]:
    """Return the fields of `scontrol show job`, without any if SLURM does not answer."""
    text = ask("scontrol", "show", "job", "-o", job, timeout_s=10.0) or ""
    return dict(FIELD.findall(text))


# ---- The jobs of a sweep, all in one call. If SLURM does not answer, or in an unknown form, these
# functions raise `SilentError`.


def queued(jobs: list[str]) -> dict[str, State]:
    """Return the states of the jobs that are in the queue: pending, running, or in between."""
    if not jobs:
        return {}
    text = ask("squeue", "-h", "-r", "-a", "--me", "-o", "%i|%T|%N|%r")
    rows = [line.split("|", 3) for line in (text or "").splitlines()]
    if text is None or any(len(row) != 4 for row in rows):
        raise SilentError
    states = {row[0]: State(row[1], row[2], reason=row[3]) for row in rows}
    return {job: states[job] for job in jobs if job in states and states[job].name not in ENDED}


def unended(jobs: list[str]) -> set[str]:
    """Return the jobs that are queued, or whose end neither sacct nor scontrol confirms."""
    listed = queued(jobs)
    return {*jobs} - ended([job for job in jobs if job not in listed]).keys()


def is_alive(job: str) -> bool:
    """Tell whether a job may still run: SLURM does not confirm its end."""
    try:
        return bool(unended([job]))
    except SilentError:
        return True


def ended(jobs: list[str]) -> dict[str, State]:
    """Return the last states of the jobs that have ended. None of `jobs` may be in the queue.

    Accounting confirms their end, or else the controller. A job that the controller has forgotten
    has the state "".
    """
    if not jobs:
        return {}
    # One name stands for all tasks of an array.
    arrays = sorted({job.partition("_")[0] for job in jobs}, key=int)
    text = ask(
        "sacct", "-X", "-P", "-n", "-o", "JobID,State,NodeList,ExitCode", "-j", ",".join(arrays)
    )
    states: dict[str, State] = {}
    for line in (text or "").splitlines():
        name, state, nodes, code = [*line.split("|"), "", "", ""][:4]
        states[name] = State(state.partition(" ")[0], nodes, code)  # As in "CANCELLED by 0".
    end_states = {job: states[job] for job in jobs if job in states and states[job].name in ENDED}
    for job in jobs:
        if job not in end_states:  # Accounting may have missed its end.
            _, out, error = _call("scontrol", "show", "job", "-o", job, timeout_s=10.0)
            fields = dict(FIELD.findall(out))
            if fields.get("JobState") in ENDED:
                end_states[job] = State(
                    fields["JobState"], fields.get("NodeList", ""), fields.get("ExitCode", "")
                )
            elif UNKNOWN_JOB.search(f"{out}{error}"):
                end_states[job] = State("")
    return end_states


def ranges(jobs: list[str]) -> list[str]:
    """Format jobs in the short form that SLURM's commands take: "7_[0,2,3]"."""
    tasks: dict[str, list[str]] = {}
    for job in jobs:
        base, _, task = job.partition("_")
        tasks.setdefault(base, []).append(task)
    return [
        f"{base}_[{','.join(sorted(tasks[base], key=int))}]" if any(tasks[base]) else base
        for base in tasks
    ]


def max_array_size() -> int | None:
    """Return how many tasks a job array may have, or None if SLURM does not say."""
    text = ask("scontrol", "show", "config", timeout_s=10.0) or ""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    return None if match is None else int(match[1])


def job_named(name: str) -> str | None:
    """Return the job or job array with this name, queued or ended."""
    text = ask("squeue", "-h", "-a", "--me", "-n", name, "-o", "%F")
    if text is None:
        raise SilentError
    text = text or ask("sacct", "-X", "-P", "-n", "-S", "now-30days", "--name", name, "-o", "JobID")
    match = re.match(r"\d+", text or "")
    return match and match[0]
