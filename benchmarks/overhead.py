"""What measuring costs: `train_vision.py` against the plainest script that trains the same thing.

    python -m benchmarks.overhead [--rounds 7] [--ranks 1 2]

Each round runs both, one after the other, in an order that alternates; the first epoch of each is warm-up. Printed
are the ratio of step times (ours / plain, with glibc's malloc as it is for both), what tuned malloc gives on top, and
the time from the command to the first step against `import torch, torchvision`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from multicard.machine.environment import cores, cpu_model
from multicard.records import run_folder

ROOT = Path(__file__).parent.parent
SAMPLES, EPOCHS = 640, 3


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def plain_step_s(ranks: int, threads: int) -> float:
    """Mean step of the epochs after the first."""
    words = ["--ranks", str(ranks), "--epochs", str(EPOCHS), "--samples", str(SAMPLES), "--threads", str(threads)]
    epochs = [json.loads(line) for line in run("-m", "benchmarks.plain", *words).splitlines()][1:]
    return statistics.mean(epoch["train_s"] / epoch["steps"] for epoch in epochs)


def ours(ranks: int, malloc: str) -> dict[str, Any]:
    """The record of the same training, and when its first step ended."""
    with tempfile.TemporaryDirectory() as folder:
        run(
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


def our_step_s(result: dict[str, Any]) -> float:
    steps = -(-SAMPLES // (32 * result["axes"]["gpus"]))
    return statistics.mean(epoch["train_s"] / steps for epoch in result["epochs"][1:])


def elapsed_s(*words: str) -> float:
    """How long a command takes, whatever its exit code."""
    started = time.monotonic()
    subprocess.run([sys.executable, *words], capture_output=True, cwd=ROOT, check=False)
    return time.monotonic() - started


def spread(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"median {statistics.median(values):.3f}  (quartiles {low:.3f} to {high:.3f}, {len(values)} rounds)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    print(f"{cpu_model()}, {cores()} cores, load {os.getloadavg()[0]:.1f}")
    for ranks in args.ranks:
        threads = max(1, cores() // ranks)
        ratios, gains = [], []
        for number in range(args.rounds):
            measured: dict[str, float] = {}
            order = ["plain", "system", "tuned"]
            for which in order if number % 2 == 0 else reversed(order):
                measured[which] = plain_step_s(ranks, threads) if which == "plain" else our_step_s(ours(ranks, which))
            ratios.append(measured["system"] / measured["plain"])
            gains.append(measured["system"] / measured["tuned"])
        print(f"{ranks} rank(s): step time, ours / plain:        {spread(ratios)}")
        print(f"{ranks} rank(s): step time, malloc system/tuned: {spread(gains)}")
    for ranks in (1, 4):
        imports = [elapsed_s("-c", "import torch, torchvision") for _ in range(args.rounds)]
        ratios = [ours(ranks, "tuned")["first_step_s"] / seconds for seconds in imports]
        print(f"{ranks} rank(s): command to first step / imports: {spread(ratios)}")
    for words in (["--help"], ["--cfg", "job"], ["strategy=dp", "device=cpu"]):
        seconds = [elapsed_s("train_vision.py", *words) for _ in range(args.rounds)]
        print(f"train_vision.py {' '.join(words)}: {spread(seconds)} s")


if __name__ == "__main__":
    main()
