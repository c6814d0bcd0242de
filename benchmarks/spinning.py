"""Measure how long OpenMP's threads should spin before they sleep, on a quiet and a busy machine.

    python -m benchmarks.spinning [--rounds 5] [--images 512]

The same training runs with `GOMP_SPINCOUNT` of 300,000 (libgomp's default), 10,000 (the setting of
ranks) and 0, which take turns. It runs alone, and beside two processes that compute all the time.
It runs on 1 rank with 2 threads, and on 2 ranks with 1 thread, which has no barriers. The output is
the images/s of training, and the ratio to libgomp's default, round by round.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from benchmarks import interleaved, machine, measured_run, parser, quartiles, ratios
from multicard.ranks.elastic import SPIN_COUNT

LIBGOMP_SPINS = 300_000
RANKS = {
    "1 rank, 2 threads": ("gpus=1", "cpus_per_gpu=2"),
    "2 ranks, 1 thread": ("gpus=2", "cpus_per_gpu=1"),
}


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run processes that compute all the time while this context lasts."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def images_per_s(words: tuple[str, ...], images: int, spins: int, loops: int) -> float:
    limits = ("epochs=2", f"dataset.train_limit={images}", "dataset.test_limit=32", "num_workers=0")
    with busy(loops), patch.dict("os.environ", GOMP_SPINCOUNT=str(spins)):
        record, _ = measured_run("train_vision.py", "device=cpu", *words, *limits)
    return record["epochs"][-1]["images_per_s"]


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--images", type=int, default=512)
    args = options.parse_args()
    print(machine())
    for ranks, words in RANKS.items():
        for loops, beside in ((0, "alone"), (2, "beside two busy loops")):
            turns = {
                spins: partial(images_per_s, words, args.images, spins, loops)
                for spins in (LIBGOMP_SPINS, SPIN_COUNT, 0)
            }
            speeds = interleaved(turns, args.rounds)
            for spins, figures in speeds.items():
                low, middle, high = quartiles(figures)
                speed = f"{middle:.1f} images/s (quartiles {low:.1f} to {high:.1f})"
                against = (
                    f"{quartiles(ratios(figures, speeds[LIBGOMP_SPINS]))[1]:.3f} times that of"
                    f" {LIBGOMP_SPINS}"
                )
                print(f"{ranks}, {beside}, {spins} spins: {speed}, {against}", flush=True)


if __name__ == "__main__":
    main()
