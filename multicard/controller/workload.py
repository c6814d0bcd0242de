"""What an entry adds to a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig
from multicard.config.placement import Placement


@dataclass(frozen=True)
class Workload:
    """What one entry adds to a run.

    entry: the script that measures it.
    schema: of the whole configuration; options: group to option to schema, where options have their own.
    work: the function that each rank calls ("module:function": imported there, not here).
    preload: the modules that CPU ranks are forked with.
    check: raises ValueError, with the key and the remedy, for what cannot work on this machine.
    arguments: what `work` is called with after its `Rank`.
    advise: the option to try next against what bounds a run.
    unit: what ranks count while they work; nccl: the backend that is meant where NCCL is.
    resumable: ranks save themselves and stop where the board says, and go on when they are started again.
    processes: ranks a node.
    """

    name: str
    entry: str
    schema: type[RunConfig]
    options: dict[str, dict[str, type]]
    work: str
    preload: tuple[str, ...]
    check: Callable[[Any, Placement], None]
    arguments: Callable[[Any, Placement, Path], tuple[Any, ...]]
    axes: Callable[[Any, str], dict[str, Any]]
    describe: Callable[[Any, Placement], str]
    summarise: Callable[[Any, Placement, list[dict[str, Any]], Any, float | None], dict[str, Any]]
    advise: Callable[[Any, Placement, str], str]
    unit: str = "images"
    nccl: str = "nccl"
    processes: Callable[[Any], int] = lambda config: config.gpus
    resumable: bool = False
