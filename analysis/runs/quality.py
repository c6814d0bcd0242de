"""Decide by which figure a setting's learning is judged.

Each kind of run has such figures (`multicard.records.figures.LEARNING`). Two settings are compared
by the first figure that both have. If something forbids to compare what a run learned, its setting
has no such figure.
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

LOSS_APART = 0.01  # Losses with a smaller relative difference count as equal.
# The figures of learning by column. The one that describes learning best comes first.
Learned = Mapping[str, float]


def of(runs: Sequence[Run]) -> Learned:
    """Return the figures that say how well a setting learned.

    They are empty if something forbids to compare them, or if there are none.
    """
    if any(limits.forbidding(run.limits, Forbids.learning) for run in runs):
        return {}
    figures = {column: of_setting(runs, column) for column in LEARNING[runs[0]["kind"]]}
    return {column: figure for column, figure in figures.items() if figure is not None}


def shared(a: Learned, b: Learned) -> str | None:
    """Return the figure by which two settings are compared: the first that both have."""
    return next((column for column in a if column in b), None)


def error(column: str, figure: float) -> float:
    """Turn a figure of learning into an error: lower is better."""
    return -figure if FIGURES[column].better == "higher" else figure


def best_error(learned: Learned) -> float | None:
    """Return the error by the figure that best describes learning, or None if there is none."""
    return next((error(column, figure) for column, figure in learned.items()), None)


def to_draw(settings: Iterable[Learned]) -> list[str]:
    """Return the figures of learning that charts of some settings draw.

    If rows were held out, the training loss is not drawn.
    """
    columns = set()
    for learned in settings:
        columns.update(learned)
    if HELD_OUT in columns:
        columns.discard(LOSS)
    return [column for column in LEARNED if column in columns]


def kind_of_loss(run: Run) -> tuple[Any, ...]:
    """Return a key that is equal for runs whose losses can be compared."""
    return tuple(run[key] for key in schema.keys(Role.loss))


def is_less(loss: float, other: float) -> bool:
    """Return True if a loss is lower than another by more than `LOSS_APART`; it may be below 0."""
    return other - loss > LOSS_APART * abs(other)
