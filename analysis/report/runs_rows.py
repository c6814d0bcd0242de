"""The rows of a report's table of runs: a row for each setting, and one for each of its runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..figures.setting_charts import mean_time_s
from ..runs import grouping
from ..runs.details import DetailedRun
from ..runs.grouping import Cell


@dataclass(frozen=True)
class RunsRow:
    """Runs that ended ok and repeat one another: all runs of a setting, or one of them.

    parent: for a single run of a setting, the index of the setting's row.
    """

    cell: Cell
    runs: list[DetailedRun]
    parent: int | None = None

    @property
    def ranks(self) -> int:
        return grouping.ranks(self.runs[0])

    @cached_property
    def time_s(self) -> float | None:
        return mean_time_s(self.runs)

    @cached_property
    def counted(self) -> list[DetailedRun]:
        """The runs that count for the setting's times."""
        undisturbed_folders = {run.folder for run in grouping.undisturbed(self.runs)}
        return [run for run in self.runs if run.folder in undisturbed_folders]

    def has_run_in(self, folders: Collection[Path]) -> bool:
        """Return True if one of the runs is in one of these folders."""
        return any(run.folder in folders for run in self.runs)

    def differs_in(self, column: str) -> bool:
        """Return True if the runs differ in a column."""
        first_run, *other_runs = grouping.counting(self.runs, column)
        return any(run[column] != first_run[column] for run in other_runs)

    def common(self, column: str) -> Any:
        """Return the value of a column, or None if the runs differ in it."""
        return None if self.differs_in(column) else self.runs[0][column]

    def phase_share(self, phase: str) -> float | None:
        """Return a phase's share of the mean step, or None if a run lacks its phases."""
        runs = self.counted
        total_s = sum(sum(run.phases_s.values()) for run in runs)
        are_known = total_s and all(run.phases_s for run in runs)
        return sum(run.phases_s.get(phase, 0.0) for run in runs) / total_s if are_known else None


def by_setting(
    runs: Sequence[DetailedRun], mix: bool, first_folders: Collection[Path] = ()
) -> list[RunsRow]:
    """Return a row for each setting of the runs that ended ok, in the order of their first runs.

    If a setting has several runs, a row for each of them follows.

    Args:
        runs: the runs to group.
        mix: treat runs of different commits and machines as the same setting.
        first_folders: the folders of runs whose settings come first.
    """
    ok_by_folder = {run.folder: run for run in runs if run["status"] == "ok"}
    rows: list[RunsRow] = []
    groups = grouping.by_setting(list(ok_by_folder.values()), mix=mix).items()
    for cell, setting_runs in sorted(
        groups, key=lambda pair: not any(run.folder in first_folders for run in pair[1])
    ):
        index = len(rows)
        detailed_runs = [ok_by_folder[run.folder] for run in setting_runs]
        rows.append(RunsRow(cell, detailed_runs))
        if len(detailed_runs) > 1:
            rows += [RunsRow(cell, [run], index) for run in detailed_runs]
    return rows
