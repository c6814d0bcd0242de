"""Tables, rankings, comparisons, figures and a report of runs, from their folders alone.

FOLDER is multirun by default. An error is one line, `refused: ...`, and exit code 1.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

from multicard.ranks import interruption, program

if __name__ == "__main__":
    program.begin()  # while the rest is imported

from multicard.__main__ import COMMANDS
from multicard.cli.unknown_commands import unknown_command
from multicard.config.base import TrackerConfig
from multicard.config.job import count
from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Message, Parser, Refusal, drop, say, typed, usage
from multicard.papers.printed import DATASETS
from multicard.records.figures import GOALS
from multicard.records.output import FORMATS, Output, Skipped, add_formats, file, skipped_lines
from multicard.records.text_table import clean

from . import cli, experiments, figures
from .commands import (
    best,
    compare,
    compared_cells,
    gate,
    list_runs,
    predictions,
    share,
    sync,
    table,
)
from .runs import by_int4, load, sql
from .runs.load import FoundRuns

CLAIMS = (
    "The claims of the two papers, tested on your runs: the printed figures, yours, and a verdict"
    " on each."
)
DASHBOARD = (
    "The runs of a project in W&B as a saved workspace; another call replaces it, with changes by"
    " hand."
)
FIGURES = "an experiment, all, effects, losses, phases, efficiency, trade_off or timelines"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 1, after a line that says why, if it is refused or --gate is
    exceeded, and 2 if the runs cannot tell whether it is.
    """
    parser, commands = _parser()
    name, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if name not in commands and not name.startswith("-"):
        say(unknown_command(name, rest, COMMANDS, "-m analysis"), error=True)
        return 1
    options = (
        commands[name].parse_intermixed_args(rest)
        if name in commands
        else parser.parse_args([name, *rest])
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name of a folder need not be text
    try:
        with interruption.answered(lambda number: KeyboardInterrupt(signal.Signals(number).name)):
            return options.run(options)
    except KeyboardInterrupt as interrupted:
        print(
            Message(
                "analysis.interrupted", f"interrupted by {interrupted}", signal=str(interrupted)
            ),
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:  # the reader has gone, as with `| head`
        drop(sys.stdout)
        return 0
    except (ValueError, OSError) as error:
        reason = _reason(error)
        print(
            clean(Message("analysis.refused", f"refused: {reason}", reason=reason)), file=sys.stderr
        )
        return 1


def _reason(error: ValueError | OSError) -> str:
    """What an error says: a message of ours as it is,
    the system's with the file that it is about.
    """
    if isinstance(error, OSError) and error.strerror:
        return clean(": ".join(str(part) for part in (error.filename, error.strerror) if part))
    return str(error) if isinstance(error, Refusal) else clean(str(error))


def _of_runs(
    found_in: Callable[[FoundRuns, argparse.Namespace], Output],
) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        found = load.read(options.folders, price=getattr(options, "price", None))
        return _emit(found_in(found, options), options, found.skipped)

    return run


def _emit(output: Output, options: argparse.Namespace, skipped: Sequence[Skipped]) -> int:
    output.emit(options, skipped)
    return output.code


def _list(found: FoundRuns, options: argparse.Namespace) -> Output:
    runs = sql.select(found.runs, options.where, options.sort)
    return list_runs.output(found, runs, options.columns, refused="status" in (options.where or ""))


def _compare(options: argparse.Namespace) -> int:
    a = load.read([options.a])
    b = a if options.b is None else load.read([options.b])
    cells = compared_cells.compare(
        a.runs, b.runs, options.by, options.common, options.mix, options.margin
    )
    sides = [f"A: {clean(str(options.a))}", f"B: {clean(str(options.b))}"]
    within = (
        [f"A, B: {clean(str(options.a))}, by {clean(', '.join(options.by))}"]
        if cells[0].sides[0]
        else sides
    )
    output = compare.output(cells, options.margin, within)
    if options.gate is not None:
        passed, line = gate.gated(cells, options.gate)
        output = replace(output, notes=[line], code=int(passed))
    return _emit(output, options, [*a.skipped, *(b.skipped if b is not a else [])])


def _best(options: argparse.Namespace) -> int:
    if not options.train:
        return _of_runs(_ranked)(options)
    from . import train_best  # hydra

    others = [flag for flag in ("goal", *FORMATS) if getattr(options, flag, None)]
    if others:
        said = f"--train: trains what is recommended by time and accuracy; leave --{others[0]} out"
        raise Refusal("train.other-flags", said, key=f"--{others[0]}")
    limits = best.Limits(options.accuracy, options.memory, options.gpus, options.loss)
    runs = load.read(options.folders, price=options.price).runs
    if options.by is not None:
        runs, notes = by_int4.judge_by_int4(runs)
        print("\n".join(map(clean, notes)))
    return train_best.train(runs, limits, options.mix)


def _ranked(found: FoundRuns, options: argparse.Namespace) -> Output:
    from .answers import sentences

    limits = best.Limits(options.accuracy, options.memory, options.gpus, options.loss)
    return best.output(found.runs, options.goal, limits, options.mix, sentences, options.by)


def _table(found: FoundRuns, options: argparse.Namespace) -> Output:
    if options.experiment == DATASETS:
        return table.output([table.of_datasets(found.runs)])
    experiment = experiments.load(options.experiment)
    panels = experiments.panels(experiment, found.runs, options.mix, named=True)
    if not panels:
        raise Refusal(
            "table.not-measured",
            f"{experiment.name} is not measured; `{experiment.command}` measures it",
            experiment=experiment.name,
            command=experiment.command,
        )
    chosen, rest = (panels, []) if options.all else experiments.fullest(panels)
    return table.output(table.tables(experiment, chosen), len(rest))


def _claims(found: FoundRuns, options: argparse.Namespace) -> Output:
    from . import claims
    from .claims import render

    chosen = claims.named(options.only) if options.only is not None else claims.CLAIMS
    return render.output(
        claims.judge(found.runs, options.mix, chosen), at_full_length=options.only is not None
    )


def _figure(options: argparse.Namespace) -> int:
    from .figures import draw  # altair, which takes a second

    found = load.read(options.folders)
    lines = draw.write(options.name, found.runs, options.out, options.mix, options.all)
    print("\n".join([*lines, *skipped_lines(found.skipped)]))
    return 0


def _report(options: argparse.Namespace) -> int:
    from rich.console import Console

    from . import report  # hydra, jinja2 and vl-convert, which nothing else needs

    if options.watch or options.port is not None:
        if options.out is not None:
            raise Refusal(
                "analysis.out-of-watch",
                "--out: --watch serves the page and writes no file; leave one of them out",
                key="--out",
            )
        from .report import watch

        watch.serve(
            report.watched_report(options.folders, options.title, options.mix, options.price),
            options.port or 0,
        )
        return 0
    # of 10,000 runs it takes a minute
    with Console(stderr=True).status("reading the runs") as status:
        found = load.read(options.folders, price=options.price)
        status.update(f"making the page about {count(len(found.runs), 'run')}")
        lines = report.write(
            options.folders, options.out, options.title, options.mix, found
        ).splitlines()
    print("\n".join(map(clean, lines)))
    return 0


def _dashboard(options: argparse.Namespace) -> int:
    from . import dashboard  # wandb, which nothing else of the analysis needs but sync

    print(clean(dashboard.make(options.entity, options.project, options.dry_run)))
    return 0


def _export(options: argparse.Namespace) -> int:
    found = load.read(options.folders)
    print(
        "\n".join(
            [*map(clean, share.export(found.runs, options.out)), *skipped_lines(found.skipped)]
        )
    )
    return 0


def _import(options: argparse.Namespace) -> int:
    print(clean(share.bring_in(options.file)))
    return 0


def _sync(options: argparse.Namespace) -> int:
    found = load.read(options.folders, probes=True)
    lines, code = sync.sync(found.runs, (options.project, options.entity))
    print("\n".join([*lines, *skipped_lines(found.skipped)]))
    return code


# commands that write what they found
WRITING = ("list", "table", "compare", "best", "claims", "predictions")
SHARED: dict[str, dict[str, Any]] = {  # arguments that several commands have
    "folders": {
        "metavar": "FOLDER",
        "nargs": "*",
        "type": cli.folder_of_runs,
        "default": [cli.MULTIRUN],
    },
    "--mix": {
        "help": "average runs of several commits or machines in a cell",
        "action": "store_true",
    },
    "--price": {
        "metavar": "2.49",
        "help": "of a GPU for an hour (price.gpu_hour)",
        "type": cli.price,
    },
    "--all": {"help": "include settings with few of the cells", "action": "store_true"},
}


def _parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and that of each command, whose result has the command's function as `run`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(typed("-m analysis"), description=usage(__doc__, __file__), formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], description: str | None) -> Callable[..., Any]:
        own = commands.add_parser(name, help=COMMANDS[name], description=description)
        own.set_defaults(run=run)
        if name in WRITING:
            add_formats(own)

        def add(*names: str, **options: Any) -> None:
            for each in names:
                own.add_argument(each, **(options or SHARED[each]))

        return add

    _add_commands_on_settings(command)
    _add_commands_on_all_runs(command)
    return parser, commands.choices


def _description(module: ModuleType) -> str:
    return usage(module.__doc__, str(module.__file__))


def _add_commands_on_settings(command: Callable[..., Callable[..., Any]]) -> None:
    add = command("list", _of_runs(_list), _description(list_runs))
    add("folders", "--price")
    add("--where", metavar="SQL", help="a condition on the columns that --csv writes")
    add("--sort", metavar="COLUMNS", help='for example "gpus, total_s desc"')
    add("--columns", metavar="A,B", help="the columns to show and to write", type=cli.names)

    add = command("table", _of_runs(_table), _description(table))
    named = ", ".join([*experiments.names(), DATASETS])
    add("experiment", metavar="NAME", help=named, type=experiments.not_by_number)
    add("folders", "--all", "--mix")

    add = command("compare", _compare, _description(compare))
    add("a", metavar="A", help="the folder of a sweep", type=cli.folder_of_runs)
    add(
        "b",
        metavar="B",
        help="the folder of another sweep of the same cells",
        type=cli.folder_of_runs,
        nargs="?",
    )
    keys = "keys, separated by commas, that differ on purpose; without B, A's"
    add("--by", metavar="KEY", help=keys, type=cli.names, default=[])
    margin = "the difference up to which two are equal (5%%)"
    add("--margin", metavar="SHARE", help=margin, type=cli.share, default=MARGIN)
    add(
        "--gate",
        metavar="SHARE",
        help="exit with 1 if B is slower by more, 2 if these runs cannot tell: 5%%",
        type=cli.share,
    )
    add("--common", help="leave out cells that only one of them has", action="store_true")
    add("--mix")

    add = command("best", _best, _description(best))
    add("folders", "--price", "--mix")
    add("--goal", choices=GOALS, help="one goal alone; without it, all of them")
    add("--accuracy", metavar="0.99", help="the least; leaves out tuning runs", type=cli.share)
    add(
        "--loss",
        metavar="1.9",
        help="the highest of held-out rows; leaves out all but tuning runs",
        type=cli.loss,
    )
    add(
        "--by",
        choices=by_int4.SCORES,
        help="judge tuning by the held-out loss in int4: qat and full, for int4",
    )
    add(
        "--memory",
        metavar="80GB",
        help="the most memory of a GPU, in MB or GB, MiB or GiB",
        type=cli.size_bytes,
    )
    add("--gpus", metavar="N", help="the most GPUs, on all nodes together", type=cli.count)
    add(
        "--train",
        help="train the recommended setting in full, and keep its model",
        action="store_true",
    )


def _add_commands_on_all_runs(command: Callable[..., Callable[..., Any]]) -> None:
    add = command("claims", _of_runs(_claims), CLAIMS)
    add("folders", "--mix")
    add("--only", metavar="NAME,...", help="show these claims in full", type=cli.names)

    predicted = _of_runs(lambda found, options: predictions.output(found.runs, options.folders))
    add = command("predictions", predicted, _description(predictions))
    add("folders")

    add = command("figure", _figure, _description(figures))
    add("name", metavar="NAME", help=FIGURES, type=experiments.not_by_number)
    add("folders", "--all", "--mix")
    add(
        "--out",
        metavar="FILE",
        help="ends in .svg, .pdf or .png (outputs/figures/)",
        type=Path,
        default=figures.OUT,
    )

    add = command("report", _report, None)
    add("folders", "--price", "--mix")
    add("--out", metavar="FILE", help="report.html in FOLDER, or here for several", type=file)
    add("--title", metavar="TEXT", help="the heading of the page")
    add(
        "--watch",
        help="serve the page on this machine, kept up to date, until Ctrl-C",
        action="store_true",
    )
    add("--port", metavar="N", help="serve it at this port (a free one)", type=int)

    add = command("dashboard", _dashboard, DASHBOARD)
    project = TrackerConfig().project
    add(
        "--project",
        metavar="P",
        help="the runs' tracker.project",
        type=cli.wandb_name,
        default=project,
    )
    add(
        "--entity",
        metavar="E",
        help="a user or team; the account's own by default",
        type=cli.wandb_name,
    )
    add(
        "--dry-run",
        metavar="FILE",
        help="write its specification as JSON instead, without a login",
        type=file,
    )

    add = command("export", _export, share.EXPORT)
    add("folders")
    anonymous = "the only way to share rows; what is published cannot be taken back"
    add("--anonymous", help=anonymous, action="store_true", required=True)
    add("--out", metavar="FILE", help="measured.json", type=file, default=Path("measured.json"))

    add = command("import", _import, share.IMPORT)
    add("file", metavar="FILE", help="a file that export wrote", type=Path)

    add = command("sync", _sync, _description(sync))
    add("folders")
    add(
        "--project",
        metavar="NAME",
        help="the W&B project (each run's tracker.project)",
        type=cli.wandb_name,
    )
    add(
        "--entity",
        metavar="NAME",
        help="the W&B user or team (each run's tracker.entity)",
        type=cli.wandb_name,
    )


if __name__ == "__main__":
    sys.exit(main())
