"""What profiler files say, in one table, whichever profiler wrote them.

    python -m multicard.profiling FILE... [--against FILE...] [--rank N] [--top N] [--json FILE] [--csv FILE]

FILE: Kineto's JSON (torch.profiler; plain, .gz, a .tar.gz of ranks), Nsight Systems' .sqlite export (.nsys-rep where
the program nsys is), or a folder of them; several files are the ranks of one run. Files are read as a stream.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from multicard.profiling import diff, load, terminal
from multicard.profiling.diff import Pair
from multicard.profiling.profile_data import Profile
from multicard.records.table import WIDTH


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1, after one line that says why, where a file cannot be read or written."""
    options = _parser().parse_args(words)
    try:
        profile = load.read(options.files)
        other = load.read(options.against) if options.against else None
        found = diff.pairs(profile, other) if other is not None else None
        if options.json is not None:
            content = profile.as_dict(options.top)
            if other is not None and found is not None:
                content |= {"against": other.as_dict(options.top), "ratios": diff.as_dict(found)}
            options.json.write_text(json.dumps(content, indent=1) + "\n")
        if options.csv is not None:
            write_csv(options.csv, profile, found)
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        terminal.table(profile, console, options.top, options.rank)
        if other is not None and found is not None:
            terminal.compared(found, profile, other, console, options.top)
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


def write_csv(path: Path, profile: Profile, found: Sequence[Pair] | None = None) -> None:
    """Write every row: of each rank, then of their sum (`all`), with its ratio to another profile where there is one.

    Cells are empty where there is no such figure: calls of what is no count, all of what is not recorded by design.
    """
    ratios = {(pair.group, pair.metric): pair for pair in found or ()}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        headings = ["rank", "metric", "calls", "total_s", "bytes"]
        writer.writerow([*headings, *(["against_total_s", "ratio"] if found is not None else [])])
        for row in profile.rows:
            cells: list[Any] = ["all" if row.rank is None else row.rank, row.metric, row.calls, row.total_s, row.bytes]
            pair = ratios.get((row.group, row.metric)) if row.rank is None else None
            if found is not None:
                cells += [pair and pair.second and pair.second.total_s, pair and pair.ratio]
            writer.writerow(cells)
        for name in profile.not_recorded:
            writer.writerow(["all", name, "", "", "", *(["", ""] if found is not None else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m multicard.profiling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    parser.add_argument("--against", metavar="FILE", nargs="+", type=Path, help="another run, to compare with")
    parser.add_argument("--rank", metavar="N", type=int, help="the metrics of this rank instead of the sum")
    parser.add_argument("--top", metavar="N", type=_positive, default=10, help="kernels to show (10)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table there")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every row there, kernels beyond --top too")
    return parser


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
