"""Cost of our probe in a step of torchtune's recipe: on and off by turns, in blocks of steps of the same run.

    python -m benchmarks.torchtune_within [--steps 12] [method=qlora epochs=4 ...]

Between whole processes, two runs of the same program differ by more than the cost on a small machine. Here both kinds
of steps share process, memory, threads and model; rows are packed, so that every step does the same work. Prints the
ratio of each block with the probe to the mean of its two neighbours without it, by medians of their steps.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.common import configuration, machine, parser, spread
from multicard.config.llm import LlmConfig
from multicard.llm.workload import WORKLOAD
from multicard.machine.allocation import Allocation
from multicard.measure.timing import clock_s
from multicard.ranks import elastic
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.run import prepare

MARKS = "marks.json"


def tune(rank: Rank, options: LlmConfig, folder: Path, cfg: dict[str, Any], block: int) -> None:
    """The work of a rank: `multicard.llm.tune.tune` with a probe that sleeps every other block."""
    from multicard.llm import tune as ours
    from multicard.llm.step_probe import Probe

    marks: list[float] = []

    class ByTurns(Probe):
        def batches(self, loader: Any) -> Iterator[Any]:
            watched, bare = super().batches(loader), iter(loader)
            while True:
                marks.append(clock_s())
                batch = next(watched if self.awake else bare, None)
                if batch is None:
                    return
                yield batch

        @property
        def awake(self) -> bool:
            return (len(marks) - 1) // block % 2 == 1

        def log(self, payload: Mapping[str, Any]) -> None:
            if self.awake:
                super().log(payload)

        def end_epoch(self) -> None:
            self._clear()

    with mock.patch.object(ours, "Probe", ByTurns):
        ours.tune(rank, options, folder, cfg)
    (folder / MARKS).write_text(json.dumps(marks))


def step_times_s(words: list[str], block: int) -> np.ndarray:
    """Seconds of each step of a run."""
    fixed = ["device=cpu", "malloc=system", "packed=true", "max_seq_len=128", "batch_size=4"]
    config: LlmConfig = configuration("tune_llm", "name=benchmark", *fixed, *words)
    allocation = Allocation()
    placement = prepare.check(WORKLOAD, config, allocation)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        elastic.warm_up("cpu", [*WORKLOAD.preload, "benchmarks.torchtune_within"])
        Board(folder, placement.world_size, create=True)
        arguments = (*WORKLOAD.arguments(config, placement, folder), block)
        job = prepare.job_of(WORKLOAD, config, placement, folder, allocation)
        failure = elastic.launch("benchmarks.torchtune_within:tune", arguments, placement, job)
        assert failure is None, failure
        return np.diff(json.loads((folder / MARKS).read_text()))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=12, help="in a block")
    options.add_argument("words", nargs="*", help="options of tune_llm.py, at one rank and a supervised method")
    args = options.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(machine())
    step_s = step_times_s(args.words, args.steps)
    blocks = np.median(step_s[: len(step_s) // args.steps * args.steps].reshape(-1, args.steps), axis=1)
    ratios = [2 * blocks[i] / (blocks[i - 1] + blocks[i + 1]) for i in range(1, len(blocks) - 1, 2)]
    print(f"{1e3 * np.median(step_s):.2f} ms a step; with the probe / without: {spread(ratios)}")


if __name__ == "__main__":
    main()
