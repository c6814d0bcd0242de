"""What a model looks like before and after something is tried on it: weights, layouts, modes,
hooks, random numbers.
"""

import random
from typing import Any

import numpy as np
import torch
from torch import nn

PLAIN = (bool, int, float, str, tuple, torch.dtype, type(None))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _bytes(tensor: torch.Tensor) -> bytes:
    local = getattr(tensor, "_local_tensor", tensor).detach().cpu()
    return (
        local.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if local.numel() else b""
    )


def _tensor(tensor: torch.Tensor) -> dict[str, Any]:
    state = getattr(tensor, "quant_state", None)
    own = (
        {name: value for name, value in vars(state).items() if isinstance(value, PLAIN)}
        if state
        else {}
    )
    local = getattr(tensor, "_local_tensor", tensor)
    return {
        "class": type(tensor).__name__,
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "local": (tuple(local.shape), local.stride()),
        "trained": tensor.requires_grad,
        "gradient": tensor.grad is not None,
        "values": _bytes(tensor),
        "quantised": own | ({"scales": _bytes(state.absmax)} if state else {}),
    }


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that a trial could leave behind, by name."""
    seen: dict[str, Any] = {
        "random numbers": (
            random.getstate(),
            repr(np.random.get_state()),
            _bytes(torch.get_rng_state()),
        ),
        "gradients": torch.is_grad_enabled(),
    }
    for name, module in model.named_modules():
        seen[f"{name}: mode"] = module.training
        seen[f"{name}: hooks"] = [len(getattr(module, hooks)) for hooks in HOOKS]
        seen[f"{name}: attributes"] = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, PLAIN) and key != "training"
        }
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            seen[f"{name}: {key}"] = None if tensor is None else _tensor(tensor)
    return seen


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not as it was."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
