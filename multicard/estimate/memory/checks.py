"""Assertions on what a step without values did: what falls back in silence elsewhere ends in an error here."""

import torch

from multicard.config.llm import LlmConfig
from multicard.config.vision import VisionConfig
from multicard.estimate.memory.tracker import Tracker
from multicard.vision.precision import choose

CONVOLUTIONS = ("aten::convolution", "aten::addmm", "aten::mm", "aten::linear")
GPU_ATTENTION = ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention")
MATH_ATTENTION = "aten::_scaled_dot_product_attention_math"


class FellBackError(Exception):
    """A step without values took another way than a real one does."""


def require(true: bool, problem: str) -> None:
    if not true:
        raise FellBackError(problem)


def vision(config: VisionConfig, device: torch.device, tracker: Tracker) -> None:
    """See that autocast cast, that BatchNorm did not, that attention is fused and that the optimiser stepped.

    Raises:
        FellBackError: what did not happen.
    """
    precision, seen = choose(config.precision.name, device), tracker.operators
    expected = getattr(torch, precision.autocast or precision.model)
    for name in CONVOLUTIONS:
        require(name not in seen or seen[name] == {expected}, f"{name} gave {seen.get(name)}, not {expected}")
    require(any(name in seen for name in CONVOLUTIONS), "the step ran neither convolutions nor products of matrices")
    _attention(device, tracker, expected is torch.float64)
    require("optimizer" in tracker.kinds or not _keeps_state(config), "the optimiser made no state: it did not step")


def _keeps_state(config: VisionConfig) -> bool:
    return config.optimizer.name != "sgd" or getattr(config.optimizer, "momentum", 0) > 0


def tuning(config: LlmConfig, device: torch.device, tracker: Tracker) -> None:
    """See that attention is fused, products have the run's type, and that AdamW is the fused one.

    Raises:
        FellBackError: what did not happen.
    """
    seen, expected = tracker.operators, {torch.bfloat16 if config.precision.name == "bf16" else torch.float32}
    require(seen.get("aten::mm", expected) == expected, f"aten::mm gave {seen.get('aten::mm')}, not {expected}")
    require("aten::_fused_adamw_" in seen, "AdamW was not fused")
    require("optimizer" in tracker.kinds, "the optimiser made no state: it did not step")
    _attention(device, tracker, False)
    if device.type == "cuda" and not config.packed:
        has = any(name in seen for name in GPU_ATTENTION)
        require(has, "attention did not take a GPU's operator")


def _attention(device: torch.device, tracker: Tracker, may_be_math: bool) -> None:
    fell_back = device.type == "cuda" and not may_be_math and MATH_ATTENTION in tracker.operators
    require(not fell_back, "attention fell back to matrices of sequence x sequence")
