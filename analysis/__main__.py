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

from analysis import best, compare, data, differences, draw, experiments, formats, listing, query, show, tables
from analysis.marks import legend
from analysis.options import parser

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
