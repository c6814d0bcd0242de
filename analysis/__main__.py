"""What was measured, which setting is best, and what changed between two sweeps. It reads run folders alone.

    python -m analysis list [FOLDER...] [--where "precision='fp16' and gpus>=2"] [--sort "total_s desc"]
    python -m analysis compare A B [--by KEY] [--common] [--gate 5%]
    python -m analysis table table2 [--format text|markdown|csv|latex] [--out FILE] [FOLDER...]
    python -m analysis best --goal time [--accuracy 0.99] [--memory 80GB] [--gpus 4] [FOLDER...]
    python -m analysis claims [FOLDER...] [--only NAME,...] [--markdown FILE] [--json FILE]
    python -m analysis figure NAME|all [FOLDER...] [--format svg,pdf,png]
    python -m analysis report [FOLDER...] [--out report.html] [--title TEXT]

FOLDER is multirun where none is given. An error is one line, `refused: ...`, and exit code 1.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from analysis import best, compare, data, differences, draw, experiments, formats, listing, query, show, tables
from analysis.marks import legend

FOLDERS = (Path("multirun"),)
CLAIMS = (
    "What the two papers say, tested on the runs at hand: each claim holds, does not, is undecided or not measured."
)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 1, after one line that says why, where it cannot be done, or --gate is passed."""
    options = _parser().parse_args(words)
    try:
        return options.run(options)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"refused: {show.clean(str(error))}", file=sys.stderr)
        return 1


def _list(options: argparse.Namespace) -> int:
    found = data.read(options.folders or FOLDERS)
    runs = query.select(found.runs, options.where, options.sort)
    chosen = options.columns.split(",") if options.columns is not None else None
    lines = listing.lines(found, runs, chosen, show.width())
    if options.csv is not None:
        listing.write_csv(options.csv, runs, chosen)
    if options.json is not None:
        listing.write_json(options.json, found, runs, chosen)
    show.say(lines)
    return 0


def _compare(options: argparse.Namespace) -> int:
    a, b = (data.read([folder]) for folder in (options.a, options.b))
    by = options.by.split(",") if options.by is not None else []
    found = compare.compare(a.runs, b.runs, by, options.common, options.mix)
    ours, theirs = ([run for one in found for run in side(one)] for side in (lambda one: one.a, lambda one: one.b))
    warned = [f"warning: {line}" for line in differences.lines(ours, theirs)]
    told = [f"A: {show.clean(str(options.a))}", f"B: {show.clean(str(options.b))}", *compare.lines(found, show.width())]
    marks = legend(run["marks"] for run in (*ours, *theirs))
    show.say([*told, *warned, *marks, *listing.skipped([*a.skipped, *b.skipped])])
    if options.gate is None:
        return 0
    passed, line = compare.gated(found, options.gate)
    print(line)
    return 0 if passed else 1


def _best(options: argparse.Namespace) -> int:
    found = data.read(options.folders or FOLDERS)
    limits = best.Limits(options.accuracy, options.memory, options.gpus)
    told = best.lines(found.runs, options.goal, limits, options.mix, show.width())
    show.say([*told, *listing.skipped(found.skipped)])
    return 0


def _table(options: argparse.Namespace) -> int:
    experiment = experiments.load(options.experiment)
    found = data.read(options.folders or FOLDERS)
    panels = experiments.panels(experiment, found.runs, options.mix)
    if not panels:
        raise ValueError(f"{experiment.name} is not measured; this measures it: {experiment.command}")
    shown, rest = (panels, []) if options.all else experiments.fullest(panels)
    content = formats.FORMATS[options.format](tables.tables(experiment, shown))
    also = [f"--all shows {len(rest)} more settings, which have fewer of the cells"] if rest else []
    if options.out is None:
        show.say([content, *([*also, *listing.skipped(found.skipped)] if options.format == "text" else [])])
    else:
        formats.write(options.out, content)
    return 0


def _claims(options: argparse.Namespace) -> int:
    from analysis import claims
    from analysis.claims import show as told

    chosen = claims.chosen(options.only.split(",")) if options.only is not None else claims.CLAIMS
    found = data.read(options.folders or FOLDERS)
    verdicts = claims.judge(found.runs, options.mix, chosen)
    if options.markdown is not None:
        told.write_markdown(options.markdown, verdicts)
    if options.json is not None:
        told.write_verdicts(options.json, verdicts, found.skipped)
    lines = told.table if options.only is None else told.at_length
    show.say([*lines(verdicts, show.width()), *listing.skipped(found.skipped)])
    return 0


def _figure(options: argparse.Namespace) -> int:
    found = data.read(options.folders or FOLDERS)
    formats = dict.fromkeys(options.format.split(","))
    told = draw.draw(options.name, found.runs, options.out, list(formats), options.mix, options.all)
    show.say([*told, *listing.skipped(found.skipped)])
    return 0


def _report(options: argparse.Namespace) -> int:
    from analysis import report  # hydra, jinja2 and vl-convert, which nothing else needs

    print(show.clean(report.write(options.folders or FOLDERS, options.out, options.title, options.mix)))
    return 0


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser("python -m analysis", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    told = commands.add_parser("list", help="the runs found", description=listing.__doc__)
    told.set_defaults(run=_list)
    told.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    told.add_argument("--where", metavar="SQL", help="runs for which this is true, over the columns of --csv")
    told.add_argument("--sort", metavar="COLUMNS", help='in this order: "gpus, total_s desc"')
    told.add_argument("--columns", metavar="A,B", help="show and write these")
    told.add_argument("--json", metavar="FILE", type=Path, help="write all columns there")
    told.add_argument("--csv", metavar="FILE", type=Path, help="write all columns there")
    one = commands.add_parser("table", help="a table or figure of the papers", description=tables.__doc__)
    one.set_defaults(run=_table)
    one.add_argument("experiment", metavar="NAME", help=", ".join(experiments.names()))
    one.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    one.add_argument("--format", choices=formats.FORMATS, default="text")
    one.add_argument("--all", action="store_true", help="settings with few of the cells too")
    one.add_argument("--out", metavar="FILE", type=Path, help="write it there instead")
    one.add_argument("--mix", action="store_true", help="average runs of several commits or machines in a cell")
    pair = commands.add_parser("compare", help="two sweeps cell by cell", description=compare.__doc__)
    pair.set_defaults(run=_compare)
    pair.add_argument("a", metavar="A", type=Path, help="the folder of a sweep")
    pair.add_argument("b", metavar="B", type=Path, help="another's, of the same cells")
    pair.add_argument("--by", metavar="KEY", help="keys in which A and B differ on purpose")
    pair.add_argument("--common", action="store_true", help="leave out cells that one of them lacks")
    pair.add_argument("--mix", action="store_true", help="average runs of several commits or machines in a cell")
    pair.add_argument("--gate", metavar="5%", type=_share, help="exit with 1 where B is slower by more")
    goal = commands.add_parser("best", help="the settings, ranked", description=best.__doc__)
    goal.set_defaults(run=_best)
    goal.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    goal.add_argument("--goal", choices=best.GOALS, required=True)
    goal.add_argument("--accuracy", metavar="0.99", type=_accuracy, help="at least; leaves tuning runs out")
    goal.add_argument("--memory", metavar="80GB", type=_bytes, help="peak of a GPU at most: GB, GiB, MB ...")
    goal.add_argument("--gpus", metavar="N", type=_count, help="on all nodes at most")
    goal.add_argument("--mix", action="store_true", help="rank runs of several commits or machines together")
    claims = commands.add_parser("claims", help="the papers' claims, tested", description=CLAIMS)
    claims.set_defaults(run=_claims)
    claims.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    claims.add_argument("--only", metavar="NAME,...", help="these claims, at length")
    claims.add_argument("--markdown", metavar="FILE", type=Path, help="write them there as a document")
    claims.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    claims.add_argument("--mix", action="store_true", help="let runs of several commits or machines stand in a cell")
    drawn = commands.add_parser("figure", help="the papers' figures, of your runs", description=draw.__doc__)
    drawn.set_defaults(run=_figure)
    drawn.add_argument("name", metavar="NAME", help="of conf/experiment, all, losses, phases, efficiency or trade_off")
    drawn.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    drawn.add_argument("--out", metavar="FOLDER", type=Path, default=draw.OUT, help="write there (outputs/figures)")
    drawn.add_argument("--format", metavar="svg,pdf,png", default="svg", help="the kinds of files (svg)")
    drawn.add_argument("--all", action="store_true", help="settings with few of the cells too")
    drawn.add_argument("--mix", action="store_true", help="let several commits or machines stand in one figure")
    page = commands.add_parser("report", help="one HTML file about all of it")
    page.set_defaults(run=_report)
    page.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    page.add_argument("--out", metavar="FILE", type=Path, help="report.html in the first folder where not given")
    page.add_argument("--title", metavar="TEXT", help="its heading")
    page.add_argument("--mix", action="store_true", help="average runs of several commits or machines")
    return parser


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


if __name__ == "__main__":
    sys.exit(main())
