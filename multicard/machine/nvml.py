"""NVML, NVIDIA's management library, which sees GPUs without starting CUDA on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, bytes as text; None where GPU, driver or container do not support or allow it."""
    return ask_why(nvml, function, *arguments)[0]


def ask_why(nvml: Any, function: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """The same, and NVML's reason where there is none: Not Supported, Insufficient Permissions and so on."""
    try:
        value = function(*arguments)
    except nvml.NVMLError as error:
        return None, str(error)
    return value.decode() if isinstance(value, bytes) else value, None
