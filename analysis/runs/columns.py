"""A record as flat columns, the same for every kind and age of run: what `--where`, `--sort` and `--columns` know.

`FIGURES` and `ABOUT` say what there is beside the axes, which keep their names, and the keys of the configuration,
which are called as they are typed (`"dataset.train_limit"`; in SQL such a name needs its double quotes).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from analysis.runs.caveats import MARKS

Scalar = str | int | float | bool | None
Number = float | None


class Statistics(Struct):
    mean: Number = None
    median: Number = None
    p95: Number = None
    std: Number = None
    count: int | None = None


class Memory(Struct):
    max: int | None = None


class Transfers(Struct):
    h2d: int | None = None


class Tokens(Struct):
    all: Number = None
    non_padding: Number = None


class Loss(Struct):
    first: Number = None
    mean_of_last_tenth: Number = None


class Gpu(Struct):
    energy_joules: Number = None
    covers: str | None = None
    disturbed_by: list[Any] = []


class Epoch(Struct):
    samples: int | None = None
    samples_trained: int | None = None
    test_samples: int | None = None


class Segment(Struct):
    hosts: list[str] | None = None


class Result(Struct):
    """What is read of a result.json: a key that an older record lacks is None."""

    schema_version: int
    kind: str
    status: str
    axes: dict[str, Scalar]
    name: str | None = None
    cause: dict[str, Any] | None = None
    config: dict[str, Any] = {}
    identity: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    hardware: str | None = None
    oversubscribed: bool | None = None
    segments: list[Segment] = []
    epochs: list[Epoch] = []
    total_s: Number = None
    startup_s: Number = None
    train_s: Number = None
    evaluate_s: Number = None
    compile_s: Number = None
    time_to_target_s: Number = None
    step_s: Statistics | UnsetType = UNSET
    iteration_s: Statistics | UnsetType = UNSET
    images_per_s: Number = None
    trained_images_per_s: Number = None
    tokens_per_s: Tokens | None = None
    tokens: Tokens | None = None
    test_accuracy: Number = None
    loss: Loss | None = None
    peak_memory_bytes: Memory | None = None
    transfer_bytes: Transfers | None = None
    communication_bytes: dict[str, Any] | None = None
    gpu: Gpu | None = None
    joules_per_image: Number = None
    joules_per_token: Number = None
    parameters: int | None = None
    mfu: Number = None


def _of(part: Callable[[Result], Any], name: str) -> Callable[[Result], Any]:
    return lambda result: getattr(part(result), name, None)


def _steps(result: Result) -> Statistics | None:
    """A vision run's steps, or an LLM run's iterations."""
    found = result.step_s if isinstance(result.step_s, Statistics) else result.iteration_s
    return found if isinstance(found, Statistics) else None


def _joules(result: Result) -> float | None:
    """Of the training alone, as the record's own energy per image is."""
    gpu = result.gpu
    return gpu.energy_joules if gpu is not None and gpu.covers == "training" else None


def _received(result: Result) -> int | None:
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
    known = [(result.communication_bytes or {}).get(kind) for kind in kinds]
    counts = [count for count in known if isinstance(count, int)]
    return sum(counts) if counts else None


def _sum(result: Result, name: str) -> int | None:
    counts = [count for epoch in result.epochs if (count := getattr(epoch, name)) is not None]
    return sum(counts) if counts else None


# Where a run did not end `ok`, figures are of what it had finished by then.
FIGURES: dict[str, Callable[[Result], Any]] = {
    "total_s": lambda r: r.total_s,
    "startup_s": lambda r: r.startup_s,
    "train_s": lambda r: r.train_s,
    "evaluate_s": lambda r: r.evaluate_s,
    "compile_s": lambda r: r.compile_s,
    "time_to_target_s": lambda r: r.time_to_target_s,
    "step_s": _of(_steps, "mean"),  # an LLM run's iteration; after the warm-up, of the slowest rank
    "step_median_s": _of(_steps, "median"),
    "step_p95_s": _of(_steps, "p95"),
    "step_std_s": _of(_steps, "std"),
    "steps": _of(_steps, "count"),
    "images_per_s": lambda r: r.images_per_s,
    "trained_images_per_s": lambda r: r.trained_images_per_s,
    "tokens_per_s": _of(lambda r: r.tokens_per_s, "non_padding"),
    "tokens": _of(lambda r: r.tokens, "non_padding"),
    "samples_trained": lambda r: _sum(r, "samples_trained") or _sum(r, "samples"),
    "test_accuracy": lambda r: r.test_accuracy,
    "test_samples": lambda r: r.epochs[-1].test_samples if r.epochs else None,
    "loss_first": _of(lambda r: r.loss, "first"),
    "loss_last_tenth": _of(lambda r: r.loss, "mean_of_last_tenth"),
    "peak_memory_bytes": _of(lambda r: r.peak_memory_bytes, "max"),  # of the rank that held most
    "h2d_bytes": _of(lambda r: r.transfer_bytes, "h2d"),
    "received_bytes": _received,  # in collectives, a rank
    "energy_joules": _joules,
    "joules_per_image": lambda r: r.joules_per_image,
    "joules_per_token": lambda r: r.joules_per_token,
    "parameters": lambda r: r.parameters,
    "mfu": lambda r: r.mfu,
}
ABOUT: dict[str, Callable[[Result], Any]] = {
    "name": lambda r: r.name,
    "kind": lambda r: r.kind,
    "status": lambda r: r.status,
    "cause": lambda r: None if r.cause is None else str(r.cause.get("message")),
    "commit": lambda r: r.commit,
    "dirty": lambda r: r.dirty,
    "hardware": lambda r: r.hardware,
    "hosts": lambda r: ",".join(sorted({host for segment in r.segments for host in segment.hosts or ()})) or None,
    "identity": lambda r: r.identity,
    "segments": lambda r: len(r.segments),
    "started_at": lambda r: r.started_at,
    "ended_at": lambda r: r.ended_at,
}
FOLDER, MARKED = "folder", "marks"
RESERVED = frozenset({FOLDER, MARKED, *ABOUT, *FIGURES, *(mark.column for mark in MARKS)})


def columns(folder: Path, result: Result) -> dict[str, Any]:
    """The columns of one record: folder, `ABOUT`, axes, `FIGURES`, a flag for each mark, and the configuration's keys.

    An axis goes before the configuration's key of the same name: it is what was in force (`device=auto` is `cpu`).
    """
    axes = {name: value for name, value in result.axes.items() if name not in RESERVED}
    config = {key: value for key, value in flat(result.config).items() if key not in RESERVED}
    about = {FOLDER: str(folder), **{name: find(result) for name, find in ABOUT.items()}}
    figures = {name: find(result) for name, find in FIGURES.items()}
    seen = {
        "oversubscribed": bool(result.oversubscribed),
        "disturbed": bool(result.gpu and result.gpu.disturbed_by),
        "scale": result.config.get("scale"),
    }
    flags = {mark.column: mark.applies(about | axes | seen) for mark in MARKS}
    shown = "".join(mark.sign for mark in MARKS if flags[mark.column])
    return {**about, **config, **axes, **figures, **flags, MARKED: shown}


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """A configuration as "group.key" to value; lists as their text."""
    found: dict[str, Scalar] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value) if isinstance(value, list) else value
    return found
