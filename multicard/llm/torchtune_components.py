"""Components that torchtune's configurations name: random weights and the step log."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torchtune import training

from multicard.llm.random_weights import random_weights


class RandomCheckpointer:
    """A checkpointer for torchtune's recipes that loads random weights and saves nothing.

    Args:
        dtype: of the run, as torchtune names it: the weights are rounded to it before anything is made of them.
        device: where they are generated.
    """

    def __init__(self, model: dict[str, Any], seed: int, dtype: str = "fp32", device: str = "cpu", **_: Any) -> None:
        self._arguments = model, seed, training.get_dtype(dtype, torch.device(device)), device

    def load_checkpoint(self) -> dict[str, Any]:
        return {training.MODEL_KEY: random_weights(*self._arguments)}

    def save_checkpoint(self, *_: Any, **__: Any) -> None:
        """Save nothing: the run is for its figures."""


class StepLog:
    """A metric logger that hands each step's figures to `listener`, on rank 0 (other ranks have none)."""

    def __init__(self, **_: Any) -> None:
        self.listener: Callable[[Mapping[str, Any]], None] | None = None

    def log_config(self, _: Any) -> None:
        """Nothing to do: config.yaml and torchtune.yaml are in the run folder."""

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        if self.listener is not None:
            self.listener(payload)

    def log(self, name: str, data: Any, step: int) -> None:
        self.log_dict({name: data}, step)

    def close(self) -> None:
        self.listener = None
