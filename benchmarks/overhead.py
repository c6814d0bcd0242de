"""Cost of measuring: `train_vision.py` against the plainest script that trains the same thing.

    python -m benchmarks.overhead [--rounds 7] [--ranks 1 2]

Rounds are interleaved; the first epoch of each run is warm-up. Prints the ratio of step times (ours / plain, both with
glibc's malloc as it is), the gain of tuned malloc, and the time from the command to the first step against
`import torch, torchvision`.
"""

import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import interleaved, machine, parser, python, python_s, ratios, spread
from multicard.machine.environment import cores
from multicard.records import run_folder

SAMPLES, EPOCHS = 640, 3


def plain_step_s(ranks: int) -> float:
    """Mean step of the epochs after the first."""
    options = {"ranks": ranks, "epochs": EPOCHS, "samples": SAMPLES, "threads": max(1, cores() // ranks)}
    lines = python("-m", "benchmarks.plain", *(f"--{name}={value}" for name, value in options.items())).splitlines()
    epochs = [json.loads(line) for line in lines][1:]
    return statistics.mean(epoch["train_s"] / epoch["steps"] for epoch in epochs)


def record(ranks: int, malloc: str) -> dict[str, Any]:
    """The record of the same training, with the time from the command to the end of its first step."""
    with tempfile.TemporaryDirectory() as folder:
        python(
            "train_vision.py",
            f"gpus={ranks}",
            f"epochs={EPOCHS}",
            f"dataset.train_limit={SAMPLES}",
            "dataset.test_limit=32",
            "device=cpu",
            f"malloc={malloc}",
            f"hydra.run.dir={folder}",
        )
        (path,) = Path(folder).glob("*/result.json")
        result = json.loads(path.read_text())
        first_s = run_folder.read_steps(path.parent)["step_s"][0].as_py()
        return result | {"first_step_s": result["startup_s"] + first_s}


def our_step_s(ranks: int, malloc: str) -> float:
    steps = -(-SAMPLES // (32 * ranks))
    return statistics.mean(epoch["train_s"] / steps for epoch in record(ranks, malloc)["epochs"][1:])


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    args = options.parse_args()
    print(machine())
    for ranks in args.ranks:
        turns = {
            "plain": partial(plain_step_s, ranks),
            "system": partial(our_step_s, ranks, "system"),
            "tuned": partial(our_step_s, ranks, "tuned"),
        }
        step_s = interleaved(turns, args.rounds)
        print(f"{ranks} rank(s): step time, ours / plain:        {spread(ratios(step_s['system'], step_s['plain']))}")
        print(f"{ranks} rank(s): step time, malloc system/tuned: {spread(ratios(step_s['system'], step_s['tuned']))}")
    for ranks in (1, 4):
        imports_s = [python_s("-c", "import torch, torchvision") for _ in range(args.rounds)]
        starts_s = [record(ranks, "tuned")["first_step_s"] for _ in range(args.rounds)]
        print(f"{ranks} rank(s): command to first step / imports: {spread(ratios(starts_s, imports_s))}")
    for words in (["--help"], ["--cfg", "job"], ["strategy=dp", "device=cpu"]):
        seconds = [python_s("train_vision.py", *words) for _ in range(args.rounds)]
        print(f"train_vision.py {' '.join(words)}: {spread(seconds)} s")


if __name__ == "__main__":
    main()
