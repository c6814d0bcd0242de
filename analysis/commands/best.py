"""`best`: what to run, and the settings that did the same work, ranked.

Without a goal, the recommendation comes first, and settings are ranked by time. Figures are of the
whole run: the mean over a setting's repetitions, of memory the maximum. Limits hold for these, not
for single runs. Settings of the trade-off front are those that no other dominates in the goal,
GPUs, accuracy (for tuning: held-out loss, else that of training) and cost (where GPUs have a
price). Ties with the best are not on it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from multicard.config.job import count
from multicard.messages import Message, Refusal
from multicard.records import limits, text_table
from multicard.records.figures import GOALS
from multicard.records.limits import Forbids
from multicard.records.output import Output
from multicard.records.text_table import TextTable, clean

from ..runs import by_int4, grouping, quality, works
from ..runs.columns import KINDS
from ..runs.grouping import PACE, of_setting
from ..runs.load import Run
from ..stats.between_runs import RepeatedRuns
from ..table_columns import Column, rows, table
from .ranking import COST, Limits, RankedSetting, Ranking


class Said(NamedTuple):
    """What is said of a ranking by time, and the setting that is recommended;
    None without a recommendation.
    """

    sentences: Sequence[str]
    recommended: RankedSetting | None


Answered = Callable[[Ranking], Said]


def output(
    runs: Sequence[Run],
    goal: str | None,
    asked: Limits,
    mix: bool,
    answer: Answered,
    by: str | None = None,
) -> Output:
    """The ranking of each work that was done, in sentences and as a table,
    which begins with what is recommended.

    Args:
        goal: None ranks by time, beside the best settings of the other goals.
        answer: what is said of a ranking by time, where no goal is given.
        by: one of `by_int4.BY`, by whose loss settings are judged; None: the plain one.

    Raises:
        ValueError: nothing can be ranked, with the reason.
    """
    judged = list[Message]()
    if by is not None:
        runs, judged = by_int4.judged(runs)
    every, goal = goal is None, goal or "time"
    selected = _selected(runs, goal, asked, mix)
    ranked = selected.ranked
    repeated = RepeatedRuns(runs)
    column = GOALS[goal].name
    found = _with_untold(_rankings(ranked, goal, mix, repeated), selected)
    tables = list[TextTable]()
    columns = list[list[Column]]()
    for ranking in found:
        # goals whose figures are of the same work
        whole = ("memory",) if ranking.is_at_pace else GOALS
        others = [
            _ranking(ranking.runs, one, "", repeated, mix) for one in whole if every and one != goal
        ]
        said = answer(ranking) if every else Said(ranking.sentences, None)
        sentences = [*said.sentences, *(one.sentences[0] for one in others if one.settings)]
        above = [f"{ranking.work}:", *sentences] if ranking.work else sentences
        columns.append(ranking.columns([one.goal for one in others], said.recommended))
        tables.append(table(columns[-1], above))
    described = repeated.of_column(column).described(ranked) * (
        len(ranked) > 1 and not grouping.is_exact(runs, column)
    )
    settings = list(chain.from_iterable(ranking.settings for ranking in found))
    counted = chain.from_iterable(one.counted for one in settings)
    left_out = []
    if GOALS[goal].can_be_disturbed:
        left_out = grouping.disturbed_notes(one.runs for one in settings)
    notes = [
        *judged,
        *described,
        *_not_ranked(runs, selected),
        *left_out,
        *grouping.legend(counted),
    ]

    def lines(width: int | None) -> list[str]:
        several = []
        if len(found) > 1:
            said = f"{len(found)} different works, each ranked by itself:"
            several.append(Message("best.several-works", said, n=len(found)))
        printed = []
        for one in tables:
            if several:
                printed.append("")
            printed += one.lines(width)
        return [*several, *printed, *text_table.folded(notes, width)]

    shown = [*tables[:-1], tables[-1]._replace(below=notes)]
    ranked_rows = []
    for own in columns:
        ranked_rows += sorted(rows(own), key=lambda row: row["rank"])
    return Output(lines, lambda: shown, ranked_rows)


def rankings(runs: Sequence[Run], mix: bool = False, asked: Limits | None = None) -> list[Ranking]:
    """The rankings by time, the work that was measured last first;
    raises ValueError where there are none.
    """
    selected = _selected(runs, "time", asked or Limits(), mix)
    found = _with_untold(_rankings(selected.ranked, "time", mix, RepeatedRuns(runs)), selected)
    return sorted(
        found, key=lambda one: max(run["started_at"] or "" for run in one.runs), reverse=True
    )


def known_rankings(runs: Sequence[Run], mix: bool = False) -> list[Ranking]:
    """The same; none where nothing can be ranked."""
    with suppress(ValueError):
        return rankings(runs, mix)
    return []


@dataclass(frozen=True)
class Selected:
    """Runs that can be ranked, and those that cannot.

    with_figure: of settings that have the goal's figure. ranked: of these, within the limits that
    were asked for.
    traced: profiled while they trained. untold: by what limits them,
    runs of which nothing can be said.
    """

    with_figure: list[Run]
    ranked: list[Run]
    traced: int
    untold: Mapping[str, int]


def _selected(runs: Sequence[Run], goal: str, asked: Limits, mix: bool) -> Selected:
    """The runs that a goal ranks; raises a Refusal where there are none, with the reason."""
    ended = grouping.ok_runs(runs)
    untraced = [run for run in ended if not run[grouping.TRACED]]
    ok, untold = _rankable(untraced)
    if not ok:
        is_traced = any(run[grouping.TRACED] for run in runs)
        traced = " without being profiled meanwhile" if is_traced else ""
        why = f" without a limit ({'; '.join(untold)})" if untold else traced
        said = f"none of {count(len(runs), 'run')} ended ok{why}"
        raise Refusal("best.none-ok", said, runs=len(runs), profiled=is_traced, limits=[*untold])
    column = GOALS[goal].name
    keys = ["kind", *grouping.settings(ok), *([] if mix else (*grouping.ORIGIN, *grouping.CORES))]
    settings = [group for group in grouping.group(ok, keys).values() if of_setting(group, column)]
    if not settings:
        raise _without_figure(goal, column, len(ok))
    with_figure = list(chain.from_iterable(settings))
    kept = chain.from_iterable(setting for setting in settings if asked.keep(setting))
    within = {run.folder for run in kept}
    if not within:
        reached = asked.nearest(settings)
        said = f"none of {count(len(with_figure), 'run')} keeps to the limits ({reached})"
        raise Refusal("best.limits", said, runs=len(with_figure), reached=reached)
    ranked = [run for run in ok if run.folder in within]
    return Selected(with_figure, ranked, len(ended) - len(untraced), untold)


def _rankable(runs: Sequence[Run]) -> tuple[list[Run], Counter[str]]:
    """The runs of which a verdict may be given, and the number of the others by what forbids it.

    A run that shows no speed-up is ranked where all have as many ranks.
    """
    forbidden = [Forbids.verdict]
    if len({grouping.ranks(run) for run in runs}) > 1:
        forbidden.append(Forbids.speed_up)
    untold: Counter[str] = Counter()
    told = []
    for run in runs:
        found = limits.forbidding(run.limits, *forbidden)
        if found:
            untold[found[0].says] += 1
        else:
            told.append(run)
    return told, untold


def _without_figure(goal: str, column: str, runs: int) -> Refusal:
    """None of some runs has the figure of a goal: why, and what to do."""
    said = f"none of {count(runs, 'run')} has {column}"
    if goal == "energy":
        said += "; NVML measures the energy of GPUs, not of CPU ranks"
    if goal == COST:
        said += "; give the price of a GPU for an hour, as `--price 2.49` (CPU ranks use none)"
    return Refusal(
        "best.no-figure",
        said,
        key="--price" if goal == COST else None,
        goal=goal,
        column=column,
        runs=runs,
    )


def _not_ranked(runs: Sequence[Run], selected: Selected) -> list[Message]:
    statuses = Counter(clean(run["status"]) for run in runs)
    traced = selected.traced
    beyond = len(selected.with_figure) - len(selected.ranked)
    without = statuses["ok"] - len(selected.with_figure) - traced - sum(selected.untold.values())
    counts = {
        **{status: count for status, count in statuses.items() if status != "ok"},
        "profiled while they trained": traced,
        "without the figure": without,
        "beyond the limits": beyond,
    }
    counts |= {f"limited ({says})": number for says, number in selected.untold.items()}
    counts = {what: number for what, number in counts.items() if number}
    if not counts:
        return []
    said = f"not ranked: {', '.join(f'{number} {what}' for what, number in counts.items())}"
    about: dict[str, Any] = {"profiled": traced, "without_figure": without, "beyond_limits": beyond}
    about["untold"] = sum(selected.untold.values())
    ended = {status: number for status, number in statuses.items() if status != "ok"}
    return [Message("best.not-ranked", said, not_ok=ended, **about)]


def _rankings(runs: Sequence[Run], goal: str, mix: bool, repeated: RepeatedRuns) -> list[Ranking]:
    # how much memory a setting needs does not depend on how long it trains
    found = works.by_work(runs, mix, at_pace=goal in ("time", "memory"))
    return [
        replace(
            _ranking(own, goal, _work(work, list(found)), repeated, mix),
            lengths=works.lengths_of(work),
        )
        for work, own in found.items()
    ]


def _with_untold(found: list[Ranking], selected: Selected) -> list[Ranking]:
    """Rankings of selected runs, a single one with those that are not in it."""
    return [replace(one, untold=selected.untold) for one in found] if len(found) == 1 else found


def _work(work: grouping.Cell, every: Sequence[grouping.Cell]) -> str:
    if len(every) == 1:
        return ""
    kind = dict(work)["kind"]
    of_kind = [dict(other) for other in every if dict(other)["kind"] == kind]
    order = sorted(
        (key for key, _ in work),
        key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key),
    )
    return f"{KINDS[kind].title} {grouping.label(work, grouping.telling(of_kind, order))}".rstrip()


def _ranking(runs: list[Run], goal: str, work: str, repeated: RepeatedRuns, mix: bool) -> Ranking:
    column = PACE if goal == "time" and works.is_at_pace(runs) else GOALS[goal].name
    names = [*grouping.settings(runs), *([] if mix else grouping.CORES)]
    setting_columns = [name for name in names if any(name in run.columns for run in runs)]
    settings = list[RankedSetting]()
    for cell, own in grouping.group(runs, setting_columns).items():
        cost = of_setting(own, column)
        if cost:
            counted = grouping.counting(own, column)
            ranks = grouping.ranks(own[0])
            settings.append(RankedSetting(cell, own, cost, ranks, quality.of(own), counted))
    settings.sort(
        key=lambda one: (
            one.cost,
            one.gpus,
            one.error or 0.0,
            of_setting(one.runs, "total_s") or 0.0,
        )
    )
    keys = grouping.apart([dict(setting.cell) for setting in settings], setting_columns)
    return Ranking(goal, column, work, runs, settings, keys, repeated)
