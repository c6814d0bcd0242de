"""One rank: a process that joins the others, does its work, and reports what ended it."""

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

# how long a rank whose collective failed waits, so that the agent sees which rank died first
PEER_GRACE_S = 10.0
UNWRITABLE = 74  # exit code of a rank that could not write, nor report it (EX_IOERR of sysexits.h)
LOG_LINES = 20  # last lines of a rank's log, kept in its failure


@dataclass(frozen=True)
class Rank:
    """One of `world_size` processes.

    rank: its number among all; local_rank: among those of its node.
    threads: that torch computes with on this rank.
    """

    rank: int
    local_rank: int
    world_size: int
    device: "torch.device"
    backend: str
    threads: int


# ---- collectives: every rank calls them


def meet(rank: Rank) -> None:
    """Wait until all ranks are here."""
    if rank.world_size > 1:
        import torch.distributed as dist

        dist.barrier()


def as_on_rank_0(rank: Rank, flag: bool) -> bool:
    """Rank 0's flag: a broadcast, of which no byte is
    counted as an all-reduce of the training's.
    """
    if rank.world_size == 1:
        return flag
    import torch
    import torch.distributed as dist

    shared = torch.tensor(flag, device=rank.device)
    dist.broadcast(shared, src=0)
    return bool(shared)


def max_over_ranks(rank: Rank, number: int) -> int:
    """The largest of all ranks' numbers."""
    if rank.world_size == 1:
        return number
    import torch
    import torch.distributed as dist

    largest = torch.tensor(number, device=rank.device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


@dataclass(frozen=True)
class RankSettings:
    """Settings with which ranks start: picklable, and the same for all ranks of a node."""

    folder: Path
    device: str
    backend: str
    devices: int  # CUDA devices that the ranks of this node share
    threads: int
    malloc: str
    joins: bool = True  # the ranks' process group is joined before their work, and left after it
    numa: bool = False  # bind each rank to the NUMA node of its GPU
    allocation: Allocation = field(default_factory=Allocation)
    controller: int = field(default_factory=os.getpid)
    variables: dict[str, str] = field(default_factory=dict)  # of the environment
    # command and options of a profiler that starts each rank;
    # the text RANK in them becomes the rank's number
    wrapper: tuple[str, ...] = ()


def log_file(folder: Path, rank: int) -> Path:
    return folder / "logs" / f"r{rank:02d}.log"


def error_file(folder: Path, rank: int) -> Path:
    """Report of the exception that ended a rank: a `Failure` without its log."""
    return folder / "ranks" / f"error_r{rank:02d}.json"


def ended_file(folder: Path, rank: int) -> Path:
    """Is there once a rank has done all of its work."""
    return folder / "ranks" / f"ended_r{rank:02d}.json"


def exit_with_bad_fork() -> None:
    """The body of a process that ends with 1 if it was forked from one that had started CUDA,
    else with 0.
    """
    import torch

    sys.exit(int(torch.cuda._is_in_bad_fork()))


def work_as_rank(work: str, arguments: tuple[Any, ...], job: RankSettings) -> None:
    """The body of a rank's process: join the others, call `work`, and leave together.

    Args:
        work: "module:function", called with a `Rank` and `arguments`.
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
        with suppress(OSError):  # on a full disk the controller alone knows it
            write_json(ended_file(job.folder, number), {})
        _end_compilers()
    except BaseException as error:
        # torch raises there for each end of a loader's worker, here too
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(OSError):
            traceback.print_exc()
        _report(job, number, error)
        if _peer_died(error):
            pause(PEER_GRACE_S)  # the agent ends this rank when it has seen the one that died
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
        # else the first barrier guesses the device
        bound = device if "nccl" in job.backend else None
        dist.init_process_group(job.backend, device_id=bound)
    return Rank(number, local, world, device, job.backend, job.threads)


def _leave(job: RankSettings) -> None:
    """Leave the process group, also one that the work joined itself and left open."""
    import torch.distributed as dist

    if dist.is_initialized():
        if job.joins:
            dist.barrier()  # the store lives in rank 0, and the others need it until they leave
        dist.destroy_process_group()


def _end_compilers() -> None:
    """End the processes in which Inductor compiles: their CPU time
    counts as the run's while they have their parent.

    Forked ranks do not run what Inductor leaves to the interpreter's exit.
    """
    inductor = sys.modules.get("torch._inductor.async_compile")
    if inductor is not None:
        with suppress(subprocess.SubprocessError):  # they take too long: the run itself is over
            inductor.shutdown_compile_workers()


def _report(job: RankSettings, rank: int, error: BaseException) -> None:
    """Leave a report of the exception for the controller."""
    memory = device_memory(job.device)
    message = in_a_line(error)
    failure = Failure("exception", message)
    if (full := no_space(error, job.folder)) is not None:
        failure = Failure("disk", full)
    elif is_oom(error, memory):
        if memory is not None and not is_oom(error):  # it does not say so itself
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
    with suppress(OSError):  # a full disk may have ended the rank; its log and exit code remain
        write_json(error_file(job.folder, rank), failure)


def _peer_died(error: BaseException) -> bool:
    """True where a collective failed, which nearly always means that another rank died first."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    signs = ("connection closed by peer", "connection reset by peer", "gloo", "nccl")
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in signs)


def end_children() -> None:
    """Kill the processes that this one started."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _exit_at_once(code: int) -> NoReturn:
    """End this process and those it started, without the waits
    that an orderly exit has in a broken group.
    """
    end_children()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
