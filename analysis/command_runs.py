"""What the commands of `python -m analysis` do: read runs, and print, write or serve the outcome.

Each function takes the parsed options, and returns the exit code or what is to be printed.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from multicard.config.job import count
from multicard.messages import Refusal, typed
from multicard.papers.printed import DATASETS
from multicard.records.output import FORMATS, Output, Skipped, skipped_lines
from multicard.records.text_table import clean

from . import experiments
from .commands import best, compare, compared_cells, gate, list_runs, share, sync, table
from .own_panels import own_panels
from .runs import by_int4, load, sql
from .runs.load import FoundRuns


def on_runs(
    output_of: Callable[[FoundRuns, argparse.Namespace], Output],
) -> Callable[[argparse.Namespace], int]:
    """Return a command that reads the runs of its folders, and prints the output made of them."""

    def run(options: argparse.Namespace) -> int:
        found_runs = load.read_runs(options.folders, price=getattr(options, "price", None))
        return _emit(output_of(found_runs, options), options, found_runs.skipped)

    return run


def _emit(output: Output, options: argparse.Namespace, skipped: Sequence[Skipped]) -> int:
    output.emit(options, skipped)
    return output.code


def list_found(found_runs: FoundRuns, options: argparse.Namespace) -> Output:
    """Return the list of the runs that `--where` selects."""
    runs = sql.select(found_runs.runs, options.where, options.sort)
    return list_runs.output(
        found_runs, runs, options.columns, refused="status" in (options.where or "")
    )


def compare_sweeps(options: argparse.Namespace) -> int:
    """Print how the cells of two sweeps differ, or the cells of one that differ in a key."""
    a = load.read_runs([options.a])
    b = a if options.b is None else load.read_runs([options.b])
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


def best_setting(options: argparse.Namespace) -> int:
    """Print which setting to use, or train it (`--train`)."""
    if not options.train:
        return on_runs(_ranking)(options)
    from . import train_best  # It imports Hydra.

    refused_flags = [flag for flag in ("goal", *FORMATS) if getattr(options, flag, None)]
    if refused_flags:
        text = (
            "--train: trains the setting that time and accuracy recommend;"
            f" leave --{refused_flags[0]} out"
        )
        raise Refusal("train.other-flags", text, key=f"--{refused_flags[0]}")
    limits = best.Limits(options.accuracy, options.memory, options.gpus, options.loss)
    runs = load.read_runs(options.folders, price=options.price).runs
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


def fill_table(options: argparse.Namespace) -> int:
    """Print a table of the papers, from the user's runs."""
    if options.experiment is None:
        raise _without_name("table", [*experiments.names(), DATASETS])
    return on_runs(_filled_table)(options)


def _filled_table(found_runs: FoundRuns, options: argparse.Namespace) -> Output:
    if options.experiment == DATASETS:
        return table.output([table.of_datasets(found_runs.runs)])
    experiment = experiments.load_experiment(options.experiment)
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


def judge_claims(found_runs: FoundRuns, options: argparse.Namespace) -> Output:
    """Return the verdicts on the papers' claims."""
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


def draw_figures(options: argparse.Namespace) -> int:
    """Write figures, and print their files."""
    from .figures import draw  # It imports Altair, which takes a second.

    if options.name is None:
        raise _without_name("figure", draw.known_names())
    found_runs = load.read_runs(options.folders)
    lines = draw.write(
        options.name, found_runs.runs, options.out, options.mix, options.all, options.folders
    )
    print("\n".join([*lines, *skipped_lines(found_runs.skipped)]))
    return 0


def write_report(options: argparse.Namespace) -> int:
    """Write the page about the runs, or serve it (`--watch`)."""
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
        found_runs = load.read_runs(options.folders, price=options.price)
        status.update(f"making the page about {count(len(found_runs.runs), 'run')}")
        lines = report.write(
            options.folders, options.out, options.title, options.mix, found_runs
        ).splitlines()
    print("\n".join(map(clean, lines)))
    return 0


def make_dashboard(options: argparse.Namespace) -> int:
    """Save a workspace in W&B."""
    from . import dashboard  # It imports W&B, which only `sync` needs too.

    print(clean(dashboard.make(options.entity, options.project, options.dry_run)))
    return 0


def export_rows(options: argparse.Namespace) -> int:
    """Write rows that can be shared, without anything that identifies the machine."""
    found_runs = load.read_runs(options.folders)
    print(
        "\n".join(
            [
                *map(clean, share.export(found_runs.runs, options.out)),
                *skipped_lines(found_runs.skipped),
            ]
        )
    )
    return 0


def import_rows(options: argparse.Namespace) -> int:
    """Take in rows that another user has shared."""
    print(clean(share.bring_in(options.file)))
    return 0


def upload(options: argparse.Namespace) -> int:
    """Upload records that W&B does not have."""
    found_runs = load.read_runs(options.folders, probes=True)
    lines, code = sync.sync(found_runs.runs, (options.project, options.entity))
    print("\n".join([*lines, *skipped_lines(found_runs.skipped)]))
    return code
