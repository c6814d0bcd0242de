"""Recognizes the names that people give to the parts of a data set, as folders, files or splits.

Examples are Training, seg_test and val2017.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple


class PartKind(StrEnum):
    """The purpose of a part. If several parts are suitable for testing, the first kind wins, and
    within it the first of the words below.
    """

    train = "train"
    validation = "validation"
    test = "test"


# Words that identify a part. A record calls the part by its word.
WORDS: Mapping[str, PartKind] = {
    "train": PartKind.train,
    "training": PartKind.train,
    "trainval": PartKind.train,
    "trn": PartKind.train,
    "validation": PartKind.validation,
    "valid": PartKind.validation,
    "val": PartKind.validation,
    "validate": PartKind.validation,
    "dev": PartKind.validation,
    "eval": PartKind.validation,
    "evaluation": PartKind.validation,
    "test": PartKind.test,
    "testing": PartKind.test,
    "tests": PartKind.test,
    "tst": PartKind.test,
}
# Words that say nothing about the part, as in train_images, Test Set, "train-00000-of-00002".
FILLERS = {
    "set",
    "sets",
    "data",
    "dataset",
    "image",
    "images",
    "img",
    "imgs",
    "photo",
    "photos",
    "picture",
    "pictures",
}
FILLERS |= {
    "sample",
    "samples",
    "split",
    "splits",
    "folder",
    "dir",
    "part",
    "seg",
    "of",
    "new",
    "raw",
    "all",
}
LETTERS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class PartName(NamedTuple):
    """The name of a part, taken apart.

    word: the word that identifies it. kind: the part's purpose.
    rest: the other words of the name, which its counterparts share, as in dogs_train and dogs_test.
    """

    word: str
    kind: PartKind
    rest: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """A sort key; the smallest part suitable for testing is taken."""
        return [*PartKind].index(self.kind), [*WORDS].index(self.word)


def parsed(name: str) -> PartName | None:
    """Take the name of a part apart; None if it has no identifying word, or several."""
    words = _words(name)
    part_words = [word for word in words if word in WORDS]
    if len(part_words) != 1:
        return None
    rest = tuple(word for word in words if word not in WORDS and word not in FILLERS)
    return PartName(part_words[0], WORDS[part_words[0]], rest)


def is_outer(name: str) -> bool:
    """True if an identifying word begins or ends the name, ignoring fillers: my_data_val, but not
    a_val_b.
    """
    words = [word for word in _words(name) if word not in FILLERS]
    return bool(words) and (words[0] in WORDS or words[-1] in WORDS)


def _words(name: str) -> list[str]:
    return [_without_filler(word.lower()) for word in LETTERS.findall(name)]


def _without_filler(word: str) -> str:
    """Return `trainset` as `train`. Words that do not consist of a part and a filler stay."""
    for part in WORDS:
        if word.startswith(part) and word.removeprefix(part) in FILLERS:
            return part
    return word


def named(names: Iterable[str]) -> dict[str, PartName]:
    """Return the names that denote parts, among the names of siblings.

    A name with other words in it, as train_tracks, counts only if another part has the same words.
    """
    parts = {name: part for name in names if (part := parsed(name)) is not None}
    kinds: dict[tuple[str, ...], set[PartKind]] = {}
    for part in parts.values():
        kinds.setdefault(part.rest, set()).add(part.kind)
    return {
        name: part for name, part in parts.items() if not part.rest or len(kinds[part.rest]) > 1
    }
