"""Uploads of records, and the note of what W&B has: `.wandb.json` in each folder.

A run that is being measured is uploaded from its folder too, in the controller: what W&B gets is on
disk first, and the ranks are not disturbed while timed.
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
FINISH_S = 60.0  # within which a run that ends has the rest uploaded
# from the ranks' reports and the table of all steps
SoFar = Callable[[Sequence[AnyReport], Any], AnyRecord]


def record(folder: Path, target: WandbTarget) -> None:
    """Upload the record of a run folder, and note it; RuntimeError where W&B fails, OSError or
    ValueError for a file that cannot be read. Where an earlier try left a part, the rest follows.
    """
    content, result = _read(folder)
    about = run_record.about(folder, result)
    with TemporaryDirectory(prefix="multicard-wandb-", ignore_cleanup_errors=True) as own:
        run = WandbRun.open(about, target, Path(own))
        finish(run, folder, result, run_folder.read_steps(folder))
    _note(folder, about.id, target, _digest(content), run.url)


def _read(folder: Path) -> tuple[bytes, AnyRecord]:
    """result.json, and the record in it."""
    content = (folder / run_folder.RESULT).read_bytes()
    return content, run_folder.decode(content)


def finish(run: WandbRun, folder: Path, result: AnyRecord, steps: Any) -> None:
    """Write all of a record that W&B does not have yet, and end the run;
    `steps` are an Arrow table of all ranks'.
    """
    timeline = RunClock.of(result)
    rows = history.rows(result, steps)
    sent = run.attempts_before
    unsent_at = timeline.attempts[sent].started_at if sent < len(timeline.attempts) else math.inf
    samples = (
        (at, -1, values)
        for at, values in history.samples(folder, result.gpu, timeline)
        if at >= unsent_at
    )
    events = ((row.moment.at, number, row.values) for number, row in enumerate(rows))
    for at, number, values in merge(events, samples, key=lambda event: event[0]):
        if number >= 0:
            run.row(number, values, rows[number].moment)
        else:
            run.sample(at, values)
    if profiled := run_record.profile_rows(result):
        run.table(len(rows), keys.PROFILE_TABLE, run_record.PROFILE_COLUMNS, profiled, timeline.end)
    facts = {
        name: getattr(result, name) for name in ("kind", "name", "status", "identity", "commit")
    }
    name = f"{run_record.RECORD}-{run_record.run_id(result)}"
    files = {name: folder / name for name in run_record.FILES if (folder / name).exists()}
    run.artifact(name, run_record.RECORD, files, facts)
    last = {}
    for row in rows:
        last |= row.values
    run.finish(
        last | run_record.summary(result), timeline.end, int(result.status in run_folder.BAD)
    )


def has_record(folder: Path, target: WandbTarget) -> bool:
    """True if W&B has the record of a run folder as it is now."""
    content, result = _read(folder)
    key = _place(target) | {"run": run_record.run_id(result), "content": _digest(content)}
    return bool(_noted(folder, key))


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


def _note(folder: Path, run_id: str, target: WandbTarget, digest: str, url: str | None) -> None:
    """Note an upload, with the digest of what it was made of;
    another of the same run in the same place is replaced.
    """
    key = _place(target) | {"run": run_id}
    others = [upload for upload in _noted(folder, {}) if not key.items() <= upload.items()]
    upload = key | {"content": digest, "url": url, "uploaded_at": timestamp()}
    run_folder.write_json(folder / NOTE, {"uploads": [*others, upload]})


def _place(target: WandbTarget) -> dict[str, Any]:
    return {"server": server(), "entity": target.entity, "project": target.project}


def _noted(folder: Path, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The noted uploads of a folder that have these values."""
    uploads = (run_folder.read_json(folder / NOTE) or {}).get("uploads", [])
    return [upload for upload in uploads if key.items() <= upload.items()]


class Mirror:
    """The W&B run of a run: written at the end offline, epoch by epoch online. If W&B fails, it
    raises a RuntimeError, which is an error of the command and no warning.
    """

    def __init__(self, tracker: TrackerConfig, folder: Path, so_far: SoFar) -> None:
        self._target = WandbTarget(tracker.mode, tracker.project, tracker.entity, FINISH_S)
        self._folder = folder
        self._so_far = so_far
        self._run: WandbRun | None = None
        self._epochs = 0
        self._failed: Exception | None = None

    @property
    def live(self) -> bool:
        return self._target.mode is TrackerMode.online

    @property
    def is_open(self) -> bool:
        """True if W&B has a run that is not ended."""
        return self._run is not None

    def open(self) -> None:
        """Start the W&B run, or go on with that of an earlier start of the same job."""
        if (why := network.problem(url := server())) is not None:
            raise RuntimeError(network.unreachable(url, why))
        about = run_record.about(self._folder, self._so_far([], None))
        self._run = WandbRun.open(about, self._target, self._folder)

    def update(self) -> None:
        """Log the steps and epochs written since the last call; `close` raises what fails here."""
        if self._failed is not None or self._run is None:
            return
        ranks = rank_files.read(self._folder)
        finished = min((len(rank.epochs) for rank in ranks), default=0)
        if finished <= self._epochs or not rank_files.have_steps(self._folder, ranks):
            return
        try:
            steps = run_folder.read_steps(self._folder)
            for number, row in enumerate(history.rows(self._so_far(ranks, steps), steps)):
                self._run.row(number, row.values, row.moment)
            self._epochs = finished
        except Exception as error:  # in the thread that draws the progress
            self._failed = error

    def close(self, result: AnyRecord, steps: Any) -> None:
        """Write what W&B does not have yet of the record, which is on disk, and end the run."""
        if self._failed is not None:
            raise self._failed
        about = run_record.about(self._folder, result)
        if self._run is None:
            self._run = WandbRun.open(about, self._target, self._folder)
        else:
            self._run.describe(about)
        url = self._run.url
        finish(self._run, self._folder, result, steps)
        if self.live:
            content, _ = _read(self._folder)
            _note(self._folder, about.id, self._target, _digest(content), url)
        self._run = None
