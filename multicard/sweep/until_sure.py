"""Rounds of `repeat=auto`: cells whose mean step is not known well enough are measured again.

All cells are measured twice, by turns. Then those whose mean step is not known to within `repeat_error` are measured
again, until it is, or until `repeat_max`. With `repeat_compare=KEY` a cell is also sure enough once each comparison
with its other values of that key is decided: they differ, or are shown to differ by no more than the margin. Runs of
other seeds are repetitions.

A comparison that is looked at after every repetition would call equal cells different more often than in 5 % of the
cases. So before the last repetition it needs intervals of EARLY, which are wider (Haybittle 1971, Peto et al. 1976).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from omegaconf import DictConfig

from multicard.config.base import plain
from multicard.config.job import count
from multicard.config.keys import require
from multicard.config.sweeps import LEAST_AUTO, share
from multicard.measure import repeated_runs
from multicard.measure.repeated_runs import CONFIDENCE, MARGIN, UNDECIDED, Spread
from multicard.messages import say
from multicard.records import comparable
from multicard.records.schema import AnyRecord
from multicard.sweep.cells import Cell

EARLY = 0.998  # confidence of comparisons before the last repetition


@dataclass
class Setting:
    """Cells that differ in their repetition or seed alone, named as the first one's folder.

    keys: its configuration, without the seed. words: the overrides of its cells. step_s: mean step of each run that
    ended ok, by hardware. unusable: a run ended otherwise, or has no step beyond the warm-up, as the next would.
    """

    name: str
    keys: dict[str, str]
    words: list[list[str]]
    step_s: dict[str, list[float]] = field(default_factory=dict)
    runs: int = 0
    unusable: bool = False

    def add(self, record: AnyRecord) -> None:
        mean_s = record.steps.mean if record.status == "ok" and record.steps else None
        self.runs += 1
        if mean_s:
            self.step_s.setdefault(str(record.hardware), []).append(mean_s)
        else:
            self.unusable = True

    def without(self, key: str) -> dict[str, str]:
        """The configuration without a key: `precision` is `precision.name` and so on too."""
        return {name: value for name, value in self.keys.items() if f".{key}." not in f".{name}."}


class UntilSure:
    """The rounds of a sweep.

    batch: overrides of the cells that are measured next; empty at the end.

    Args:
        overrides: of each cell, without its repetition.
    """

    def __init__(self, config: DictConfig, overrides: Sequence[Sequence[str]]) -> None:
        self.error, self.most = math.log1p(share(config.repeat_error)), config.repeat_max
        self.compared: str | None = config.repeat_compare
        self.settings: dict[str, Setting] = {}
        self.rounds = LEAST_AUTO
        self.batch = [[*words, f"repetition={turn}"] for turn in range(1, LEAST_AUTO + 1) for words in overrides]

    def plan(self, cells: Iterable[Cell]) -> None:
        """Take the cells of a batch, before they are measured. Refused where `repeat_compare` compares none."""
        for cell in cells:
            setting, words = self._setting(cell), self.batch[cell.number - 1][:-1]
            setting.words += [words] if words not in setting.words else []
        alone = self.compared is not None and not any(self._others(setting) for setting in self.settings.values())
        require(not alone, f"repeat_compare={self.compared}: no two cells differ in it alone; name a key that is swept")

    def take(self, cells: Iterable[Cell]) -> None:
        """Take the records of the batch, and choose the next one."""
        for cell in cells:
            if cell.result is not None:
                self._setting(cell).add(cell.result.record)
        self.rounds += 1
        unsure = self.unsure(EARLY) if self.rounds <= self.most else {}
        words = [words for name in unsure for words in self.settings[name].words]
        self.batch = [[*each, f"repetition={self.rounds}"] for each in words]

    def unsure(self, confidence: float) -> dict[str, str]:
        """What is not known well enough of each setting, by comparisons of this confidence."""
        spreads, unsure = self.spreads(), dict[str, str]()
        for key, setting in self.settings.items():
            half = self.half_width(setting, spreads)
            if setting.unusable or half <= self.error:
                continue
            others = self._others(setting)
            against = [other.name for other in others if _undecided(setting, other, spreads, confidence)]
            if others and not against:
                continue
            interval = "without an interval"
            if math.isfinite(half):  # on the logarithm: what is wide is no ± of the mean, which would reach below 0
                wide = f"mean step known to a factor of {math.exp(half):.1f}"
                interval = f"mean step ±{math.expm1(half):.1%}" if half < math.log(2) else wide
            unsure[key] = f"{setting.name}: {interval}" + (f"; against {', '.join(against)}" if against else "")
        return unsure

    def say(self) -> None:
        """Print how many runs it took, and what is undecided."""
        runs = sum(setting.runs for setting in self.settings.values())
        unsure = self.unsure(CONFIDENCE)
        unusable = [setting.name for setting in self.settings.values() if setting.unusable]
        sure = len(self.settings) - len(unsure) - len(unusable)
        say(f"repeat=auto: {count(runs, 'run')} of {count(len(self.settings), 'cell')}; {sure} are sure enough")
        for key, problem in unsure.items():
            say(f"  undecided after {count(self.settings[key].runs, 'run')}: {problem}")
        for name in unusable:
            say(f"  not repeated further, without a mean step: {name}")

    def spreads(self) -> dict[str, Spread]:
        """How runs of one setting differ, by hardware."""
        logarithms: dict[str, list[list[tuple[float, float]]]] = {}
        for setting in self.settings.values():
            for hardware, step_s in setting.step_s.items():
                logarithms.setdefault(hardware, []).append([(math.log(seconds), 0.0) for seconds in step_s])
        return {hardware: repeated_runs.pooled(settings) for hardware, settings in logarithms.items()}

    def half_width(self, setting: Setting, spreads: dict[str, Spread]) -> float:
        """Half of the widest interval of the setting's mean, of its logarithm; infinite before there is one."""
        known = [(len(step_s), spreads[hardware]) for hardware, step_s in setting.step_s.items()]
        if not known or not all(spread.degrees for _, spread in known):
            return math.inf
        return max(repeated_runs.half_width(runs, spread) for runs, spread in known)

    def _setting(self, cell: Cell) -> Setting:
        keys = comparable.measured_settings(plain(cell.config))
        keys.pop("seed", None)  # which scripts have not
        return self.settings.setdefault(str(sorted(keys.items())), Setting(cell.folder.name, keys, []))

    def _others(self, setting: Setting) -> list[Setting]:
        """The settings that differ from one in the compared key alone."""
        if self.compared is None:
            return []
        rest, every = setting.without(self.compared), self.settings.values()
        return [other for other in every if other is not setting and other.without(self.compared) == rest]


def _undecided(a: Setting, b: Setting, spreads: dict[str, Spread], confidence: float) -> bool:
    """True where a comparison is undecided on any hardware that both ran on."""
    for name in () if b.unusable else a.step_s.keys() & b.step_s.keys():
        ratio = repeated_runs.of_values(a.step_s[name], b.step_s[name], (spreads[name], spreads[name]))
        if ratio.verdict(MARGIN, confidence) == UNDECIDED:
            return True
    return False
