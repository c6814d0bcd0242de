"""Decide the order in which the cells of a sweep are measured.

A machine drifts: it gets warmer, or other people begin to use it. In the typed order of the axes, a
drift over the sweep looks like an effect of the first axis. The cells of a round, which measures
each setting once, are therefore shuffled. Rounds follow one another as typed, and so do the
experiments of `experiment=all`. Tables keep the typed order.

The order follows from a seed and from each cell's overrides. The same command therefore resumes in
the same order, and cells that are added later do not change the order of the others.
"""

import re
import zlib
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config import schema, strict_yaml
from multicard.config.roles import Role
from multicard.config.sweeps import SHUFFLED, TYPED, is_whole
from multicard.messages import Message, Refusal

SWEEP = "multirun.yaml"  # This file of a sweep's folder has the configuration of its last command.


class Turn(NamedTuple):
    """A cell that is to be measured, in its turn.

    Attributes:
        number: its place in the typed order of the sweep, from 1.
        words: its overrides.
    """

    number: int
    words: list[str]


def chosen_order(config: Any) -> str:
    """Return the order of a sweep's cells: `typed`, or the seed by which they are shuffled.

    The command's own order comes first, then the order that an earlier command of the sweep
    recorded. Otherwise the seed follows from the name of the sweep's folder. The cells of a race
    take turns by its own rules, and the cells of a prediction do not run.
    """
    if config.race.figure is not None and config.order != SHUFFLED:
        raise Refusal(
            "race.order",
            f"order={config.order}: cells of a race take turns by its own rules; leave it out",
            key="order",
            value=config.order,
        )
    if config.race.figure is not None or config.predict.enabled:
        return TYPED
    folder = Path(config.hydra.sweep.dir)
    order = config.order if config.order != SHUFFLED else _recorded_order(folder)
    return order or str(zlib.crc32(folder.name.encode(errors="surrogateescape")))


def _recorded_order(folder: Path) -> str | None:
    """Return the order that an earlier command of the sweep recorded, or None."""
    path = folder / SWEEP
    config = None
    if path.is_file():  # A pipe would block.
        with suppress(OSError, Refusal):
            config = strict_yaml.read_yaml(path)
    order = str(config.get("order")) if isinstance(config, dict) else ""
    return order if order == TYPED or is_whole(order) else None


def shuffled_turns(turns: Iterable[Turn], order: str) -> list[Turn]:
    """Return the cells in the order in which they are measured.

    They are shuffled within each round, unless the order is `typed`.
    """
    if order == TYPED:
        return [*turns]
    ordered: list[Turn] = []
    for _, round_turns in groupby(turns, key=lambda turn: _round_key(turn.words)):
        ordered += sorted(round_turns, key=lambda turn: _draw(turn.words, order))
    return ordered


def numbered_turns(cells: Sequence[Sequence[str]], before: int = 0) -> list[Turn]:
    """Return cells as turns in typed order, numbered after `before` other cells."""
    return [Turn(number, [*words]) for number, words in enumerate(cells, before + 1)]


def shuffle_notice(cells: Sequence[Sequence[str]], order: str) -> Message | None:
    """Return the line that says that cells are shuffled, or None if nothing is shuffled."""
    if not is_whole(order) or len({_round_key(words) for words in cells}) == len(cells):
        return None
    sentence = (
        f"shuffled by `order={order}`, so that drift falls on no setting; `order={TYPED}` keeps the"
        " typed order"
    )
    return Message("sweep.order", sentence, key="order", order=order)


def _round_key(words: Sequence[str]) -> Hashable:
    """Return the words that cells of one round share: repetition, seed and experiment."""
    keys = (*schema.keys(Role.repetition), "experiment")
    return tuple(word for word in words if _key_group(word) in keys)


def _draw(words: Sequence[str], seed: str) -> str:
    """Return a pseudo-random number of a cell, as text.

    It depends on the seed, and on the words that say what is measured and in which repetition.
    """
    other_keys = schema.beside() - {*schema.keys(Role.repetition)}
    cell_words = sorted(word for word in words if _key_group(word) not in other_keys)
    return sha256("\n".join([seed, *cell_words]).encode(errors="surrogateescape")).hexdigest()


def _key_group(word: str) -> str:
    """Return the key of an override, or the group of its key."""
    return re.split(r"[=./@]", word.lstrip("+~"), maxsplit=1)[0]
