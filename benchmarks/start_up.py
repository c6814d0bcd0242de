"""Time from the command to the end of the first training step, against `import torch, torchvision`.

    python -m benchmarks.start_up [--rounds 7] [--ranks 1 4]

Also the duration of commands that train nothing: help, the composed configuration, a refusal. Rounds are interleaved.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.common import interleaved, machine, parser, python, python_s, ratios, spread
from multicard.records import run_folder


def first_step_s(ranks: int) -> float:
    """Seconds from the command to the end of its first step."""
    with tempfile.TemporaryDirectory() as folder:
        limits = ["epochs=1", f"dataset.train_limit={32 * ranks}", "dataset.test_limit=32"]
        python("train_vision.py", f"gpus={ranks}", "device=cpu", *limits, f"hydra.run.dir={folder}")
        (path,) = Path(folder).glob("*/result.json")
        first_s = run_folder.read_steps(path.parent)["step_s"][0].as_py()
        return json.loads(path.read_text())["startup_s"] + first_s


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    args = options.parse_args()
    print(machine())
    turns = {ranks: partial(first_step_s, ranks) for ranks in args.ranks}
    seconds = interleaved(turns | {0: partial(python_s, "-c", "import torch, torchvision")}, args.rounds)
    for ranks in args.ranks:
        print(f"{ranks} rank(s): command to first step / imports: {spread(ratios(seconds[ranks], seconds[0]))}")
    for words in (["--help"], ["--cfg", "job"], ["strategy=dp", "device=cpu"]):
        command_s = [python_s("train_vision.py", *words) for _ in range(args.rounds)]
        print(f"train_vision.py {' '.join(words)}: {spread(command_s)} s")


if __name__ == "__main__":
    main()
