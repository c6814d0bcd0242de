"""Run the rounds of `repeat=auto`: measure cells again whose mean step is not known well enough.

All cells are measured twice, in alternation. Then cells are measured again until their mean step is
known to within `repeat_error`, or until `repeat_max` repetitions. Runs with other seeds count as
repetitions.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from omegaconf import DictConfig

from multicard.config.base import plain
from multicard.config.job import count
from multicard.config.sweeps import LEAST_AUTO, share
from multicard.measure import noise, repeated_runs
from multicard.measure.noise import Noise, Values
from multicard.messages import Message, say
from multicard.records import comparable, limits
from multicard.records.limits import Forbids
from multicard.records.schema import AnyRecord
from multicard.sweep.cells import Cell
from multicard.sweep.order import Turn, shuffled_turns


@dataclass
class Setting:
    """Cells that differ only in their repetition or seed.

    Attributes:
        name: the name of the first cell's folder.
        turns: its cells, without their repetition.
        step_s: mean step of each run that ended ok, by hardware.
        quiet_s: the same, only for runs that nothing disturbed.
        unusable: True if a run failed or has no step after the warm-up. The next would not differ.
    """

    name: str
    turns: list[Turn]
    step_s: dict[str, list[float]] = field(default_factory=dict)
    quiet_s: dict[str, list[float]] = field(default_factory=dict)
    runs: int = 0
    unusable: bool = False
    on_cpu: bool = False

    def add(self, record: AnyRecord) -> None:
        mean_s = record.steps.mean if record.status == "ok" and record.steps else None
        self.runs += 1
        self.on_cpu |= record.axes.get("device") == "cpu"
        if not mean_s:
            self.unusable = True
            return
        self.step_s.setdefault(str(record.hardware), []).append(mean_s)
        if not limits.forbidding(limits.of(record), Forbids.rate):
            self.quiet_s.setdefault(str(record.hardware), []).append(mean_s)

    def logarithms(self, hardware: str) -> Values:
        """Return logarithms of the mean steps on a machine, if possible of undisturbed runs."""
        step_s = self.quiet_s.get(hardware) or self.step_s[hardware]
        return [(math.log(seconds), 0.0) for seconds in step_s]


class UntilSure:
    """The rounds of a sweep.

    Args:
        turns: the cells, without their repetition.

    Attributes:
        batch: the cells that are measured next, in their order; empty at the end.
    """

    def __init__(self, config: DictConfig, turns: Sequence[Turn]) -> None:
        self.error = math.log1p(share(config.repeat_error))
        self.most = config.repeat_max
        self.order = config.order
        self.settings: dict[str, Setting] = {}
        self.rounds = LEAST_AUTO
        numbers = range(1, LEAST_AUTO + 1)
        self.batch = list(chain.from_iterable(self._round(number, turns) for number in numbers))

    def plan(self, cells: Iterable[Cell]) -> None:
        """Add the cells of a batch before they are measured."""
        for cell in sorted(cells, key=lambda cell: cell.number):
            setting = self._setting(cell)
            words = [*cell.overrides[:-1]]
            if words not in [turn.words for turn in setting.turns]:
                setting.turns.append(Turn(cell.number // self._number_stride, words))

    def take(self, cells: Iterable[Cell]) -> None:
        """Add the records of the batch, and choose the next batch."""
        for cell in cells:
            if cell.result is not None:
                self._setting(cell).add(cell.result.record)
        self.rounds += 1
        unsure = self.unsure() if self.rounds <= self.most else {}
        turns = []
        for name in unsure:
            turns.extend(self.settings[name].turns)
        self.batch = self._round(self.rounds, turns)

    def unsure(self) -> dict[str, Message]:
        """Return a message for each setting whose mean is not known well enough, by its key."""
        noises = self.noises()
        unsure = dict[str, Message]()
        for key, setting in self.settings.items():
            half = self.half_width(setting, noises)
            if setting.unusable or half <= self.error:
                continue
            unsure[key] = Message(
                "repeat.interval",
                f"{setting.name}: {_interval(half)}",
                cell=setting.name,
                half=math.expm1(half) if math.isfinite(half) else None,
            )
        return unsure

    def say(self) -> None:
        """Print how many runs it took, and which settings are undecided."""
        runs = sum(setting.runs for setting in self.settings.values())
        unsure = self.unsure()
        unusable = [setting.name for setting in self.settings.values() if setting.unusable]
        sure = len(self.settings) - len(unsure) - len(unusable)
        message = Message(
            "repeat.ended",
            f"repeat=auto: {count(runs, 'run')} of {count(len(self.settings), 'cell')}; {sure} are"
            " sure enough",
            key="repeat",
            runs=runs,
            cells=len(self.settings),
            sure=sure,
        )
        say(message)
        for key, problem in unsure.items():
            setting_runs = self.settings[key].runs
            message = Message(
                "repeat.undecided",
                f"undecided after {count(setting_runs, 'run')}: {problem}",
                runs=setting_runs,
                reason=problem,
            )
            say(f"  {message}")
        for name in unusable:
            message = Message(
                "repeat.unusable", f"not repeated further, without a mean step: {name}", cell=name
            )
            say(f"  {message}")

    def noises(self) -> dict[str, Noise]:
        """Return how much runs of one setting differ, by hardware."""
        by_hardware: dict[str, list[Values]] = {}
        on_cpu = any(setting.on_cpu for setting in self.settings.values())
        for setting in self.settings.values():
            for hardware in setting.step_s:
                by_hardware.setdefault(hardware, []).append(setting.logarithms(hardware))
        sd = noise.prior_sd(on_cpu)
        return {hardware: Noise.learnt(settings, sd) for hardware, settings in by_hardware.items()}

    def half_width(self, setting: Setting, noises: Mapping[str, Noise]) -> float:
        """Return half of the widest interval of the setting's mean, on the logarithm.

        It is infinite if there is no interval yet.
        """
        half_widths = []
        for hardware in setting.step_s:
            values = setting.logarithms(hardware)
            spread = noises[hardware].of(values)
            if not spread.repetitions:
                return math.inf
            half_widths.append(repeated_runs.half_width(len(values), spread))
        return max(half_widths, default=math.inf)

    @property
    def _number_stride(self) -> int:
        """The difference between the numbers of neighbouring cells.

        All repetitions of a cell have their numbers in between.
        """
        return self.most + 1

    def _round(self, number: int, turns: Sequence[Turn]) -> list[Turn]:
        """Return a round of these cells, in the order in which they are measured."""
        round_turns = [
            Turn(turn.number * self._number_stride + number, [*turn.words, f"repetition={number}"])
            for turn in turns
        ]
        return shuffled_turns(round_turns, self.order)

    def _setting(self, cell: Cell) -> Setting:
        keys = comparable.measured_settings(plain(cell.config))
        keys.pop("seed", None)  # Scripts have no seed.
        return self.settings.setdefault(str(sorted(keys.items())), Setting(cell.folder.name, []))


def _interval(half: float) -> str:
    """Describe the interval of a mean step, given its half width on the logarithm."""
    if not math.isfinite(half):
        return "without an interval"
    if half < math.log(2):
        return f"mean step ±{math.expm1(half):.1%}"
    # The lower end of a wide interval would be below 0, so a factor is shown.
    return f"mean step known to a factor of {math.exp(half):.1f}"
