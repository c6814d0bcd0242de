"""How long `python -m analysis report` takes for many runs, in how much memory, and how large the file is.

    python -m benchmarks.analysis_report RECORD [--runs 10000] [--rounds 1] [--keep FILE]

RECORD and the synthetic runs are those of `benchmarks.analysis_list`.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.analysis_list import MEASURE, ROOT, write
from multicard.measure import timing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", metavar="RECORD", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", metavar="FILE", type=Path, help="the report of the last round, to look at")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        write(Path(made), options.record, options.runs)
        out = Path(made) / "report.html"
        taken_s, peaks = [], []
        for _ in range(options.rounds):
            started_s = timing.clock_s()
            line = [sys.executable, "-c", MEASURE, "report", made, "--out", str(out)]
            ended = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
            taken_s.append(timing.clock_s() - started_s)
            peaks.append(int(ended.stderr.rpartition("peak ")[2]))
        rounds = ", ".join(f"{seconds:.1f}" for seconds in taken_s)
        told = f"{statistics.median(taken_s):.1f} s ({rounds}), {max(peaks) / 1e6:.0f} MB"
        print(f"report: {told} for {options.runs:,} runs, a file of {out.stat().st_size / 1e6:.1f} MB")
        if options.keep is not None:
            shutil.copy(out, options.keep)


if __name__ == "__main__":
    main()
