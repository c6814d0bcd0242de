"""Liger's layers on fake tensors: the code around its kernels runs, and the kernels do not.

A layer thus holds and overwrites the tensors of the installed version. The patches are for
`torch_internals.patched`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

# Of an H100 or H200. A norm's backward pass keeps a row of its weight's gradient per processor.
PROCESSORS = 132


def no_launch(_kernel: Any, _grid: Any) -> Any:
    """Replace indexing a Triton kernel by its grid: the result does nothing when called."""
    return lambda *_, **__: None


WITHOUT_VALUES: dict[str, Any] = {
    "triton.runtime.jit.KernelInterface.__getitem__": no_launch,
    "torch.cuda.device": lambda _: nullcontext(),
    "torch.cuda.get_device_properties": lambda _: SimpleNamespace(multi_processor_count=PROCESSORS),
}


@contextmanager
def restored_modules() -> Iterator[None]:
    """Undo, on exit, Liger's changes to transformers' modules: the next cell would see them."""
    from transformers.integrations.liger import apply_liger_kernel

    saved_modules: list[tuple[Any, dict[str, Any]]] = []

    def apply_after_saving(*arguments: Any) -> None:
        models = [
            module
            for name, module in sys.modules.items()
            if name.startswith("transformers.models.")
        ]
        saved_modules.extend((module, dict(vars(module))) for module in models)
        apply_liger_kernel(*arguments)

    try:
        with mock.patch("transformers.trainer.apply_liger_kernel", apply_after_saving):
            yield
    finally:
        for module, names in saved_modules:
            vars(module).update(names)
