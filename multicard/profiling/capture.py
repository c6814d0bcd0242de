"""A rank's profiled steps: taken in a pass of their own after training, so that no timed step is disturbed."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from multicard.config.base import ProfileName, WindowConfig
from multicard.measure import memory, timing
from multicard.measure.ranges import Ranges
from multicard.ranks.process import Rank


class Window:
    """Call `boundary` before each step of the pass and after its last; it is False when the pass is over.

    The first `skip` steps run as they are, `warmup` with the profiler on, and then `steps` are recorded. Nothing here
    waits for the device within the window: such a call would be among those recorded.

    Args:
        step_s: what a step takes, for a window that is given in seconds. All ranks take as many steps.
    """

    def __init__(self, config: WindowConfig, rank: Rank, folder: Path, ranges: Ranges, step_s: float) -> None:
        self.config, self.rank, self.ranges = config, rank, ranges
        self.file = folder / "profile" / f"r{rank.rank:02d}.json.gz"
        self.steps = config.steps
        if config.seconds is not None:
            self.steps = agreed(rank, max(1, math.ceil(config.seconds / step_s)))
        self.first = config.skip + config.warmup
        self.h2d_bytes = 0
        self._done = 0
        self._marks = timing.Marks(rank.device)
        self.file.parent.mkdir(exist_ok=True)
        self._nvtx = config.name is ProfileName.nsys
        self._torch = self._torch_profiler() if config.name is ProfileName.kineto else None

    @property
    def last(self) -> int:
        """Steps of the whole pass."""
        return self.first + self.steps

    def boundary(self) -> bool:
        self.ranges.close()  # no range lasts longer than its step
        if self._nvtx and self._done:
            torch.cuda.nvtx.range_pop()
        if self._torch is not None:
            self._step_torch(self._torch)
        if self._done == self.first:
            self._begin()
        elif self._done == self.last:
            self._end()
            return False
        if self._nvtx:
            torch.cuda.nvtx.range_push(f"ProfilerStep#{self._done}")  # as torch's profiler names them
        self.ranges.open("data")
        self._done += 1
        return True

    def count(self, h2d_bytes: int) -> None:
        """A step has handed this much to the device; call it before the boundary that ends the step."""
        if self._done > self.first:
            self.h2d_bytes += h2d_bytes

    def result(self) -> dict[str, Any]:
        """For the rank's file."""
        (seconds,) = self._marks.seconds()
        content = {"name": self.config.name.value, "first_step": self.first, "steps": self.steps}
        return {**content, "window_s": float(seconds), "counted_h2d_bytes": self.h2d_bytes}

    def _begin(self) -> None:
        if self._nvtx:
            torch.cuda.profiler.start()  # what --capture-range=cudaProfilerApi waits for
        self._marks.add()

    def _end(self) -> None:
        self._marks.add()
        if self._nvtx:
            memory.synchronize(self.rank.device)  # what is still at work would be lost; it is after the last step
            torch.cuda.profiler.stop()
        if self._torch is not None:
            self._torch.step()  # writes the trace
            self._torch.stop()
            self.ranges.recording = False

    def _torch_profiler(self) -> profile:
        activities = [ProfilerActivity.CPU]
        if self.rank.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        return profile(activities=activities, schedule=self._action, on_trace_ready=self._write, acc_events=True)

    def _action(self, step: int) -> ProfilerAction:
        """What torch's profiler does with its own step, which counts from the first of the warm-up."""
        if step < self.config.warmup:
            return ProfilerAction.WARMUP
        last = self.config.warmup + self.steps - 1
        if step > last:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < last else ProfilerAction.RECORD_AND_SAVE

    def _write(self, recorded: profile) -> None:
        recorded.export_chrome_trace(str(self.file))

    def _step_torch(self, profiler: profile) -> None:
        if self._done == self.config.skip:
            self.ranges.recording = True
            profiler.start()
        elif self.config.skip < self._done < self.last:
            profiler.step()


def agreed(rank: Rank, number: int) -> int:
    """The highest that any rank has. All of them call it."""
    if rank.world_size == 1:
        return number
    most = torch.tensor(number, device=rank.device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)
