"""Guess which of a row's columns have the meanings that its reader needs, by their names."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from multicard.llm.data import json_texts
from multicard.llm.data.columns import (
    ANSWER,
    CHOICES,
    MEDIA,
    READ,
    SYSTEM,
    is_filled,
    override,
)

# For each of our names, words with which a column's name may begin. Short words must match whole.
SIGNS = {
    "instruction": (
        "quest",
        "instr",
        "prompt",
        "query",
        "ask",
        "problem",
        "input",
        "user",
        "human",
        "source",
        "src",
    ),
    "output": (
        "answer",
        "respon",
        "output",
        "complet",
        "solution",
        "reply",
        "target",
        "tgt",
        "assistant",
        "gpt",
        "bot",
    ),
    "chosen": (
        "chosen",
        "prefer",
        "accept",
        "better",
        "good",
        "win",
        "winner",
        "winning",
        "pos",
        "positive",
    ),
    "rejected": ("reject", "worse", "bad", "lose", "loser", "losing", "neg", "negative"),
}
SIGNS |= {
    "prompt": SIGNS["instruction"],
    "input": SIGNS["instruction"],
    "dialogue": ("dialog", "text", "article"),
}
SIGNS |= {"summary": ("summ", "highlight", "tldr", *SIGNS["output"])}
# In a row without a target, `source` says where the row comes from.
SOURCES = ("source", "src")
TARGETS = ("target", "tgt")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
SHORT_LETTERS = 4  # Fewer letters must match a whole word: "ask" does not stand for "tasks".
# Words in the names of columns that describe the row: prompt_id, answerHash, source_url.
ABOUT_ROWS = {
    "id",
    "ids",
    "uuid",
    "guid",
    "hash",
    "md5",
    "sha",
    "url",
    "uri",
    "link",
    "index",
    "idx",
    "number",
}
ABOUT_ROWS |= {
    "score",
    "scores",
    "rating",
    "type",
    "kind",
    "category",
    "name",
    "model",
    "length",
    "tokens",
    "lang",
}
ABOUT_ROWS |= {
    "language",
    "date",
    "time",
    "timestamp",
    "label",
    "labels",
    "tag",
    "tags",
    "split",
    "version",
}


# Words in the names of columns that hold a question's context: neither question nor answer.
CONTEXT_WORDS = ("context", "passage", "paragraph", "document", "background", "evidence")
SYSTEM_WORDS = ("system", "sys")  # As in system_text or sysPrompt.


def guessed_override(
    row: Mapping[str, Any],
    wanted: Sequence[str],
    with_input: bool = False,
    with_system: bool = False,
) -> str | None:
    """Guess which of a row's columns have the wanted meanings, and return the override for it.

    Only columns of text are guessed, except those that describe the row. A column whose name
    tells nothing is guessed only if it is the last text for the last wanted name. A context is not
    taken for an answer, nor is the system's text. No answer is guessed if another column is named
    like one and holds no text. Returns None if the names do not decide it.

    Args:
        row: the values by column.
        wanted: our names of the columns to find.
        with_input: also name a question's only context, or its choices, as `input`, which the row
            lacks.
        with_system: also name the only column of the system's text, if its name is not read.
    """
    candidates = [
        name
        for name, value in row.items()
        if isinstance(value, str) and value and not _describes_row(name)
    ]
    if not any(any(_has_sign(name, sign) for sign in TARGETS) for name in candidates):
        candidates = [
            name for name in candidates if not any(_has_sign(name, sign) for sign in SOURCES)
        ]
    systems = [name for name in candidates if _names_with_sign([name], SYSTEM_WORDS)]
    candidates = [name for name in candidates if name not in systems]
    guesses = dict[str, str]()
    for our_name in wanted:
        similar = _names_with_sign(candidates, SIGNS[our_name])
        if len(similar) > 1:
            return None
        for file_name in similar:
            candidates.remove(file_name)
            guesses[our_name] = file_name
    contexts = [name for name in candidates if any(_has_sign(name, sign) for sign in CONTEXT_WORDS)]
    missing = [our_name for our_name in wanted if our_name not in guesses]
    if len(missing) == len(candidates) == 1 and missing[0] not in ("chosen", "rejected"):
        is_answer = missing[0] in ("output", "summary")
        textless = [
            name for name, value in row.items() if is_filled(value) and not isinstance(value, str)
        ]
        if is_answer and (contexts or _names_with_sign(textless, SIGNS[missing[0]])):
            return None
        guesses[missing[0]] = candidates[0]
    renamed = {
        our_name: guesses[our_name]
        for our_name in wanted
        if our_name in guesses and our_name != guesses[our_name]
    }
    if not renamed or len(guesses) < len(wanted):
        return None
    if with_system and len(systems) == 1 and systems[0].lower().strip() not in SYSTEM:
        renamed["system"] = systems[0]
    if with_input and len(contexts) == 1 and contexts[0] not in guesses.values():
        renamed["input"] = contexts[0]
    choices = [name for name in row if name.lower().strip() in CHOICES and is_filled(row[name])]
    if with_input and "input" not in renamed and len(choices) == 1:
        renamed["input"] = choices[0]
    return override(renamed)


def guessed_text(row: Mapping[str, Any]) -> str | None:
    """Return the override that names a row's only text as `text`, which is learnt whole.

    Returns None if the row has several texts, or a column of another meaning: lists, or objects
    other than metadata. A question or an answer is not such a text, except a completion of no
    prompt.
    """
    others = [name for name, value in row.items() if is_filled(value) and not _describes_row(name)]
    texts = [name for name in others if isinstance(row[name], str)]
    if len(texts) != 1 or {name.lower().strip() for name in others} & ({*READ} - {*ANSWER}):
        return None
    (text,) = texts
    if text.lower().strip() in MEDIA:  # It holds a file's path.
        return None
    lists = [name for name in others if isinstance(row[name], list | dict)]
    signs = (*SIGNS["instruction"], *SIGNS["output"])
    is_part = text != "completion" and any(_has_sign(text, sign) for sign in signs)
    if is_part or not all(_has_sign(name, "meta") for name in lists):
        return None
    return override({"text": text})


def guessed_messages(row: Mapping[str, Any]) -> str | None:
    """Return the override that names a row's only column of messages; None without such a column.

    The values are those of a row in which no column with a usual name holds messages.
    """
    found = [
        name
        for name, value in row.items()
        if name.lower().strip() not in READ  # Such as a history.
        and not _describes_row(name)
        and json_texts.are_messages(value)
    ]
    return override({"messages": found[0]}) if len(found) == 1 else None


def has_meaning(name: str) -> bool:
    """Tell whether a column's name says what it holds, in English."""
    signs = chain(CONTEXT_WORDS, *SIGNS.values())
    return _describes_row(name) or any(_has_sign(name, sign) for sign in signs)


def _describes_row(name: str) -> bool:
    return not ABOUT_ROWS.isdisjoint(word.lower() for word in WORD.findall(name))


def _names_with_sign(names: Sequence[str], signs: Sequence[str]) -> list[str]:
    """Return the names with the first sign that any of them has."""
    for sign in signs:
        if sign in names:
            return [sign]
        matching_names = [name for name in names if _has_sign(name, sign)]
        if matching_names:
            return matching_names
    return []


def _has_sign(name: str, sign: str) -> bool:
    words = [word.lower() for word in WORD.findall(name)]
    return any(
        word == sign or (len(sign) >= SHORT_LETTERS and word.startswith(sign)) for word in words
    )
