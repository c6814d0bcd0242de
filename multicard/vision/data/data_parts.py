"""The parts of a set of images, and the samples of each."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.messages import Message, Refusal, page
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.stored_images import Encoded

WHOLE = "all"  # the name of samples that are not split into parts
FORMS = (
    "give a folder of train/<class>/ and val/<class>/, or another form of"
    f" {page('own.md')} (images)"
)
IN_A_TABLE = (
    "or name the images and their classes in a .csv of the columns path and label"
    f" ({page('own.md')}, images)"
)

AS_CLASSES = "dataset.parts=[] dataset.split=0.2"  # whatever the folders are called
TABLE = (
    "write a .csv of the columns path and label, a row an image, and give `dataset.root=TABLE"
    " dataset.split=0.2`"
)


class PartSamples(NamedTuple):
    """The samples of a part: images, the class of each,
    and all classes in the order of their numbers.

    ignored: files or columns beside them, by kind. notices: what was taken without being named.
    """

    images: list[Encoded]
    labels: list[str]
    classes: list[str]
    ignored: Counter[str]
    notices: tuple[Message, ...] = ()


@dataclass(frozen=True)
class DataPart:
    """A part of the data, which is read when it is asked for.

    name: as the record has it. kind: None of data that are not split. may_lack_labels: of a part to
    test on, whose samples may all be without a class ("").
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
    """The parts that were found, and what lies beside them and belongs to none, by kind.

    unlabelled: folders of images to test on without classes, which are counted in `ignored`.
    notices: what was taken without being named. tables: which say the classes, where
    folders do not, that of the first part first.
    """

    parts: list[DataPart]
    ignored: Counter[str] = field(default_factory=Counter)
    unlabelled: tuple[str, ...] = ()
    notices: tuple[Message, ...] = ()
    tables: tuple[Path, ...] = ()


def train_and_tests(source: FoundParts, place: str) -> tuple[DataPart, list[DataPart]]:
    """The part to train on, and those to test on, in the order in which one is taken.

    Args:
        place: what was typed, as "dataset.root=pets".
    """
    tests = [part for part in source.parts if part.kind not in (None, PartKind.train)]
    trains = [part for part in source.parts if part.kind in (None, PartKind.train)]
    if not trains:
        names = [part.name for part in tests]
        raise Refusal(
            "photographs.no-train",
            f"{place}: has {' and '.join(names)}, and nothing to train on; {FORMS}",
            key="dataset.root",
            parts=names,
        )
    if len(trains) > 1:
        names = [part.name for part in trains]
        use = train_on(trains[0].name, tests[0].name if tests else None)
        raise Refusal(
            "photographs.two-trains",
            f"{place}: {' and '.join(names)} are all called as parts to train on; name those to"
            f" train and to test on, as `{use}`",
            key="dataset.root",
            parts=names,
        )
    return trains[0], tests


def train_on(train: str, test: str | None) -> str:
    """The overrides that train on one part and test on another, or on a fifth of the first."""
    if test is None:
        return f"{override('dataset.parts', [train])} dataset.split=0.2"
    return f"{override('dataset.parts', [train, test])} dataset.split=null"


def order_of_tests(name: str) -> tuple[int, int, str]:
    """Parts to test on by their names, in the order in which one is taken."""
    part = part_names.parsed(name)
    kind, word = (len(PartKind), 0) if part is None else part.order
    return kind, word, name


def train_first(names: Iterable[str]) -> list[str]:
    """The names with that of a part to train on first, and those of parts to test on last."""

    def place(name: str) -> int:
        part = part_names.parsed(name)
        if part is None:
            return 1
        return 0 if part.kind is PartKind.train else 2

    return sorted(names, key=place)


def chosen_parts(source: FoundParts, names: list[str], place: str) -> FoundParts:
    """The parts that `dataset.parts` names: the first to train on, the second, if any,
    to test on.
    """
    known = {part.name.lower(): part for part in source.parts}
    absent = [name for name in names if name.lower() not in known]
    if absent:
        raise Refusal(
            "photographs.no-part",
            f"dataset.parts=[{','.join(names)}]: {place} has no such part; it has"
            f" {', '.join(known)}",
            key="dataset.parts",
            absent=absent,
            parts=[*known],
        )
    named = [known[name.lower()] for name in names]
    taken = [
        replace(part, kind=kind)
        for part, kind in zip(named, (PartKind.train, PartKind.test), strict=False)
    ]
    others = [part for part in source.parts if part.name not in {each.name for each in taken}]
    not_read = Counter({f"part {part.name}": len(part.read().labels) for part in others})
    return replace(source, parts=taken, ignored=source.ignored + not_read)
