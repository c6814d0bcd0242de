"""`objective=`: the figure of a record by which a sweeper of Hydra's searches (Optuna's, Ax's, your own)."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from multicard.config.keys import require
from multicard.records import figures
from multicard.records.run_folder import Run
from multicard.run.workload import Workload
from multicard.sweep.cells import Cell, Refused


class NoFigureError(Exception):
    """A cell lacks the figure that a sweeper searches by."""


class NothingMeasuredError(Exception):
    """A dry run or a prediction shows the first cells of a search alone: the next depend on their figures."""


def refuse(workload: Workload, name: str | None) -> None:
    """Refuse a name that is not a figure of a workload's records, with the nearest names."""
    if name is None:
        return
    known = [*figures.numbers(workload.record)]
    within = [figure for figure in known if figure.startswith(f"{name}.")][:3]
    words = within or difflib.get_close_matches(name, known, n=3)
    remedy = f"nearest: {', '.join(words)}" if words else "docs/record.md lists them"
    require(name in known, f"objective={name}: no figure of a record of {workload.entry}; {remedy}")


def value(run: Run | None, name: str | None) -> float | None:
    """The figure `name` of a run; NaN where it has none, or did not end ok. None where no figure is asked for."""
    if name is None:
        return None
    figure: Any = run.record if run is not None and run.status == "ok" else None
    for key in name.split("."):
        figure = getattr(figure, key, None)
    return float(figure) if isinstance(figure, int | float) else math.nan


def returns(cells: Iterable[Cell | Refused], name: str | None) -> list[JobReturn]:
    """Returns to Hydra's sweepers, one a cell in their order; the same for cells that measure the same.

    A cell without the figure is a job that failed, whose `return_value` raises `NoFigureError`: a NaN ends a search of
    Optuna's with a traceback (facebookresearch/hydra#2237).
    """
    by_number: dict[int, JobReturn] = {}
    for cell in cells:
        figure = value(cell.result, name)
        lacks = figure is not None and math.isnan(figure)
        for number, words in cell.overrides.items():
            job = JobReturn(words, cell.cfg, working_dir=str(cell.folder), status=JobStatus.COMPLETED)
            job.return_value = figure
            if lacks:
                status = "not measured" if cell.result is None else cell.result.status
                missing = NoFigureError(f"objective={name}: {cell.label}{cell.folder.name} has none ({status})")
                job.status, job.return_value = JobStatus.FAILED, missing
            by_number[number] = job
    return [by_number[number] for number in sorted(by_number)]
