"""Writes a record to W&B: history, samples, tables, artifacts and summary."""

import math
from collections.abc import Mapping
from heapq import merge
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multicard.records import run_folder
from multicard.tracking import artifacts, history, identity, keys, summary, system_metrics, uploaded
from multicard.tracking.timeline import Timeline
from multicard.tracking.wandb_run import Target, WandbRun


def record(folder: Path, target: Target, name: str | None = None) -> None:
    """Upload the record of a run folder, and note that it was.

    Where W&B has a part of it, as an earlier try left it, the rest follows.

    Args:
        name: of the run in W&B, where it is known.

    Raises:
        RuntimeError: if W&B fails.
        OSError: a file cannot be read.
    """
    content = (folder / run_folder.RESULT).read_bytes()
    result = run_folder.read_json(folder / run_folder.RESULT)
    if result is None:
        raise RuntimeError(f"{run_folder.RESULT} is broken")
    about = identity.about(folder, result, name)
    with TemporaryDirectory(prefix="multicard-wandb-", ignore_cleanup_errors=True) as own:
        run = WandbRun.open(about, target, Path(own))
        finish(run, folder, result, run_folder.read_steps(folder))
    uploaded.note(folder, about.id, target, uploaded.digest(content), run.url)


def is_uploaded(folder: Path, target: Target) -> bool:
    """Whether W&B has the record of a run folder as it is now."""
    content = (folder / run_folder.RESULT).read_bytes()
    result = run_folder.read_json(folder / run_folder.RESULT)
    return result is not None and uploaded.is_uploaded(
        folder, identity.run_id(result), target, uploaded.digest(content)
    )


def finish(run: WandbRun, folder: Path, result: Mapping[str, Any], steps: Any) -> None:
    """Write all of a record that W&B does not have yet, and end the run.

    Args:
        steps: of all ranks (an Arrow table); None where there are none.
    """
    timeline = Timeline.of(result)
    every = history.rows(history.Training.of(result), steps)
    moments = [timeline.moment(row.trained_s) for row in every]
    rows = ((moment.at, number, None) for number, moment in enumerate(moments))
    told = run.attempts_before
    unsent_at = timeline.attempts[told].started_at if told < len(timeline.attempts) else math.inf
    samples = ((at, -1, values) for at, values in system_metrics.samples(folder, result, timeline) if at >= unsent_at)
    for at, number, values in merge(rows, samples, key=lambda event: event[0]):
        if values is None:
            run.row(number, every[number].values, moments[number])
        else:
            run.sample(at, values)
    profiled = artifacts.profile_rows(result)
    if profiled:
        run.table(len(every), keys.PROFILE_TABLE, artifacts.PROFILE_COLUMNS, profiled, timeline.end)
    data = artifacts.dataset(result)
    if data is not None:
        name, files, facts = data
        run.artifact(name, artifacts.DATASET, files, facts, used=True)
    facts = {name: result.get(name) for name in ("kind", "name", "status", "identity", "commit")}
    name = f"{artifacts.RECORD}-{identity.run_id(result)}"
    run.artifact(name, artifacts.RECORD, artifacts.record_files(folder, result), facts)
    figures = summary.flat(result)
    run.finish({**history.last_values(every), **figures}, timeline.end, identity.exit_code(result))
