"""Make the record of a run, `result.json`, however the run ended: measured, refused or failed."""

import traceback
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig
from rich.text import Text

from multicard.config.base import TrackerMode, plain
from multicard.config.job import count
from multicard.measure.timing import timestamp
from multicard.messages import Message, printable, say
from multicard.observe import diagnosis, gpu_record
from multicard.ranks import checkpoint
from multicard.ranks.failures import Failure, Interrupted, in_a_line, no_space, words_of
from multicard.ranks.process import LOG_LINES, log_file
from multicard.records import bounds, limits, ownership, rank_files, run_folder, table
from multicard.records.rank_files import AnyReport, RankReport
from multicard.records.run_folder import RecordedRun
from multicard.records.schema import SCHEMA_VERSION, AnyRecord, LlmRecord
from multicard.records.schema_environment import Cpu, Environment, Git, RankPlace
from multicard.records.schema_parts import Divergence, Gpu, SavedModel
from multicard.records.text_table import in_bytes
from multicard.run import attempts
from multicard.run.prepare import PreparedRun, binds
from multicard.run.workload import Workload
from multicard.tracking.upload import Mirror

# Colors of statuses on a terminal. All others are red.
STYLES = {"ok": "green", "diverged": "yellow", "requeued": "yellow"}
# After a failure of these kinds a job may be requeued. They are statuses too.
STOPPED = ("timeout", "preempted")


def begin(workload: Workload, cfg: DictConfig, folder: Path, job: str | None = None) -> RecordedRun:
    """Return a run whose record has the fields that every record has, however the run ends."""
    record = workload.record(
        schema_version=SCHEMA_VERSION,
        name=folder.parent.name,
        job=job,
        status="failed",
        started_at=timestamp(),
        axes=workload.axes(cfg, str(cfg.device)),
        repetition=cfg.repetition,
    )
    return RecordedRun(folder, record)


def refuse(run: RecordedRun, message: str, keep: bool = True, title: str = "") -> RecordedRun:
    """Print why a run is refused, and complete its record.

    Args:
        message: The reason. If it is a `Message`, the record has its code.
        keep: Write the record, unless the folder is in use or holds a measurement.
        title: The cell's title, which begins the line that is printed.
    """
    run.record.status = "refused"
    run.record.cause = Failure("refused", message)
    say(line(run, title), error=True)
    if (
        keep
        and run_folder.finished(run.folder) is None
        and ownership.owner(run.folder, run.record.job) is None
    ):
        with suppress(OSError):  # If nothing can be written, the line above has to do.
            run_folder.write_result(run)
            ownership.release(run.folder)
    return run


def fail(run: RecordedRun, failure: Failure, status: str | None = None) -> RecordedRun:
    """Complete the record of a run that ended before its ranks' work could be recorded.

    The file is not overwritten if it holds a measurement, or if the same job wrote it itself.

    Args:
        status: The status, if it does not follow from the failure.
    """
    run.record.status = status or status_of(failure)
    run.record.cause = failure
    # Read as JSON: this version may not be able to read the record.
    earlier_record = run_folder.read_json(run.folder / run_folder.RESULT)
    if earlier_record is None or (
        earlier_record.get("status") not in run_folder.DONE
        and earlier_record.get("job") != run.record.job
    ):
        with suppress(OSError):  # If nothing can be written, the printed line has to do.
            run_folder.write_result(run)
    return run


def complete(prepared: PreparedRun, begun_run: RecordedRun, mirror: Mirror) -> RecordedRun:
    """Write the record of a run whose last attempt has ended, and upload it.

    Safe to interrupt: the record is made from the folder's files, and none of them is removed
    before the record is written. The next start then writes the same record.
    """
    config = prepared.config
    folder = prepared.folder
    record, steps = _from_folder(prepared, begun_run.record)
    run = RecordedRun(folder, record)
    run_folder.write_result(run)
    try:
        clean_up(folder)
        _upload(config.tracker.mode, run, mirror, steps)
    except Interrupted as interruption:  # The record has been written, and does not change.
        run.tracker_error = interruption.failure.message
        run.stopped = True
    return run


def _upload(mode: TrackerMode, run: RecordedRun, mirror: Mirror, steps: Any) -> None:
    """Upload a recorded run to W&B, and print a line if that fails."""
    record = run.record
    kind = None if record.cause is None else record.cause.kind
    if mode is TrackerMode.disabled or kind == "tracker":
        return
    if kind == "interrupt" and not mirror.is_open:  # A user who interrupts does not wait for W&B.
        return
    try:
        mirror.close(msgspec.convert(run_folder.content_of(record), AnyRecord), steps)
    except Exception as error:  # Whatever failed, the record has been written and does not change.
        why = words_of(error) if isinstance(error, RuntimeError) else in_a_line(error)
        message = Message(
            "tracker.failed",
            f"tracker.mode={mode}: W&B failed ({why}); the record is in {run.folder}",
            key="tracker.mode",
            value=str(mode),
            reason=why,
            folder=str(run.folder),
        )
        say(message, error=True)
        run.tracker_error = why


def _from_folder(run: PreparedRun, begun_record: AnyRecord) -> tuple[AnyRecord, Any]:
    """Make the record, and the table of all steps, from the files of the ranks and attempts."""
    config = run.config
    placement = run.placement
    folder = run.folder
    attempt = attempts.last(folder)
    failure = attempt.failure
    ranks = rank_files.read_reports(folder, placement.world_size if failure is None else 0)
    if failure is None:
        problem = rank_files.problem(folder, placement.world_size)
        failure = None if problem is None else Failure("record", problem)
    steps = run_folder.merge_steps(folder)
    gpu = None
    if placement.device != "cpu":
        gpu = msgspec.convert(
            gpu_record.merge(folder, attempts.parts(folder), failure is None), Gpu
        )
    record = so_far(run, begun_record, ranks, steps, gpu)
    record.ended_at = attempt.ended_at
    record.compile_s = max(
        (rank.compile_s for rank in ranks if rank.compile_s is not None), default=None
    )
    record.oversubscribed = placement.oversubscribed
    ending_failure = failure or _divergence_failure(record.divergence, getattr(config, "epochs", 1))
    record.status = status_of(ending_failure)
    record.cause = ending_failure
    record.prediction = attempt.prediction
    record.load = attempt.load
    record.beside = attempt.beside
    finished_ranks = ranks if failure is None else []
    profiles = [rank.profile for rank in finished_ranks if rank.profile is not None]
    ablations = [rank.ablations for rank in finished_ranks if rank.ablations is not None]
    if profiles:
        from multicard.observe.profiles import metrics

        record.profile = metrics.profile_of_run(folder, profiles, record)
        metrics.add_copies(record)
    if ablations:
        advise = partial(run.workload.advise, config, placement)
        record.diagnosis = diagnosis.diagnose(ablations, advise)
    record.segments[-1].end = "ok" if ending_failure is None else ending_failure.kind
    machine = _complete_environment(run, ranks)
    git = machine.git or Git()
    cpu = machine.cpu or Cpu()
    record.commit = git.commit
    record.dirty = git.dirty
    record.changes = git.changes
    record.cores = cpu.cores
    record.hardware = _hardware(run, machine, ranks)
    record.limits = limits.of(record)
    run.workload.explain(config, placement, record)
    return record, steps


def so_far(
    run: PreparedRun,
    begun_record: AnyRecord,
    ranks: Sequence[AnyReport],
    steps: Any,
    gpu: Gpu | None = None,
) -> AnyRecord:
    """Make the record as far as the ranks' files allow by now. It is `ok` while the run goes on.

    Args:
        ranks: The reports of all ranks.
        steps: The steps of all ranks (an Arrow table); None if there are none.
    """
    config = run.config
    attempt = attempts.last(run.folder)
    record = copy(begun_record)
    record.status = "ok"
    record.started_at = attempt.started_at
    record.data = attempt.data
    record.gpu = gpu
    began_s = ranks[0].started_s if ranks else None
    if began_s is not None and attempt.started_s is not None:
        record.startup_s = began_s - attempt.started_s
    record.axes = run.workload.axes(config, run.placement.device)
    record.identity = config.identity()
    record.config = plain(config)
    run.workload.summarise(record, config, run.placement, list(ranks), steps)
    if config.probe.enabled and attempt.failure is None:
        record.probe = rank_files.probe_end(ranks, steps)
    record.segments = attempts.merge(run.folder, record.segments)
    record.ignored = ranks[0].ignored if ranks else []
    limits = chain.from_iterable(rank.limits for rank in ranks)
    record.limits = [*{limit.code: limit for limit in limits}.values()]
    return record


def not_recorded(run: RecordedRun, error: Exception) -> RecordedRun:
    """Complete the record of a run that could not be recorded because of an error.

    The files from which the record was to be made stay in the folder.
    """
    run.record.status = "failed"
    if isinstance(error, OSError) and error.strerror:
        message = Message(
            "folder.not-recorded",
            f"hydra.run.dir: the run could not be recorded in {run.folder} ({error.strerror}); free"
            " some space",
            key="hydra.run.dir",
            folder=str(run.folder),
            reason=error.strerror,
        )
        run.record.cause = Failure("disk", no_space(error, run.folder) or message)
        return run
    reason = in_a_line(error)
    if any(log_file(run.folder, 0).parent.glob("*")):
        message = Message(
            "run.not-recorded",
            f"the run ended, but could not be recorded ({reason}); its measurements are kept: "
            "the same command tries again to record them, and `rerun=true` measures again",
            reason=reason,
        )
    else:
        message = Message(
            "run.no-rank",
            f"no rank could be started ({reason}); check TMPDIR, whose path must be short, "
            "the environment and the limits of the shell",
            reason=reason,
        )
    lines = "".join(traceback.format_exception(error)).splitlines()[-LOG_LINES:]
    run.record.cause = Failure("record", message, log_tail=tuple(lines))
    if run_folder.finished(run.folder) is None:
        with suppress(OSError):
            run_folder.write_result(run)
    return run


def clean_up(folder: Path) -> None:
    """Remove the files that the record includes, and those that only a resumed run would need.

    Call it once the record is written.
    """
    run_folder.remove_files(folder / "ranks", "*.json")
    gpu_record.remove_parts(folder)
    (folder / run_folder.SEGMENTS).unlink(missing_ok=True)
    checkpoint.remove(folder)


def release_finished(folder: Path) -> None:
    """Finish for a process that was killed after it wrote the record and before it cleaned up."""
    if ownership.claims(folder) and ownership.owner(folder) is None:
        clean_up(folder)
        ownership.release(folder)


def _complete_environment(run: PreparedRun, ranks: Sequence[RankReport]) -> Environment:
    """Add to environment.json what only the ranks know, and the options that took effect.

    Returns:
        The complete environment.
    """
    environment = run_folder.read_environment(run.folder)
    environment.numa = "node" if binds(run.config, run.placement) else None
    environment.malloc = str(run.config.malloc) if run.placement.device == "cpu" else "system"
    environment.flags = ranks[0].flags if ranks else None
    environment.openmp = ranks[0].openmp if ranks else None
    places = RankPlace.__struct_fields__
    environment.ranks = [
        RankPlace(**{name: getattr(rank, name) for name in places}) for rank in ranks
    ]
    run_folder.write_environment(run.folder, environment)
    return environment


def _hardware(run: PreparedRun, machine: Environment, ranks: Sequence[RankReport]) -> str | None:
    """Return the names of the GPUs that the ranks used, or of the CPU.

    Figures of different hardware are not compared. Ranks that ran out of memory before they trained
    left no name. They used the first GPUs of this node.
    """
    names = {rank.device for rank in ranks} - {"cpu"}
    if not ranks and run.placement.device == "cuda":
        names = {gpu.name for gpu in machine.gpus[: run.config.gpus] if gpu.name}
    return ", ".join(sorted(names)) or (machine.cpu and machine.cpu.model)


def status_of(failure: Failure | None) -> str:
    """Return the status of a run that ended by this failure. None means that it was measured."""
    if failure is None:
        return "ok"
    if failure.kind == "interrupt":
        return "interrupted"
    return failure.kind if failure.kind in ("oom", "diverged", *STOPPED) else "failed"


def _divergence_failure(divergence: Divergence | None, epochs: int) -> Failure | None:
    """Return the cause of a run whose loss diverged, or None if its last losses are finite."""
    if divergence is None:
        return None
    # Count from 1, as the progress bar does.
    epoch = (divergence.epoch or 0) + 1
    step = (divergence.step or 0) + 1
    rank = divergence.rank
    first_rank = "" if rank is None else f", first on rank {rank}"
    message = Message(
        "run.diverged",
        f"the loss is not finite from epoch {epoch}/{epochs}, step {step} on{first_rank}",
        epoch=epoch,
        epochs=epochs,
        step=step,
        rank=rank,
    )
    return Failure("diverged", message, rank=rank)


def _kept_model_message(folder: Path, saved: SavedModel) -> Message:
    """Return the message on where a run kept its model, and how to load it."""
    working_folder = Path.cwd()
    place = folder.relative_to(working_folder) if folder.is_relative_to(working_folder) else folder
    sentence = (
        f"kept: {place / str(saved.folder)} ({in_bytes(saved.bytes)}); in Python,"
        f" multicard.load_model({str(place)!r})"
    )
    return Message("save.kept", sentence, folder=str(place), form=saved.form, bytes=saved.bytes)


def line(run: RecordedRun, title: str = "") -> Text:
    """Return a line on how a run ended. If it is known what limits the run, a second line says so.

    Args:
        title: The cell's title: its number, and how it differs from the sweep's other cells.
    """
    record = run.record
    text = Text.assemble(title, (record.status, STYLES.get(record.status, "red")))
    if record.cause is not None:
        log = f" (log: {run.folder / record.cause.log})" if record.cause.log else ""
        return text.append(f": {printable(record.cause.message)}{log}")
    if record.probe is not None:
        probe = record.probe
        error_margin = "" if probe.half_width is None else f" ± {probe.half_width:.1%}"
        steps_and_time = f"{count(probe.steps, 'step')}, {record.total_s or 0.0:.1f} s"
        end = table.PROBE_ENDS[probe.ended_by]
        return text.append(
            f"  [probe] step {probe.step_s:.4g} s{error_margin}, {steps_and_time}; ended: {end}"
        )
    text.append(f"{limits.brief_signs(record):<1}", "yellow").append(
        f" {table.figures_in_brief(record)}"
    )
    if not title:
        text.append(f"   started in {record.startup_s or 0.0:.1f} s")
    if (
        isinstance(record, LlmRecord)
        and record.held_out is not None
        and record.held_out.int4_problem is not None
    ):
        text.append(f"\n  {record.held_out.int4_problem}")
    saved = getattr(record, "saved", None)
    if saved is not None:
        text.append(f"\n  {saved.problem or _kept_model_message(run.folder, saved)}")
    bound = bounds.of(record)
    # The end of a sweep says what limits the recommended cell, by rates. So each cell says it only
    # if it was measured.
    if bound is not None and (bound.is_measured or not title):
        text.append(f"\n  {bound.sentence}")
    return text
