"""Tables, rankings, comparisons, figures and a report of runs, from their folders alone.

FOLDER is multirun by default. An error is one line, `refused: ...`, and exit code 1.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from multicard.ranks import interruption

if __name__ == "__main__":
    interruption.end_at_once()  # while the rest is imported

from analysis import cli, dashboard, experiments, figures
from analysis.commands import best, compare, list_runs, predictions, sync, table
from analysis.runs import load, sql
from analysis.runs.load import Found
from multicard.config.base import TrackerConfig
from multicard.config.job import count
from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Parser, drop, typed
from multicard.records import text_table
from multicard.records.figures import GOALS
from multicard.records.run_folder import write_text
from multicard.records.text_table import clean
from papers.printed import DATASETS

CLAIMS = "The claims of the two papers, tested on your runs: each holds, does not hold, is undecided or not measured."
FIGURES = "an experiment, all, effects, losses, phases, efficiency, trade_off, timelines or predicted"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 1, after a line that says why, if it is refused or --gate is exceeded."""
    options = _parser().parse_args(words)
    try:
        with interruption.answered(lambda number: KeyboardInterrupt(signal.Signals(number).name)):
            return options.run(options)
    except KeyboardInterrupt as interrupted:
        print(f"interrupted by {interrupted}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has gone, as with `| head`
        drop(sys.stdout)
        return 0
    except (ValueError, OSError) as error:
        print(f"refused: {clean(str(error))}", file=sys.stderr)
        return 1


def _say(lines: Iterable[str]) -> None:
    """Print all at once: 10,000 lines one by one take a second."""
    print("\n".join(lines))


def _of_runs(lines: Callable[[Found, argparse.Namespace], Iterable[str]]) -> Callable[[argparse.Namespace], int]:
    """A command that prints lines about the runs of its folders, then the records that could not be used."""

    def run(options: argparse.Namespace) -> int:
        found = load.read(options.folders)
        _say([*lines(found, options), *list_runs.skipped(found.skipped)])
        return 0

    return run


def _list(found: Found, options: argparse.Namespace) -> list[str]:
    runs = sql.select(found.runs, options.where, options.sort)
    named = "status" in (options.where or "")
    lines = list_runs.lines(found, runs, options.columns, text_table.terminal_width(), refused=named)
    list_runs.write(found, runs, options.columns, options.csv, options.json)
    return lines


def _compare(options: argparse.Namespace) -> int:
    a = load.read([options.a])
    b = a if options.b is None else load.read([options.b])
    cells = compare.compare(a.runs, b.runs, options.by, options.common, options.mix, options.margin)
    within = [f"A, B: {clean(str(options.a))}, by {clean(', '.join(options.by))}"] if cells[0].sides[0] else []
    _say(
        [
            *(within or [f"A: {clean(str(options.a))}", f"B: {clean(str(options.b))}"]),
            *compare.table(cells, options.margin).lines(text_table.terminal_width()),
            *list_runs.skipped([*a.skipped, *(b.skipped if b is not a else [])]),
        ]
    )
    if options.gate is None:
        return 0
    passed, line = compare.gated(cells, options.gate)
    print(line)
    return 0 if passed else 1


def _best(found: Found, options: argparse.Namespace) -> list[str]:
    limits = best.Limits(options.accuracy, options.memory, options.gpus)
    return best.lines(found.runs, options.goal, limits, options.mix, text_table.terminal_width())


def _table(options: argparse.Namespace) -> int:
    found, rest = load.read(options.folders), []
    if options.experiment == DATASETS:
        tables = [table.of_datasets(found.runs)]
    else:
        experiment = experiments.load(options.experiment)
        panels = experiments.panels(experiment, found.runs, options.mix)
        if not panels:
            raise ValueError(f"{experiment.name} is not measured; this measures it: {experiment.command}")
        chosen, rest = (panels, []) if options.all else experiments.fullest(panels)
        tables = table.tables(experiment, chosen)
    content = table.FORMATS[options.format](tables)
    if options.out is not None:
        write_text(options.out, content + "\n")
        return 0
    notes = [f"--all shows {count(len(rest), 'more setting')} with fewer of the cells"] if rest else []
    _say([content, *([*notes, *list_runs.skipped(found.skipped)] if options.format == "text" else [])])
    return 0


def _claims(found: Found, options: argparse.Namespace) -> list[str]:
    from analysis import claims
    from analysis.claims import render

    chosen = claims.named(options.only) if options.only is not None else claims.CLAIMS
    verdicts = claims.judge(found.runs, options.mix, chosen)
    if options.json is not None:
        render.write_verdicts(options.json, verdicts, found.skipped)
    return (render.table if options.only is None else render.at_length)(verdicts, text_table.terminal_width())


def _predictions(found: Found, options: argparse.Namespace) -> list[str]:
    compared = predictions.compare(found.runs)
    predictions.require_some(compared, ", ".join(map(str, options.folders)))
    if options.csv is not None:
        predictions.write_csv(options.csv, compared)
    if options.json is not None:
        predictions.write_json(options.json, compared, found.skipped)
    return predictions.lines(compared, text_table.terminal_width())


def _figure(found: Found, options: argparse.Namespace) -> list[str]:
    from analysis.figures import draw  # altair, which takes a second

    formats = list(dict.fromkeys(options.format))
    return draw.write(options.name, found.runs, options.out, formats, options.mix, options.all)


def _report(options: argparse.Namespace) -> int:
    from analysis import report  # hydra, jinja2 and vl-convert, which nothing else needs

    if options.watch or options.port is not None:
        if options.out is not None:
            raise ValueError("--out: --watch serves the page and writes no file; leave one of them out")
        from analysis.report import watch

        watch.serve(report.watched(options.folders, options.title, options.mix), options.port or 0)
        return 0
    found = load.read(options.folders)
    lines = report.write_runs(found, options.folders, options.out, options.title, options.mix).splitlines()
    command = dashboard.command(found.runs)
    _say([f"The same runs as a dashboard in Weights & Biases: {clean(command)}", *map(clean, lines)])
    return 0


def _dashboard(options: argparse.Namespace) -> int:
    for line in dashboard.make(options.entity, options.project, options.dry_run):
        print(clean(line), flush=True)
    return 0


def _sync(options: argparse.Namespace) -> int:
    from analysis import report

    found = load.read(options.folders, probes=True)
    outcome = sync.sync(
        found.runs,
        (options.project, options.entity),
        lambda folder, out: report.write([folder], out, None, mix=True),
    )
    _say([*outcome.lines(), *list_runs.skipped(found.skipped)])
    return 1 if outcome.failed else 0


FOLDERS: dict[str, Any] = {"metavar": "FOLDER", "nargs": "*", "type": Path, "default": [Path("multirun")]}
MIX = {"help": "average runs of several commits or machines in a cell", "action": "store_true"}
ALL = {"help": "include settings with few of the cells", "action": "store_true"}


def _parser() -> Parser:
    """The parser, whose result has the function of the chosen command as `run`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(typed("-m analysis"), description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], summary: str, description: str | None) -> Callable[..., Any]:
        own = commands.add_parser(name, help=summary, description=description)
        own.set_defaults(run=run)
        return own.add_argument

    _add_commands_on_settings(command)
    _add_commands_on_all_runs(command)
    return parser


def _add_commands_on_settings(command: Callable[..., Callable[..., Any]]) -> None:
    add = command("list", _of_runs(_list), "your runs", list_runs.__doc__)
    add("folders", **FOLDERS)
    add("--where", metavar="SQL", help="a condition on the columns that --csv writes")
    add("--sort", metavar="COLUMNS", help='for example "gpus, total_s desc"')
    add("--columns", metavar="A,B", help="the columns to show and to write", type=cli.names)
    add("--json", metavar="FILE", help="write all columns, or those of --columns, to FILE", type=cli.file)
    add("--csv", metavar="FILE", help="the same as CSV", type=cli.file)

    add = command("table", _table, "a table or figure of the papers", table.__doc__)
    add("experiment", metavar="NAME", help=", ".join([*experiments.names(), DATASETS]))
    add("folders", **FOLDERS)
    add("--format", choices=table.FORMATS, default="text")
    add("--out", metavar="FILE", help="write to FILE instead", type=cli.file)
    add("--all", **ALL)
    add("--mix", **MIX)

    add = command("compare", _compare, "two sweeps cell by cell", compare.__doc__)
    add("a", metavar="A", help="the folder of a sweep", type=Path)
    add("b", metavar="B", help="the folder of another sweep of the same cells", type=Path, nargs="?")
    keys = "keys, separated by commas, that differ on purpose; without B, A's"
    add("--by", metavar="KEY", help=keys, type=cli.names, default=[])
    margin = "the difference up to which two are equal (5%%)"
    add("--margin", metavar="5%", help=margin, type=cli.share, default=MARGIN)
    add("--gate", metavar="5%", help="exit with code 1 if B is slower by more", type=cli.share_or_none)
    add("--common", help="leave out cells that only one of them has", action="store_true")
    add("--mix", **MIX)

    add = command("best", _of_runs(_best), "the settings, ranked", best.__doc__)
    add("folders", **FOLDERS)
    add("--goal", choices=GOALS, required=True)
    add("--accuracy", metavar="0.99", help="the least; leaves out tuning runs", type=cli.share)
    add("--memory", metavar="80GB", help="the most memory of a GPU, in GB or GiB", type=cli.size_bytes)
    add("--gpus", metavar="N", help="the most GPUs, on all nodes together", type=cli.count)
    add("--mix", **MIX)


def _add_commands_on_all_runs(command: Callable[..., Callable[..., Any]]) -> None:
    add = command("claims", _of_runs(_claims), "the papers' claims, tested", CLAIMS)
    add("folders", **FOLDERS)
    add("--only", metavar="NAME,...", help="show these claims in full", type=cli.names)
    add("--json", metavar="FILE", help="write all figures to FILE", type=cli.file)
    add("--mix", **MIX)

    add = command("predictions", _of_runs(_predictions), "how well runs were predicted", predictions.__doc__)
    add("folders", **FOLDERS)
    add("--json", metavar="FILE", help="write the tables and all figures to FILE", type=cli.file)
    add("--csv", metavar="FILE", help="write a line for each predicted figure to FILE", type=cli.file)

    add = command("figure", _of_runs(_figure), "the papers' figures, of your runs", figures.__doc__)
    add("name", metavar="NAME", help=FIGURES)
    add("folders", **FOLDERS)
    add("--out", metavar="FOLDER", help="the folder to write to (outputs/figures)", type=Path, default=figures.OUT)
    add("--format", metavar="svg,pdf,png", help="the formats of the files (svg)", type=cli.names, default=["svg"])
    add("--all", **ALL)
    add("--mix", **MIX)

    add = command("report", _report, "an HTML page about all runs", None)
    add("folders", **FOLDERS)
    add("--out", metavar="FILE", help="report.html in FOLDER, or here for several", type=cli.file)
    add("--title", metavar="TEXT", help="the heading of the page")
    add("--watch", help="serve the page here alone, up to date, with the cells that run now", action="store_true")
    add("--port", metavar="N", help="the same at this port (a free one)", type=int)
    add("--mix", **MIX)

    add = command("dashboard", _dashboard, "a workspace and a report in Weights & Biases", dashboard.__doc__)
    project = TrackerConfig().project
    add("--project", metavar="P", help="the runs' tracker.project", type=cli.wandb_name, default=project)
    add("--entity", metavar="E", help="a user or team; the account's own by default", type=cli.wandb_name)
    add("--dry-run", metavar="FILE", help="write its specification as JSON instead, without a login", type=cli.file)

    add = command("sync", _sync, "bring records to W&B", sync.__doc__)
    add("folders", **FOLDERS)
    add("--project", metavar="NAME", help="the W&B project (each run's tracker.project)", type=cli.wandb_name)
    add("--entity", metavar="NAME", help="the W&B user or team (each run's tracker.entity)", type=cli.wandb_name)


if __name__ == "__main__":
    sys.exit(main())
