"""torch.compile on a rank: whether it took its code from Inductor's cache on disk, and its errors as one line.

The cache decides how long compiling takes. Inductor counts every look-up of a graph. A graph that AOTAutograd's cache
holds is looked up in Inductor's too, so its counters tell of both. A graph that is not there may be looked up twice,
once by each: these are look-ups, not graphs.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from multicard.config import compilation
from multicard.ranks.failures import is_oom
from multicard.records.schema_parts import CompileCache

OUTCOMES = {"hits": "fxgraph_cache_hit", "misses": "fxgraph_cache_miss", "bypasses": "fxgraph_cache_bypass"}


def lookups() -> dict[str, int]:
    """Look-ups of this process so far, by outcome."""
    from torch._dynamo.utils import counters

    return {outcome: counters["inductor"][counter] for outcome, counter in OUTCOMES.items()}


def cuda_graphs_skipped() -> int:
    """Graphs that Inductor was to run as CUDA graphs in this process, and did not, as for CPU ranks."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["cudagraph_skips"]


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
