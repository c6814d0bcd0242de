"""One run from typed configuration to result.json: refuse, launch, watch, record."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from multicard.bottleneck import diagnosis
from multicard.config.base import ProfileName, RunConfig, TrackerMode, plain
from multicard.config.job import Numa
from multicard.config.placement import Placement, place
from multicard.controller import attempts
from multicard.controller.peers import Peers
from multicard.controller.preemption import Stop
from multicard.controller.progress_bar import Watch
from multicard.controller.session import SESSION, say
from multicard.controller.workload import Workload
from multicard.energy import gpu_record
from multicard.energy.sampler import Sampler
from multicard.machine import environment
from multicard.machine.allocation import Allocation
from multicard.measure.timing import clock_s, process_started_s, timestamp
from multicard.profiling import nsys_launch
from multicard.ranks import checkpoint, elastic, failures
from multicard.ranks.failures import Failure, Interrupted
from multicard.ranks.process import Job
from multicard.records import identity, run_folder
from multicard.records.progress import Board
from multicard.records.schema import SCHEMA_VERSION
from multicard.tracking.wandb_mirror import Mirror


def cell(workload: Workload, cfg: DictConfig) -> None:
    """The task of a Hydra job: measure `cfg`, or take the record of an earlier measurement of it. Never raises."""
    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    alone = job.mode is RunMode.RUN
    if alone:
        folder = identity.find(folder, identity.folder_name(cfg, list(job.overrides.task)))
    if cfg.dry_run:
        say(f"dry_run=true: nothing is started. To be measured in this process: {folder}")
        run_folder.remove_empty(folder.parent)
        return
    done = None if cfg.rerun else run_folder.finished(folder)
    if done is not None:
        say(f"{SESSION.label}measured before ({done['status']}): {folder}")
        SESSION.records.append(done | {"folder": str(folder)})
        return
    SESSION.records.append(measure(workload, cfg, folder, keep_refused=not alone))
    run_folder.remove_empty(folder.parent)  # a single refused run leaves nothing


def measure(
    workload: Workload,
    cfg: DictConfig,
    folder: Path,
    keep_refused: bool,
    allocation: Allocation | None = None,
    requeue: Callable[[Failure], bool] = lambda _: False,
) -> dict[str, Any]:
    """Measure one configuration into `folder`, or say why not; whatever ends the run, the record says it.

    Args:
        keep_refused: leave a record of a refusal too, as a sweep does.
        allocation: the nodes that the run was given; None for this machine. Call it on the first.
        requeue: asked, when a time limit or a preemption has stopped the run, to have the job started again; where
            it does, nothing is recorded yet.

    Returns:
        The record, as in result.json, and its `folder`.
    """
    started_s = clock_s() if SESSION.begun else process_started_s()
    SESSION.begun = True
    allocation = allocation or Allocation()
    result, peers = _base(workload, cfg, folder, allocation.job), Peers(allocation)
    claimed = requeued = False
    try:
        with failures.interruptible():
            try:
                run = _accept(workload, cfg, folder, started_s, allocation, peers)
            except ValueError as error:
                return _refuse(result, str(error), keep_refused)
            claimed = True
            say(f"{SESSION.label}{workload.describe(run.config, run.placement)} -> {folder}")
            mirror = Mirror(run.config, workload.name, folder)
            failure = _launch(run, mirror, peers)
            attempts.end(folder, failure)
            requeued = failure is not None and failure.kind in STOPPED and requeue(failure)
            if requeued:
                return result | {"status": "requeued"}
            result |= _record(run, result, failure, mirror)
    except Interrupted as interruption:  # before or after the ranks ran: what was written by then stays
        result = _fail(result, interruption.failure, _status(interruption.failure))
    finally:
        peers.close()
        if claimed and not requeued:
            run_folder.release(folder)
    say(outcome(result))
    return result


STOPPED = ("timeout", "preempted")


def refuse(workload: Workload, cfg: DictConfig, folder: Path, message: str, job: str | None = None) -> dict[str, Any]:
    """The record of a cell of a sweep that was refused before it could be measured."""
    return _refuse(_base(workload, cfg, folder, job), message, keep=True)


def fail(
    workload: Workload, cfg: DictConfig, folder: Path, status: str, failure: Failure, job: str | None = None
) -> dict[str, Any]:
    """The record of a run whose controller is gone: what it had measured stays as it is."""
    return _fail(_base(workload, cfg, folder, job), failure, status)


def _refuse(result: dict[str, Any], message: str, keep: bool) -> dict[str, Any]:
    folder = Path(result["folder"])
    result |= {"status": "refused", "cause": failures.describe(Failure("refused", message))}
    say(f"{SESSION.label}refused: {message}", error=True)
    if keep and run_folder.finished(folder) is None and run_folder.owner(folder, result["job"]) is None:
        with suppress(OSError):  # where nothing can be written, the line above has to do
            run_folder.write_result(folder, result)
            run_folder.release(folder)
    return result


def _fail(result: dict[str, Any], failure: Failure, status: str) -> dict[str, Any]:
    folder = Path(result["folder"])
    result |= {"status": status, "cause": failures.describe(failure)}
    before = run_folder.read_json(folder / "result.json")
    if before is None or (before["status"] not in run_folder.DONE and before.get("job") != result["job"]):
        run_folder.write_result(folder, result)
    return result


@dataclass(frozen=True)
class Run:
    """A run that was accepted: nothing is left that could be refused."""

    workload: Workload
    config: RunConfig
    placement: Placement
    folder: Path
    started_s: float
    allocation: Allocation
    arguments: tuple[Any, ...]


def _base(workload: Workload, cfg: DictConfig, folder: Path, job: str | None) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": workload.name,
        "name": folder.parent.name,
        "job": job,
        "folder": str(folder),
        "status": "failed",
        "cause": None,
        "started_at": timestamp(),
        "axes": workload.axes(cfg, str(cfg.device)),
    }


def typed(cfg: DictConfig) -> RunConfig:
    """The composed configuration as dataclasses.

    Raises:
        ValueError: what can never work, with the key and the remedy.
    """
    try:
        config = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise ValueError(str(error).splitlines()[0]) from None
    assert isinstance(config, RunConfig)
    return config


def check(workload: Workload, config: RunConfig, allocation: Allocation) -> Placement:
    """Check on the machine that is to run it what can be checked before anything starts.

    Raises:
        ValueError: what cannot work, with the key and the remedy.
    """
    placement = place(config, len(environment.visible_gpus()), allocation.nodes, workload.processes(config))
    if config.profile.name is ProfileName.nsys:
        nsys_launch.check(placement.device)
    workload.check(config, placement)
    return placement


def _accept(
    workload: Workload, cfg: DictConfig, folder: Path, started_s: float, allocation: Allocation, peers: Peers
) -> Run:
    """Check what can be checked before anything starts, on all nodes, and make the run folder.

    Raises:
        ValueError: what cannot work, with the key and the remedy.
        Interrupted: where another node is gone or did not come up.
    """
    peers.meet()
    config = typed(cfg)
    placement = check(workload, config, allocation)
    try:
        restarted = run_folder.claim(folder, allocation.job)
        try:
            arguments = _begin(workload, config, placement, folder, allocation, restarted)
            run_folder.write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
            peers.begin(attempts.current(folder), arguments[2:])
        except BaseException:
            run_folder.release(folder) if restarted else run_folder.disclaim(folder)
            raise
    except OSError as error:
        remedy = "free some space, or choose another folder (hydra.run.dir, hydra.sweep.dir)"
        raise ValueError(f"hydra.run.dir: cannot write to {folder} ({error.strerror}); {remedy}") from None
    return Run(workload, config, placement, folder, started_s, allocation, arguments)


def _begin(
    workload: Workload, config: RunConfig, placement: Placement, folder: Path, allocation: Allocation, restarted: bool
) -> tuple[Any, ...]:
    """Write what is known before the ranks start. Returns what they are called with."""
    if restarted and checkpoint.latest(folder) is None:
        run_folder.clear(folder)
    run_folder.remove_files(folder / "ranks", "error_*.json")  # of an earlier start
    machine = environment.collect()
    run_folder.write_environment(folder, machine)
    attempts.begin(folder, allocation, machine["git"])
    return workload.arguments(config, placement, folder)


def job_of(workload: Workload, config: RunConfig, placement: Placement, folder: Path, allocation: Allocation) -> Job:
    """What the ranks of this node need to know to start."""
    return Job(
        folder,
        placement.device,
        workload.nccl if placement.backend == "nccl" else placement.backend,
        devices=len(environment.visible_gpus()),
        threads=max(1, environment.cores() // placement.processes),
        malloc=config.malloc.value,
        numa=binds(config, placement),
        allocation=allocation,
        wrapper=nsys_launch.command(folder) if config.profile.name is ProfileName.nsys else (),
    )


def binds(config: RunConfig, placement: Placement) -> bool:
    """Whether ranks are bound to the NUMA node of their GPU: torch does it by the program `numactl`."""
    wanted = config.numa is Numa.node and placement.device == "cuda"
    return wanted and shutil.which("numactl") is not None


def _launch(run: Run, mirror: Mirror, peers: Peers) -> Failure | None:
    """Run the ranks to their end. Returns what ended them early."""
    config, placement, workload, folder = run.config, run.placement, run.workload, run.folder
    elastic.warm_up(placement.device, list(workload.preload))
    job = job_of(workload, config, placement, folder, run.allocation)
    try:
        board = Board(folder, placement.world_size, create=True)
    except OSError as error:
        peers.close()
        return Failure("disk", f"hydra.run.dir: cannot write to {folder} ({error.strerror}); free some space")
    try:
        if mirror.live:
            mirror.open()
    except RuntimeError as error:
        board.remove()
        peers.close()
        remedy = "see that you are logged in (wandb login), or use tracker.mode=offline"
        return Failure("tracker", f"tracker.mode={config.tracker.mode.value}: {error}; {remedy}")
    try:
        stop = Stop(run.allocation, board, placement.world_size, folder, workload.resumable, peers)
        watch = Watch(board, placement.world_size, config.epochs, workload.unit, mirror.update if mirror.live else None)
        with watch, stop, Sampler.of_run(config, placement, folder, attempts.current(folder)) as gpus:
            failure = elastic.launch(workload.work, run.arguments, placement, job)
        gpus.write()
        return peers.outcome(stop.outcome(failure))
    except Interrupted as interruption:  # by another node, as its ranks and ours were about to end
        return interruption.failure
    finally:
        peers.close()
        board.remove()


def _record(run: Run, base: dict[str, Any], failure: Failure | None, mirror: Mirror) -> dict[str, Any]:
    """Merge what the ranks left into the record, write it, and mirror it."""
    config, placement, folder = run.config, run.placement, run.folder
    ranks = run_folder.read_ranks(folder, placement.world_size if failure is None else 0)
    trained_s = ranks[0]["started_s"] if ranks else None
    try:
        steps = run_folder.merge_steps(folder)
        gpu = None if placement.device == "cpu" else gpu_record.merge(folder, attempts.parts(folder), failure is None)
        result = base | {
            "axes": run.workload.axes(config, placement.device),
            "identity": config.identity(),
            "config": plain(config),
            "status": _status(failure),
            "cause": None if failure is None else failures.describe(failure),
            "ended_at": timestamp(),
            "startup_s": None if trained_s is None else trained_s - run.started_s,
            **run.workload.summarise(config, placement, ranks, steps, gpu_record.training_joules(gpu)),
            "gpu": gpu,
        }
        result |= _explained(run, result, ranks if failure is None else [])
        result["segments"] = attempts.merge(folder, result.get("segments", []))
        machine = _complete_environment(folder, config, placement, ranks)
        result |= {
            "hardware": _hardware(machine, ranks),
            **(machine.get("git") or dict.fromkeys(("commit", "dirty", "changes"))),
        }
        run_folder.write_result(folder, result)
    except OSError as error:
        message = f"hydra.run.dir: could not record the run in {folder} ({error.strerror}); free some space"
        return base | {"status": "failed", "cause": failures.describe(Failure("disk", message))}
    run_folder.remove_files(folder / "ranks", "*.json")
    (folder / run_folder.SEGMENTS).unlink(missing_ok=True)
    checkpoint.remove(folder)
    mirrored = config.tracker.mode is not TrackerMode.disabled
    if mirrored and not (failure and failure.kind in ("tracker", "interrupt")):
        try:
            mirror.close(result, steps)
        except RuntimeError as error:
            mode = config.tracker.mode.value
            say(f"tracker.mode={mode}: W&B failed ({error}); the record is in {folder}", error=True)
            result["tracker_error"] = str(error)
    return result


def _explained(run: Run, result: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What `profile` and `diagnose` gave, of a run that ended well."""
    found: dict[str, Any] = {"profile": None, "diagnosis": None}
    if ranks and "profile" in ranks[0]:
        from multicard.profiling import run_profile

        found["profile"] = run_profile.of_run(run.folder, [rank["profile"] for rank in ranks], result)
    if ranks and ranks[0].get("ablations") is not None:
        advise = partial(run.workload.advise, run.config, run.placement)
        found["diagnosis"] = diagnosis.diagnose([rank["ablations"] for rank in ranks], advise)
    return found


def _status(failure: Failure | None) -> str:
    if failure is None:
        return "ok"
    if failure.kind == "interrupt":
        return "interrupted"
    return failure.kind if failure.kind in ("oom", *STOPPED) else "failed"


def _complete_environment(
    folder: Path, config: RunConfig, placement: Placement, ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """Add what only the ranks know, their devices and the flags in force, and return all of it."""
    content = run_folder.read_json(folder / "environment.json") or {}
    content["numa"] = "node" if binds(config, placement) else None  # in force
    content["malloc"] = config.malloc.value if placement.device == "cpu" else "system"  # in force
    content["flags"] = ranks[0]["flags"] if ranks else None
    content["ranks"] = [{key: rank[key] for key in ("rank", "host", "device", "threads", "cpus")} for rank in ranks]
    run_folder.write_environment(folder, content)
    return content


def _hardware(machine: dict[str, Any], ranks: list[dict[str, Any]]) -> str | None:
    """What the ranks computed on, as far as figures of two records may be compared: GPU names, or the CPU's."""
    names = {rank["device"] for rank in ranks} - {"cpu"}
    return ", ".join(sorted(names)) or (machine.get("cpu") or {}).get("model")


def outcome(result: dict[str, Any]) -> str:
    """One line of how a run ended."""
    if result["status"] != "ok":
        cause = result["cause"]
        log = f" (log: {Path(result['folder']) / cause['log']})" if cause.get("log") else ""
        return f"  {result['status']}: {cause['message']}{log}"
    found = result.get("diagnosis")
    told = f"\n  {found['sentence']}" if found else ""
    return f"  ok in {result['total_s']:.1f} s, started in {result['startup_s']:.1f} s{told}"
