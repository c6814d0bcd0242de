"""`best`: which setting reached a goal with the least, among runs that did the same work.

Runs are ranked by the time, the energy or the peak of memory of the whole run. Beside the ranking stands the trade-off
front: settings that no other beats in the goal without more GPUs or less accuracy (for tuning: more loss).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis import formatting
from analysis.runs import grouping, same_work
from analysis.runs.caveats import legend
from analysis.runs.load import Run
from analysis.stats.trade_off import front, shares_differ
from multicard.records import text_table
from multicard.records.table import in_bytes
from multicard.records.text_table import clean

GOALS = {"time": "total_s", "energy": "energy_joules", "memory": "peak_memory_bytes"}
FIRST = {"time": "Fastest", "energy": "Least energy", "memory": "Least memory"}
MORE = {"time": "as long", "energy": "the energy", "memory": "the memory"}
LOSS_APART = 0.01  # relative difference below which two losses count as equal


@dataclass(frozen=True)
class Limits:
    """What a setting must keep to; None: anything."""

    accuracy: float | None = None
    memory_bytes: float | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Setting:
    """Repetitions of one setting, and the means of their figures; memory is the highest."""

    cell: grouping.Cell
    runs: list[Run]
    cost: float
    gpus: int
    accuracy: float | None
    test_samples: int
    loss: float | None

    @property
    def marks(self) -> str:
        return grouping.marks(self.runs)


@dataclass(frozen=True)
class Ranking:
    """Settings that did the same amount of the same work, the best first.

    work: what tells it from the other works; empty for one alone. amount: rows or pairs, where its runs differ there.
    label, figures, marks: of the best. others: a sentence for each other setting of the trade-off front.
    headings, rows: the ranking.
    """

    goal: str
    work: str
    amount: str
    label: str
    figures: str
    marks: str
    others: list[str]
    headings: list[str]
    rows: list[list[str]]
    runs: list[Run]

    @property
    def words(self) -> str:
        figures = _marked(self.figures, self.marks)
        return " ".join([f"{FIRST[self.goal]}: {self.label}: {figures}.", *self.others])


def lines(runs: Sequence[Run], goal: str, limits: Limits, mix: bool, width: int | None) -> list[str]:
    """The ranking of each work that was done, in words and as a table.

    Args:
        mix: rank, and average, runs of several commits or machines together.

    Raises:
        ValueError: nothing can be ranked, with the reason.
    """
    figured, kept = _kept(runs, goal, limits)
    found = _rankings(kept, goal, mix)
    works = list(dict.fromkeys(ranking.work for ranking in found))
    told = [f"{len(works)} different works, each ranked by itself:"] if len(works) > 1 else []
    for work in works:
        told += ["", f"{work}:"] if len(works) > 1 else []
        for ranking in found:
            if ranking.work == work:
                told += [f"{ranking.amount}:"] if ranking.amount else []
                told += [ranking.words, *text_table.text(ranking.headings, ranking.rows, width)]
    return [*told, *_left_out(runs, figured, kept), *legend(run["marks"] for run in kept)]


def rankings(runs: Sequence[Run], goal: str, limits: Limits, mix: bool) -> list[Ranking]:
    """The same as data, the works in the order of their first runs.

    Raises:
        ValueError: nothing can be ranked, with the reason.
    """
    return _rankings(_kept(runs, goal, limits)[1], goal, mix)


def _kept(runs: Sequence[Run], goal: str, limits: Limits) -> tuple[list[Run], list[Run]]:
    """The runs with the goal's figure, and those of them within the limits."""
    measured = [run for run in runs if run["status"] == "ok"]
    figured = [run for run in measured if run[GOALS[goal]] is not None]
    if not figured:
        raise ValueError(_without(runs, measured, goal))
    kept = [run for run in figured if _fits(run, limits)]
    if not kept:
        raise ValueError(f"none of {len(figured)} runs keeps to the limits ({_nearest(figured, limits)})")
    return figured, kept


def _rankings(kept: Sequence[Run], goal: str, mix: bool) -> list[Ranking]:
    works = grouping.group(kept, same_work.work_keys(kept, mix))
    return [
        ranking
        for work, group in works.items()
        for ranking in _ranked(group, goal, _named(work, list(works)) if len(works) > 1 else "")
    ]


def _named(work: grouping.Cell, works: Sequence[grouping.Cell]) -> str:
    """A work by what tells it from the others of its kind."""
    kind = dict(work)["kind"]
    alike = [dict(other) for other in works if dict(other)["kind"] == kind]
    apart = grouping.telling(
        alike, sorted((key for key, _ in work), key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key))
    )
    return " ".join([clean(kind), *([grouping.label(work, apart)] if apart else [])])


def _without(runs: Sequence[Run], measured: Sequence[Run], goal: str) -> str:
    if not measured:
        return f"none of {len(runs)} runs ended ok"
    why = "; energy is measured on GPUs with NVML, not on CPU ranks" if goal == "energy" else ""
    return f"none of {len(measured)} runs has {GOALS[goal]}{why}"


def _fits(run: Run, limits: Limits) -> bool:
    checks: list[tuple[float | None, Callable[[], bool]]] = [
        (limits.accuracy, lambda: (run["test_accuracy"] or 0.0) >= (limits.accuracy or 0.0)),
        (limits.memory_bytes, lambda: (run["peak_memory_bytes"] or math.inf) <= (limits.memory_bytes or math.inf)),
        (limits.gpus, lambda: grouping.ranks(run) <= (limits.gpus or math.inf)),
    ]
    return all(check() for limit, check in checks if limit is not None)


def _nearest(runs: Sequence[Run], limits: Limits) -> str:
    told = []
    if limits.accuracy is not None:
        highest = max((run["test_accuracy"] for run in runs if run["test_accuracy"] is not None), default=None)
        told.append("no run has an accuracy" if highest is None else f"the highest accuracy is {highest:.2%}")
    if limits.memory_bytes is not None:
        least = min((run["peak_memory_bytes"] for run in runs if run["peak_memory_bytes"]), default=None)
        told.append(f"the least memory is {in_bytes(least)}")
    if limits.gpus is not None:
        told.append(f"the fewest GPUs are {min(map(grouping.ranks, runs))}")
    return ", ".join(told)


def _left_out(runs: Sequence[Run], figured: Sequence[Run], kept: Sequence[Run]) -> list[str]:
    counts: dict[str, int] = {}
    for run in runs:
        if run["status"] != "ok":
            status = clean(run["status"])
            counts[status] = counts.get(status, 0) + 1
    others = sum(run["status"] == "ok" for run in runs) - len(figured)
    told = [f"{count} {status}" for status, count in counts.items()]
    told += [f"{others} without the figure"] * (others > 0)
    told += [f"{len(figured) - len(kept)} beyond the limits"] * (len(figured) > len(kept))
    return [f"not ranked: {', '.join(told)}"] if told else []


def _ranked(group: Sequence[Run], goal: str, work: str) -> list[Ranking]:
    found = []
    amounts = same_work.by_amount(group)
    for (rows, pairs), runs in amounts.items():
        done = f"{'preference pairs' if pairs else 'runs'} of {'all' if rows is None else rows} rows"
        ways = [name for name in grouping.settings(runs) if any(name in run.columns for run in runs)]
        settings = sorted((_setting(c, r, goal) for c, r in grouping.group(runs, ways).items()), key=lambda s: s.cost)
        keys = grouping.apart([dict(setting.cell) for setting in settings], ways)
        best = front(settings, BETTER)
        amount = done if len(amounts) > 1 else ""
        label = grouping.label(best[0].cell, keys) or "the only setting"
        told = label, _figures(best[0], goal), best[0].marks, _others(best, keys, goal)
        found.append(Ranking(goal, work, amount, *told, *_table(settings, best, keys, goal), runs))
    return found


def _setting(cell: grouping.Cell, runs: list[Run], goal: str) -> Setting:
    costs = [run[GOALS[goal]] for run in runs]
    right = [run["test_accuracy"] for run in runs]
    losses = [run["loss_last_tenth"] for run in runs]
    return Setting(
        cell,
        runs,
        max(costs) if goal == "memory" else sum(costs) / len(costs),
        grouping.ranks(runs[0]),
        None if None in right else sum(right) / len(right),
        sum(run["test_samples"] or 0 for run in runs),
        None if None in losses else sum(losses) / len(losses),
    )


def more_accurate(a: Setting, b: Setting) -> bool:
    """Whether `a` is more accurate by more than the test set can miss, or has less loss by more than 1 %."""
    if a.accuracy is not None and b.accuracy is not None:
        return a.accuracy > b.accuracy and shares_differ(a.accuracy, a.test_samples, b.accuracy, b.test_samples)
    return a.loss is not None and b.loss is not None and a.loss < b.loss * (1 - LOSS_APART)


BETTER = (lambda a, b: a.cost < b.cost, lambda a, b: a.gpus < b.gpus, more_accurate)


def _others(best: Sequence[Setting], keys: Sequence[str], goal: str) -> list[str]:
    """The front but for the best: each setting by what it asks for and what it gives."""
    first, *others = best
    told = []
    for other in others:
        ratio = other.cost / first.cost
        gives = [_fewer(first, other)] if other.gpus < first.gpus else []
        if more_accurate(other, first):
            gives.append(_gain(first, other))
        what, figures = grouping.label(other.cell, keys), _marked(_figures(other, goal), other.marks)
        given = " and ".join(gives)
        told.append(f"{given[:1].upper()}{given[1:]} {ratio:.2g} times {MORE[goal]} ({what}: {figures}).")
    return told


def _fewer(first: Setting, other: Setting) -> str:
    unit = "CPU ranks" if first.runs[0]["cpu_ranks"] else "GPUs"
    if other.gpus * 2 == first.gpus:
        return f"with half the {unit}"
    return f"with {other.gpus} instead of {first.gpus} {unit}"


def _gain(first: Setting, other: Setting) -> str:
    if other.accuracy is not None and first.accuracy is not None:
        return f"for {100 * (other.accuracy - first.accuracy):.1f} points of accuracy more"
    return f"for a loss of {other.loss:.3f} instead of {first.loss:.3f}"


def _figures(setting: Setting, goal: str) -> str:
    told = [_cost(setting, goal)]
    if setting.accuracy is not None:
        told.append(f"{setting.accuracy:.1%}")
    elif setting.loss is not None:
        told.append(f"loss {setting.loss:.3f}")
    if len(setting.runs) > 1:
        told.append(f"n={len(setting.runs)}")
    return ", ".join(told)


def _marked(figures: str, marks: str) -> str:
    return f"{figures} [{marks}]" if marks else figures


def _cost(setting: Setting, goal: str) -> str:
    if goal == "time":
        return f"{formatting.seconds(setting.cost)} s"
    return formatting.joules(setting.cost) if goal == "energy" else in_bytes(setting.cost)


def _table(
    settings: Sequence[Setting], best: Sequence[Setting], keys: Sequence[str], goal: str
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows."""
    rows = []
    for rank, setting in enumerate(settings, 1):
        values = dict(setting.cell)
        rows.append(
            {
                "rank": str(rank),
                **{key: grouping.typed(values[key]) for key in keys},
                goal: _cost(setting, goal),
                "x best": f"{setting.cost / settings[0].cost:.2f}",
                "accuracy": "-" if setting.accuracy is None else f"{setting.accuracy:.2%}",
                "loss": "-" if setting.loss is None else f"{setting.loss:.3f}",
                "n": str(len(setting.runs)),
                "front": "yes" if setting in best else "",
                "marks": setting.marks,
            }
        )
    names = [name for name in rows[0] if name in keys or {row[name] for row in rows} - {"-", ""}]
    return names, [[row[name] for name in names] for row in rows]
