"""Define an AdamW with 8-bit states (Dettmers et al., 2022, arXiv:2110.02861).

It is bitsandbytes' optimizer, extended to sharded weights.
"""

from collections.abc import Callable
from typing import Any

import bitsandbytes
import torch
from torch.distributed.tensor import DTensor


class AdamW8bit(bitsandbytes.optim.AdamW8bit):  # pyright: ignore[reportPrivateImportUsage]
    """bitsandbytes' optimizer, in which each rank updates its own shard of a sharded weight.

    bitsandbytes' kernels do not accept DTensors. States are quantised in blocks of 256 values.
    Weights or shards of fewer than 4,096 values keep float32 states, which suit small ones better.

    Args:
        parameters: Parameters or groups of them, as for torch's optimizers.
        is_paged: True if states should move to the host's memory when the GPU's is full.
    """

    def __init__(
        self, parameters: Any, lr: float, weight_decay: float, is_paged: bool = False
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, is_paged=is_paged)
        # For each DTensor, this rank's shard. bitsandbytes stores the states by the shard.
        self._shards: dict[torch.Tensor, torch.Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        whole_parameters = [group["params"] for group in self.param_groups]
        for group in self.param_groups:
            group["params"] = [self._local_shard(parameter) for parameter in group["params"]]
        try:
            return super().step(closure)
        finally:
            for group, parameters in zip(self.param_groups, whole_parameters, strict=True):
                group["params"] = parameters
            for shard in self._shards.values():
                shard.grad = None

    def _local_shard(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of a parameter, with its shard of the gradient.

        The shard shares the memory of the DTensor.
        """
        if not isinstance(parameter, DTensor):
            return parameter
        current_shard = parameter.to_local().detach()
        shard = self._shards.setdefault(parameter, current_shard)
        if shard.data_ptr() != current_shard.data_ptr():
            shard.data = current_shard
        gradient = parameter.grad
        # A rank may have no row of a small weight.
        if isinstance(gradient, DTensor) and current_shard.numel():
            shard.grad = gradient.to_local()
        return shard


def share_in_8_bits(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the share of the updated values whose states have 8 bits.

    Returns None before the first step.
    """
    sizes = {True: 0, False: 0}
    for state in optimizer.state.values():
        first_state = state["state1"]
        sizes[first_state.dtype is torch.uint8] += first_state.numel()
    return sizes[True] / sum(sizes.values()) if any(sizes.values()) else None
