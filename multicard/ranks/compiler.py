"""torch.compile on a rank: whether it took its code from Inductor's cache on disk, and its errors as one line.

The cache decides how long compiling takes. Inductor counts every look-up of a graph. A graph that AOTAutograd's cache
holds is looked up in Inductor's too, so its counters tell of both. A graph that is not there may be looked up twice,
once by each: these are look-ups, not graphs.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from multicard.config import compilation
from multicard.ranks.failures import is_oom
from multicard.records.schema_parts import CompileCache

if TYPE_CHECKING:
    import torch

OUTCOMES = {"hits": "fxgraph_cache_hit", "misses": "fxgraph_cache_miss", "bypasses": "fxgraph_cache_bypass"}


def lookups() -> dict[str, int]:
    """Look-ups of this process so far, by outcome."""
    from torch._dynamo.utils import counters

    return {outcome: counters["inductor"][counter] for outcome, counter in OUTCOMES.items()}


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


def since(before: dict[str, int]) -> CompileCache:
    """The look-ups since `before`, an earlier `lookups()`."""
    return _cache({outcome: count - before[outcome] for outcome, count in lookups().items()})


def over_ranks(caches: Iterable[CompileCache | None]) -> CompileCache | None:
    """The look-ups of all ranks; None where no rank compiled."""
    compiled = [cache for cache in caches if cache is not None]
    return _cache({name: sum(getattr(cache, name) for cache in compiled) for name in OUTCOMES}) if compiled else None


def _cache(counts: dict[str, int]) -> CompileCache:
    hits, anew = counts["hits"], counts["misses"] + counts["bypasses"]
    state = {(False, False): None, (True, False): "warm", (False, True): "cold", (True, True): "mixed"}
    return CompileCache(state[hits > 0, anew > 0], **counts)


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
