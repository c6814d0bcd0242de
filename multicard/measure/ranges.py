"""Names what a rank is at, for a profiler that looks on."""

from typing import Any

import torch


class Ranges:
    """One range at a time, under the names of `phases_s` and `evaluate`.

    On CUDA an NVTX range: well under a microsecond while nothing listens, and there for any profiler that somebody
    attaches from outside. For torch's own profiler, whose ranges cost more, only while `recording` is set.
    """

    def __init__(self, device: torch.device, nvtx: bool = False) -> None:
        self.recording = False
        self._nvtx = nvtx or device.type == "cuda"
        self._pushed = False
        self._recorded: Any = None

    def open(self, name: str) -> None:
        """End the range before, and begin this one."""
        self.close()
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
            self._pushed = True
        if self.recording:
            self._recorded = torch.profiler.record_function(name)
            self._recorded.__enter__()

    def close(self) -> None:
        if self._recorded is not None:
            self._recorded.__exit__(None, None, None)
            self._recorded = None
        if self._pushed:
            torch.cuda.nvtx.range_pop()
            self._pushed = False
