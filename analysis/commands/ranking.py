"""Rank settings that did the same work by a goal, within limits, and find their trade-off front."""

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
MAX_TIES = 3  # The most settings that a sentence names as ties with the best one.


@dataclass(frozen=True)
class Limits:
    """Limits that a setting must respect; None for no limit.

    loss: the highest held-out loss, in nats per token.
    """

    accuracy: float | None = None
    memory_bytes: float | None = None
    gpus: int | None = None
    loss: float | None = None

    def keep(self, runs: Sequence[Run]) -> bool:
        """Return True if a setting with these repetitions is within the limits.

        Its means and its highest peak memory count.
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
        """Say how close the settings come to each limit."""
        phrases = []
        if self.accuracy is not None:
            accuracies = [
                accuracy
                for runs in settings
                if (accuracy := of_setting(runs, ACCURACY)) is not None
            ]
            highest = max(accuracies, default=None)
            text = (
                "no run has an accuracy"
                if highest is None
                else f"the highest accuracy is {highest:.2%}"
            )
            phrases.append(Message("best.highest-accuracy", text, accuracy=highest))
        if self.loss is not None:
            lowest = min(
                (loss for runs in settings if (loss := of_setting(runs, HELD_OUT)) is not None),
                default=None,
            )
            text = (
                "no run has a held-out loss"
                if lowest is None
                else f"the lowest held-out loss is {lowest:.3f}"
            )
            phrases.append(Message("best.lowest-loss", text, loss=lowest))
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

    cost: the goal's figure. A lower one is better.
    learned: the figures that say how well the setting learned.
    counted: the runs that `cost` is computed from. For times, these are the undisturbed runs.
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
        """The figures, except errors, that are low in a good setting: the goal's, GPUs, money."""
        return self.cost, self.gpus, of_setting(self.runs, COST)

    @property
    def error(self) -> float | None:
        """The error by the figure that best says how well the setting learned."""
        return quality.best_error(self.learned)


IsBetter = Callable[[RankedSetting, RankedSetting], bool]


def front(settings: Sequence[RankedSetting], is_better: IsBetter) -> list[RankedSetting]:
    """Return the trade-off front: the settings that no other setting dominates, the best first.

    A setting is dominated if another one is nowhere worse and somewhere better. If runs cannot
    distinguish some settings, only the first of them is on the front. A setting joins the front
    if `is_better` shows it to be better than each member in some figure.
    """
    members: list[RankedSetting] = []
    for setting in settings:
        dominated = any(_dominates(other, setting) for other in settings)
        if not dominated and all(is_better(setting, member) for member in members):
            members.append(setting)
    return members


def _dominates(a: RankedSetting, b: RankedSetting) -> bool:
    pairs = [
        (figure, other_figure)
        for figure, other_figure in zip(a.costs, b.costs, strict=True)
        if figure is not None and other_figure is not None
    ]
    measure = quality.shared(a.learned, b.learned)
    if measure is not None:
        pairs.append(
            (quality.error(measure, a.learned[measure]), quality.error(measure, b.learned[measure]))
        )
    return all(figure <= other_figure for figure, other_figure in pairs) and any(
        figure < other_figure for figure, other_figure in pairs
    )


@dataclass(frozen=True)
class Ranking:
    """Settings that did the same work, the best first.

    column: the column that settings are ranked by: the goal's figure, or, if they did different
        amounts of work, the time per amount.
    work: the name of the work if there are several works, else empty.
    keys: the columns that distinguish the settings.
    untold: the number of runs that cannot be ranked, by the limit that forbids it. It is empty if
        there are several works.
    lengths: a script's arguments that set how long it trains. Runs with other values of them did
        other work.
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
        return front(self.settings, self._is_better)

    @cached_property
    def equals(self) -> list[RankedSetting]:
        """The settings that tie with the best: runs show neither as better."""
        best, *other_settings = self.settings
        return [
            setting
            for setting in other_settings
            if not self._is_better(setting, best) and not self._is_better(best, setting)
        ]

    @property
    def confidence(self) -> float:
        """The confidence of one comparison with the best setting.

        All comparisons together hold at 95 %, because the best one is picked among them.
        """
        return bonferroni(len(self.settings) - 1)

    @property
    def is_at_pace(self) -> bool:
        """True if settings are ranked by the time per amount of work."""
        return self.column == PACE

    @property
    def paced(self) -> str:
        """What follows a time, as " a million tokens"; empty if times are of whole runs."""
        return f" a {works.unit_of_pace(self.runs)}" if self.is_at_pace else ""

    @cached_property
    def unit(self) -> Scale:
        """The unit of all times of the ranking, in sentences and on axes."""
        return SECONDS.scale(max(setting.cost for setting in self.settings))

    def time(self, setting: RankedSetting) -> str:
        """Write the time of a setting for a sentence, with three digits."""
        time = setting.cost / self.unit.divisor
        return (f"{time:.3g}" if time < 100 else f"{time:,.0f}") + f" {self.unit.name}{self.paced}"

    def cheaper(self, a: RankedSetting, b: RankedSetting) -> bool:
        """Return True if repeated runs show that `a` has the lower cost."""
        return self.repeated.cheaper(self.column, a.runs, b.runs, self.confidence)

    def equivalent(self, a: RankedSetting, b: RankedSetting) -> bool:
        """Return True if repeated runs show that both take equally long, within MARGIN."""
        ratio = self.repeated.ratio(self.column, a.runs, b.runs)
        return ratio.verdict(MARGIN, self.confidence) == WITHIN

    def comparable(self, setting: RankedSetting) -> tuple[Hashable, ...]:
        """Return a key that is equal for settings whose held-out losses can be compared.

        It consists of the held-out rows, the amount of work and the kind of loss.
        """
        first_run = setting.runs[0]
        held_out_scores = self.repeated.held_out.of(setting.runs)
        return (
            held_out_scores and held_out_scores.rows,
            works.trained(first_run),
            quality.kind_of_loss(first_run),
        )

    def more_accurate(self, a: RankedSetting, b: RankedSetting) -> bool:
        """Return True if both did the same amount of work and `a` is shown to be more accurate."""
        return works.did_as_much(a.runs, b.runs) and self.repeated.more_accurate(
            a.runs, b.runs, self.confidence
        )

    def _is_better(self, a: RankedSetting, b: RankedSetting) -> bool:
        """Return True if `a` is shown to be better than `b` in some figure."""
        costs_less = self.repeated.cheaper(COST, a.runs, b.runs, self.confidence)
        return self.cheaper(a, b) or a.gpus < b.gpus or self.more_accurate(a, b) or costs_less

    def label(self, setting: RankedSetting) -> str:
        return grouping.label(setting.cell, self.keys) or "the only setting"

    def figures(self, setting: RankedSetting) -> str:
        """Write the main figures of a setting for a sentence."""
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
        """Sentences that name the best setting and the settings that tie with it."""
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
            names = first_few([self._named(other) for other in self.equals], MAX_TIES, "; ")
            text = f"Ties with the best, within noise: {names}."
            labels = [self.label(other) for other in self.equals]
            lines.append(Message("best.equals", text, settings=labels))
        return lines

    def columns(
        self, goals: Sequence[str] = (), recommended: RankedSetting | None = None
    ) -> list[Column]:
        """Return the columns of the ranking's table, with the recommended setting first.

        Args:
            goals: the goals whose figures are printed. Programs get the figures of all goals.
            recommended: the setting that is recommended, if there is one.
        """
        ranks = {id(setting): rank for rank, setting in enumerate(self.settings, 1)}
        ordered = sorted(self.settings, key=lambda setting: setting is not recommended)
        name = self.column
        intervals = [self.repeated.figure(setting.runs, name) for setting in ordered]
        bounds = {
            end: [interval and getattr(interval, end) for interval in intervals]
            for end in ("low", "high")
        }
        other_goals = {goal: figure.name for goal, figure in GOALS.items() if goal != self.goal}
        counts_of_runs = [
            text_table.part_of(len(setting.counted), len(setting.runs)) for setting in ordered
        ]
        return [
            Column("", "work", [self.work] * len(ordered)),
            Column("#", "rank", [ranks[id(setting)] for setting in ordered]),
            Column("use", "recommended", [setting is recommended for setting in ordered], _yes),
            *(
                Column(key, key, [dict(setting.cell)[key] for setting in ordered], is_setting=True)
                for key in self.keys
            ),
            Column(
                f"{self.goal}{self.paced}",
                name,
                [setting.cost for setting in ordered],
                partial(_text, self.goal),
            ),
            *(Column("", f"{name}_{end}", values) for end, values in bounds.items()),
            Column(
                "x best",
                "",
                [setting.cost / self.best.cost for setting in ordered],
                "{:.2f}".format,
            ),
            *(
                Column(
                    goal if goal in goals else "",
                    column,
                    [of_setting(setting.runs, column) for setting in ordered],
                    partial(_text, goal),
                )
                for goal, column in other_goals.items()
            ),
            Column("accuracy", ACCURACY, [setting.accuracy for setting in ordered]),
            Column(
                "held-out loss",
                HELD_OUT,
                [setting.held_out_loss for setting in ordered],
                "{:.3f}".format,
            ),
            Column("loss", LOSS, [setting.loss for setting in ordered], "{:.3f}".format),
            Column("n", "n", [len(setting.counted) for setting in ordered], written=counts_of_runs),
            Column("front", "front", [setting in self.front for setting in ordered], _yes),
            Column("marks", "marks", [grouping.marks(setting.counted) for setting in ordered]),
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
