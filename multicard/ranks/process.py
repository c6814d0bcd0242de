"""One rank: a process that joins the others, does its work, and says what ended it."""

import ctypes
import importlib
import os
import pickle
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from multicard.config.base import Malloc
from multicard.machine.allocation import Allocation
from multicard.measure.memory import held_memory_bytes
from multicard.records.run_folder import write_json

if TYPE_CHECKING:
    import torch
from multicard.ranks.failures import _in_a_line, is_oom

PEER_GRACE_S = 10.0  # how long a rank whose collective failed waits for the agent to see which rank died first
LOG_LINES = 20


@dataclass(frozen=True)
class Rank:
    """One of `world_size` processes. `threads` are those that torch computes with on this rank."""

    rank: int
    local_rank: int
    world_size: int
    device: "torch.device"
    backend: str
    threads: int


@dataclass(frozen=True)
class Job:
    """What a rank needs to know to start: picklable, and the same for all ranks."""

    folder: Path
    device: str
    backend: str
    devices: int  # CUDA devices that the ranks of this node share
    threads: int
    malloc: str
    numa: bool = False  # bind each rank to the NUMA node of its GPU
    allocation: Allocation = field(default_factory=Allocation)
    controller: int = field(default_factory=os.getpid)
    # a command that starts each rank instead of us, and its own options; RANK in them stands for the rank's number
    wrapper: tuple[str, ...] = ()


# What a terminal or SLURM sends to every process of a job: the controller answers for all of them
SHARED = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR2}


def _work_file(folder: Path, node: int) -> Path:
    return folder / f".work{node}.pickle"


def left_work(folder: Path) -> tuple[str, tuple[Any, ...], Job]:
    """What this rank is to be called with."""
    return pickle.loads(_work_file(folder, int(os.environ["GROUP_RANK"])).read_bytes())


def log_file(folder: Path, rank: int) -> Path:
    return folder / "logs" / f"r{rank:02d}.log"


def _error_file(folder: Path, rank: int) -> Path:
    return folder / "ranks" / f"error_r{rank:02d}.json"


def work_as_rank(work: str, arguments: tuple[Any, ...], job: Job) -> None:
    """The body of a rank's process."""
    for number in SHARED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SHARED)  # before any other thread, or process, is started
    Thread(target=_obey, args=(job.controller,), daemon=True).start()
    Thread(target=_die_with, args=(job.controller,), daemon=True).start()
    number = int(os.environ["RANK"])
    redirect(log_file(job.folder, number))
    if job.device == "cpu" and job.malloc == Malloc.tuned:
        tune_malloc()
    try:
        module, _, function = work.partition(":")
        rank = _join(job)
        getattr(importlib.import_module(module), function)(rank, *arguments)
        _leave()
    except BaseException as error:
        traceback.print_exc()
        _report(job, number, error)
        if _peer_died(error):
            time.sleep(PEER_GRACE_S)  # the agent ends this rank when it has seen the one that died
        _exit_at_once()


def _join(job: Job) -> Rank:
    import torch
    import torch.distributed as dist

    number, local, world = (int(os.environ[key]) for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    torch.set_num_threads(job.threads)
    if job.device == "cuda":
        device = torch.device("cuda", local % job.devices)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if world > 1:
        bound = device if "nccl" in job.backend else None  # binds the communicator: no guess at the first barrier
        dist.init_process_group(job.backend, device_id=bound)
    return Rank(number, local, world, device, job.backend, job.threads)


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()  # no rank takes its store away while another still needs it
        dist.destroy_process_group()


def _report(job: Job, rank: int, error: BaseException) -> None:
    kind = "oom" if is_oom(error) else "exception"
    held = held_memory_bytes(job.device) if kind == "oom" else None
    with suppress(OSError):  # a full disk may be what ended the rank; its log and exit code still tell
        write_json(_error_file(job.folder, rank), {"kind": kind, "message": _in_a_line(error), "memory_bytes": held})


def _peer_died(error: BaseException) -> bool:
    """Whether a collective failed, which nearly always means that another rank died first."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    signs = ("connection closed by peer", "connection reset by peer", "gloo", "nccl")
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in signs)


def _exit_at_once() -> None:
    """End this process and those it started, without the waits that an orderly exit has in a broken group."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def redirect(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _obey(controller: int) -> None:
    """End this rank when the controller says so. A terminal, and SLURM before a time limit or a preemption, send
    their signals to every process of the job: those are for the controller alone to answer."""
    while True:
        told = signal.sigwaitinfo(SHARED)
        if told.si_signo == signal.SIGTERM and told.si_pid == controller:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            signal.raise_signal(signal.SIGTERM)


def _die_with(controller: int) -> None:
    """Kill this rank when the controller is gone. Its parent, the fork server, would outlive it: the ranks
    themselves keep that alive."""
    with suppress(ProcessLookupError):  # gone already
        select.select([os.pidfd_open(controller)], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that happens."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def tune_malloc() -> None:
    """Have glibc keep what is freed. Else it maps and unmaps every big tensor, and each batch pays its page faults
    again. Where the C library has no mallopt, nothing changes."""
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
