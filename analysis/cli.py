"""The command line of `python -m analysis`: commands and options."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from analysis import dashboard, experiments, figures
from analysis.commands import best, compare, list_runs, predictions, sync, table, table_formats
from multicard.config.base import WANDB_NAMES, TrackerConfig, is_wandb_name
from multicard.measure.repeated_runs import MARGIN
from multicard.records.figures import GOALS
from papers.printed import DATASETS

CLAIMS = "The claims of the two papers, tested on your runs: each holds, does not hold, is undecided or not measured."
MIX = "average runs of several commits or machines in a cell"
Run = Callable[[argparse.Namespace], int]


def parser(about: str, runs: Mapping[str, Run]) -> "Parser":
    """The parser, whose result has the function of the chosen command as `run`.

    Args:
        about: the description of all commands.
        runs: the function of each command.
    """
    parser = Parser("python -m analysis", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run in runs.items():
        COMMANDS[name](commands).set_defaults(run=run)
    return parser


def _folders(command: argparse.ArgumentParser) -> None:
    command.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)


def _list(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("list", help="your runs", description=list_runs.__doc__)
    _folders(command)
    command.add_argument("--where", metavar="SQL", help="a condition on the columns that --csv writes")
    command.add_argument("--sort", metavar="COLUMNS", help='for example "gpus, total_s desc"')
    command.add_argument("--columns", metavar="A,B", type=_names, help="the columns to show and to write")
    command.add_argument("--json", metavar="FILE", type=_file, help="write all columns, or those of --columns, to FILE")
    command.add_argument("--csv", metavar="FILE", type=_file, help="the same as CSV")
    return command


def _table(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("table", help="a table or figure of the papers", description=table.__doc__)
    command.add_argument("experiment", metavar="NAME", help=", ".join([*experiments.names(), DATASETS]))
    _folders(command)
    command.add_argument("--format", choices=table_formats.FORMATS, default="text")
    command.add_argument("--all", action="store_true", help="include settings with few of the cells")
    command.add_argument("--out", metavar="FILE", type=_file, help="write to FILE instead")
    command.add_argument("--mix", action="store_true", help=MIX)
    return command


def _compare(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("compare", help="two sweeps cell by cell", description=compare.__doc__)
    command.add_argument("a", metavar="A", type=Path, help="the folder of a sweep")
    command.add_argument("b", metavar="B", type=Path, nargs="?", help="the folder of another sweep of the same cells")
    command.add_argument(
        "--by",
        metavar="KEY",
        type=_names,
        default=[],
        help="keys, separated by commas, that differ on purpose; without B, A's",
    )
    command.add_argument("--common", action="store_true", help="leave out cells that only one of them has")
    command.add_argument("--mix", action="store_true", help=MIX)
    command.add_argument(
        "--margin",
        metavar="5%",
        type=_share,
        default=MARGIN,
        help="the difference up to which two are equal (5%%)",
    )
    command.add_argument("--gate", metavar="5%", type=_share, help="exit with code 1 if B is slower by more")
    return command


def _best(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("best", help="the settings, ranked", description=best.__doc__)
    _folders(command)
    command.add_argument("--goal", choices=GOALS, required=True)
    command.add_argument("--accuracy", metavar="0.99", type=_accuracy, help="the least; leaves out tuning runs")
    command.add_argument("--memory", metavar="80GB", type=_bytes, help="the most memory of a GPU: GB, GiB, MB ...")
    command.add_argument("--gpus", metavar="N", type=_count, help="the most GPUs, on all nodes together")
    command.add_argument("--mix", action="store_true", help="rank runs of several commits or machines together")
    return command


def _claims(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("claims", help="the papers' claims, tested", description=CLAIMS)
    _folders(command)
    command.add_argument("--only", metavar="NAME,...", type=_names, help="show these claims in full")
    command.add_argument("--markdown", metavar="FILE", type=_file, help="write the verdicts to FILE")
    command.add_argument("--json", metavar="FILE", type=_file, help="write all figures to FILE")
    command.add_argument("--mix", action="store_true", help=MIX)
    return command


def _predictions(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("predictions", help="how well runs were predicted", description=predictions.__doc__)
    _folders(command)
    command.add_argument("--json", metavar="FILE", type=_file, help="write the tables and all figures to FILE")
    command.add_argument("--csv", metavar="FILE", type=_file, help="write a line for each predicted figure to FILE")
    return command


def _figure(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("figure", help="the papers' figures, of your runs", description=figures.__doc__)
    command.add_argument(
        "name", metavar="NAME", help="an experiment, all, losses, phases, efficiency, trade_off, timelines or predicted"
    )
    _folders(command)
    command.add_argument(
        "--out", metavar="FOLDER", type=Path, default=figures.OUT, help="the folder to write to (outputs/figures)"
    )
    command.add_argument(
        "--format", metavar="svg,pdf,png", type=_names, default="svg", help="the formats of the files (svg)"
    )
    command.add_argument("--all", action="store_true", help="include settings with few of the cells")
    command.add_argument("--mix", action="store_true", help=MIX)
    return command


def _report(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("report", help="an HTML page about all runs")
    _folders(command)
    command.add_argument("--out", metavar="FILE", type=_file, help="report.html in FOLDER, or in what several share")
    command.add_argument("--title", metavar="TEXT", help="the heading of the page")
    command.add_argument("--mix", action="store_true", help=MIX)
    return command


def _dashboard(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        "dashboard", help="a workspace and a report in Weights & Biases", description=dashboard.__doc__
    )
    command.add_argument(
        "--project", metavar="P", type=_project, default=TrackerConfig().project, help="of the runs, as tracker.project"
    )
    command.add_argument("--entity", metavar="E", type=_entity, help="a user or team; the account's own by default")
    command.add_argument(
        "--dry-run", metavar="FILE", type=_file, help="write its specification as JSON instead, without a login"
    )
    return command


def _sync(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("sync", help="bring records to W&B", description=sync.__doc__)
    _folders(command)
    command.add_argument(
        "--project", metavar="NAME", type=_project, help="the W&B project (each run's tracker.project)"
    )
    command.add_argument(
        "--entity", metavar="NAME", type=_entity, help="the W&B user or team (each run's tracker.entity)"
    )
    return command


COMMANDS = {
    "list": _list,
    "table": _table,
    "compare": _compare,
    "best": _best,
    "claims": _claims,
    "predictions": _predictions,
    "figure": _figure,
    "report": _report,
    "dashboard": _dashboard,
    "sync": _sync,
}


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"refused: {message}", file=sys.stderr)
        sys.exit(1)


def _names(text: str) -> list[str]:
    """Names separated by commas."""
    names = text.split(",")
    if not all(map(str.strip, names)):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; write names with commas between them")
    return names


def _file(text: str) -> Path:
    """A file to write, in a folder that is there."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}; make it, or name another file")
    return path


def _project(text: str) -> str:
    if not is_wandb_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no project: {WANDB_NAMES}")
    return text


def _entity(text: str) -> str:
    if not is_wandb_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no user or team: {WANDB_NAMES}")
    return text


def _share(text: str) -> float:
    """A share such as 5%."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no share; write 5%")
    return float(match[1]) / 100


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
    """The bytes of a size such as 80GB (1000³) or 80GiB (1024³)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B", text)
    if match is None or (match[3] and not match[2]):
        raise argparse.ArgumentTypeError(f"{text} is no size; write 80GB, 80GiB or 500MB")
    return float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " ")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of GPUs")
    return int(text)
