"""Pretend that this machine has a GPU, so that Inductor generates its code.

Tensors on the absent GPU are fake: they have a shape, a type and a device, but no values. Nothing
is computed, and no kernel is compiled. A C compiler is needed, but no graphics driver.

torch can trace fake tensors on an absent `cuda` device, but not their gradients: its autograd
engine asks the CUDA runtime for the device and its streams. The library built from `absent_gpu.c`
answers in place of the runtime.
"""

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from multicard.messages import Refusal

if TYPE_CHECKING:
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

DEVICE = "cuda:0"
CAPABILITY = 90  # the compute capability 9.0 of an H200
WARP = 32  # threads
DRIVER = "libcuda.so.1"


def load_runtime() -> None:
    """Make torch find a CUDA runtime with one device. Call this before torch is imported.

    Raises:
        Refusal: there is no C compiler, or torch was installed without CUDA.
    """
    assert "torch" not in sys.modules, "torch has found its CUDA runtime already"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Refusal(
            "absent-gpu.compiler",
            "no C compiler is installed, which builds the GPU's stand-in: install gcc",
        )
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, DRIVER)
        soname = f"-Wl,-soname,{DRIVER}"  # Programs that open the driver by name get this library.
        words = [compiler, "-shared", "-fPIC", soname, *_headers(), "-o", str(library), str(source)]
        subprocess.run(words, check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # It stays loaded after its file is deleted.


def _headers() -> list[str]:
    """Return the compiler's options for the headers of the CUDA runtime that torch was built with.

    Triton brings the headers that the runtime's package lacks.
    """
    packages = Path(str(distribution("torch").locate_file("")))
    runtime_headers = sorted(packages.glob("nvidia/*/include/cuda_runtime_api.h"))
    if not runtime_headers:
        raise Refusal(
            "absent-gpu.no-cuda",
            "torch was installed without CUDA, so it generates no code for GPUs",
        )
    return [
        f"-I{folder}"
        for folder in (runtime_headers[0].parent, packages / "triton/backends/nvidia/include")
    ]


@contextmanager
def pretend_gpu() -> Iterator["FakeTensorMode"]:
    """Make torch and Inductor take the device for an H200 in this context.

    Yields:
        The mode in which tensors are made on the device. Call compiled functions outside it.
    """
    import triton
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.backends.compiler import GPUTarget

    class AbsentDriver:
        """The part of Triton's driver that Inductor asks."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", CAPABILITY, WARP)

    fold_constants = UniformValueConstantFolder.run

    def fold_constants_on_host(
        folder: UniformValueConstantFolder, *inputs: Any, **keywords: Any
    ) -> Any:
        with _on_the_host():
            return fold_constants(folder, *inputs, **keywords)

    with ExitStack() as patches:
        for name, value in {
            "torch._subclasses.fake_tensor.init_gpu_context": lambda _: None,
            "torch._subclasses.fake_tensor.FakeTensorMode.avoid_device_init": True,
            "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder.run": (
                fold_constants_on_host
            ),
        }.items():
            patches.enter_context(mock.patch(name, value))
        patches.enter_context(mock.patch.object(triton.runtime.driver, "_active", AbsentDriver()))
        yield FakeTensorMode(allow_non_fake_inputs=True)


def _on_the_host() -> Any:
    """Return a context in which tensors meant for a device are made on the host.

    Inductor folds constants by their values, which fake tensors do not have.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnTheHost(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            keywords = dict(kwargs or {})
            if "device" in keywords:
                keywords["device"] = torch.device("cpu")
            return func(*args, **keywords)

    return OnTheHost()


def move_model(model: "nn.Module", layout: Any) -> None:
    """Move a model to the device in place. Call this in the mode of `pretend_gpu`.

    `Module.to` cannot turn its parameters into fake ones.

    Args:
        layout: the memory format of weights with four dimensions.
    """
    import torch
    from torch import nn

    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                moved = torch.empty_like(value, device=DEVICE)
                if moved.dim() == 4:
                    moved = moved.contiguous(memory_format=layout)
                module._parameters[name] = nn.Parameter(moved, requires_grad=value.requires_grad)
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = torch.empty_like(value, device=DEVICE)
