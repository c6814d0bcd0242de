"""Which cells `repeat=auto` measures again: those that are not sure enough yet.

All cells are measured twice, by turns. Then those are measured again of which the mean step is not known to within
`repeat_error`, until it is, or until `repeat_max`. With `repeat_compare=KEY` a cell is sure enough too once each
comparison with its other values of that key is decided: they differ, or are shown to differ by no more than the margin.
Runs of other seeds are repetitions.

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
from multicard.config.repetition import LEAST_AUTO, share
from multicard.measure import repeated_runs
from multicard.measure.repeated_runs import CONFIDENCE, MARGIN, UNDECIDED, Spread
from multicard.messages import say
from multicard.records import comparable
from multicard.records.schema import AnyRecord
from multicard.sweep.cells import Cell

EARLY = 0.998  # confidence of comparisons before the last repetition
REPEATED = "seed"
Overrides = list[str]


@dataclass
class Setting:
    """Cells that differ in their repetition or seed alone.

    name: of the folder of the first. keys: its configuration, without the seed. words: the overrides of its cells.
    step_s: mean step of each run that ended ok, by the hardware that it ran on. unusable: one ended otherwise, or has
    no step beyond the warm-up, and so would the next.
    """

    name: str
    keys: dict[str, str]
    words: list[Overrides]
    step_s: dict[str, list[float]] = field(default_factory=dict)
    runs: int = 0
    unusable: bool = False

    def add(self, record: AnyRecord) -> None:
        mean_s = record.steps.mean if record.status == "ok" and record.steps else None
        self.runs += 1
        if not mean_s:
            self.unusable = True
            return
        self.step_s.setdefault(str(record.hardware), []).append(mean_s)


class UntilSure:
    """The rounds of a sweep with `repeat=auto`.

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
        """Take the cells of a batch, before they are measured.

        Raises:
            ValueError: no two cells differ in `repeat_compare` alone.
        """
        for cell in cells:
            setting = self._setting(cell)
            words = self.batch[cell.number - 1][:-1]
            setting.words += [words] if words not in setting.words else []
        alone = self.compared is not None and not any(self._others(setting) for setting in self.settings.values())
        require(not alone, f"repeat_compare={self.compared}: no two cells differ in it alone; name a key that is swept")

    def take(self, cells: Iterable[Cell]) -> None:
        """Take the records of the batch, and choose the next one: `batch` is empty at the end."""
        for cell in cells:
            if cell.result is not None:
                self._setting(cell).add(cell.result.record)
        self.rounds += 1
        unsure = self.unsure(EARLY) if self.rounds <= self.most else []
        self.batch = [[*words, f"repetition={self.rounds}"] for setting in unsure for words in setting.words]

    def unsure(self, confidence: float) -> list[Setting]:
        """The settings that are not sure enough, by comparisons of this confidence."""
        spreads = self.spreads()
        usable = [setting for setting in self.settings.values() if not setting.unusable]
        return [setting for setting in usable if self._undecided(setting, spreads, confidence)]

    def say(self) -> None:
        """Say how many runs it took, and what is undecided."""
        runs = sum(setting.runs for setting in self.settings.values())
        unsure, spreads = self.unsure(CONFIDENCE), self.spreads()
        unusable = [setting for setting in self.settings.values() if setting.unusable]
        sure = len(self.settings) - len(unsure) - len(unusable)
        say(f"repeat=auto: {count(runs, 'run')} of {count(len(self.settings), 'cell')}; {sure} are sure enough")
        for setting in unsure:
            say(f"  undecided after {count(setting.runs, 'run')}: {self._described(setting, spreads)}")
        for setting in unusable:
            say(f"  not repeated further, without a mean step: {setting.name}")

    def _setting(self, cell: Cell) -> Setting:
        keys = comparable.measured_settings(plain(cell.config))
        keys.pop(REPEATED)
        return self.settings.setdefault(str(sorted(keys.items())), Setting(cell.folder.name, keys, []))

    def spreads(self) -> dict[str, Spread]:
        """How runs of one setting differ, by hardware."""
        logarithms: dict[str, list[list[tuple[float, float]]]] = {}
        for setting in self.settings.values():
            for hardware, step_s in setting.step_s.items():
                logarithms.setdefault(hardware, []).append([(math.log(seconds), 0.0) for seconds in step_s])
        return {hardware: repeated_runs.pooled(settings) for hardware, settings in logarithms.items()}

    def _undecided(self, setting: Setting, spreads: dict[str, Spread], confidence: float) -> bool:
        if self.half_width(setting, spreads) <= self.error:
            return False
        others = self._others(setting)
        return not others or any(self._apart(setting, other, spreads, confidence) for other in others)

    def half_width(self, setting: Setting, spreads: dict[str, Spread]) -> float:
        """Half of the widest interval of the setting's mean, relative to it; infinite before there is one."""
        known = [(len(step_s), spreads[hardware]) for hardware, step_s in setting.step_s.items()]
        widths = [repeated_runs.half_width(runs, spread) for runs, spread in known if spread.degrees]
        return max(widths) if widths and len(widths) == len(known) else math.inf

    def _others(self, setting: Setting) -> list[Setting]:
        """The settings that differ from one in the compared key alone."""
        if self.compared is None:
            return []
        rest = self._rest(setting)
        return [other for other in self.settings.values() if other is not setting and self._rest(other) == rest]

    def _rest(self, setting: Setting) -> dict[str, str]:
        """The configuration without the compared key: `precision` is `precision.name` and so on too."""
        key = str(self.compared)
        own = lambda name: name == key or name.startswith(f"{key}.") or name.endswith(f".{key}")  # noqa: E731
        return {name: value for name, value in setting.keys.items() if not own(name)}

    def _apart(self, a: Setting, b: Setting, spreads: dict[str, Spread], confidence: float) -> bool:
        """Whether a comparison is undecided on any hardware that both ran on."""
        if b.unusable:
            return False
        return any(
            repeated_runs.of_values(a.step_s[name], b.step_s[name], (spreads[name], spreads[name])).verdict(
                MARGIN, confidence
            )
            == UNDECIDED
            for name in a.step_s.keys() & b.step_s.keys()
        )

    def _described(self, setting: Setting, spreads: dict[str, Spread]) -> str:
        """A setting with its interval, and what it is not told apart from."""
        against = [other.name for other in self._others(setting) if self._apart(setting, other, spreads, CONFIDENCE)]
        width = self.half_width(setting, spreads)
        interval = f"mean step ±{math.expm1(width):.1%}" if math.isfinite(width) else "without an interval"
        return f"{setting.name}: {interval}" + (f"; against {', '.join(against)}" if against else "")
