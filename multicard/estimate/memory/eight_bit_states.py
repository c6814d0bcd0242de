"""Steps of bitsandbytes' optimisers without values (`torch_internals.patched`)."""

from typing import Any

import torch

CODES = 256  # values that a state of 8 bits can have


def code(*_: Any, **__: Any) -> torch.Tensor:
    """The values of a state's 8 bits, which bitsandbytes sorts on the host before it moves them."""
    return torch.empty(CODES)


WITHOUT_VALUES: dict[str, Any] = {
    "bitsandbytes.functional.create_dynamic_map": code,
    "bitsandbytes.functional.is_on_gpu": lambda _: True,
    "bitsandbytes.optim.optimizer.sync_gpu": lambda _: None,
    # memory of the host that a GPU reads too: counted as if all of it was on the GPU
    "bitsandbytes.functional.get_paged": lambda *shape, dtype, device: torch.empty(
        shape, dtype=dtype, device=device
    ),
    "torch.Tensor.data_ptr": lambda tensor: tensor.untyped_storage()._cdata,
    "bitsandbytes.functional.fill": lambda *_: None,
    "bitsandbytes.functional.prefetch_tensor": lambda *_: None,
}
