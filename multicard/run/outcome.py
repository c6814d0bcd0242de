"""The record of a run, `result.json`: measured, refused or failed."""

import traceback
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from multicard.config.base import TrackerMode, plain
from multicard.measure.timing import timestamp
from multicard.observe import diagnosis
from multicard.observe.energy import gpu_record, parts
from multicard.ranks import checkpoint
from multicard.ranks.failures import Failure, in_a_line
from multicard.ranks.process import LOG_LINES
from multicard.records import probes, run_folder
from multicard.records.schema import SCHEMA_VERSION
from multicard.run import attempts
from multicard.run.prepare import PreparedRun, binds
from multicard.run.session import say
from multicard.run.workload import Workload
from multicard.tracking.mirror import Mirror

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


def refuse(record: Record, message: str, keep: bool = True, label: str = "") -> Record:
    """Say why a run is refused, and complete its record.

    Args:
        keep: write the record, unless the folder is in use or holds a measurement.
        label: of the cell, before the line that is printed.
    """
    folder = Path(record["folder"])
    record |= {"status": "refused", "cause": asdict(Failure("refused", message))}
    say(f"{label}refused: {message}", error=True)
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
    record |= {"status": status or status_of(failure), "cause": asdict(failure)}
    before = run_folder.read_json(folder / "result.json")
    if before is None or (before["status"] not in run_folder.DONE and before.get("job") != record["job"]):
        with suppress(OSError):  # where nothing can be written, the line that is printed has to do
            run_folder.write_result(folder, record)
    return record


def complete(run: PreparedRun, record: Record, mirror: Mirror) -> Record:
    """Write the record of a run whose last attempt has ended, and mirror it.

    The record follows from what is in the folder, and nothing that it is made of is removed before it is there: whoever
    is cut off here, the next start writes the same.
    """
    config, folder = run.config, run.folder
    result, steps = _from_folder(run, record)
    run_folder.write_result(folder, result)
    clean_up(folder)
    mirrored = config.tracker.mode is not TrackerMode.disabled
    kind = (result["cause"] or {}).get("kind")
    if mirrored and kind != "tracker" and (kind != "interrupt" or mirror.is_open):  # else who interrupts waits for W&B
        try:
            mirror.close(result, steps)
        except Exception as error:  # whatever it is: the record is there, and stays as it is
            why = str(error) if isinstance(error, RuntimeError) else in_a_line(error)
            mode = config.tracker.mode.value
            say(f"tracker.mode={mode}: W&B failed ({why}); the record is in {folder}", error=True)
            result["tracker_error"] = why
    return result


def _from_folder(run: PreparedRun, record: Record) -> tuple[Record, Any]:
    """The record, and the table of all steps, from what the ranks and the attempts left."""
    config, placement, folder = run.config, run.placement, run.folder
    attempt = attempts.last(folder)
    failure = Failure(**attempt["failure"]) if attempt["failure"] else None
    ranks = run_folder.read_ranks(folder, placement.world_size if failure is None else 0)
    steps = run_folder.merge_steps(folder)
    gpu = None if placement.device == "cpu" else gpu_record.merge(folder, attempts.parts(folder), failure is None)
    training_began_s = ranks[0]["started_s"] if ranks else None
    is_timed = None not in (training_began_s, attempt["started_s"])
    figures = run.workload.summarise(config, placement, ranks, steps, gpu_record.training_joules(gpu))
    ended = failure or _diverged(figures["divergence"])
    result = record | {
        "started_at": attempt["started_at"],
        "axes": run.workload.axes(config, placement.device),
        "identity": config.identity(),
        "config": plain(config),
        "status": status_of(ended),
        "cause": None if ended is None else asdict(ended),
        "ended_at": attempt["ended_at"],
        "startup_s": training_began_s - attempt["started_s"] if is_timed else None,
        **figures,
        "probe": probes.ended(ranks, steps) if config.probe.enabled and failure is None else None,
        "prediction": attempt["prediction"],
        "data": attempt["data"],
        "load": attempt["load"],
        "beside": attempt["beside"],
        "gpu": gpu,
        "profile": None,
        "diagnosis": None,
    }
    finished_ranks = ranks if failure is None else []
    if finished_ranks and "profile" in finished_ranks[0]:
        from multicard.observe.profiles import run_profile

        result["profile"] = run_profile.of_run(folder, [rank["profile"] for rank in finished_ranks], result)
        result["transfer_bytes"] |= run_profile.whole_run_copies(result["profile"], result)
    if finished_ranks and finished_ranks[0].get("ablations") is not None:
        advise = partial(run.workload.advise, config, placement)
        result["diagnosis"] = diagnosis.diagnose([rank["ablations"] for rank in finished_ranks], advise)
    result["segments"] = attempts.merge(folder, result.get("segments", []))
    result["segments"][-1]["end"] = "ok" if ended is None else ended.kind
    machine = _complete_environment(run, ranks)
    git = machine.get("git") or dict.fromkeys(("commit", "dirty", "changes"))
    cores = (machine.get("cpu") or {}).get("cores")
    return result | {"hardware": _hardware(run, machine, ranks), "cores": cores, **git}, steps


def not_recorded(record: Record, error: Exception) -> Record:
    """The record of a run that an error kept from being recorded; what it was to be made of stays in the folder."""
    folder = Path(record["folder"])
    if isinstance(error, OSError) and error.strerror:
        message = f"hydra.run.dir: could not record the run in {folder} ({error.strerror}); free some space"
        return record | {"status": "failed", "cause": asdict(Failure("disk", message))}
    remedy = "its measurements are kept: the same command tries again to record them, rerun=true measures again"
    message = f"the run ended, but could not be recorded ({in_a_line(error)}); {remedy}"
    lines = "".join(traceback.format_exception(error)).splitlines()[-LOG_LINES:]
    record |= {"status": "failed", "cause": asdict(Failure("record", message, log_tail=tuple(lines)))}
    if run_folder.finished(folder) is None:
        with suppress(OSError):
            run_folder.write_result(folder, record)
    return record


def clean_up(folder: Path) -> None:
    """Remove what the record holds, and what no start goes on from, once the record is there."""
    run_folder.remove_files(folder / "ranks", "*.json")
    parts.remove(folder)
    (folder / run_folder.SEGMENTS).unlink(missing_ok=True)
    checkpoint.remove(folder)


def release_finished(folder: Path) -> None:
    """End the claim of a process that was killed between its record and its end."""
    if (folder / run_folder.RUNNING).exists() and run_folder.owner(folder) is None:
        clean_up(folder)
        run_folder.release(folder)


def _complete_environment(run: PreparedRun, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Add to `environment.json` what only the ranks know, and the options that took effect. Returns all of it."""
    content = run_folder.read_json(run.folder / run_folder.ENVIRONMENT) or {}
    content["numa"] = "node" if binds(run.config, run.placement) else None
    content["malloc"] = run.config.malloc.value if run.placement.device == "cpu" else "system"
    content["flags"] = ranks[0]["flags"] if ranks else None
    content["openmp"] = ranks[0]["openmp"] if ranks else None
    keys = ("rank", "host", "device", "threads", "cpus", "gpu")
    content["ranks"] = [{key: rank[key] for key in keys} for rank in ranks]
    run_folder.write_environment(run.folder, content)
    return content


def _hardware(run: PreparedRun, machine: dict[str, Any], ranks: list[dict[str, Any]]) -> str | None:
    """What the ranks computed on, as far as it makes figures comparable: the names of the GPUs, or the CPU's.

    Ranks that ran out of memory before they trained left no name; theirs were the first GPUs of this node.
    """
    names = {rank["device"] for rank in ranks} - {"cpu"}
    if not ranks and run.placement.device == "cuda":
        names = {gpu["name"] for gpu in machine.get("gpus", [])[: run.config.gpus] if gpu.get("name")}
    return ", ".join(sorted(names)) or (machine.get("cpu") or {}).get("model")


def status_of(failure: Failure | None) -> str:
    """The status of a run that a failure ended; None: it was measured."""
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
    if record.get("probe") is not None:
        return f"  {probes.sentence(record)}"
    diagnosed = record.get("diagnosis")
    bound = f"\n  {diagnosed['sentence']}" if diagnosed else ""
    return f"  ok in {record['total_s']:.1f} s, started in {record['startup_s']:.1f} s{bound}"
