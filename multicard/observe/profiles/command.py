"""Prints the metrics of profiler files as one table, whichever profiler wrote them.

    multicard profile FILE... [--rank N] [--top N] [--json FILE] [--csv FILE]

FILE: Kineto's JSON (torch.profiler; plain or .gz), Nsight Systems' .sqlite export (.nsys-rep where the program nsys
is), or a folder of them; several files are the ranks of one run.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from multicard.messages import Parser
from multicard.observe.profiles import load, text
from multicard.observe.profiles.metrics import Profile
from multicard.records import text_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1, after one line with the reason, if a file cannot be read or written."""
    options = _parser().parse_args(arguments)
    try:
        profile = load.read(options.files)
        lines = text.profile_lines(profile, options.top, options.rank)
        if options.json is not None:
            options.json.write_text(json.dumps(profile.as_dict(options.top), indent=1) + "\n")
        if options.csv is not None:
            options.csv.write_text(to_csv(profile))
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def to_csv(profile: Profile) -> str:
    """Every row of each rank, then of their sum (`all`). Cells are empty where a figure does not exist: calls of times,
    and all figures of calls that the profiler omits."""
    body = [
        ["all" if row.rank is None else row.rank, row.metric, row.calls, row.total_s, row.bytes] for row in profile.rows
    ]
    body += [["all", name, None, None, None] for name in profile.not_recorded]
    return text_table.to_csv(["rank", "metric", "calls", "total_s", "bytes"], body)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("multicard profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    parser.add_argument("--rank", metavar="N", type=int, help="the metrics of this rank instead of the sum")
    parser.add_argument("--top", metavar="N", type=_positive, default=10, help="number of kernels (10)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table there")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every row there, kernels beyond --top too")
    return parser


def _positive(number: str) -> int:
    if int(number) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return int(number)
