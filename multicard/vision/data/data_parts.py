"""The parts of an image data set (train, validation, test) and the samples in each.

Every source of samples (folders, tables, parquet files) returns its parts as `FoundParts`. This
module also chooses the part to train on and the part to test on.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.messages import Message, Refusal, page
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.stored_images import EncodedImage

ALL_SAMPLES = "all"  # The part's name if the samples are not divided into parts.
# The constants below are phrases and overrides that several refusals suggest.
DATA_FORMS_HINT = (
    "give a folder of train/<class>/ and val/<class>/, or another form of"
    f" {page('reference/data.md')} (images)"
)
OR_USE_A_TABLE = (
    "or list the images and their classes in a .csv with the columns path and label"
    f" ({page('reference/data.md')}, images)"
)

FOLDERS_AS_CLASSES = "dataset.parts=[] dataset.split=0.2"  # Whatever the folders are called.
WRITE_A_TABLE = (
    "write a .csv with the columns path and label, one row per image, and give `dataset.root=TABLE"
    " dataset.split=0.2`"
)


class PartSamples(NamedTuple):
    """The samples of one part: its images, their labels, and the classes in numerical order.

    Attributes:
        ignored: How many files or table columns beside the samples are not read, by kind.
        notices: What was assumed without being configured.
    """

    images: list[EncodedImage]
    labels: list[str]
    classes: list[str]
    ignored: Counter[str]
    notices: tuple[Message, ...] = ()


@dataclass(frozen=True)
class DataPart:
    """One part of the data. Its samples are read when `read` is called.

    Attributes:
        name: The part's name as the record shows it.
        kind: What the part is for. None if the data are not divided into parts.
        may_lack_labels: Whether all samples may have no label (""), as in some test sets.
    """

    name: str
    kind: PartKind | None
    read: Callable[[], PartSamples]
    may_lack_labels: bool = False

    @property
    def has_labels(self) -> bool:
        return not self.may_lack_labels or any(self.read().labels)


@dataclass(frozen=True)
class FoundParts:
    """The parts of a data set, and what lies beside them without belonging to any.

    Attributes:
        ignored: Files and table columns that are not read, counted by kind.
        unlabelled: Folders of test images without classes. Their files count in `ignored`.
        notices: What was assumed without being configured.
        tables: The tables that give the classes, in the order of `parts`. Empty if folders do.
    """

    parts: list[DataPart]
    ignored: Counter[str] = field(default_factory=Counter)
    unlabelled: tuple[str, ...] = ()
    notices: tuple[Message, ...] = ()
    tables: tuple[Path, ...] = ()


def train_and_tests(source: FoundParts, place: str) -> tuple[DataPart, list[DataPart]]:
    """Return the part to train on, and the parts to test on with the preferred one first.

    Args:
        place: The configured source, such as "dataset.root=pets".
    """
    tests = [part for part in source.parts if part.kind not in (None, PartKind.train)]
    trains = [part for part in source.parts if part.kind in (None, PartKind.train)]
    if not trains:
        names = [part.name for part in tests]
        raise Refusal(
            "photographs.no-train",
            f"{place}: has {' and '.join(names)}, but nothing to train on; {DATA_FORMS_HINT}",
            key="dataset.root",
            parts=names,
        )
    if len(trains) > 1:
        names = [part.name for part in trains]
        use = train_on_overrides(trains[0].name, tests[0].name if tests else None)
        raise Refusal(
            "photographs.two-trains",
            f"{place}: {' and '.join(names)} are all named as parts to train on; choose one to"
            f" train on and one to test on, as `{use}`",
            key="dataset.root",
            parts=names,
        )
    return trains[0], tests


def train_on_overrides(train: str, test: str | None) -> str:
    """Return the overrides that train on one part and test on another, or on a fifth of it."""
    if test is None:
        return f"{override('dataset.parts', [train])} dataset.split=0.2"
    return f"{override('dataset.parts', [train, test])} dataset.split=null"


def test_order(name: str) -> tuple[int, int, str]:
    """Return a sort key that puts the preferred part to test on first."""
    part = part_names.parsed(name)
    kind, word = (len(PartKind), 0) if part is None else part.order
    return kind, word, name


def train_first(names: Iterable[str]) -> list[str]:
    """Sort names: parts to train on first, parts to test on last."""

    def place(name: str) -> int:
        part = part_names.parsed(name)
        if part is None:
            return 1
        return 0 if part.kind is PartKind.train else 2

    return sorted(names, key=place)


def choose_parts(source: FoundParts, names: list[str], place: str) -> FoundParts:
    """Return the parts that `dataset.parts` names: the first to train on, a second to test on."""
    part_by_name = {part.name.lower(): part for part in source.parts}
    absent_names = [name for name in names if name.lower() not in part_by_name]
    if absent_names:
        raise Refusal(
            "photographs.no-part",
            f"dataset.parts=[{','.join(names)}]: {place} has no such part; it has"
            f" {', '.join(part_by_name)}",
            key="dataset.parts",
            absent=absent_names,
            parts=[*part_by_name],
        )
    chosen = [part_by_name[name.lower()] for name in names]
    typed_parts = [
        replace(part, kind=kind)
        for part, kind in zip(chosen, (PartKind.train, PartKind.test), strict=False)
    ]
    other_parts = [
        part for part in source.parts if part.name not in {typed.name for typed in typed_parts}
    ]
    not_read = Counter({f"part {part.name}": len(part.read().labels) for part in other_parts})
    return replace(source, parts=typed_parts, ignored=source.ignored + not_read)
