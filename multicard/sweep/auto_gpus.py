"""`gpus=auto`: the number of GPUs, or CPU ranks, of each cell, chosen before its folder is named.

A cell that has the machine to itself gets the number of the least predicted time, or all GPUs where none is predicted.
Cells that run beside each other get those of the least makespan (the launcher hands in the planner), or one each. The
command line writes `gpus=auto` as `gpus=1 gpus_auto=true`, which every cell's own number replaces here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig, flag_override

from multicard.config.job import Device, count
from multicard.config.keys import require
from multicard.config.placement import place
from multicard.config.sweeps import is_elsewhere
from multicard.estimate.estimates import Estimate, estimate
from multicard.machine import shares
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.records import run_folder
from multicard.records.schema_parts import Interval
from multicard.run.workload import Workload
from multicard.sweep.cells import NAMED_CELLS, Cell, cell_of, task_of
from multicard.sweep.command import Command

SWITCH = "gpus_auto=true"
REPEATS = ("seed=", "repetition=")  # begin words in which cells of one number of GPUs may differ
# From the predicted times of cells, each with the number of its runs, and the machine's GPUs to the number of each cell
# and the reason
Pack = Callable[[Sequence[tuple[Mapping[int, Interval], int]], int], tuple[Sequence[int], str]]


@dataclass
class Setting:
    """A setting whose number of GPUs is open.

    runs: by label, those that differ in seed or repetition alone: the cell on each number of GPUs that it may have.
    seconds: predicted times by number of GPUs. gpus, why: the choice.
    """

    runs: dict[str, dict[int, Cell]] = field(default_factory=dict)
    seconds: dict[int, Interval] = field(default_factory=dict)
    gpus: int = 1
    why: str = "no number can work"


def refuse(config: Any, on_slurm: bool = False) -> None:
    """Refuse `gpus=auto` where it has no meaning.

    Raises:
        ValueError: with the remedy.
    """
    remedy = "give the numbers, as gpus=1,2"
    require(not on_slurm, f"gpus=auto: is of this machine, not of SLURM's; {remedy}")
    require(not is_elsewhere(config), f"gpus=auto: is of this machine, not of predict.gpu; {remedy}")
    require(config.race.figure is None, f"gpus=auto: a race is by what cells measure, not by predictions; {remedy}")
    require(not config.probe.enabled, f"gpus=auto: is by predictions, which probes are made for; {remedy}")


def resolve(
    command: Command,
    context: HydraContext,
    sweep_config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    pack: Pack | None,
) -> list[list[str]]:
    """The overrides of each cell, with its chosen number of GPUs.

    Args:
        pack: plans cells that run beside each other; None where each has the machine to itself.

    Raises:
        ValueError: the planner is not installed.
    """
    settings, folder = dict[tuple[str, ...], Setting](), Path(sweep_config.hydra.sweep.dir)
    resolved, open_cells = [[*words] for words in job_overrides], dict[int, Setting]()
    for index, words in enumerate(job_overrides):
        if any(word.lower() == SWITCH for word in words):  # Hydra's sweeper writes "True"
            composed = context.config_loader.load_sweep_config(sweep_config, [*words])
            key = tuple(sorted(word for word in words if not word.startswith(REPEATS)))
            setting = open_cells[index] = settings.setdefault(key, Setting())
            cells = _on_each_number(command.workload, composed, task_of(composed), folder, pack is not None)
            setting.runs[f"[{index + 1}/{len(job_overrides)}]"] = cells
    choose([*settings.values()], folder, pack)
    command.forget("gpus", "gpus_auto")  # each cell has its own number
    for index, setting in open_cells.items():
        resolved[index] = with_gpus(resolved[index], setting.gpus)
    return resolved


def resolve_single(command: Command, cfg: DictConfig, composed: Any, until_ended: ExitStack) -> str | None:
    """Set the number of GPUs of a single run, which then keeps to GPUs that no other command has leased.

    Args:
        composed: Hydra's configuration, of which `cfg` is the run's part; both are changed.
        until_ended: holds the lease of the run's GPUs and cores.

    Returns:
        The reason for which it is refused.
    """
    try:
        refuse(cfg)
    except ValueError as error:
        return str(error)
    folder = Path(composed.hydra.runtime.output_dir)
    with shares.kept_to_unleased(cfg.device is not Device.cpu):
        cells = _on_each_number(command.workload, composed, cfg, folder, packs=False)
        setting = Setting({"": cells})
        choose([setting], folder, None)
        own = [cells[setting.gpus].config] if setting.gpus in cells else []
        until_ended.enter_context(shares.announced(own))  # before others may choose
    command.forget("gpus", "gpus_auto")
    for config in (cfg, composed):
        with flag_override(config, "readonly", False):
            config.gpus, config.gpus_auto = setting.gpus, False
    with flag_override(composed.hydra, "readonly", False):
        composed.hydra.overrides.task = with_gpus(list(composed.hydra.overrides.task), setting.gpus)
    return None


def with_gpus(words: Sequence[str], gpus: int) -> list[str]:
    return [*(word for word in words if word.lower() != SWITCH and not word.startswith("gpus=")), f"gpus={gpus}"]


def counts(most: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def _most(cfg: DictConfig, packs: bool) -> int:
    """The most GPUs, or CPU ranks, that a cell may have on this machine."""
    whole = shares.machine()
    if whole.gpus and cfg.device is not Device.cpu:
        return len(whole.gpus)
    return max(len(whole.cpus) // (cfg.cpus_per_gpu if packs else 1), 1)


def _on_each_number(
    workload: Workload, composed: DictConfig, task: DictConfig, sweep: Path, packs: bool
) -> dict[int, Cell]:
    """The cell on each number of GPUs that can work.

    Args:
        task: the run's part of `composed`.
    """
    found, most = dict[int, Cell](), _most(task, packs)
    for gpus in counts(most):
        cfg = deepcopy(task)
        cfg.gpus, cfg.gpus_auto = gpus, False
        cell = cell_of(workload, composed, cfg, sweep, [])
        if isinstance(cell, Cell):
            with suppress(ValueError):
                workload.fits(
                    cell.config, place(cell.config, len(shares.machine().gpus), 1, workload.processes(cell.config))
                )
                found[gpus] = cell
    return found


def _leave_none_idle(setting: Setting) -> None:
    """Leave out the numbers with which GPUs would be idle although as many cells run as max_jobs lets."""
    for label, cells in setting.runs.items():
        cfg = next((cell.cfg for cell in cells.values()), None)
        if cfg is not None and cfg.max_jobs:
            most = _most(cfg, packs=True)
            least = max(gpus for gpus in counts(most) if gpus <= max(most // cfg.max_jobs, 1))
            setting.runs[label] = {gpus: cell for gpus, cell in cells.items() if gpus >= least}


def choose(settings: Sequence[Setting], sweep: Path, pack: Pack | None) -> None:
    """Choose each setting's number of GPUs, and print the reasons.

    Args:
        sweep: its folder.
    """
    unmeasured: list[Setting] = []
    for setting in settings:
        cells = [(gpus, cell) for run in setting.runs.values() for gpus, cell in run.items()]
        done = [gpus for gpus, cell in cells if not cell.cfg.rerun and run_folder.finished(cell.folder) is not None]
        if done:
            setting.gpus, setting.why = done[0], "measured so before"
            continue
        if pack is not None:
            _leave_none_idle(setting)
        if any(setting.runs.values()):
            unmeasured.append(setting)
    asked = [[cell.config for cell in next(iter(setting.runs.values())).values()] for setting in unmeasured]
    answers = iter(estimate([config for configs in asked for config in configs], sweep / "cell"))
    for setting, configs in zip(unmeasured, asked, strict=True):
        _choose(setting, [next(answers) for _ in configs], pack is not None)
    planned = [setting for setting in unmeasured if setting.seconds]
    if pack is not None and planned:
        most = max(
            _most(cell.cfg, True) for setting in planned for run in setting.runs.values() for cell in run.values()
        )
        numbers, why = pack([(setting.seconds, len(setting.runs)) for setting in planned], most)
        for setting, gpus in zip(planned, numbers, strict=True):
            setting.gpus, setting.why = gpus, why
    for setting in settings:
        which = " ".join(setting.runs) if len(setting.runs) <= NAMED_CELLS else count(len(setting.runs), "cell")
        say(f"{which}{' ' * bool(which)}gpus=auto: {setting.gpus} ({setting.why})")
    unknown = {gpus for setting in unmeasured if not setting.seconds for gpus in next(iter(setting.runs.values()))}
    if len(unknown) > 1:
        say(f"to choose by times, probe first: the same with gpus={','.join(map(str, sorted(unknown)))} probe=true")


def _choose(setting: Setting, answers: Sequence[Estimate], packs: bool) -> None:
    """Choose a setting's number of GPUs for itself, among those whose memory will do."""
    fitting = [each for each in answers if each.prediction.fits != "no"] or answers
    numbers = [each.config.gpus for each in fitting]
    totals = {each.config.gpus: each.prediction.total_s for each in fitting}
    setting.seconds = {gpus: total_s for gpus, total_s in totals.items() if total_s is not None}
    times = {gpus: in_hours(seconds.value) for gpus, seconds in setting.seconds.items()}
    if packs:
        setting.gpus, setting.why = min(numbers), "no time is predicted, and cells run beside each other"
    elif times:
        setting.gpus = min(times, key=lambda gpus: (setting.seconds[gpus].value, gpus))
        others = ", ".join(f"{gpus}: {time}" for gpus, time in times.items() if gpus != setting.gpus)
        least = f"the least predicted time, {times[setting.gpus]}"
        setting.why = f"{least}; {others or 'of other numbers none is predicted'}"
    else:
        setting.gpus, setting.why = max(numbers), "no time is predicted, so all there are"
