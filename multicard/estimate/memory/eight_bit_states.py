"""Steps of bitsandbytes' optimizers on fake tensors (`torch_internals.patched`)."""

from typing import Any

import torch

CODES = 256  # Number of values that an 8-bit state can have.


def code(*_: Any, **__: Any) -> torch.Tensor:
    """Return the table of an 8-bit state's values. bitsandbytes sorts it on the host."""
    return torch.empty(CODES)


WITHOUT_VALUES: dict[str, Any] = {
    "bitsandbytes.functional.create_dynamic_map": code,
    "bitsandbytes.functional.is_on_gpu": lambda _: True,
    "bitsandbytes.optim.optimizer.sync_gpu": lambda _: None,
    # Host memory that a GPU reads too. It counts as if all of it were on the GPU.
    "bitsandbytes.functional.get_paged": lambda *shape, dtype, device: torch.empty(
        shape, dtype=dtype, device=device
    ),
    "torch.Tensor.data_ptr": lambda tensor: tensor.untyped_storage()._cdata,
    "bitsandbytes.functional.fill": lambda *_: None,
    "bitsandbytes.functional.prefetch_tensor": lambda *_: None,
}
