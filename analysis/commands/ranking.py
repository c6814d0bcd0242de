"""Settings that did the same work, ranked by a goal; the limits that they keep to, and the
trade-off front.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from multicard.measure.repeated_runs import MARGIN, WITHIN
from multicard.messages import Message
from multicard.records import text_table
from multicard.records.figures import GOALS, SECONDS, Scale
from multicard.records.text_table import first_few, in_bytes

from ..runs import grouping, quality, works
from ..runs.grouping import ACCURACY, HELD_OUT, LOSS, MEMORY, PACE, of_setting
from ..runs.load import Run
from ..stats.between_runs import RepeatedRuns
from ..stats.intervals import bonferroni
from ..table_columns import Column

COST = "cost"
MOST_EQUAL = 3  # settings not told from the best that are named


@dataclass(frozen=True)
class Limits:
    """Limits that a setting must keep to; None for no limit. loss: of held-out rows,
    in nats a token.
    """

    accuracy: float | None = None
    memory_bytes: float | None = None
    gpus: int | None = None
    loss: float | None = None

    def keep(self, runs: Sequence[Run]) -> bool:
        """True if a setting with these repetitions keeps to them,
        by its means and its highest memory.
        """
        accuracy, loss, memory_bytes = (
            of_setting(runs, column) for column in (ACCURACY, HELD_OUT, MEMORY)
        )
        return (
            (self.loss is None or (loss is not None and loss <= self.loss))
            and (self.accuracy is None or (accuracy or 0.0) >= self.accuracy)
            and (self.memory_bytes is None or (memory_bytes or math.inf) <= self.memory_bytes)
            and (self.gpus is None or grouping.ranks(runs[0]) <= self.gpus)
        )

    def nearest(self, settings: Sequence[Sequence[Run]]) -> str:
        """What the settings reach of each limit."""
        phrases = []
        if self.accuracy is not None:
            known = [
                accuracy
                for runs in settings
                if (accuracy := of_setting(runs, ACCURACY)) is not None
            ]
            highest = max(known, default=None)
            said = (
                "no run has an accuracy"
                if highest is None
                else f"the highest accuracy is {highest:.2%}"
            )
            phrases.append(Message("best.highest-accuracy", said, accuracy=highest))
        if self.loss is not None:
            lowest = min(
                (loss for runs in settings if (loss := of_setting(runs, HELD_OUT)) is not None),
                default=None,
            )
            said = (
                "no run has a held-out loss"
                if lowest is None
                else f"the lowest held-out loss is {lowest:.3f}"
            )
            phrases.append(Message("best.lowest-loss", said, loss=lowest))
        if self.memory_bytes is not None:
            least = min(
                (peak for runs in settings if (peak := of_setting(runs, MEMORY))), default=None
            )
            phrases.append(
                Message("best.least-memory", f"the least memory is {in_bytes(least)}", bytes=least)
            )
        if self.gpus is not None:
            fewest = min(grouping.ranks(runs[0]) for runs in settings)
            phrases.append(
                Message("best.fewest-gpus", f"the fewest GPUs are {fewest}", gpus=fewest)
            )
        return ", ".join(phrases)


@dataclass(frozen=True)
class RankedSetting:
    """The repetitions of one setting with its figures (see `of_setting`).

    learned: the figures that tell how well it learned.
    counted: those that `cost` is made of: of times the undisturbed ones.
    """

    cell: grouping.Cell
    runs: list[Run]
    cost: float
    gpus: int
    learned: quality.Learned
    counted: list[Run] = field(default_factory=list[Run])

    @property
    def accuracy(self) -> float | None:
        return self.learned.get(ACCURACY)

    @property
    def held_out_loss(self) -> float | None:
        return self.learned.get(HELD_OUT)

    @property
    def loss(self) -> float | None:
        """The training loss."""
        return self.learned.get(LOSS)

    @cached_property
    def costs(self) -> tuple[float | None, ...]:
        """What is low in a good setting beside its errors: the goal's figure, GPUs and money."""
        return self.cost, self.gpus, of_setting(self.runs, COST)

    @property
    def error(self) -> float | None:
        """Its errors, by the figure that tells best how well it learned."""
        return quality.best_error(self.learned)


Told = Callable[[RankedSetting, RankedSetting], bool]


def front(settings: Sequence[RankedSetting], told: Told) -> list[RankedSetting]:
    """The settings that no other dominates, as far as each is told from those before it;
    the best first.

    A setting is dominated by another whose figures are nowhere worse and somewhere better. Of
    settings that runs do not tell apart, the first alone is on the front: a setting joins it that
    is better than each member in some figure, by more than runs differ (`told`).
    """
    members: list[RankedSetting] = []
    for setting in settings:
        dominated = any(_dominates(other, setting) for other in settings)
        if not dominated and all(told(setting, member) for member in members):
            members.append(setting)
    return members


def _dominates(a: RankedSetting, b: RankedSetting) -> bool:
    pairs = [
        (own, other)
        for own, other in zip(a.costs, b.costs, strict=True)
        if own is not None and other is not None
    ]
    learned = quality.shared(a.learned, b.learned)
    if learned is not None:
        pairs.append(
            (quality.error(learned, a.learned[learned]), quality.error(learned, b.learned[learned]))
        )
    return all(own <= other for own, other in pairs) and any(own < other for own, other in pairs)


@dataclass(frozen=True)
class Ranking:
    """Settings that did the same work, the best first.

    work: the name of the work among several, empty if there is one.
    column: what they are ranked by: the goal's figure; the time of as much work, where they did
    different amounts.
    keys: the columns that tell settings apart.
    untold: the number of runs that are not ranked, by what limits them;
    empty where there are several works.
    lengths: the arguments of a script that set how long it trains, whose other values are other
    works.
    """

    goal: str
    column: str
    work: str
    runs: list[Run]
    settings: list[RankedSetting]
    keys: list[str]
    repeated: RepeatedRuns = field(repr=False)
    untold: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)
    lengths: tuple[str, ...] = ()

    @property
    def best(self) -> RankedSetting:
        return self.settings[0]

    @cached_property
    def front(self) -> list[RankedSetting]:
        return front(self.settings, self._told)

    @cached_property
    def equals(self) -> list[RankedSetting]:
        best, *others = self.settings
        return [one for one in others if not self._told(one, best) and not self._told(best, one)]

    @property
    def confidence(self) -> float:
        """Of a comparison with one of the settings: all of them together hold at 95 %,
        since the best is picked.
        """
        return bonferroni(len(self.settings) - 1)

    @property
    def is_at_pace(self) -> bool:
        return self.column == PACE

    @property
    def paced(self) -> str:
        """What follows a time: " a million tokens"; empty where it is that of whole runs."""
        return f" a {works.unit_of_pace(self.runs)}" if self.is_at_pace else ""

    @cached_property
    def unit(self) -> Scale:
        """The unit of all its times, in a sentence and along an axis."""
        return SECONDS.scale(max(setting.cost for setting in self.settings))

    def time(self, setting: RankedSetting) -> str:
        """The time of a setting as a sentence has it, in three digits."""
        time = setting.cost / self.unit.divisor
        return (f"{time:.3g}" if time < 100 else f"{time:,.0f}") + f" {self.unit.name}{self.paced}"

    def cheaper(self, a: RankedSetting, b: RankedSetting) -> bool:
        return self.repeated.cheaper(self.column, a.runs, b.runs, self.confidence)

    def equivalent(self, a: RankedSetting, b: RankedSetting) -> bool:
        """True where repeated runs show that both take as long, to within MARGIN."""
        ratio = self.repeated.ratio(self.column, a.runs, b.runs)
        return ratio.verdict(MARGIN, self.confidence) == WITHIN

    def comparable(self, setting: RankedSetting) -> tuple[Hashable, ...]:
        """Equal of settings whose held-out losses are compared: by rows, amount of work,
        and what a loss counts.
        """
        first = setting.runs[0]
        scored = self.repeated.held_out.of(setting.runs)
        return scored and scored.rows, works.trained(first), quality.kind_of_loss(first)

    def more_accurate(self, a: RankedSetting, b: RankedSetting) -> bool:
        return works.did_as_much(a.runs, b.runs) and self.repeated.more_accurate(
            a.runs, b.runs, self.confidence
        )

    def _told(self, a: RankedSetting, b: RankedSetting) -> bool:
        costs_less = self.repeated.cheaper(COST, a.runs, b.runs, self.confidence)
        return self.cheaper(a, b) or a.gpus < b.gpus or self.more_accurate(a, b) or costs_less

    def label(self, setting: RankedSetting) -> str:
        return grouping.label(setting.cell, self.keys) or "the only setting"

    def figures(self, setting: RankedSetting) -> str:
        parts = [_text(self.goal, setting.cost) + self.paced]
        if setting.accuracy is not None:
            parts.append(f"{setting.accuracy:.1%}")
        elif setting.held_out_loss is not None:
            parts.append(f"held-out loss {setting.held_out_loss:.3f}")
        elif setting.loss is not None:
            parts.append(f"loss {setting.loss:.3f}")
        n = len(setting.counted)
        if n > 1:
            parts.append(f"n={n}")
        return ", ".join(parts)

    @property
    def sentences(self) -> list[Message]:
        """What the best setting is, and which runs do not tell from it."""
        title = "Fastest" if self.goal == "time" else f"Least {self.goal}"
        best = self.best
        about: dict[str, Any] = {"accuracy": best.accuracy, "loss": best.loss}
        if best.held_out_loss is not None:
            about["held_out_loss"] = best.held_out_loss
        lines = [
            Message(
                "best.first",
                f"{title}: {self._named(best)}.",
                goal=self.goal,
                setting=grouping.label(best.cell, self.keys),
                figure=best.cost,
                column=self.column,
                **about,
                n=len(best.counted),
                marks=grouping.marks(best.counted),
            )
        ]
        if self.equals:
            named = first_few([self._named(other) for other in self.equals], MOST_EQUAL, "; ")
            said = f"Ties with the best, within noise: {named}."
            labels = [self.label(other) for other in self.equals]
            lines.append(Message("best.equals", said, settings=labels))
        return lines

    def columns(
        self, goals: Sequence[str] = (), recommended: RankedSetting | None = None
    ) -> list[Column]:
        """The ranking, the recommended setting first.

        Args:
            goals: whose figures people see; programs get those of all.
        """
        ranks = {id(one): rank for rank, one in enumerate(self.settings, 1)}
        own = sorted(self.settings, key=lambda one: one is not recommended)
        name = self.column
        intervals = [self.repeated.figure(one.runs, name) for one in own]
        bounds = {end: [one and getattr(one, end) for one in intervals] for end in ("low", "high")}
        others = {goal: figure.name for goal, figure in GOALS.items() if goal != self.goal}
        texts = [text_table.part_of(len(one.counted), len(one.runs)) for one in own]
        return [
            Column("", "work", [self.work] * len(own)),
            Column("#", "rank", [ranks[id(one)] for one in own]),
            Column("use", "recommended", [one is recommended for one in own], _yes),
            *(
                Column(key, key, [dict(one.cell)[key] for one in own], is_setting=True)
                for key in self.keys
            ),
            Column(
                f"{self.goal}{self.paced}",
                name,
                [one.cost for one in own],
                partial(_text, self.goal),
            ),
            *(Column("", f"{name}_{end}", values) for end, values in bounds.items()),
            Column("x best", "", [one.cost / self.best.cost for one in own], "{:.2f}".format),
            *(
                Column(
                    goal * (goal in goals),
                    each,
                    [of_setting(one.runs, each) for one in own],
                    partial(_text, goal),
                )
                for goal, each in others.items()
            ),
            Column("accuracy", ACCURACY, [one.accuracy for one in own]),
            Column("held-out loss", HELD_OUT, [one.held_out_loss for one in own], "{:.3f}".format),
            Column("loss", LOSS, [one.loss for one in own], "{:.3f}".format),
            Column("n", "n", [len(one.counted) for one in own], written=texts),
            Column("front", "front", [one in self.front for one in own], _yes),
            Column("marks", "marks", [grouping.marks(one.counted) for one in own]),
        ]

    def _named(self, setting: RankedSetting) -> str:
        marks = f" [{signs}]" if (signs := grouping.marks(setting.counted)) else ""
        return f"{self.label(setting)}: {self.figures(setting)}{marks}"


def _yes(holds: bool) -> str:
    return "yes" if holds else ""


def _text(goal: str, value: float) -> str:
    unit = GOALS[goal].unit
    text = unit.text(value)
    return f"{text} s" if unit is SECONDS else text
