"""What torch.compile says where it cannot compile a model, as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from multicard.config import compilation
from multicard.ranks.failures import is_oom


@contextmanager
def errors_explained(compile_value: bool | str | None) -> Iterator[None]:
    """Say in one line, with the remedy, that torch cannot compile the model.

    Args:
        compile_value: the value of the key `compile`.

    Raises:
        ValueError: torch cannot compile the model here.
    """
    try:
        yield
    except Exception as error:
        if is_oom(error) or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        problem = f"compile={compilation.word(compile_value)}: torch cannot compile the model here ({line})"
        raise ValueError(f"{problem}; it needs a C++ compiler (g++); use compile=false to do without") from error
