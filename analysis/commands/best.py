"""`best`: what to run, and the settings that did the same work, ranked.

Without a goal, the recommendation comes first, and settings are ranked by time. Figures are of the
whole run: the mean over a setting's repetitions, of memory the maximum. Limits hold for these, not
for single runs. Settings of the trade-off front are those that no other dominates in the goal,
GPUs, accuracy (for tuning: held-out loss, else that of training) and cost (where GPUs have a
price). Ties with the best are not on it.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

from multicard.config.job import count
from multicard.measure.repeated_runs import MARGIN, WITHIN
from multicard.messages import Message, Refusal
from multicard.records import limits, text_table
from multicard.records.figures import GOALS, SECONDS, Scale
from multicard.records.limits import Forbids
from multicard.records.output import Output
from multicard.records.text_table import TextTable, clean, first_few, in_bytes

from ..runs import by_int4, grouping, quality, works
from ..runs.columns import KINDS
from ..runs.grouping import ACCURACY, HELD_OUT, LOSS, MEMORY, PACE, of_setting
from ..runs.load import Run
from ..stats.between_runs import RepeatedRuns
from ..stats.intervals import bonferroni
from ..table_columns import Column, rows, table

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


class Said(NamedTuple):
    """What is said of a ranking by time, and the setting that is recommended;
    None without a recommendation.
    """

    sentences: Sequence[str]
    recommended: RankedSetting | None


Answered = Callable[[Ranking], Said]


def _yes(holds: bool) -> str:
    return "yes" if holds else ""


def _text(goal: str, value: float) -> str:
    unit = GOALS[goal].unit
    text = unit.text(value)
    return f"{text} s" if unit is SECONDS else text


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
