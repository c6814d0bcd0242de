"""Mirrors the run that is being measured to W&B.

It reads the run folder, in the controller: what W&B gets is on disk first, and the ranks are not disturbed while timed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from multicard.config.base import TrackerConfig, TrackerMode
from multicard.machine import network
from multicard.records import rank_files, run_folder
from multicard.records.rank_files import AnyReport
from multicard.records.schema import AnyRecord
from multicard.tracking import history, run_record, upload
from multicard.tracking.wandb_run import Target, WandbRun, server

FINISH_S = 60.0
SoFar = Callable[[Sequence[AnyReport], Any], AnyRecord]  # from the ranks' reports and the table of all steps


class Mirror:
    """The W&B run of a run: written at the end offline, epoch by epoch online.

    Args:
        so_far: the known part of the record.

    Raises:
        RuntimeError: if W&B fails, which is an error of the command and no warning.
    """

    def __init__(self, tracker: TrackerConfig, folder: Path, so_far: SoFar) -> None:
        self._target = Target(tracker.mode, tracker.project, tracker.entity, FINISH_S)
        self._folder, self._so_far = folder, so_far
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

    def reach(self) -> None:
        """See that W&B's server answers."""
        if (why := network.problem(url := server())) is not None:
            raise RuntimeError(f"cannot reach {url} ({why})")

    def open(self) -> None:
        """Start the W&B run, or go on with that of an earlier start of the same job."""
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
        """Write what W&B does not have yet, and end the run.

        Args:
            result: the record, which is on disk.
            steps: of all ranks (an Arrow table); None where there are none.
        """
        if self._failed is not None:
            raise self._failed
        about = run_record.about(self._folder, result)
        if self._run is None:
            self._run = WandbRun.open(about, self._target, self._folder)
        else:
            self._run.describe(about)
        url = self._run.url
        upload.finish(self._run, self._folder, result, steps)
        if self.live:
            content = (self._folder / run_folder.RESULT).read_bytes()
            upload.note(self._folder, about.id, self._target, upload.digest(content), url)
        self._run = None
