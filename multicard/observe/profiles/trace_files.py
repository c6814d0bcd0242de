"""Finds the traces of one run: files that are named, or those in or below a folder."""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from multicard.messages import Refusal, typed
from multicard.records.run_folder import RESULT
from multicard.records.short_names import folder_of_runs

SUFFIXES = (".json", ".json.gz", ".sqlite", ".nsys-rep")
FOLDER = "profile"  # The folder of a run that has its traces.
SHOWN_COMMANDS = 3  # A refusal lists at most this many commands.


def trace_path(text: str) -> Path:
    """Return the file or folder that is meant; the name of a sweep stands for its folder."""
    path = Path(text)
    return path if path.is_file() or _traces_in(path) else folder_of_runs(text)


def trace_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the files among the paths, and the traces in or below the folders among them.

    Raises:
        Refusal: there is no such file, or no trace in a folder, or several runs are below it.
    """
    for path in paths:
        if not path.exists():
            raise Refusal("trace.no-file", f"{path}: no such file", file=str(path))
        if path.is_dir():
            yield from _traces_below(path)
        else:
            yield path


def shown_by(folder: Path) -> str:
    """Return the command that shows the traces in or below a folder."""
    here = Path.cwd()
    absolute_path = folder.absolute()
    shown = absolute_path.relative_to(here) if absolute_path.is_relative_to(here) else absolute_path
    return f"{typed('-m multicard')} profile {shlex.quote(str(shown))}"


def _traces_below(folder: Path) -> list[Path]:
    folders = _folders_of_traces(folder)
    if not folders:
        raise Refusal(
            "trace.none-in-folder",
            f"{folder}: has no trace in or below this folder (*{', *'.join(SUFFIXES)});"
            " measure with `profile=kineto` to get one",
            folder=str(folder),
        )
    if len(folders) > 1:
        commands = [shown_by(each) for each in folders]
        more = len(commands) - SHOWN_COMMANDS
        others = f" and {more} more" if more > 0 else ""
        shown = ", ".join(f"`{command}`" for command in commands[:SHOWN_COMMANDS])
        raise Refusal(
            "trace.of-several-runs",
            f"{folder}: has the traces of {len(folders)} runs; show one of them by {shown}{others}",
            folder=str(folder),
            commands=commands,
        )
    return _traces_in(folders[0])


def _folders_of_traces(folder: Path) -> list[Path]:
    """Return the folders of traces: the folder itself, or those in or below it.

    A run has its traces in one folder. Others, as those of W&B, have copies and tables.
    """
    if not (folder / RESULT).is_file() and _traces_in(folder):
        return [folder]
    found = []
    for parent, subfolders, files in os.walk(folder):
        path = Path(parent)
        if RESULT in files or "config.yaml" in files:
            subfolders.clear()
            path = path / FOLDER
        else:
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        # Any file may end in .json, if it is not in a folder of traces.
        if any(path.name == FOLDER or trace.suffix != ".json" for trace in _traces_in(path)):
            found.append(path)
    return found


def _traces_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if file.name.endswith(SUFFIXES) and file.is_file()]
    # nsys leaves the export next to the report.
    return sorted(
        file
        for file in files
        if file.suffix != ".nsys-rep" or file.with_suffix(".sqlite") not in files
    )
