"""A cell's step without values: what `python -m multicard.estimate.memory` does for each request. Imports torch."""

import time
from contextlib import ExitStack

import torch

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.config.vision import DdpConfig, VisionConfig
from multicard.estimate.memory import checks, fake_device
from multicard.estimate.memory.facts import Facts, ImageFacts, TextFacts
from multicard.estimate.memory.result import Active
from multicard.estimate.memory.tracker import CUDA_BLOCK_BYTES, Tracker


def simulate(config: RunConfig, facts: Facts, device_type: str, memory_bytes: int | None = None) -> Active:
    """Take a step of a cell without values, as rank 0 does.

    Args:
        device_type: "cuda" without a GPU, or "cpu", to compare with the truth.
        memory_bytes: of the GPU, which decides how much of the data set stays on it; None: as much as there is.

    Raises:
        checks.FellBackError: the steps were not those of a real run.
    """
    started_s = time.monotonic()
    device = fake_device.GPU if device_type == "cuda" else fake_device.CPU
    tracker = Tracker(device_type, CUDA_BLOCK_BYTES if device_type == "cuda" else 1)
    if isinstance(config, VisionConfig):
        assert isinstance(facts, ImageFacts)
        _vision(config, facts, device, tracker, memory_bytes)
    else:
        assert isinstance(config, LlmConfig) and isinstance(facts, TextFacts)
        _tuning(config, facts, device, tracker)
        checks.tuning(config, device, tracker)
    return Active(
        tracker.peak_bytes,
        {kind: size for kind, size in tracker.peak_now.items() if size},
        tracker.peak_phase,
        tracker.peak_operator,
        tracker.peaks,
        time.monotonic() - started_s,
    )


def _vision(
    config: VisionConfig, facts: ImageFacts, device: torch.device, tracker: Tracker, memory_bytes: int | None
) -> None:
    from multicard.estimate.memory import vision_step

    options = config.strategy
    synced = isinstance(options, DdpConfig) and options.sync_batchnorm and config.gpus * config.nodes > 1
    checks.require(not synced, "strategy.sync_batchnorm=true: torch has no operators of it for tensors without values")
    with fake_device.fake(device):
        vision_step.run(config, facts, device, tracker, memory_bytes)
        checks.vision(config, device, tracker)


def _tuning(config: LlmConfig, facts: TextFacts, device: torch.device, tracker: Tracker) -> None:
    from multicard.estimate.memory import tuning_step
    from multicard.estimate.memory.fake_ranks import fake_ranks

    with ExitStack() as stack:
        mesh = stack.enter_context(fake_ranks(config.world_size, device)) if config.distributed else None
        stack.enter_context(fake_device.fake(device))
        model = tuning_step.run(config, facts, device, tracker, mesh)
    del model
