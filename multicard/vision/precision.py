"""Precisions: in which types the model is stored, images are transferred, and arithmetic is done.

torch is imported only inside functions, because the controller reads these objects too.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Precision:
    """One precision. Types are given by torch's names.

    Attributes:
        model: Type of the weights, and of the arithmetic if there is no autocast.
        transfer: Type of the images when they are copied to the device. It decides the bytes.
        autocast: Type of the arithmetic, if it is not that of the model.
        scale_loss: Scale the loss, so that small gradients do not vanish in fp16.
        tf32_conv, tf32_matmul: Allow TF32 on CUDA. The defaults are PyTorch's.
        cpu: True if CPU ranks can compute in this precision.
        without_bf16: The precision to use on GPUs that cannot compute in bf16.
    """

    model: str
    transfer: str
    autocast: str | None = None
    scale_loss: bool = False
    tf32_conv: bool = True
    tf32_matmul: bool = False
    cpu: bool = True
    without_bf16: str | None = None

    @property
    def model_dtype(self) -> "torch.dtype":
        import torch

        return getattr(torch, self.model)

    @property
    def transfer_dtype(self) -> "torch.dtype":
        import torch

        return getattr(torch, self.transfer)

    def set_flags(self) -> dict[str, Any]:
        """Set the TF32 flags of this process. Return the flags in force, for the record."""
        import torch

        torch.backends.cudnn.allow_tf32 = self.tf32_conv
        torch.backends.cuda.matmul.allow_tf32 = self.tf32_matmul
        return {
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "autocast_dtype": self.autocast,
            "model_dtype": self.model,
            "transfer_dtype": self.transfer,
            "loss_scaling": self.scale_loss,
        }

    def arithmetic(self, device: "torch.device") -> "torch.autocast":
        """Return the context in which forward passes run."""
        import torch

        dtype = None if self.autocast is None else getattr(torch, self.autocast)
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


PRECISIONS = {
    "fp64": Precision("float64", "float64"),
    "fp32": Precision("float32", "float32"),
    "fp32_ieee": Precision("float32", "float32", tf32_conv=False),
    "tf32": Precision("float32", "float32", tf32_matmul=True, cpu=False),
    "fp16": Precision("float32", "float16", autocast="float16", scale_loss=True),
    "bf16": Precision("float32", "bfloat16", autocast="bfloat16"),
    "half": Precision("float32", "bfloat16", autocast="bfloat16", without_bf16="fp16"),
}


def value_bytes(dtype: str) -> int:
    """Return the bytes of a value whose type has this name in torch, such as "float16"."""
    return int(dtype.removeprefix("b").removeprefix("float")) // 8


def choose(name: str, device: "torch.device") -> Precision:
    """Return the precision that `name` stands for on this device."""
    precision = PRECISIONS[name]
    if precision.without_bf16 is None or device.type == "cpu":
        return precision
    import torch

    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return precision if has_bf16 else PRECISIONS[precision.without_bf16]
