"""The last section: what was skipped, what failed and why, and what is not measured, with the commands for it."""

from collections import Counter
from collections.abc import Sequence

from analysis import formatting
from analysis.papers.experiments import Experiment, Panel
from analysis.report.blocks import Column, Commands, Grid, Heading, Part, Section, Words
from analysis.report.run_details import Read
from analysis.runs import grouping
from analysis.runs.grouping import Cell
from analysis.runs.load import Run, Skipped
from multicard.records.text_table import clean

MOST_MISSING = 6  # cells of a panel that are named


def section(
    read: Sequence[Read], skipped: Sequence[Skipped], filled: Sequence[tuple[Experiment, list[Panel]]]
) -> Section:
    """What is not in the figures.

    Args:
        filled: every experiment, with the panels that runs fill; none where no run can.
    """
    parts: list[Part] = [*_failed([one.run for one in read]), *_skipped(skipped), *_unmeasured(read, filled)]
    question = "What is not in the figures above, why, and which commands would measure it?"
    return Section("gaps", "What is not here", question, parts)


def _failed(runs: Sequence[Run]) -> list[Part]:
    bad = [run for run in runs if run["status"] != "ok"]
    if not bad:
        return [Heading("Runs that did not end ok"), Words("None.", "quiet")]
    counts = Counter(clean(run["status"]) for run in bad)
    about = f"{', '.join(f'{count} {status}' for status, count in counts.items())}. Their figures are left out."
    grid = Grid(
        "failed",
        "",
        [
            Column("name", "name", [formatting.value("", run["name"]) for run in bad]),
            Column("run", "run", [clean(run.folder.name) for run in bad]),
            Column("status", "status", [clean(run["status"]) for run in bad]),
            Column("cause", "cause", [formatting.value("", run["cause"]) for run in bad]),
            Column("marks", "marks", [run["marks"] for run in bad]),
        ],
        page_rows=15,
    )
    return [Heading("Runs that did not end ok", about), grid]


def _skipped(skipped: Sequence[Skipped]) -> list[Part]:
    if not skipped:
        return [Heading("Records that could not be read"), Words("None.", "quiet")]
    columns = [
        Column("folder", "folder", [str(one.folder) for one in skipped]),
        Column("why", "why", [clean(one.why) for one in skipped]),
    ]
    told = f"{len(skipped):,} run folder{'s' * (len(skipped) > 1)} without a record that can be used."
    return [Heading("Records that could not be read", told), Grid("skipped", "", columns, page_rows=15)]


def _unmeasured(read: Sequence[Read], filled: Sequence[tuple[Experiment, list[Panel]]]) -> list[Part]:
    rows = [(_sentence(experiment), experiment.command) for experiment, panels in filled if not panels]
    for experiment, panels in filled:
        if panels and panels[0].missing:
            rows.append((f"{_sentence(experiment)} {_missing(panels[0].missing)}", experiment.command))
    good = [one for one in read if one.run["status"] == "ok"]
    kinds = {one.run["kind"] for one in good}
    entry = "tune_llm.py" if kinds == {"llm"} else "train_vision.py"
    if not any(one.diagnosis for one in good):
        rows.append(("What bounds a run, and what to try.", f"python {entry} diagnose=true"))
    if not any(one.profile for one in good):
        rows.append(("Calls, copies, collectives and kernels of ten steps.", f"python {entry} profile=kineto"))
    told: list[Part] = [Heading("What these runs do not measure")]
    told.append(Commands(rows) if rows else Words("Nothing that an experiment or option would add.", "quiet"))
    if not any(one.run["energy_joules"] is not None for one in good):
        told.append(Words("Energy is read from GPUs by NVML, with any command; CPU ranks have none.", "quiet"))
    return told


def _sentence(experiment: Experiment) -> str:
    return experiment.title if experiment.title.endswith((".", "?")) else f"{experiment.title}."


def _missing(missing: Sequence[Cell]) -> str:
    named = [grouping.label(cell, [key for key, _ in cell]) for cell in missing[:MOST_MISSING]]
    rest = f" and {len(missing) - MOST_MISSING} more" if len(missing) > MOST_MISSING else ""
    return f"Missing: {'; '.join(named)}{rest}."
