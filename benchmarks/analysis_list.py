"""How long `python -m analysis list` takes for many runs, and in how much memory.

    python -m benchmarks.analysis_list RECORD [--runs 10000] [--rounds 3]

RECORD: a result.json that was measured; the synthetic ones are its copies with other axes and figures, a thousandth of
them cut off. Each round is a fresh process; its peak is its resident set (VmHWM), imports and all.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from multicard.measure import timing

ROOT = Path(__file__).parent.parent
PRECISIONS, GPUS, SIZES = ("fp64", "fp32", "fp16", "bf16"), (1, 2, 3, 4), (100, 200, 300, 500, 700)
MEASURE = """
import resource, sys
from analysis.__main__ import main
code = main(sys.argv[1:])
print(f"peak {1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}", file=sys.stderr)
sys.exit(code)
"""


def write(folder: Path, record: Path, runs: int) -> None:
    """Write so many run folders under `folder`, by sweeps of 80 cells with a seed each."""
    template = json.loads(record.read_text())
    cells = list(itertools.product(PRECISIONS, GPUS, SIZES))
    for index in range(runs):
        (precision, gpus, size), seed = cells[index % len(cells)], index // len(cells)
        chosen = {"precision": precision, "gpus": gpus, "seed": seed}
        config = template["config"] | {"gpus": gpus, "seed": seed, "precision": {"name": precision}}
        config["dataset"] = config["dataset"] | {"image_size": size}
        content = template | {"name": f"sweep{seed}", "axes": template["axes"] | chosen | {"image_size": size}}
        text = json.dumps(content | {"config": config, "total_s": 1000.0 / gpus + seed}, indent=1)
        cell = folder / f"sweep{seed}" / f"gpus={gpus},image_size={size},precision={precision}-{index:08x}"
        cell.mkdir(parents=True)
        (cell / "result.json").write_text(text if index % 1000 != 999 else text[:1000])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", metavar="RECORD", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        write(Path(made), options.record, options.runs)
        for words in ([], ["--where", "precision='fp16' and gpus>=2", "--sort", "total_s desc"]):
            taken_s, peaks = [], []
            for _ in range(options.rounds):
                started_s = timing.clock_s()
                line = [sys.executable, "-c", MEASURE, "list", made, *words]
                ended = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
                taken_s.append(timing.clock_s() - started_s)
                peaks.append(int(ended.stderr.rpartition("peak ")[2]))
            shown = " ".join(["list", *words])
            rounds = ", ".join(f"{seconds:.2f}" for seconds in taken_s)
            median_s = statistics.median(taken_s)
            print(f"{shown}: {median_s:.2f} s ({rounds}), {max(peaks) / 1e6:.0f} MB for {options.runs:,} runs")


if __name__ == "__main__":
    main()
