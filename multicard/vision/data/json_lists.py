"""Images and their classes in JSON: a list of objects, as labelling tools export it, an object of
classes by the names of images, or FiftyOne's labels. All as JSON lines, which Arrow reads.
"""

import codecs
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from multicard.messages import Refusal
from multicard.records.separated_text import decoded
from multicard.vision.data.folder_contents import IMAGE_SUFFIXES

LIST = ".json"


def as_lines(path: Path, content: bytes) -> bytes:
    """The rows of a file as lines of an object each; JSON lines as they are.

    Raises:
        Refusal: it holds no such list.
    """
    begin = content.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if path.suffix.lower() != LIST and begin != b"[":
        return content
    try:
        value = json.loads(decoded(content), object_pairs_hook=_without_twice)
    except (json.JSONDecodeError, RecursionError):
        if begin == b"{":
            return content  # JSON lines by another name
        raise _no_list(path) from None
    except KeyError as error:
        raise _no_list(path, f"an object has the key {error.args[0]!r} twice") from None
    if holds_labels(value):
        value = _rows_of_labels(path, value["labels"], value.get("classes"))
    if isinstance(value, dict) and value and all(map(_names_image, value.items())):
        value = [{"path": name, "label": label} for name, label in value.items()]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise _no_list(path)
    return "\n".join(map(json.dumps, value)).encode()


def holds_labels(value: Any) -> bool:
    """True for an object as FiftyOne writes it: labels by the names of images, which may be the
    numbers of classes in a list.
    """
    if not isinstance(value, dict) or not value.keys() <= {"classes", "labels"}:
        return False
    labels = value.get("labels")
    return isinstance(labels, dict) and bool(labels)


def _rows_of_labels(
    path: Path, labels: dict[str, Any], classes: list[str] | None
) -> list[dict[str, Any]]:
    rows = []
    for name, label in labels.items():
        class_name = label
        if classes is not None and isinstance(label, int):
            if label not in range(len(classes)):
                raise _no_list(path, f"the label {label} of {name} is no number of its classes")
            class_name = classes[label]
        rows.append({"path": name, "label": class_name})
    return rows


def is_file_of_labels(path: Path) -> bool:
    """True for a file as FiftyOne writes it."""
    with suppress(OSError, ValueError, RecursionError):
        return holds_labels(json.loads(path.read_bytes()))
    return False


def _names_image(item: tuple[str, Any]) -> bool:
    name, label = item
    return Path(name).suffix.lower() in IMAGE_SUFFIXES and isinstance(label, str | int)


def _without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; KeyError with a key that it has twice, of which one value would be lost."""
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise KeyError(key)
    return dict(pairs)


def _no_list(path: Path, reason: str | None = None) -> Refusal:
    why = reason or "it holds no list of objects"
    return Refusal(
        "photographs.no-list",
        f"dataset.root={path}: cannot be read ({why}); write"
        ' [{"path": "a.jpg", "label": "cat"}, ...]',
        key="dataset.root",
        file=str(path),
        reason=why,
    )
