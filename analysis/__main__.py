"""What was measured, which setting is best, and what changed between two sweeps, from run folders alone.

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
from collections.abc import Sequence
from pathlib import Path

from multicard.ranks import interruption

if __name__ == "__main__":
    interruption.end_at_once()  # while the rest is imported

from analysis import dashboard, experiments, formatting
from analysis.cli import parser
from analysis.commands import (
    best,
    compare,
    dataset_table,
    list_runs,
    predictions,
    sync,
    table,
    table_formats,
)
from analysis.formatting import counted
from analysis.runs import load, predicted, sql
from analysis.runs.columns import legend
from multicard.records import text_table
from multicard.records.run_folder import write_text
from multicard.records.text_table import clean
from papers.printed import DATASETS

FOLDERS = (Path("multirun"),)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 1, after a line that says why, if it is refused or --gate is exceeded."""
    about, *_, notes = (__doc__ or "").split("\n\n")  # what lies between is each command's own help
    options = parser(f"{about}\n\n{notes}", RUNS).parse_args(words)
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


def _list(options: argparse.Namespace) -> int:
    loaded = load.read(options.folders or FOLDERS)
    runs = sql.select(loaded.runs, options.where, options.sort)
    lines = list_runs.lines(loaded, runs, options.columns, text_table.terminal_width())
    if options.csv is not None:
        list_runs.write_csv(options.csv, loaded, runs, options.columns)
    if options.json is not None:
        list_runs.write_json(options.json, loaded, runs, options.columns)
    formatting.say(lines)
    return 0


def _compare(options: argparse.Namespace) -> int:
    a = load.read([options.a])
    b = a if options.b is None else load.read([options.b])
    cells = compare.compare(a.runs, b.runs, options.by, options.common, options.mix, options.margin)
    within = [f"A, B: {clean(str(options.a))}, by {clean(', '.join(options.by))}"] if cells[0].sides[0] else []
    formatting.say(
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
    loaded = load.read(options.folders or FOLDERS)
    limits = best.Limits(options.accuracy, options.memory, options.gpus)
    lines = best.lines(loaded.runs, options.goal, limits, options.mix, text_table.terminal_width())
    formatting.say([*lines, *list_runs.skipped(loaded.skipped)])
    return 0


def _table(options: argparse.Namespace) -> int:
    rest = []
    if options.experiment == DATASETS:
        loaded = load.read(options.folders or FOLDERS)
        tables = [dataset_table.table(loaded.runs)]
    else:
        experiment = experiments.load(options.experiment)
        loaded = load.read(options.folders or FOLDERS)
        panels = experiments.panels(experiment, loaded.runs, options.mix)
        if not panels:
            raise ValueError(f"{experiment.name} is not measured; this measures it: {experiment.command}")
        chosen, rest = (panels, []) if options.all else experiments.fullest(panels)
        tables = table.tables(experiment, chosen)
    content = table_formats.FORMATS[options.format](tables)
    if options.out is not None:
        write_text(options.out, content + "\n")
        return 0
    notes = [f"--all shows {counted(len(rest), 'more setting')} with fewer of the cells"] if rest else []
    formatting.say([content, *([*notes, *list_runs.skipped(loaded.skipped)] if options.format == "text" else [])])
    return 0


def _claims(options: argparse.Namespace) -> int:
    from analysis import claims
    from analysis.claims import render

    chosen = claims.named(options.only) if options.only is not None else claims.CLAIMS
    loaded = load.read(options.folders or FOLDERS)
    verdicts = claims.judge(loaded.runs, options.mix, chosen)
    if options.markdown is not None:
        render.write_markdown(options.markdown, verdicts)
    if options.json is not None:
        render.write_verdicts(options.json, verdicts, loaded.skipped)
    lines = render.table if options.only is None else render.at_length
    formatting.say([*lines(verdicts, text_table.terminal_width()), *list_runs.skipped(loaded.skipped)])
    return 0


def _predictions(options: argparse.Namespace) -> int:
    folders = options.folders or FOLDERS
    loaded = load.read(folders)
    compared = predicted.compare(loaded.runs)
    predictions.require_some(compared, ", ".join(map(str, folders)))
    if options.csv is not None:
        predictions.write_csv(options.csv, compared)
    if options.json is not None:
        predictions.write_json(options.json, compared, loaded.skipped)
    formatting.say([*predictions.lines(compared, text_table.terminal_width()), *list_runs.skipped(loaded.skipped)])
    return 0


def _figure(options: argparse.Namespace) -> int:
    from analysis.figures import draw  # altair, which takes a second

    loaded = load.read(options.folders or FOLDERS)
    formats = list(dict.fromkeys(options.format))
    lines = draw.write(options.name, loaded.runs, options.out, formats, options.mix, options.all)
    formatting.say([*lines, *list_runs.skipped(loaded.skipped)])
    return 0


def _report(options: argparse.Namespace) -> int:
    from analysis import report  # hydra, jinja2 and vl-convert, which nothing else needs

    folders = options.folders or FOLDERS
    found = load.read(folders)
    lines = report.write_runs(found, folders, options.out, options.title, options.mix).splitlines()
    command = dashboard.command(found.runs)
    formatting.say([f"The same runs as a dashboard in Weights & Biases: {clean(command)}", *map(clean, lines)])
    return 0


def _dashboard(options: argparse.Namespace) -> int:
    for line in dashboard.make(options.entity, options.project, options.dry_run):
        print(clean(line), flush=True)
    return 0


def _sync(options: argparse.Namespace) -> int:
    from analysis import report

    loaded = load.read(options.folders or FOLDERS, probes=True)
    with sync.progress_bar() as show:
        outcome = sync.sync(
            loaded.runs,
            (options.project, options.entity),
            lambda folder, out: report.write([folder], out, None, mix=True),
            show,
        )
    formatting.say([*outcome.lines(), *list_runs.skipped(loaded.skipped)])
    return 1 if outcome.failed else 0


RUNS = {
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

if __name__ == "__main__":
    sys.exit(main())
