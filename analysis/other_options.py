"""Say what other options of a recommended setting's keys would give, all else equal.

The recommendation compares two settings. If a sweep over `method` and `sharding` recommends another
sharding than the default, it does not say how LoRA compares with QLoRA.
"""

from collections.abc import Sequence

from multicard.messages import Message

from . import answer_remarks, learned, recommended
from .answer_comparison import SettingComparison
from .commands.ranking import RankedSetting
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
    for setting in _slower_settings(comparison):
        key = _only_other_option(comparison, setting)
        if key is not None and not any(setting is other for other in named):
            options.append(_describe(comparison, key, setting))
    return options[:MAX_OPTIONS]


def _slower_settings(comparison: SettingComparison) -> Sequence[RankedSetting]:
    """Return the settings that are slower than the best one. Faster ones were passed over."""
    settings = comparison.ranking.settings
    return settings[settings.index(comparison.best) + 1 :]


def _only_other_option(comparison: SettingComparison, setting: RankedSetting) -> str | None:
    """Return the key in which a setting differs from the best one.

    Returns None if they differ in several keys, or if the values are numbers.
    """
    own_cell = dict(comparison.best.cell)
    cell = dict(setting.cell)
    keys = [key for key in comparison.ranking.keys if own_cell.get(key) != cell.get(key)]
    if len(keys) != 1 or grouping.is_numeric([cell.get(keys[0])]):
        return None
    return keys[0]


def _describe(comparison: SettingComparison, key: str, setting: RankedSetting) -> Message:
    """Compare one such setting with the best one, in time, quality and memory."""
    other = SettingComparison(comparison.ranking, setting, comparison.best, is_default=False)
    assert other.speedup is not None  # always: it is compared with the best setting
    speed = faster(other.speedup.ratio)
    if not comparison.ranking.cheaper(comparison.best, setting):
        speed = "not clearly slower"
    clauses = [
        f"{speed} ({other.evidence})",
        *learned.compare_learning(comparison.ranking, setting, comparison.best),
        *answer_remarks.costs(setting, comparison.best),
    ]
    failings = [*recommended.failings(comparison.ranking, setting)]
    reservation = f"; but {' and '.join(failings)}" if failings else ""
    label = grouping.label(setting.cell, [key])
    return Message(
        "answer.other-option",
        f"With {label} instead: {', '.join(clauses)}{reservation}.",
        option=label,
        ratio=other.speedup.ratio,
        clauses=clauses[1:],
        failings=failings,
    )
