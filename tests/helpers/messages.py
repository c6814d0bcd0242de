"""Messages as tests see them: by code, key and facts, whatever their sentences say.

Tests run with MULTICARD_MESSAGES=codes (tests/conftest.py): what a command prints, and what an
error says, has `[[code key="..." fact=...]]` in place of each sentence.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from multicard.messages import Message, Refusal
from tests.helpers import in_force

BEGIN = re.compile(r"\[\[([a-z0-9][a-z0-9.-]*)")
FACT = re.compile(r"\s+(\w+)=")
END = "]]"
DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True)
class Told:
    """A message that was found in a text."""

    code: str
    key: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.code, self.key))

    def has(self, facts: dict[str, Any]) -> bool:
        """True where it has these facts, perhaps beside others; `key` counts as one."""
        own = {"key": self.key, **self.facts}
        return all(name in own and own[name] == value for name, value in facts.items())


def parsed(text: str, at: int = 0) -> tuple[Told, int]:
    """The message that begins at a place of a text, and the place where it ends."""
    begin = BEGIN.match(text, at)
    assert begin is not None, text[at:]
    facts: dict[str, Any] = {}
    at = begin.end()
    while found := FACT.match(text, at):
        at = found.end()
        if BEGIN.match(text, at):
            facts[found[1]], at = parsed(text, at)
        else:
            facts[found[1]], at = DECODER.raw_decode(text, at)
    at = re.compile(r"\s*").match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
    assert text.startswith(END, at), text[begin.start() :]
    return Told(begin[1], facts.pop("key", None), facts), at + len(END)


def told(text: str | Told) -> list[Told]:
    """All messages of a text, in their order; those within another are its facts."""
    if isinstance(text, Told):
        return [text]
    text = re.sub(r"\s*\n\s*", " ", str(text))  # lines are folded at the terminal's width
    found, at = [], 0
    while begin := BEGIN.search(text, at):
        message, at = parsed(text, begin.start())
        found.append(message)
    return found


def codes(text: str | Told) -> list[str]:
    """The codes of all messages of a text, in their order."""
    return [message.code for message in told(text)]


def within(message: Told) -> Iterator[Told]:
    """A message and all that are facts of it."""
    yield message
    for value in message.facts.values():
        if isinstance(value, Told):
            yield from within(value)


def find(text: str | Told, code: str, **facts: Any) -> Told:
    """The first message of a text with this code and these facts, also within others;
    the test fails without one.
    """
    every = [inner for message in told(text) for inner in within(message)]
    for message in every:
        if message.code == code and message.has(facts):
            return message
    raise AssertionError(f"no {code} {facts} among {every or text}")


def says(text: str | Told, code: str, **facts: Any) -> bool:
    """True where a text has a message with this code and these facts, also within another."""
    every = [inner for message in told(text) for inner in within(message)]
    return any(message.code == code and message.has(facts) for message in every)


@contextmanager
def refused(code: str, **facts: Any) -> Iterator[pytest.ExceptionInfo[Refusal]]:
    """Expect a `Refusal` with this code, and these facts among its own (`key` counts as one)."""
    with pytest.raises(Refusal) as caught:
        yield caught
    message = caught.value.message
    own = {"key": message.key, **message.facts}
    assert message.code == code, f"{message.code}: {message.sentence}"
    assert {name: own.get(name) for name in facts} == facts, message.sentence
    in_force.check(message)


def remedies(error: Refusal | Message) -> list[str]:
    """What the sentence offers to be pasted."""
    return (error.message if isinstance(error, Refusal) else error).remedies
