"""Find the names of the classes that a training script saved beside its weights."""

from collections.abc import Iterator, Mapping
from typing import Any

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
MAX_DEPTH = 4  # Such keys stand at the top, in hyperparameters, or are attributes of the model.


def names_of(content: Any) -> list[str]:
    """Return the names of the classes in the order of the outputs.

    Return an empty list if the content has none, or several that differ.

    Args:
        content: What was read from a file of weights.
    """
    found = [*_found(content, 0)]
    if not found or any(names != found[0] for names in found):
        return []
    return found[0]


def _found(content: Any, depth: int) -> Iterator[list[str]]:
    # The attributes of an object of a class that was not loaded (`checkpoint_file.Inert`).
    attributes = getattr(content, "__dict__", {})
    for entries in (content, attributes):
        if not isinstance(entries, Mapping):
            continue
        for key, value in entries.items():
            names = _in_order(value) if key in NAMES_OF_CLASSES else []
            if names:
                yield names
            elif depth < MAX_DEPTH and isinstance(key, str):
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
