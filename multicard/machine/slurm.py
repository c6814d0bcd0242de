"""The nodes of a run, and what SLURM says: why a job is being ended,
and the states of all jobs of a sweep.

A job counts as ended only where two sources agree: it is not in the queue,
and accounting or the controller says so.
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
# two ports a job; below those that Linux hands out by itself
FIRST_PORT = 20_000
PORT_PAIRS = 5_000
ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENDED |= {"BOOT_FAIL", "DEADLINE", "REVOKED"}
# A user's variables that change what SLURM's commands answer
CHANGES_ANSWERS = re.compile(r"(SQUEUE|SACCT|SCANCEL|SINFO)_|SLURM_(CLUSTERS|TIME_FORMAT)$")
# Those that reach sbatch: where SLURM is, and what a site's users choose once for all their jobs
REACHES_SBATCH = re.compile(
    r"SLURM_(CONF|CONF_SERVER|JWT)$|SBATCH_(ACCOUNT|PARTITION|QOS|RESERVATION|WCKEY)$"
)
# Reasons for which a job never begins unless somebody changes it
NEVER_BEGINS = re.compile(
    r"DependencyNeverSatisfied|PartitionTimeLimit|BadConstraints|Invalid(Account|QOS)|(Account|QOS)NotAllowed"
    r"|ReservationDeleted|(Assoc|QOS)Max\w*Per(Job|Node)\w*"
)
# Reasons for which it begins once others let its nodes, or its partition, take jobs again
NODES_AWAY = re.compile(
    r"ReqNodeNotAvail|Nodes.required.for.job|NodeDown|Partition(Down|Inactive|Config|NodeLimit)"
)
FIELD = re.compile(r"(\w+)=(\S*)")  # of scontrol's output
# the latter of a task whose array is known
FORGOTTEN = re.compile(r"Invalid job id|^Job \S+ not found", re.MULTILINE)


@dataclass(frozen=True)
class Allocation:
    """The nodes of a run.

    Args:
        hosts: in SLURM's order.
        node: the number of this one among them; node 0 records.
        job: SLURM's name of the job ("12_3"); None outside of one.
        port: on node 0, for the ranks' rendezvous; the controllers connect to the next one.
        key: a secret of this run's controllers.
        grace_s: between SLURM's warning and its kill.
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
        """The IPv4 address at which node 0 listens for the others, and for its own ranks; seen from
        this node. An OSError says that the name of a node cannot be resolved.
        """
        if self.nodes == 1:
            return LOOPBACK
        address = socket.gethostbyname(self.hosts[0])
        if self.node > 0 or not ip_address(address).is_loopback:
            return address
        # many a machine has its own name at a loopback address: the
        # one that faces the next node is what others see
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(self.hosts[1]), self.port))  # sends nothing
            return probe.getsockname()[0]


@dataclass(frozen=True)
class State:
    """State of a job: SLURM's name for it ("RUNNING"), its nodes,
    and its exit code as "code:signal".
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
        """True where it waits until somebody releases it: "JobHeldUser",
        "launch failed requeued held".
        """
        return self.queued and "held" in self.reason.lower()

    @property
    def stuck(self) -> bool:
        """True where it does not begin by itself."""
        reasons = (NEVER_BEGINS, NODES_AWAY)
        return self.held or (self.queued and any(each.match(self.reason) for each in reasons))


class SilentError(Refusal):
    """SLURM does not answer, for example while its controller
    restarts: nothing is known of its jobs.
    """

    def __init__(self) -> None:
        message = Message(
            "slurm.silent",
            "hydra/launcher=submitit_slurm: SLURM does not answer (squeue failed); try again when"
            " it does",
            key="hydra/launcher",
        )
        super().__init__(message.code, message.sentence, key=message.key)


def ask(*words: str, timeout_s: float = 60.0) -> str | None:
    """The output of a SLURM command; None where it is not installed or fails."""
    code, out, _ = _call(*words, timeout_s=timeout_s)
    return out if code == 0 else None


def _call(*words: str, timeout_s: float) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a SLURM command;
    the code is None where it cannot be called.
    """
    if shutil.which(words[0]) is None:
        return None, "", ""
    variables = {
        name: value for name, value in os.environ.items() if not CHANGES_ANSWERS.match(name)
    }
    try:
        done = subprocess.run(
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
    return done.returncode, done.stdout, done.stderr


@contextmanager
def submitting(options: Container[str]) -> Iterator[None]:
    """Context without the variables that would override, for sbatch, what a job asks for:
    SBATCH_PARTITION and the like count where the launcher's option is not set.
    """
    from submitit.helpers import clean_env

    kept = {name: value for name, value in os.environ.items() if REACHES_SBATCH.match(name)}
    chosen = {name for name in kept if name.startswith("SBATCH_") and name[7:].lower() in options}
    with clean_env():
        os.environ.update({name: value for name, value in kept.items() if name not in chosen})
        yield


# ---- about the job that this process is a task of


def allocation(key: str, grace_s: float) -> Allocation:
    """The nodes of this job; `key` is a secret of the submission, the same for all of its tasks."""
    from submitit.slurm.slurm import SlurmJobEnvironment

    env = SlurmJobEnvironment()
    port = FIRST_PORT + 2 * (int(os.environ["SLURM_JOB_ID"]) % PORT_PAIRS)
    return Allocation(
        tuple(env.hostnames), env.node, env.job_id, port, f"{key} {env.job_id}".encode(), grace_s
    )


def task_of_node() -> int:
    """The number of this task among those of its node, from 0. A job of multicard has one on each,
    which starts the ranks.
    """
    return int(os.environ.get("SLURM_LOCALID") or 0)


def several_tasks(nodes: int) -> Message | None:
    """Why a job whose step has more tasks than `nodes` measures
    nothing: each would measure the same cell.
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
    """The reason for a signal of SLURM: "cancelled", "preempted", "requeued" (e.g.
    its node failed) or "timeout".
    """
    return reason_of_warning(_fields(job), _restarts())


def reason_of_warning(fields: dict[str, str], restarts: int = 0) -> str:
    """The reason for a signal, from the fields of `scontrol show job`,
    and the restarts before its present start.
    """
    if fields.get("JobState") == "PREEMPTED" or fields.get("PreemptTime", "None") not in (
        "None",
        "N/A",
        "",
    ):
        return "preempted"
    if int(fields.get("Restarts", 0)) > restarts:
        return "requeued"  # JobState is PENDING or COMPLETING by now, and RunTime 0
    # it is ended already, and not warned
    ending = fields.get("JobState") in ("COMPLETING", "CANCELLED")
    early = seconds(fields.get("RunTime", "")) < seconds(fields.get("TimeLimit", ""))
    return "cancelled" if ending and early else "timeout"


def seconds(span: str) -> float:
    """Seconds of SLURM's "[days-]hours:minutes:seconds";
    infinite for UNLIMITED and what SLURM does not know.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", span)
    if match is None:
        return float("inf")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def requeue(job: str) -> bool:
    """Put this job back into the queue; SLURM then ends all of its processes.
    Returns whether SLURM will.
    """
    return ask("scontrol", "requeue", job) is not None or is_requeued(job)


def is_requeued(job: str) -> bool:
    """True once SLURM has put this job back into the queue while this start of it still runs (e.g.
    its node failed).
    """
    return int(_fields(job).get("Restarts", 0)) > _restarts()


def _restarts() -> int:
    """The number of earlier starts of this job."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _fields(job: str) -> dict[str, str]:
    """The fields of `scontrol show job`; empty where SLURM does not answer."""
    text = ask("scontrol", "show", "job", "-o", job, timeout_s=10.0) or ""
    return dict(FIELD.findall(text))


# ---- about the jobs of a sweep, all in one call; a `SilentError` where SLURM does not answer,
# or not in its own form


def queued(jobs: list[str]) -> dict[str, State]:
    """The states of those `jobs` that are in the queue: pending, running,
    or on their way from one to the other.
    """
    if not jobs:
        return {}
    text = ask("squeue", "-h", "-r", "-a", "--me", "-o", "%i|%T|%N|%r")
    rows = [line.split("|", 3) for line in (text or "").splitlines()]
    if text is None or any(len(row) != 4 for row in rows):
        raise SilentError
    states = {row[0]: State(row[1], row[2], reason=row[3]) for row in rows}
    return {job: states[job] for job in jobs if job in states and states[job].name not in ENDED}


def unended(jobs: list[str]) -> set[str]:
    """Those `jobs` that are in the queue, or of which nobody says that they have ended."""
    listed = queued(jobs)
    return {*jobs} - ended([job for job in jobs if job not in listed]).keys()


def is_alive(job: str) -> bool:
    """True where SLURM does not say that the job has ended."""
    try:
        return bool(unended([job]))
    except SilentError:
        return True


def ended(jobs: list[str]) -> dict[str, State]:
    """The last states of those `jobs`, none of them in the queue, that have ended by accounting, or
    by the controller where accounting does not know their end. A job that the controller has
    forgotten has the state "".
    """
    if not jobs:
        return {}
    # one name stands for all tasks of an array
    arrays = sorted({job.partition("_")[0] for job in jobs}, key=int)
    text = ask(
        "sacct", "-X", "-P", "-n", "-o", "JobID,State,NodeList,ExitCode", "-j", ",".join(arrays)
    )
    states: dict[str, State] = {}
    for line in (text or "").splitlines():
        name, state, nodes, code = [*line.split("|"), "", "", ""][:4]
        states[name] = State(state.partition(" ")[0], nodes, code)  # "CANCELLED by 0"
    found = {job: states[job] for job in jobs if job in states and states[job].name in ENDED}
    for job in jobs:
        if job not in found:  # accounting may have missed its end
            _, out, error = _call("scontrol", "show", "job", "-o", job, timeout_s=10.0)
            fields = dict(FIELD.findall(out))
            if fields.get("JobState") in ENDED:
                found[job] = State(
                    fields["JobState"], fields.get("NodeList", ""), fields.get("ExitCode", "")
                )
            elif FORGOTTEN.search(f"{out}{error}"):
                found[job] = State("")
    return found


def ranges(jobs: list[str]) -> list[str]:
    """Jobs in the short form that SLURM's commands take: "7_[0,2,3]"."""
    tasks: dict[str, list[str]] = {}
    for job in jobs:
        base, _, task = job.partition("_")
        tasks.setdefault(base, []).append(task)
    return [
        f"{base}_[{','.join(sorted(tasks[base], key=int))}]" if any(tasks[base]) else base
        for base in tasks
    ]


def max_array_size() -> int | None:
    """The number of tasks that an array may have; None where SLURM does not say."""
    text = ask("scontrol", "show", "config", timeout_s=10.0) or ""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    return None if match is None else int(match[1])


def job_named(name: str) -> str | None:
    """The job, or array, of this name, whether it is queued or has ended."""
    text = ask("squeue", "-h", "-a", "--me", "-n", name, "-o", "%F")
    if text is None:
        raise SilentError
    text = text or ask("sacct", "-X", "-P", "-n", "-S", "now-30days", "--name", name, "-o", "JobID")
    match = re.match(r"\d+", text or "")
    return match and match[0]
