"""`best`: say what to run, and rank the settings that did the same work.

Without a goal, the recommendation comes first, and settings are ranked by time. Figures describe
the whole run: the mean over a setting's repetitions, or the maximum for memory. Limits apply to
these figures, not to single runs.

The trade-off front has the settings that no other setting dominates in the goal, GPUs, accuracy and
cost. For tuning, accuracy is the held-out loss, or else the training loss. Cost counts if GPUs have
a price. Ties with the best setting are not on the front.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from ..table_columns import Column, rows, sortable_table
from .ranking import COST, Limits, RankedSetting, Ranking


class RankingSummary(NamedTuple):
    """The sentences about a ranking by time, and the recommended setting, if there is one."""

    sentences: Sequence[str]
    recommended: RankedSetting | None


Summarize = Callable[[Ranking], RankingSummary]
# Says why a setting's figures are worthless, if they are.
Doubt = Callable[[Ranking, RankedSetting], Iterable[Message]]


def output(
    runs: Sequence[Run],
    goal: str | None,
    asked: Limits,
    mix: bool,
    summarize: Summarize,
    by: str | None = None,
    doubt: Doubt = lambda ranking, setting: (),
) -> Output:
    """Return the ranking of each work that was done, in sentences and as a table.

    The recommendation comes first.

    Args:
        runs: the runs to rank.
        goal: the goal to rank by. None ranks by time, and adds the best settings of other goals.
        asked: the limits that settings must respect.
        mix: rank runs of different commits, machines and cores together.
        summarize: makes the sentences about a ranking by time. It is used only without a goal.
        by: one of `by_int4.SCORES`: the loss that settings are judged by. None is the plain loss.
        doubt: says why a setting's figures are worthless. It is used only with a goal.

    Raises:
        ValueError: nothing can be ranked. The message has the reason.
    """
    notes_on_judging = list[Message]()
    if by is not None:
        runs, notes_on_judging = by_int4.judge_by_int4(runs)
    without_goal, goal = goal is None, goal or "time"
    selected = _selected(runs, goal, asked, mix)
    ranked = selected.ranked
    repeated = RepeatedRuns(runs)
    column = GOALS[goal].name
    rankings_found = _with_untold(_rankings(ranked, goal, mix, repeated), selected)
    tables = list[TextTable]()
    columns = list[list[Column]]()
    for ranking in rankings_found:
        # If runs differ in length, memory is the only other goal that can be compared.
        comparable_goals = ("memory",) if ranking.is_at_pace else GOALS
        other_rankings = [
            _ranking(ranking.runs, other_goal, "", repeated, mix)
            for other_goal in comparable_goals
            if without_goal and other_goal != goal
        ]
        summary = summarize(ranking) if without_goal else _of_goal(ranking, doubt)
        sentences = [
            *summary.sentences,
            *(
                other_ranking.sentences[0]
                for other_ranking in other_rankings
                if other_ranking.settings
            ),
        ]
        above = [f"{ranking.work}:", *sentences] if ranking.work else sentences
        columns.append(
            ranking.columns(
                [other_ranking.goal for other_ranking in other_rankings], summary.recommended
            )
        )
        tables.append(sortable_table(columns[-1], above))
    interval_notes = []
    if len(ranked) > 1 and not grouping.is_exact(runs, column):
        interval_notes = repeated.of_column(column).described(ranked)
    settings = list(chain.from_iterable(ranking.settings for ranking in rankings_found))
    counted = chain.from_iterable(setting.counted for setting in settings)
    left_out = []
    if GOALS[goal].can_be_disturbed:
        left_out = grouping.disturbed_notes(setting.runs for setting in settings)
    notes = [
        *notes_on_judging,
        *interval_notes,
        *_not_ranked(runs, selected),
        *left_out,
        *grouping.legend(counted),
    ]

    def lines(width: int | None) -> list[str]:
        heading_lines = []
        if len(rankings_found) > 1:
            text = f"{len(rankings_found)} different works, each ranked by itself:"
            heading_lines.append(Message("best.several-works", text, n=len(rankings_found)))
        printed = []
        for ranking_table in tables:
            if heading_lines:
                printed.append("")
            printed += ranking_table.lines(width)
        return [*heading_lines, *printed, *text_table.folded(notes, width)]

    shown_tables = [*tables[:-1], tables[-1]._replace(below=notes)]
    ranked_rows = []
    for ranking_columns in columns:
        ranked_rows += sorted(rows(ranking_columns), key=lambda row: row["rank"])
    return Output(lines, lambda: shown_tables, ranked_rows)


def _of_goal(ranking: Ranking, doubt: Doubt) -> RankingSummary:
    """Return the sentences of a ranking by one goal, and why its first setting may be worthless."""
    is_judged = ranking.goal != "memory" and ranking.settings  # The memory of a bad run is right.
    doubts = [*doubt(ranking, ranking.settings[0])] if is_judged else []
    sentences = [*ranking.sentences]
    if doubts:
        text = f"The first setting is in doubt: {'; '.join(doubts)}"
        sentences.append(Message("best.in-doubt", text, doubts=doubts))
    return RankingSummary(sentences, None)


def rankings(runs: Sequence[Run], mix: bool = False, asked: Limits | None = None) -> list[Ranking]:
    """Return the rankings by time. The work that was measured last comes first.

    Raises:
        ValueError: nothing can be ranked.
    """
    selected = _selected(runs, "time", asked or Limits(), mix)
    rankings_by_work = _with_untold(
        _rankings(selected.ranked, "time", mix, RepeatedRuns(runs)), selected
    )
    return sorted(
        rankings_by_work,
        key=lambda ranking: max(run["started_at"] or "" for run in ranking.runs),
        reverse=True,
    )


def known_rankings(runs: Sequence[Run], mix: bool = False) -> list[Ranking]:
    """Return the rankings by time; an empty list if nothing can be ranked."""
    with suppress(ValueError):
        return rankings(runs, mix)
    return []


@dataclass(frozen=True)
class Selected:
    """The runs that can be ranked, and the numbers of other runs.

    with_figure: the runs of settings that have the goal's figure.
    ranked: the runs that are ranked: those of settings within the limits that were asked for.
    traced: the number of runs that were profiled while they trained.
    untold: the number of runs that no verdict is allowed for, by the limit that forbids it.
    """

    with_figure: list[Run]
    ranked: list[Run]
    traced: int
    untold: Mapping[str, int]


def _selected(runs: Sequence[Run], goal: str, asked: Limits, mix: bool) -> Selected:
    """Select the runs that a goal ranks.

    Raises:
        Refusal: there are none. The message has the reason.
    """
    ended = grouping.ok_runs(runs)
    untraced = [run for run in ended if not run[grouping.TRACED]]
    ok, untold = _rankable(untraced)
    if not ok:
        is_traced = any(run[grouping.TRACED] for run in runs)
        traced = " without being profiled meanwhile" if is_traced else ""
        reason = f" without a limit ({'; '.join(untold)})" if untold else traced
        text = f"none of {count(len(runs), 'run')} ended ok{reason}"
        raise Refusal("best.none-ok", text, runs=len(runs), profiled=is_traced, limits=[*untold])
    column = GOALS[goal].name
    keys = ["kind", *grouping.settings(ok), *([] if mix else (*grouping.ORIGIN, *grouping.CORES))]
    settings = [group for group in grouping.group(ok, keys).values() if of_setting(group, column)]
    if not settings:
        raise _without_figure(goal, column, len(ok))
    with_figure = list(chain.from_iterable(settings))
    runs_within = chain.from_iterable(setting for setting in settings if asked.keep(setting))
    folders_within = {run.folder for run in runs_within}
    if not folders_within:
        nearest_figures = asked.nearest(settings)
        text = f"none of {count(len(with_figure), 'run')} keeps to the limits ({nearest_figures})"
        raise Refusal("best.limits", text, runs=len(with_figure), reached=nearest_figures)
    ranked = [run for run in ok if run.folder in folders_within]
    return Selected(with_figure, ranked, len(ended) - len(untraced), untold)


def _rankable(runs: Sequence[Run]) -> tuple[list[Run], Counter[str]]:
    """Return the runs that a verdict may be given for, and count the others by the reason.

    A run that shows no speed-up is ranked if all runs have the same number of ranks.
    """
    forbidden_uses = [Forbids.verdict]
    if len({grouping.ranks(run) for run in runs}) > 1:
        forbidden_uses.append(Forbids.speed_up)
    counts_by_limit: Counter[str] = Counter()
    rankable = []
    for run in runs:
        forbidding_limits = limits.forbidding(run.limits, *forbidden_uses)
        if forbidding_limits:
            counts_by_limit[forbidding_limits[0].says] += 1
        else:
            rankable.append(run)
    return rankable, counts_by_limit


def _without_figure(goal: str, column: str, runs: int) -> Refusal:
    """Refuse a goal whose figure no run has. The message says why, and what to do."""
    text = f"none of {count(runs, 'run')} has {column}"
    if goal == "energy":
        text += "; NVML measures the energy of GPUs, not of CPU ranks"
    if goal == COST:
        text += "; give the price of a GPU for an hour, as `--price 2.49` (CPU ranks use none)"
    return Refusal(
        "best.no-figure",
        text,
        key="--price" if goal == COST else None,
        goal=goal,
        column=column,
        runs=runs,
    )


def _not_ranked(runs: Sequence[Run], selected: Selected) -> list[Message]:
    """Say which runs are not ranked, and why; an empty list if all are ranked."""
    statuses = Counter(clean(run["status"]) for run in runs)
    profiled = selected.traced
    beyond_limits = len(selected.with_figure) - len(selected.ranked)
    without_figure = (
        statuses["ok"] - len(selected.with_figure) - profiled - sum(selected.untold.values())
    )
    counts = {
        **{status: count for status, count in statuses.items() if status != "ok"},
        "profiled while they trained": profiled,
        "without the figure": without_figure,
        "beyond the limits": beyond_limits,
    }
    counts |= {f"limited ({says})": number for says, number in selected.untold.items()}
    counts = {reason: number for reason, number in counts.items() if number}
    if not counts:
        return []
    text = f"not ranked: {', '.join(f'{number} {reason}' for reason, number in counts.items())}"
    about: dict[str, Any] = {
        "profiled": profiled,
        "without_figure": without_figure,
        "beyond_limits": beyond_limits,
    }
    about["untold"] = sum(selected.untold.values())
    ended = {status: number for status, number in statuses.items() if status != "ok"}
    return [Message("best.not-ranked", text, not_ok=ended, **about)]


def _rankings(runs: Sequence[Run], goal: str, mix: bool, repeated: RepeatedRuns) -> list[Ranking]:
    """Rank the settings of each work by a goal."""
    # The memory that a setting needs does not depend on how long it trains.
    runs_by_work = works.by_work(runs, mix, at_pace=goal in ("time", "memory"))
    return [
        replace(
            _ranking(work_runs, goal, _work(work, list(runs_by_work)), repeated, mix),
            lengths=works.lengths_of(work),
        )
        for work, work_runs in runs_by_work.items()
    ]


def _with_untold(all_rankings: list[Ranking], selected: Selected) -> list[Ranking]:
    """Add the counts of runs that cannot be ranked, if there is a single ranking."""
    if len(all_rankings) != 1:
        return all_rankings
    return [replace(all_rankings[0], untold=selected.untold)]


def _work(work: grouping.Cell, all_works: Sequence[grouping.Cell]) -> str:
    """Name a work by the settings that distinguish it; empty if there is only one work."""
    if len(all_works) == 1:
        return ""
    kind = dict(work)["kind"]
    same_kind = [dict(other) for other in all_works if dict(other)["kind"] == kind]
    order = sorted(
        (key for key, _ in work),
        key=lambda key: (key in grouping.ORIGIN, key != "scale", "." in key),
    )
    return (
        f"{KINDS[kind].title} {grouping.label(work, grouping.telling(same_kind, order))}".rstrip()
    )


def _ranking(runs: list[Run], goal: str, work: str, repeated: RepeatedRuns, mix: bool) -> Ranking:
    """Rank the settings of one work."""
    column = PACE if goal == "time" and works.is_at_pace(runs) else GOALS[goal].name
    names = [*grouping.settings(runs), *([] if mix else grouping.CORES)]
    setting_columns = [name for name in names if any(name in run.columns for run in runs)]
    settings = list[RankedSetting]()
    for cell, setting_runs in grouping.group(runs, setting_columns).items():
        cost = of_setting(setting_runs, column)
        if cost:
            counted = grouping.counting(setting_runs, column)
            ranks = grouping.ranks(setting_runs[0])
            settings.append(
                RankedSetting(cell, setting_runs, cost, ranks, quality.of(setting_runs), counted)
            )
    settings.sort(
        key=lambda setting: (
            setting.cost,
            setting.gpus,
            setting.error or 0.0,
            of_setting(setting.runs, "total_s") or 0.0,
        )
    )
    keys = grouping.apart([dict(setting.cell) for setting in settings], setting_columns)
    return Ranking(goal, column, work, runs, settings, keys, repeated)
