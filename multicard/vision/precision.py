"""What each precision means: the types of the model, of the transfer and of the arithmetic."""

from dataclasses import dataclass
from typing import Any

import torch

from multicard.config.base import PrecisionName


@dataclass(frozen=True)
class Precision:
    """`transfer` is the type of the images when they cross to the device: it decides how many bytes do.

    `autocast` is the type of the arithmetic where it is not the model's; `scale_loss` keeps small fp16 gradients
    from vanishing. The TF32 flags speak of CUDA alone.
    """

    model: torch.dtype
    transfer: torch.dtype
    autocast: torch.dtype | None = None
    scale_loss: bool = False
    tf32_conv: bool = True  # PyTorch's default
    tf32_matmul: bool = False  # PyTorch's default

    def set_flags(self) -> dict[str, Any]:
        """Set the TF32 flags of this process and return the flags in force, for the record."""
        torch.backends.cudnn.allow_tf32 = self.tf32_conv
        torch.backends.cuda.matmul.allow_tf32 = self.tf32_matmul
        return {
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "autocast_dtype": None if self.autocast is None else str(self.autocast).removeprefix("torch."),
            "model_dtype": str(self.model).removeprefix("torch."),
            "transfer_dtype": str(self.transfer).removeprefix("torch."),
            "loss_scaling": self.scale_loss,
        }

    def arithmetic(self, device: torch.device) -> torch.autocast:
        """The context in which forward passes run."""
        return torch.autocast(device.type, dtype=self.autocast, enabled=self.autocast is not None)


PRECISIONS = {
    PrecisionName.fp64: Precision(torch.float64, torch.float64),
    PrecisionName.fp32: Precision(torch.float32, torch.float32),
    PrecisionName.fp32_ieee: Precision(torch.float32, torch.float32, tf32_conv=False),
    PrecisionName.tf32: Precision(torch.float32, torch.float32, tf32_matmul=True),
    PrecisionName.fp16: Precision(torch.float32, torch.float16, autocast=torch.float16, scale_loss=True),
    PrecisionName.bf16: Precision(torch.float32, torch.bfloat16, autocast=torch.bfloat16),
}


def choose(name: PrecisionName, device: torch.device) -> Precision:
    """What `name` means on this device: `half` is bf16 where it can be computed in, else fp16."""
    if name is not PrecisionName.half:
        return PRECISIONS[name]
    has_bf16 = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    return PRECISIONS[PrecisionName.bf16 if has_bf16 else PrecisionName.fp16]
