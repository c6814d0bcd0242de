"""`best`: the settings that reached a goal with the least, among runs that did the same work.

Settings are ranked by the time, the energy or the peak memory of the whole run, as the mean over their repetitions (of
memory the maximum). Limits hold for these figures, not for single runs. Settings of the trade-off front are named
beside the best: those that no other dominates in the goal, GPUs and accuracy (for tuning: loss). What repeated runs do
not tell from the best (`analysis.stats.between_runs`) is named too, and is not on the front.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from analysis.runs import grouping
from analysis.runs.columns import legend
from analysis.runs.grouping import ACCURACY, LOSS, MEMORY, of_setting
from analysis.runs.load import Run
from analysis.stats.between_runs import RepeatedRuns
from multicard.config.job import count
from multicard.measure.repeated_runs import MARGIN
from multicard.records import figures, text_table
from multicard.records.figures import GOALS, SECONDS
from multicard.records.text_table import clean, in_bytes

LEAST_TIMES = 1.1  # ratio of costs below which the difference is said in percent
MOST_EQUAL = 3  # settings not told from the best that are named
T = TypeVar("T")


@dataclass(frozen=True)
class Quantity(Generic[T]):
    """A quantity in which settings are compared.

    cost: of a setting, less is better; None where it is not known, which neither dominates nor is dominated.
    better: True where the first of two settings is better by more than their runs differ.
    """

    cost: Callable[[T], float | None]
    better: Callable[[T, T], bool]


def front(settings: Sequence[T], quantities: Sequence[Quantity[T]]) -> list[T]:
    """The settings that no other dominates, as far as each is told from those before it.

    A setting is dominated by another whose figures are nowhere worse and somewhere better. Of settings that runs do not
    tell apart, the first alone is on the front: a setting joins it that is better than each member in some quantity, by
    more than runs differ.

    Args:
        settings: the best first.
    """
    members: list[T] = []
    for setting in settings:
        if any(_dominates(other, setting, quantities) for other in settings):
            continue
        if all(any(quantity.better(setting, member) for quantity in quantities) for member in members):
            members.append(setting)
    return members


def _dominates(a: T, b: T, quantities: Sequence[Quantity[T]]) -> bool:
    known = [(quantity.cost(a), quantity.cost(b)) for quantity in quantities]
    pairs = [(cost_a, cost_b) for cost_a, cost_b in known if cost_a is not None and cost_b is not None]
    return all(cost_a <= cost_b for cost_a, cost_b in pairs) and any(cost_a < cost_b for cost_a, cost_b in pairs)


def equals(settings: Sequence[T], best: T, quantities: Sequence[Quantity[T]]) -> list[T]:
    """The other settings that the runs tell from the best in no quantity."""

    def told(a: T, b: T) -> bool:
        return any(quantity.better(a, b) for quantity in quantities)

    return [
        setting for setting in settings if setting is not best and not told(best, setting) and not told(setting, best)
    ]


@dataclass(frozen=True)
class Limits:
    """Limits that a setting must keep to; None for no limit."""

    accuracy: float | None = None
    memory_bytes: float | None = None
    gpus: int | None = None

    def keep(self, runs: Sequence[Run]) -> bool:
        """True if a setting with these repetitions keeps to them, by its mean accuracy and its highest memory."""
        accuracy, memory_bytes = of_setting(runs, ACCURACY), of_setting(runs, MEMORY)
        return (
            (self.accuracy is None or (accuracy or 0.0) >= self.accuracy)
            and (self.memory_bytes is None or (memory_bytes or math.inf) <= self.memory_bytes)
            and (self.gpus is None or grouping.ranks(runs[0]) <= self.gpus)
        )

    def nearest(self, settings: Sequence[Sequence[Run]]) -> str:
        """The best values that settings beyond the limits reach."""
        phrases = []
        if self.accuracy is not None:
            known = [accuracy for runs in settings if (accuracy := of_setting(runs, ACCURACY)) is not None]
            phrases.append(f"the highest accuracy is {max(known):.2%}" if known else "no run has an accuracy")
        if self.memory_bytes is not None:
            least = min((peak for runs in settings if (peak := of_setting(runs, MEMORY))), default=None)
            phrases.append(f"the least memory is {in_bytes(least)}")
        if self.gpus is not None:
            phrases.append(f"the fewest GPUs are {min(grouping.ranks(runs[0]) for runs in settings)}")
        return ", ".join(phrases)


@dataclass(frozen=True)
class RankedSetting:
    """The repetitions of one setting with its figures (see `of_setting`)."""

    cell: grouping.Cell
    runs: list[Run]
    cost: float
    gpus: int
    accuracy: float | None
    loss: float | None

    @property
    def marks(self) -> str:
        return grouping.marks(self.runs)

    @property
    def inaccuracy(self) -> float | None:
        """A figure that is low where a setting is accurate: its loss where it has no accuracy."""
        return self.loss if self.accuracy is None else -self.accuracy


@dataclass(frozen=True)
class Ranking:
    """Settings that did the same amount of the same work, the best first.

    work: the name of the work among several, empty if there is one. amount: rows or pairs, if they differ.
    front: the settings on the trade-off front, the best among them. equals: those that runs do not tell from the best.
    keys: the columns that tell settings apart.
    """

    goal: str
    work: str
    amount: str
    runs: list[Run]
    settings: list[RankedSetting]
    front: list[RankedSetting]
    equals: list[RankedSetting]
    keys: list[str]
    repeated: RepeatedRuns = field(repr=False)

    @property
    def best(self) -> list[Run]:
        """The runs of the best setting."""
        return self.settings[0].runs

    @property
    def label(self) -> str:
        return grouping.label(self.settings[0].cell, self.keys) or "the only setting"

    @property
    def figures(self) -> str:
        """Cost, accuracy and number of runs of the best setting."""
        return self._figures(self.settings[0])

    @property
    def marks(self) -> str:
        return self.settings[0].marks

    @property
    def others(self) -> list[str]:
        """A sentence for each other setting of the front, then those that runs do not tell from the best."""
        sentences, best = [], self.settings[0]
        for other in self.front:
            if other is not best:
                fewer, accuracy, cost = _fewer_ranks(other, best), self._accuracy_compared(other), self._compared(other)
                rest = ", ".join(filter(None, (cost, accuracy))) if fewer else cost
                first = fewer or accuracy[:1].upper() + accuracy[1:]
                sentences.append(f"{first}: {rest} ({self._named(other)}).")
        near = {"Equally good": True, "Not told from the best by these runs": False}
        for title, is_close in near.items():
            named = [self._named(other) for other in self.equals if self._is_close(other) == is_close]
            more = f"; and {len(named) - MOST_EQUAL} more" if len(named) > MOST_EQUAL else ""
            sentences += [f"{title}: {'; '.join(named[:MOST_EQUAL])}{more}."] if named else []
        return sentences

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows, without columns that have no figure."""
        rows = [
            {
                "rank": str(rank),
                **{key: grouping.typed(dict(setting.cell)[key]) for key in self.keys},
                self.goal: self._cost(setting),
                "x best": f"{setting.cost / self.settings[0].cost:.2f}",
                "accuracy": figures.text(ACCURACY, setting.accuracy),
                "loss": "-" if setting.loss is None else f"{setting.loss:.3f}",
                "n": str(len(setting.runs)),
                "front": "yes" if setting in self.front else "",
                "marks": setting.marks,
            }
            for rank, setting in enumerate(self.settings, 1)
        ]
        headings = [name for name in rows[0] if name in self.keys or {row[name] for row in rows} - {"-", ""}]
        return headings, [[row[name] for name in headings] for row in rows]

    @property
    def rows(self) -> list[list[str]]:
        return self.table[1]

    def lines(self, width: int | None) -> list[str]:
        """The ranking in sentences and as a table of `width` cells; None: any."""
        best = f"{_title(self.goal)}: {self.label}: {_with_marks(self.figures, self.marks)}."
        amount = [f"{self.amount}:"] if self.amount else []
        return [*amount, best, *self.others, *text_table.text(*self.table, width)]

    def _named(self, setting: RankedSetting) -> str:
        return f"{grouping.label(setting.cell, self.keys)}: {_with_marks(self._figures(setting), setting.marks)}"

    def _cost(self, setting: RankedSetting) -> str:
        figure = GOALS[self.goal]
        return figure.unit.text(setting.cost) + " s" * (figure.unit is SECONDS)

    def _figures(self, setting: RankedSetting) -> str:
        parts = [self._cost(setting)]
        if setting.accuracy is not None:
            parts.append(f"{setting.accuracy:.1%}")
        elif setting.loss is not None:
            parts.append(f"loss {setting.loss:.3f}")
        return ", ".join([*parts, *([f"n={len(setting.runs)}"] if len(setting.runs) > 1 else [])])

    def _is_close(self, other: RankedSetting) -> bool:
        return other.cost <= self.settings[0].cost * (1 + MARGIN)

    def _compared(self, other: RankedSetting) -> str:
        """The cost of a setting compared with the best: "1.7 times slower", "4 % slower"."""
        ratio = other.cost / self.settings[0].cost
        told = self.repeated.cheaper(GOALS[self.goal].name, self.best, other.runs)
        if not told and self._is_close(other):
            return f"no {'slower' if self.goal == 'time' else f'more {self.goal}'} as far as the runs tell"
        chance = "" if told else ", which these runs do not tell from chance"
        if ratio < LEAST_TIMES:
            percent = 100 * (ratio - 1)
            count = f"{percent:.0f}" if percent >= 1 else f"{percent:.1g}"
            return f"{count} % {'slower' if self.goal == 'time' else f'more {self.goal}'}{chance}"
        count = f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"
        return f"{count} times {'slower' if self.goal == 'time' else f'the {self.goal}'}{chance}"

    def _accuracy_compared(self, other: RankedSetting) -> str:
        """The accuracy or loss of a setting compared with the best; empty where the runs do not tell them apart."""
        best = self.settings[0]
        more, less = (self.repeated.more_accurate(a.runs, b.runs) for a, b in ((other, best), (best, other)))
        if not (more or less):
            return ""
        if other.accuracy is not None and best.accuracy is not None:
            return f"{100 * abs(other.accuracy - best.accuracy):.1f} points {'more' if more else 'less'} accurate"
        return f"a loss of {other.loss:.3f} instead of {best.loss:.3f}"


def lines(runs: Sequence[Run], goal: str, limits: Limits, mix: bool, width: int | None) -> list[str]:
    """The ranking of each work that was done, in sentences and as a table.

    Args:
        mix: rank, and average, runs of several commits or machines together.

    Raises:
        ValueError: nothing can be ranked, with the reason.
    """
    with_figure, ranked = _selected(runs, goal, limits, mix)
    repeated, column = RepeatedRuns(runs), GOALS[goal].name
    found = _rankings(ranked, goal, mix, repeated)
    works = list(dict.fromkeys(ranking.work for ranking in found))
    printed = [f"{len(works)} different works, each ranked by itself:"] if len(works) > 1 else []
    for work in works:
        printed += ["", f"{work}:"] if len(works) > 1 else []
        printed += [line for ranking in found if ranking.work == work for line in ranking.lines(width)]
    if len(ranked) > 1 and not grouping.is_exact(runs, column):
        printed += repeated.of_column(column).described(ranked)
    return [*printed, *_not_ranked(runs, with_figure, ranked), *legend(run["marks"] for run in ranked)]


def rankings(runs: Sequence[Run], goal: str, limits: Limits, mix: bool) -> list[Ranking]:
    """The rankings that `lines` prints; works in the order of their first runs.

    Raises:
        ValueError: nothing can be ranked, with the reason.
    """
    return _rankings(_selected(runs, goal, limits, mix)[1], goal, mix, RepeatedRuns(runs))


def _selected(runs: Sequence[Run], goal: str, limits: Limits, mix: bool) -> tuple[list[Run], list[Run]]:
    """The runs of settings that have the goal's figure, and those of them that are within the limits."""
    ok = [run for run in grouping.ok_runs(runs) if not run[grouping.TRACED]]
    if not ok:
        traced = " without being profiled meanwhile" if any(run[grouping.TRACED] for run in runs) else ""
        raise ValueError(f"of {count(len(runs), 'run')} none ended ok{traced}")
    column = GOALS[goal].name
    keys = ["kind", *grouping.settings(ok), *([] if mix else (*grouping.ORIGIN, *grouping.CORES))]
    settings = [setting for setting in grouping.group(ok, keys).values() if of_setting(setting, column) is not None]
    if not settings:
        why = "; energy is measured on GPUs with NVML, not on CPU ranks" if goal == "energy" else ""
        raise ValueError(f"of {count(len(ok), 'run')} none has {column}{why}")
    with_figure = [run for setting in settings for run in setting]
    within = {run.folder for setting in settings if limits.keep(setting) for run in setting}
    if not within:
        of = count(len(with_figure), "run")
        raise ValueError(f"of {of} none keeps to the limits ({limits.nearest(settings)})")
    return with_figure, [run for run in ok if run.folder in within]


def _not_ranked(runs: Sequence[Run], with_figure: Sequence[Run], ranked: Sequence[Run]) -> list[str]:
    statuses = Counter(clean(run["status"]) for run in runs)
    traced = sum(run["status"] == "ok" and run[grouping.TRACED] for run in runs)
    counts = {
        **{status: count for status, count in statuses.items() if status != "ok"},
        "profiled while they trained": traced,
        "without the figure": statuses["ok"] - len(with_figure) - traced,
        "beyond the limits": len(with_figure) - len(ranked),
    }
    phrases = [f"{count} {what}" for what, count in counts.items() if count]
    return [f"not ranked: {', '.join(phrases)}"] if phrases else []


def _rankings(runs: Sequence[Run], goal: str, mix: bool, repeated: RepeatedRuns) -> list[Ranking]:
    works = grouping.by_work(runs, mix)
    return [
        _ranking(own, goal, _work(work, list(works)), amount if len(amounts) > 1 else "", repeated, mix)
        for work, amounts in works.items()
        for amount, own in amounts.items()
    ]


def _work(work: grouping.Cell, works: Sequence[grouping.Cell]) -> str:
    """The name of a work by what tells it from the others of its kind; empty for a single work."""
    if len(works) == 1:
        return ""
    kind = dict(work)["kind"]
    of_kind = [dict(other) for other in works if dict(other)["kind"] == kind]
    order = sorted((key for key, _ in work), key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key))
    return f"{grouping.kind(kind)} {grouping.label(work, grouping.telling(of_kind, order))}".rstrip()


def _ranking(runs: list[Run], goal: str, work: str, amount: str, repeated: RepeatedRuns, mix: bool) -> Ranking:
    column = GOALS[goal].name
    names = [*grouping.settings(runs), *([] if mix else grouping.CORES)]
    setting_columns = [name for name in names if any(name in run.columns for run in runs)]
    settings = [
        RankedSetting(cell, own, cost, grouping.ranks(own[0]), *(of_setting(own, name) for name in (ACCURACY, LOSS)))
        for cell, own in grouping.group(runs, setting_columns).items()
        if (cost := of_setting(own, column)) is not None
    ]
    settings.sort(key=lambda one: (one.cost, one.gpus, one.inaccuracy or 0.0))
    quantities = [
        Quantity[RankedSetting](lambda one: one.cost, lambda a, b: repeated.cheaper(column, a.runs, b.runs)),
        Quantity[RankedSetting](lambda one: one.gpus, lambda a, b: a.gpus < b.gpus),
        Quantity[RankedSetting](lambda one: one.inaccuracy, lambda a, b: repeated.more_accurate(a.runs, b.runs)),
    ]
    keys = grouping.apart([dict(setting.cell) for setting in settings], setting_columns)
    on_front, equal = front(settings, quantities), equals(settings, settings[0], quantities)
    return Ranking(goal, work, amount, runs, settings, on_front, equal, keys, repeated)


def _title(goal: str) -> str:
    return "Fastest" if goal == "time" else f"Least {goal}"


def _fewer_ranks(other: RankedSetting, best: RankedSetting) -> str:
    """ "Half the GPUs", "1 CPU rank instead of 3"; empty for a setting with as many ranks as the best, or more."""
    if other.gpus >= best.gpus:
        return ""
    unit = "CPU rank" if best.runs[0]["cpu_ranks"] else "GPU"
    return f"Half the {unit}s" if other.gpus * 2 == best.gpus else f"{count(other.gpus, unit)} instead of {best.gpus}"


def _with_marks(text: str, marks: str) -> str:
    return f"{text} [{marks}]" if marks else text
