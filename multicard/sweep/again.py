"""Measure disturbed repetitions once more.

With `repeat=3`, each setting should have three runs that show how fast it is. A run does not show
that if other programs used the machine meanwhile, or if a process stood still. It is measured
again, at most `repeat_disturbed` times.

The new run is a further repetition of its setting: with `repeat=3`, it is the fourth. It has a
folder and a record as any other run, and a later `repeat=5` reuses it. Which runs are owed follows
from the records alone, so the same command resumes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from multicard.config.base import Scale
from multicard.config.job import count
from multicard.config.sweeps import repeats
from multicard.messages import Message, say
from multicard.records import limits
from multicard.records.limits import Forbids
from multicard.records.schema_parts import Limit
from multicard.sweep.cells import REPETITION, Cell
from multicard.sweep.order import Turn, shuffled_turns


@dataclass
class RunsOfSetting:
    """The runs of one setting: cells that differ only in their repetition.

    Attributes:
        last: the number of the last repetition.
        owed: disturbed runs that have not been measured once more.
    """

    last: int
    runs: list[Cell] = field(default_factory=list)
    owed: list[Cell] = field(default_factory=list)

    def disturbing(self, cell: Cell) -> list[Limit]:
        """Return the limits that disturbed a run of the setting.

        A limit that every run has comes from the setting itself, so it does not count.
        """
        others = [
            {limit.code for limit in _limits(other)} for other in self.runs if other is not cell
        ]
        return [
            limit
            for limit in _limits(cell)
            if limits.is_external(limit.code) or any(limit.code not in codes for codes in others)
        ]


class Again:
    """The rounds in which disturbed runs of a sweep with `repeat=N` are measured once more.

    Args:
        config: the configuration of the sweep.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.repeats = repeats(config.repeat)
        no_result = config.probe.enabled or config.scale == Scale.smoke
        self.most = 0 if self.repeats < 2 or no_result else config.repeat_disturbed
        self.settings: dict[tuple[str, str], RunsOfSetting] = {}
        self.rounds = self.taken = self.measured = 0

    def take(self, cells: Iterable[Cell]) -> None:
        """Add the cells of a round. Cells without a record are left out."""
        new: list[tuple[RunsOfSetting, Cell]] = []
        for cell in sorted(cells, key=lambda cell: cell.number):
            self.taken = max(self.taken, cell.number)
            if cell.result is None or cell.result.status != "ok":
                continue
            self.measured += 1
            key = (str(cell.folder.parent), cell.config.identity())
            setting = self.settings.setdefault(key, RunsOfSetting(self.repeats))
            setting.runs.append(cell)
            setting.last = max(setting.last, cell.config.repetition)
            new.append((setting, cell))
        for setting, cell in new:
            if setting.disturbing(cell):
                setting.owed.append(cell)

    def next_round(self) -> list[Turn]:
        """Return the runs that are measured next, in their order; none at the end."""
        if self.rounds >= self.most:
            return []
        words: list[tuple[int, list[str]]] = []
        for setting in self.settings.values():
            for cell in setting.owed:
                setting.last += 1
                cell_words = [word for word in cell.overrides if not word.startswith(REPETITION)]
                words.append((setting.last, [*cell_words, f"{REPETITION}{setting.last}"]))
        self._say_owed()
        for setting in self.settings.values():
            setting.owed = []
        self.rounds += 1
        words.sort(key=lambda entry: entry[0])
        turns = [
            Turn(number, cell_words) for number, (_, cell_words) in enumerate(words, self.taken + 1)
        ]
        return shuffled_turns(turns, self.config.order)

    def say_left(self) -> None:
        """Print which runs are disturbed however often they were measured."""
        owed = self._owed_runs()
        if not owed or not self.most:
            return
        names = [cell.folder.name for _, cell in owed]
        more = self.most + 2
        message = Message(
            "repeat.still-disturbed",
            f"repeat={self.repeats}: {count(len(names), 'run')} disturbed each time; "
            f"on a quiet machine, `repeat_disturbed={more}` measures again",
            key="repeat_disturbed",
            cells=names,
            most=self.most,
        )
        say(message)

    def _say_owed(self) -> None:
        owed = self._owed_runs()
        if not owed:
            return
        runs_by_cause = Counter(setting.disturbing(cell)[0].code for setting, cell in owed)
        causes = ", ".join(f"{code} {number}" for code, number in runs_by_cause.items())
        were = "was" if len(owed) == 1 else "were"
        message = Message(
            "repeat.again",
            f"repeat={self.repeats}: {len(owed)} of {count(self.measured, 'run')} {were} disturbed"
            f" ({causes}) and will be measured once more; means leave them out if the setting has"
            " other runs",
            key="repeat",
            runs=len(owed),
            of=self.measured,
            by=dict(runs_by_cause),
        )
        say(message)

    def _owed_runs(self) -> Sequence[tuple[RunsOfSetting, Cell]]:
        owed_runs = []
        for setting in self.settings.values():
            owed_runs.extend((setting, cell) for cell in setting.owed)
        return owed_runs


def _limits(cell: Cell) -> list[Limit]:
    """Return the limits that keep a cell's times from representing its setting."""
    assert cell.result is not None
    return limits.forbidding(limits.of(cell.result.record), Forbids.rate)
