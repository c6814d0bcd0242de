"""What our probe adds to a step of torchtune's recipe: on and off by turns, in blocks of steps of one and the same run.

    python -m benchmarks.torchtune_within [--steps 12] [method=qlora epochs=4 ...]

`benchmarks.torchtune_overhead` compares whole processes, and on a small machine two runs of the same program differ by
more than what is sought. Here both kinds of steps share process, memory, threads and model; rows are packed, so that
every step does the same work. Printed is the ratio of each block with the probe to the mean of its two neighbours
without it, by medians of their steps.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from benchmarks.overhead import spread
from multicard import workloads
from multicard.config.llm import LlmConfig
from multicard.controller import run
from multicard.llm.workload import WORKLOAD
from multicard.machine.allocation import Allocation
from multicard.machine.environment import cores, cpu_model
from multicard.measure.timing import clock_s
from multicard.ranks import elastic
from multicard.ranks.process import Rank
from multicard.records.progress import Board

ROOT = Path(__file__).parent.parent
MARKS = "marks.json"


def tune(rank: Rank, options: LlmConfig, folder: Path, cfg: dict[str, Any], block: int) -> None:
    """The rank's part: as `multicard.llm.tune.tune`, with a probe that sleeps every other block."""
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
    """Run it; the seconds of each step."""
    fixed = ["device=cpu", "malloc=system", "packed=true", "max_seq_len=128", "batch_size=4"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        typed = OmegaConf.to_object(compose("tune_llm", ["name=benchmark", *fixed, *words]))
    assert isinstance(typed, LlmConfig)
    allocation = Allocation()
    placement = run.check(WORKLOAD, typed, allocation)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        elastic.warm_up("cpu", [*WORKLOAD.preload, "benchmarks.torchtune_within"])
        Board(folder, placement.world_size, create=True)
        arguments = (*WORKLOAD.arguments(typed, placement, folder), block)
        job = run.job_of(WORKLOAD, typed, placement, folder, allocation)
        failure = elastic.launch("benchmarks.torchtune_within:tune", arguments, placement, job)
        assert failure is None, failure
        return np.diff(json.loads((folder / MARKS).read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="in a block")
    parser.add_argument("words", nargs="*", help="options of tune_llm.py, at one rank and a supervised method")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    workloads.register()
    print(f"{cpu_model()}, {cores()} cores, load {os.getloadavg()[0]:.1f}")
    step_s = step_times_s(args.words, args.steps)
    blocks = np.median(step_s[: len(step_s) // args.steps * args.steps].reshape(-1, args.steps), axis=1)
    ratios = [2 * blocks[i] / (blocks[i - 1] + blocks[i + 1]) for i in range(1, len(blocks) - 1, 2)]
    print(f"{1e3 * np.median(step_s):.2f} ms a step; with the probe / without: {spread(ratios)}")


if __name__ == "__main__":
    main()
