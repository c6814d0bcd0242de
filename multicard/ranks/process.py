"""Run one rank: a process that joins the others, does its work, and reports what ended it."""

import importlib
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from multicard.config.base import Malloc
from multicard.machine.slurm import Allocation
from multicard.measure.memory import device_memory, held_memory_bytes
from multicard.measure.timing import pause
from multicard.messages import Message
from multicard.ranks import os_calls
from multicard.ranks.failures import Failure, disk_full, in_a_line, is_host_oom, is_oom, no_space
from multicard.records.run_folder import write_json
from multicard.records.text_table import in_bytes

if TYPE_CHECKING:
    import torch

# A rank whose collective failed waits this long, so that the agent sees which rank died first.
PEER_GRACE_S = 10.0
UNWRITABLE = 74  # Exit code of a rank that could not write, not even its report (EX_IOERR).
LOG_LINES = 20  # A rank's failure holds this number of lines from the end of its log.


@dataclass(frozen=True)
class Rank:
    """One of `world_size` processes.

    Attributes:
        rank: Number of the process among all.
        local_rank: Number of the process on its node.
        threads: Number of threads that torch computes with on this rank.
    """

    rank: int
    local_rank: int
    world_size: int
    device: "torch.device"
    backend: str
    threads: int


# ---- collectives, which every rank must call


def meet(rank: Rank) -> None:
    """Wait until all ranks are here."""
    if rank.world_size > 1:
        import torch.distributed as dist

        dist.barrier()


def as_on_rank_0(rank: Rank, flag: bool) -> bool:
    """Return rank 0's flag on every rank.

    It is a broadcast, so that its bytes do not count among the all-reduces of training.
    """
    if rank.world_size == 1:
        return flag
    import torch
    import torch.distributed as dist

    shared = torch.tensor(flag, device=rank.device)
    dist.broadcast(shared, src=0)
    return bool(shared)


def max_over_ranks(rank: Rank, number: int) -> int:
    """Return the largest of all ranks' numbers."""
    if rank.world_size == 1:
        return number
    import torch
    import torch.distributed as dist

    largest = torch.tensor(number, device=rank.device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


@dataclass(frozen=True)
class RankSettings:
    """The settings with which ranks start. They are picklable, and the same for a node's ranks.

    Attributes:
        devices: Number of CUDA devices that the ranks of this node share.
        joins: Join the ranks' process group before their work, and leave it afterwards.
        numa: Bind each rank to the NUMA node of its GPU.
        variables: Environment variables of the ranks.
        wrapper: Command and options of a profiler that starts each rank. The text RANK in them is
            replaced by the rank's number.
    """

    folder: Path
    device: str
    backend: str
    devices: int
    threads: int
    malloc: str
    joins: bool = True
    numa: bool = False
    allocation: Allocation = field(default_factory=Allocation)
    controller: int = field(default_factory=os.getpid)
    variables: dict[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()


def log_file(folder: Path, rank: int) -> Path:
    return folder / "logs" / f"r{rank:02d}.log"


def error_file(folder: Path, rank: int) -> Path:
    """Return the file with the exception that ended a rank: a `Failure` without its log."""
    return folder / "ranks" / f"error_r{rank:02d}.json"


def ended_file(folder: Path, rank: int) -> Path:
    """Return the file that exists once a rank has done all of its work."""
    return folder / "ranks" / f"ended_r{rank:02d}.json"


def exit_with_bad_fork() -> None:
    """Exit with 1 if this process was forked from one that had started CUDA, else with 0."""
    import torch

    sys.exit(int(torch.cuda._is_in_bad_fork()))


def work_as_rank(work: str, arguments: tuple[Any, ...], job: RankSettings) -> None:
    """Join the other ranks, call `work`, and leave together. This is the body of a rank's process.

    Args:
        work: "module:function", which is called with a `Rank` and `arguments`.
    """
    os_calls.follow(job.controller)
    os.environ.update(job.variables)
    number = int(os.environ["RANK"])
    try:
        os_calls.redirect(log_file(job.folder, number))
    except OSError:
        _exit_at_once(UNWRITABLE)
    if job.device == "cpu" and job.malloc == Malloc.tuned:
        os_calls.tune_malloc()
    try:
        module, _, function = work.partition(":")
        rank = _join(job)
        getattr(importlib.import_module(module), function)(rank, *arguments)
        _leave(job)
        with suppress(OSError):  # If the disk is full, only the controller knows that it ended.
            write_json(ended_file(job.folder, number), {})
        _end_compilers()
    except BaseException as error:
        # A loader installs a handler that raises whenever one of its workers ends.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(OSError):
            traceback.print_exc()
        _report(job, number, error)
        if _is_collective_failure(error):
            pause(PEER_GRACE_S)  # The agent ends this rank once it has seen the one that died.
        _exit_at_once(1 if disk_full(error) is None else UNWRITABLE)


def _join(job: RankSettings) -> Rank:
    """Choose this rank's device and join the process group."""
    import torch
    import torch.distributed as dist

    number, local, world = (int(os.environ[key]) for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    torch.set_num_threads(job.threads)
    if job.device == "cuda":
        device = torch.device("cuda", local % job.devices)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if world > 1 and job.joins:
        # Without it, the first barrier would guess the device.
        device_of_group = device if "nccl" in job.backend else None
        dist.init_process_group(job.backend, device_id=device_of_group)
    return Rank(number, local, world, device, job.backend, job.threads)


def _leave(job: RankSettings) -> None:
    """Leave the process group, even if the work joined it itself and did not leave it."""
    import torch.distributed as dist

    if dist.is_initialized():
        if job.joins:
            dist.barrier()  # Rank 0 holds the store, which the others need until they leave.
        dist.destroy_process_group()


def _end_compilers() -> None:
    """End the processes in which Inductor compiles.

    While their parent lives, their CPU time counts as the run's. Inductor ends them when the
    interpreter exits, but forked ranks do not get there.
    """
    inductor = sys.modules.get("torch._inductor.async_compile")
    if inductor is not None:
        with suppress(subprocess.SubprocessError):  # If they take too long: the run itself is over.
            inductor.shutdown_compile_workers()


def _report(job: RankSettings, rank: int, error: BaseException) -> None:
    """Write a report of the exception for the controller."""
    memory = device_memory(job.device)
    message = in_a_line(error)
    failure = Failure("exception", message)
    if (disk_full_message := no_space(error, job.folder)) is not None:
        failure = Failure("disk", disk_full_message)
    elif is_oom(error, memory):
        if memory is not None and not is_oom(error):  # The error itself does not say so.
            free = in_bytes(memory.free_bytes)
            total = in_bytes(memory.total_bytes)
            message = Message(
                "rank.gpu-full",
                f"{message} ({free} of {total} free)",
                reason=message,
                free_bytes=memory.free_bytes,
                total_bytes=memory.total_bytes,
            )
        ran_out = "host" if job.device == "cpu" or is_host_oom(error) else "gpu"
        failure = Failure(
            "oom", message, ran_out=ran_out, memory_bytes=held_memory_bytes(job.device)
        )
    with suppress(OSError):  # The disk may be full. The log and the exit code remain.
        write_json(error_file(job.folder, rank), failure)


def _is_collective_failure(error: BaseException) -> bool:
    """Return True if a collective failed. Nearly always this means that another rank died first."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    words_of_collectives = ("connection closed by peer", "connection reset by peer", "gloo", "nccl")
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower() for words in words_of_collectives
    )


def end_children() -> None:
    """Kill the processes that this one started."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _exit_at_once(code: int) -> NoReturn:
    """End this process and those that it started, without waiting for the other ranks.

    In a group in which a rank has died, an orderly exit would wait for it.
    """
    end_children()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
