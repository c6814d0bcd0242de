"""Tables, rankings, comparisons, figures and a report of runs, from their folders alone.

    python -m analysis list [FOLDER...] [--where "precision='fp16' and gpus>=2"] [--sort "total_s desc"]
    python -m analysis compare A B [--by KEY] [--common] [--margin 5%] [--gate 5%]
    python -m analysis compare SWEEP --by KEY
    python -m analysis table table2 [--format text|markdown|csv|latex] [--out FILE] [FOLDER...]
    python -m analysis best --goal time [--accuracy 0.99] [--memory 80GB] [--gpus 4] [FOLDER...]
    python -m analysis claims [FOLDER...] [--only NAME,...] [--markdown FILE] [--json FILE]
    python -m analysis predictions [FOLDER...] [--json FILE] [--csv FILE]
    python -m analysis figure NAME|all [FOLDER...] [--format svg,pdf,png]
    python -m analysis report [FOLDER...] [--out report.html] [--title TEXT]
    python -m analysis dashboard [--project P] [--entity E] [--dry-run FILE]
    python -m analysis sync [FOLDER...] [--project NAME] [--entity NAME]

FOLDER is multirun by default. An error is one line, `refused: ...`, and exit code 1.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from multicard.ranks import interruption

if __name__ == "__main__":
    interruption.end_at_once()  # while the rest is imported

from analysis import cli, dashboard, experiments, figures
from analysis.commands import best, compare, list_runs, predictions, sync, table
from analysis.runs import load, sql
from analysis.runs.columns import legend
from multicard.config.base import TrackerConfig
from multicard.config.job import count
from multicard.measure.repeated_runs import MARGIN
from multicard.records import text_table
from multicard.records.figures import GOALS
from multicard.records.run_folder import write_text
from multicard.records.text_table import clean
from papers.printed import DATASETS

CLAIMS = "The claims of the two papers, tested on your runs: each holds, does not hold, is undecided or not measured."
FIGURES = "an experiment, all, losses, phases, efficiency, trade_off, timelines or predicted"


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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"refused: {clean(str(error))}", file=sys.stderr)
        return 1


def _say(lines: Iterable[str]) -> None:
    """Print all at once: 10,000 lines one by one take a second."""
    print("\n".join(lines))


def _list(options: argparse.Namespace) -> int:
    loaded = load.read(options.folders)
    runs = sql.select(loaded.runs, options.where, options.sort)
    lines = list_runs.lines(loaded, runs, options.columns, text_table.terminal_width())
    list_runs.write(loaded, runs, options.columns, options.csv, options.json)
    _say(lines)
    return 0


def _compare(options: argparse.Namespace) -> int:
    a = load.read([options.a])
    b = a if options.b is None else load.read([options.b])
    cells = compare.compare(a.runs, b.runs, options.by, options.common, options.mix, options.margin)
    within = [f"A, B: {clean(str(options.a))}, by {clean(', '.join(options.by))}"] if cells[0].sides[0] else []
    _say(
        [
            *(within or [f"A: {clean(str(options.a))}", f"B: {clean(str(options.b))}"]),
            *compare.lines(cells, text_table.terminal_width(), options.margin),
            *(f"warning: {line}" for line in compare.differing_circumstances(cells)),
            *legend(run["marks"] for cell in cells for run in (*cell.a, *cell.b)),
            *list_runs.skipped([*a.skipped, *(b.skipped if b is not a else [])]),
        ]
    )
    if options.gate is None:
        return 0
    passed, line = compare.gated(cells, options.gate)
    print(line)
    return 0 if passed else 1


def _best(options: argparse.Namespace) -> int:
    loaded = load.read(options.folders)
    limits = best.Limits(options.accuracy, options.memory, options.gpus)
    lines = best.lines(loaded.runs, options.goal, limits, options.mix, text_table.terminal_width())
    _say([*lines, *list_runs.skipped(loaded.skipped)])
    return 0


def _table(options: argparse.Namespace) -> int:
    rest = []
    if options.experiment == DATASETS:
        loaded = load.read(options.folders)
        tables = [table.of_datasets(loaded.runs)]
    else:
        experiment = experiments.load(options.experiment)
        loaded = load.read(options.folders)
        panels = experiments.panels(experiment, loaded.runs, options.mix)
        if not panels:
            raise ValueError(f"{experiment.name} is not measured; this measures it: {experiment.command}")
        chosen, rest = (panels, []) if options.all else experiments.fullest(panels)
        tables = table.tables(experiment, chosen)
    content = table.FORMATS[options.format](tables)
    if options.out is not None:
        write_text(options.out, content + "\n")
        return 0
    notes = [f"--all shows {count(len(rest), 'more setting')} with fewer of the cells"] if rest else []
    _say([content, *([*notes, *list_runs.skipped(loaded.skipped)] if options.format == "text" else [])])
    return 0


def _claims(options: argparse.Namespace) -> int:
    from analysis import claims
    from analysis.claims import render

    chosen = claims.named(options.only) if options.only is not None else claims.CLAIMS
    loaded = load.read(options.folders)
    verdicts = claims.judge(loaded.runs, options.mix, chosen)
    if options.markdown is not None:
        render.write_markdown(options.markdown, verdicts)
    if options.json is not None:
        render.write_verdicts(options.json, verdicts, loaded.skipped)
    lines = render.table if options.only is None else render.at_length
    _say([*lines(verdicts, text_table.terminal_width()), *list_runs.skipped(loaded.skipped)])
    return 0


def _predictions(options: argparse.Namespace) -> int:
    folders = options.folders
    loaded = load.read(folders)
    compared = predictions.compare(loaded.runs)
    predictions.require_some(compared, ", ".join(map(str, folders)))
    if options.csv is not None:
        predictions.write_csv(options.csv, compared)
    if options.json is not None:
        predictions.write_json(options.json, compared, loaded.skipped)
    _say([*predictions.lines(compared, text_table.terminal_width()), *list_runs.skipped(loaded.skipped)])
    return 0


def _figure(options: argparse.Namespace) -> int:
    from analysis.figures import draw  # altair, which takes a second

    loaded = load.read(options.folders)
    formats = list(dict.fromkeys(options.format))
    lines = draw.write(options.name, loaded.runs, options.out, formats, options.mix, options.all)
    _say([*lines, *list_runs.skipped(loaded.skipped)])
    return 0


def _report(options: argparse.Namespace) -> int:
    from analysis import report  # hydra, jinja2 and vl-convert, which nothing else needs

    folders = options.folders
    found = load.read(folders)
    lines = report.write_runs(found, folders, options.out, options.title, options.mix).splitlines()
    command = dashboard.command(found.runs)
    _say([f"The same runs as a dashboard in Weights & Biases: {clean(command)}", *map(clean, lines)])
    return 0


def _dashboard(options: argparse.Namespace) -> int:
    for line in dashboard.make(options.entity, options.project, options.dry_run):
        print(clean(line), flush=True)
    return 0


def _sync(options: argparse.Namespace) -> int:
    from analysis import report

    loaded = load.read(options.folders, probes=True)
    outcome = sync.sync(
        loaded.runs,
        (options.project, options.entity),
        lambda folder, out: report.write([folder], out, None, mix=True),
    )
    _say([*outcome.lines(), *list_runs.skipped(loaded.skipped)])
    return 1 if outcome.failed else 0


class Option(NamedTuple):
    """An argument of a command: its name, and the keywords of `add_argument`."""

    name: str
    keywords: dict[str, Any]


def option(name: str, metavar: str | None = None, about: str | None = None, **keywords: Any) -> Option:
    return Option(name, keywords | {"help": about} | ({"metavar": metavar} if metavar else {}))


class Command(NamedTuple):
    """A command; about: the text of its --help, by default none."""

    run: Callable[[argparse.Namespace], int]
    help: str
    about: str | None
    options: Sequence[Option]


FOLDERS = option("folders", "FOLDER", nargs="*", type=Path, default=[Path("multirun")])
MIX = option("--mix", about="average runs of several commits or machines in a cell", action="store_true")
ALL = option("--all", about="include settings with few of the cells", action="store_true")
COMMANDS = {
    "list": Command(
        _list,
        "your runs",
        list_runs.__doc__,
        [
            FOLDERS,
            option("--where", "SQL", "a condition on the columns that --csv writes"),
            option("--sort", "COLUMNS", 'for example "gpus, total_s desc"'),
            option("--columns", "A,B", "the columns to show and to write", type=cli.names),
            option("--json", "FILE", "write all columns, or those of --columns, to FILE", type=cli.file),
            option("--csv", "FILE", "the same as CSV", type=cli.file),
        ],
    ),
    "table": Command(
        _table,
        "a table or figure of the papers",
        table.__doc__,
        [
            option("experiment", "NAME", ", ".join([*experiments.names(), DATASETS])),
            FOLDERS,
            option("--format", choices=table.FORMATS, default="text"),
            ALL,
            option("--out", "FILE", "write to FILE instead", type=cli.file),
            MIX,
        ],
    ),
    "compare": Command(
        _compare,
        "two sweeps cell by cell",
        compare.__doc__,
        [
            option("a", "A", "the folder of a sweep", type=Path),
            option("b", "B", "the folder of another sweep of the same cells", type=Path, nargs="?"),
            option(
                "--by",
                "KEY",
                "keys, separated by commas, that differ on purpose; without B, A's",
                type=cli.names,
                default=[],
            ),
            option("--common", about="leave out cells that only one of them has", action="store_true"),
            MIX,
            option("--margin", "5%", "the difference up to which two are equal (5%%)", type=cli.share, default=MARGIN),
            option("--gate", "5%", "exit with code 1 if B is slower by more", type=cli.share),
        ],
    ),
    "best": Command(
        _best,
        "the settings, ranked",
        best.__doc__,
        [
            FOLDERS,
            option("--goal", choices=GOALS, required=True),
            option("--accuracy", "0.99", "the least; leaves out tuning runs", type=cli.accuracy),
            option("--memory", "80GB", "the most memory of a GPU: GB, GiB, MB ...", type=cli.size_bytes),
            option("--gpus", "N", "the most GPUs, on all nodes together", type=cli.count),
            MIX,
        ],
    ),
    "claims": Command(
        _claims,
        "the papers' claims, tested",
        CLAIMS,
        [
            FOLDERS,
            option("--only", "NAME,...", "show these claims in full", type=cli.names),
            option("--markdown", "FILE", "write the verdicts to FILE", type=cli.file),
            option("--json", "FILE", "write all figures to FILE", type=cli.file),
            MIX,
        ],
    ),
    "predictions": Command(
        _predictions,
        "how well runs were predicted",
        predictions.__doc__,
        [
            FOLDERS,
            option("--json", "FILE", "write the tables and all figures to FILE", type=cli.file),
            option("--csv", "FILE", "write a line for each predicted figure to FILE", type=cli.file),
        ],
    ),
    "figure": Command(
        _figure,
        "the papers' figures, of your runs",
        figures.__doc__,
        [
            option("name", "NAME", FIGURES),
            FOLDERS,
            option("--out", "FOLDER", "the folder to write to (outputs/figures)", type=Path, default=figures.OUT),
            option("--format", "svg,pdf,png", "the formats of the files (svg)", type=cli.names, default=["svg"]),
            ALL,
            MIX,
        ],
    ),
    "report": Command(
        _report,
        "an HTML page about all runs",
        None,
        [
            FOLDERS,
            option("--out", "FILE", "report.html in FOLDER, or in what several share", type=cli.file),
            option("--title", "TEXT", "the heading of the page"),
            MIX,
        ],
    ),
    "dashboard": Command(
        _dashboard,
        "a workspace and a report in Weights & Biases",
        dashboard.__doc__,
        [
            option(
                "--project",
                "P",
                "the runs' tracker.project",
                type=cli.wandb_name,
                default=TrackerConfig().project,
            ),
            option("--entity", "E", "a user or team; the account's own by default", type=cli.wandb_name),
            option("--dry-run", "FILE", "write its specification as JSON instead, without a login", type=cli.file),
        ],
    ),
    "sync": Command(
        _sync,
        "bring records to W&B",
        sync.__doc__,
        [
            FOLDERS,
            option("--project", "NAME", "the W&B project (each run's tracker.project)", type=cli.wandb_name),
            option("--entity", "NAME", "the W&B user or team (each run's tracker.entity)", type=cli.wandb_name),
        ],
    ),
}


def _parser() -> cli.Parser:
    """The parser, whose result has the function of the chosen command as `run`."""
    about, *_, notes = (__doc__ or "").split("\n\n")  # what lies between is each command's own help
    raw = argparse.RawDescriptionHelpFormatter
    parser = cli.Parser("python -m analysis", description=f"{about}\n\n{notes}", formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help, description=command.about)
        own.set_defaults(run=command.run)
        for argument, keywords in command.options:
            own.add_argument(argument, **keywords)
    return parser


if __name__ == "__main__":
    sys.exit(main())
