"""The report of a rank that trains on images."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from multicard.measure import memory, timing
from multicard.measure.timing import PHASES
from multicard.ranks.process import Rank
from multicard.records.rank_files import VisionRankEpoch, VisionReport
from multicard.records.schema_parts import Segment
from multicard.run.rank_report import Report
from multicard.vision.loop import COUNTS
from multicard.vision.strategy import Share

EPOCH = VisionRankEpoch.__struct_fields__
MEASURED = ("epochs", "segments", "peak_memory_bytes")  # kept over a restart; the rest is of this process


class TrainingReport(Report[VisionReport]):
    def __init__(self, rank: Rank, folder: Path, share: Share, flags: dict[str, Any], workers: int) -> None:
        parameters, buffers = list(share.plain.parameters()), list(share.plain.buffers())
        super().__init__(
            VisionReport,
            rank,
            folder,
            flags | {"fused_blocks": getattr(share.plain, "fused_blocks", 0)},
            num_workers=workers,
            steps_per_epoch=share.steps,
            distinct_samples=share.distinct,
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
            parameter_bytes=sum(p.nbytes for p in parameters),
            buffer_bytes=sum(b.nbytes for b in buffers),
            statistics_bytes=sum(b.nbytes for b in buffers if b.is_floating_point()),
        )

    def state(self) -> dict[str, Any]:
        """The measurements so far as plain values, for `restore`."""
        content = msgspec.to_builtins(self.content)
        return {name: content[name] for name in MEASURED}

    def restore(self, state: dict[str, Any]) -> None:
        kept = msgspec.convert({"kind": "vision", "rank": self.rank.rank, **state}, VisionReport)
        self.add({name: getattr(kept, name) for name in MEASURED})

    def started(self, steps: int) -> None:
        """Training starts, after `steps` steps of earlier segments."""
        self.content.started_s = timing.clock_s()
        self.content.segments.append(Segment(first_step=steps, steps=0, trained_s=0.0))
        self.write()

    def epoch(self, figures: dict[str, Any], steps: int, span_s: tuple[float, float]) -> None:
        """Add an epoch: `figures` of its training, its evaluation and its end.

        Args:
            steps: of the run, at the end of the epoch.
            span_s: start and end of the epoch in this process, on the machine's clock.
        """
        phases_s = figures["phases_s"]
        columns = {
            "step_s": phases_s.sum(axis=1),
            **{f"{phase}_s": phases_s[:, i] for i, phase in enumerate(PHASES)},
            **{name: np.asarray(figures[name]) for name in ("loss", *COUNTS)},
        }
        self.write_steps(figures["epoch"], columns)
        self.content.epochs.append(VisionRankEpoch(**{name: figures[name] for name in EPOCH}))
        self.reached(steps, figures["ended_s"], span_s)

    def reached(self, steps: int, elapsed_s: float, span_s: tuple[float, float]) -> None:
        """Training has reached the end of an epoch or a stop."""
        self.content.spans_s.append(span_s)
        *before, segment = self.content.segments
        segment.steps = steps - segment.first_step
        segment.trained_s = elapsed_s - sum(earlier.trained_s or 0.0 for earlier in before)
        peak_bytes = memory.peak_memory_bytes(self.rank.device)
        self.content.peak_memory_bytes = max(self.content.peak_memory_bytes or 0, peak_bytes)
        self.write()
