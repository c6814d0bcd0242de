"""Components that torchtune's configurations name: random weights and the step log."""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torchtune import config, training

STD = 0.02  # the initialiser range of Llama and Qwen


class RandomState(Mapping[str, torch.Tensor]):
    """Random weights of a torchtune model, generated when a tensor is read: loading them takes the memory of one.

    Each follows from the seed and its name alone, so that all ranks, and any number of them, have the same. Linears
    and embeddings are normal with std 0.02, biases 0, norms 1. Adapters start as LoRA's: A uniform in 1/sqrt(in), B 0.
    """

    def __init__(self, model: dict[str, Any], seed: int) -> None:
        with torch.device("meta"):
            self._like = config.instantiate(OmegaConf.create(model)).state_dict()
        self._seed = seed

    def __iter__(self) -> Iterator[str]:
        return iter(self._like)

    def __len__(self) -> int:
        return len(self._like)

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self._like[name].shape
        if name.endswith(".bias") or "lora_b" in name:
            return torch.zeros(shape)
        if len(shape) == 1:
            return torch.ones(shape)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        if "lora_a" in name:
            bound = 1 / math.sqrt(shape[1])
            return torch.empty(shape).uniform_(-bound, bound, generator=generator)
        return torch.empty(shape).normal_(0.0, STD, generator=generator)


class RandomCheckpointer:
    """A checkpointer for torchtune's recipes that loads random weights and saves nothing."""

    def __init__(self, model: dict[str, Any], seed: int, **_: Any) -> None:
        self._state = RandomState(model, seed)

    def load_checkpoint(self) -> dict[str, Any]:
        return {training.MODEL_KEY: self._state}

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
