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
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import formatting
from analysis.cli import parser
from analysis.commands import best, compare, environment_diff, list_runs, table, table_formats
from analysis.figures import write_files
from analysis.papers import experiments
from analysis.runs import load, sql
from analysis.runs.caveats import legend
from multicard.records import text_table
from multicard.records.text_table import clean

FOLDERS = (Path("multirun"),)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 1, after one line that says why, where it cannot be done, or --gate is passed."""
    options = parser(__doc__ or "", RUNS).parse_args(words)
    try:
        return options.run(options)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"refused: {clean(str(error))}", file=sys.stderr)
        return 1


def _list(options: argparse.Namespace) -> int:
    found = load.read(options.folders or FOLDERS)
    runs = sql.select(found.runs, options.where, options.sort)
    chosen = options.columns.split(",") if options.columns is not None else None
    lines = list_runs.lines(found, runs, chosen, text_table.terminal_width())
    if options.csv is not None:
        list_runs.write_csv(options.csv, runs, chosen)
    if options.json is not None:
        list_runs.write_json(options.json, found, runs, chosen)
    formatting.say(lines)
    return 0


def _compare(options: argparse.Namespace) -> int:
    a, b = (load.read([folder]) for folder in (options.a, options.b))
    by = options.by.split(",") if options.by is not None else []
    found = compare.compare(a.runs, b.runs, by, options.common, options.mix)
    ours, theirs = ([run for one in found for run in side(one)] for side in (lambda one: one.a, lambda one: one.b))
    warned = [f"warning: {line}" for line in environment_diff.lines(ours, theirs)]
    told = [
        f"A: {clean(str(options.a))}",
        f"B: {clean(str(options.b))}",
        *compare.lines(found, text_table.terminal_width()),
    ]
    marks = legend(run["marks"] for run in (*ours, *theirs))
    formatting.say([*told, *warned, *marks, *list_runs.skipped([*a.skipped, *b.skipped])])
    if options.gate is None:
        return 0
    passed, line = compare.gated(found, options.gate)
    print(line)
    return 0 if passed else 1


def _best(options: argparse.Namespace) -> int:
    found = load.read(options.folders or FOLDERS)
    limits = best.Limits(options.accuracy, options.memory, options.gpus)
    told = best.lines(found.runs, options.goal, limits, options.mix, text_table.terminal_width())
    formatting.say([*told, *list_runs.skipped(found.skipped)])
    return 0


def _table(options: argparse.Namespace) -> int:
    experiment = experiments.load(options.experiment)
    found = load.read(options.folders or FOLDERS)
    panels = experiments.panels(experiment, found.runs, options.mix)
    if not panels:
        raise ValueError(f"{experiment.name} is not measured; this measures it: {experiment.command}")
    shown, rest = (panels, []) if options.all else experiments.fullest(panels)
    content = table_formats.FORMATS[options.format](table.tables(experiment, shown))
    also = [f"--all shows {len(rest)} more settings, which have fewer of the cells"] if rest else []
    if options.out is None:
        formatting.say([content, *([*also, *list_runs.skipped(found.skipped)] if options.format == "text" else [])])
    else:
        table_formats.write(options.out, content)
    return 0


def _claims(options: argparse.Namespace) -> int:
    from analysis import claims
    from analysis.claims import render as told

    chosen = claims.named(options.only.split(",")) if options.only is not None else claims.CLAIMS
    found = load.read(options.folders or FOLDERS)
    verdicts = claims.judge(found.runs, options.mix, chosen)
    if options.markdown is not None:
        told.write_markdown(options.markdown, verdicts)
    if options.json is not None:
        told.write_verdicts(options.json, verdicts, found.skipped)
    lines = told.table if options.only is None else told.at_length
    formatting.say([*lines(verdicts, text_table.terminal_width()), *list_runs.skipped(found.skipped)])
    return 0


def _figure(options: argparse.Namespace) -> int:
    found = load.read(options.folders or FOLDERS)
    formats = dict.fromkeys(options.format.split(","))
    told = write_files.write(options.name, found.runs, options.out, list(formats), options.mix, options.all)
    formatting.say([*told, *list_runs.skipped(found.skipped)])
    return 0


def _report(options: argparse.Namespace) -> int:
    from analysis import report  # hydra, jinja2 and vl-convert, which nothing else needs

    print(clean(report.write(options.folders or FOLDERS, options.out, options.title, options.mix)))
    return 0


RUNS = {
    "list": _list,
    "table": _table,
    "compare": _compare,
    "best": _best,
    "claims": _claims,
    "figure": _figure,
    "report": _report,
}

if __name__ == "__main__":
    sys.exit(main())
