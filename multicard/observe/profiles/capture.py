"""Profiles steps of a rank.

By default these are steps after the training, so that no timed step is disturbed. With
`profile.window=start`, it is the training itself from its start.
"""

import math
import warnings
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from multicard.config.base import ProfileConfig, ProfileName, WindowConfig
from multicard.measure import memory, timing
from multicard.measure.timing import Ranges
from multicard.observe.profiles.events import RUN, STEP, WINDOW
from multicard.observe.profiles.trace_files import FOLDER
from multicard.ranks.process import Rank, max_over_ranks


class _Profiler:
    """torch's profiler, or Nsight Systems waiting to be started, with markers and moved bytes."""

    def __init__(self, name: ProfileName, rank: Rank, folder: Path, ranges: Ranges) -> None:
        self.rank = rank
        self.ranges = ranges
        self.file = folder / FOLDER / f"r{rank.rank:02d}.json.gz"
        self.recording = False
        self.h2d_bytes = 0
        self._nvtx = name is ProfileName.nsys
        # Open markers of the window, and of a step in it.
        self._window_marker = ExitStack()
        self._step_marker = ExitStack()
        cuda = [ProfilerActivity.CUDA] if rank.device.type == "cuda" else []
        self._activities = [*cuda, ProfilerActivity.CPU]
        self._torch: profile | None = None

    def _warm_up(self) -> None:
        self.file.parent.mkdir(exist_ok=True)
        if self._nvtx:
            return
        self._torch = profile(activities=self._activities)
        # torch warns that a second cycle drops the first one's events. Here is only one cycle.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._torch.prepare_trace()
        self.ranges.recording = True

    def _start(self) -> None:
        if self._torch is not None:
            self._torch.start_trace()
        else:
            torch.cuda.profiler.start()  # --capture-range=cudaProfilerApi waits for this call.
        self.recording = True

    def _stop(self) -> None:
        self.recording = False
        self._step_marker.close()
        self._window_marker.close()
        # Otherwise, work that the device has not yet finished would be lost.
        timing.synchronize(self.rank.device)
        if self._torch is None:
            torch.cuda.profiler.stop()
        self.ranges.recording = False

    def _write(self) -> None:
        if self._torch is not None:
            self._torch.stop_trace()
            self._torch.export_chrome_trace(str(self.file))
            self._torch = None

    def _marker(self, name: str) -> AbstractContextManager[Any]:
        return torch.cuda.nvtx.range(name) if self._nvtx else record_function(name)

    def _window_facts(
        self, config: WindowConfig, first_step: int, steps: int, **more: Any
    ) -> dict[str, Any]:
        """Return the window for the rank's file."""
        facts = {"name": str(config.name), "first_step": first_step, "steps": steps}
        return facts | {"counted_h2d_bytes": self.h2d_bytes, **more}

    def count(self, h2d_bytes: int) -> None:
        """Count bytes that the current step moved to the device."""
        if self.recording:
            self.h2d_bytes += h2d_bytes


class Window(_Profiler):
    """Profiles steps after the training.

    Call `boundary` before each step and after the last, until it returns False. The first `skip`
    steps run without the profiler, the next `warmup` with it, and then `steps` are recorded.
    Nothing here waits for the device within the window, as the trace would contain that call.

    Args:
        step_s: duration of a step, for a window configured in seconds. All ranks take the same
            number of steps.
    """

    def __init__(
        self, config: WindowConfig, rank: Rank, folder: Path, ranges: Ranges, step_s: float
    ) -> None:
        super().__init__(config.name, rank, folder, ranges)
        self.config = config
        self.steps = config.steps or 1
        if config.seconds is not None:
            self.steps = max_over_ranks(rank, max(1, math.ceil(config.seconds / step_s)))
        self.first = config.skip + config.warmup
        self.total = self.first + self.steps
        self._begun_steps = 0
        self._laps = timing.Laps(rank.device)

    def boundary(self) -> bool:
        """End the previous step, if any, and begin the next. Return False after the last."""
        self.ranges.close()  # A range must not outlast its step.
        self._step_marker.close()
        if self._begun_steps == self.config.skip:
            self._warm_up()
        if self._begun_steps == self.first:
            self._start()
            self._laps.start()
        elif self._begun_steps == self.total:
            self._laps.end()
            self._stop()
            self._write()
            return False
        if self.recording:
            self._step_marker.enter_context(self._marker(f"{STEP}{self._begun_steps}"))
        self.ranges.open("data")
        self._begun_steps += 1
        return True

    def result(self) -> dict[str, Any]:
        """Return the window for the rank's file."""
        ((_, window_s),) = self._laps.known(wait=True)
        return self._window_facts(self.config, self.first, self.steps, window_s=window_s)


class TrainingWindow(_Profiler):
    """Profiles the training from its start, including evaluation and the starts of epochs.

    This slows the timed steps. It records a rank's work from `open` to the step at which `profile`
    ends it, or to `close`. Call `step` before each step and `pause` after the last of an epoch.
    Unless a window from the start is configured, all methods do nothing. Each rank stops recording
    by its own clock, at most one step apart from the others. `close` writes the trace after the
    training, because the other ranks would wait for a rank that writes.

    Kineto holds all events in memory without a limit. Recording therefore stops at
    `profile.budget_bytes`.
    """

    def __init__(self, config: ProfileConfig, rank: Rank, folder: Path, ranges: Ranges) -> None:
        super().__init__(config.name, rank, folder, ranges)
        self.config = config if isinstance(config, WindowConfig) and config.from_start else None
        self.steps = 0
        self.ended: str | None = None
        self._started_s = 0.0
        self._held_bytes = 0

    def open(self) -> None:
        """Begin to record. All ranks call it together."""
        if self.config is None:
            return
        self._held_bytes = memory.private_memory_bytes()
        self._warm_up()
        self._start()
        self._started_s = timing.clock_s()
        self._window_marker.enter_context(self._marker(WINDOW))

    def step(self) -> None:
        """End the previous step, if it is open, and begin the next, unless the window ends here."""
        if self.config is None or not self.recording:
            return
        self.pause()
        self.ended = self._end_reason(self.config)
        if self.ended is not None:
            self._stop()
            return
        self._step_marker.enter_context(self._marker(f"{STEP}{self.steps}"))
        self.steps += 1
        self.ranges.open("data")

    def _stop(self) -> None:
        super()._stop()
        if self._torch is not None:  # `close` writes its trace later.
            self._torch.toggle_collection_dynamic(False, self._activities)

    def pause(self) -> None:
        """End the open step at the end of an epoch: the next step may not follow at once."""
        if self.recording:
            self.ranges.close()  # A range must not outlast its step.
            self._step_marker.close()

    def close(self) -> dict[str, Any] | None:
        """End the window with the training, if it has not ended, and write the trace.

        Returns the window for the rank's file, or None if none was opened.
        """
        if self.recording:
            self.pause()
            self.ended = RUN
            self._stop()
        if self.config is None or self.ended is None:
            return None
        self._write()
        return self._window_facts(
            self.config, 0, self.steps, window=str(self.config.window), ended=self.ended
        )

    def _end_reason(self, config: WindowConfig) -> str | None:
        """Return the reason to end the window before the next step, or None if it continues."""
        if config.seconds is None:
            if self.steps == config.steps:
                return "steps"
        elif timing.clock_s() - self._started_s >= config.seconds:
            return "seconds"
        held_bytes = 0 if self._torch is None else memory.private_memory_bytes() - self._held_bytes
        return "budget" if held_bytes >= config.budget_bytes else None
