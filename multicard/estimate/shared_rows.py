"""Measured rows that people share: `multirun/published/*.json`.

`export` writes them and `import` checks them. A row holds only what the schema knows: numbers,
words of the schema and of the options under `conf/`, and public names of models, hardware and
versions. It cannot hold a path, a host, a name, an id or a user's text.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import yaml
from msgspec import Meta, Struct

from multicard.config import CONF, schema
from multicard.estimate import history
from multicard.estimate.observations import Basis, StepObservation
from multicard.estimate.target import TargetMachine, cores_in_words
from multicard.machine import environment
from multicard.machine.gpu_models import product
from multicard.messages import Refusal
from multicard.records.figures import FIGURES, MONEY
from multicard.records.schema_types import Count, Float, Int
from multicard.vision import model_names, models
from multicard.workloads import WORKLOADS, known_keys

MOST_BYTES = 20_000_000  # Limit for one file.
LICENCE = "CC0-1.0"
PACKAGES = ("python", "driver", *environment.PACKAGES)
# no roles: what a row of a file has to name
NEEDED = ("model.name", "dataset.name", "gpus")  # Without these keys, a row says nothing.
# Prices are the user's own.
SHARED_FIGURES = [figure.name for figure in FIGURES.values() if figure.unit is not MONEY]
Text = Annotated[str, Meta(pattern=r"^[\w .,:()@/+-]{1,100}$(?!\n)")]
VERSION = r"^\d{1,9}(\.\d{1,9}){0,5}((a|b|rc|\.post|\.dev)\d{1,9})?(\+cu\d{1,4}|\+cpu)?$(?!\n)"
LINK = r"^(NV\d{1,2}|SAME|PIX|PXB|PHB|NODE|SYS)$(?!\n)"
Link = Annotated[str, Meta(pattern=LINK)]  # The names of `machine.topology` and nvidia-smi.
Version = Annotated[str, Meta(pattern=VERSION)]
Value = Annotated[list[Float | Text], Meta(max_length=8)] | Text | Int | Float | bool | None


class SharedFigure(Struct, forbid_unknown_fields=True, frozen=True):
    """A figure of a setting over its runs.

    `mean` is the maximum for peak memory. `sd` is null for a single run.
    """

    n: Annotated[int, Meta(ge=1, le=10_000)]
    mean: Float
    sd: Annotated[float, Meta(ge=0, le=10**18)] | None = None


class SharedRow(Struct, forbid_unknown_fields=True, frozen=True):
    """A setting that was measured on one machine.

    Its figures are defined in docs/reference/record.md, units included.
    """

    kind: Annotated[str, Meta(pattern="^(vision|llm)$(?!\n)")]
    hardware: Annotated[Text, "names of the GPUs, or the CPU's model"]
    cores: Annotated[Count, "of its first node"]
    commit: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")] | None
    versions: Annotated[dict[Text, Version], Meta(max_length=40)]
    settings: Annotated[dict[str, Value], Meta(max_length=200)]
    figures: Annotated[dict[str, SharedFigure], Meta(min_length=1, max_length=100)]
    links: Annotated[
        list[Link], Meta(max_length=10), "between the GPUs of a node, each kind once"
    ] = []

    def figure(self, name: str) -> float | None:
        return self.figures[name].mean if name in self.figures else None


class SharedFile(Struct, forbid_unknown_fields=True, frozen=True):
    """Rows that anybody may use, under the licence CC0 1.0."""

    version: Literal[1]
    licence: Literal["CC0-1.0"]
    rows: Annotated[list[SharedRow], Meta(min_length=1, max_length=10_000)]


def decode(content: bytes) -> SharedFile:
    """Decode and check the rows of a file. A ValueError names the problem and its place."""
    if len(content) > MOST_BYTES:
        sentence = f"has {len(content):,} bytes, more than {MOST_BYTES:,}"
        raise Refusal("share.too-large", sentence, bytes=len(content), most=MOST_BYTES)
    try:
        shared_file = msgspec.json.decode(content, type=SharedFile)
    except RecursionError:
        raise Refusal("share.nested", "is nested too deeply") from None
    for number, row in enumerate(shared_file.rows):
        unknown = [
            key for key, value in row.settings.items() if not is_public(row.kind, key, value)
        ]
        unknown += [name for name in row.figures if name not in SHARED_FIGURES]
        unknown += [name for name in row.versions if name not in PACKAGES]
        unknown += [key for key in NEEDED if key not in row.settings]
        if unknown:
            name = unknown[0]
            sentence = (
                f"rows[{number}]: {name!r} is absent, or is not a key, value, figure or package of"
                " multicard"
            )
            raise Refusal("share.unknown", sentence, row=number, name=name)
    return shared_file


def is_public(kind: str, key: str, value: Any) -> bool:
    """True if the schema knows the key, and each word of the value comes from multicard or a model.

    Numbers are always public.
    """
    if key in schema.OLDER:
        return value in schema.OLDER[key].words
    keys, words = _schema(kind)
    parts = value if isinstance(value, list) else [value]
    return key in keys and all(
        not isinstance(part, str)
        or part in words
        or (key == "model.name" and part in model_names.classifier_names())
        for part in parts
    )


def _with_arguments(hints: Iterable[Any]) -> list[Any]:
    """Return each type hint, followed by its arguments."""
    parts = []
    for hint in hints:
        parts.extend((hint, *get_args(hint)))
    return parts


@cache
def _schema(kind: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys of a kind's settings, and the words that their values may be."""
    (workload,) = (workload for workload in WORKLOADS if workload.name == kind)
    types = {key: _with_arguments(hints) for key, hints in known_keys(workload).items()}
    # Groups have no value.
    types = {
        key: hints for key, hints in types.items() if hints and not any(map(is_dataclass, hints))
    }
    words = set[str]()
    for hint in chain.from_iterable(types.values()):
        if isinstance(hint, type) and issubclass(hint, Enum):
            words.update(str(word) for word in hint)
    for file in CONF.glob("**/*.yaml"):
        words |= {file.stem, *_strings(yaml.safe_load(file.read_text()))}
    words |= {models.RANDOM, models.PRETRAINED}  # Words of model.weights, which may also be a path.
    names = {key for key in types if key.partition(".")[0] not in schema.beside()}
    return frozenset(names), frozenset(word for word in words if word and "$" not in word)


def _strings(content: Any) -> Iterator[str]:
    """Yield the strings in nested dictionaries' values and lists."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _strings(value)
    elif isinstance(content, list):
        for item in content:
            yield from _strings(item)


def read_rows(runs_folder: Path) -> list[tuple[str, SharedRow]]:
    """Return the rows next to a sweep's folder, each with its file's name.

    Unreadable files are skipped.
    """
    root = runs_folder.absolute().parent
    files = sorted((root / history.PUBLISHED).glob("*.json")) if root.name == history.ROOT else []
    named = []
    for file in files:
        named.extend((file.stem, row) for row in _rows(file, file.stat().st_mtime_ns))
    return named


@lru_cache
def _rows(file: Path, modified_ns: int) -> Sequence[SharedRow]:
    del modified_ns
    with suppress(OSError, ValueError):
        return decode(file.read_bytes()).rows
    return []


def observations(
    rows: Sequence[tuple[str, SharedRow]], target: TargetMachine
) -> list[StepObservation]:
    """Return the steps of rows that were measured on hardware like the target's."""
    step_observations = list[StepObservation]()
    for name, row in rows:
        step = row.figures.get("step_s")
        cores = cores_in_words(row.cores, 1, in_job=False)
        is_on_target = product(row.hardware) == target.hardware and target.cores in (None, cores)
        if step is not None and step.mean > 0 and is_on_target:
            error = (
                history.UNKNOWN_ERROR
                if step.sd is None
                else min(step.sd / step.mean / math.sqrt(step.n), 1.0)
            )
            settings = schema.without_older(row.settings)
            setting = {key: msgspec.json.encode(value).decode() for key, value in settings.items()}
            step_observations.append(
                StepObservation(setting, step.mean, error, name, Basis.published)
            )
    return step_observations
