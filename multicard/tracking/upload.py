"""Upload records to W&B, and note in each folder what W&B has (`.wandb.json`).

A run that is being measured is uploaded from its folder as well, by the controller. Everything that
W&B gets is on disk first, and the ranks are not disturbed while they are timed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from heapq import merge
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multicard.config.base import TrackerConfig, TrackerMode
from multicard.machine import network
from multicard.measure.timing import timestamp
from multicard.records import rank_files, run_folder
from multicard.records.rank_files import AnyReport
from multicard.records.schema import AnyRecord
from multicard.tracking import history, keys, run_record
from multicard.tracking.history import RunClock
from multicard.tracking.wandb_run import WandbRun, WandbTarget, server

NOTE = ".wandb.json"
FINISH_S = 60.0  # At its end, a run has this time to upload the rest.
# Makes a record from the ranks' reports and the table of all steps.
SoFar = Callable[[Sequence[AnyReport], Any], AnyRecord]


def record(folder: Path, target: WandbTarget) -> None:
    """Upload the record of a run folder, and note it.

    If an earlier upload was cut off, the rest follows.

    Raises:
        RuntimeError: W&B failed.
        OSError, ValueError: a file cannot be read.
    """
    content, result = _read_result(folder)
    info = run_record.run_info(folder, result)
    with TemporaryDirectory(prefix="multicard-wandb-", ignore_cleanup_errors=True) as wandb_folder:
        run = WandbRun.open(info, target, Path(wandb_folder))
        finish(run, folder, result, run_folder.read_steps(folder))
    _note(folder, info.id, target, _digest(content), run.url)


def _read_result(folder: Path) -> tuple[bytes, AnyRecord]:
    """Return the bytes of result.json, and the record in it."""
    content = (folder / run_folder.RESULT).read_bytes()
    return content, run_folder.decode(content)


def finish(run: WandbRun, folder: Path, result: AnyRecord, steps: Any) -> None:
    """Write the parts of a record that W&B does not have yet, and end the run.

    Args:
        steps: an Arrow table of the steps of all ranks, or None.
    """
    timeline = RunClock.of(result)
    rows = history.rows(result, steps)
    sent_attempts = run.attempts_before
    unsent_at = (
        timeline.attempts[sent_attempts].started_at
        if sent_attempts < len(timeline.attempts)
        else math.inf
    )
    samples = (
        (at_s, -1, values)
        for at_s, values in history.samples(folder, result.gpu, timeline)
        if at_s >= unsent_at
    )
    events = ((row.moment.at, number, row.values) for number, row in enumerate(rows))
    for at_s, number, values in merge(events, samples, key=lambda event: event[0]):
        if number >= 0:
            run.row(number, values, rows[number].moment)
        else:
            run.sample(at_s, values)
    if profile := run_record.profile_rows(result):
        run.table(len(rows), keys.PROFILE_TABLE, run_record.PROFILE_COLUMNS, profile, timeline.end)
    facts = {
        name: getattr(result, name) for name in ("kind", "name", "status", "identity", "commit")
    }
    name = f"{run_record.RECORD}-{run_record.run_id(result)}"
    files = {name: folder / name for name in run_record.FILES if (folder / name).exists()}
    run.artifact(name, run_record.RECORD, files, facts)
    last_values = {}
    for row in rows:
        last_values |= row.values
    run.finish(
        last_values | run_record.summary(result), timeline.end, int(result.status in run_folder.BAD)
    )


def has_record(folder: Path, target: WandbTarget) -> bool:
    """Tell whether W&B has the present record of a run folder."""
    content, result = _read_result(folder)
    key = _upload_place(target) | {"run": run_record.run_id(result), "content": _digest(content)}
    return bool(_noted_uploads(folder, key))


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


def _note(folder: Path, run_id: str, target: WandbTarget, digest: str, url: str | None) -> None:
    """Note an upload, with the digest of the record.

    It replaces the note of an earlier upload of the same run to the same place.
    """
    key = _upload_place(target) | {"run": run_id}
    others = [upload for upload in _noted_uploads(folder, {}) if not key.items() <= upload.items()]
    upload = key | {"content": digest, "url": url, "uploaded_at": timestamp()}
    run_folder.write_json(folder / NOTE, {"uploads": [*others, upload]})


def _upload_place(target: WandbTarget) -> dict[str, Any]:
    return {"server": server(), "entity": target.entity, "project": target.project}


def _noted_uploads(folder: Path, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the noted uploads of a folder that have these values."""
    uploads = (run_folder.read_json(folder / NOTE) or {}).get("uploads", [])
    return [upload for upload in uploads if key.items() <= upload.items()]


class Mirror:
    """Writes a run to W&B: epoch by epoch if online, and at its end if offline.

    If W&B fails, it raises a RuntimeError, which fails the command rather than being a warning.
    """

    def __init__(self, tracker: TrackerConfig, folder: Path, so_far: SoFar) -> None:
        self._target = WandbTarget(tracker.mode, tracker.project, tracker.entity, FINISH_S)
        self._folder = folder
        self._so_far = so_far
        self._run: WandbRun | None = None
        self._epochs = 0
        self._error: Exception | None = None

    @property
    def is_online(self) -> bool:
        return self._target.mode is TrackerMode.online

    @property
    def is_open(self) -> bool:
        """Tell whether W&B has a run that has not ended."""
        return self._run is not None

    def open(self) -> None:
        """Start the W&B run, or continue the one of an earlier start of the same job."""
        if (problem := network.problem(url := server())) is not None:
            raise RuntimeError(network.unreachable(url, problem))
        info = run_record.run_info(self._folder, self._so_far([], None))
        self._run = WandbRun.open(info, self._target, self._folder)

    def update(self) -> None:
        """Log the steps and epochs since the last call. `close` raises the errors of this one."""
        if self._error is not None or self._run is None:
            return
        ranks = rank_files.read_reports(self._folder)
        finished_epochs = min((len(rank.epochs) for rank in ranks), default=0)
        if finished_epochs <= self._epochs or not rank_files.have_steps(self._folder, ranks):
            return
        try:
            steps = run_folder.read_steps(self._folder)
            for number, row in enumerate(history.rows(self._so_far(ranks, steps), steps)):
                self._run.row(number, row.values, row.moment)
            self._epochs = finished_epochs
        except Exception as error:  # This runs in the thread that draws the progress bar.
            self._error = error

    def close(self, result: AnyRecord, steps: Any) -> None:
        """Write the parts of the record that W&B does not have yet, and end the run.

        The record is on disk.
        """
        if self._error is not None:
            raise self._error
        info = run_record.run_info(self._folder, result)
        if self._run is None:
            self._run = WandbRun.open(info, self._target, self._folder)
        else:
            self._run.describe(info)
        url = self._run.url
        finish(self._run, self._folder, result, steps)
        if self.is_online:
            content, _ = _read_result(self._folder)
            _note(self._folder, info.id, self._target, _digest(content), url)
        self._run = None
