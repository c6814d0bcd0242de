"""How well a setting learned: the one place that says which figure tells it.

Each kind of run has such figures (`multicard.records.figures.LEARNING`). Two settings are compared
by the first that both have. Where something forbids to compare what a run learned,
its setting has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multicard.config import schema
from multicard.config.roles import Role
from multicard.records import limits
from multicard.records.figures import FIGURES, LEARNED, LEARNING
from multicard.records.limits import Forbids

from .grouping import HELD_OUT, LOSS, of_setting
from .load import Run

LOSS_APART = 0.01  # relative difference below which two losses count as equal
# figures of learning by their columns, the one that says it best first
Learned = Mapping[str, float]


def of(runs: Sequence[Run]) -> Learned:
    """What a setting learned by its figures; empty where something forbids to compare it,
    or nothing tells it.
    """
    if any(limits.forbidding(run.limits, Forbids.learning) for run in runs):
        return {}
    figures = {column: of_setting(runs, column) for column in LEARNING[runs[0]["kind"]]}
    return {column: figure for column, figure in figures.items() if figure is not None}


def shared(a: Learned, b: Learned) -> str | None:
    """The figure by which two settings are compared: the first that both have."""
    return next((column for column in a if column in b), None)


def error(column: str, figure: float) -> float:
    """A figure of learning as what is low in a setting that learned well."""
    return -figure if FIGURES[column].better == "higher" else figure


def best_error(learned: Learned) -> float | None:
    """The error by the figure that says best how well a setting learned;
    None where nothing tells it.
    """
    return next((error(column, figure) for column, figure in learned.items()), None)


def to_draw(settings: Iterable[Learned]) -> list[str]:
    """The figures of learning that charts of some settings draw:
    no training loss where rows were held out.
    """
    known = set()
    for learned in settings:
        known.update(learned)
    if HELD_OUT in known:
        known.discard(LOSS)
    return [column for column in LEARNED if column in known]


def kind_of_loss(run: Run) -> tuple[Any, ...]:
    """What a run's losses count: equal of runs whose losses can be compared."""
    return tuple(run[key] for key in schema.keys(Role.loss))


def is_less(loss: float, other: float) -> bool:
    """True if a loss, which may be below 0, is less than another by over `LOSS_APART`."""
    return other - loss > LOSS_APART * abs(other)
