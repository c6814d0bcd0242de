"""Liger's layers without values: its own code around its kernels,
which are not launched (`torch_internals.patched`).

What a layer holds, and what it writes in place, is thereby that of the installed version.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

# of an H100 or H200: a norm's backward pass has a row of its weight's gradient for each
PROCESSORS = 132


def no_launch(_kernel: Any, _grid: Any) -> Any:
    """A Triton kernel on its grid, which does nothing."""
    return lambda *_, **__: None


WITHOUT_VALUES: dict[str, Any] = {
    "triton.runtime.jit.KernelInterface.__getitem__": no_launch,
    "torch.cuda.device": lambda _: nullcontext(),
    "torch.cuda.get_device_properties": lambda _: SimpleNamespace(multi_processor_count=PROCESSORS),
}


@contextmanager
def undone() -> Iterator[None]:
    """Undo afterwards what Liger replaces in transformers' modules,
    where the next cell would find it.
    """
    from transformers.integrations.liger import apply_liger_kernel

    before: list[tuple[Any, dict[str, Any]]] = []

    def applied(*arguments: Any) -> None:
        models = [
            module
            for name, module in sys.modules.items()
            if name.startswith("transformers.models.")
        ]
        before.extend((module, dict(vars(module))) for module in models)
        apply_liger_kernel(*arguments)

    try:
        with mock.patch("transformers.trainer.apply_liger_kernel", applied):
            yield
    finally:
        for module, names in before:
            vars(module).update(names)
