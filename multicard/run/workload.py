"""Workloads: what a run needs from its entry (vision, LLM tuning, or a user's script)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig
from multicard.config.placement import Placement
from multicard.messages import Message
from multicard.records.content import Parts
from multicard.records.schema import AnyRecord
from multicard.records.schema_data import RepeatedImages
from multicard.records.schema_parts import Failure


@dataclass(frozen=True)
class Named:
    """Options that a library names.

    Attributes:
        words: A few words that describe them.
        names: Returns the names.
        refuse: Raises a ValueError for a name that the library does not have.
    """

    words: str
    names: Callable[[], Sequence[str]]
    refuse: Callable[[str], None]


@dataclass(frozen=True, eq=False)  # Compared by identity, so that results for one can be kept.
class Workload:
    """The functions and schemas of one entry.

    Attributes:
        name: The `kind` of its records.
        entry: The file of the entry.
        schema: The schema of the whole configuration.
        options: The schemas of options, by group.
        work: The function that each rank calls, as "module:function". Only ranks import it.
        preload, cuda_preload: The modules that ranks are forked with, on CPU and on CUDA. On CUDA
            importing them must not start CUDA.
        refuse: Raises a ValueError for a configuration that works nowhere. Like `fits`, `has_room`
            and `check`, it gives the key and the remedy.
        fits: Raises a ValueError for a configuration that does not work with this placement.
        has_room: Raises a ValueError if the run does not fit into this machine's memory.
        check: Raises a ValueError if something that the run needs is missing. It is called last.
        data: Returns the parts of the data, by which its content is identified
            (`multicard.records.content`). It raises ValueError or OSError if they do not exist.
        repeated: Counts what the data contains more than once, and prints it. It returns None if
            nothing is compared, and may raise OSError.
        arguments: Returns the arguments of `work` after its `Rank`: configuration, folder, and
            JSON-ready values.
        axes: Returns the record's `axes`, from configuration and device.
        describe: Returns what a run is before it starts, as parts of a line.
        record: The struct of a run's record.
        summarise: Fills in the record's figures, from the ranks' reports and the table of steps.
        advise: Returns the option to try next, given what limits a run.
        explain: Adds what follows from a complete record to it.
        unit: The unit that ranks count while they work, such as "images".
        nccl: The name of torch's backend for NCCL.
        joins: True if ranks join a process group before `work`. A script does that itself.
        free: Groups of the schema, and keys of options, that accept keys of any name.
        notices: Returns what a person should know before a run starts, once it has been checked.
        resumable: True if ranks save a checkpoint when they are asked to stop, and resume from it.
        note_failure_after_measurement: Returns True if the run in a folder was measured to its end
            before a failure ended a rank. It then writes the reason to the rank's report.
        named: By group, the options that have no file, and that a library names instead.
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
    note_failure_after_measurement: Callable[[Path, Failure], bool] = lambda folder, failure: False
    named: Mapping[str, Named] = field(default_factory=dict)

    def preloaded(self, device: str) -> list[str]:
        return list(self.cuda_preload if device == "cuda" else self.preload)


_PRINTED_NOTICES: set[tuple[Path, str]] = set()  # The notices of this process's sweeps.


def new_notices(workload: Workload, config: Any, sweep: Path) -> list[Message]:
    """Return a cell's notices that no cell of its sweep has returned yet, and remember them.

    Notices on rows are only known when a cell starts, because its rows are read then.
    """
    notices = [
        notice
        for notice in dict.fromkeys(workload.notices(config))
        if (sweep, notice) not in _PRINTED_NOTICES
    ]
    _PRINTED_NOTICES.update((sweep, notice) for notice in notices)
    return notices


def settings(config: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of settings by their last name, such as `rows` for `dataset.rows`.

    The value of a group is the name of the chosen option. The global batch size is included if it
    was set. The configuration may also be one that was refused: values that it lacks are None.
    """
    values = {}
    for path in names:
        value = config
        for part in path.split("."):
            value = getattr(value, part, None)
        value = value if isinstance(value, str) else getattr(value, "name", value)
        values[path.rpartition(".")[2]] = str(value) if isinstance(value, str) else value
    global_batch_size = getattr(config, "global_batch_size", None)
    return (
        values if global_batch_size is None else values | {"global_batch_size": global_batch_size}
    )


def untried(options: Sequence[tuple[str, bool]], otherwise: str) -> str:
    """Return the first option that applies to a run.

    Args:
        options: Pairs of an option and whether it applies.
        otherwise: The answer if none applies.
    """
    return next((option for option, applies in options if applies), otherwise)
