"""Multiple-choice questions whose choices have columns of their own.

Without its choices, such a question cannot be answered.
"""

import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from multicard.llm.data import columns as names
from multicard.llm.data.columns import RowColumns, override
from multicard.llm.data.json_texts import as_object
from multicard.messages import Refusal

# Columns that each hold one choice: A, option_b, choice1, opa, ending0.
LETTERED = re.compile(r"([a-e]|(options?|choices?|op|endings?|sol|distractor)[ _-]?([a-e]|\d))")
OF_LIST = ("text", "texts", "choices")  # ARC's object has one of them beside each choice's `label`.


def refuse_unasked(row: RowColumns, prompt: str) -> None:
    """Refuse a row whose choices the prompt does not contain.

    Args:
        prompt: the whole text of the question.
    """
    listed = row.filled_unread(names.CHOICES)
    lettered = [
        name for name in row.filled_unread([*row.lower_names()]) if LETTERED.fullmatch(name)
    ]
    found = dict[str, list[str]]()
    for name in listed:
        found[name] = [text for _, text in _labelled(row.peek(name))]
    if len(lettered) > 1:
        for name in lettered:
            found[name] = [text for _, text in _labelled([row.peek(name)])]
    lacking = [
        name for name, texts in found.items() if any(text.strip() not in prompt for text in texts)
    ]
    if not lacking:
        return
    shown = [row.file_name(name) for name in lacking]
    hint = "write them into the question, in each row"
    remedy = None
    if len(lacking) == 1 and listed and not row.present(names.CONTEXT):
        remedy = override({"input": shown[0]})
        hint = f"put them behind it, as `{remedy}`"
    raise Refusal(
        "llm.row-choices",
        f"has choices that its prompt lacks ({', '.join(shown)}); {hint}",
        columns=shown,
        remedy=remedy,
    )


def as_lines(value: Any) -> Any:
    """Write a list of choices as lines, each after its letter; return other values unchanged."""
    found = as_object(value) if isinstance(value, str) else value
    choices = _labelled(found) if isinstance(found, list | dict) else []
    return "\n".join(f"{label}. {text}" for label, text in choices) if choices else value


def _labelled(value: Any) -> list[tuple[str, str]]:
    """Return choices with their labels; the list is empty for other values."""
    found = as_object(value) if isinstance(value, str) else value
    if isinstance(found, Mapping):
        texts = next((found[key] for key in OF_LIST if isinstance(found.get(key), list)), None)
        if texts is None:
            pairs = [(str(label), text) for label, text in found.items()]
        else:
            labels = found.get("label", found.get("labels"))
            if not isinstance(labels, list) or len(labels) != len(texts):
                labels = [_letter(place) for place in range(len(texts))]
            pairs = [*zip(map(str, labels), texts, strict=True)]
    elif isinstance(found, list):
        pairs = list[tuple[str, Any]]()
        for place, each in enumerate(found):
            label = _letter(place)
            text = each
            if isinstance(each, Mapping):
                label = str(each.get("label", each.get("key", label)))
                text = next(
                    (each[key] for key in ("text", "value", "content") if key in each), None
                )
            pairs.append((label, text))
    else:
        pairs = [("", found)]
    is_plain = all(isinstance(text, str | int | float) for _, text in pairs)
    return [(label, str(text)) for label, text in pairs] if is_plain else []


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)
