"""The files of a rank, written after each epoch, so that an interrupted run keeps its measurements."""

from pathlib import Path
from typing import Any

from multicard.measure import memory, timing
from multicard.measure.timing import PHASES
from multicard.observe.energy.readings import Counters
from multicard.ranks import meeting
from multicard.ranks.process import Rank
from multicard.records import run_folder
from multicard.vision.strategy import Share

PER_EPOCH = (
    "train_s",
    "evaluate_s",
    "test_loss",
    "test_accuracy",
    "test_right",
    "test_samples",
    "ended_s",
    "first_batch_s",
    "gap_s",
    "evaluate_h2d_images_bytes",
    "evaluate_h2d_labels_bytes",
)
MEASURED = ("epochs", "segments", "peak_memory_bytes")  # kept over a restart; the rest is of this process


class TrainingReport:
    """The rank's file and its steps, written between epochs, outside all timed steps."""

    def __init__(self, rank: Rank, folder: Path, share: Share, flags: dict[str, Any], workers: int) -> None:
        import pyarrow.parquet  # noqa: F401 - now, and not between two epochs

        self.rank, self.folder, self.devices = rank, folder, share.devices
        model, self.counters = share.plain, Counters(share.devices)
        self.content: dict[str, Any] = {
            **meeting.head(rank, flags),
            "counters": self.counters.readings,
            "num_workers": workers,
            "compile_s": None,
            "compile_cache": None,
            "cuda_graphs": None,
            "steps_per_epoch": share.steps,
            "distinct_samples": share.distinct,
            "parameters": sum(p.numel() for p in model.parameters()),
            "gradient_bytes": sum(p.nbytes for p in model.parameters() if p.requires_grad),
            "parameter_bytes": sum(p.nbytes for p in model.parameters()),
            "buffer_bytes": sum(b.nbytes for b in model.buffers()),
            "statistics_bytes": sum(b.nbytes for b in model.buffers() if b.is_floating_point()),
            "segments": [],  # training between two stops; `trained_s` are seconds of training and evaluation
        }

    def state(self) -> dict[str, Any]:
        """The measurements so far, for `restore`."""
        return {key: self.content[key] for key in MEASURED}

    def restore(self, state: dict[str, Any]) -> None:
        self.content |= state

    def started(self, steps: int) -> None:
        """Training starts, after `steps` steps of earlier segments."""
        self.content["started_s"] = timing.clock_s()
        self.content["segments"].append({"first_step": steps, "steps": 0, "trained_s": 0.0})
        self.write()

    def epoch(
        self,
        epoch: int,
        trained: dict[str, Any],
        evaluated: dict[str, Any],
        steps: int,
        ended_s: float,
        span_s: tuple[float, float],
    ) -> None:
        """Add an epoch.

        Args:
            steps: of the run, at the end of the epoch; ended_s: seconds of their training and evaluation.
            span_s: start and end of the epoch in this process, on the machine's clock.
        """
        self._write_steps(epoch, trained)
        figures = {**trained, **evaluated, "ended_s": ended_s}
        self.content["epochs"].append({"epoch": epoch, **{key: figures[key] for key in PER_EPOCH}})
        self.reached(steps, ended_s, span_s)

    def reached(self, steps: int, elapsed_s: float, span_s: tuple[float, float]) -> None:
        """Training has reached the end of an epoch or a stop."""
        self.content["spans_s"].append(span_s)
        *before, segment = self.content["segments"]
        segment["steps"] = steps - segment["first_step"]
        segment["trained_s"] = elapsed_s - sum(earlier["trained_s"] for earlier in before)
        peaks = [memory.peak_memory_bytes(device) for device in self.devices]
        self.content["peak_memory_bytes"] = max(self.content["peak_memory_bytes"] or 0, *peaks)
        self.write()

    def _write_steps(self, epoch: int, trained: dict[str, Any]) -> None:
        import numpy as np

        phases_s = trained["phases_s"]
        columns = {
            "step_s": phases_s.sum(axis=1),
            **{f"{phase}_s": phases_s[:, i] for i, phase in enumerate(PHASES)},
            "loss": np.asarray(trained["loss"]),
            **{key: np.asarray(trained[key]) for key in ("samples", "loaded", "h2d_images_bytes", "h2d_labels_bytes")},
        }
        run_folder.write_steps(self.folder, self.rank.rank, epoch, columns)

    def write(self) -> None:
        run_folder.write_json(run_folder.rank_file(self.folder, self.rank.rank), self.content)
