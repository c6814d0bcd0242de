"""Prints the metrics of profiler files as one table, whichever profiler wrote them.

    python -m multicard profile FILE... [--against FILE...] [--rank N] [--top N] [--json FILE] [--csv FILE]

FILE: Kineto's JSON (torch.profiler; plain, .gz, a .tar.gz of ranks), Nsight Systems' .sqlite export (.nsys-rep where
the program nsys is), or a folder of them; several files are the ranks of one run.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multicard.observe.profiles import load, text
from multicard.observe.profiles.metrics import Pair, Profile, compare
from multicard.records import text_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1, after one line with the reason, if a file cannot be read or written."""
    options = _parser().parse_args(arguments)
    try:
        profile = load.read(options.files)
        lines = text.profile_lines(profile, options.top, options.rank)
        content = profile.as_dict(options.top)
        pairs = None
        if options.against:
            other = load.read(options.against)
            pairs = compare(profile, other)
            lines += ["", *text.comparison_lines(pairs, profile, other, options.top)]
            content |= {"against": other.as_dict(options.top), "ratios": [pair.as_dict() for pair in pairs]}
        if options.json is not None:
            options.json.write_text(json.dumps(content, indent=1) + "\n")
        if options.csv is not None:
            options.csv.write_text(to_csv(profile, pairs))
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def to_csv(profile: Profile, pairs: Sequence[Pair] | None = None) -> str:
    """Every row of each rank, then of their sum (`all`) with its ratio to another profile, if there is one.

    Cells are empty where a figure does not exist: calls of times, and all figures of calls that the profiler omits.
    """
    sums = {(pair.group, pair.metric): pair for pair in pairs or ()}
    body: list[list[Any]] = []
    for row in profile.rows:
        cells = ["all" if row.rank is None else row.rank, row.metric, row.calls, row.total_s, row.bytes]
        if pairs is not None:
            pair = sums.get((row.group, row.metric)) if row.rank is None else None
            cells += [pair and pair.second and pair.second.total_s, pair and pair.ratio]
        body.append(cells)
    headings = ["rank", "metric", "calls", "total_s", "bytes"]
    headings += ["against_total_s", "ratio"] if pairs is not None else []
    body += [["all", name, *[None] * (len(headings) - 2)] for name in profile.not_recorded]
    return text_table.to_csv(headings, body)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m multicard profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    parser.add_argument("--against", metavar="FILE", nargs="+", type=Path, help="another run, to compare with")
    parser.add_argument("--rank", metavar="N", type=int, help="the metrics of this rank instead of the sum")
    parser.add_argument("--top", metavar="N", type=_positive, default=10, help="number of kernels (10)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table there")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every row there, kernels beyond --top too")
    return parser


def _positive(number: str) -> int:
    if int(number) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return int(number)


if __name__ == "__main__":
    sys.exit(main())
