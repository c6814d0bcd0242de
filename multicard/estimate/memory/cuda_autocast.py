"""autocast("cuda") for fake tensors.

torch's C++ casts nothing of a tensor whose device it does not see as CUDA, and says nothing. Here the same casts are
made in Python, for the operators that the installed torch names in its own header, at the same place: the dispatcher's
key AutocastCUDA.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map_only

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {
    "AT_FORALL_LOWER_PRECISION_FP": "lower",
    "AT_FORALL_FP32": "fp32",
    "AT_FORALL_FP32_SET_OPT_DTYPE": "fp32 result",
}
KEY = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}


def operators() -> dict[str, str]:
    """The policy of each operator of torch's lists for CUDA, by its name with the overload: "lower", "fp32", or
    "fp32 result" for those that are asked for a type of their result where the caller names none.

    Raises:
        RuntimeError: where the header is not as expected.
    """
    text = HEADER.read_text() if HEADER.is_file() else ""
    policies: dict[str, str] = {}
    for name, policy in LISTS.items():
        body = re.search(rf"#define {name}\(_\)((?:[^\n]*\\\n)*[^\n]*)", text)
        for entry in re.findall(r"_\(([\w, ]+)\)", body[1] if body else ""):
            policies[".".join(part.strip() for part in entry.split(","))] = policy
    if policies.get("conv2d") != "lower" or policies.get("layer_norm") != "fp32":
        raise RuntimeError(
            f"{HEADER}: does not list autocast's operators as expected; predictions need torch 2.9 to 2.x"
        )
    return policies


@contextmanager
def emulated(device_type: str = "cuda") -> Iterator[None]:
    """Within, autocast of `device_type` casts fake tensors too. Other autocast policies (promotion of mixed types) stay
    torch's: they widen, where the arguments of one operator differ, and no model here mixes them."""
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of weights, until autocast ends: (weight, its copy)
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        copies.clear()
        clear()

    library = torch.library.Library("aten", "IMPL")
    key = KEY[device_type]
    for name, policy in operators().items():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is not None:
            kernel = _kernel(operator, policy, device_type, copies)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a kernel is overridden
                library.impl(name, kernel, key, allow_override=True)
    try:
        with mock.patch.object(torch, "clear_autocast_cache", clear_both):
            yield
    finally:
        library._destroy()


def _kernel(operator: Any, policy: str, device_type: str, copies: dict[int, Any]) -> Callable[..., Any]:
    below = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY[device_type]))

    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        floats = tensor.is_floating_point() and tensor.dtype is not torch.float64
        if not floats or tensor.dtype is dtype or tensor.device.type != device_type:
            return tensor
        is_weight = policy == "lower" and tensor.requires_grad and tensor.is_leaf and tensor.dtype is torch.float32
        if not (is_weight and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor, tensor.to(dtype)
        return copies[id(tensor)][1]

    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **keywords: Any) -> Any:
        if policy == "fp32 result":
            place = names.index("dtype")
            named = keywords.get("dtype") if len(args) <= place else args[place]
            half = args[0].dtype in (torch.float16, torch.bfloat16)
            with torch._C._ExcludeDispatchKeyGuard(below):
                return (
                    operator(*args[:place], **(keywords | {"dtype": torch.float32}))
                    if named is None and half
                    else (operator(*args, **keywords))
                )
        dtype = torch.get_autocast_dtype(device_type) if policy == "lower" else torch.float32
        with torch._C._ExcludeDispatchKeyGuard(below):
            args, keywords = tree_map_only(torch.Tensor, lambda tensor: cast(tensor, dtype), (args, keywords))
            return operator(*args, **keywords)

    return kernel
