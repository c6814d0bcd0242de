"""Measure cells in this process: a single run is Hydra's task, and cells of a sweep take turns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from multicard.estimate import estimates
from multicard.machine import shares
from multicard.messages import Message, Refusal, say
from multicard.run import controller
from multicard.run.progress_bar import ALONE, InSweep
from multicard.sweep import cell_checks, cells, predicted
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.command import Command


class HydraTask:
    """Hydra's task. Launchers recognize the command by it."""

    def __init__(self, command: Command) -> None:
        self.command = command

    def measure(self, cfg: DictConfig) -> None:
        """Measure a single run, reuse an earlier record, or print what the run would take.

        Hydra calls this as its task.
        """
        composed: Any = HydraConfig.instance().cfg
        folder = Path(composed.hydra.runtime.output_dir)
        words = list(composed.hydra.overrides.task)
        sweep = Sweep.of(
            self.command, [cells.cell_of(self.command.workload, composed, cfg, folder, words)]
        )
        try:
            if cfg.repeat != "1":
                raise Refusal(
                    "sweep.repeat-alone",
                    f"repeat={cfg.repeat}: several runs are a sweep; add `-m`",
                    key="repeat",
                    value=cfg.repeat,
                )
            race = cfg.race.figure
            if race is not None:
                raise Refusal(
                    "sweep.race-alone",
                    f"race={race}: needs cells to choose from, a sweep; add `-m`",
                    key="race",
                    value=race,
                )
            cells.settle(sweep)
            if cfg.predict.enabled and sweep.cells:
                predicted.show(sweep)
                return
            predicted.check_fit(sweep)
            if cfg.dry_run:
                cell_checks.check_cells(sweep, sweep.left)
        except ValueError as error:
            for cell in [*sweep.cells]:
                sweep.refuse(cell, str(error))
        if sweep.refused:
            sweep.refused[0].record(keep=False)
        elif cfg.dry_run and sweep.left:
            cell = sweep.cells[0]
            description = ", ".join(self.command.workload.describe(cell.config))
            message = Message(
                "sweep.dry-run-alone",
                f"dry_run=true: nothing is started. To be measured in this process: {description}"
                f" -> {cell.folder}",
                key="dry_run",
                what=description,
                folder=str(cell.folder),
            )
            say(message)
            sweep.say_notices()
            sweep.say_crowds()
        elif sweep.left:
            with shares.announced([sweep.cells[0].config]):
                run(self.command, sweep.cells[0], keep_refused=False)
        sweep.finish()


def run(
    command: Command,
    cell: Cell,
    keep_refused: bool = True,
    left_s: Callable[[], float | None] = ALONE.left_s,
) -> None:
    """Measure a cell in this process, unless another command has done so meanwhile. Never raise.

    Args:
        keep_refused: if True, a refusal leaves a record too, as in a sweep.
        left_s: returns the seconds until the sweep ends.
    """
    single = Sweep(command, [cell])
    # Another command may have measured the cell since the sweep was settled.
    cells.settle(single)
    if single.refused:
        single.refused[0].record(keep_refused)
        cell.result = single.refused[0].result
    if cell.result is not None:
        return
    cell.result = controller.measure(
        cell.workload,
        cell.cfg,
        cell.folder,
        keep_refused=keep_refused,
        predict=estimates.prediction,
        started_s=command.run_started_s(),
        cell=InSweep(cell.title, left_s),
    )
