"""Our parts that torchtune's configurations name by `_component_`."""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torchtune import config, training

STD = 0.02  # Llama's initialiser range


class RandomState(Mapping[str, torch.Tensor]):
    """Weights of a torchtune model, made tensor by tensor when asked for: whoever loads them needs memory for one.

    Each follows from the seed and its name alone, so that all ranks, and any number of them, have the same. Linears
    and embeddings are normal with std 0.02, norms 1; adapters are as LoRA starts: A uniform in 1/sqrt(in), B zero.
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
        if len(shape) == 1:
            return torch.ones(shape)
        if "lora_b" in name:
            return torch.zeros(shape)
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
        """Nothing: the run is for its figures."""


class StepLog:
    """A metric logger that hands each step's figures to `listener`, on rank 0 (other ranks have none)."""

    def __init__(self, **_: Any) -> None:
        self.listener: Callable[[Mapping[str, Any]], None] | None = None

    def log_config(self, _: Any) -> None:
        """Nothing: config.yaml and torchtune.yaml are there."""

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        if self.listener is not None:
            self.listener(payload)

    def log(self, name: str, data: Any, step: int) -> None:
        self.log_dict({name: data}, step)

    def close(self) -> None:
        self.listener = None
