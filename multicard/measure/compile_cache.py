"""Whether torch.compile took its code from Inductor's cache on disk, which decides how long compiling takes.

Inductor counts every look-up of a graph. A graph that AOTAutograd's cache holds is looked up in Inductor's too, so its
counters tell of both. A graph that is not there may be looked up twice, once by each: these are look-ups, not graphs.
"""

from collections.abc import Iterable, Mapping
from typing import Any

OUTCOMES = {"hits": "fxgraph_cache_hit", "misses": "fxgraph_cache_miss", "bypasses": "fxgraph_cache_bypass"}


def lookups() -> dict[str, int]:
    """Look-ups of this process so far, by outcome; `bypasses` are of graphs that cannot be cached."""
    from torch._dynamo.utils import counters

    return {outcome: counters["inductor"][counter] for outcome, counter in OUTCOMES.items()}


def cuda_graphs_skipped() -> int:
    """Graphs that Inductor was to run as CUDA graphs in this process, and did not, as for CPU ranks."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["cudagraph_skips"]


def since(before: Mapping[str, int]) -> dict[str, Any]:
    """The record of what was compiled since `before`, an earlier `lookups()`: `state` and the look-ups by outcome."""
    return _record({outcome: count - before[outcome] for outcome, count in lookups().items()})


def over_ranks(records: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The ranks' records together; None where no rank compiled."""
    compiled = [record for record in records if record is not None]
    return _record({outcome: sum(record[outcome] for record in compiled) for outcome in OUTCOMES}) if compiled else None


def _record(counts: dict[str, int]) -> dict[str, Any]:
    """cold: all compiled anew; warm: all from the cache; mixed; None: nothing was looked up, as with the cache off."""
    hits, anew = counts["hits"], counts["misses"] + counts["bypasses"]
    state = {(False, False): None, (True, False): "warm", (False, True): "cold", (True, True): "mixed"}
    return {"state": state[hits > 0, anew > 0], **counts}
