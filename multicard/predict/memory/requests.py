"""What is asked of the process that predicts, and what of a configuration it depends on. No torch."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf

from multicard.config.base import NOT_IDENTITY, RunConfig, plain
from multicard.config.llm import LlmConfig
from multicard.predict.memory.facts import Facts, Machine
from multicard.workloads import WORKLOADS

# Keys that change no tensor's size, nor when it is made
IRRELEVANT = (
    *NOT_IDENTITY,
    *("seed", "lr", "epochs", "profile", "diagnose", "malloc", "warmup_steps", "scale"),
    *("stop_at_target", "target_accuracy", "weight_decay", "skip_steps", "max_steps"),
    *("compile", "cudnn_benchmark", "num_workers", "oversubscribe", "backend", "device", "template", "tokenizer"),
)


class Request(msgspec.Struct, frozen=True):
    workload: str
    config: dict[str, Any]
    facts: dict[str, Any]
    device: str = "cuda"
    memory_bytes: int | None = None


def request(config: RunConfig, facts: Facts, machine: Machine) -> Request:
    workload = "llm" if isinstance(config, LlmConfig) else "vision"
    return Request(workload, plain(config), msgspec.to_builtins(facts), machine.device_type, machine.memory_bytes)


def config_of(request: Request) -> RunConfig:
    """The configuration of a request, with the schema of each group's option."""
    (workload,) = (workload for workload in WORKLOADS if workload.name == request.workload)
    typed = OmegaConf.structured(workload.schema)
    for group, options in workload.options.items():
        chosen = request.config.get(group)
        if chosen is not None and chosen["name"] in options:
            typed[group] = OmegaConf.structured(options[chosen["name"]])
    OmegaConf.set_struct(typed, False)
    config = OmegaConf.to_object(OmegaConf.merge(typed, request.config))
    assert isinstance(config, RunConfig)
    return config


def identity(request: Request) -> str:
    """The same for two requests exactly if what matters, the libraries and the code are."""
    config = {key: value for key, value in request.config.items() if key not in IRRELEVANT}
    matters = msgspec.structs.replace(request, config=config)
    return hashlib.sha256(msgspec.json.encode([matters, _versions()], order="sorted")).hexdigest()


@cache
def _versions() -> list[str]:
    libraries = [version(name) for name in ("torch", "torchvision", "torchtune", "torchao")]
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        code.update(path.read_bytes())
    return [*libraries, code.hexdigest()]
