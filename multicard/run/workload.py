"""The part of a run that belongs to its entry."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig
from multicard.config.placement import Placement
from multicard.messages import Message
from multicard.records.content import Parts
from multicard.records.schema import AnyRecord
from multicard.records.schema_parts import Cause as Failure
from multicard.records.schema_parts import RepeatedImages


@dataclass(frozen=True)
class Named:
    """Options that a library names: a few words about them, the names,
    and a refusal (ValueError) of any other.
    """

    words: str
    names: Callable[[], Sequence[str]]
    refuse: Callable[[str], None]


@dataclass(frozen=True)
class Workload:
    """Functions and schemas of one entry.

    name: the record's `kind`; entry: the script.
    schema: of the whole configuration; options: the schemas of options, by group.
    work: the function that each rank calls, as "module:function"; it is imported by the ranks
    alone.
    preload, cuda_preload: the modules that ranks are forked with, on CPU and on CUDA, where
    importing them must not
        start CUDA.
    refuse, fits, has_room, check: raise ValueError, with the key and the remedy, for a
    configuration that works
        nowhere, for one that does not work with this placement, for one that this machine has not
        the room for, and for what it lacks; `check` comes after the others.
    data: the parts of what is trained on, by which its content is identified
    (`multicard.records.content`); raises
        ValueError or OSError where they are not there.
    repeated: counts what is in the data more than once, and says it; None where nothing is
    compared. It raises OSError.
    arguments: of `work` after its `Rank`: configuration, folder, and JSON-ready values.
    axes: the record's `axes`, by configuration and device.
    describe: what a run is before it starts, in parts of a line, by its configuration.
    record: the struct of a run's record.
    summarise: fills in the record's figures, from the ranks' reports and the table of steps.
    advise: the option to try next against what bounds a run.
    explain: adds to a whole record what follows from it, by its configuration and placement.
    unit: what ranks count while they work; nccl: torch's name of the backend where NCCL is chosen.
    joins: whether ranks join a process group before `work`; a script does that itself.
    free: groups of the schema, and keys of options, that take keys of any name.
    notices: what a person should know before a run starts, by its configuration, once it was
    checked.
    resumable: whether ranks save a checkpoint when they are asked to stop, and resume from it.
    is_measured_despite: whether a run, by its folder, was measured to its end although a failure
    ended a rank then.
    named: by group, the options that have no file, but the name that a library gives them.
    """

    name: str
    entry: str
    schema: type[RunConfig]
    options: dict[str, dict[str, type]]
    work: str
    preload: tuple[str, ...]
    cuda_preload: tuple[str, ...]
    refuse: Callable[[Any], None]
    fits: Callable[[Any, Placement], None]
    check: Callable[[Any], None]
    data: Callable[[Any], Parts]
    arguments: Callable[[Any, Placement, Path], tuple[Any, ...]]
    axes: Callable[[Any, str], dict[str, Any]]
    describe: Callable[[Any], list[str]]
    record: type[AnyRecord]
    summarise: Callable[[Any, Any, Placement, list[Any], Any], None]
    advise: Callable[[Any, Placement, str], str]
    explain: Callable[[Any, Placement, Any], None] = lambda config, placement, record: None
    unit: str = "images"
    nccl: str = "nccl"
    joins: bool = True
    free: tuple[str, ...] = ()
    resumable: bool = False
    has_room: Callable[[Any, Placement], None] = lambda config, placement: None
    repeated: Callable[[Any], RepeatedImages | None] = lambda config: None
    notices: Callable[[Any], list[Message]] = lambda config: []
    is_measured_despite: Callable[[Path, Failure], bool] = lambda folder, failure: False
    named: Mapping[str, Named] = field(default_factory=dict)

    def preloaded(self, device: str) -> list[str]:
        return list(self.cuda_preload if device == "cuda" else self.preload)


_SAID: set[tuple[Path, str]] = set()  # notices of this process's sweeps


def unsaid(workload: Workload, config: Any, sweep: Path) -> list[Message]:
    """A cell's notices that no cell of its sweep has said yet; from now on they count as said.
    Those of rows are known once the cell's rows are read, as it starts.
    """
    found = [
        notice for notice in dict.fromkeys(workload.notices(config)) if (sweep, notice) not in _SAID
    ]
    _SAID.update((sweep, notice) for notice in found)
    return found


def settings(config: Any, names: Sequence[str]) -> dict[str, Any]:
    """Values of settings by their last name, as `rows` for `dataset.rows`; of a group, the name of
    the chosen option; and the global batch where it was set.

    Takes the composed configuration of a refused run too, which may lack some: they are None.
    """
    values = {}
    for path in names:
        value = config
        for part in path.split("."):
            value = getattr(value, part, None)
        value = value if isinstance(value, str) else getattr(value, "name", value)
        values[path.rpartition(".")[2]] = str(value) if isinstance(value, str) else value
    whole = getattr(config, "global_batch_size", None)
    return values if whole is None else values | {"global_batch_size": whole}


def untried(options: Sequence[tuple[str, bool]], otherwise: str) -> str:
    """The first option that applies to a run, of pairs of an option and whether it does."""
    return next((option for option, applies in options if applies), otherwise)
