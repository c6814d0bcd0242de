"""What is asked of the process that predicts, and what of a configuration it depends on. No torch."""

import hashlib
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf

from multicard.config.base import RunConfig, plain
from multicard.config.llm import LlmConfig
from multicard.estimate.memory.facts import Facts, Machine
from multicard.workloads import WORKLOADS

# Keys of a configuration on which the tensors of a step depend, beside the number of ranks and what `_of_images` adds
RELEVANT: dict[str, tuple[str, ...]] = {
    "vision": ("model", "strategy", "layout", "precision", "optimizer", "batch_size"),
    "llm": (
        *("model", "method", "precision", "batch_size", "recipe", "gradient_accumulation_steps"),
        *("custom_sharded_layers", "activation_checkpointing", "optimizer_in_bwd", "packed"),
    ),
}
# Files of multicard that a step without values runs: an edit of one of them, and of no other, empties the cache
SIMULATED = (
    *("predict/memory/*.py", "llm/*.py", "vision/*.py", "vision/data/batch.py", "vision/data/device_loader.py"),
    *("ranks/process.py", "measure/timing.py"),
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
    config, ranks = request.config, request.config["gpus"] * request.config["nodes"]
    kept: dict[str, Any] = {key: config[key] for key in RELEVANT[request.workload]} | {"ranks": ranks}
    memory_bytes = None
    facts = dict(request.facts)
    if request.workload == "vision":
        kept |= _of_images(config, ranks)
        if config["loader"]["name"] == "device":
            memory_bytes = request.memory_bytes  # of which the data set takes a share
        else:
            facts.pop("test", None)
    matters = [request.workload, kept, facts, request.device, memory_bytes]
    return hashlib.sha256(msgspec.json.encode([*matters, _versions()], order="sorted")).hexdigest()


def _of_images(config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """What else the training of an image model depends on. A replica under DDP takes the same on any number of ranks
    above one, unless they share the data set or exchange the statistics of batches."""
    loader, strategy, data = config["loader"]["name"], config["strategy"], config["dataset"]
    counts = loader == "device" or strategy["name"] == "dp" or strategy.get("sync_batchnorm", False)
    keys = ("image_size", "mean", "std", *(("device_budget_bytes",) if loader == "device" else ()))
    return {
        "ranks": ranks if counts else min(ranks, 2),
        "loader": loader,
        "pinned": loader == "batched" and config["pin_memory"],
        "dataset": {key: data.get(key) for key in keys},
    }


@cache
def _versions() -> list[str]:
    libraries = [version(name) for name in ("torch", "torchvision", "torchtune", "torchao")]
    code, root = hashlib.sha256(), Path(__file__).parents[2]
    for path in sorted(chain.from_iterable(root.glob(pattern) for pattern in SIMULATED)):
        code.update(path.read_bytes())
    return [*libraries, code.hexdigest()]
