"""A rank's file, written epoch by epoch, so that a run that is cut short keeps its measurements."""

from pathlib import Path
from typing import Any

import numpy as np

from multicard.measure import memory
from multicard.observe.energy.readings import Counters
from multicard.ranks import meeting
from multicard.ranks.process import Rank
from multicard.records import run_folder


class TuningReport:
    """The rank's file and its steps. The files are written between epochs, outside all timed steps."""

    def __init__(self, rank: Rank, folder: Path, flags: dict[str, Any]) -> None:
        self.rank, self.folder = rank, folder
        self.counters = Counters([rank.device])
        self.content: dict[str, Any] = {**meeting.head(rank, flags), "counters": self.counters.readings}

    def built(self, figures: dict[str, Any]) -> None:
        """Add the sizes of the model and the peak of memory so far, which is reset for the training."""
        setup = memory.peak_memory_bytes(self.rank.device)
        self.content |= {**figures, "setup_peak_memory_bytes": setup, "peak_memory_bytes": setup}
        memory.reset_peak_memory(self.rank.device)

    def started(self, started_s: float) -> None:
        """Training starts now: `started_s` on the machine's clock."""
        self.content["started_s"] = started_s
        self.write()

    def epoch(self, per_step: dict[str, np.ndarray], epoch_s: float, ended_s: float) -> None:
        """Add an epoch that took `epoch_s` and ended `ended_s` after the start of training."""
        epoch, count = len(self.content["epochs"]), len(per_step["step_s"])
        run_folder.write_steps(self.folder, self.rank.rank, epoch, per_step)
        before = self.content["epochs"][-1]["ended_s"] if epoch else 0.0
        self.content["spans_s"].append([self.content["started_s"] + moment for moment in (before, ended_s)])
        self.content["epochs"].append({"epoch": epoch, "train_s": epoch_s, "ended_s": ended_s, "steps": count})
        self.peak()
        self.write()

    def peak(self) -> None:
        """Update the peak of memory since the model was built."""
        now = memory.peak_memory_bytes(self.rank.device)
        self.content["train_peak_memory_bytes"] = now
        peaks = [peak for peak in (now, self.content["setup_peak_memory_bytes"]) if peak is not None]
        self.content["peak_memory_bytes"] = max(peaks, default=None)

    def write(self) -> None:
        run_folder.write_json(run_folder.rank_file(self.folder, self.rank.rank), self.content)
