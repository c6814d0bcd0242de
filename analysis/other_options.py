"""Say what other options of a recommended setting's keys would give, all else equal.

The recommendation compares two settings. If a sweep over `method` and `sharding` recommends another
sharding than the default, it does not say how LoRA compares with QLoRA.
"""

from multicard.messages import Message

from . import answer_remarks, learned, recommended
from .answer_comparison import SettingComparison
from .runs import grouping
from .stats.intervals import faster

MAX_OPTIONS = 3  # The most other options that are named.


def other_options(comparison: SettingComparison) -> list[Message]:
    """Compare the recommended setting with settings that differ from it in one option.

    Numbers, such as batch sizes, are left out: the table shows their order. So are settings that
    other lines of the answer name.
    """
    if comparison.failings:
        return []
    named = answer_remarks.indistinguishable(comparison)
    if comparison.against is not None and len(comparison.differing_keys) == 1:
        named = [*named, comparison.against]
    options = []
    for setting in comparison.slower_settings:
        other = SettingComparison(comparison.ranking, setting, comparison.best, is_default=False)
        if _is_other_option(other) and not any(setting is each for each in named):
            options.append(_describe(comparison, other))
    return options[:MAX_OPTIONS]


def _is_other_option(other: SettingComparison) -> bool:
    """Return True if the two settings differ in one key, whose values are no numbers."""
    keys = other.differing_keys
    return len(keys) == 1 and not grouping.is_numeric([dict(other.best.cell).get(keys[0])])


def _describe(comparison: SettingComparison, other: SettingComparison) -> Message:
    """Compare a slower setting with the recommended one, in time, quality and memory.

    Args:
        other: the slower setting, and the recommended one that it is compared with.
    """
    ranking = comparison.ranking
    setting = other.best
    assert other.speedup is not None  # always: it is compared with the best setting
    speed = faster(other.speedup.ratio)
    if not ranking.cheaper(comparison.best, setting):
        speed = "not clearly slower"
    clauses = [
        f"{speed} ({other.evidence})",
        *learned.compare_learning(ranking, setting, comparison.best),
        *answer_remarks.costs(setting, comparison.best),
    ]
    failings = [*recommended.failings(ranking, setting)]
    reservation = f"; but {' and '.join(failings)}" if failings else ""
    label = grouping.label(setting.cell, other.differing_keys)
    # The marks of the recommendation stand behind its own sentence.
    marks = [mark for mark in other.marks if mark not in comparison.marks]
    doubts = f" [{'; '.join(marks)}]" if marks else ""
    return Message(
        "answer.other-option",
        f"With {label} instead: {', '.join(clauses)}{reservation}{doubts}.",
        option=label,
        ratio=other.speedup.ratio,
        clauses=clauses[1:],
        failings=failings,
        marks=marks,
    )
