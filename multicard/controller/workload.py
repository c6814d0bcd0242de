"""What an entry adds to a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.config.base import Placement


@dataclass(frozen=True)
class Workload:
    """What one entry adds to a run.

    `work` names the function that each rank calls ("module:function": imported there, not here); `arguments` gives
    what it is called with after its `Rank`; `preload` are the modules that CPU ranks are forked with. `advise` names
    the option to try next against what bounds a run. `unit` is what ranks count while they work, `nccl` the backend
    that is meant where NCCL is. Ranks that are `resumable` save themselves and stop where the board says, and go on
    from there when they are started again.
    """

    name: str
    work: str
    preload: tuple[str, ...]
    check: Callable[[Any], None]
    arguments: Callable[[Any, Placement, Path], tuple[Any, ...]]
    axes: Callable[[Any, str], dict[str, Any]]
    describe: Callable[[Any, Placement], str]
    summarise: Callable[[Any, Placement, list[dict[str, Any]], Any, float | None], dict[str, Any]]
    advise: Callable[[Any, Placement, str], str]
    unit: str = "images"
    nccl: str = "nccl"
    resumable: bool = False
