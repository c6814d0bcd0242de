"""A cell's step without values, and the process that takes it for `answers.computed`: pickled requests from the
standard input, answers as JSON to the standard output."""

import os
import pickle
import sys
import time
from contextlib import nullcontext

import msgspec
import torch

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.config.vision import DdpConfig, VisionConfig
from multicard.estimate.memory import answers
from multicard.estimate.memory.answers import Active
from multicard.estimate.memory.facts import Facts, ImageFacts, TextFacts
from multicard.estimate.memory.torch_internals import CPU, GPU, fake, fake_ranks
from multicard.estimate.memory.tracker import CUDA_BLOCK_BYTES, Tracker
from multicard.vision.precision import choose

CONVOLUTIONS = ("aten::convolution", "aten::addmm", "aten::mm", "aten::linear")
GPU_ATTENTION = {"aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention"}
MATH_ATTENTION = "aten::_scaled_dot_product_attention_math"


class FellBackError(Exception):
    """A step without values took another way than a real one does."""


def simulate(config: RunConfig, facts: Facts, device_type: str, memory_bytes: int | None = None) -> Active:
    """Take a step of a cell without values, as rank 0 does.

    Args:
        device_type: "cuda" without a GPU, or "cpu", to compare with the truth.
        memory_bytes: of the GPU (`answers.Request`).

    Raises:
        FellBackError: the step was not that of a real run.
    """
    started_s = time.monotonic()
    device = GPU if device_type == "cuda" else CPU
    tracker = Tracker(device_type, CUDA_BLOCK_BYTES if device_type == "cuda" else 1)
    if isinstance(config, VisionConfig):
        from multicard.estimate.memory import vision_step

        assert isinstance(facts, ImageFacts)
        options = config.strategy
        synced = isinstance(options, DdpConfig) and options.sync_batchnorm and config.gpus * config.nodes > 1
        _require(not synced, "strategy.sync_batchnorm=true: torch has no operators of it for tensors without values")
        with fake(device):
            vision_step.run(config, facts, device, tracker, memory_bytes)
            _check_vision(config, device, tracker)
    else:
        from multicard.estimate.memory import tuning_step

        assert isinstance(config, LlmConfig) and isinstance(facts, TextFacts)
        with fake_ranks(config.world_size, device) if config.distributed else nullcontext() as mesh, fake(device):
            tuning_step.run(config, facts, device, tracker, mesh)
        _check_tuning(config, device, tracker)
    kinds = {kind: size for kind, size in tracker.peak_now.items() if size}
    seconds = time.monotonic() - started_s
    return Active(tracker.peak_bytes, kinds, tracker.peak_phase, tracker.peak_operator, tracker.peaks, seconds)


def _require(true: bool, problem: str) -> None:
    if not true:
        raise FellBackError(problem)


def _check_vision(config: VisionConfig, device: torch.device, tracker: Tracker) -> None:
    """Check that autocast cast, that attention is fused and that the optimiser stepped."""
    precision, seen = choose(config.precision.name, device), tracker.operators
    expected = getattr(torch, precision.autocast or precision.model)
    for name in CONVOLUTIONS:
        _require(name not in seen or seen[name] == {expected}, f"{name} gave {seen.get(name)}, not {expected}")
    _require(any(name in seen for name in CONVOLUTIONS), "the step ran neither convolutions nor products of matrices")
    keeps_state = config.optimizer.name != "sgd" or getattr(config.optimizer, "momentum", 0) > 0
    _check(device, tracker, keeps_state, may_be_math=expected is torch.float64)


def _check_tuning(config: LlmConfig, device: torch.device, tracker: Tracker) -> None:
    """Check that products have the run's type, that AdamW is the fused one and attention a GPU's."""
    seen, expected = tracker.operators, {torch.bfloat16 if config.precision.name == "bf16" else torch.float32}
    _require(seen.get("aten::mm", expected) == expected, f"aten::mm gave {seen.get('aten::mm')}, not {expected}")
    _require("aten::_fused_adamw_" in seen, "AdamW was not fused")
    _check(device, tracker, keeps_state=True, may_be_math=False)
    if device.type == "cuda" and not config.packed:
        _require(not GPU_ATTENTION.isdisjoint(seen), "attention did not take a GPU's operator")


def _check(device: torch.device, tracker: Tracker, keeps_state: bool, may_be_math: bool) -> None:
    _require("optimizer" in tracker.kinds or not keeps_state, "the optimiser made no state: it did not step")
    fell_back = device.type == "cuda" and not may_be_math and MATH_ATTENTION in tracker.operators
    _require(not fell_back, "attention fell back to matrices of sequence x sequence")


def answer(request: answers.Request) -> answers.Answer:
    """The peak of a request's step, or in a line the reason for which there is none."""
    try:
        return simulate(request.config, request.facts, request.device, request.memory_bytes)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked: list[answers.Request] = pickle.load(sys.stdin.buffer)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # recipes print
    for request in asked:
        out.write(msgspec.json.encode(answer(request)) + b"\n")
        out.flush()
