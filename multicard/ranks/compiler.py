"""torch.compile on a rank: whether it runs as CUDA graphs, and its errors as one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from multicard.config import compilation
from multicard.ranks.failures import is_oom

if TYPE_CHECKING:
    import torch


def cuda_graphs(device: "torch.device", compile_value: bool | str | None) -> dict[str, Any]:
    """Of this process, once it has trained: `cuda_graphs`, True if nothing that was compiled was kept from running as
    CUDA graphs, as it is on CPU ranks, and `cuda_graphs_recorded`; nothing where the mode has none.

    Inductor may divide a graph, and record its parts (`graph_partition`), so several do not mean that some are missing.
    """
    if not compilation.has_cuda_graphs(compile_value):
        return {}
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(device.index or 0, create_if_none_exists=False) if device.type == "cuda" else None
    recorded = next(copy(manager.graph_counter)) if manager is not None else 0
    whole = counters["inductor"]["cudagraph_skips"] == 0 and (recorded > 0 or device.type != "cuda")
    return {"cuda_graphs": whole, "cuda_graphs_recorded": recorded}


@contextmanager
def errors_explained(compile_value: bool | str | None) -> Iterator[None]:
    """Raise a ValueError that says in one line, with the remedy, that torch cannot compile the model here as the key
    `compile` asks."""
    try:
        yield
    except Exception as error:
        if is_oom(error) or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        problem = f"compile={compilation.word(compile_value)}: torch cannot compile the model here ({line})"
        raise ValueError(f"{problem}; it needs a C++ compiler (g++); use compile=false to do without") from error
