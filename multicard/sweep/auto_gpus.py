"""`gpus=auto`: the number of GPUs, or CPU ranks, of each cell, chosen before its folder is named.

A cell that has the machine to itself gets the number of the least predicted time, or all GPUs where none is predicted.
Cells that run beside each other get those of the least makespan (the launcher hands in the planner), or one each. The
command line writes `gpus=auto` as `gpus=1 gpus_auto=true`, which every cell's own number replaces here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy, deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, flag_override

from multicard.config.base import RunConfig
from multicard.config.job import Device, count
from multicard.config.keys import require
from multicard.config.placement import place
from multicard.config.sweeps import is_elsewhere
from multicard.machine import shares
from multicard.machine.shares import Pool
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.records import run_folder
from multicard.records.schema_parts import Interval
from multicard.run import prepare
from multicard.run.workload import Workload
from multicard.sweep.cells import NAMED_CELLS, task_of
from multicard.sweep.command import Command

SWITCH = "gpus_auto=true"
REPEATS = ("seed=", "repetition=")  # begin words in which cells of one number of GPUs may differ
# From the predicted times of cells, each with the number of its runs, and the machine's GPUs to the number of each cell
# and the reason
Pack = Callable[[Sequence[tuple[Mapping[int, Interval], int]], int], tuple[Sequence[int], str]]


@dataclass
class AutoCell:
    """A cell whose number of GPUs is open, with the runs that differ from it in seed or repetition alone.

    labels, repeats: label of each run, and the words in which it differs. most: GPUs of the machine for it.
    possible: configurations by the numbers that can work; configs: those that may be chosen; seconds: their predicted
    times. measured: numbers of earlier measurements, by the place of their run. gpus, why: the choice for the others.
    """

    labels: list[str]
    cfg: DictConfig
    repeats: list[list[str]]
    most: int = 1
    possible: dict[int, RunConfig] = field(default_factory=dict)
    configs: dict[int, RunConfig] = field(default_factory=dict)
    seconds: dict[int, Interval] = field(default_factory=dict)
    measured: dict[int, int] = field(default_factory=dict)
    gpus: int = 1
    why: str = "no number can work"

    def of_run(self, place: int) -> tuple[int, str]:
        """The number of a run, and the reason."""
        number = self.measured.get(place)
        return (self.gpus, self.why) if number is None else (number, "measured so before")


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
    cells, runs = dict[tuple[str, ...], AutoCell](), dict[int, tuple[AutoCell, int]]()
    for index, words in enumerate(job_overrides):
        if not any(word.lower() == SWITCH for word in words):  # Hydra's sweeper writes "True"
            continue
        key = tuple(sorted(word for word in words if not word.startswith(REPEATS)))
        if key not in cells:
            composed = context.config_loader.load_sweep_config(sweep_config, [*words])
            cells[key] = AutoCell([], task_of(composed), [])
        runs[index] = cells[key], len(cells[key].labels)
        cells[key].labels.append(f"[{index + 1}/{len(job_overrides)}]")
        cells[key].repeats.append([word for word in words if word.startswith(REPEATS)])
    choose(command.workload, [*cells.values()], Path(sweep_config.hydra.sweep.dir), pack)
    command.forget("gpus", "gpus_auto")  # each cell has its own number
    resolved = [[*words] for words in job_overrides]
    for index, (cell, run) in runs.items():
        resolved[index] = with_gpus(resolved[index], cell.of_run(run)[0])
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
    cell = AutoCell([""], cfg, [[]])
    with shares.kept_to_unleased(cfg.device is not Device.cpu):
        choose(command.workload, [cell], Path(composed.hydra.runtime.output_dir), None)
        own = [cell.configs[cell.gpus]] if cell.gpus in cell.configs else []
        until_ended.enter_context(shares.announced(own))  # before others may choose
    command.forget("gpus", "gpus_auto")
    for config in (cfg, composed):
        with flag_override(config, "readonly", False):
            config.gpus, config.gpus_auto = cell.gpus, False
    with flag_override(composed.hydra, "readonly", False):
        composed.hydra.overrides.task = with_gpus(list(composed.hydra.overrides.task), cell.gpus)
    return None


def with_gpus(words: Sequence[str], gpus: int) -> list[str]:
    return [*(word for word in words if word.lower() != SWITCH and not word.startswith("gpus=")), f"gpus={gpus}"]


def counts(most: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def choose(workload: Workload, cells: Sequence[AutoCell], sweep: Path, pack: Pack | None) -> None:
    """Choose each cell's number of GPUs, and print the reason.

    Args:
        sweep: its folder.
    """
    whole = shares.machine()
    names = "\n".join(path.name for path in sweep.iterdir()) if sweep.is_dir() else ""
    for cell in cells:
        _configure(workload, cell, whole, packs=pack is not None)
        _look_up(cell, sweep, names)
    _predict(cells, sweep)
    for cell in cells:
        _choose(cell, pack is not None)
    planned = [cell for cell in cells if pack is not None and not cell.measured and cell.seconds]
    if pack is not None and planned:
        most = max(cell.most for cell in planned)
        numbers, why = pack([(cell.seconds, len(cell.labels)) for cell in planned], most)
        for cell, gpus in zip(planned, numbers, strict=True):
            cell.gpus, cell.why = gpus, why
    _say(cells)


def _configure(workload: Workload, cell: AutoCell, whole: Pool, packs: bool) -> None:
    """Set the configurations on each number of GPUs that the machine has, without those that cannot work."""
    on_gpus, jobs = bool(whole.gpus) and cell.cfg.device is not Device.cpu, cell.cfg.max_jobs
    cell.most = len(whole.gpus) if on_gpus else max(len(whole.cpus) // (cell.cfg.cpus_per_gpu if packs else 1), 1)
    # With fewer, GPUs would be idle however many cells run
    least = max(gpus for gpus in counts(cell.most) if gpus <= max(cell.most // jobs, 1)) if packs and jobs else 1
    for gpus in counts(cell.most):
        cfg = deepcopy(cell.cfg)
        cfg.gpus, cfg.gpus_auto = gpus, False
        try:
            config = prepare.typed(workload, cfg)
            workload.fits(config, place(config, len(whole.gpus), 1, workload.processes(config)))
        except ValueError:
            continue
        cell.possible[gpus] = config
    cell.configs = {gpus: config for gpus, config in cell.possible.items() if gpus >= least}


def _look_up(cell: AutoCell, sweep: Path, names: str) -> None:
    """Set the numbers with which runs of a cell were measured.

    Args:
        names: of all folders in the sweep's.
    """
    for gpus, config in {} if cell.cfg.rerun else cell.possible.items():
        for run, words in enumerate(cell.repeats):
            own = copy(config)
            for key, value in OmegaConf.from_dotlist(words).items():
                setattr(own, str(key), value)
            digits = own.identity()
            if run not in cell.measured and digits in names:
                known = run_folder.find_cell(sweep, run_folder.cell_name(digits, [], own.repetition))
                if run_folder.finished(known) is not None:
                    cell.measured[run] = gpus


def _predict(cells: Sequence[AutoCell], sweep: Path) -> None:
    """Set the predicted times, and take away the numbers of GPUs whose memory will not do."""
    from multicard.estimate.estimates import estimate

    pairs = [(cell, gpus) for cell in cells if not cell.measured for gpus in cell.configs]
    estimates = estimate([cell.configs[gpus] for cell, gpus in pairs], sweep / "cell") if pairs else []
    for (cell, gpus), answer in zip(pairs, estimates, strict=True):
        if answer.fits == "no" and len(cell.configs) > 1:
            del cell.configs[gpus]
        elif answer.total_s is not None:
            cell.seconds[gpus] = answer.total_s


def _choose(cell: AutoCell, packs: bool) -> None:
    if cell.measured:
        cell.gpus, cell.why = cell.measured[min(cell.measured)], "another seed was measured so before"
    elif cell.configs and packs:
        cell.gpus, cell.why = min(cell.configs), "no time is predicted, and cells run beside each other"
    elif cell.seconds:
        times = {gpus: in_hours(seconds.value) for gpus, seconds in cell.seconds.items()}
        cell.gpus = min(cell.seconds, key=lambda gpus: (cell.seconds[gpus].value, gpus))
        others = ", ".join(f"{gpus}: {time}" for gpus, time in times.items() if gpus != cell.gpus)
        cell.why = f"the least predicted time, {times[cell.gpus]}; {others or 'of other numbers none is predicted'}"
    elif cell.configs:
        cell.gpus, cell.why = max(cell.configs), "no time is predicted, so all there are"


def _say(cells: Sequence[AutoCell]) -> None:
    groups: dict[tuple[int, str], list[str]] = {}
    for cell in cells:
        for run, label in enumerate(cell.labels):
            groups.setdefault(cell.of_run(run), []).append(label)
    for (gpus, why), labels in groups.items():
        which = " ".join(labels) if len(labels) <= NAMED_CELLS else count(len(labels), "cell")
        say(f"{which}{' ' if which else ''}gpus=auto: {gpus} ({why})")
    unknown = {gpus for cell in cells if not cell.measured and not cell.seconds for gpus in cell.configs}
    if len(unknown) > 1:
        say(f"to choose by times, probe first: the same with gpus={','.join(map(str, sorted(unknown)))} probe=true")
