"""A GPU that is not there: torch takes it for one, and Inductor generates its code for it.

Tensors on it are fake: they have a shape, a type and a device, and no values. Nothing is computed,
no kernel is compiled, and no graphics driver is needed; a C compiler is.

torch itself traces fake tensors of a device `cuda` without one, but not their gradients: its
autograd engine asks the CUDA runtime for the device and its streams. `absent_gpu.c` answers in the
runtime's place.
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
# of an H200: 9.0, threads
CAPABILITY = 90
WARP = 32
DRIVER = "libcuda.so.1"


def load_runtime() -> None:
    """Have this process's torch find a CUDA runtime with one device. Call it before torch is
    imported.

    Raises:
        Refusal: there is no C compiler, or torch was installed without CUDA.
    """
    assert "torch" not in sys.modules, "torch has found its CUDA runtime already"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Refusal(
            "absent-gpu.compiler",
            "no C compiler is installed, of which the GPU's stand-in is made: install gcc",
        )
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, DRIVER)
        named = f"-Wl,-soname,{DRIVER}"  # whoever opens the driver by its name is given this one
        words = [compiler, "-shared", "-fPIC", named, *_headers(), "-o", str(library), str(source)]
        subprocess.run(words, check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # stays loaded without its file


def _headers() -> list[str]:
    """The compiler's words for the headers of the CUDA runtime that torch was built with; Triton
    brings those that the runtime's own package lacks."""
    packages = Path(str(distribution("torch").locate_file("")))
    own = sorted(packages.glob("nvidia/*/include/cuda_runtime_api.h"))
    if not own:
        raise Refusal(
            "absent-gpu.no-cuda",
            "torch was installed without CUDA, so it generates no code for GPUs",
        )
    return [
        f"-I{folder}" for folder in (own[0].parent, packages / "triton/backends/nvidia/include")
    ]


@contextmanager
def pretended() -> Iterator["FakeTensorMode"]:
    """torch and Inductor take the device for an H200 here. Tensors are made on it while the mode
    that this gives is entered too; what is compiled is called outside it."""
    import triton
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.backends.compiler import GPUTarget

    class AbsentDriver:
        """What Inductor asks of Triton's driver."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", CAPABILITY, WARP)

    folded = UniformValueConstantFolder.run

    def folded_on_the_host(
        folder: UniformValueConstantFolder, *inputs: Any, **keywords: Any
    ) -> Any:
        with _on_the_host():
            return folded(folder, *inputs, **keywords)

    with ExitStack() as patches:
        for name, value in {
            "torch._subclasses.fake_tensor.init_gpu_context": lambda _: None,
            "torch._subclasses.fake_tensor.FakeTensorMode.avoid_device_init": True,
            "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder.run": (
                folded_on_the_host
            ),
        }.items():
            patches.enter_context(mock.patch(name, value))
        patches.enter_context(mock.patch.object(triton.runtime.driver, "_active", AbsentDriver()))
        yield FakeTensorMode(allow_non_fake_inputs=True)


def _on_the_host() -> Any:
    """A context in which tensors made on a device are made on the host: Inductor folds constants by
    their values."""
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


def put(model: "nn.Module", layout: Any) -> None:
    """Put a model on the device, in place: `Module.to` cannot turn its parameters into fake ones.
    Call it in the mode of `pretended`.

    Args:
        layout: the memory format of its weights of four dimensions.
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
