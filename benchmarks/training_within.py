"""Cost of measuring a training step: multicard's loop and a plain one by turns, in one process.

    python -m benchmarks.training_within [--steps 5] [--minutes 10] [gpus=1 preset=fast ...]

Two processes of the same program differ by more than the cost on a small machine. So both loops train the same model on
the same batches of the same loader, with the same memory and threads. `train_epoch` times phases, opens ranges, keeps
losses, posts its progress and collects garbage itself; the plain loop does what a tutorial's does and no more. A block
is an epoch of `--steps` steps; four blocks (one loop, the other twice, the first again, the order drawn at random) are
a round, so that a slow drift of the machine affects both alike. A round's figure is the ratio of the times of its two
measured and its two plain blocks. Rounds are taken until the 95 % interval of their median is within ± 1 %, or the
minutes are over.

Prints one line: the ratio of wall times with its interval, and that of the process's CPU times, which other users of
the machine disturb less.
"""

import json
import math
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from benchmarks.common import configuration, machine, parser
from multicard.config.vision import VisionConfig
from multicard.machine.allocation import Allocation
from multicard.measure import timing
from multicard.ranks import elastic
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.run import prepare
from multicard.vision.workload import WORKLOAD

if TYPE_CHECKING:
    from multicard.vision.data.batch import Input
    from multicard.vision.data.samplers import Remaining
    from multicard.vision.loop import Loop

FIGURES = "rounds.json"
HALF_WIDTH = 0.01  # of the interval that is asked for
LEAST_ROUNDS = 20
WARM_UP = 2  # rounds that are left out
FEWEST = 3  # rounds that are taken however long they last


def plain_epoch(loop: "Loop", batches: "Input") -> None:
    """Train on every batch once, and do nothing else. One rank, full batches."""
    from torch.nn.functional import cross_entropy

    model, optim, device = loop.share.model, loop.optim, loop.rank.device
    model.train()
    for batch in batches:
        images, labels = (part.to(device, non_blocking=True) for part in (batch.images, batch.labels))
        images = images.expand(-1, 3, -1, -1).contiguous(memory_format=loop.memory_format)
        optim.optimizer.zero_grad(set_to_none=True)
        with loop.precision.arithmetic(device):
            loss = cross_entropy(model(images), labels)
        optim.scaler.scale(loss).backward()
        optim.scaler.step(optim.optimizer)
        optim.scaler.update()
        optim.schedule.step()


def rounds(measured: Callable[[], Any], plain: Callable[[], Any], clocks: Callable[[], np.ndarray], minutes: float):
    """Ratios (rounds, clocks), measured / plain, and the median wall time of a plain block.

    Args:
        clocks: reads all clocks, in seconds; the first is the wall's, which decides when to end.
    """
    ends_s, order, ratios, plain_s = timing.clock_s() + 60 * minutes, random.Random(0), [], []
    while timing.clock_s() < ends_s or len(ratios) < WARM_UP + FEWEST:
        first = order.choice([measured, plain])
        second = plain if first is measured else measured
        taken = {measured: np.zeros(2), plain: np.zeros(2)}
        for turn in (first, second, second, first):
            started = clocks()
            turn()
            taken[turn] = taken[turn] + clocks() - started
        ratios.append((taken[measured] / taken[plain]).tolist())
        plain_s.append(taken[plain][0] / 2)
        wall = [ratio[0] for ratio in ratios[WARM_UP:]]
        if len(wall) >= LEAST_ROUNDS and half_width(wall) <= HALF_WIDTH:
            break
    return ratios[WARM_UP:], float(np.median(plain_s))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval, free of a distribution: the values of rank n / 2 ± 0.98 √n (Conover 1999,
    section 3.2)."""
    ranked, count = sorted(values), len(values)
    below = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2) - 1)
    return float(np.median(ranked)), ranked[below], ranked[count - 1 - below]


def half_width(values: Sequence[float]) -> float:
    _, low, high = interval(values)
    return (high - low) / 2


def work(rank: Rank, options: VisionConfig, folder: Path, workers: int, minutes: float) -> None:
    """The work of a rank: `multicard.vision.train.train`, whose epochs are the rounds."""
    import gc
    import time

    from multicard.vision import train

    def by_turns(loop: "Loop", report: Any, sampler: "Remaining", training: "Input", *_: Any) -> None:
        epochs = iter(range(2**31))

        def measured() -> None:
            gc.disable()
            sampler.set_epoch(next(epochs))
            loop.train_epoch(0, training)

        def plain() -> None:
            gc.enable()  # as in any script
            sampler.set_epoch(next(epochs))
            plain_epoch(loop, training)

        def clocks() -> np.ndarray:
            timing.synchronize(rank.device)
            return np.array([timing.clock_s(), time.process_time()])

        ratios, plain_s = rounds(measured, plain, clocks, minutes)
        figures = {"ratios": ratios, "step_s": plain_s / loop.share.steps}
        (folder / FIGURES).write_text(json.dumps(figures))
        loop.stopped = True  # nothing is profiled or diagnosed after it

    with mock.patch.object(train, "run_epochs", by_turns):
        train.train(rank, options, folder, workers)


def measure(words: Sequence[str], steps: int, minutes: float) -> dict[str, Any]:
    """`ratios` (rounds; wall, CPU) and the plain `step_s` of a run on one rank."""
    fixed = ["name=benchmark", "schedule=constant", "lr=0.001"]
    config: VisionConfig = configuration("train_vision", *fixed, *words)
    config.dataset.train_limit = steps * config.batch_size
    allocation = Allocation()
    placement = prepare.check(WORKLOAD, config, allocation)
    if placement.world_size > 1:
        raise SystemExit(f"gpus={placement.world_size}: this benchmark takes one rank")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        elastic.warm_up(placement.device, list(WORKLOAD.preload))
        Board(folder, placement.world_size, create=True)
        arguments = (*WORKLOAD.arguments(config, placement, folder), minutes)
        job = prepare.job_of(WORKLOAD, config, placement, folder, allocation)
        failure = elastic.launch("benchmarks.training_within:work", arguments, placement, job)
        if failure is not None:
            raise SystemExit("\n".join([failure.message, *failure.log_tail]))
        return json.loads((folder / FIGURES).read_text())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=5, help="in a block")
    options.add_argument("--minutes", type=float, default=10, help="at most")
    options.add_argument("words", nargs="*", help="options of train_vision.py, at one rank")
    args = options.parse_args()
    figures = measure(args.words, args.steps, args.minutes)
    wall, cpu = (interval(column) for column in zip(*figures["ratios"], strict=True))
    print(
        f"a step with measuring / without: {wall[0]:.4f} (95 % interval {wall[1]:.4f} to {wall[2]:.4f}; CPU time"
        f" {cpu[0]:.4f}, {cpu[1]:.4f} to {cpu[2]:.4f}); {len(figures['ratios'])} rounds of 4 x {args.steps} steps of"
        f" {1e3 * figures['step_s']:.1f} ms; {machine()}"
    )


if __name__ == "__main__":
    main()
