"""`gpus=auto`: the number of GPUs, or CPU ranks, of each cell, chosen before its folder is named.

A cell that has the machine to itself gets the number of the least predicted time, or all GPUs where none is predicted.
Cells that run beside each other get those of the least makespan (the launcher hands in how that is planned), or one
each. The command line writes `gpus=auto` as `gpus=1 gpus_auto=true`, which every cell's own number replaces here.
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
from multicard.config.prediction import is_elsewhere
from multicard.machine import shares
from multicard.machine.shares import Pool
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.records import identity, run_folder
from multicard.records.schema_parts import Interval
from multicard.run import prepare
from multicard.run.workload import Workload
from multicard.sweep.cells import NAMED_CELLS
from multicard.sweep.command import Command

SWITCH = "gpus_auto=true"
REPEATS = ("seed=", "repetition=")  # begin words by which cells differ that are to have the same number of GPUs


@dataclass
class AutoCell:
    """A cell whose number of GPUs is open, and those that differ from it in their seed or repetition alone.

    labels, repeats: of each of these runs, and the words in which it differs. most: GPUs that there are for it.
    possible: by the numbers that can work; configs: by those of them that are chosen from. seconds: predicted, where
    they are. measured: by the place of a run, the number with which the sweep has measured it. gpus, why: what is
    chosen for the others.
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

    @property
    def before(self) -> int | None:
        """The number with which the first run that was measured was."""
        return self.measured[min(self.measured)] if self.measured else None

    def of_run(self, place: int) -> tuple[int, str]:
        """A run's number, and why."""
        number = self.measured.get(place)
        return (self.gpus, self.why) if number is None else (number, "measured so before")


# From cells of which times are known, each with the number of its runs, and the number of GPUs: that of each cell, and
# why
Pack = Callable[[Sequence[tuple[Mapping[int, Interval], int]], int], tuple[Sequence[int], str]]


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
    """The overrides of each cell, with the number of GPUs that is chosen for it.

    Args:
        pack: plans cells that run beside each other; None where each has the machine to itself.

    Raises:
        ValueError: the planner is not installed.
    """
    total, cells, runs = len(job_overrides), dict[tuple[str, ...], AutoCell](), dict[int, tuple[AutoCell, int]]()
    for index, words in enumerate(job_overrides):
        if not is_open(words):
            continue
        key = tuple(sorted(word for word in words if not word.startswith(REPEATS)))
        if key not in cells:
            composed = context.config_loader.load_sweep_config(sweep_config, [*words])
            cells[key] = AutoCell([], identity.task_of(composed), [])
        cell = cells[key]
        runs[index] = cell, len(cell.labels)
        cell.labels.append(f"[{index + 1}/{total}]")
        cell.repeats.append([word for word in words if word.startswith(REPEATS)])
    choose(command.workload, [*cells.values()], Path(sweep_config.hydra.sweep.dir), pack)
    command.forget("gpus", "gpus_auto")  # each cell has its own number
    resolved = [[*words] for words in job_overrides]
    for index, (cell, place_of) in runs.items():
        resolved[index] = with_gpus(resolved[index], cell.of_run(place_of)[0])
    return resolved


def resolve_single(command: Command, cfg: DictConfig, composed: Any, until_ended: ExitStack) -> str | None:
    """Set the number of GPUs of a single run, which then keeps to what no other command has leased.

    Args:
        composed: Hydra's configuration, of which `cfg` is the run's part; both are changed.
        until_ended: what the run computes on is leased until it is left.

    Returns:
        Why it is refused.
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
    words = with_gpus(list(composed.hydra.overrides.task), cell.gpus)
    for config in (cfg, composed):
        with flag_override(config, "readonly", False):
            config.gpus, config.gpus_auto = cell.gpus, False
    with flag_override(composed.hydra, "readonly", False):
        composed.hydra.overrides.task = words
    return None


def is_open(words: Sequence[str]) -> bool:
    """Whether these words leave the number of GPUs open."""
    return any(word.lower() == SWITCH for word in words)  # Hydra's sweeper writes "True"


def with_gpus(words: Sequence[str], gpus: int) -> list[str]:
    return [*(word for word in words if word.lower() != SWITCH and not word.startswith("gpus=")), f"gpus={gpus}"]


def choose(workload: Workload, cells: Sequence[AutoCell], sweep: Path, pack: Pack | None) -> None:
    """Choose each cell's number of GPUs, and say why.

    Args:
        sweep: its folder.
    """
    whole = shares.machine()
    for cell in cells:
        _configure(workload, cell, whole, packs=pack is not None)
    if sweep.is_dir():
        names = "\n".join(path.name for path in sweep.iterdir())
        for cell in cells:
            _look_up(cell, sweep, names)
    _predict(cells, sweep)
    for cell in cells:
        _choose(cell, pack is not None)
    open_cells = [cell for cell in cells if pack is not None and cell.before is None and cell.seconds]
    if pack is not None and open_cells:
        most = max(cell.most for cell in open_cells)
        known = [(cell.seconds, len(cell.labels)) for cell in open_cells]
        numbers, why = pack(known, most)
        for cell, gpus in zip(open_cells, numbers, strict=True):
            cell.gpus, cell.why = gpus, why
    _say(cells)


def _configure(workload: Workload, cell: AutoCell, whole: Pool, packs: bool) -> None:
    """The cell on each number of GPUs that the machine has for it, without those that cannot work."""
    device, jobs = cell.cfg.device, cell.cfg.max_jobs
    on_gpus = bool(whole.gpus) and device is not Device.cpu
    most = len(whole.gpus) if on_gpus else max(len(whole.cpus) // (cell.cfg.cpus_per_gpu if packs else 1), 1)
    cell.most = most
    least = max(number for number in counts(most) if number <= max(most // jobs, 1)) if packs and jobs else 1
    for gpus in counts(most):
        cfg = deepcopy(cell.cfg)
        cfg.gpus, cfg.gpus_auto = gpus, False
        try:
            config = prepare.typed(workload, cfg)
            placement = place(config, len(whole.gpus), 1, workload.processes(config))
            workload.fits(config, placement)
        except ValueError:
            continue
        cell.possible[gpus] = config
        if gpus >= least:  # with fewer, GPUs would be idle however many cells run
            cell.configs[gpus] = config


def _look_up(cell: AutoCell, sweep: Path, names: str) -> None:
    """See with which number each run of a cell was measured.

    Args:
        names: of all folders in the sweep's.
    """
    for gpus, config in {} if cell.cfg.rerun else cell.possible.items():
        for place_of, words in enumerate(cell.repeats):
            own = copy(config)
            for key, value in OmegaConf.from_dotlist(words).items():
                setattr(own, str(key), value)
            digits = own.identity()
            if place_of not in cell.measured and digits in names:
                known = identity.find(sweep, identity.name(digits, [], own.repetition))
                if run_folder.finished(known) is not None:
                    cell.measured[place_of] = gpus


def counts(most: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and all."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def _predict(cells: Sequence[AutoCell], sweep: Path) -> None:
    """Set the times that are predicted, and take away the numbers of GPUs whose memory will not do."""
    from multicard.estimate.estimates import estimate

    pairs = [(cell, gpus) for cell in cells if cell.before is None for gpus in cell.configs]
    if not pairs:
        return
    estimates = estimate([cell.configs[gpus] for cell, gpus in pairs], sweep / "cell")
    for (cell, gpus), answer in zip(pairs, estimates, strict=True):
        if answer.fits == "no" and len(cell.configs) > 1:
            del cell.configs[gpus]
        elif answer.total_s is not None:
            cell.seconds[gpus] = answer.total_s


def _choose(cell: AutoCell, packs: bool) -> None:
    if cell.before is not None:
        cell.gpus, cell.why = cell.before, "another seed was measured so before"
    elif not cell.configs:
        pass
    elif cell.seconds and not packs:
        cell.gpus = min(cell.seconds, key=lambda gpus: (cell.seconds[gpus].value, gpus))
        others = [f"{gpus}: {in_hours(cell.seconds[gpus].value)}" for gpus in cell.seconds if gpus != cell.gpus]
        own = f"the least predicted time, {in_hours(cell.seconds[cell.gpus].value)}"
        cell.why = f"{own}; {', '.join(others)}" if others else f"{own}; of other numbers none is predicted"
    elif packs:
        cell.gpus, cell.why = min(cell.configs), "no time is predicted, and cells run beside each other"
    else:
        cell.gpus, cell.why = max(cell.configs), "no time is predicted, so all there are"


def _say(cells: Sequence[AutoCell]) -> None:
    groups: dict[tuple[int, str], list[str]] = {}
    for cell in cells:
        for place_of, label in enumerate(cell.labels):
            groups.setdefault(cell.of_run(place_of), []).append(label)
    for (gpus, why), labels in groups.items():
        which = " ".join(labels) if len(labels) <= NAMED_CELLS else count(len(labels), "cell")
        say(f"{which}{' ' if which else ''}gpus=auto: {gpus} ({why})")
    unknown = {gpus for cell in cells if cell.before is None and not cell.seconds for gpus in cell.configs}
    if len(unknown) > 1:
        say(f"to choose by times, probe first: the same with gpus={','.join(map(str, sorted(unknown)))} probe=true")
