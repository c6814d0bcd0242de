"""The names of the parts of a data set, as people call their folders, files and splits: Training,
seg_test, val2017.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple


class PartKind(StrEnum):
    """What a part is for. Of several to test on,
    the first kind and then the first word below is taken.
    """

    train = "train"
    validation = "validation"
    test = "test"


# Words by which a part is known, each as the record calls the part
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
# Words beside them that say nothing: train_images, seg_train, Test Set, "train-00000-of-00002"
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
    """A name that a part may have.

    word: by which it is known. kind: what the part is for. rest: other words of the name, which its
    counterparts have
    too: dogs_train and dogs_test.
    """

    word: str
    kind: PartKind
    rest: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Parts to test on, in the order in which one is taken."""
        return [*PartKind].index(self.kind), [*WORDS].index(self.word)


def parsed(name: str) -> PartName | None:
    """A name as that of a part; None where it holds no such word, or several."""
    words = _words(name)
    found = [word for word in words if word in WORDS]
    if len(found) != 1:
        return None
    rest = tuple(word for word in words if word not in WORDS and word not in FILLERS)
    return PartName(found[0], WORDS[found[0]], rest)


def is_outer(name: str) -> bool:
    """True if a part's word begins or ends the name,
    apart from words that say nothing: my_data_val, not a_val_b.
    """
    words = [word for word in _words(name) if word not in FILLERS]
    return bool(words) and (words[0] in WORDS or words[-1] in WORDS)


def _words(name: str) -> list[str]:
    return [_without_filler(word.lower()) for word in LETTERS.findall(name)]


def _without_filler(word: str) -> str:
    """`trainset` as `train`; a word that is no part with a filler behind it stays."""
    for part in WORDS:
        if word.startswith(part) and word.removeprefix(part) in FILLERS:
            return part
    return word


def named(names: Iterable[str]) -> dict[str, PartName]:
    """Those names beside each other that are of parts.

    A name with other words in it, as train_tracks, is one where another part has the same words.
    """
    found = {name: part for name in names if (part := parsed(name)) is not None}
    kinds: dict[tuple[str, ...], set[PartKind]] = {}
    for part in found.values():
        kinds.setdefault(part.rest, set()).add(part.kind)
    return {
        name: part for name, part in found.items() if not part.rest or len(kinds[part.rest]) > 1
    }
