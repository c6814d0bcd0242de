"""Limits: facts about a run that forbid certain statements about it.

The code that learns such a fact writes it into the record, once: the recorder of steps, the sampler
of GPUs, the loader or the controller. Code that makes statements about runs (tables, rankings,
effects, comparisons, claims, races, plans, charts, pages, W&B, Python) asks this module what is
forbidden, and gives the reason in the limit's own words. A limit of a newer version or of a plugin
brings all that is needed: its code, what it forbids, and its sentence.
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
from multicard.records.schema_data import HeldOut
from multicard.records.schema_parts import Limit
from multicard.records.trained_weights import ApartBy

# A run is limited if other processes, or a hypervisor, take a larger share of its cores.
BUSY_SHARE = 0.1
UNKNOWN_SIGN = "#"  # Tables mark limits that this version does not know with this sign.
PREFIX = "limit."  # The codes of messages that are limits begin with this.
TRAIN_TOGETHER = "wrap the model in DistributedDataParallel"


class Forbids(StrEnum):
    """What a limit forbids.

    rate: to use the run's times as those of its setting if other runs have no such limit; to decide
        a claim about time.
    speed_up: to state a speed-up or an efficiency, or to recommend a number of GPUs.
    learning: to compare its accuracy or loss.
    prediction: to predict times of other runs from its times.
    verdict: to use the run in any ranking, comparison or claim.
    """

    rate = "rate"
    speed_up = "speed_up"
    learning = "learning"
    prediction = "prediction"
    verdict = "verdict"


@dataclass(frozen=True)
class LimitKind:
    """A limit that this version derives from a record.

    says: its sentence, with its code.
    sign: the mark behind a run's status or figures in tables.
    column: a column of runs that is true for runs with the limit.
    forbids: what it forbids. Empty if it informs about a run and limits nothing.
    applies: returns True for records that have the limit.
    noted: whether a note below the tables of a sweep counts the runs that have it.
    brief: whether its sign stands behind the status of a run that has ended.
    is_external: whether its cause is external, so that another run of the setting may not have it.
    message_for: returns a more specific sentence for a record; None if `says` is enough.
    """

    says: Message
    sign: str
    column: str
    forbids: frozenset[Forbids]
    applies: Callable[[AnyRecord], bool]
    noted: bool = False
    brief: bool = False
    is_external: bool = False
    message_for: Callable[[AnyRecord], Message] | None = None

    @property
    def code(self) -> str:
        return self.says.code.removeprefix(PREFIX)

    def limit(self, record: AnyRecord | None = None) -> Limit:
        """Return the limit of a record, or, without a record, in words that hold for all runs."""
        says = self.says if record is None or self.message_for is None else self.message_for(record)
        return Limit(self.code, str(says), sorted(self.forbids))


def _held_out_rows(record: AnyRecord) -> HeldOut:
    """Return the held-out rows of a tuning run; an empty struct for other runs."""
    return (record.held_out if isinstance(record, LlmRecord) else None) or HeldOut()


def busy_share(record: AnyRecord) -> float:
    """Return the share of the run's cores that was not available to it while it was measured."""
    load = record.load
    if load is None or not record.cores:
        return 0.0
    return ((load.others_cores or 0.0) + (load.stolen_cores or 0.0)) / record.cores


def _forbidden(*forbidden: Forbids) -> frozenset[Forbids]:
    return frozenset(forbidden)


OVERSUBSCRIBED_GPUS = LimitKind(
    says=Message("limit.oversubscribed", OVERSUBSCRIBED),
    sign="*",
    column="oversubscribed",
    forbids=_forbidden(Forbids.rate, Forbids.prediction, Forbids.verdict),
    applies=lambda record: bool(record.oversubscribed),
    noted=True,
    brief=True,
)
ON_CPU = LimitKind(
    says=Message("limit.cpu-ranks", "CPU ranks, not GPUs"),
    sign="c",
    column="cpu_ranks",
    forbids=_forbidden(),
    applies=lambda record: record.axes.get("device") == "cpu",
)
DISTURBED = LimitKind(
    says=Message("limit.disturbed", "other programs used its GPUs while it was measured"),
    sign="!",
    column="disturbed",
    forbids=_forbidden(Forbids.rate),
    applies=limit_facts.is_disturbed,
    brief=True,
    is_external=True,
)
LOADED = LimitKind(
    says=Message("limit.loaded", f"other programs used more than {BUSY_SHARE:.0%} of its cores"),
    sign="&",
    column="loaded",
    forbids=_forbidden(Forbids.rate),
    applies=lambda record: busy_share(record) > BUSY_SHARE,
    brief=True,
    is_external=True,
)
CROWD = LimitKind(
    says=Message("limit.crowded", CROWDED),
    sign=">",
    column="crowded",
    forbids=_forbidden(Forbids.rate, Forbids.prediction),
    applies=limit_facts.is_crowded,
    noted=True,
    brief=True,
)
BESIDE = LimitKind(
    says=Message("limit.beside-others", "measured while other runs used its machine"),
    sign="p",
    column="beside_others",
    forbids=_forbidden(),
    applies=lambda record: bool(record.beside),
    noted=True,
)
RANDOM_WEIGHTS = LimitKind(
    says=Message("limit.random-weights", "random weights: its loss says nothing about a model"),
    sign="r",
    column="random_weights",
    forbids=_forbidden(),
    applies=lambda record: record.axes.get("weights") == "random",
)
SMOKE = LimitKind(
    says=Message("limit.smoke", "smoke scale: shrunk to try the code"),
    sign="s",
    column="smoke",
    forbids=_forbidden(),
    applies=lambda record: record.config.get("scale") == "smoke",
    noted=True,
)
PROFILED = LimitKind(
    says=Message(
        "limit.profiled",
        "traced by a profiler in training: its times are longer than without",
    ),
    sign="t",
    column="profiled",
    forbids=_forbidden(Forbids.rate, Forbids.prediction),
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
    forbids=_forbidden(Forbids.rate),
    applies=limit_facts.is_stalled,
    noted=True,
    brief=True,
    is_external=True,
)
SLOW_STEPS = LimitKind(
    says=Message(
        "limit.slow-steps", "some steps took over three times the median; measure it again"
    ),
    sign="~",
    column="slow_steps",
    forbids=_forbidden(Forbids.rate),
    applies=lambda record: bool(limit_facts.slow_steps(record)),
    noted=True,
    brief=True,
    message_for=limit_facts.slow_steps_message,
)
MIXED_DATA = LimitKind(
    says=Message("limit.mixed-data", "its data was changed while it trained"),
    sign="m",
    column="mixed_data",
    forbids=_forbidden(Forbids.learning, Forbids.verdict),
    applies=lambda record: bool(record.data and record.data.changed),
    noted=True,
    brief=True,
)
TEST_SEEN = LimitKind(
    says=Message(
        "limit.test-seen",
        f"at least {limit_facts.SEEN_SHARE:.0%} of its test images are also trained on: its"
        " accuracy is partly memorized",
    ),
    sign="e",
    column="test_seen",
    forbids=_forbidden(Forbids.learning),
    applies=limit_facts.is_test_seen,
    noted=True,
    brief=True,
)
APART = LimitKind(
    says=Message(
        "limit.trained-apart",
        "the script does not use its further ranks: without a process group, each rank trained its"
        f" own copy; {TRAIN_TOGETHER}",
    ),
    sign="a",
    column="trained_apart",
    forbids=_forbidden(Forbids.speed_up, Forbids.prediction),
    applies=limit_facts.lacks_process_group,
    noted=True,
    brief=True,
)
OTHER_WEIGHTS = LimitKind(
    says=Message(
        "limit.other-weights",
        "ranks ended with different weights: each trained its own copy, or weights are averaged "
        f"now and then; {TRAIN_TOGETHER}, or average after the last step",
    ),
    sign="v",
    column="other_weights",
    forbids=_forbidden(Forbids.speed_up, Forbids.prediction),
    applies=limit_facts.is_apart_by(ApartBy.values),
    noted=True,
    brief=True,
)
OTHER_STEPS = LimitKind(
    says=Message(
        "limit.other-steps",
        "the ranks took different numbers of steps: each seems to have trained alone;"
        f" {TRAIN_TOGETHER}",
    ),
    sign="n",
    column="other_steps",
    forbids=_forbidden(Forbids.speed_up, Forbids.prediction),
    applies=limit_facts.is_apart_by(ApartBy.steps),
    noted=True,
    brief=True,
)
RESTARTED = LimitKind(
    says=Message("limit.restarted", "interrupted and started again: it has several segments"),
    sign="+",
    column="restarted",
    forbids=_forbidden(),
    applies=lambda record: len(record.segments) > 1,
    noted=True,
)
WENT_ON = LimitKind(
    says=Message(
        "limit.went-on",
        "the script continued from files of an earlier run in its working folder, and trained only"
        " the rest; make each run start anew",
    ),
    sign="f",
    column="went_on",
    forbids=_forbidden(Forbids.prediction),
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
    forbids=_forbidden(),
    applies=lambda record: _held_out_rows(record).int4_problem is not None,
    noted=True,
    brief=True,
)
DIRTY = LimitKind(
    says=Message("limit.dirty-commit", "its code had changes that are not in its commit"),
    sign="d",
    column="dirty_commit",
    forbids=_forbidden(),
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
    """Make a limit from a message, for code that learns such a fact.

    The limit's code is the message's, without "limit.".
    """
    return Limit(code_of(says).removeprefix(PREFIX), str(says), sorted(forbids))


def of(record: AnyRecord) -> list[Limit]:
    """Return all limits of a record: the ones written into it, and the ones that follow from its
    other content.
    """
    derived = {kind.code: kind.limit(record) for kind in KINDS if kind.applies(record)}
    written = {limit.code: limit for limit in record.limits}
    return in_order({**written, **derived}.values())


class Limited(Protocol):
    """An object with limits, such as a run."""

    @property
    def limits(self) -> Sequence[Limit]: ...


AnyLimited = TypeVar("AnyLimited", bound=Limited)


def forbidding(limits: Iterable[Limit], *what: Forbids) -> list[Limit]:
    """Return the limits that forbid at least one of `what`."""
    return [limit for limit in limits if not {*what}.isdisjoint(limit.forbids)]


def unlimited_or_all(runs: Sequence[AnyLimited], what: Forbids) -> list[AnyLimited]:
    """Return the runs without a limit that forbids `what`; all runs if each has one."""
    return [run for run in runs if not forbidding(run.limits, what)] or [*runs]


def is_external(code: str) -> bool:
    """True for a limit with an external cause. Another run of the same setting may not have it."""
    return code in BY_CODE and BY_CODE[code].is_external


def undisturbed_or_all(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """Return the records of a setting whose times are undisturbed; all records if each was
    disturbed.
    """
    undisturbed = [record for record in records if not forbidding(of(record), Forbids.rate)]
    return undisturbed or [*records]


def left_out_notes(settings: Iterable[Sequence[Sequence[Limit]]]) -> list[Message]:
    """Return one line per reason for which runs are left out of the times of their settings, with
    the number of these runs.

    Args:
        settings: for each setting, the limits of each run. A setting leaves its disturbed runs out
            if it has others.
    """
    reasons = Counter[str]()
    total = 0
    for runs in settings:
        forbidding_limits = [forbidding(limits, Forbids.rate) for limits in runs]
        total += len(runs)
        if not all(forbidding_limits):
            reasons.update(
                general_sentence(forbidden[0]) for forbidden in forbidding_limits if forbidden
            )
    lines = []
    for says, number in reasons.items():
        sentence = f"{number} of {count(total, 'run')} disturbed, left out of times: {says}"
        lines.append(Message("runs.left-out", sentence, runs=number, of=total, says=says))
    return lines


def column(code: str) -> str | None:
    """Return the column of runs that shows whether they have a limit; None for a limit that this
    version does not know.
    """
    return BY_CODE[code].column if code in BY_CODE else None


def sign(code: str) -> str:
    """Return the sign of a limit in tables."""
    return BY_CODE[code].sign if code in BY_CODE else UNKNOWN_SIGN


def signs(limits: Iterable[Limit]) -> str:
    """Return the signs of some limits, each once, in the order of `KINDS`."""
    present_signs = {sign(limit.code) for limit in limits}
    all_signs = [*(kind.sign for kind in KINDS), UNKNOWN_SIGN]
    return "".join(one_sign for one_sign in all_signs if one_sign in present_signs)


def brief_signs(record: AnyRecord) -> str:
    """Return the signs behind the status of a run that has ended: its most important limits."""
    return signs(
        limit for limit in of(record) if limit.code not in BY_CODE or BY_CODE[limit.code].brief
    )


def in_order(limits: Iterable[Limit]) -> list[Limit]:
    """Return each limit once, in the order of `KINDS`; limits that this version does not know come
    last.

    If a limit has different sentences for different runs, the result has the one that holds for
    all.
    """
    by_code: dict[str, Limit] = {}
    for limit in limits:
        previous = by_code.get(limit.code, limit)
        by_code[limit.code] = limit if previous.says == limit.says else _without_details(limit)
    known_codes = [code for code in BY_CODE if code in by_code]
    unknown_codes = [code for code in by_code if code not in BY_CODE]
    return [by_code[code] for code in (*known_codes, *unknown_codes)]


def _without_details(limit: Limit) -> Limit:
    return BY_CODE[limit.code].limit() if limit.code in BY_CODE else limit


def general_sentence(limit: Limit) -> str:
    """Return the sentence that holds for every run with this limit. Runs are counted by it."""
    return _without_details(limit).says


def meanings(limits: Iterable[Limit]) -> list[tuple[str, str]]:
    """Pair the sign of each limit with its sentence."""
    return [(sign(limit.code), limit.says) for limit in in_order(limits)]


def legend(limits: Iterable[Limit]) -> list[str]:
    """Return one line per limit: its sign and its sentence."""
    return [f"{sign}  {says}" for sign, says in meanings(limits)]


def notes(records: Sequence[AnyRecord]) -> list[str]:
    """Return one line per limit of some runs, with the number of runs that have it.

    A limit is left out if another note says more about it.
    """
    noted_limits: dict[str, list[Limit]] = {}
    for record in records:
        for limit in of(record):
            if limit.code not in BY_CODE or BY_CODE[limit.code].noted:
                noted_limits.setdefault(limit.code, []).append(limit)
    all_limits = chain.from_iterable(noted_limits.values())
    return [_note(limit, len(noted_limits[limit.code])) for limit in in_order(all_limits)]


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
