"""`gpus=auto`: the number of GPUs, or CPU ranks, of each cell, chosen before its folder is named.

A cell gets the number of the least predicted time, or all GPUs where none is predicted. The command line writes
`gpus=auto` as `gpus=1 gpus_auto=true`, which every cell's own number replaces here, and a single run as a sweep of one
cell.
"""

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig

from multicard.config.base import RunConfig
from multicard.config.job import AUTO_GPUS, Device, count
from multicard.config.keys import require
from multicard.config.placement import place
from multicard.config.sweeps import is_elsewhere
from multicard.estimate.estimates import Estimate, estimate
from multicard.machine import shares
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.records import run_folder
from multicard.records.schema_parts import Interval
from multicard.sweep.cells import NAMED_CELLS, Cell, cell_of, task_of
from multicard.sweep.command import Command

REPEATS = ("seed=", "repetition=")  # begin words in which cells of one number of GPUs may differ


@dataclass
class Setting:
    """Cells that differ in their seed or repetition alone, whose number of GPUs is open.

    runs: by index, the cell on each number of GPUs that can work. seconds: predicted times by number. why: of `gpus`.
    """

    runs: dict[int, dict[int, Cell]] = field(default_factory=dict)
    seconds: dict[int, Interval] = field(default_factory=dict)
    gpus: int = 1
    why: str = "no number can work"

    @property
    def configs(self) -> list[RunConfig]:
        """One run's configurations."""
        return [cell.config for cell in next(filter(None, self.runs.values())).values()]


def refuse(config: Any, on_slurm: bool, packs: bool) -> None:
    """Refuse `gpus=auto` where it has no meaning, with the remedy. With `packs` cells are processes on this machine,
    beside each other unless they want all of it."""
    folders = [word for word in config.hydra.overrides.hydra if word.startswith(("hydra.run.dir=", "hydra.sweep.dir="))]
    alone = len(folders) == 1 and folders[0].startswith("hydra.run.dir=")
    require(not alone, f"{''.join(folders)}: gpus=auto makes a sweep; use hydra.sweep.dir")
    require(config.cpus_per_gpu >= 1, f"cpus_per_gpu={config.cpus_per_gpu}: must be 1 or more")
    remedy = "give the numbers, as gpus=1,2"
    beside = packs and config.exclusive is False and config.max_jobs != 1
    require(not beside, f"gpus=auto: cells beside each other are for multicard plan, as its jobs; or {remedy}")
    require(not on_slurm, f"gpus=auto: is of this machine, not of SLURM's; {remedy}")
    require(not is_elsewhere(config), f"gpus=auto: is of this machine, not of predict.gpu; {remedy}")
    require(config.race.figure is None, f"gpus=auto: a race is by what cells measure, not by predictions; {remedy}")
    require(not config.probe.enabled, f"gpus=auto: is by predictions, which probes are made for; {remedy}")


def resolve(
    command: Command, context: HydraContext, sweep_config: DictConfig, job_overrides: Sequence[Sequence[str]]
) -> tuple[list[list[str]], list[RunConfig]]:
    """The overrides of each cell, with its chosen number of GPUs, and the configurations of those that can work."""
    settings, whole = dict[tuple[str, ...], Setting](), shares.machine()
    most = len(whole.gpus)
    if not most or sweep_config.device is Device.cpu:
        most = len(whole.cpus)
    for index, words in enumerate(job_overrides):
        composed = context.config_loader.load_sweep_config(sweep_config, [*words])
        key = tuple(sorted(word for word in words if not word.startswith(REPEATS)))
        settings.setdefault(key, Setting()).runs[index] = _on_each_number(command, composed, counts(most))
    choose([*settings.values()], Path(sweep_config.hydra.sweep.dir))
    keys = {word.partition("=")[0] for word in AUTO_GPUS}
    command.forget(*keys)  # each cell has its own number
    chosen = {index: setting.gpus for setting in settings.values() for index in setting.runs}
    others = [[word for word in words if word.partition("=")[0] not in keys] for words in job_overrides]
    resolved = [[*words, f"gpus={chosen[index]}"] for index, words in enumerate(others)]
    runs = [(setting.gpus, run) for setting in settings.values() for run in setting.runs.values()]
    return resolved, [run[gpus].config for gpus, run in runs if gpus in run]


def counts(most: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def _on_each_number(command: Command, composed: DictConfig, numbers: Sequence[int]) -> dict[int, Cell]:
    """The cell on each number of GPUs that can work."""
    found, workload, task = dict[int, Cell](), command.workload, task_of(composed)
    for gpus in numbers:
        cfg = deepcopy(task)
        cfg.gpus, cfg.gpus_auto = gpus, False
        cell = cell_of(workload, composed, cfg, Path(str(composed.hydra.sweep.dir)), [])
        if isinstance(cell, Cell):
            with suppress(ValueError):
                workload.fits(cell.config, place(cell.config, len(shares.machine().gpus)))
                found[gpus] = cell
    return found


def choose(settings: Sequence[Setting], sweep: Path) -> None:
    """Choose each setting's number of GPUs in the sweep of a folder, and print the reasons."""
    unmeasured: list[Setting] = []
    for setting in settings:
        cells = [(gpus, cell) for run in setting.runs.values() for gpus, cell in run.items()]
        done = [gpus for gpus, cell in cells if not cell.cfg.rerun and run_folder.finished(cell.folder) is not None]
        if done:
            setting.gpus, setting.why = done[0], "measured so before"
        elif cells:
            unmeasured.append(setting)
    answers = iter(estimate([config for setting in unmeasured for config in setting.configs], sweep / "cell"))
    for setting in unmeasured:
        _choose(setting, [next(answers) for _ in setting.configs])
    total = sum(len(setting.runs) for setting in settings)
    for setting in settings:
        labels, runs = " ".join(f"[{index + 1}/{total}]" for index in setting.runs), len(setting.runs)
        say(f"{labels if runs <= NAMED_CELLS else count(runs, 'cell')} gpus=auto: {setting.gpus} ({setting.why})")
    unknown = {config.gpus for setting in unmeasured if not setting.seconds for config in setting.configs}
    if len(unknown) > 1:
        say(f"to choose by times, probe first: the same with gpus={','.join(map(str, sorted(unknown)))} probe=true")


def _choose(setting: Setting, answers: Sequence[Estimate]) -> None:
    """Choose a setting's number of GPUs for itself, among those whose memory will do."""
    fitting = [each for each in answers if each.prediction.fits != "no"] or answers
    numbers = [each.config.gpus for each in fitting]
    totals = {each.config.gpus: each.prediction.total_s for each in fitting}
    setting.seconds = {gpus: total_s for gpus, total_s in totals.items() if total_s is not None}
    times = {gpus: in_hours(seconds.value) for gpus, seconds in setting.seconds.items()}
    if times:
        setting.gpus = min(times, key=lambda gpus: (setting.seconds[gpus].value, gpus))
        others = ", ".join(f"{gpus}: {time}" for gpus, time in times.items() if gpus != setting.gpus)
        least = f"the least predicted time, {times[setting.gpus]}"
        setting.why = f"{least}; {others or 'of other numbers none is predicted'}"
    else:
        setting.gpus, setting.why = max(numbers), "no time is predicted, so all there are"
