"""Runs, measures and explains image recognition and LLM tuning on a node with several GPUs.

In Python, `multicard.load("multirun/first")` reads what was measured (docs/python.md). A script
that `measure_script.py` runs may mark its steps and tell its figures by `multicard.step` and
`multicard.log`.
"""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.script.marks import log, step

if TYPE_CHECKING:
    from torch import nn

    from analysis.notebook import Runs

__all__ = ["load", "load_model", "log", "step"]
__version__ = "0.2.0"  # pyproject.toml reads it from here


def load_model(folder: str | PathLike[str]) -> "nn.Module":
    """The model that `save` kept in a run's folder, for evaluation: of images a classifier,
    of texts a language model.

    A classifier takes (B, 3, S, S), gives (B, classes), and has the names of its `classes` and the
    run's `preprocess`. A language model is one of transformers', on which PEFT put the adapters,
    and has its `tokenizer`.

    Raises:
        ValueError: no model is kept below the folder, several are, or its files are not whole.
    """
    from multicard.records import kept

    place = kept.place_of(Path(folder))
    if (place / kept.TUNED_MODEL).is_file():
        from multicard.llm import kept_model as tuned_model

        return tuned_model.load(place)
    from multicard.vision import kept_model  # torch, which reading records does without

    return kept_model.load(place)


def load(*folders: str | PathLike[str], price: float | None = None) -> "Runs":
    """The runs below some folders (`multirun` without any), in the order of their paths.
    Records alone are read.

    Args:
        price: of a GPU for an hour, in place of the runs' own (`price.gpu_hour`).

    Raises:
        ValueError: no such price, a folder that does not exist, no run at all,
            or none that could be read.
    """
    from multicard import repository  # ranks import this package too, and need no analysis

    return repository.module("analysis.notebook").read(*folders, price=price)
