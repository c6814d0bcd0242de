"""Parse the arguments of `python -m analysis`."""

import argparse
from contextlib import suppress
from math import inf

from multicard.config import sweeps
from multicard.config.base import WANDB_NAMES, is_wandb_name
from multicard.messages import Message


def names(text: str) -> list[str]:
    """Return names that are separated by commas."""
    parts = text.split(",")
    if not all(map(str.strip, parts)):
        sentence = f"{text!r} has an empty name; write names with commas between them"
        raise argparse.ArgumentTypeError(Message("analysis.empty-name", sentence, value=text))
    return parts


def wandb_name(text: str) -> str:
    if not is_wandb_name(text):
        sentence = f"{text!r} is not a name in W&B: {WANDB_NAMES}"
        raise argparse.ArgumentTypeError(Message("analysis.wandb-name", sentence, value=text))
    return text


def share(text: str) -> float:
    """Return a share such as 5% or 0.05."""
    value = sweeps.share(text)
    # A plain 1 is refused, because it may be meant as 1%.
    if text not in ("0", "0%") and (not 0 < value <= 1 or text == "1"):
        meant = value if 1 <= value <= 100 else 5
        sentence = f"{text} is not a share; write {meant:g}% or {meant / 100:g}"
        raise argparse.ArgumentTypeError(
            Message("analysis.share", sentence, value=text, percent=meant)
        )
    return value


def size_bytes(text: str) -> int:
    size = sweeps.memory_bytes(text)
    if not size:
        sentence = f"{text} is not a size; write 80GB or 80GiB"
        raise argparse.ArgumentTypeError(Message("analysis.size", sentence, value=text))
    return size


def price(text: str) -> float:
    """Return the price of a GPU for an hour."""
    value = _above_zero(text)
    if value is None:
        sentence = f"{text} is not the price of a GPU for an hour; write a number above 0, as 2.49"
        raise argparse.ArgumentTypeError(Message("analysis.price", sentence, value=text))
    return value


def loss(text: str) -> float:
    """Return a loss of held-out rows, in nats."""
    value = _above_zero(text)
    if value is None:
        sentence = f"{text} is not a loss in nats; write a number above 0, as 1.9"
        raise argparse.ArgumentTypeError(Message("analysis.loss", sentence, value=text))
    return value


def _above_zero(text: str) -> float | None:
    with suppress(ValueError):
        if 0 < (value := float(text)) < inf:
            return value
    return None


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        sentence = f"{text} is not a number of GPUs; write 1 or more"
        raise argparse.ArgumentTypeError(Message("analysis.gpus", sentence, value=text))
    return int(text)
