"""Tables, rankings, comparisons, figures and a report of runs, from their folders alone.

FOLDER is multirun by default. An error is one line, `refused: ...`, and exit code 1.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
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
from multicard.measure.repeated_runs import MARGIN
from multicard.messages import Message, Parser, Refusal, drop, say, typed, usage
from multicard.papers.printed import DATASETS
from multicard.records.figures import GOALS
from multicard.records.output import add_formats, file
from multicard.records.short_names import MULTIRUN, folder_of_runs
from multicard.records.text_table import clean

from . import cli, command_runs, experiments, figures
from .commands import (
    best,
    compare,
    list_runs,
    predictions,
    share,
    sync,
    table,
)
from .runs import by_int4

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
    add = command("list", command_runs.on_runs(command_runs.list_found), _description(list_runs))
    add("folders", "--price")
    add("--where", metavar="SQL", help="a condition on the columns that --csv writes")
    add("--sort", metavar="COLUMNS", help='for example "gpus, total_s desc"')
    add("--columns", metavar="A,B", help="the columns to show and to write", type=cli.names)

    add = command("table", command_runs.fill_table, _description(table))
    known_names = ", ".join([*experiments.names(), DATASETS])
    add("experiment", metavar="NAME", help=known_names, type=experiments.not_by_number, nargs="?")
    add("folders", "--all", "--mix")

    add = command("compare", command_runs.compare_sweeps, _description(compare))
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

    add = command("best", command_runs.best_setting, _description(best))
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
    add = command("claims", command_runs.on_runs(command_runs.judge_claims), CLAIMS_DESCRIPTION)
    add("folders", "--mix")
    add("--only", metavar="NAME,...", help="show these claims in full", type=cli.names)

    print_predictions = command_runs.on_runs(
        lambda found, options: predictions.output(found.runs, options.folders)
    )
    add = command("predictions", print_predictions, _description(predictions))
    add("folders")

    add = command("figure", command_runs.draw_figures, _description(figures))
    add("name", metavar="NAME", help=FIGURE_HELP, type=experiments.not_by_number, nargs="?")
    add("folders", "--all", "--mix")
    add(
        "--out",
        metavar="FILE",
        help="ends in .svg, .pdf or .png (outputs/figures/)",
        type=Path,
        default=figures.OUT,
    )

    add = command("report", command_runs.write_report, None)
    add("folders", "--price", "--mix")
    add("--out", metavar="FILE", help="report.html in FOLDER, or here for several", type=file)
    add("--title", metavar="TEXT", help="the heading of the page")
    add(
        "--watch",
        help="serve the page on this machine, kept up to date, until Ctrl-C",
        action="store_true",
    )
    add("--port", metavar="N", help="serve it at this port (a free one)", type=int)

    add = command("dashboard", command_runs.make_dashboard, DASHBOARD_DESCRIPTION)
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

    add = command("export", command_runs.export_rows, share.EXPORT)
    add("folders")
    anonymous_help = "the only way to share rows; what is published cannot be taken back"
    add("--anonymous", help=anonymous_help, action="store_true", required=True)
    add("--out", metavar="FILE", help="measured.json", type=file, default=Path("measured.json"))

    add = command("import", command_runs.import_rows, share.IMPORT)
    add("file", metavar="FILE", help="a file that export wrote", type=Path)

    add = command("sync", command_runs.upload, _description(sync))
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
