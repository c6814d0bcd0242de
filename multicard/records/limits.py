"""Limits: facts of a run that forbid to say something of it.

Whoever knows such a fact writes it into the record, once: the recorder of steps, the sampler of
GPUs, the loader, the controller. Whoever speaks of runs (tables, rankings, effects, comparisons,
claims, races, plans, charts, pages, W&B, Python) asks here what is forbidden, and says why in the
limit's own words. A limit of a newer version, or of a plugin, carries all that is needed with it:
its code, what it forbids and its sentence.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Protocol, TypeVar

from multicard.config.job import count
from multicard.config.placement import CROWDED, OVERSUBSCRIBED
from multicard.messages import Message, code_of
from multicard.records import limit_facts
from multicard.records.schema import AnyRecord, LlmRecord
from multicard.records.schema_parts import HeldOut, Limit
from multicard.records.trained_weights import ApartBy

BUSY_SHARE = 0.1  # of a run's cores, for others or stolen from it, above which it is limited
UNKNOWN_SIGN = "#"  # in tables, of limits that this version does not know
PREFIX = "limit."  # of the codes of messages that are limits
TRAIN_TOGETHER = "wrap the model in DistributedDataParallel"


class Forbids(StrEnum):
    """What a limit forbids.

    rate: to take its times for those of the setting, where other runs have no such limit; to decide
    a claim of time.
    speed_up: any speed-up, efficiency or recommendation by its number of GPUs.
    learning: to compare its accuracy or loss.
    prediction: to predict times of other runs from its own.
    verdict: any ranking, comparison or claim.
    """

    rate = "rate"
    speed_up = "speed_up"
    learning = "learning"
    prediction = "prediction"
    verdict = "verdict"


@dataclass(frozen=True)
class LimitKind:
    """A limit that this version finds by itself.

    says: its sentence, with its code. sign: behind a run's status or figures in tables.
    column: true or false for every run. forbids: empty for what is said of a run and limits
    nothing.
    applies: True for records that have it. noted: count it in a note below tables of a sweep.
    brief: its sign stands behind the status of a run that has ended.
    passes: it came from outside, and another run of the same setting need not have it.
    tells: the sentence of a record, where that says more than `says`.
    """

    says: Message
    sign: str
    column: str
    forbids: frozenset[Forbids]
    applies: Callable[[AnyRecord], bool]
    noted: bool = False
    brief: bool = False
    passes: bool = False
    tells: Callable[[AnyRecord], Message] | None = None

    @property
    def code(self) -> str:
        return self.says.code.removeprefix(PREFIX)

    def limit(self, record: AnyRecord | None = None) -> Limit:
        """The limit of a record, or as it stands for several."""
        says = self.says if record is None or self.tells is None else self.tells(record)
        return Limit(self.code, str(says), sorted(self.forbids))


def _held_out(record: AnyRecord) -> HeldOut:
    """The held-out rows of a tuning run; without any, none at all."""
    return (record.held_out if isinstance(record, LlmRecord) else None) or HeldOut()


def busy_share(record: AnyRecord) -> float:
    """The share of the run's cores that others had while it was measured."""
    load = record.load
    if load is None or not record.cores:
        return 0.0
    return ((load.others_cores or 0.0) + (load.stolen_cores or 0.0)) / record.cores


def _only(*forbidden: Forbids) -> frozenset[Forbids]:
    return frozenset(forbidden)


OVERSUBSCRIBED_GPUS = LimitKind(
    says=Message("limit.oversubscribed", OVERSUBSCRIBED),
    sign="*",
    column="oversubscribed",
    forbids=_only(Forbids.rate, Forbids.prediction, Forbids.verdict),
    applies=lambda record: bool(record.oversubscribed),
    noted=True,
    brief=True,
)
ON_CPU = LimitKind(
    says=Message("limit.cpu-ranks", "CPU ranks, not GPUs"),
    sign="c",
    column="cpu_ranks",
    forbids=_only(),
    applies=lambda record: record.axes.get("device") == "cpu",
)
DISTURBED = LimitKind(
    says=Message("limit.disturbed", "other programs used its GPUs meanwhile"),
    sign="!",
    column="disturbed",
    forbids=_only(Forbids.rate),
    applies=limit_facts.is_disturbed,
    brief=True,
    passes=True,
)
LOADED = LimitKind(
    says=Message("limit.loaded", f"other programs used more than {BUSY_SHARE:.0%} of its cores"),
    sign="&",
    column="loaded",
    forbids=_only(Forbids.rate),
    applies=lambda record: busy_share(record) > BUSY_SHARE,
    brief=True,
    passes=True,
)
CROWD = LimitKind(
    says=Message("limit.crowded", CROWDED),
    sign=">",
    column="crowded",
    forbids=_only(Forbids.rate, Forbids.prediction),
    applies=limit_facts.is_crowded,
    noted=True,
    brief=True,
)
BESIDE = LimitKind(
    says=Message("limit.beside-others", "beside other runs on its machine"),
    sign="p",
    column="beside_others",
    forbids=_only(),
    applies=lambda record: bool(record.beside),
    noted=True,
)
RANDOM_WEIGHTS = LimitKind(
    says=Message("limit.random-weights", "random weights: its loss is no model's"),
    sign="r",
    column="random_weights",
    forbids=_only(),
    applies=lambda record: record.axes.get("weights") == "random",
)
SMOKE = LimitKind(
    says=Message("limit.smoke", "smoke scale: shrunk to try the code"),
    sign="s",
    column="smoke",
    forbids=_only(),
    applies=lambda record: record.config.get("scale") == "smoke",
    noted=True,
)
PROFILED = LimitKind(
    says=Message(
        "limit.profiled", "traced by a profiler while it trained: its times are longer than without"
    ),
    sign="t",
    column="profiled",
    forbids=_only(Forbids.rate, Forbids.prediction),
    applies=limit_facts.is_traced,
    noted=True,
    brief=True,
)
STALLED = LimitKind(
    says=Message(
        "limit.stalled", "a process was stopped in a step, or the machine slept; measure it again"
    ),
    sign="z",
    column="stalled",
    forbids=_only(Forbids.rate),
    applies=limit_facts.is_stalled,
    noted=True,
    brief=True,
    passes=True,
)
SLOW_STEPS = LimitKind(
    says=Message(
        "limit.slow-steps", "some steps took over three times the median; measure it again"
    ),
    sign="~",
    column="slow_steps",
    forbids=_only(Forbids.rate),
    applies=lambda record: bool(limit_facts.slow_steps(record)),
    noted=True,
    brief=True,
    tells=limit_facts.tell_slow_steps,
)
MIXED_DATA = LimitKind(
    says=Message("limit.mixed-data", "its data was changed while it trained"),
    sign="m",
    column="mixed_data",
    forbids=_only(Forbids.learning, Forbids.verdict),
    applies=lambda record: bool(record.data and record.data.changed),
    noted=True,
    brief=True,
)
TEST_SEEN = LimitKind(
    says=Message(
        "limit.test-seen",
        f"at least {limit_facts.SEEN_SHARE:.0%} of its test images are trained on too: its accuracy"
        " is partly memory",
    ),
    sign="e",
    column="test_seen",
    forbids=_only(Forbids.learning),
    applies=limit_facts.is_test_seen,
    noted=True,
    brief=True,
)
APART = LimitKind(
    says=Message(
        "limit.trained-apart",
        "the script does not use its further ranks: without a process group each trained a copy of"
        f" its own; {TRAIN_TOGETHER}",
    ),
    sign="a",
    column="trained_apart",
    forbids=_only(Forbids.speed_up, Forbids.prediction),
    applies=limit_facts.trained_apart,
    noted=True,
    brief=True,
)
OTHER_WEIGHTS = LimitKind(
    says=Message(
        "limit.other-weights",
        "ranks ended with different weights: each trained a copy of its own, or they are averaged "
        f"now and then; {TRAIN_TOGETHER}, or average after the last step",
    ),
    sign="v",
    column="other_weights",
    forbids=_only(Forbids.speed_up, Forbids.prediction),
    applies=limit_facts.apart_by(ApartBy.values),
    noted=True,
    brief=True,
)
OTHER_STEPS = LimitKind(
    says=Message(
        "limit.other-steps",
        "ranks took different numbers of steps: each seems to have trained by itself;"
        f" {TRAIN_TOGETHER}",
    ),
    sign="n",
    column="other_steps",
    forbids=_only(Forbids.speed_up, Forbids.prediction),
    applies=limit_facts.apart_by(ApartBy.steps),
    noted=True,
    brief=True,
)
RESTARTED = LimitKind(
    says=Message("limit.restarted", "in several segments: stopped and started again"),
    sign="+",
    column="restarted",
    forbids=_only(),
    applies=lambda record: len(record.segments) > 1,
    noted=True,
)
WENT_ON = LimitKind(
    says=Message(
        "limit.went-on",
        "the script went on from what an earlier run left in its working folder, and trained the"
        " rest; have each run start anew",
    ),
    sign="f",
    column="went_on",
    forbids=_only(Forbids.prediction),
    applies=limit_facts.went_on,
    noted=True,
    brief=True,
)
NO_INT4 = LimitKind(
    says=Message(
        "limit.no-quantised-loss",
        "its held-out rows could not be scored in int4: it has no int4_loss",
    ),
    sign="4",
    column="no_quantised_loss",
    forbids=_only(),
    applies=lambda record: _held_out(record).int4_problem is not None,
    noted=True,
    brief=True,
)
DIRTY = LimitKind(
    says=Message("limit.dirty-commit", "its code was changed since its commit"),
    sign="d",
    column="dirty_commit",
    forbids=_only(),
    applies=lambda record: bool(record.dirty),
)
KINDS = (
    OVERSUBSCRIBED_GPUS,
    ON_CPU,
    DISTURBED,
    LOADED,
    CROWD,
    BESIDE,
    RANDOM_WEIGHTS,
    SMOKE,
    PROFILED,
    STALLED,
    SLOW_STEPS,
    MIXED_DATA,
    TEST_SEEN,
    APART,
    OTHER_WEIGHTS,
    OTHER_STEPS,
    RESTARTED,
    WENT_ON,
    NO_INT4,
    DIRTY,
)
APART_BY = {ApartBy.group: APART, ApartBy.values: OTHER_WEIGHTS, ApartBy.steps: OTHER_STEPS}
BY_CODE: Mapping[str, LimitKind] = {kind.code: kind for kind in KINDS}


def made(says: Message, *forbids: Forbids) -> Limit:
    """A limit as whoever knows the fact writes it down; its code is that of the message,
    without "limit.".
    """
    return Limit(code_of(says).removeprefix(PREFIX), str(says), sorted(forbids))


def of(record: AnyRecord) -> list[Limit]:
    """All limits of a record: those written into it,
    and those that follow from what else it holds.
    """
    found = {kind.code: kind.limit(record) for kind in KINDS if kind.applies(record)}
    written = {limit.code: limit for limit in record.limits}
    return in_order({**written, **found}.values())


class Limited(Protocol):
    """What has limits: a run."""

    @property
    def limits(self) -> Sequence[Limit]: ...


AnyLimited = TypeVar("AnyLimited", bound=Limited)


def forbidding(limits: Iterable[Limit], *what: Forbids) -> list[Limit]:
    """The limits that forbid one of these."""
    return [limit for limit in limits if not {*what}.isdisjoint(limit.forbids)]


def trusted(runs: Sequence[AnyLimited], what: Forbids) -> list[AnyLimited]:
    """The runs of which nothing forbids `what`; all of them where each has such a limit."""
    return [run for run in runs if not forbidding(run.limits, what)] or [*runs]


def passes(code: str) -> bool:
    """True for a limit that came from outside, so that another
    run of the same setting need not have it.
    """
    return code in BY_CODE and BY_CODE[code].passes


def undisturbed(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """The records of a setting whose times nothing disturbed;
    all of them where each was disturbed.
    """
    kept = [record for record in records if not forbidding(of(record), Forbids.rate)]
    return kept or [*records]


def left_out(settings: Iterable[Sequence[Sequence[Limit]]]) -> list[Message]:
    """A line for each reason why runs are left out of the times of their settings,
    with their number.

    Args:
        settings: the limits of each run of each setting.
            A setting leaves disturbed runs out if it has others.
    """
    reasons = Counter[str]()
    total = 0
    for runs in settings:
        found = [forbidding(limits, Forbids.rate) for limits in runs]
        total += len(runs)
        if not all(found):
            reasons.update(general(forbidden[0]) for forbidden in found if forbidden)
    lines = []
    for says, number in reasons.items():
        said = f"{number} of {count(total, 'run')} disturbed, left out of times: {says}"
        lines.append(Message("runs.left-out", said, runs=number, of=total, says=says))
    return lines


def column(code: str) -> str | None:
    """The column of runs that says whether they have a limit;
    None of one that this version does not know.
    """
    return BY_CODE[code].column if code in BY_CODE else None


def sign(code: str) -> str:
    """The sign of a limit in tables."""
    return BY_CODE[code].sign if code in BY_CODE else UNKNOWN_SIGN


def signs(limits: Iterable[Limit]) -> str:
    """The signs of limits, each once, in the order of the registry."""
    found = {sign(limit.code) for limit in limits}
    return "".join(one for one in [*(kind.sign for kind in KINDS), UNKNOWN_SIGN] if one in found)


def brief_signs(record: AnyRecord) -> str:
    """The signs behind the status of a run that has ended: of what limits its figures."""
    return signs(
        limit for limit in of(record) if limit.code not in BY_CODE or BY_CODE[limit.code].brief
    )


def in_order(limits: Iterable[Limit]) -> list[Limit]:
    """Limits, each once, in the order of the registry;
    those that this version does not know come last.

    Where runs tell different things of one limit, it says what is true of all.
    """
    by_code: dict[str, Limit] = {}
    for limit in limits:
        known = by_code.get(limit.code, limit)
        by_code[limit.code] = limit if known.says == limit.says else _of_several(limit)
    return [
        by_code[code]
        for code in dict.fromkeys([*(code for code in BY_CODE if code in by_code), *by_code])
    ]


def _of_several(limit: Limit) -> Limit:
    return BY_CODE[limit.code].limit() if limit.code in BY_CODE else limit


def general(limit: Limit) -> str:
    """What a limit says of every run that has it, by which runs are counted."""
    return _of_several(limit).says


def meanings(limits: Iterable[Limit]) -> list[tuple[str, str]]:
    """The sign of each limit, and what it says."""
    return [(sign(limit.code), limit.says) for limit in in_order(limits)]


def legend(limits: Iterable[Limit]) -> list[str]:
    """A line for each limit, with its sign."""
    return [f"{sign}  {says}" for sign, says in meanings(limits)]


def notes(records: Sequence[AnyRecord]) -> list[str]:
    """A line for each limit of some runs, with their number;
    not for those of which a note of its own says more.
    """
    counted: dict[str, list[Limit]] = {}
    for record in records:
        for limit in of(record):
            if limit.code not in BY_CODE or BY_CODE[limit.code].noted:
                counted.setdefault(limit.code, []).append(limit)
    every = chain.from_iterable(counted.values())
    return [_note(limit, len(counted[limit.code])) for limit in in_order(every)]


def _note(limit: Limit, runs: int) -> str:
    kind = BY_CODE.get(limit.code)
    in_table = kind is None or kind.brief
    beginning = f"{sign(limit.code)} " if in_table else ""
    return Message(
        "notes.mark",
        f"{beginning}{limit.says}: {count(runs, 'run')}",
        sign=beginning.strip(),
        mark=limit.code if kind is None else kind.column,
        runs=runs,
    )
