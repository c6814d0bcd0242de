"""Make PEFT adapt exactly the linears that an adapter's configuration names.

Imports PEFT only inside functions.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

# Functions of PEFT, and what they return instead.
REPLACED = {
    # PEFT rejects the version of torchao that torchtune needs. Adapters use nothing of torchao.
    "peft.tuners.lora.torchao.is_torchao_available": False,
    # For a mixture of experts, PEFT would adapt the experts instead of linears with their names.
    "peft.utils.transformers_weight_conversion.convert_peft_config_for_transformers": None,
}


@contextmanager
def adapted_as_named() -> Iterator[None]:
    """Within this context, PEFT builds adapters for the named linears, and for no experts."""
    with ExitStack() as stack:
        for name, result in REPLACED.items():
            stack.enter_context(mock.patch(name, _always(result)))
        yield


def _always(result: object) -> Callable[..., object]:
    return lambda *_, **__: result


def python_lines() -> list[str]:
    """Return lines of Python that do the same without multicard, for the rest of a program."""
    modules = ", ".join(name.rpartition(".")[0] for name in REPLACED)
    replacements = [f"{name} = lambda *_, **__: {result}" for name, result in REPLACED.items()]
    return [f"import {modules}, transformers", *replacements]
