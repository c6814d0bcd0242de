"""NVML, NVIDIA's management library, which sees GPUs without starting CUDA on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def opened() -> Iterator[Any]:
    """The library, or None where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def ask(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, bytes as text; None where this GPU, driver or container does not support it."""
    try:
        value = function(*arguments)
    except nvml.NVMLError:
        return None
    return value.decode() if isinstance(value, bytes) else value
