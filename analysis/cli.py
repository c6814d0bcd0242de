"""Types of the arguments of `python -m analysis`."""

import argparse
from contextlib import suppress
from math import inf

from multicard.config import sweeps
from multicard.config.base import WANDB_NAMES, is_wandb_name


def names(text: str) -> list[str]:
    """Names separated by commas."""
    parts = text.split(",")
    if not all(map(str.strip, parts)):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; write names with commas between them")
    return parts


def wandb_name(text: str) -> str:
    if not is_wandb_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name in W&B: {WANDB_NAMES}")
    return text


def share(text: str) -> float:
    """A share such as 5% or 0.05."""
    value = sweeps.share(text)
    if text not in ("0", "0%") and (not 0 < value <= 1 or text == "1"):  # which may be meant as 1%
        meant = value if 1 <= value <= 100 else 5
        raise argparse.ArgumentTypeError(f"{text} is no share; write {meant:g}% or {meant / 100:g}")
    return value


def size_bytes(text: str) -> int:
    size = sweeps.memory_bytes(text)
    if not size:
        raise argparse.ArgumentTypeError(f"{text} is no size; write 80GB or 80GiB")
    return size


def price(text: str) -> float:
    """The price of a GPU for an hour."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < inf:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no price of a GPU for an hour; write a number above 0, as 2.49")


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of GPUs")
    return int(text)
