"""Start ranks under torch's elastic agent, wait for them, and return what ended them.

The controller outlives its ranks: an exception, running out of memory, a signal or Ctrl-C becomes a
`Failure`. The controller never initialises CUDA.

Ranks are forked from a server that imports torch while the controller is still busy. A process
cannot use CUDA if its parent has started it. If the server has, ranks on CUDA are spawned instead,
and each imports torch again.
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

# This option of the resource tracker's interpreter silences its warnings about what ranks that were
# ended have left for it to remove.
NO_COMPLAINT = "ignore:resource_tracker:UserWarning"
# Records without codes say by these words that the system has killed a rank, or that torch found a
# worker of a DataLoader killed.
KILLED = ("killed by SIGKILL", "killed by signal: Killed")
# A rank's log that is longer than this is shortened. Its first and last part are kept.
MAX_LOG_BYTES = 16 << 20
LOG_PART_BYTES = 1 << 20
LOG_CHECK_S = 0.5  # Time between two checks of the logs' length.
MEETING_S = 300.0  # All nodes of a run must come up within this time.
CODE_CACHE = "TORCHINDUCTOR_CACHE_DIR"
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
# By these variables a user chooses how threads of OpenMP wait for each other. If none is set, they
# spin for SPIN_COUNT iterations before they sleep. libgomp's default of 300,000 keeps cores from
# other processes at each barrier. Without spinning, a quiet machine loses nearly half of its speed
# (`benchmarks.spinning`).
OPENMP_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SPIN_COUNT = 10_000
# The agent asks ranks to end. After SILENT_S a line tells the user so. After PATIENCE_S the agent
# kills them.
SILENT_S = 2.0
PATIENCE_S = 30


def warm_up(device: str, modules: list[str]) -> None:
    """Begin to import `modules` in the fork server, while the controller goes on.

    The server lives as long as this process. It has imported the modules of the first call.
    """
    if device == "cuda":
        _count_by_nvml()
    else:
        spin_briefly()
    with suppress(OSError, ValueError):  # `launch` reports the error.
        os.environ[CODE_CACHE] = _code_cache()
    multiprocessing.set_forkserver_preload(modules)
    # The resource tracker and the fork server inherit the blocked signals, and so do the ranks.
    signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SHARED_SIGNALS)
    sys.warnoptions.append(NO_COMPLAINT)
    try:
        with private.imports():
            # This call unblocks some signals.
            multiprocessing.resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, SHARED_SIGNALS)
            sys.warnoptions.remove(NO_COMPLAINT)
            multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)


def _count_by_nvml() -> None:
    """Have torch count devices by NVML, not by the CUDA driver, and CUDA in NVML's order.

    This holds here and in the fork server. A rank's own variables come too late for the order:
    torch reads the GPU's NUMA node before them, to bind the rank.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault(devices.ORDER, devices.device_order())


def spin_briefly() -> None:
    """Have OpenMP's threads of CPU ranks give up their cores soon, unless the user chose otherwise.

    libgomp reads the variable when torch is imported. So call this before the fork server starts.
    """
    if not any(name in os.environ for name in OPENMP_WAIT_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def _start_method(device: str) -> str:
    """Return how to start ranks. Ask a child of the fork server whether CUDA can be used there."""
    if device == "cpu":
        return "forkserver"
    child = multiprocessing.get_context("forkserver").Process(target=exit_with_bad_fork)
    try:
        child.start()
        child.join()
    except (OSError, EOFError):  # The server is gone: a module that it imported ended it.
        return "spawn"
    return "forkserver" if child.exitcode == 0 else "spawn"


def launch(
    work: str, arguments: tuple[Any, ...], placement: Placement, job: RankSettings
) -> Failure | None:
    """Run a function on every rank of this node, and wait for all ranks.

    Call it from the main thread, within `failures.interruptible`. No rank is left running.

    Args:
        work: "module:function". Ranks import it, and call it with a `Rank` and `arguments`. It is
            not imported here.

    Returns:
        The failure that ended the run first, or None if the function returned on all ranks.
    """
    kills = memory.oom_kills()
    try:
        return _oom_if_killed(_launch(work, arguments, placement, job), kills)
    except Interrupted as interruption:
        return interruption.failure


def was_killed(failure: Failure) -> bool:
    """Return True if SIGKILL ended a rank, or a process that a rank waits for."""
    if failure.code == "rank.killed":
        return failure.facts["signal"] == "SIGKILL"
    return any(words in failure.message for words in KILLED)


def _oom_if_killed(failure: Failure | None, kills_before: int | None) -> Failure | None:
    """Turn a kill by the kernel's out-of-memory killer into a failure of kind "oom".

    Args:
        failure: The failure of a rank, or of a process that it waits for.
        kills_before: The kernel's kills (`memory.oom_kills`) before the ranks started.
    """
    if failure is None or not was_killed(failure):
        return failure
    if kills_before is None or (memory.oom_kills() or 0) <= kills_before:
        return failure
    message = Message(
        "rank.out-of-memory",
        f"{failure.message}: the kernel's out-of-memory killer ended it; "
        "give a SLURM job more memory by `memory_gb=GB`, a container by `--memory=SIZE`",
        key="memory_gb",
        reason=failure.message,
    )
    return msgspec.structs.replace(failure, kind="oom", ran_out="host", message=message)


def _launch(
    work: str, arguments: tuple[Any, ...], placement: Placement, job: RankSettings
) -> Failure | None:
    _count_by_nvml()
    if placement.device == "cpu":
        spin_briefly()  # `warm_up` may not have been called.
    from torch.distributed.elastic.multiprocessing import PContext
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    for name in ("torch.distributed", "torch.multiprocessing"):
        # The messages that torch logs reach the user as a Failure.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # This folder stays empty. By default, torch would leave one in /tmp for each run.
    agent_logs = job.folder / f".agent{job.allocation.node}"
    try:
        job = replace(
            job, folder=job.folder.absolute(), variables=_variables(placement, job.allocation.nodes)
        )
        config = _config(placement, job, agent_logs)
        close = _announcing_slow_ranks(PContext.close)
        with (
            private.imports(),
            bounded_logs(job.folder),
            mock.patch.object(PContext, "close", close),
        ):
            if job.wrapper:
                with _in_memory_file((work, arguments, job)) as path:
                    elastic_launch(config, sys.executable)(
                        str(Path(__file__).with_name("wrapped.py")), path
                    )
            else:
                elastic_launch(config, work_as_rank)(work, arguments, job)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _failure(job.folder, rank, failure.exitcode)
    except Exception as error:  # The agent raised it, not a rank.
        if (disk_full_message := no_space(error, job.folder)) is not None:
            return Failure("disk", disk_full_message)
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


def _announcing_slow_ranks(close: Callable[..., None]) -> Callable[..., None]:
    """Wrap `PContext.close` to print a line if ranks do not end soon after SIGTERM."""

    def close_and_announce(*arguments: Any, **keywords: Any) -> None:
        message = Message(
            "rank.goes-on",
            f"waiting for ranks that did not end on SIGTERM: they are killed {PATIENCE_S} s after"
            " it",
            seconds=PATIENCE_S,
        )
        announcement = Timer(SILENT_S, say, [message], {"error": True})
        announcement.daemon = True
        announcement.start()
        try:
            close(*arguments, **keywords)
        finally:
            announcement.cancel()

    return close_and_announce


def _config(placement: Placement, job: RankSettings, logs: Path) -> "LaunchConfig":
    """Return the settings of torch's agent on this node."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig
    from torch.numa.binding import AffinityMode, NumaOptions

    from multicard.ranks import rendezvous

    allocation = job.allocation
    port = allocation.port if allocation.nodes > 1 else 0  # 0 stands for any free port.
    return LaunchConfig(
        min_nodes=allocation.nodes,
        max_nodes=allocation.nodes,
        nproc_per_node=placement.processes,
        run_id=f"multicard-{allocation.job or os.getpid()}",
        # Node 0's agent holds the store. Ranks are numbered in the order of the nodes.
        rdzv_backend=rendezvous.BACKEND,
        rdzv_endpoint=f"{allocation.head_address()}:{port}",
        rdzv_configs={"rank": allocation.node, "timeout": MEETING_S},
        max_restarts=0,
        start_method="spawn" if job.wrapper else _start_method(placement.device),
        logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        signals_to_handle="",  # `launch` handles signals itself.
        numa_options=(
            NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
            if job.numa
            else None
        ),
    )


@contextmanager
def _in_memory_file(work: tuple[Any, ...]) -> Iterator[str]:
    """Pickle `work` into a file in memory, and yield the path of the file.

    Other processes of this user on this machine can read it. It disappears with this process.
    """
    with os.fdopen(os.memfd_create("work"), "wb") as file:
        file.write(pickle.dumps(work))
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _variables(placement: Placement, nodes: int) -> dict[str, str]:
    """Return environment variables of the ranks.

    The fork server may have started before some of them were known.
    """
    variables = devices.variables() if placement.device == "cuda" else {}
    # CPU ranks do not use Triton. For Triton, Inductor would start processes that use cores while
    # the ranks train.
    if placement.device == "cpu":
        variables["TORCH_WARM_POOL"] = os.environ.get("TORCH_WARM_POOL", "0")
    if nodes == 1:  # Without "=", NCCL would take every interface whose name begins so.
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        variables["NCCL_SOCKET_IFNAME"] = os.environ.get("NCCL_SOCKET_IFNAME", "=lo")
    # Each rank's Inductor compiles in this number of processes. By default every rank would use all
    # cores, or 32.
    workers = max(1, min(32, environment.cores() // placement.processes))
    variables[COMPILERS] = os.environ.get(COMPILERS, str(workers))
    variables[CODE_CACHE] = _code_cache()
    return variables


def _code_cache() -> str:
    """Return the folder in which Inductor keeps compiled code, which it later runs.

    torch's default folder is in /tmp, and anybody could create a folder of that name first.

    Raises:
        ValueError: Another user owns the folder.
    """
    chosen_folder = os.environ.get(CODE_CACHE)
    temporary = Path(tempfile.gettempdir())
    with suppress(KeyError, OSError):  # The user may have no name.
        if (
            chosen_folder
            and Path(chosen_folder) != temporary / f"torchinductor_{getpass.getuser()}"
        ):
            return chosen_folder
    private_folder = temporary / f"multicard-inductor-{os.getuid()}"
    return str(private.folder(private_folder, f"set {CODE_CACHE} to a folder of your own"))


@contextmanager
def bounded_logs(folder: Path) -> Iterator[None]:
    """Shorten the logs of a run while it runs, and at its end."""
    run_ended = Event()
    left_out = dict[Path, int]()

    def watch() -> None:
        while not run_ended.wait(LOG_CHECK_S):
            shorten_logs(folder, left_out)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        run_ended.set()
        thread.join()
        shorten_logs(folder, left_out)


def shorten_logs(folder: Path, left_out: dict[Path, int]) -> None:
    """Shorten the logs that are too long. The ranks append, and go on after the part that is kept.

    Args:
        left_out: Bytes that were left out so far, by log. It is updated.
    """
    for path in folder.glob("logs/r*.log"):
        with (
            suppress(OSError),
            os.fdopen(private.no_link(path, os.O_RDWR | os.O_APPEND), "rb+") as log,
        ):
            size = log.seek(0, os.SEEK_END)
            if size <= MAX_LOG_BYTES:
                continue
            log.seek(size - LOG_PART_BYTES)
            last_part = log.read()
            left_out[path] = left_out.get(path, 0) + size - 2 * LOG_PART_BYTES
            log.truncate(LOG_PART_BYTES)
            note = Message(
                "log.shortened",
                f"... about {left_out[path]:,} bytes are left out here: only the first and last"
                " part of a log are kept ...",
                bytes=left_out[path],
            )
            log.write(f"\n{note}\n".encode() + last_part)


def _failure(folder: Path, rank: int, exitcode: int) -> Failure:
    """Return the failure of the rank that ended first, from its report or its exit code."""
    log = log_file(folder, rank)
    rank_facts: dict[str, Any] = {"rank": rank, "host": host(), "log": str(log.relative_to(folder))}
    with suppress(OSError):
        rank_facts["log_tail"] = tuple(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    with suppress(OSError, msgspec.DecodeError):
        report = msgspec.json.decode(error_file(folder, rank).read_bytes(), type=Failure)
        return msgspec.structs.replace(
            report, message=f"rank {rank}: {report.message}", **rank_facts
        )
    if exitcode == UNWRITABLE:
        return Failure("disk", unwritable(folder, rank=rank), **rank_facts)
    if exitcode < 0:
        name = (
            signal.Signals(-exitcode).name
            if -exitcode in {*signal.Signals}
            else f"signal {-exitcode}"
        )
        message = Message(
            "rank.killed", f"rank {rank} was killed by {name}", rank=rank, signal=name
        )
        return Failure("signal", message, **rank_facts)
    message = Message(
        "rank.exited", f"rank {rank} exited with code {exitcode}", rank=rank, exit_code=exitcode
    )
    return Failure("exit", message, **rank_facts)
