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
    program.begin()  # It needs to run before the remaining imports.

from multicard.__main__ import COMMANDS
from multicard.cli.unknown_commands import unknown_command
from multicard.config.base import TrackerConfig
from multicard.config.job import count
from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Message, Parser, Refusal, drop, say, typed, usage
from multicard.papers.printed import DATASETS
from multicard.records.figures import GOALS
from multicard.records.output import FORMATS, Output, Skipped, add_formats, file, skipped_lines
from multicard.records.short_names import MULTIRUN, folder_of_runs
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
from .own_panels import own_panels
from .runs import by_int4, load, sql
from .runs.load import FoundRuns

CLAIMS_DESCRIPTION = (
    "The claims of the two papers, tested on your runs: the printed figures, yours, and a verdict"
    " on each."
)
DASHBOARD_DESCRIPTION = (
    "The runs of a project in W&B as a saved workspace. Running it again replaces the workspace,"
    " including changes by hand."
)
FIGURE_HELP = "an experiment, all, effects, losses, phases, efficiency, trade_off or timelines"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 1 if the command is refused or --gate is exceeded, and 2 if the runs cannot tell
    whether it is. A line says why.
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
            stream.reconfigure(errors="replace")  # The name of a folder need not be text.
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
    except BrokenPipeError:  # The reader has closed the pipe, as `| head` does.
        drop(sys.stdout)
        return 0
    except (ValueError, OSError) as error:
        reason = _error_text(error)
        print(
            clean(Message("analysis.refused", f"refused: {reason}", reason=reason)), file=sys.stderr
        )
        return 1


def _error_text(error: ValueError | OSError) -> str:
    """Return the text of an error.

    A refusal's message stays unchanged. An error of the system names the file that it concerns.
    """
    if isinstance(error, OSError) and error.strerror:
        return clean(": ".join(str(part) for part in (error.filename, error.strerror) if part))
    return str(error) if isinstance(error, Refusal) else clean(str(error))


def _on_runs(
    output_of: Callable[[FoundRuns, argparse.Namespace], Output],
) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        found_runs = load.read(options.folders, price=getattr(options, "price", None))
        return _emit(output_of(found_runs, options), options, found_runs.skipped)

    return run


def _emit(output: Output, options: argparse.Namespace, skipped: Sequence[Skipped]) -> int:
    output.emit(options, skipped)
    return output.code


def _list(found_runs: FoundRuns, options: argparse.Namespace) -> Output:
    runs = sql.select(found_runs.runs, options.where, options.sort)
    return list_runs.output(
        found_runs, runs, options.columns, refused="status" in (options.where or "")
    )


def _compare(options: argparse.Namespace) -> int:
    a = load.read([options.a])
    b = a if options.b is None else load.read([options.b])
    cells = compared_cells.compare(
        a.runs, b.runs, options.by, options.common, options.mix, options.margin
    )
    sides = [f"A: {clean(str(options.a))}", f"B: {clean(str(options.b))}"]
    title_lines = (
        [f"A, B: {clean(str(options.a))}, by {clean(', '.join(options.by))}"]
        if cells[0].sides[0]
        else sides
    )
    output = compare.output(cells, options.margin, title_lines)
    if options.gate is not None:
        passed, line = gate.gated(cells, options.gate)
        output = replace(output, notes=[line], code=int(passed))
    return _emit(output, options, [*a.skipped, *(b.skipped if b is not a else [])])


def _best(options: argparse.Namespace) -> int:
    if not options.train:
        return _on_runs(_ranking)(options)
    from . import train_best  # It imports Hydra.

    refused_flags = [flag for flag in ("goal", *FORMATS) if getattr(options, flag, None)]
    if refused_flags:
        text = (
            "--train: trains the setting that time and accuracy recommend;"
            f" leave --{refused_flags[0]} out"
        )
        raise Refusal("train.other-flags", text, key=f"--{refused_flags[0]}")
    limits = best.Limits(options.accuracy, options.memory, options.gpus, options.loss)
    runs = load.read(options.folders, price=options.price).runs
    if options.by is not None:
        runs, notes = by_int4.judge_by_int4(runs)
        print("\n".join(map(clean, notes)))
    return train_best.train(runs, limits, options.mix)


def _ranking(found_runs: FoundRuns, options: argparse.Namespace) -> Output:
    from .answers import sentences
    from .recommended import failings

    limits = best.Limits(options.accuracy, options.memory, options.gpus, options.loss)
    return best.output(
        found_runs.runs, options.goal, limits, options.mix, sentences, options.by, failings
    )


def _table(options: argparse.Namespace) -> int:
    if options.experiment is None:
        raise _without_name("table", [*experiments.names(), DATASETS])
    return _on_runs(_filled_table)(options)


def _filled_table(found_runs: FoundRuns, options: argparse.Namespace) -> Output:
    if options.experiment == DATASETS:
        return table.output([table.of_datasets(found_runs.runs)])
    experiment = experiments.load(options.experiment)
    panels = experiments.panels(experiment, found_runs.runs, options.mix, named=True)
    if not panels:
        raise Refusal(
            "table.not-measured",
            f"{experiment.name} is not measured; `{experiment.command}` measures it",
            experiment=experiment.name,
            command=experiment.command,
        )
    if options.all:
        return table.output(table.tables(experiment, panels))
    shown = own_panels("table", experiment, panels, options.folders)
    chosen, other_panels = experiments.fullest(shown)
    return table.output(
        table.tables(experiment, chosen), len(other_panels) + len(panels) - len(shown)
    )


def _claims(found_runs: FoundRuns, options: argparse.Namespace) -> Output:
    from . import claims
    from .claims import render

    chosen = claims.named(options.only) if options.only is not None else claims.CLAIMS
    return render.output(
        claims.judge(found_runs.runs, options.mix, chosen), at_full_length=options.only is not None
    )


def _without_name(command: str, known_names: Sequence[str]) -> Refusal:
    first_command = f"{typed('-m analysis')} {command} {known_names[0]}"
    return Refusal(
        "analysis.no-name",
        f"{command} needs a name, as `{first_command}`; there are {', '.join(known_names)}",
        key="NAME",
        command=command,
        known=[*known_names],
    )


def _figure(options: argparse.Namespace) -> int:
    from .figures import draw  # It imports Altair, which takes a second.

    if options.name is None:
        raise _without_name("figure", draw.known_names())
    found_runs = load.read(options.folders)
    lines = draw.write(
        options.name, found_runs.runs, options.out, options.mix, options.all, options.folders
    )
    print("\n".join([*lines, *skipped_lines(found_runs.skipped)]))
    return 0


def _report(options: argparse.Namespace) -> int:
    from rich.console import Console

    from . import report  # It imports Hydra, Jinja and vl-convert, which no other command needs.

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
    # For 10,000 runs this takes a minute.
    with Console(stderr=True).status("reading the runs") as status:
        found_runs = load.read(options.folders, price=options.price)
        status.update(f"making the page about {count(len(found_runs.runs), 'run')}")
        lines = report.write(
            options.folders, options.out, options.title, options.mix, found_runs
        ).splitlines()
    print("\n".join(map(clean, lines)))
    return 0


def _dashboard(options: argparse.Namespace) -> int:
    from . import dashboard  # It imports W&B, which only `sync` needs too.

    print(clean(dashboard.make(options.entity, options.project, options.dry_run)))
    return 0


def _export(options: argparse.Namespace) -> int:
    found_runs = load.read(options.folders)
    print(
        "\n".join(
            [
                *map(clean, share.export(found_runs.runs, options.out)),
                *skipped_lines(found_runs.skipped),
            ]
        )
    )
    return 0


def _import(options: argparse.Namespace) -> int:
    print(clean(share.bring_in(options.file)))
    return 0


def _sync(options: argparse.Namespace) -> int:
    found_runs = load.read(options.folders, probes=True)
    lines, code = sync.sync(found_runs.runs, (options.project, options.entity))
    print("\n".join([*lines, *skipped_lines(found_runs.skipped)]))
    return code


# The commands that can write their output as a file.
WITH_FORMATS = ("list", "table", "compare", "best", "claims", "predictions")
SHARED_ARGUMENTS: dict[str, dict[str, Any]] = {  # Arguments that several commands have.
    "folders": {
        "metavar": "FOLDER",
        "nargs": "*",
        "type": folder_of_runs,
        "default": [MULTIRUN],
    },
    "--mix": {
        "help": "average runs of several commits or machines in a cell",
        "action": "store_true",
    },
    "--price": {
        "metavar": "2.49",
        "help": "the price of a GPU for an hour (price.gpu_hour)",
        "type": cli.price,
    },
    "--all": {"help": "include settings with few of the cells", "action": "store_true"},
}


def _parser() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser and each command's parser, which sets the command's function as `run`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(typed("-m analysis"), description=usage(__doc__, __file__), formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], description: str | None) -> Callable[..., Any]:
        command_parser = commands.add_parser(name, help=COMMANDS[name], description=description)
        command_parser.set_defaults(run=run)
        if name in WITH_FORMATS:
            add_formats(command_parser)

        def add(*names: str, **options: Any) -> None:
            for argument_name in names:
                command_parser.add_argument(
                    argument_name, **(options or SHARED_ARGUMENTS[argument_name])
                )

        return add

    _add_commands_on_settings(command)
    _add_commands_on_all_runs(command)
    return parser, commands.choices


def _description(module: ModuleType) -> str:
    return usage(module.__doc__, str(module.__file__))


def _add_commands_on_settings(command: Callable[..., Callable[..., Any]]) -> None:
    add = command("list", _on_runs(_list), _description(list_runs))
    add("folders", "--price")
    add("--where", metavar="SQL", help="a condition on the columns that --csv writes")
    add("--sort", metavar="COLUMNS", help='for example "gpus, total_s desc"')
    add("--columns", metavar="A,B", help="the columns to show and to write", type=cli.names)

    add = command("table", _table, _description(table))
    known_names = ", ".join([*experiments.names(), DATASETS])
    add("experiment", metavar="NAME", help=known_names, type=experiments.not_by_number, nargs="?")
    add("folders", "--all", "--mix")

    add = command("compare", _compare, _description(compare))
    add("a", metavar="A", help="the folder of a sweep", type=folder_of_runs)
    add(
        "b",
        metavar="B",
        help="the folder of another sweep of the same cells",
        type=folder_of_runs,
        nargs="?",
    )
    by_help = "keys, separated by commas, that differ on purpose; without B, A's"
    add("--by", metavar="KEY", help=by_help, type=cli.names, default=[])
    margin_help = "the difference up to which two are equal (5%%)"
    add("--margin", metavar="SHARE", help=margin_help, type=cli.share, default=MARGIN)
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
    add(
        "--accuracy",
        metavar="0.99",
        help="the lowest test accuracy; leaves out tuning runs",
        type=cli.share,
    )
    add(
        "--loss",
        metavar="1.9",
        help="the highest loss on held-out rows; leaves out all but tuning runs",
        type=cli.loss,
    )
    add(
        "--by",
        choices=by_int4.SCORES,
        help="judge tuning by the held-out loss in int4 (methods qat and full)",
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
    add = command("claims", _on_runs(_claims), CLAIMS_DESCRIPTION)
    add("folders", "--mix")
    add("--only", metavar="NAME,...", help="show these claims in full", type=cli.names)

    print_predictions = _on_runs(
        lambda found, options: predictions.output(found.runs, options.folders)
    )
    add = command("predictions", print_predictions, _description(predictions))
    add("folders")

    add = command("figure", _figure, _description(figures))
    add("name", metavar="NAME", help=FIGURE_HELP, type=experiments.not_by_number, nargs="?")
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

    add = command("dashboard", _dashboard, DASHBOARD_DESCRIPTION)
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
    anonymous_help = "the only way to share rows; what is published cannot be taken back"
    add("--anonymous", help=anonymous_help, action="store_true", required=True)
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
