"""Compose the cells of a sweep, and sort them: measured before, refused, or left to measure."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from multicard.config.base import RunConfig, Scale, plain
from multicard.config.job import count
from multicard.config.placement import place
from multicard.machine import devices
from multicard.messages import Message, console_script, link, say
from multicard.records import run_folder
from multicard.records.comparable import PRESET_KEY
from multicard.records.run_folder import RecordedRun
from multicard.records.schema import SCHEMA_VERSION, AnyRecord
from multicard.run import outcome, prepare
from multicard.run.workload import Workload, new_notices
from multicard.sweep import as_before, order, presets
from multicard.sweep.command import Command
from multicard.sweep.compositions import Compositions
from multicard.sweep.order import Turn

REPETITION = "repetition="  # The override of a repetition begins with this.
NAMED_CELLS = 10  # At most this many cells are listed one by one.


@dataclass(kw_only=True)
class CellPlace:
    """A cell's place in its sweep.

    Args:
        number: from 1, in the typed order of the sweep, which tables keep.
        label: its turn among the cells that are measured ("[2/6] "); empty for a single run.
        setting: its values of the swept keys, padded to the width of the other cells
            ("layout=nchw gpus=1  rep 2").
        overrides: the words from which a cell of a sweep is composed.
        is_as_before: True if it leaves out what became the default after its sweep had begun
            (`as_before`).
        composed: the configuration with Hydra's own part. `cfg` is the run's part, resolved.
    """

    number: int = 1
    label: str = ""
    setting: str = ""
    overrides: Sequence[str] = ()
    is_as_before: bool = False
    workload: Workload
    composed: DictConfig
    cfg: DictConfig
    folder: Path
    result: RecordedRun | None = None

    @property
    def title(self) -> str:
        """The beginning of a line about the cell; empty for a single run."""
        return f"{self.label}{self.setting}   " if self.setting else self.label


@dataclass(kw_only=True)
class Cell(CellPlace):
    """A cell that can be measured: `config` is `cfg` as dataclasses."""

    config: RunConfig

    def as_record(self, device: str = "") -> AnyRecord:
        """Return the part of its record that is known before it is measured.

        `device` is the device to assume, if not the configuration's.
        """
        axes = self.workload.axes(self.cfg, device or str(self.cfg.device))
        config = plain(self.config)
        return self.workload.record(
            schema_version=SCHEMA_VERSION, status="", axes=axes, config=config
        )

    def refused(self, reason: str, is_mistake: bool = True) -> "RefusedCell":
        """Return the cell as one that is not measured, for this reason."""
        shared = {name: getattr(self, name) for name in CellPlace.__dataclass_fields__}
        return RefusedCell(**shared, reason=reason, is_mistake=is_mistake)


@dataclass(kw_only=True)
class RefusedCell(CellPlace):
    """A cell that is not measured, for a reason with the key and the remedy.

    If `is_mistake`, the command exits with 1. A cell that a race leaves out because it does not fit
    is not a mistake.
    """

    reason: str
    is_mistake: bool = True

    def record(self, keep: bool = True) -> None:
        """Print the reason. With `keep`, also write it as a record, unless a run left one."""
        begun = outcome.begin(self.workload, self.cfg, self.folder)
        self.result = outcome.refuse(begun, self.reason, keep, self.title)


@dataclass
class Sweep:
    """The cells of a command, or of one batch of it. Each cell is in one of the two lists."""

    command: Command
    cells: list[Cell] = field(default_factory=list)
    refused: list[RefusedCell] = field(default_factory=list)

    @classmethod
    def of(cls, command: Command, cells: Iterable[Cell | RefusedCell]) -> "Sweep":
        """Return the sweep of these cells, sorted into its two lists."""
        all_cells = [*cells]
        return cls(
            command,
            [cell for cell in all_cells if isinstance(cell, Cell)],
            [cell for cell in all_cells if isinstance(cell, RefusedCell)],
        )

    @property
    def left(self) -> list[Cell]:
        """The cells without a record, in the order in which they are measured."""
        return [cell for cell in self.cells if cell.result is None]

    @property
    def every(self) -> list[Cell | RefusedCell]:
        """All cells, in the order in which they were typed."""
        return sorted([*self.cells, *self.refused], key=lambda cell: cell.number)

    def refuse(self, cell: Cell, reason: str, is_mistake: bool = True) -> None:
        """Move a cell from the cells that are measured to the refused ones."""
        self.cells.remove(cell)
        self.refused.append(cell.refused(reason, is_mistake))

    def record_refused(self) -> None:
        """Record the mistakes that have no record yet."""
        for cell in self.refused:
            if cell.is_mistake and cell.result is None:
                cell.record()

    def finish(self) -> None:
        """Hand the runs to the command, which shows them in typed order."""
        self.command.take(
            {cell.number: cell.result for cell in self.every if cell.result is not None}
        )

    def say_start(self) -> None:
        """Print how many cells are to be measured, and what all of them have in common."""
        descriptions = [cell.workload.describe(cell.config) for cell in self.left]
        shared = ", ".join(
            part for part in descriptions[0] if all(part in parts for parts in descriptions)
        )
        cells = count(len(descriptions), "cell")
        line = f"{cells} of {shared} -> " if shared else f"{cells} -> "
        say(Text(line).append(link(self.left[0].folder.parent)))
        self.say_notices()
        self.say_order()

    def say_notices(self) -> None:
        """Print the notices of the cells that are left, each notice once in a sweep."""
        for cell in self.left:
            for notice in new_notices(cell.workload, cell.config, cell.folder.parent):
                say(f"  {notice}")

    def say_crowds(self) -> None:
        """Print, for each number of ranks, that this machine has fewer cores. A run says it too."""
        notices = dict[Message, None]()
        for cell in self.left:
            placement = place(cell.config, len(devices.visible_gpus()))
            if (crowd := prepare.crowd_notice(placement)) is not None:
                notices[crowd] = None
        for crowd in notices:
            say(f"  {crowd}")

    def say_order(self) -> None:
        """Print, once in a command, that the cells that are left are shuffled."""
        remaining = self.left
        line = (
            order.shuffle_notice([cell.overrides for cell in remaining], remaining[0].config.order)
            if remaining
            else None
        )
        if line is not None and not self.command.has_said_order:
            say(line)
            self.command.has_said_order = True

    def say_as_before(self) -> None:
        """Print, once in a command, that cells are measured as the sweep began (`as_before`)."""
        cells_as_before = [cell for cell in self.cells if cell.is_as_before]
        if cells_as_before and not self.command.has_said_as_before:
            say(as_before.as_before_notice(cells_as_before[0].folder.parent))
            self.command.has_said_as_before = True

    def say_left(self, ended: str = "interrupted") -> None:
        """Print why a sweep ended early, how many cells are left, and the command to resume it."""
        unmeasured = sum(
            cell.result is None or cell.result.status == "interrupted" for cell in self.every
        )
        total = len(self.every)
        message = Message(
            "sweep.left",
            f"{ended}: {unmeasured} of {total} cells are left",
            ended=ended,
            left=unmeasured,
            cells=total,
        )
        say(message, error=True)
        command = self.resume_command()
        say(Message("sweep.resume", f"To resume: `{command}`", command=command), error=True)
        self.command.abandoned = True

    def resume_command(self) -> str:
        """Return the command line of this sweep, with the name of its folder if it has none."""
        words = list(sys.orig_argv)
        # The installed command is a script, so the first word is its interpreter.
        if Path(words[1]).name == "multicard":
            words[:2] = shlex.split(console_script(words[1]))
        if not any(word.startswith(("name=", "hydra.sweep.dir=")) for word in words):
            words.append(f"name={self.every[0].folder.parent.name}")
        return shlex.join(words)


def compose(
    command: Command,
    context: HydraContext,
    sweep_config: DictConfig,
    turns: Sequence[Turn],
) -> Sweep:
    """Compose every cell from its overrides, and find its folder.

    Cells that measure the same are merged into one.
    """
    cells_by_setting: dict[tuple[Path, str], Cell | RefusedCell] = {}
    turn_of: dict[tuple[Path, str], int] = {}
    duplicates: list[str] = []
    total = len(turns)
    smoke_words = {f"{key}={value}" for key, value in sweep_config.hydra.experiment.smoke.items()}
    # These words are not part of a folder's name.
    unnamed = smoke_words if sweep_config.scale == Scale.smoke else set()
    compositions = Compositions(context.config_loader, sweep_config)
    for turn_number, turn in enumerate(turns, 1):
        composed, cfg = compositions.of(turn.words)
        composed.order = cfg.order = sweep_config.order
        words = [word for word in turn.words if word not in unnamed]
        label = f"[{turn_number}/{total}] "
        sweep = Path(str(composed.hydra.sweep.dir))
        cell = cell_of(command.workload, composed, cfg, sweep, words, turn.number, label)
        cell.overrides = turn.words
        setting = (cell.folder.parent, cell.folder.name)
        if isinstance(cell, Cell):
            setting = (
                cell.folder.parent,
                f"{cell.config.identity()}-r{cfg.repetition}-{cfg.probe.enabled}",
            )
        if setting in cells_by_setting:
            first_turn = turn_of[setting]
            sentence = f"measures the same as [{first_turn}/{total}]: left out"
            message = Message("cells.alike", sentence, cell=turn_number, as_cell=first_turn)
            duplicates.append(f"{label}{message}")
            continue
        with open_dict(composed):
            composed.hydra.job.id = composed.hydra.job.num = turn.number - 1
            composed.hydra.sweep.subdir = cell.folder.name
        cells_by_setting[setting] = cell
        turn_of[setting] = turn_number
    words_of = [
        [word for word in cell.overrides if not word.startswith("auto=")]
        for cell in cells_by_setting.values()
    ]
    for cell, padded_setting in zip(
        cells_by_setting.values(), settings_apart(words_of), strict=True
    ):
        cell.setting = " " * (len(f"[{total}/{total}] ") - len(cell.label)) + padded_setting
    if len(duplicates) > NAMED_CELLS:
        message = Message(
            "cells.many-alike",
            f"{len(duplicates)} of {total} cells measure the same as others: left out",
            alike=len(duplicates),
            cells=total,
        )
        duplicates = [message]
    for line in duplicates:
        say(line)
    return Sweep.of(command, cells_by_setting.values())


def settings_apart(settings: Sequence[Sequence[str]]) -> list[str]:
    """Return the words by which settings differ, padded into columns; empty for a single setting.

    The repetition comes last. It is shown even if it is the same for all settings.
    """
    shared = set.intersection(*map(set, settings)) if settings else set[str]()
    rows = [
        [word for word in words if word not in shared or word.startswith(REPETITION)]
        for words in settings
    ]
    rows = [sorted(row, key=lambda word: word.startswith(REPETITION)) for row in rows]
    rows = [[word.replace(REPETITION, "rep ") for word in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = [" ".join(map(set_cell_size, row, widths)) for row in rows]
    return [set_cell_size(line, max(map(cell_len, lines))) for line in lines]


def cell_of(
    workload: Workload,
    composed: DictConfig,
    cfg: DictConfig,
    sweep: Path,
    words: list[str],
    number: int = 1,
    label: str = "",
) -> Cell | RefusedCell:
    """Return the cell of a composed configuration, with a folder below the sweep's.

    The folder is named by some words of the overrides.
    """
    shared_fields: dict[str, Any] = {
        "number": number,
        "label": label,
        "workload": workload,
        "composed": composed,
        "cfg": cfg,
    }
    if PRESET_KEY in cfg:  # Scripts have no presets.
        cfg.preset_decides = presets.decided(workload, composed.hydra.overrides.task)
    try:
        config = prepare.typed(workload, cfg)
        if as_before.trains_on_all_rows(config, sweep):
            as_before.leave_split_out(composed, cfg)
            config = prepare.typed(workload, cfg)
            shared_fields["is_as_before"] = True
    except ValueError as error:
        name = run_folder.cell_name(run_folder.REFUSED, words, cfg.repetition, cfg.probe.enabled)
        return RefusedCell(
            **shared_fields, folder=run_folder.find_cell(sweep, name), reason=str(error)
        )
    name = run_folder.cell_name(config.identity(), words, cfg.repetition, cfg.probe.enabled)
    return Cell(**shared_fields, folder=run_folder.find_cell(sweep, name), config=config)


def settle(sweep: Sweep) -> None:
    """Take the records of cells that were measured before.

    A cell is refused if its folder holds the record of another cell, or if its data has changed
    since it was measured.
    """
    sweep.say_as_before()
    fingerprints: dict[str, Any] = {}
    for cell in list(sweep.cells):
        run = None if cell.cfg.rerun else run_folder.finished(cell.folder)
        if run is None:
            continue
        changed = prepare.changed_data(cell.workload, cell.config, run.record.data, fingerprints)
        if run.record.identity not in (None, cell.config.identity()):
            name = cell.folder.parent.name
            changed = Message(
                "cells.other-record",
                f"name={name}: {cell.folder.name} holds the record of another cell; remove it",
                key="name",
                cell=cell.folder.name,
            )
        if changed is not None:
            sweep.refuse(cell, changed)
            continue
        if not cell.cfg.predict.enabled:  # The table of predictions shows measured cells itself.
            say(outcome.line(run, f"{cell.title}measured before: "))
            _say_model_not_kept(cell, run)
        outcome.release_finished(cell.folder)
        cell.result = run


def _say_model_not_kept(cell: Cell, run: RecordedRun) -> None:
    """Say that the earlier run did not keep what it trained, if the command now asks for that."""
    asked_to_save = str(getattr(cell.config, "save", "none"))
    saved = getattr(run.record, "saved", None)
    if asked_to_save == "none" or (saved is not None and saved.folder is not None):
        return
    message = Message(
        "save.not-kept",
        f"save={asked_to_save}: was measured without it; add `rerun=true` to train it again and"
        f" keep the {asked_to_save}",
        key="save",
        cell=cell.folder.name,
    )
    say(message)
