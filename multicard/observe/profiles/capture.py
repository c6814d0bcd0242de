"""Profiled steps of a rank, taken after its training so that no timed step is disturbed."""

import math
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from multicard.config.base import ProfileName, WindowConfig
from multicard.measure import timing
from multicard.measure.ranges import Ranges
from multicard.ranks.meeting import max_over_ranks
from multicard.ranks.process import Rank


class Window:
    """Brackets profiled steps: call `boundary` before each step and after the last, until it returns False.

    The first `skip` steps run without the profiler, the next `warmup` with it, and then `steps` are recorded. Nothing
    here waits for the device within the window, as the trace would contain that call.

    Args:
        step_s: duration of a step, for a window configured in seconds. All ranks take the same number of steps.
    """

    def __init__(self, config: WindowConfig, rank: Rank, folder: Path, ranges: Ranges, step_s: float) -> None:
        self.config, self.rank, self.ranges = config, rank, ranges
        self.file = folder / "profile" / f"r{rank.rank:02d}.json.gz"
        self.steps = config.steps or 1
        if config.seconds is not None:
            self.steps = max_over_ranks(rank, max(1, math.ceil(config.seconds / step_s)))
        self.first = config.skip + config.warmup
        self.total = self.first + self.steps
        self.h2d_bytes = 0
        self._done = 0
        self._marks = timing.Marks(rank.device)
        self.file.parent.mkdir(exist_ok=True)
        self._nvtx = config.name is ProfileName.nsys
        self._torch: profile | None = None
        if config.name is ProfileName.kineto:
            cuda = [ProfilerActivity.CUDA] if rank.device.type == "cuda" else []
            self._torch = profile(
                activities=[ProfilerActivity.CPU, *cuda],
                schedule=self._action,
                on_trace_ready=lambda trace: trace.export_chrome_trace(str(self.file)),
                acc_events=True,
            )

    def boundary(self) -> bool:
        """End the step before, if any, and begin the next; False after the last."""
        self.ranges.close()  # no range outlasts its step
        if self._nvtx and self._done:
            torch.cuda.nvtx.range_pop()
        if self._torch is not None:
            if self._done == self.config.skip:
                self.ranges.recording = True
                self._torch.start()
            elif self.config.skip < self._done < self.total:
                self._torch.step()
        if self._done == self.first:
            if self._nvtx:
                torch.cuda.profiler.start()  # --capture-range=cudaProfilerApi waits for this
            self._marks.add()
        elif self._done == self.total:
            self._end()
            return False
        if self._nvtx:
            torch.cuda.nvtx.range_push(f"ProfilerStep#{self._done}")  # torch's profiler's name
        self.ranges.open("data")
        self._done += 1
        return True

    def count(self, h2d_bytes: int) -> None:
        """Count bytes that the current step moved to the device; call it before the step's closing boundary."""
        if self._done > self.first:
            self.h2d_bytes += h2d_bytes

    def result(self) -> dict[str, Any]:
        """The window for the rank's file."""
        (window_s,) = self._marks.seconds()
        return {
            "name": self.config.name.value,
            "first_step": self.first,
            "steps": self.steps,
            "window_s": float(window_s),
            "counted_h2d_bytes": self.h2d_bytes,
        }

    def _end(self) -> None:
        self._marks.add()
        if self._nvtx:
            timing.synchronize(self.rank.device)  # unfinished work would be lost; the last step is over
            torch.cuda.profiler.stop()
        if self._torch is not None:
            self._torch.step()  # writes the trace
            self._torch.stop()
            self.ranges.recording = False

    def _action(self, step: int) -> ProfilerAction:
        """The schedule of torch's profiler, whose steps count from the first of the warm-up."""
        if step < self.config.warmup:
            return ProfilerAction.WARMUP
        last = self.config.warmup + self.steps - 1
        if step > last:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < last else ProfilerAction.RECORD_AND_SAVE
