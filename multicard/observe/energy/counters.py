"""NVML's energy counters, read by the ranks where the spans begin and end whose energy is to be known.

The controller's samples are a second apart: interpolated between them, the energy of 3 s is off by a tenth, as power
rises when training begins.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from multicard.machine import devices, nvml
from multicard.measure.timing import clock_s

Reading = tuple[float, str, float]  # on `clock_s`, the GPU's UUID, joules


class Counters:
    """The counters of the GPUs that a rank uses; there is nothing to read on CPU ranks, or where NVML gives none.

    readings: all so far, in the order in which they were taken.
    """

    def __init__(self, used: Sequence[Any]) -> None:
        self.readings: list[Reading] = []
        self._handles: dict[str, Any] = {}
        uuids = [uuid for device in used if (uuid := devices.used_gpu(device)) is not None]
        if not uuids:
            return
        self._library = ExitStack().enter_context(nvml.opened())  # until the process ends
        if self._library is not None:
            handles = {uuid: nvml.ask(self._library, self._library.nvmlDeviceGetHandleByUUID, uuid) for uuid in uuids}
            self._handles = {uuid: handle for uuid, handle in handles.items() if handle is not None}

    def read(self) -> None:
        """Read all counters. Call it right before a span begins and right after it has ended."""
        for uuid, handle in self._handles.items():
            time_s = clock_s()
            mj = nvml.ask(self._library, self._library.nvmlDeviceGetTotalEnergyConsumption, handle)
            if mj is not None:
                self.readings.append((time_s, uuid, 1e-3 * mj))
