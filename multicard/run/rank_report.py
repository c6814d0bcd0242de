"""Write a rank's report between epochs, so that an interrupted run keeps its measurements."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from multicard.machine.devices import used_gpu
from multicard.machine.environment import host, spans
from multicard.observe.readings import Counters
from multicard.ranks.process import Rank
from multicard.records import rank_files, run_folder
from multicard.records.rank_files import LlmReport, ScriptReport, VisionReport

if TYPE_CHECKING:
    import torch

Content = TypeVar("Content", VisionReport, LlmReport, ScriptReport)


class RankReportWriter(Generic[Content]):
    """Writes a rank's report and its steps. It writes between epochs, outside all timed steps.

    Args:
        devices: The devices that the rank computes on, if it has more than its own.
    """

    def __init__(
        self,
        kind: type[Content],
        rank: Rank,
        folder: Path,
        flags: dict[str, Any],
        devices: "Sequence[torch.device]" = (),
        **figures: Any,
    ) -> None:
        import pyarrow.parquet  # noqa: F401 - import it now, and not between two epochs
        import torch

        self.rank = rank
        self.folder = folder
        self.devices = devices or [rank.device]
        self.counters = Counters(self.devices)
        names = ["cpu"]
        if rank.device.type == "cuda":
            names = sorted({torch.cuda.get_device_name(device) for device in self.devices})
        self.content = kind(
            rank=rank.rank,
            host=host(),
            pid=os.getpid(),
            device=", ".join(names),
            gpu=used_gpu(rank.device),
            threads=rank.threads,
            # NUMA binding may leave fewer, and so may the shell that started the command.
            cpus=spans(os.sched_getaffinity(0)),
            flags=flags,
            openmp={
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith(("OMP_", "GOMP_"))
            },
            **figures,
        )

    def add(self, figures: Mapping[str, Any]) -> None:
        """Set several fields of the report."""
        self.content = msgspec.structs.replace(self.content, **figures)

    def write_steps(self, epoch: int, columns: dict[str, np.ndarray]) -> None:
        run_folder.write_steps(self.folder, self.rank.rank, epoch, columns)

    def write(self) -> None:
        self.content.counters = self.counters.readings
        rank_files.write(self.folder, self.content)
