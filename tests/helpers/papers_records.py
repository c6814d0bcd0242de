"""Run folders of the papers' own figures: a run for each cell that they print, with all settings that they print."""

from pathlib import Path
from typing import Any

from analysis import experiments
from papers import printed
from tests.helpers import records

COLUMNS = {"total_s": lambda s: {"total_s": s}, "test_accuracy": lambda share: {"test_accuracy": share}}
COLUMNS["step_s"] = lambda s: {"iteration_s": records.formulas.statistics([s] * 10, 1)}


def setting(name: str) -> dict[str, Any]:
    """What the builders of `tests.helpers.records` take for the setting of an experiment, without its axes."""
    known = experiments.load(name).papers.all
    return {column.replace(".", "__"): value for column, value in known.items() if not isinstance(value, list)}


def write(folder: Path, name: str, **changes: Any) -> Path:
    """Write a run for each cell of an experiment with a printed time."""
    build = {"vision": records.vision, "llm": records.llm}[experiments.load(name).kind]
    for index, figure in enumerate(printed.figures(name, "total_s")):
        cell = {column.replace(".", "__"): value for column, value in figure.cell.items()}
        found = {measure: printed.at(printed.figures(name, measure), figure.cell) for measure in COLUMNS}
        known = [COLUMNS[measure](one.value) for measure, one in found.items() if one is not None]
        figures = {key: value for figure in known for key, value in figure.items()}
        records.write(folder / f"{index:02d}", build(**setting(name) | cell | figures | changes))
    return folder
