"""Start ranks under torch's elastic agent, wait for them, and say what ended them.

The controller outlives its ranks: an exception, OOM, a signal or Ctrl-C becomes a `Failure`. It never initialises
CUDA. Ranks are forked from a server that imported torch while the controller was still busy. It may not have started
CUDA, which a process cannot use once its parent has: else ranks on CUDA are spawned, and import torch again.
"""

import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from multicard.config.placement import Placement
from multicard.machine import devices
from multicard.machine.environment import host
from multicard.ranks.failures import Failure, Interrupted, interruptible
from multicard.ranks.os_calls import SHARED_SIGNALS
from multicard.ranks.process import LOG_LINES, Job, error_file, exit_with_bad_fork, log_file, work_as_rank, work_file
from multicard.records.run_folder import read_json

MEETING_S = 300.0  # within which all nodes of a run must have come up


def warm_up(device: str, modules: list[str]) -> None:
    """Begin to import `modules` in the fork server, while the controller goes on. The server lives as long as this
    process; it has imported what the first call named."""
    if device == "cuda":
        _count_by_nvml()
    multiprocessing.set_forkserver_preload(modules)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        multiprocessing.resource_tracker.ensure_running()  # unblocks some signals itself
        signal.pthread_sigmask(signal.SIG_BLOCK, SHARED_SIGNALS)  # inherited by the server, and so by the ranks
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _count_by_nvml() -> None:
    """Have torch count devices by NVML, not by the CUDA driver, and CUDA in NVML's order, here and in the fork server.

    A rank's own variables come too late for the order: torch reads the GPU's NUMA node, for binding, before them.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault(devices.ORDER, devices.device_order())


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


def launch(work: str, arguments: tuple[Any, ...], placement: Placement, job: Job) -> Failure | None:
    """Run a function on every rank of this node and wait for all. Call it from the main thread.

    Args:
        work: "module:function", imported by the ranks and not here; called with a `Rank` and `arguments`.

    Returns:
        None where all ranks returned, else what ended the run first. No rank is left running either way.
    """
    with interruptible():
        try:
            return _launch(work, arguments, placement, job)
        except Interrupted as interruption:
            return interruption.failure


def _launch(work: str, arguments: tuple[Any, ...], placement: Placement, job: Job) -> Failure | None:
    _count_by_nvml()
    allocation = job.allocation
    job = replace(job, variables=_variables(placement, allocation.nodes))
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    from torch.numa.binding import AffinityMode, NumaOptions

    for name in ("torch.distributed", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what they log reaches the user as a Failure
    if allocation.nodes > 1:  # node 0's agent keeps the store; ranks are numbered in SLURM's order of the nodes
        rendezvous: dict[str, Any] = {
            "run_id": f"multicard-{allocation.job}",
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{allocation.hosts[0]}:{allocation.port}",
            "rdzv_configs": {"rank": allocation.node, "timeout": MEETING_S},
        }
    else:
        rendezvous = {
            "run_id": f"multicard-{os.getpid()}",
            "rdzv_backend": "c10d",
            "rdzv_endpoint": "localhost:0",
            "local_addr": "127.0.0.1",
        }
    # stays empty; torch's default would leave one in /tmp for each run
    agent_logs = job.folder / f".agent{allocation.node}"
    config = LaunchConfig(
        min_nodes=allocation.nodes,
        max_nodes=allocation.nodes,
        nproc_per_node=placement.processes,
        **rendezvous,
        max_restarts=0,
        start_method="spawn" if job.wrapper else _start_method(placement.device),
        logs_specs=DefaultLogsSpecs(log_dir=str(agent_logs)),
        signals_to_handle="",  # `launch` handles them
        numa_options=NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True) if job.numa else None,
    )
    try:
        if job.wrapper:
            work_file(job.folder, allocation.node).write_bytes(pickle.dumps((work, arguments, job)))
            elastic_launch(config, sys.executable)(str(Path(__file__).with_name("wrapped.py")), str(job.folder))
        else:
            elastic_launch(config, work_as_rank)(work, arguments, job)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _failure(job.folder, rank, failure.exitcode)
    except Exception as error:  # raised by the agent, not by a rank
        return Failure("launch", f"the ranks could not be started or watched: {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(agent_logs, ignore_errors=True)
        work_file(job.folder, allocation.node).unlink(missing_ok=True)
    return None


def _variables(placement: Placement, nodes: int) -> dict[str, str]:
    """Environment variables of the ranks: the fork server may be older than what is known by now."""
    variables = devices.variables() if placement.device == "cuda" else {}
    if placement.device == "cpu":  # no Triton, for which Inductor would start processes that compute beside training
        variables["TORCH_WARM_POOL"] = os.environ.get("TORCH_WARM_POOL", "0")
    if placement.backend == "gloo" and nodes == 1:
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    return variables


def _failure(folder: Path, rank: int, exitcode: int) -> Failure:
    """The failure of the rank that ended first, from its own report or its exit code."""
    log = log_file(folder, rank)
    where: dict[str, Any] = {"rank": rank, "host": host(), "log": str(log.relative_to(folder))}
    with suppress(OSError):
        where["log_tail"] = tuple(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    report = read_json(error_file(folder, rank))
    if report is not None:
        where["memory_bytes"] = report.get("memory_bytes")
        return Failure(report["kind"], f"rank {rank}: {report['message']}", **where)
    if exitcode < 0:
        return Failure("signal", f"rank {rank} was killed by {signal.Signals(-exitcode).name}", **where)
    return Failure("exit", f"rank {rank} exited with code {exitcode}", **where)
