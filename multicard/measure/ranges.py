"""Phase ranges for profilers (NVTX, record_function)."""

from typing import Any

import torch


class Ranges:
    """At most one open range, named as in `phases_s`, or `evaluate`.

    On CUDA an NVTX range: well below a microsecond without a listener, and visible to any profiler attached from
    outside. torch's own ranges cost more and are opened only while `recording` is set.
    """

    def __init__(self, device: torch.device, nvtx: bool = False) -> None:
        self.recording = False
        self._nvtx = nvtx or device.type == "cuda"
        self._pushed = False
        self._recorded: Any = None

    def open(self, name: str) -> None:
        """Close the open range and begin another."""
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
