"""Starts ranks under torch's elastic agent and says how they ended. Nothing else starts a process.

The controller outlives its ranks: an exception, OOM, a signal or Ctrl-C becomes a `Failure`. It never initialises
CUDA. On CPU, ranks are forked from a server that imported torch while the controller was still busy.
"""

import ctypes
import importlib
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread, main_thread
from typing import TYPE_CHECKING, Any

from multicard.config.base import Malloc, Placement
from multicard.machine.allocation import Allocation
from multicard.machine.environment import host
from multicard.measure.memory import held_memory_bytes
from multicard.records.run_folder import read_json, write_json

if TYPE_CHECKING:
    import torch

PEER_GRACE_S = 10.0  # how long a rank whose collective failed waits for the agent to see which rank died first
LOG_LINES = 20
MEETING_S = 300.0  # within which all nodes of a run must have come up


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
class Failure:
    """Why a run ended. `kind` is oom, exception, signal, exit, node, interrupt, timeout or preempted."""

    kind: str
    message: str
    rank: int | None = None
    host: str | None = None
    memory_bytes: int | None = None  # that the rank held when memory ran out
    log: str | None = None  # relative to the run folder
    log_tail: tuple[str, ...] = ()


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


def warm_up(device: str, modules: list[str]) -> None:
    """Begin to import `modules` in the fork server, beside whatever the controller does next (CPU ranks only)."""
    if device == "cpu":
        multiprocessing.set_forkserver_preload(modules)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            multiprocessing.resource_tracker.ensure_running()  # it unblocks some by itself
            signal.pthread_sigmask(signal.SIG_BLOCK, SHARED)  # the server, and so the ranks, inherit this
            multiprocessing.forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def launch(work: str, arguments: tuple[Any, ...], placement: Placement, job: Job) -> Failure | None:
    """Run a function on every rank and wait for all. Call it from the main thread.

    Args:
        work: "module:function", imported by the ranks and not here; called with a `Rank` and `arguments`.

    Returns:
        None where all ranks returned, else what ended the run first. No rank is left behind either way.
    """
    with interruptible():
        try:
            return _launch(work, arguments, placement, job)
        except Interrupted as interruption:
            return interruption.failure


class Interrupted(BaseException):
    """A signal, or `end`, asked the controller to end. The agent ends its ranks by SIGTERM then."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_ENDING: list[Failure] = []


def end(failure: Failure) -> None:
    """Have the main thread raise `Interrupted` with this failure, from any other; within `interruptible` only."""
    _ENDING.append(failure)
    main = main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it, a signal that asks this process to end raises `Interrupted`, once; but for those that are blocked,
    which somebody else waits for."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    wanted = [number for number in (*INTERRUPTIONS, signal.SIGUSR1) if number not in blocked]
    handlers = {number: signal.signal(number, _interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> None:
    for again in {*INTERRUPTIONS, signal.SIGUSR1} - signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(again, signal.SIG_IGN)  # a second Ctrl-C must not keep the ranks from being ended
    name = signal.Signals(number).name
    failure = _ENDING.pop() if _ENDING else Failure("interrupt", f"interrupted by {name}", host=host())
    _ENDING.clear()
    raise Interrupted(failure)


def _launch(work: str, arguments: tuple[Any, ...], placement: Placement, job: Job) -> Failure | None:
    # torch asks NVML for devices then, not the driver: the controller stays free of CUDA
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    allocation = job.allocation
    if placement.backend == "gloo" and allocation.nodes == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from torch.numa.binding import AffinityMode, NumaOptions

    for name in ("torch.distributed", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # their news reaches the user as a Failure
    if allocation.nodes > 1:  # node 0's agent keeps the store; ranks are numbered in SLURM's order of the nodes
        meeting: dict[str, Any] = {
            "run_id": f"multicard-{allocation.job}",
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{allocation.hosts[0]}:{allocation.port}",
            "rdzv_configs": {"rank": allocation.node, "timeout": MEETING_S},
        }
    else:
        meeting = {
            "run_id": f"multicard-{os.getpid()}",
            "rdzv_backend": "c10d",
            "rdzv_endpoint": "localhost:0",
            "local_addr": "127.0.0.1",
        }
    agents = job.folder / f".agent{allocation.node}"  # else they leave an empty folder in the system's, a run
    config = LaunchConfig(
        min_nodes=allocation.nodes,
        max_nodes=allocation.nodes,
        nproc_per_node=placement.processes,
        **meeting,
        max_restarts=0,
        start_method="forkserver" if placement.device == "cpu" else "spawn",
        logs_specs=DefaultLogsSpecs(log_dir=str(agents)),
        signals_to_handle="",  # `launch` handles them
        numa_options=NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True) if job.numa else None,
    )
    try:
        if job.wrapper:
            _leave_work(work, arguments, job)
            elastic_launch(config, sys.executable)(str(Path(__file__).with_name("wrapped.py")), str(job.folder))
        else:
            elastic_launch(config, work_as_rank)(work, arguments, job)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _failure(job.folder, rank, failure.exitcode)
    except Exception as error:  # what the agent itself trips over ends this run, and is its cause
        return Failure("launch", f"the ranks could not be started or watched: {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(agents, ignore_errors=True)
        _work_file(job.folder, job.allocation.node).unlink(missing_ok=True)
    return None


def _work_file(folder: Path, node: int) -> Path:
    return folder / f".work{node}.pickle"


def _leave_work(work: str, arguments: tuple[Any, ...], job: Job) -> None:
    """For ranks that start as commands: what others are called with."""
    path = _work_file(job.folder, job.allocation.node)
    path.write_bytes(pickle.dumps((work, arguments, job)))


def left_work(folder: Path) -> tuple[str, tuple[Any, ...], Job]:
    """What this rank is to be called with."""
    return pickle.loads(_work_file(folder, int(os.environ["GROUP_RANK"])).read_bytes())


def _failure(folder: Path, rank: int, exitcode: int) -> Failure:
    """What is known of the rank that ended first: its own report, or how it exited."""
    log = log_file(folder, rank)
    where: dict[str, Any] = {"rank": rank, "host": host(), "log": str(log.relative_to(folder))}
    with suppress(OSError):
        where["log_tail"] = tuple(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    report = read_json(_error_file(folder, rank))
    if report is not None:
        where["memory_bytes"] = report.get("memory_bytes")
        return Failure(report["kind"], f"rank {rank}: {report['message']}", **where)
    if exitcode < 0:
        return Failure("signal", f"rank {rank} was killed by {signal.Signals(-exitcode).name}", **where)
    return Failure("exit", f"rank {rank} exited with code {exitcode}", **where)


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


def _in_a_line(error: BaseException) -> str:
    """The error as a user reads it: a ValueError's own words, else with its type."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and "DataLoader worker" in lines[0]:
        return lines[-1].removeprefix("ValueError: ")  # the last line of the worker's own traceback
    return lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"


def is_oom(error: BaseException) -> bool:
    """Whether memory ran out: torch's own error, or what the libraries below it say; Python's on the host."""
    if isinstance(error, MemoryError):
        return True
    signs = ("out of memory", "alloc_failed", "can't allocate memory")  # driver and NCCL, cuBLAS and cuDNN, host
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in signs)


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


def describe(failure: Failure) -> dict[str, Any]:
    """The failure as the record's `cause`."""
    return asdict(failure)
