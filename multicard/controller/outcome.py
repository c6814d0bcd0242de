"""The record of a run, `result.json`: measured, refused or failed."""

from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from multicard.bottleneck import diagnosis
from multicard.config.base import TrackerMode, plain
from multicard.controller import attempts
from multicard.controller.prepare import PreparedRun, binds
from multicard.controller.session import SESSION, say
from multicard.controller.workload import Workload
from multicard.energy import gpu_record
from multicard.measure.timing import timestamp
from multicard.ranks import checkpoint
from multicard.ranks.failures import Failure
from multicard.records import run_folder
from multicard.records.schema import SCHEMA_VERSION
from multicard.tracking.wandb_mirror import Mirror

STOPPED = ("timeout", "preempted")  # kinds of failure after which a job may be requeued; statuses too
Record = dict[str, Any]


def begin(workload: Workload, cfg: DictConfig, folder: Path, job: str | None = None) -> Record:
    """The fields of every record, however its run ends. `folder` is for this process and is not written to disk."""
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
        "repetition": cfg.repetition,
    }


def refuse(record: Record, message: str, keep: bool = True) -> Record:
    """Say why a run is refused, and complete its record.

    Args:
        keep: write the record, unless the folder is in use or holds a measurement.
    """
    folder = Path(record["folder"])
    record |= {"status": "refused", "cause": asdict(Failure("refused", message))}
    say(f"{SESSION.label}refused: {message}", error=True)
    if keep and run_folder.finished(folder) is None and run_folder.owner(folder, record["job"]) is None:
        with suppress(OSError):  # where nothing can be written, the line above has to do
            run_folder.write_result(folder, record)
            run_folder.release(folder)
    return record


def fail(record: Record, failure: Failure, status: str | None = None) -> Record:
    """Complete the record of a run that ended before its ranks' work could be recorded.

    A measurement, or a record that the same job wrote itself, stays as it is.

    Args:
        status: where it does not follow from the failure.
    """
    folder = Path(record["folder"])
    record |= {"status": status or _status(failure), "cause": asdict(failure)}
    before = run_folder.read_json(folder / "result.json")
    if before is None or (before["status"] not in run_folder.DONE and before.get("job") != record["job"]):
        run_folder.write_result(folder, record)
    return record


def complete(run: PreparedRun, record: Record, failure: Failure | None, mirror: Mirror) -> Record:
    """Merge what the ranks left into the record, write it, and mirror it."""
    config, placement, folder = run.config, run.placement, run.folder
    ranks = run_folder.read_ranks(folder, placement.world_size if failure is None else 0)
    training_began_s = ranks[0]["started_s"] if ranks else None
    try:
        steps = run_folder.merge_steps(folder)
        gpu = None if placement.device == "cpu" else gpu_record.merge(folder, attempts.parts(folder), failure is None)
        figures = run.workload.summarise(config, placement, ranks, steps, gpu_record.training_joules(gpu))
        ended = failure or _diverged(figures["divergence"])
        result = record | {
            "axes": run.workload.axes(config, placement.device),
            "identity": config.identity(),
            "config": plain(config),
            "status": _status(ended),
            "cause": None if ended is None else asdict(ended),
            "ended_at": timestamp(),
            "startup_s": None if training_began_s is None else training_began_s - run.started_s,
            **figures,
            "data": run.data,
            "load": run.load.end(),
            "beside": run_folder.beside(folder, set(run.allocation.hosts), run.others),
            "gpu": gpu,
            "profile": None,
            "diagnosis": None,
        }
        finished_ranks = ranks if failure is None else []
        if finished_ranks and "profile" in finished_ranks[0]:
            from multicard.profiling import run_profile

            result["profile"] = run_profile.of_run(folder, [rank["profile"] for rank in finished_ranks], result)
        if finished_ranks and finished_ranks[0].get("ablations") is not None:
            advise = partial(run.workload.advise, config, placement)
            result["diagnosis"] = diagnosis.diagnose([rank["ablations"] for rank in finished_ranks], advise)
        result["segments"] = attempts.merge(folder, result.get("segments", []))
        result["segments"][-1]["end"] = "ok" if ended is None else ended.kind
        machine = _complete_environment(run, ranks)
        git = machine.get("git") or dict.fromkeys(("commit", "dirty", "changes"))
        cores = (machine.get("cpu") or {}).get("cores")
        result |= {"hardware": _hardware(machine, ranks), "cores": cores, **git}
        run_folder.write_result(folder, result)
    except OSError as error:
        message = f"hydra.run.dir: could not record the run in {folder} ({error.strerror}); free some space"
        return record | {"status": "failed", "cause": asdict(Failure("disk", message))}
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


def _complete_environment(run: PreparedRun, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Add to `environment.json` what only the ranks know, and the options that took effect. Returns all of it."""
    content = run_folder.read_json(run.folder / run_folder.ENVIRONMENT) or {}
    content["numa"] = "node" if binds(run.config, run.placement) else None
    content["malloc"] = run.config.malloc.value if run.placement.device == "cpu" else "system"
    content["flags"] = ranks[0]["flags"] if ranks else None
    keys = ("rank", "host", "device", "threads", "cpus", "gpu")
    content["ranks"] = [{key: rank[key] for key in keys} for rank in ranks]
    run_folder.write_environment(run.folder, content)
    return content


def _hardware(machine: dict[str, Any], ranks: list[dict[str, Any]]) -> str | None:
    """What the ranks computed on, as far as it makes figures comparable: the names of the GPUs, or the CPU's."""
    names = {rank["device"] for rank in ranks} - {"cpu"}
    return ", ".join(sorted(names)) or (machine.get("cpu") or {}).get("model")


def _status(failure: Failure | None) -> str:
    if failure is None:
        return "ok"
    if failure.kind == "interrupt":
        return "interrupted"
    return failure.kind if failure.kind in ("oom", "diverged", *STOPPED) else "failed"


def _diverged(divergence: dict[str, Any] | None) -> Failure | None:
    """The cause of a run whose ranks ended by themselves; None where its last losses are finite."""
    if divergence is None:
        return None
    epoch, step, rank = (divergence[key] for key in ("epoch", "step", "rank"))
    where = "" if rank is None else f", first on rank {rank}"
    return Failure("diverged", f"the loss is not finite from epoch {epoch}, step {step} on (from 0){where}", rank=rank)


def line(record: Record) -> str:
    """How a run ended, in a line; below it, what bounds it where that was diagnosed."""
    if record["status"] != "ok":
        cause = record["cause"]
        log = f" (log: {Path(record['folder']) / cause['log']})" if cause.get("log") else ""
        return f"  {record['status']}: {cause['message']}{log}"
    diagnosed = record.get("diagnosis")
    bound = f"\n  {diagnosed['sentence']}" if diagnosed else ""
    return f"  ok in {record['total_s']:.1f} s, started in {record['startup_s']:.1f} s{bound}"
