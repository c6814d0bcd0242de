"""Tensors without values on a GPU that is not there, or on the CPU to compare with the truth.

Everything here patches torch for the whole process: call it in a process of its own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from multicard.estimate.memory import attention, cuda_autocast

GPU = torch.device("cuda:0")
# In place alone, and unknown to fake tensors
IN_PLACE = (torch.ops.aten._fused_sgd_.default, torch.ops.aten._fused_sgd_.tensor_lr)
CPU = torch.device("cpu")


class Mode(FakeTensorMode):
    """Fake tensors whose values read as zero: of fp16's loss scaling "no overflow", of a recipe's loss a number to
    log. Shapes that depend on values are refused as ever."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(allow_non_fake_inputs=True)  # constants, as torch.tensor(0.0)
        self.device = device

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device.type == "cuda" and kwargs and getattr(kwargs.get("device"), "type", "") == "meta":
            kwargs = {**kwargs, "device": self.device}  # C++ asks for "a scalar where this tensor is", and saw meta
        if func in IN_PLACE:
            return None
        try:
            return super().dispatch(func, types, args, kwargs)
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            dtype = args[0].dtype
            return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0
        except RuntimeError as error:  # fake tensors try real ones for operators that they do not know
            if "NVIDIA driver" not in str(error):
                raise
            raise NotImplementedError(f"torch has no {func} for tensors without values") from None


@contextmanager
def fake(device: torch.device) -> Iterator[None]:
    """Within, tensors made on `device` have no values and take no memory.

    A GPU's fake tensors have, for Python and the dispatcher, the GPU as their device, and for C++ `meta`: autograd
    would otherwise ask for a stream of a GPU. C++ autocast then leaves them alone, which is made up for by
    `cuda_autocast`, and attention falls back, which `attention` replaces; `checks` asserts that both happened.
    """
    with ExitStack() as stack:
        if device.type == "cuda":
            for patch in _as_if_cuda():
                stack.enter_context(patch)
            stack.enter_context(cuda_autocast.emulated())
        stack.enter_context(Mode(device))
        yield


def _as_if_cuda() -> list[Any]:
    make = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: torch.Tensor, requires_grad: bool = False, **keywords: Any) -> torch.Tensor:
        if issubclass(cls, FakeTensor):
            keywords["dispatch_device"] = False
        return make(cls, data, requires_grad, **keywords)

    return [
        mock.patch.object(torch.Tensor, "_make_subclass", staticmethod(make_subclass)),
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        mock.patch.object(torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(nn.functional, "scaled_dot_product_attention", attention.scaled_dot_product_attention),
    ]
