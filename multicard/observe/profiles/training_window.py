"""The profile of a rank's training from its start (`profile.window=start`), evaluation and the starts of epochs
included. It slows what is timed; records say so."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from multicard.config.base import ProfileConfig, ProfileName, WindowConfig
from multicard.measure import memory, timing
from multicard.measure.ranges import Ranges
from multicard.observe.profiles.names import RUN, STEP, WINDOW
from multicard.ranks.process import Rank


class TrainingWindow:
    """Records a rank's work from `open` to the step at which `profile` has it end, or to `close`.

    Call `step` before each step and `pause` after the last of an epoch. Unless a window from the start is configured,
    all of them do nothing. Ranks end by their own clocks, a step apart at most, and wait for nothing: events are no
    longer recorded then, and the trace is written at `close`, after training, as the other ranks would wait meanwhile.

    Kineto holds all events in memory, without a limit of its own: recording stops at `profile.budget_bytes`.
    """

    def __init__(self, config: ProfileConfig, rank: Rank, folder: Path, ranges: Ranges) -> None:
        self.config = config if isinstance(config, WindowConfig) and config.from_start else None
        self.rank, self.ranges = rank, ranges
        self.file = folder / "profile" / f"r{rank.rank:02d}.json.gz"
        self.nvtx = config.name is ProfileName.nsys
        self.steps = self.h2d_bytes = 0
        self.recording = False
        self.ended: str | None = None
        self._started_s, self._held_bytes = 0.0, 0
        self._markers: list[Any] = []  # open ones, the innermost last
        self._torch: profile | None = None

    def open(self) -> None:
        """Begin to record; all ranks call it together."""
        if self.config is None:
            return
        self.file.parent.mkdir(exist_ok=True)
        self._held_bytes = memory.private_memory_bytes()
        if self.nvtx:
            torch.cuda.profiler.start()
        else:
            self._torch = profile(activities=self._activities())
            with warnings.catch_warnings():  # that a second cycle would drop the events of the first: there is one
                warnings.simplefilter("ignore")
                self._torch.start()
            self.ranges.recording = True
        self.recording = True
        self._started_s = timing.clock_s()
        self._mark(WINDOW)

    def step(self) -> None:
        """End the step before, if it is open, and begin the next, unless the window ends here."""
        if not self.recording:
            return
        self.pause()
        reason = self._reason()
        if reason is not None:
            self._stop(reason)
            return
        self._mark(f"{STEP}{self.steps}")
        self.steps += 1
        self.ranges.open("data")

    def pause(self) -> None:
        """End the open step, after which none may follow at once: the epoch is over."""
        if self.recording:
            self.ranges.close()  # no range outlasts its step
            self._unmark(1)

    def count(self, h2d_bytes: int) -> None:
        """Count bytes that were moved to the device."""
        if self.recording:
            self.h2d_bytes += h2d_bytes

    def close(self) -> dict[str, Any] | None:
        """End the window with the training, if it has not ended, and write the trace.

        Returns:
            The window for the rank's file; None where none was opened.
        """
        if self.config is None or (not self.recording and self.ended is None):
            return None
        if self.recording:
            self.pause()
            self._stop(RUN)
        if self._torch is not None:
            self._torch.stop()
            self._torch.export_chrome_trace(str(self.file))
            self._torch = None
        return {
            "name": self.config.name.value,
            "window": self.config.window.value,
            "ended": self.ended,
            "first_step": 0,
            "steps": self.steps,
            "counted_h2d_bytes": self.h2d_bytes,
        }

    def _reason(self) -> str | None:
        """The reason to end the window before the next step; None where it goes on."""
        config = self.config
        assert config is not None
        if config.seconds is None:
            if self.steps == config.steps:
                return "steps"
        elif timing.clock_s() - self._started_s >= config.seconds:
            return "seconds"
        held_bytes = 0 if self._torch is None else memory.private_memory_bytes() - self._held_bytes
        return "budget" if held_bytes >= config.budget_bytes else None

    def _stop(self, reason: str) -> None:
        self.ended, self.recording = reason, False
        self._unmark(0)
        timing.synchronize(self.rank.device)  # or what runs behind the host would be lost
        if self.nvtx:
            torch.cuda.profiler.stop()
        if self._torch is not None:
            self.ranges.recording = False
            self._torch.toggle_collection_dynamic(False, self._activities())

    def _activities(self) -> list[ProfilerActivity]:
        cuda = [ProfilerActivity.CUDA] if self.rank.device.type == "cuda" else []
        return [*cuda, ProfilerActivity.CPU]

    def _mark(self, name: str) -> None:
        if self.nvtx:
            torch.cuda.nvtx.range_push(name)
            self._markers.append(None)
        else:
            self._markers.append(record_function(name).__enter__())

    def _unmark(self, depth: int) -> None:
        """Close the open markers but for the outermost `depth`."""
        while len(self._markers) > depth:
            marker = self._markers.pop()
            if marker is None:
                torch.cuda.nvtx.range_pop()
            else:
                marker.__exit__(None, None, None)
