"""What the hooks of measure_script.py cost a training step: the same loop with and without them, by turns.

    python -m benchmarks.script [--rounds 30] [--steps 100] [--width 512] [--batch-size 256]

A plain loop over a DataLoader, in one process. Each round trains so many steps without and with hooks, in an order that
alternates. Prints the median step of both, the ratio round by round, and the microseconds that hooks add to a step,
which do not depend on the model: the share that they are of a longer step follows.
"""

import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import configuration, device_here, interleaved, machine, parser, quartiles, ratios
from multicard.config.script import ScriptConfig
from multicard.measure.timing import clock_s, synchronize
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.script import hooks
from multicard.script.recorder import Recorder


def step_s(measured: bool, steps: int, width: int, batch_size: int) -> float:
    """Seconds of a step of a perceptron of two layers of `width`."""
    device = device_here()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.to(device).parameters(), 0.01)
    count = (steps + 1) * batch_size
    data = TensorDataset(torch.randn(count, 64), torch.randint(10, (count,)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ranks").mkdir()
        board = Board(folder, 1, create=True)
        config = configuration("measure_script", "script=none.py")
        assert isinstance(config, ScriptConfig)
        recorder = Recorder(Rank(0, 0, 1, device, "gloo", 1), config, folder)
        with hooks.installed(recorder) if measured else nullcontext():
            started_s = 0.0
            for number, (inputs, targets) in enumerate(DataLoader(data, batch_size)):
                if number == 1:  # in the first step the rank's report is written, once for a run
                    synchronize(device)
                    started_s = clock_s()
                loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            synchronize(device)
            taken_s = clock_s() - started_s
        board.remove()
    assert recorder.steps == (steps + 1 if measured else 0)
    return taken_s / steps


def main() -> None:
    options = parser(__doc__, rounds=30)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--width", type=int, default=512)
    options.add_argument("--batch-size", type=int, default=256)
    args = options.parse_args()
    torch.set_num_threads(1)
    print(machine(device_here()))
    turns = {measured: partial(step_s, measured, args.steps, args.width, args.batch_size) for measured in (False, True)}
    for turn in turns.values():
        turn()  # warm up
    taken = interleaved(turns, args.rounds)
    added_us = [1e6 * (on - off) for on, off in zip(taken[True], taken[False], strict=True)]
    print(f"step: {1e3 * median(taken[False]):.3f} ms without hooks, {1e3 * median(taken[True]):.3f} ms with them")
    low, middle, high = quartiles(ratios(taken[True], taken[False]))
    print(f"ratio, round by round: {middle:.3f} (quartiles {low:.3f} to {high:.3f})")
    print(f"added to a step: median {median(added_us):.0f} us")


if __name__ == "__main__":
    main()
