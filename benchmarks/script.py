"""Measure the cost of the hooks of measure_script.py per training step.

    python -m benchmarks.script [--rounds 30] [--steps 100] [--width 1024] [--batch-size 256]

A plain loop over a DataLoader runs in one process, with hooks in half of its steps. A round has
`--steps` steps with hooks and as many without. They alternate in short blocks, so that both kinds
see the same disturbances of the machine. The output has the median step of both, the ratio of
medians round by round, and the microseconds that hooks add to a step. These do not depend on the
model, so they are a smaller share of a longer step.
"""

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import configuration, device_here, machine, parser, quartiles
from multicard.config.script import ScriptConfig
from multicard.measure.timing import clock_s, synchronize
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.script import hooks
from multicard.script.recorder import Recorder

# A block has this number of steps in a row. The first does not count, because installing or
# removing hooks empties Python's method caches.
BLOCK = 5


def steps_s(
    blocks: int, width: int, batch_size: int, recorder: Recorder
) -> Iterator[tuple[bool, float]]:
    """Train a perceptron of this width, and yield a pair for each step that counts.

    Yields:
        Whether hooks were installed, and the seconds of the step.
    """
    device = recorder.report.rank.device
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    optimizer = torch.optim.SGD(model.to(device).parameters(), 0.01)
    samples = blocks * BLOCK * batch_size
    data = TensorDataset(torch.randn(samples, 64), torch.randint(10, (samples,)))
    batches = iter(DataLoader(data, batch_size))
    for block in range(blocks):
        measured = block % 4 in (0, 3)
        with hooks.installed(recorder) if measured else nullcontext():
            for number in range(BLOCK):
                started_s = clock_s()
                inputs, targets = next(batches)
                loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                synchronize(device)
                if number:
                    yield measured, clock_s() - started_s


def round_s(steps: int, width: int, batch_size: int) -> tuple[list[float], list[float]]:
    """Measure a round, and return the seconds of each step without hooks and with them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ranks").mkdir()
        board = Board(folder, 1, create=True)
        config = configuration("measure_script", "script=none.py")
        assert isinstance(config, ScriptConfig)
        recorder = Recorder(Rank(0, 0, 1, device_here(), "gloo", 1), config, folder)
        blocks = 4 * round(steps / (BLOCK - 1) / 2)
        step_times = [*steps_s(blocks, width, batch_size, recorder)]
        board.remove()
    assert recorder.progress.steps == blocks // 2 * BLOCK
    return (
        [step_s for has_hooks, step_s in step_times if not has_hooks],
        [step_s for has_hooks, step_s in step_times if has_hooks],
    )


def main() -> None:
    options = parser(__doc__, rounds=30)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--width", type=int, default=1024)
    options.add_argument("--batch-size", type=int, default=256)
    args = options.parse_args()
    torch.set_num_threads(1)
    print(machine(device_here()))
    round_s(args.steps, args.width, args.batch_size)  # This is a warm-up.
    rounds = [
        tuple(map(median, round_s(args.steps, args.width, args.batch_size)))
        for _ in range(args.rounds)
    ]
    without_s, with_s = zip(*rounds, strict=True)
    print(
        f"step: {1e3 * median(without_s):.3f} ms without hooks, {1e3 * median(with_s):.3f} ms with"
        " them"
    )
    low, middle, high = quartiles([with_hooks / without for without, with_hooks in rounds])
    print(f"ratio, round by round: {middle:.3f} (quartiles {low:.3f} to {high:.3f})")
    added_us = 1e6 * median(with_hooks - without for without, with_hooks in rounds)
    print(
        f"added to a step: median {added_us:.0f} us, which is 1 % of a step of"
        f" {added_us / 10:.0f} ms"
    )


if __name__ == "__main__":
    main()
