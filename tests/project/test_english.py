"""The English of what multicard says: sentences are short,
and free of habits that readers stumble over.
"""

import re
from collections.abc import Iterator

import pytest

from multicard.messages import REMEDY
from tests.goldens import messages as golden
from tests.test_remedies import HOLE, with_holes
from tools import prose

SENTENCE_ENDS = re.compile(r"(?<=[.?!])\s+")


def sentences(text: str) -> Iterator[str]:
    """The sentences of one message, with a hole for each remedy and each expression."""
    yield from SENTENCE_ENDS.split(REMEDY.sub(HOLE, with_holes(text)).replace("\n", " "))


def too_long(sentence: str) -> bool:
    return len(sentence.split()) > prose.MAX_SENTENCE_WORDS


def habits(sentence: str) -> list[str]:
    return [advice for _, advice in prose.habits(sentence)]


def test_sentences_are_short():
    found = {
        place.code: each
        for place in golden.places()
        for each in sentences(place.sentence)
        if too_long(each)
    }
    assert found == {}


def test_sentences_have_no_habits():
    found = {}
    for place in golden.places():
        for sentence in sentences(place.sentence):
            if advice := habits(sentence):
                found[place.code] = (sentence, advice)
    assert found == {}


@pytest.mark.parametrize(
    "sentence",
    [
        "not told from gpus=1 on fewer CPU ranks",
        "further blocks would hardly tell the best cells apart",
        "a mark of what is no run",
        "a probe is no result",
        "cells train by turns",
        "Of 3 runs none ended ok",
        "mnist: of 3 runs none has a loss",
    ],
)
def test_a_habit_is_found(sentence: str):
    assert habits(sentence)


def test_what_only_looks_like_a_habit_is_none():
    for sentence in (
        "none of 3 runs ended ok",
        "a copy of runs, which counts once",
        "told the same",
        "Offers",
    ):
        assert habits(sentence) == []


def test_words_are_counted_once_for_each_remedy_and_expression():
    (sentence,) = sentences(
        "{', '.join(a(b) for b in c)}: use `multicard best --price 2.49`, or {words}"
    )
    assert sentence == f"{HOLE}: use {HOLE}, or {HOLE}"
    assert not too_long(" ".join(["word"] * prose.MAX_SENTENCE_WORDS))
    assert too_long(" ".join(["word"] * (prose.MAX_SENTENCE_WORDS + 1)))
