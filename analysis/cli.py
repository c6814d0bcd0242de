"""Types of the arguments of `python -m analysis`, and a parser that refuses in one line."""

import argparse
import re
import sys
from pathlib import Path
from typing import NoReturn

from multicard.config.base import WANDB_NAMES, is_wandb_name


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"refused: {message}", file=sys.stderr)
        sys.exit(1)


def names(text: str) -> list[str]:
    """Names separated by commas."""
    parts = text.split(",")
    if not all(map(str.strip, parts)):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; write names with commas between them")
    return parts


def file(text: str) -> Path:
    """A file to write, in an existing folder."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}; make it, or name another file")
    return path


def wandb_name(text: str) -> str:
    if not is_wandb_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name in W&B: {WANDB_NAMES}")
    return text


def share(text: str) -> float:
    """A share such as 5%."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no share; write 5%")
    return float(match[1]) / 100


def accuracy(text: str) -> float:
    try:
        value = share(text) if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no accuracy; write 0.99 or 99%")
    return value


def size_bytes(text: str) -> float:
    """The bytes of a size such as 80GB (1000³) or 80GiB (1024³)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B", text)
    if match is None or (match[3] and not match[2]):
        raise argparse.ArgumentTypeError(f"{text} is no size; write 80GB, 80GiB or 500MB")
    return float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " ")


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of GPUs")
    return int(text)
