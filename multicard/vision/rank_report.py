"""What a rank leaves on disk, epoch by epoch, so that a run that is cut short keeps what it had measured."""

from pathlib import Path
from typing import Any

from multicard.measure import memory, timing
from multicard.measure.timing import PHASES
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
MEASURED = ("epochs", "segments", "peak_memory_bytes")  # what a stop must not lose; the rest is of this process


class Report:
    """The rank's file and its steps. The files are written between epochs, outside all timed steps."""

    def __init__(self, rank: Rank, folder: Path, share: Share, flags: dict[str, Any], workers: int) -> None:
        import pyarrow.parquet  # noqa: F401 - now, and not between two epochs

        self.rank, self.folder, self.devices = rank, folder, share.devices
        model = share.plain
        self.content: dict[str, Any] = {
            **meeting.head(rank, flags),
            "num_workers": workers,
            "compile_s": None,
            "steps_per_epoch": share.steps,
            "distinct_samples": share.distinct,
            "parameters": sum(p.numel() for p in model.parameters()),
            "gradient_bytes": sum(p.nbytes for p in model.parameters() if p.requires_grad),
            "parameter_bytes": sum(p.nbytes for p in model.parameters()),
            "buffer_bytes": sum(b.nbytes for b in model.buffers()),
            "statistics_bytes": sum(b.nbytes for b in model.buffers() if b.is_floating_point()),
            "segments": [],  # what was trained without a stop in it; `trained_s` are seconds of training and evaluation
        }

    def reads(self, facts: dict[str, Any]) -> None:
        """How the input comes, as far as it was not configured."""
        self.content["input"] = facts

    def state(self) -> dict[str, Any]:
        """What was measured so far, for `restore`."""
        return {key: self.content[key] for key in MEASURED}

    def restore(self, state: dict[str, Any]) -> None:
        self.content |= state

    def started(self, steps: int) -> None:
        """Training starts next, after `steps` steps that were trained before."""
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
        """Add an epoch at whose end `steps` steps and their evaluation had taken `ended_s` in all.

        Args:
            span_s: from when to when this process trained and evaluated it, on the machine's clock.
        """
        self._write_steps(epoch, trained)
        figures = {**trained, **evaluated, "ended_s": ended_s}
        self.content["epochs"].append({"epoch": epoch, **{key: figures[key] for key in PER_EPOCH}})
        self.reached(steps, ended_s, span_s)

    def reached(self, steps: int, elapsed_s: float, span_s: tuple[float, float]) -> None:
        """Training has come to the end of an epoch or to a stop."""
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
