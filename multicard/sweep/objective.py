"""`objective=`: the figure of a record by which a sweeper of Hydra's searches (Optuna's, Ax's, your own)."""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra.core.utils import JobReturn, JobStatus
from msgspec import Struct

from multicard.config.keys import require
from multicard.records.schema import LlmRecord, Record, VisionRecord
from multicard.run.workload import Workload
from multicard.sweep.cells import Cell, Refused


class NoFigureError(Exception):
    """A cell has not the figure that a sweeper searches by."""


class NothingMeasuredError(Exception):
    """A dry run, or a prediction, has shown the first cells of a search, which chooses the next by their figures."""


RECORDS: dict[str, type[Record]] = {record.kind: record for record in (VisionRecord, LlmRecord)}


def refuse(workload: Workload, name: str | None) -> None:
    """Refuse what is no figure of a workload's records.

    Raises:
        ValueError: with the nearest that are.
    """
    if name is None:
        return
    known = [*figures(RECORDS[workload.name])]
    words = [figure for figure in known if figure.startswith(f"{name}.")][:3] or difflib.get_close_matches(
        name, known, n=3
    )
    remedy = f"nearest: {', '.join(words)}" if words else "docs/record.md lists them"
    require(name in known, f"objective={name}: no figure of a record of {workload.entry}; {remedy}")


def figures(struct: type[Struct], prefix: str = "") -> Iterator[str]:
    """The numbers of a record, as "total_s" or "step_s.mean"."""
    for name, hint in get_type_hints(struct).items():
        types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if {int, float} & {*types}:
            yield prefix + name
        for part in types:
            if isinstance(part, type) and issubclass(part, Struct):
                yield from figures(part, f"{prefix}{name}.")


def value(record: Mapping[str, Any] | None, name: str | None) -> float | None:
    """The figure `name` of a record; NaN where it has none, or did not end ok. None where no figure is asked for."""
    if name is None:
        return None
    figure: Any = record if record is not None and record["status"] == "ok" else None
    for key in name.split("."):
        figure = figure.get(key) if isinstance(figure, Mapping) else None
    return float(figure) if isinstance(figure, int | float) else math.nan


def returns(cells: Iterable[Cell | Refused], name: str | None) -> list[JobReturn]:
    """What Hydra's sweepers get of each cell, in their order; of cells that measure the same, the same.

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
                job.status, job.return_value = JobStatus.FAILED, NoFigureError(_missing(cell, name))
            by_number[number] = job
    return [by_number[number] for number in sorted(by_number)]


def _missing(cell: Cell | Refused, name: str | None) -> str:
    status = "not measured" if cell.result is None else cell.result["status"]
    return f"objective={name}: {cell.label}{cell.folder.name} has none ({status})"
