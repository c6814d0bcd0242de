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
# ARC's object has the choices' texts under one of these keys, and their labels under `label`.
LIST_KEYS = ("text", "texts", "choices")


def refuse_missing_choices(row: RowColumns, prompt: str) -> None:
    """Refuse a row whose choices the prompt does not contain.

    Args:
        prompt: the whole text of the question.
    """
    listed = row.filled_unread(names.CHOICES)
    lettered = [
        name for name in row.filled_unread([*row.lower_names()]) if LETTERED.fullmatch(name)
    ]
    texts_of_column = dict[str, list[str]]()
    for name in listed:
        texts_of_column[name] = [text for _, text in _labelled_choices(row.peek(name))]
    if len(lettered) > 1:
        for name in lettered:
            texts_of_column[name] = [text for _, text in _labelled_choices([row.peek(name)])]
    missing = [
        name
        for name, texts in texts_of_column.items()
        if any(text.strip() not in prompt for text in texts)
    ]
    if not missing:
        return
    shown_names = [row.file_name(name) for name in missing]
    hint = "write them into the question, in each row"
    remedy = None
    if len(missing) == 1 and listed and not row.present(names.CONTEXT):
        remedy = override({"input": shown_names[0]})
        hint = f"put them after it, as `{remedy}`"
    raise Refusal(
        "llm.row-choices",
        f"has choices that its prompt lacks ({', '.join(shown_names)}); {hint}",
        columns=shown_names,
        remedy=remedy,
    )


def as_lines(value: Any) -> Any:
    """Write a list of choices as lines, each after its letter; return other values unchanged."""
    decoded = as_object(value) if isinstance(value, str) else value
    choices = _labelled_choices(decoded) if isinstance(decoded, list | dict) else []
    return "\n".join(f"{label}. {text}" for label, text in choices) if choices else value


def _labelled_choices(value: Any) -> list[tuple[str, str]]:
    """Return choices with their labels; the list is empty for other values."""
    decoded = as_object(value) if isinstance(value, str) else value
    if isinstance(decoded, Mapping):
        texts = next(
            (decoded[key] for key in LIST_KEYS if isinstance(decoded.get(key), list)), None
        )
        if texts is None:
            pairs = [(str(label), text) for label, text in decoded.items()]
        else:
            labels = decoded.get("label", decoded.get("labels"))
            if not isinstance(labels, list) or len(labels) != len(texts):
                labels = [_letter(place) for place in range(len(texts))]
            pairs = [*zip(map(str, labels), texts, strict=True)]
    elif isinstance(decoded, list):
        pairs = list[tuple[str, Any]]()
        for place, choice in enumerate(decoded):
            label = _letter(place)
            text = choice
            if isinstance(choice, Mapping):
                label = str(choice.get("label", choice.get("key", label)))
                text = next(
                    (choice[key] for key in ("text", "value", "content") if key in choice), None
                )
            pairs.append((label, text))
    else:
        pairs = [("", decoded)]
    is_plain = all(isinstance(text, str | int | float) for _, text in pairs)
    return [(label, str(text)) for label, text in pairs] if is_plain else []


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)
