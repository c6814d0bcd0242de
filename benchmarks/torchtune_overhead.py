"""Cost of measuring: `tune_llm.py` against torchtune's own `tune run` with the torchtune.yaml that it leaves.

    python -m benchmarks.torchtune_overhead [--rounds 7] [--steps 100] [method=qlora ...]

Rounds are interleaved, with glibc's malloc as it is. Prints the ratio of median step times after the warm-up (ours /
bare), and the time from the command to the first step against `import torchtune`. The bare recipe's step time follows
from the tokens/s that it logs and the tokens that we count.
"""

import json
import os
import re
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import interleaved, machine, parser, python, python_s, ratios, spread
from multicard.records import run_folder

WARMUP = 10


def run_ours(folder: Path, steps: int, words: list[str]) -> Path:
    """Run `tune_llm.py`; the folder of its record."""
    fixed = ["device=cpu", "malloc=system", "tracker.mode=disabled", f"max_steps={steps}", f"skip_steps={WARMUP}"]
    python("tune_llm.py", f"hydra.run.dir={folder}", "rerun=true", *fixed, *words)
    (record,) = folder.glob("*/result.json")
    return record.parent


def our_step_s(folder: Path) -> float:
    return float(np.median(run_folder.read_steps(folder)["step_s"].to_numpy()[WARMUP:]))


def bare_step_s(folder: Path) -> float:
    """The same by `tune run`: tokens that bear loss, as the recipe counts them, over its tokens/s."""
    recipe = json.loads((folder / "result.json").read_text())["axes"]["recipe"]
    python("-m", "torchtune._cli.tune", "run", recipe, "--config", str(folder / "torchtune.yaml"))
    (log,) = (folder / "tune_run" / "logs").glob("*.txt")
    rates = [float(rate) for rate in re.findall(r"tokens_per_second_per_gpu:([\d.]+)", log.read_text())]
    log.unlink()
    tokens = run_folder.read_steps(folder)["loss_bearing"].to_numpy()
    return float(np.median((tokens / np.array(rates))[WARMUP:]))


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("words", nargs="*", help="options of tune_llm.py, at one rank and a supervised method")
    args = options.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(machine())
    starts = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = run_ours(Path(temporary), args.steps, args.words)  # leaves the YAML that both read

        def ours() -> float:
            step_s = our_step_s(run_ours(Path(temporary), args.steps, args.words))
            startup_s = json.loads((folder / "result.json").read_text())["startup_s"]
            starts.append(startup_s / python_s("-c", "import torchtune"))
            return step_s

        step_s = interleaved({"ours": ours, "bare": lambda: bare_step_s(folder)}, args.rounds)
    print(f"step time, ours / bare:               {spread(ratios(step_s['ours'], step_s['bare']))}")
    print(f"command to first step / import:       {spread(starts)}")


if __name__ == "__main__":
    main()
