"""AdamW with states of 8 bits (Dettmers et al., 2022, arXiv:2110.02861): bitsandbytes',
of sharded weights too.
"""

from collections.abc import Callable
from typing import Any

import bitsandbytes
import torch
from torch.distributed.tensor import DTensor


class AdamW8bit(bitsandbytes.optim.AdamW8bit):  # pyright: ignore[reportPrivateImportUsage]
    """bitsandbytes' optimiser, whose kernels take no DTensors: each
    rank updates its own part of a sharded weight.

    States are quantised in blocks of 256 values. Weights, or parts of them, of fewer than 4,096
    values keep states in float32, which are better for small ones.

    Args:
        parameters: as torch's optimisers take them.
        is_paged: states lie in memory that moves to the host where the GPU has too little.
    """

    def __init__(
        self, parameters: Any, lr: float, weight_decay: float, is_paged: bool = False
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, is_paged=is_paged)
        # of DTensors, this rank's, by which states are kept
        self._parts: dict[torch.Tensor, torch.Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        whole = [group["params"] for group in self.param_groups]
        for group in self.param_groups:
            group["params"] = [self._part(parameter) for parameter in group["params"]]
        try:
            return super().step(closure)
        finally:
            for group, parameters in zip(self.param_groups, whole, strict=True):
                group["params"] = parameters
            for part in self._parts.values():
                part.grad = None

    def _part(self, parameter: torch.Tensor) -> torch.Tensor:
        """This rank's part, which shares the memory of the DTensor,
        with its part of the gradient.
        """
        if not isinstance(parameter, DTensor):
            return parameter
        own = parameter.to_local().detach()
        part = self._parts.setdefault(parameter, own)
        if part.data_ptr() != own.data_ptr():
            part.data = own
        gradient = parameter.grad
        # a rank may have no row of a small weight
        if isinstance(gradient, DTensor) and own.numel():
            part.grad = gradient.to_local()
        return part


def share(optimizer: torch.optim.Optimizer) -> float | None:
    """Of the values that were updated, the share whose states are held in 8 bits;
    None before the first step.
    """
    sizes = {True: 0, False: 0}
    for state in optimizer.state.values():
        first = state["state1"]
        sizes[first.dtype is torch.uint8] += first.numel()
    return sizes[True] / sum(sizes.values()) if any(sizes.values()) else None
