"""Find the names of the classes that a training script saved beside its weights."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from multicard.vision.data.class_names import NUMBER, without_spelling

# Keys whose value lists the names in the order of the outputs, or maps names and numbers.
NAMES_OF_CLASSES = {
    "class_names",
    "class_to_idx",
    "classes",
    "id2label",
    "idx_to_class",
    "label2id",
    "label_names",
    "names",
}
# Words in other keys that may have such a value: label_map, idx2label, vocab, target_names.
LIKE_CLASSES = re.compile(r"class|label|categor|names|idx|index|vocab|target", re.IGNORECASE)
MAX_DEPTH = 4  # Such keys stand at the top, in hyperparameters, or are attributes of the model.


class SavedNames(NamedTuple):
    """Lists of names in a file of weights, each in the order of its numbers.

    Attributes:
        of_classes: Those under a key that always means the classes.
        others: Those under a key that may mean them.
    """

    of_classes: list[list[str]]
    others: list[list[str]]


def names_in(content: Any) -> SavedNames:
    """Find lists of names that may be the classes.

    Args:
        content: What was read from a file of weights.
    """
    found = [*_found(content, 0)]
    return SavedNames(
        [names for key, names in found if key.lower() in NAMES_OF_CLASSES],
        [names for key, names in found if key.lower() not in NAMES_OF_CLASSES],
    )


def names_for(saved: SavedNames, class_names: Sequence[str]) -> list[str]:
    """Return the file's classes in the order of the outputs, spelled as in the data.

    Return an empty list if the file has none, or several that differ, or if they cannot be compared
    with the data's. If none is the same, they may be other words for the same classes (n01440764
    and tench). Names under a key that may mean something else count only if they are all the same.
    """
    of_classes = [_spelled_as(class_names, names) for names in saved.of_classes]
    if any(names != of_classes[0] for names in of_classes):
        return []
    names = of_classes[0] if of_classes else []
    if len(names) == len(class_names) and not {*names}.isdisjoint(class_names):
        return names
    others = [_spelled_as(class_names, names) for names in saved.others]
    same = [names for names in others if {*names} == {*class_names}]
    is_one_order = bool(same) and all(names == same[0] for names in same)
    # Numbers in any order may be something else, such as the classes to leave out.
    has_words = not all(map(NUMBER.fullmatch, class_names))
    return same[0] if is_one_order and has_words else []


def _spelled_as(class_names: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return names with the spelling of the data's classes, such as Barn_owl for barn owl."""
    spellings = {without_spelling(name): name for name in class_names}
    spelled = [spellings.get(without_spelling(name), name) for name in names]
    is_clear = len(spellings) == len(class_names) and len({*spelled}) == len(names)
    return spelled if is_clear else [*names]


def _found(content: Any, depth: int) -> Iterator[tuple[str, list[str]]]:
    # The attributes of an object of a class that was not loaded (`checkpoint_file.Inert`).
    attributes = getattr(content, "__dict__", {})
    for entries in (content, attributes):
        if not isinstance(entries, Mapping):
            continue
        for key, value in entries.items():
            if not isinstance(key, str):
                continue
            names = _in_order(value) if LIKE_CLASSES.search(key) else []
            if names:
                yield key, names
            elif depth < MAX_DEPTH:
                yield from _found(value, depth + 1)


def _in_order(value: Any) -> list[str]:
    """Return names by their numbers, or an empty list if the numbers are not 0, 1, 2, ..."""
    if isinstance(value, list | tuple):
        names = [*value]
    elif isinstance(value, Mapping):
        pairs = [*value.items()]
        if not all(_is_number(number) for _, number in pairs):
            pairs = [(name, number) for number, name in pairs]
        if not all(_is_number(number) for _, number in pairs):
            return []
        by_number = {int(number): name for name, number in pairs}
        if sorted(by_number) != [*range(len(pairs))]:
            return []
        names = [by_number[number] for number in range(len(pairs))]
    else:
        return []
    texts = [str(name) for name in names if isinstance(name, str | int)]
    return texts if len({*texts}) == len(names) else []


def _is_number(value: Any) -> bool:
    # JSON writes the numbers that are keys as text.
    return isinstance(value, int) or (isinstance(value, str) and value.isdecimal())
