"""Count rows whose text has special tokens of turns already, or lacks their end.

If a prompt was written by the template before, it is written again, and its tokens are doubled. So
are the tags around the result of a function, such as `<tool_response>` in Hermes' data. An answer
that no token ends teaches a model not to stop. The special tokens come from the run's tokenizer.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import jinja2

from multicard.llm.data.known_roles import RESULTS
from multicard.llm.data.special_tokens import SpecialTokens

FIRST_TAG = re.compile(r"\s*(<\w[^<>\s]*>)")
PLAIN = ({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"})


class TokenNotes(NamedTuple):
    """Counts of rows that a user should know about.

    Fields:
        within: for each token of a turn, and each tag around a result, the rows with a message
            that contains it.
        rows: the rows with a message that contains any of these tokens.
        unended: the rows with a learnt answer that no special token ends.
    """

    within: Mapping[str, int]
    rows: int
    unended: int


class TurnTokens:
    """Counts `TokenNotes`, row by row.

    Args:
        special: the texts of all special tokens of the tokenizer.
        render: writes messages with the chat template.
        begin_and_end: returns the tokens before and after a text without special tokens.
    """

    def __init__(
        self,
        special: Sequence[str],
        render: Callable[..., str],
        begin_and_end: Callable[[], Sequence[str]],
    ) -> None:
        self._all_tokens = tuple(token for token in special if token)
        self._render = render
        self._begin_and_end = begin_and_end
        self._turn_tokens: SpecialTokens | None = None
        self._rows_by_token = Counter[str]()
        self._rows = 0
        self._unended_rows = 0
        self._tokens_in_row = set[str]()
        self._is_unended = False

    def begin_row(self) -> None:
        """Start a row. Forgets the row before, which may have been broken."""
        self._tokens_in_row = set()
        self._is_unended = False

    def note(
        self,
        messages: Sequence[Mapping[str, Any]],
        pieces: Sequence[Mapping[str, Any]],
        is_whole: bool,
    ) -> None:
        """Note the tokens of a conversation, and of the pieces in which it was written.

        Args:
            is_whole: every token is learnt, so the pieces are not answers.
        """
        for message in messages:
            self._tokens_in_row |= {
                *self._tokens_of_turns.one_token.findall(str(message["content"]))
            }
            if message["role"] in RESULTS:
                self._tokens_in_row |= _doubled_tag(str(message["content"]), pieces)
        # A template may mark an answer and the token that ends it apart.
        learnt = [
            "".join(str(piece["content"]) for piece in following)
            for is_learnt, following in groupby(pieces, key=lambda piece: piece["learnt"])
            if is_learnt
        ]
        self._is_unended |= not is_whole and not all(
            text.rstrip().endswith(self._all_tokens) for text in learnt
        )

    def end_row(self) -> None:
        """Count the tokens of a row, which may hold several conversations."""
        self._rows_by_token.update(self._tokens_in_row)
        self._rows += bool(self._tokens_in_row)
        self._unended_rows += self._is_unended

    def notes(self) -> TokenNotes:
        return TokenNotes(dict(self._rows_by_token), self._rows, self._unended_rows)

    @property
    def _tokens_of_turns(self) -> SpecialTokens:
        """The tokens that the template writes around turns, and around a text.

        They are few, so that the search in each message is quick.
        """
        if self._turn_tokens is None:
            written = "".join(self._begin_and_end())
            for messages in (PLAIN, PLAIN[:1]):
                try:
                    written += self._render(
                        messages=[*messages], tools=None, documents=None, add_generation_prompt=True
                    )
                except (
                    jinja2.TemplateError,
                    TypeError,
                    ArithmeticError,
                    LookupError,
                    AttributeError,
                ):
                    continue
            self._turn_tokens = SpecialTokens(
                SpecialTokens(self._all_tokens).one_token.findall(written)
            )
        return self._turn_tokens


def _doubled_tag(result: str, pieces: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the tag that begins a result, if the template writes it before the result again."""
    tag = FIRST_TAG.match(result)
    if tag is None:
        return set()
    text = "".join(str(piece["content"]) for piece in pieces)
    is_doubled = re.search(rf"{re.escape(tag[1])}\s*{re.escape(result.strip())}", text)
    return {tag[1]} if is_doubled else set()
