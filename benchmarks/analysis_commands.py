"""Duration and memory of `python -m analysis list` and `report` for many runs, and the size of the report.

    python -m benchmarks.analysis_commands RECORD [--commands list report] [--runs 10000] [--rounds 3] [--keep FILE]

RECORD: a measured result.json; the synthetic runs are copies of it with other axes and figures, a thousandth of them
cut off. Each round is a new process; its peak is its resident set (VmHWM), imports included.
"""

import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, machine, parser
from multicard.measure.timing import clock_s

PRECISIONS, GPUS, SIZES = ("fp64", "fp32", "fp16", "bf16"), (1, 2, 3, 4), (100, 200, 300, 500, 700)
MEASURE = """
import sys
from analysis.__main__ import main
from multicard.measure.memory import peak_resident_bytes
code = main(sys.argv[1:])
print(f"peak {peak_resident_bytes()}", file=sys.stderr)
sys.exit(code)
"""


def write(folder: Path, record: Path, runs: int) -> None:
    """Write run folders under `folder`, as sweeps of 80 cells with a seed each."""
    template = json.loads(record.read_text())
    cells = list(itertools.product(PRECISIONS, GPUS, SIZES))
    for index in range(runs):
        (precision, gpus, size), seed = cells[index % len(cells)], index // len(cells)
        axes = {"precision": precision, "gpus": gpus, "seed": seed}
        config = template["config"] | {"gpus": gpus, "seed": seed, "precision": {"name": precision}}
        config["dataset"] = config["dataset"] | {"image_size": size}
        content = template | {"name": f"sweep{seed}", "axes": template["axes"] | axes | {"image_size": size}}
        text = json.dumps(content | {"config": config, "total_s": 1000.0 / gpus + seed}, indent=1)
        cell = folder / f"sweep{seed}" / f"gpus={gpus},image_size={size},precision={precision}-{index:08x}"
        cell.mkdir(parents=True)
        (cell / "result.json").write_text(text if index % 1000 != 999 else text[:1000])


def measure(words: list[str], rounds: int) -> str:
    """Median seconds and peak memory of an analysis command."""
    seconds, peaks = [], []
    for _ in range(rounds):
        started_s = clock_s()
        line = [sys.executable, "-c", MEASURE, *words]
        done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
        seconds.append(clock_s() - started_s)
        peaks.append(int(done.stderr.rpartition("peak ")[2]))
    each = ", ".join(f"{value:.2f}" for value in seconds)
    return f"{statistics.median(seconds):.2f} s ({each}), {max(peaks) / 1e6:.0f} MB"


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("record", metavar="RECORD", type=Path)
    options.add_argument("--commands", nargs="+", choices=["list", "report"], default=["list", "report"])
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--keep", metavar="FILE", type=Path, help="copy the report there")
    args = options.parse_args()
    print(f"{machine()}, {args.runs:,} runs")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), args.record, args.runs)
        if "list" in args.commands:
            for words in ([], ["--where", "precision='fp16' and gpus>=2", "--sort", "total_s desc"]):
                print(f"{' '.join(['list', *words])}: {measure(['list', folder, *words], args.rounds)}")
        if "report" in args.commands:
            out = Path(folder) / "report.html"
            figures = measure(["report", folder, "--out", str(out)], args.rounds)
            print(f"report: {figures}, a file of {out.stat().st_size / 1e6:.1f} MB")
            if args.keep is not None:
                shutil.copy(out, args.keep)


if __name__ == "__main__":
    main()
