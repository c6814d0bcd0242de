"""What measuring costs: `tune_llm.py` against torchtune's own `tune run` with the torchtune.yaml that it leaves.

    python -m benchmarks.torchtune_overhead [--rounds 7] [--steps 100] [method=qlora ...]

Each round runs both, one after the other, in an order that alternates, with glibc's malloc as it is. Printed are the
ratio of median step times after the warm-up (ours / bare), and the time from the command to the first step against
`import torchtune`. The bare recipe's step time follows from the tokens/s that it logs and the tokens that we count.
"""

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.overhead import run, spread
from multicard.machine.environment import cores, cpu_model
from multicard.records import run_folder

WARMUP = 10


def ours(folder: Path, steps: int, words: list[str]) -> Path:
    """Run ours; the folder of its record."""
    fixed = ["device=cpu", "malloc=system", "tracker.mode=disabled", f"max_steps={steps}", f"skip_steps={WARMUP}"]
    run("tune_llm.py", f"hydra.run.dir={folder}", "rerun=true", *fixed, *words)
    (found,) = folder.glob("*/result.json")
    return found.parent


def our_step_s(folder: Path) -> float:
    return float(np.median(run_folder.read_steps(folder)["step_s"].to_numpy()[WARMUP:]))


def bare_step_s(folder: Path) -> float:
    """The same by `tune run`: tokens that bear loss, as the recipe counts them, over its tokens/s."""
    recipe = json.loads((folder / "result.json").read_text())["axes"]["recipe"]
    run("-m", "torchtune._cli.tune", "run", recipe, "--config", str(folder / "torchtune.yaml"))
    (log,) = (folder / "tune_run" / "logs").glob("*.txt")
    rates = [float(found) for found in re.findall(r"tokens_per_second_per_gpu:([\d.]+)", log.read_text())]
    log.unlink()
    tokens = run_folder.read_steps(folder)["loss_bearing"].to_numpy()
    return float(np.median((tokens / np.array(rates))[WARMUP:]))


def import_s() -> float:
    started = time.monotonic()
    run("-c", "import torchtune")
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("words", nargs="*", help="options of tune_llm.py, at one rank and a supervised method")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(f"{cpu_model()}, {cores()} cores, load {os.getloadavg()[0]:.1f}")
    ratios, starts = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = ours(Path(temporary), args.steps, args.words)  # leaves the YAML that both read
        for number in range(args.rounds):
            if number % 2:
                bare = bare_step_s(folder)
                mine = our_step_s(ours(Path(temporary), args.steps, args.words))
            else:
                mine = our_step_s(ours(Path(temporary), args.steps, args.words))
                bare = bare_step_s(folder)
            ratios.append(mine / bare)
            print(f"round {number + 1}: {1e3 * mine:.2f} ms ours, {1e3 * bare:.2f} ms bare a step", flush=True)
            startup_s = json.loads((folder / "result.json").read_text())["startup_s"]
            starts.append(startup_s / import_s())
    print(f"step time, ours / bare:               {spread(ratios)}")
    print(f"command to first step / import:       {spread(starts)}")


if __name__ == "__main__":
    main()
