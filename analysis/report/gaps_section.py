"""The last section: records that could not be read, and what is not measured, with its commands."""

from collections.abc import Sequence

from analysis.experiments import Experiment, Panel
from analysis.figures import captions
from analysis.report.blocks import Block, Column, Facts, Grid, Heading, Section
from analysis.runs.details import DetailedRun
from analysis.runs.load import Skipped
from multicard.config.job import count
from papers import printed


def section(
    runs: Sequence[DetailedRun], skipped: Sequence[Skipped], panels: Sequence[tuple[Experiment, list[Panel]]]
) -> Section:
    """Unreadable records, and what was not measured.

    Args:
        panels: every experiment with the panels that runs fill, an empty list where no run can.
    """
    blocks = [*_skipped_records(skipped), *_unmeasured(runs, panels)]
    question = "What is not in the figures above, why, and which commands would measure it?"
    return Section("gaps", "What is not here", question, blocks)


def _skipped_records(skipped: Sequence[Skipped]) -> list[Block]:
    if not skipped:
        return []
    columns = [
        Column.of("folder", [str(record.folder) for record in skipped]),
        Column.of("why", [record.why for record in skipped]),
    ]
    about = f"{count(len(skipped), 'run folder')} without a record that can be used."
    return [Heading("Records that could not be read", about), Grid("skipped", "skipped records", columns)]


def _unmeasured(runs: Sequence[DetailedRun], panels: Sequence[tuple[Experiment, list[Panel]]]) -> list[Block]:
    rows: list[tuple[str, list[str]]] = []
    for experiment, filled in sorted(panels, key=lambda pair: bool(pair[1])):  # those without any run first
        lacks = (
            captions.missing_cells(filled[0].missing) if filled else [f"In full: {printed.in_full(experiment.name)}"]
        )
        rows += [(f"{experiment.title.rstrip('.')}. {line}.", [experiment.command]) for line in lacks]
    ok = [run for run in runs if run["status"] == "ok"]
    entry = "tune_llm.py" if {run["kind"] for run in ok} == {"llm"} else "train_vision.py"
    if not any(run.diagnosis for run in ok):
        rows.append(("What limits a run, and what to try.", [f"python {entry} diagnose=true"]))
    if not any(run.profile_rows for run in ok):
        rows.append(("Calls, copies, collectives and kernels of ten steps.", [f"python {entry} profile=kineto"]))
    return [Heading("What these runs do not measure"), Facts(rows, code=True)] if rows else []
