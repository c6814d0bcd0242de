"""`batch_size=auto`: the largest batch of a rank that fits, of each cell, found before its folder is named.

Powers of two are predicted, then sizes between the largest that fits and the next; a short probe confirms the choice,
or lowers it. Cells keep `batch_size_auto=true` beside their size, so that a later command takes it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig

from multicard.config.base import AUTO_BATCH, plain
from multicard.config.job import count
from multicard.config.keys import require
from multicard.config.sweeps import is_elsewhere, starts_nothing
from multicard.estimate.estimates import Effort, Estimate, estimate
from multicard.estimate.memory import facts
from multicard.estimate.target import targets
from multicard.machine import shares
from multicard.measure.memory import available_memory_bytes
from multicard.messages import say
from multicard.records import run_folder
from multicard.records.comparable import measured_settings
from multicard.records.text_table import in_bytes
from multicard.sweep.auto_gpus import REPEATS
from multicard.sweep.cells import Cell, Refused, cell_of, task_of
from multicard.sweep.command import Command
from multicard.sweep.task import run

MOST = 1 << 12  # of rows whose number is not known
TRIES = 3  # probes: where memory runs out, of the two next smaller sizes too
PROBE_S = 5.0  # of training
RANK_BYTES = 600_000_000  # of a CPU rank beside its tensors


@dataclass
class Search:
    """The search for a cell and its repetitions, at these places of the sweep. found: sizes that fit, with their memory
    in words; the largest is taken."""

    command: Command
    composed: DictConfig
    places: list[int] = field(default_factory=list)
    found: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problem: str = "nothing is predicted of it"

    @property
    def size(self) -> int:
        return max(self.found, default=1)

    def cell(self, size: int, probes: bool = False) -> Cell | Refused:
        """The cell with a size, or its probe."""
        cfg = task_of(self.composed)
        cfg.batch_size = size
        if probes:
            cfg.repeat, cfg.repetition, cfg.tracker.mode, cfg.diagnose = "1", 1, "disabled", False
            cfg.probe.enabled, cfg.probe.seconds = True, PROBE_S
        sweep, words = Path(str(self.composed.hydra.sweep.dir)), [f"batch_size={size}"]
        return cell_of(self.command.workload, self.composed, cfg, sweep, words, label=f"batch_size={size} ")

    def take_measured(self) -> None:
        """Take the size of an earlier command's run, or of the probe that confirmed it."""
        one = self.cell(1)
        if isinstance(one, Cell) and not self.composed.rerun:
            paths = one.folder.parent.glob(f"*/{run_folder.RESULT}")
            runs = [run for path in paths if (run := run_folder.finished(path.parent))]
            runs = [run for run in runs if run.record.config.get("batch_size_auto")]
            runs = [run for run in runs if _alike(run.record.config) == _alike(plain(one.config))]
            runs = [run for run in runs if not run.record.is_probe] or [run for run in runs if run.status == "ok"]
            self.found = {run.record.config["batch_size"]: "measured so before" for run in runs[:1]}

    def cells(self) -> list[tuple["Search", Cell]]:
        """Powers of two up to the samples of a rank; once some fit, sizes above the largest and below the next."""
        one, ranks = self.cell(1), self.composed.gpus * self.composed.nodes
        known = facts.sizes(one.config) if isinstance(one, Cell) else ""
        most = -(-known.train // ranks) if isinstance(known, facts.ImageFacts) else MOST
        sizes = {1 << power for power in range(most.bit_length())}
        if self.found:
            between = {self.size * quarters // 4 for quarters in (5, 6, 7)} | {most}
            sizes = {size for size in between if self.size < size <= min(most, 2 * self.size - 1)}
        return [(self, cell) for size in sorted(sizes) if isinstance(cell := self.cell(size), Cell)]

    def took(self, probe: Cell) -> bool:
        """Take what the size's probe has shown. False where memory ran out."""
        assert probe.result is not None
        status, seen = probe.result.status, probe.result.record.probe
        if status == "interrupted":
            raise KeyboardInterrupt
        if status == "oom":
            del self.found[self.size]
            self.notes.append(f"memory ran out at {probe.cfg.batch_size}")
        else:
            self.notes.append(f"confirmed by {count(seen.steps, 'step')}" if seen else f"its probe {status}")
        return status != "oom"


def refuse(config: Any, on_slurm: bool, packs: bool, own_sweeper: bool) -> None:
    """Refuse `batch_size=auto` where it has no meaning, with the remedy."""
    profile, whole, remedy = config.profile.name, config.global_batch_size, "give the size, as batch_size=32"
    for works, problem in (
        (whole is None, f"global_batch_size={whole} says what a step has; leave one of them out"),
        (not config.gpus_auto, "is for given GPUs, and gpus=auto for a given batch; leave one of them out"),
        (config.race.figure is None, f"a race compares sizes that are given; {remedy}"),
        (not packs or config.exclusive is not False, f"cells beside each other share their memory; {remedy}"),
        (own_sweeper, "needs multicard's own sweeper; leave hydra/sweeper out"),
        (str(profile) == "none", f"is confirmed by a probe; leave out profile={profile}"),
        (not on_slurm or is_elsewhere(config), f"SLURM's GPUs are not known; give predict.gpu, or {remedy}"),
    ):
        require(works, f"batch_size=auto: {problem}")


def resolve(
    command: Command, context: HydraContext, config: DictConfig, job_overrides: Sequence[Sequence[str]], on_slurm: bool
) -> list[list[str]]:
    """The overrides of each cell with its size: the largest that fits, or 1. Nothing confirms a size for a command that
    starts nothing here."""
    searches, sized = dict[tuple[str, ...], Search](), dict[int, int]()
    for place, words in enumerate(job_overrides):
        key = tuple(sorted(word for word in words if not word.startswith(REPEATS)))
        if key not in searches:
            searches[key] = Search(command, context.config_loader.load_sweep_config(config, [*words]))
            searches[key].take_measured()
        searches[key].places.append(place)
    left = [search for search in searches.values() if not search.found]
    _predict(left)
    _predict([search for search in left if search.found])
    for _ in range(0 if on_slurm or starts_nothing(config) else TRIES):
        pairs = [(search, search.cell(search.size, probes=True)) for search in left if search.found]
        probes = [(search, probe) for search, probe in pairs if isinstance(probe, Cell)]
        with shares.announced([probe.config for _, probe in probes]):
            for _, probe in probes:
                run(command, probe)
        left = [search for search, probe in probes if not search.took(probe)]
    for search in searches.values():
        label = " ".join(f"[{place + 1}/{len(job_overrides)}]" for place in search.places)
        why = ", ".join(filter(None, (search.found.get(search.size, search.problem), *search.notes)))
        say(f"{label} batch_size=auto: {search.size} ({why})")
        sized |= dict.fromkeys(search.places, search.size)
    keys = {word.partition("=")[0] for word in AUTO_BATCH}
    command.forget(*keys)
    own = [[word for word in words if word.partition("=")[0] not in keys] for words in job_overrides]
    return [[*words, f"batch_size={sized[place]}", AUTO_BATCH[1]] for place, words in enumerate(own)]


def _predict(searches: Sequence[Search]) -> None:
    """Predict the next sizes of each search."""
    tried = [pair for search in searches for pair in search.cells()]
    configs = [cell.config for _, cell in tried]
    answers = estimate(configs, tried[0][1].folder, targets(configs), Effort.all) if tried else []
    for (search, cell), answer in zip(tried, answers, strict=True):
        fits, needs = _verdict(answer)
        if fits:
            search.found[cell.cfg.batch_size] = f"predicted {needs}"
        elif not search.found and cell.cfg.batch_size <= 2:  # BatchNorm may not take 1
            search.problem = f"not even {cell.cfg.batch_size} fits: {needs}"


def _verdict(answer: Estimate) -> tuple[bool, str]:
    """Whether all of a run's interval fits, and its memory in words; CPU ranks share what the machine has left."""
    prediction, has, extra = answer.prediction, answer.target.memory_bytes, 0
    needed, fits = prediction.memory_bytes, prediction.fits == "yes"
    if needed is None or has is None:
        return False, str(prediction.memory_basis)
    if answer.target.device_type == "cpu":
        has, extra = available_memory_bytes() // answer.config.gpus, RANK_BYTES
        fits = prediction.fits != "no" and needed.high + extra <= has
    high = in_bytes(needed.high + extra)
    return fits, f"{in_bytes(needed.value + extra)}, at most {high} of {in_bytes(has)}"


def _alike(config: dict[str, Any]) -> dict[str, str]:
    settings = measured_settings(config)
    return {key: value for key, value in settings.items() if key not in ("batch_size", "seed")}
