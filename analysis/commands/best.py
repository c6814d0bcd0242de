"""`best`: the settings that reached a goal with the least, among runs that did the same work.

Settings are ranked by the time, the energy or the peak memory of the whole run, as the mean over their repetitions (of
memory the maximum). Limits hold for these figures, not for single runs. Settings of the trade-off front are named
beside the best: those that no other dominates in the goal, GPUs and accuracy (for tuning: loss). What repeated runs do
not tell from the best (`analysis.stats.between_runs`) is named too, and is not on the front.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from analysis import formatting
from analysis.commands.better import Better
from analysis.formatting import counted
from analysis.runs import grouping, same_work
from analysis.runs.caveats import legend
from analysis.runs.load import Run
from analysis.runs.setting_figure import ACCURACY, MEMORY, of_setting
from analysis.stats.between_runs import MARGIN
from analysis.stats.trade_off import Quantity, equals, front
from multicard.records import figures, text_table
from multicard.records.text_table import clean, in_bytes, in_joules


@dataclass(frozen=True)
class Goal:
    """What runs are ranked by.

    column: of the records. best: what the best setting is called.
    times, percent: the words for a cost of so many times the best, or so many percent more.
    equal: the words for a cost that is close to the best, and that the runs do not tell from it.
    """

    column: str
    best: str
    times: str
    percent: str
    equal: str


AS_FAR = "as far as the runs tell"
GOALS = {
    "time": Goal("total_s", "Fastest", "{} times slower", "{} % slower", f"no slower {AS_FAR}"),
    "energy": Goal(
        "energy_joules",
        "Least energy",
        "{} times the energy",
        "{} % more energy",
        f"no more energy {AS_FAR}",
    ),
    "memory": Goal(MEMORY, "Least memory", "{} times the memory", "{} % more memory", f"no more memory {AS_FAR}"),
}
LEAST_TIMES = 1.1  # below which a cost is so many percent more than the best
MOST_EQUAL = 3  # settings not told from the best that are named


@dataclass(frozen=True)
class Limits:
    """Limits that a run must keep to; None for no limit."""

    accuracy: float | None = None
    memory_bytes: float | None = None
    gpus: int | None = None

    def keep(self, runs: Sequence[Run]) -> bool:
        """Whether a setting with these repetitions keeps to them: by their mean accuracy, and their highest memory."""
        accuracy, memory_bytes = of_setting(runs, ACCURACY), of_setting(runs, MEMORY)
        return (
            (self.accuracy is None or (accuracy or 0.0) >= self.accuracy)
            and (self.memory_bytes is None or (memory_bytes or math.inf) <= self.memory_bytes)
            and (self.gpus is None or grouping.ranks(runs[0]) <= self.gpus)
        )

    def nearest(self, settings: Sequence[Sequence[Run]]) -> str:
        """What settings that do not keep to the limits reach."""
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
    """The repetitions of one setting with the means of their figures; for memory, the maximum."""

    cell: grouping.Cell
    runs: list[Run]
    cost: float
    gpus: int
    accuracy: float | None
    loss: float | None

    @property
    def marks(self) -> str:
        return grouping.marks(self.runs)


@dataclass(frozen=True)
class Ranking:
    """Settings that did the same amount of the same work, the best first.

    work: the name of the work among several, empty if there is one. amount: rows or pairs, if they differ.
    label, figures, marks: of the best setting. best: its runs.
    others: a sentence for each other setting of the trade-off front, and those that runs do not tell from the best.
    headings, rows: the ranking. settings: in its order. front: those on the trade-off front, the best among them.
    equals: those that runs do not tell from the best. keys: the columns that tell settings apart.
    """

    goal: str
    work: str
    amount: str
    label: str
    figures: str
    marks: str
    best: list[Run]
    others: list[str]
    headings: list[str]
    rows: list[list[str]]
    runs: list[Run]
    settings: list[RankedSetting]
    front: list[RankedSetting]
    equals: list[RankedSetting]
    keys: list[str]


def lines(runs: Sequence[Run], goal: str, limits: Limits, mix: bool, width: int | None) -> list[str]:
    """The ranking of each work that was done, in sentences and as a table.

    Args:
        mix: rank, and average, runs of several commits or machines together.

    Raises:
        ValueError: nothing can be ranked, with the reason.
    """
    with_figure, ranked = _selected(runs, goal, limits, mix)
    better = Better.of(runs, GOALS[goal].column)
    ranked_works = _rankings(ranked, goal, mix, better)
    works = list(dict.fromkeys(ranking.work for ranking in ranked_works))
    printed = [f"{len(works)} different works, each ranked by itself:"] if len(works) > 1 else []
    for work in works:
        printed += ["", f"{work}:"] if len(works) > 1 else []
        for ranking in (ranking for ranking in ranked_works if ranking.work == work):
            best = f"{GOALS[goal].best}: {ranking.label}: {_with_marks(ranking.figures, ranking.marks)}."
            printed += [f"{ranking.amount}:"] if ranking.amount else []
            printed += [best, *ranking.others, *text_table.text(ranking.headings, ranking.rows, width)]
    notes = [*(better.explained(ranked) if len(ranked) > 1 else []), *_not_ranked(runs, with_figure, ranked)]
    return [*printed, *notes, *legend(run["marks"] for run in ranked)]


def rankings(runs: Sequence[Run], goal: str, limits: Limits, mix: bool) -> list[Ranking]:
    """The rankings that `lines` prints, as data; works in the order of their first runs.

    Raises:
        ValueError: nothing can be ranked, with the reason.
    """
    better = Better.of(runs, GOALS[goal].column)
    return _rankings(_selected(runs, goal, limits, mix)[1], goal, mix, better)


def _selected(runs: Sequence[Run], goal: str, limits: Limits, mix: bool) -> tuple[list[Run], list[Run]]:
    """The runs of settings that have the goal's figure, and of those that are within the limits too."""
    ok = [run for run in runs if run["status"] == "ok" and not run[grouping.TRACED]]
    if not ok:
        traced = " without being profiled meanwhile" if any(run[grouping.TRACED] for run in runs) else ""
        raise ValueError(f"of {counted(len(runs), 'run')} none ended ok{traced}")
    column = GOALS[goal].column
    keys = ["kind", *grouping.settings(ok), *([] if mix else (*grouping.ORIGIN, *grouping.CORES))]
    settings = [setting for setting in grouping.group(ok, keys).values() if of_setting(setting, column) is not None]
    if not settings:
        why = "; energy is measured on GPUs with NVML, not on CPU ranks" if goal == "energy" else ""
        raise ValueError(f"of {counted(len(ok), 'run')} none has {column}{why}")
    with_figure = [run for setting in settings for run in setting]
    within = {run.folder for setting in settings if limits.keep(setting) for run in setting}
    if not within:
        of = counted(len(with_figure), "run")
        raise ValueError(f"of {of} none keeps to the limits ({limits.nearest(settings)})")
    return with_figure, [run for run in ok if run.folder in within]


def _not_ranked(runs: Sequence[Run], with_figure: Sequence[Run], ranked: Sequence[Run]) -> list[str]:
    statuses = Counter(clean(run["status"]) for run in runs)
    traced = sum(run["status"] == "ok" and run[grouping.TRACED] for run in runs)
    without = statuses.pop("ok", 0) - len(with_figure) - traced
    phrases = [f"{count} {status}" for status, count in statuses.items()]
    phrases += [f"{traced} profiled while they trained"] if traced else []
    if without:
        phrases.append(f"{without} without the figure")
    if len(with_figure) > len(ranked):
        phrases.append(f"{len(with_figure) - len(ranked)} beyond the limits")
    return [f"not ranked: {', '.join(phrases)}"] if phrases else []


def _rankings(runs: Sequence[Run], goal: str, mix: bool, better: Better) -> list[Ranking]:
    works = grouping.group(runs, same_work.work_keys(runs, mix))
    ranked = []
    for work, of_work in works.items():
        title = _title(work, list(works)) if len(works) > 1 else ""
        amounts = same_work.by_amount(of_work)
        for amount, group in amounts.items():
            ranked.append(_ranking(group, goal, title, amount if len(amounts) > 1 else "", better, mix))
    return ranked


def _title(work: grouping.Cell, works: Sequence[grouping.Cell]) -> str:
    """A work by what tells it from the others of its kind."""
    kind = dict(work)["kind"]
    of_kind = [dict(other) for other in works if dict(other)["kind"] == kind]
    order = sorted((key for key, _ in work), key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key))
    return f"{formatting.kind(kind)} {grouping.label(work, grouping.telling(of_kind, order))}".rstrip()


def _ranking(runs: list[Run], goal: str, work: str, amount: str, better: Better, mix: bool) -> Ranking:
    names = [*grouping.settings(runs), *([] if mix else grouping.CORES)]
    setting_columns = [name for name in names if any(name in run.columns for run in runs)]
    settings = [_setting(cell, group, goal) for cell, group in grouping.group(runs, setting_columns).items()]
    settings.sort(key=lambda one: (one.cost, one.gpus, _inaccuracy(one) or 0.0))
    keys = grouping.apart([dict(setting.cell) for setting in settings], setting_columns)
    best = settings[0]
    quantities = [
        Quantity[RankedSetting](lambda one: one.cost, lambda a, b: better.cheaper(a.runs, b.runs)),
        Quantity[RankedSetting](lambda one: one.gpus, lambda a, b: a.gpus < b.gpus),
        Quantity[RankedSetting](_inaccuracy, lambda a, b: better.more_accurate(a.runs, b.runs)),
    ]
    on_front, equal = front(settings, quantities), equals(settings, best, quantities)
    headings, rows = _table(settings, on_front, keys, goal)
    return Ranking(
        goal,
        work,
        amount,
        label=grouping.label(best.cell, keys) or "the only setting",
        figures=_figures(best, goal),
        marks=best.marks,
        best=best.runs,
        others=_others(on_front, equal, best, keys, goal, better),
        headings=headings,
        rows=rows,
        runs=runs,
        settings=settings,
        front=on_front,
        equals=equal,
        keys=keys,
    )


def _inaccuracy(setting: RankedSetting) -> float | None:
    """What is low where a setting is accurate: its loss where it has no accuracy."""
    return setting.loss if setting.accuracy is None else -setting.accuracy


def _setting(cell: grouping.Cell, runs: list[Run], goal: str) -> RankedSetting:
    cost = of_setting(runs, GOALS[goal].column)
    assert cost is not None  # runs without the figure were left out
    return RankedSetting(
        cell,
        runs,
        cost,
        grouping.ranks(runs[0]),
        of_setting(runs, ACCURACY),
        of_setting(runs, "loss_last_tenth"),
    )


def _others(
    on_front: Sequence[RankedSetting],
    equal: Sequence[RankedSetting],
    best: RankedSetting,
    keys: Sequence[str],
    goal: str,
    better: Better,
) -> list[str]:
    """The other settings of the front, with what they save or gain over the best; and those equal to it."""
    sentences = []
    for other in on_front:
        if other is best:
            continue
        figures = f"{grouping.label(other.cell, keys)}: {_with_marks(_figures(other, goal), other.marks)}"
        fewer, accuracy = _fewer_ranks(other, best), _accuracy_beside(other, best, better)
        cost = _cost_beside(other, best, goal, better)
        if fewer:
            beside = ", ".join(text for text in (cost, accuracy) if text)
            sentences.append(f"{fewer}: {beside} ({figures}).")
        else:
            sentences.append(f"{accuracy[:1].upper()}{accuracy[1:]}: {cost} ({figures}).")
    close: dict[bool, list[str]] = {True: [], False: []}
    for other in equal:
        label = f"{grouping.label(other.cell, keys)}: {_with_marks(_figures(other, goal), other.marks)}"
        close[_is_close(other, best)].append(label)
    titles = ("Equally good", "Not told from the best by these runs")
    return [*sentences, *_named(titles[0], close[True]), *_named(titles[1], close[False])]


def _named(title: str, settings: Sequence[str]) -> list[str]:
    rest = f"; and {len(settings) - MOST_EQUAL} more" if len(settings) > MOST_EQUAL else ""
    return [f"{title}: {'; '.join(settings[:MOST_EQUAL])}{rest}."] if settings else []


def _is_close(other: RankedSetting, best: RankedSetting) -> bool:
    return other.cost <= best.cost * (1 + MARGIN)


def _fewer_ranks(other: RankedSetting, best: RankedSetting) -> str:
    """ "Half the GPUs", "1 CPU rank instead of 3"; empty for a setting with as many ranks as the best, or more."""
    if other.gpus >= best.gpus:
        return ""
    unit = "CPU rank" if best.runs[0]["cpu_ranks"] else "GPU"
    return f"Half the {unit}s" if other.gpus * 2 == best.gpus else f"{counted(other.gpus, unit)} instead of {best.gpus}"


def _cost_beside(other: RankedSetting, best: RankedSetting, goal: str, better: Better) -> str:
    """The cost of a setting against the best: "1.7 times slower", "4 % slower"."""
    words, ratio = GOALS[goal], other.cost / best.cost
    told = better.cheaper(best.runs, other.runs)
    if not told and _is_close(other, best):
        return words.equal
    chance = "" if told else ", which these runs do not tell from chance"
    if ratio < LEAST_TIMES:
        percent = 100 * (ratio - 1)
        return words.percent.format(f"{percent:.0f}" if percent >= 1 else f"{percent:.1g}") + chance
    return words.times.format(f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}") + chance


def _accuracy_beside(other: RankedSetting, best: RankedSetting, better: Better) -> str:
    """The accuracy of a setting against the best, or its loss; empty where the runs do not tell them apart."""
    more, less = better.more_accurate(other.runs, best.runs), better.more_accurate(best.runs, other.runs)
    if not (more or less):
        return ""
    if other.accuracy is not None and best.accuracy is not None:
        return f"{100 * abs(other.accuracy - best.accuracy):.1f} points {'more' if more else 'less'} accurate"
    return f"a loss of {other.loss:.3f} instead of {best.loss:.3f}"


def _figures(setting: RankedSetting, goal: str) -> str:
    figures = [_cost(setting, goal)]
    if setting.accuracy is not None:
        figures.append(f"{setting.accuracy:.1%}")
    elif setting.loss is not None:
        figures.append(f"loss {setting.loss:.3f}")
    if len(setting.runs) > 1:
        figures.append(f"n={len(setting.runs)}")
    return ", ".join(figures)


def _with_marks(figures: str, marks: str) -> str:
    return f"{figures} [{marks}]" if marks else figures


def _cost(setting: RankedSetting, goal: str) -> str:
    if goal == "time":
        return f"{figures.seconds(setting.cost)} s"
    return in_joules(setting.cost) if goal == "energy" else in_bytes(setting.cost)


def _table(
    settings: Sequence[RankedSetting], on_front: Sequence[RankedSetting], keys: Sequence[str], goal: str
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; columns without a figure are left out."""
    rows = [
        {
            "rank": str(rank),
            **{key: grouping.typed(dict(setting.cell)[key]) for key in keys},
            goal: _cost(setting, goal),
            "x best": f"{setting.cost / settings[0].cost:.2f}",
            "accuracy": "-" if setting.accuracy is None else f"{setting.accuracy:.2%}",
            "loss": "-" if setting.loss is None else f"{setting.loss:.3f}",
            "n": str(len(setting.runs)),
            "front": "yes" if setting in on_front else "",
            "marks": setting.marks,
        }
        for rank, setting in enumerate(settings, 1)
    ]
    headings = [name for name in rows[0] if name in keys or {row[name] for row in rows} - {"-", ""}]
    return headings, [[row[name] for name in headings] for row in rows]
