"""The report of a rank that tunes."""

from pathlib import Path
from typing import Any

import numpy as np

from multicard.measure import memory
from multicard.ranks.process import Rank
from multicard.records.rank_files import LlmRankEpoch, LlmReport
from multicard.run.rank_report import Report


class TuningReport(Report[LlmReport]):
    def __init__(self, rank: Rank, folder: Path, flags: dict[str, Any]) -> None:
        super().__init__(LlmReport, rank, folder, flags, [rank.device])

    def built(self, figures: dict[str, Any]) -> None:
        """Add the sizes of the model and the peak of memory so far, which is reset for the training."""
        setup = memory.peak_memory_bytes(self.rank.device)
        self.add({**figures, "setup_peak_memory_bytes": setup, "peak_memory_bytes": setup})
        memory.reset_peak_memory(self.rank.device)

    def started(self, started_s: float) -> None:
        """Training starts now: `started_s` on the machine's clock."""
        self.content.started_s = started_s
        self.write()

    def epoch(self, per_step: dict[str, np.ndarray], epoch_s: float, ended_s: float) -> None:
        """Add an epoch that took `epoch_s` and ended `ended_s` after the start of training."""
        content, epoch, count = self.content, len(self.content.epochs), len(per_step["step_s"])
        self.write_steps(epoch, per_step)
        began_s, before_s = content.started_s or 0.0, content.epochs[-1].ended_s if epoch else 0.0
        content.spans_s.append((began_s + before_s, began_s + ended_s))
        content.epochs.append(LlmRankEpoch(epoch, epoch_s, ended_s, steps=count))
        self.peak()
        self.write()

    def peak(self) -> None:
        """Update the peak of memory since the model was built."""
        self.content.train_peak_memory_bytes = now = memory.peak_memory_bytes(self.rank.device)
        self.content.peak_memory_bytes = max(now, self.content.setup_peak_memory_bytes or 0)
