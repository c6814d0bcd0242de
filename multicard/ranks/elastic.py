"""Start ranks under torch's elastic agent, wait for them, and say what ended them.

The controller outlives its ranks: an exception, OOM, a signal or Ctrl-C becomes a `Failure`. It
never initialises CUDA. Ranks are forked from a server that imported torch while the controller was
still busy. It may not have started CUDA, which a process cannot use once its parent has: else ranks
on CUDA are spawned, and import torch again.
"""

import getpass
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec

from multicard.config.placement import Placement
from multicard.machine import devices, environment, private
from multicard.machine.environment import host
from multicard.measure import memory
from multicard.messages import Message, say
from multicard.ranks.failures import Failure, Interrupted, in_a_line, no_space, unwritable
from multicard.ranks.os_calls import SHARED_SIGNALS
from multicard.ranks.process import (
    LOG_LINES,
    UNWRITABLE,
    RankSettings,
    error_file,
    exit_with_bad_fork,
    log_file,
    work_as_rank,
)

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

# Option of the resource tracker's interpreter: it says nothing of
# what ranks that were ended left to it to remove
NO_COMPLAINT = "ignore:resource_tracker:UserWarning"
# A rank that the system has killed, in records without codes; a DataLoader's worker,
# by torch's error
KILLED = ("killed by SIGKILL", "killed by signal: Killed")
# Of a rank's log, and of each of the two parts that are kept of a longer one;
# seconds between two looks at them
MOST_LOG_BYTES = 16 << 20
KEPT_LOG_BYTES = 1 << 20
LOG_LOOK_S = 0.5
MEETING_S = 300.0  # within which all nodes of a run must have come up
CODE_CACHE = "TORCHINDUCTOR_CACHE_DIR"
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
# Variables by which a user chooses how OpenMP's threads wait for one another, and how often they
# look before they sleep where nobody chose: libgomp's own 300,000 keeps cores from other processes
# at each barrier, and none costs nearly half of a quiet machine's speed (`benchmarks.spinning`)
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SPINS = 10_000
# of the agent, until it kills ranks that it has told to end
SILENT_S = 2.0
PATIENCE_S = 30


def warm_up(device: str, modules: list[str]) -> None:
    """Begin to import `modules` in the fork server, while the controller goes on. The server lives
    as long as this process; it has imported what the first call named.
    """
    if device == "cuda":
        _count_by_nvml()
    else:
        spin_briefly()
    with suppress(OSError, ValueError):  # `launch` says so
        os.environ[CODE_CACHE] = _code_cache()
    multiprocessing.set_forkserver_preload(modules)
    # inherited by both, and so by the ranks
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SHARED_SIGNALS)
    sys.warnoptions.append(NO_COMPLAINT)
    try:
        with private.imports():
            multiprocessing.resource_tracker.ensure_running()  # unblocks some signals itself
            signal.pthread_sigmask(signal.SIG_BLOCK, SHARED_SIGNALS)
            sys.warnoptions.remove(NO_COMPLAINT)
            multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _count_by_nvml() -> None:
    """Have torch count devices by NVML, not by the CUDA driver, and CUDA in NVML's order,
    here and in the fork server.

    A rank's own variables come too late for the order: torch reads the GPU's NUMA node,
    for binding, before them.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault(devices.ORDER, devices.device_order())


def spin_briefly() -> None:
    """Have OpenMP's threads of CPU ranks give up their cores soon, unless the user chose how they
    wait. libgomp reads the variable as torch is imported: call it before the fork server starts.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


def _start_method(device: str) -> str:
    """How to start ranks; asks a child of the fork server whether CUDA can be used there."""
    if device == "cpu":
        return "forkserver"
    child = multiprocessing.get_context("forkserver").Process(target=exit_with_bad_fork)
    try:
        child.start()
        child.join()
    except (OSError, EOFError):  # the server is gone: a module that it imported ended it
        return "spawn"
    return "forkserver" if child.exitcode == 0 else "spawn"


def launch(
    work: str, arguments: tuple[Any, ...], placement: Placement, job: RankSettings
) -> Failure | None:
    """Run a function on every rank of this node and wait for all. Call it from the main thread,
    `interruptible`. Returns what ended the run first; None where all ranks returned.
    No rank is left running either way.

    Args:
        work: "module:function", imported by the ranks and not here;
            called with a `Rank` and `arguments`.
    """
    kills = memory.oom_kills()
    try:
        return _oom_if_killed(_launch(work, arguments, placement, job), kills)
    except Interrupted as interruption:
        return interruption.failure


def was_killed(failure: Failure) -> bool:
    """True of a rank, or of a process that it waits for, that SIGKILL ended."""
    if failure.code == "rank.killed":
        return failure.facts["signal"] == "SIGKILL"
    return any(words in failure.message for words in KILLED)


def _oom_if_killed(failure: Failure | None, kills_before: int | None) -> Failure | None:
    """The failure of a rank, or of a process that it waits for, which the kernel killed for want of
    memory, by the kills (`memory.oom_kills`) before the ranks started.
    """
    if failure is None or not was_killed(failure):
        return failure
    if kills_before is None or (memory.oom_kills() or 0) <= kills_before:
        return failure
    message = Message(
        "rank.out-of-memory",
        f"{failure.message}: the kernel's out-of-memory killer ended it; "
        "give a SLURM job more by `memory_gb=GB`, a container by `--memory=SIZE`",
        key="memory_gb",
        reason=failure.message,
    )
    return msgspec.structs.replace(failure, kind="oom", ran_out="host", message=message)


def _launch(
    work: str, arguments: tuple[Any, ...], placement: Placement, job: RankSettings
) -> Failure | None:
    _count_by_nvml()
    if placement.device == "cpu":
        spin_briefly()  # where nothing was warmed up
    from torch.distributed.elastic.multiprocessing import PContext
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    for name in ("torch.distributed", "torch.multiprocessing"):
        # what they log reaches the user as a Failure
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # stays empty; torch's default would leave one in /tmp for each run
    agent_logs = job.folder / f".agent{job.allocation.node}"
    try:
        job = replace(
            job, folder=job.folder.absolute(), variables=_variables(placement, job.allocation.nodes)
        )
        config = _config(placement, job, agent_logs)
        close = _saying_what_it_waits_for(PContext.close)
        with (
            private.imports(),
            bounded_logs(job.folder),
            mock.patch.object(PContext, "close", close),
        ):
            if job.wrapper:
                with _handed_over((work, arguments, job)) as path:
                    elastic_launch(config, sys.executable)(
                        str(Path(__file__).with_name("wrapped.py")), path
                    )
            else:
                elastic_launch(config, work_as_rank)(work, arguments, job)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _failure(job.folder, rank, failure.exitcode)
    except Exception as error:  # raised by the agent, not by a rank
        if (full := no_space(error, job.folder)) is not None:
            return Failure("disk", full)
        reason = in_a_line(error)
        message = Message(
            "rank.not-started",
            f"the ranks could not be started or watched: {reason}",
            reason=reason,
        )
        return Failure("launch", message)
    finally:
        shutil.rmtree(agent_logs, ignore_errors=True)
    return None


def _saying_what_it_waits_for(close: Callable[..., None]) -> Callable[..., None]:
    def said(*arguments: Any, **keywords: Any) -> None:
        line = Message(
            "rank.goes-on",
            f"waiting for ranks that go on after SIGTERM: they are killed {PATIENCE_S} s after it",
            seconds=PATIENCE_S,
        )
        waiting = Timer(SILENT_S, say, [line], {"error": True})
        waiting.daemon = True
        waiting.start()
        try:
            close(*arguments, **keywords)
        finally:
            waiting.cancel()

    return said


def _config(placement: Placement, job: RankSettings, logs: Path) -> "LaunchConfig":
    """Settings of torch's agent of this node."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig
    from torch.numa.binding import AffinityMode, NumaOptions

    from multicard.ranks import rendezvous

    allocation = job.allocation
    port = allocation.port if allocation.nodes > 1 else 0  # any that is free
    return LaunchConfig(
        min_nodes=allocation.nodes,
        max_nodes=allocation.nodes,
        nproc_per_node=placement.processes,
        run_id=f"multicard-{allocation.job or os.getpid()}",
        # node 0's agent keeps the store; ranks are numbered in the order of the nodes
        rdzv_backend=rendezvous.BACKEND,
        rdzv_endpoint=f"{allocation.head_address()}:{port}",
        rdzv_configs={"rank": allocation.node, "timeout": MEETING_S},
        max_restarts=0,
        start_method="spawn" if job.wrapper else _start_method(placement.device),
        logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        signals_to_handle="",  # `launch` handles them
        numa_options=(
            NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
            if job.numa
            else None
        ),
    )


@contextmanager
def _handed_over(work: tuple[Any, ...]) -> Iterator[str]:
    """The path of a file in memory that holds `work` pickled, for other processes of this user on
    this machine. It ends with this process.
    """
    with os.fdopen(os.memfd_create("work"), "wb") as file:
        file.write(pickle.dumps(work))
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _variables(placement: Placement, nodes: int) -> dict[str, str]:
    """Environment variables of the ranks: the fork server
    may be older than what is known by now.
    """
    variables = devices.variables() if placement.device == "cuda" else {}
    # no Triton, for which Inductor would start processes that compute beside training
    if placement.device == "cpu":
        variables["TORCH_WARM_POOL"] = os.environ.get("TORCH_WARM_POOL", "0")
    if nodes == 1:  # NCCL takes names that begin so, but for "=": no others are wanted
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        variables["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", "=lo")
    # processes in which each rank's Inductor compiles: by
    # default all cores for every rank, 32 at most
    workers = max(1, min(32, environment.cores() // placement.processes))
    variables[COMPILERS] = os.environ.get(COMPILERS, str(workers))
    variables[CODE_CACHE] = _code_cache()
    return variables


def _code_cache() -> str:
    """Where Inductor keeps compiled code, which it runs; a ValueError where somebody has taken the
    place. The folder that torch sets by itself, as it is imported, is in /tmp and has a name that
    anybody could take.
    """
    chosen = os.environ.get(CODE_CACHE)
    temporary = Path(tempfile.gettempdir())
    with suppress(KeyError, OSError):  # a user without a name
        if chosen and Path(chosen) != temporary / f"torchinductor_{getpass.getuser()}":
            return chosen
    own = temporary / f"multicard-inductor-{os.getuid()}"
    return str(private.folder(own, f"set {CODE_CACHE} to a folder of your own"))


@contextmanager
def bounded_logs(folder: Path) -> Iterator[None]:
    """Shorten the logs of a run while it goes on, and at its end."""
    ended = Event()
    left_out = dict[Path, int]()

    def watch() -> None:
        while not ended.wait(LOG_LOOK_S):
            shorten_logs(folder, left_out)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        shorten_logs(folder, left_out)


def shorten_logs(folder: Path, left_out: dict[Path, int]) -> None:
    """Shorten the logs that are too long. Their writers append, and go on behind what is kept.

    Args:
        left_out: bytes by log; added to.
    """
    for path in folder.glob("logs/r*.log"):
        with (
            suppress(OSError),
            os.fdopen(private.no_link(path, os.O_RDWR | os.O_APPEND), "rb+") as log,
        ):
            size = log.seek(0, os.SEEK_END)
            if size <= MOST_LOG_BYTES:
                continue
            log.seek(size - KEPT_LOG_BYTES)
            last = log.read()
            left_out[path] = left_out.get(path, 0) + size - 2 * KEPT_LOG_BYTES
            log.truncate(KEPT_LOG_BYTES)
            note = Message(
                "log.shortened",
                f"... about {left_out[path]:,} bytes are left out here: a log keeps its first and"
                " last part ...",
                bytes=left_out[path],
            )
            log.write(f"\n{note}\n".encode() + last)


def _failure(folder: Path, rank: int, exitcode: int) -> Failure:
    """The failure of the rank that ended first, from its own report or its exit code."""
    log = log_file(folder, rank)
    where: dict[str, Any] = {"rank": rank, "host": host(), "log": str(log.relative_to(folder))}
    with suppress(OSError):
        where["log_tail"] = tuple(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    with suppress(OSError, msgspec.DecodeError):
        report = msgspec.json.decode(error_file(folder, rank).read_bytes(), type=Failure)
        return msgspec.structs.replace(report, message=f"rank {rank}: {report.message}", **where)
    if exitcode == UNWRITABLE:
        return Failure("disk", unwritable(folder, rank=rank), **where)
    if exitcode < 0:
        name = (
            signal.Signals(-exitcode).name
            if -exitcode in {*signal.Signals}
            else f"signal {-exitcode}"
        )
        message = Message(
            "rank.killed", f"rank {rank} was killed by {name}", rank=rank, signal=name
        )
        return Failure("signal", message, **where)
    message = Message(
        "rank.exited", f"rank {rank} exited with code {exitcode}", rank=rank, exit_code=exitcode
    )
    return Failure("exit", message, **where)
