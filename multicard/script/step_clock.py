"""Times the steps of a script on one rank."""

import numpy as np
import torch

from multicard.measure.timing import Laps, clock_s
from multicard.script.step_times import Lap, StepTimes

STEPS_PER_READ = 32  # Laps are read in groups: on CUDA each read asks the device.


class StepClock:
    """Times steps by laps: of the host's clock at first, and of the GPU once a model is on it.

    Laps on the GPU lie between events in its stream. They are read when the GPU has passed them,
    and the host does not wait for it before the end of the run.

    Attributes:
        started_s: when the training started; None before, and once the clock has stopped.
        times: the laps that are known by now, added up to steps.
    """

    def __init__(self) -> None:
        self.started_s: float | None = None
        self.times = StepTimes()
        self._laps = Laps(torch.device("cpu"))
        self._counted: list[bool] = []  # Whether each optimizer step counts.
        self._unread_steps = 0

    @property
    def is_running(self) -> bool:
        return self.started_s is not None

    def start(self) -> float:
        """Start the clock, and return the time."""
        self.started_s = clock_s()
        return self.started_s

    def start_lap(self) -> None:
        """Begin the first lap."""
        self._laps = Laps(torch.device("cpu"))

    def lap(self, label: Lap) -> None:
        """Credit the time since the last lap to a label."""
        self._laps.end(label)

    def end_step(self, label: Lap) -> None:
        """End a step that counts."""
        self._laps.end(label)
        self._counted.append(True)
        self._unread_steps += 1
        if self._unread_steps == STEPS_PER_READ:
            self._read()

    def end_uncounted_step(self, label: Lap) -> None:
        """End an optimizer step that does not count: its time belongs to the next that does."""
        self._laps.end(label)
        self._counted.append(False)

    def count_last_step(self) -> bool:
        """Let the last optimizer step count after all. Return False if it counts already."""
        if not self._counted or self._counted[-1]:
            return False
        self._counted[-1] = True
        return True

    def use_device(self, device: torch.device) -> None:
        """Use the clock of the GPU from now on, if the script has put its model there."""
        if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.memory_allocated():
            self._read()
            self._laps = Laps(torch.device("cuda", torch.cuda.current_device()))

    def stop(self) -> float | None:
        """Stop the clock, and return when it was started; None if it was not running."""
        started_s = self.started_s
        self.started_s = None
        return started_s

    def read_steps(self) -> np.ndarray:
        """Wait for the device, and return the seconds of each step, as `StepTimes.of_steps`."""
        self._read(wait=True)
        self.times.close()
        return self.times.of_steps(self._counted)

    def _read(self, wait: bool = False) -> None:
        self._unread_steps = 0
        for label, seconds in self._laps.known(wait):
            self.times.add(label, seconds)
