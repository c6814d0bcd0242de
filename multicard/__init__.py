"""Run, measure and explain image recognition and LLM tuning on a node with several GPUs.

In Python, `multicard.load("multirun/first")` reads what was measured (docs/python.md). A script
that `measure_script.py` runs can mark its steps by `multicard.step`, and record its own figures by
`multicard.log`.
"""

from os import PathLike
from typing import TYPE_CHECKING

from multicard.script.marks import log, step

if TYPE_CHECKING:
    from torch import nn

    from analysis.notebook import Runs

__all__ = ["load", "load_model", "log", "step"]
__version__ = "0.2.0"  # pyproject.toml reads it from here.


def load_model(folder: str | PathLike[str]) -> "nn.Module":
    """Load the model that `save` kept in a run's folder, ready for evaluation.

    An image classifier takes (B, 3, S, S) and returns (B, classes). It has the attributes
    `classes`, the names of its classes, and `preprocess`, the transforms of the run. A language
    model comes from transformers, with the adapters that PEFT put on it, and has its `tokenizer`.

    Raises:
        ValueError: The folder has no model, or several, or the model's files are damaged.
    """
    from multicard.records import kept
    from multicard.records.short_names import folder_of_runs

    place = kept.place_of(folder_of_runs(folder))
    if (place / kept.TUNED_MODEL).is_file():
        from multicard.llm import kept_model as tuned_model

        return tuned_model.load_tuned(place)
    from multicard.vision import (
        kept_model,
    )  # This imports torch, which reading records does not need.

    return kept_model.load(place)


def load(*folders: str | PathLike[str], price: float | None = None) -> "Runs":
    """Read the runs in some folders, in the order of their paths. Only records are read.

    Args:
        folders: The folders, or names of sweeps in `multirun`; `multirun` if none is given.
        price: The price of a GPU for an hour, in place of the runs' own (`price.gpu_hour`).

    Raises:
        ValueError: The price is not valid, a folder does not exist, or no run could be read.
    """
    from multicard import repository  # Ranks import this package too, and do not need analysis.

    return repository.module("analysis.notebook").read_runs(*folders, price=price)
