"""Images and their classes in JSON: a list of objects, as labelling tools export it, or an object
of classes by the names of images. Both as JSON lines, which Arrow reads.
"""

import codecs
import json
from collections import Counter
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
    if isinstance(value, dict) and value and all(map(_names_image, value.items())):
        value = [{"path": name, "label": label} for name, label in value.items()]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise _no_list(path)
    return "\n".join(map(json.dumps, value)).encode()


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
