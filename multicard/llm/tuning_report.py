"""Write the report of a tuning rank: its epochs, held-out evaluations and peak memory."""

from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multicard.config.llm import LlmConfig
from multicard.llm.held_out import EvaluationResult
from multicard.measure import memory
from multicard.ranks.process import Rank
from multicard.records.rank_files import CountedEpoch, LlmReport
from multicard.records.schema_data import Evaluation, HeldOut
from multicard.run.rank_report import RankReportWriter


class TuningReport(RankReportWriter[LlmReport]):
    """The report of a rank that tunes."""

    def __init__(self, rank: Rank, folder: Path, config: LlmConfig) -> None:
        flags = {  # The values in force. torchtune does not enable TF32.
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "model_dtype": config.formats.weights,
            "autocast_dtype": config.formats.products if config.formats.are_mixed else None,
        }
        super().__init__(LlmReport, rank, folder, flags)

    def add_model(self, figures: dict[str, Any]) -> None:
        """Add figures of the built model and the peak memory of the setup.

        The peak is then reset for the training.
        """
        setup_peak_bytes = memory.peak_memory_bytes(self.rank.device)
        self.add(
            {
                **figures,
                "setup_peak_memory_bytes": setup_peak_bytes,
                "peak_memory_bytes": setup_peak_bytes,
            }
        )
        memory.reset_peak_memory(self.rank.device)

    def mark_start(self, started_s: float) -> None:
        """Record the start of the training, `started_s` on the machine's clock."""
        self.content.started_s = started_s
        self.write()

    def add_epoch(self, per_step: dict[str, np.ndarray], epoch_s: float, ended_s: float) -> None:
        """Add an epoch that took `epoch_s` and ended `ended_s` after the start of training."""
        content = self.content
        epoch = len(self.content.epochs)
        count = len(per_step["step_s"])
        self.write_steps(epoch, per_step)
        began_s = content.started_s or 0.0
        before_s = content.epochs[-1].ended_s if epoch else 0.0
        content.spans_s.append((began_s + before_s, began_s + ended_s))
        content.epochs.append(CountedEpoch(epoch, epoch_s, ended_s, steps=count))
        self.update_peak()
        self.write()

    def add_evaluation(
        self,
        content: HeldOut,
        result: EvaluationResult,
        step: int,
        evaluate_s: float,
        ended_s: float,
    ) -> None:
        """Add an evaluation of the held-out rows. Losses that are not finite become null.

        Args:
            step: Number of steps of the run before the evaluation.
            ended_s: End of the evaluation, in seconds after the start of the training.
        """
        if self.content.held_out is None:
            self.content.held_out = content
        figures = [value if value is None or isfinite(value) else None for value in result]
        epoch = len(self.content.epochs)
        self.content.held_out.evaluations.append(
            Evaluation(epoch, step, evaluate_s, ended_s, *figures)
        )

    def update_peak(self) -> None:
        """Update the peak memory since the model was built."""
        self.content.train_peak_memory_bytes = peak_bytes = memory.peak_memory_bytes(
            self.rank.device
        )
        self.content.peak_memory_bytes = max(peak_bytes, self.content.setup_peak_memory_bytes or 0)
