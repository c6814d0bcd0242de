"""Finds the folder of runs that somebody means, also by the short name of its sweep."""

import os
from pathlib import Path

from multicard.records.run_folder import RESULT

MULTIRUN = Path("multirun")
DEEPEST = 3  # PROJECT/multirun/NAME/CELL: a record is at most this many folders below.


def folder_of_runs(text: str | os.PathLike[str]) -> Path:
    """Return a folder; `photos` and `name=photos` name the sweep in multirun/photos.

    A folder of that name that has runs comes first. A folder without runs, such as the photographs
    from which the sweep has its name, does not hide the sweep.
    """
    typed = os.fspath(text)
    path = Path(typed)
    name = Path(typed.removeprefix("name="))
    named = MULTIRUN / name
    is_name = not name.is_absolute() and ".." not in name.parts
    return named if is_name and named.is_dir() and not holds_runs(path) else path


def holds_runs(folder: Path) -> bool:
    """Return True if a folder is a run, a sweep, or a folder of sweeps or of projects.

    Other folders, such as a million photographs in folders of classes, are not walked.
    """
    return any(any(folder.glob(f"{'*/' * depth}{RESULT}")) for depth in range(DEEPEST + 1))
