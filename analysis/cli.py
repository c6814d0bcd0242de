"""The command line of `python -m analysis`: its commands and their options."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from analysis.commands import best, compare, list_runs, table, table_formats
from analysis.figures import write_files
from analysis.papers import experiments

CLAIMS = (
    "What the two papers say, tested on the runs at hand: each claim holds, does not, is undecided or not measured."
)
Run = Callable[[argparse.Namespace], int]


def parser(about: str, runs: Mapping[str, Run]) -> "Parser":
    """The whole of it; the chosen command's function is `run` of what it parses.

    Args:
        about: what all the commands are for.
        runs: each command's name and function.
    """
    whole = Parser("python -m analysis", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    for name, run in runs.items():
        COMMANDS[name](commands).set_defaults(run=run)
    return whole


def _folders(told: argparse.ArgumentParser) -> None:
    told.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)


def _list(commands: Any) -> argparse.ArgumentParser:
    told = commands.add_parser("list", help="the runs found", description=list_runs.__doc__)
    _folders(told)
    told.add_argument("--where", metavar="SQL", help="runs for which this is true, over the columns of --csv")
    told.add_argument("--sort", metavar="COLUMNS", help='in this order: "gpus, total_s desc"')
    told.add_argument("--columns", metavar="A,B", help="show and write these")
    told.add_argument("--json", metavar="FILE", type=Path, help="write all columns there")
    told.add_argument("--csv", metavar="FILE", type=Path, help="write all columns there")
    return told


def _table(commands: Any) -> argparse.ArgumentParser:
    told = commands.add_parser("table", help="a table or figure of the papers", description=table.__doc__)
    told.add_argument("experiment", metavar="NAME", help=", ".join(experiments.names()))
    _folders(told)
    told.add_argument("--format", choices=table_formats.FORMATS, default="text")
    told.add_argument("--all", action="store_true", help="settings with few of the cells too")
    told.add_argument("--out", metavar="FILE", type=Path, help="write it there instead")
    told.add_argument("--mix", action="store_true", help="average runs of several commits or machines in a cell")
    return told


def _compare(commands: Any) -> argparse.ArgumentParser:
    told = commands.add_parser("compare", help="two sweeps cell by cell", description=compare.__doc__)
    told.add_argument("a", metavar="A", type=Path, help="the folder of a sweep")
    told.add_argument("b", metavar="B", type=Path, help="another's, of the same cells")
    told.add_argument("--by", metavar="KEY", help="keys in which A and B differ on purpose")
    told.add_argument("--common", action="store_true", help="leave out cells that one of them lacks")
    told.add_argument("--mix", action="store_true", help="average runs of several commits or machines in a cell")
    told.add_argument("--gate", metavar="5%", type=_share, help="exit with 1 where B is slower by more")
    return told


def _best(commands: Any) -> argparse.ArgumentParser:
    told = commands.add_parser("best", help="the settings, ranked", description=best.__doc__)
    _folders(told)
    told.add_argument("--goal", choices=best.GOALS, required=True)
    told.add_argument("--accuracy", metavar="0.99", type=_accuracy, help="at least; leaves tuning runs out")
    told.add_argument("--memory", metavar="80GB", type=_bytes, help="peak of a GPU at most: GB, GiB, MB ...")
    told.add_argument("--gpus", metavar="N", type=_count, help="on all nodes at most")
    told.add_argument("--mix", action="store_true", help="rank runs of several commits or machines together")
    return told


def _claims(commands: Any) -> argparse.ArgumentParser:
    told = commands.add_parser("claims", help="the papers' claims, tested", description=CLAIMS)
    _folders(told)
    told.add_argument("--only", metavar="NAME,...", help="these claims, at length")
    told.add_argument("--markdown", metavar="FILE", type=Path, help="write them there as a document")
    told.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    told.add_argument("--mix", action="store_true", help="let runs of several commits or machines stand in a cell")
    return told


def _figure(commands: Any) -> argparse.ArgumentParser:
    told = commands.add_parser("figure", help="the papers' figures, of your runs", description=write_files.__doc__)
    told.add_argument("name", metavar="NAME", help="of conf/experiment, all, losses, phases, efficiency or trade_off")
    _folders(told)
    told.add_argument(
        "--out", metavar="FOLDER", type=Path, default=write_files.OUT, help="write there (outputs/figures)"
    )
    told.add_argument("--format", metavar="svg,pdf,png", default="svg", help="the kinds of files (svg)")
    told.add_argument("--all", action="store_true", help="settings with few of the cells too")
    told.add_argument("--mix", action="store_true", help="let several commits or machines stand in one figure")
    return told


def _report(commands: Any) -> argparse.ArgumentParser:
    told = commands.add_parser("report", help="one HTML file about all of it")
    _folders(told)
    told.add_argument("--out", metavar="FILE", type=Path, help="report.html in the first folder where not given")
    told.add_argument("--title", metavar="TEXT", help="its heading")
    told.add_argument("--mix", action="store_true", help="average runs of several commits or machines")
    return told


COMMANDS = {
    "list": _list,
    "table": _table,
    "compare": _compare,
    "best": _best,
    "claims": _claims,
    "figure": _figure,
    "report": _report,
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as our commands do."""

    def error(self, message: str) -> NoReturn:
        print(f"refused: {message}", file=sys.stderr)
        sys.exit(1)


def _share(text: str) -> float:
    """0.05 of "5%".

    Raises:
        argparse.ArgumentTypeError: any other text.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no share; write 5%")
    return float(found[1]) / 100


def _accuracy(text: str) -> float:
    share = _share(text) if text.endswith("%") else _float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no accuracy; write 0.99 or 99%")
    return share


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number") from None


def _bytes(text: str) -> float:
    """Bytes of "80GB" (1000³) or "80GiB" (1024³).

    Raises:
        argparse.ArgumentTypeError: any other text.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B", text)
    if found is None or (found[3] and not found[2]):
        raise argparse.ArgumentTypeError(f"{text} is no size; write 80GB, 80GiB or 500MB")
    return float(found[1]) * (1024 if found[3] else 1000) ** " kMGT".index(found[2] or " ")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of GPUs")
    return int(text)
