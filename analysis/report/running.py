"""The cells that are being measured now, from their folders alone: how far each is, and when it will be done."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from analysis import rerun_commands
from analysis.runs import load
from multicard.measure.timing import clock_s, in_hours
from multicard.records import ownership
from multicard.records.progress import BoardCopy
from multicard.records.run_folder import RESULT, settings_of
from multicard.run.progress_bar import ProgressBar
from multicard.workloads import WORKLOADS

OWNER_S = 10.0  # between two questions whether somebody still measures a cell: SLURM is asked by a command


class RunningCell:
    """A cell that is being measured. setting: what tells it from the sweep's other cells."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.setting = folder, setting_of(folder)
        self._board = BoardCopy(folder)
        self._bar: ProgressBar | None = None
        self._board_id = 0
        self._first: tuple[float, float] | None = None  # time and steps when training was first seen

    def look(self, now_s: float) -> dict[str, Any]:
        """What a page shows of it: names, the `share` of its steps that is done (None before training), and `facts`."""
        shown = {"sweep": self.folder.parent.name, "setting": self.setting}
        done: dict[str, Any] = {}
        with suppress(Exception):  # files that are being written, or gone: the board as it was last read
            self._open()
        with suppress(Exception):  # whatever stands in them
            done = self._bar.fields(now_s) if self._bar is not None else {}
        if not done:
            return shown | {"share": None, "facts": ["starting"]}
        share, steps = done["completed"] / done["total"], done["completed"]
        first_s, first = self._first = self._first or (now_s, steps)
        facts = [done["description"], f"{100 * share:.0f} %", *done["figures"].split("  ")]
        if steps > first:
            facts.append(f"{in_hours((done['total'] - steps) * (now_s - first_s) / (steps - first))} left")
        return shown | {"share": share, "facts": [fact for fact in facts if fact]}

    def _open(self) -> None:
        """Read the board of its ranks, a new one where the run has started again."""
        self._board.read_again()
        board_id = self._board.path.stat().st_ino
        if board_id == self._board_id:
            return
        config = msgspec.yaml.decode((self.folder / "config.yaml").read_bytes(), type=dict)
        units = (work.unit for work in WORKLOADS if config.keys() <= {each.name for each in fields(work.schema)})
        ranks = config["gpus"] * config["nodes"]
        self._bar = ProgressBar(self._board, ranks, config["epochs"], next(units, "samples"))
        self._board_id, self._first = board_id, None


class Onlooker:
    """The runs under some folders, which need not exist yet: `results` by folder (inode and change time), the cells
    that are `running`, and those `cut_off`, without a record though nobody measures them any more."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.results: dict[Path, tuple[int, int]] = {}
        self.running: dict[Path, RunningCell] = {}
        self.cut_off: list[Path] = []
        self._asked: dict[Path, tuple[float, bool]] = {}  # when, and whether somebody measures into a folder

    def scan(self) -> None:
        found = list(load.run_folders([folder for folder in self.folders if folder.is_dir()]))
        results: dict[Path, os.stat_result] = {}
        for folder in (folder for folder, written in found if written):
            with suppress(FileNotFoundError):
                results[folder] = (folder / RESULT).stat()
        unfinished = [folder for folder, written in found if not written]
        running = [folder for folder in unfinished if self._is_measured(folder)]
        self.running = {folder: self.running.get(folder) or RunningCell(folder) for folder in running}
        self.cut_off = [folder for folder in unfinished if folder not in self.running]
        self.results = {folder: (status.st_ino, status.st_mtime_ns) for folder, status in results.items()}

    def _is_measured(self, folder: Path) -> bool:
        asked_s, measured = self._asked.get(folder, (-inf, False))
        if clock_s() - asked_s > OWNER_S:
            asked_s, measured = clock_s(), ownership.owner(folder) is not None
        self._asked[folder] = asked_s, measured
        return measured


def setting_of(folder: Path) -> str:
    """The settings of a cell that the command of its sweep does not set for all; all of the only cell."""
    words, same = settings_of(folder.name), rerun_commands.set_once(folder.parent)
    return " ".join([word for word in words if word.partition("=")[0] not in same] or words)
