"""Special tokens of turns, where a row's text has them already or lacks them.

A prompt that was written by the template before is written again, with its tokens doubled. An
answer that no token ends teaches a model not to stop. Both are counted,
by the special tokens of the run's own tokenizer.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2

from multicard.llm.data.special_tokens import SpecialTokens

PLAIN = ({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"})


class TokenNotes(NamedTuple):
    """Rows of which a person should know.

    within: in how many each token of a turn stands in a message's own text. rows: in how many any
    does. unended: rows with an answer that is learnt without a special token that ends it.
    """

    within: Mapping[str, int]
    rows: int
    unended: int


class TurnTokens:
    """Counts, row by row, what `TokenNotes` has.

    Args:
        special: all special tokens of the tokenizer, as texts have them.
        render: the chat template. around: the tokens before and after a text without any.
    """

    def __init__(
        self,
        special: Sequence[str],
        render: Callable[..., str],
        around: Callable[[], Sequence[str]],
    ) -> None:
        self._every = tuple(token for token in special if token)
        self._render = render
        self._around = around
        self._of_turns: SpecialTokens | None = None
        self._within = Counter[str]()
        self._rows = 0
        self._unended = 0
        self._found = set[str]()
        self._is_unended = False

    def begin_row(self) -> None:
        """Forget what a row before had, which may have been broken."""
        self._found = set()
        self._is_unended = False

    def note(
        self,
        messages: Sequence[Mapping[str, Any]],
        pieces: Sequence[Mapping[str, Any]],
        is_whole: bool,
    ) -> None:
        """Look at a conversation, and the pieces that were written of it.

        Args:
            is_whole: every token is learnt, so that pieces are no answers.
        """
        for message in messages:
            self._found |= {*self._turns.one_token.findall(str(message["content"]))}
        learnt = [str(piece["content"]) for piece in pieces if piece["learnt"]]
        self._is_unended |= not is_whole and not all(
            text.rstrip().endswith(self._every) for text in learnt
        )

    def end_row(self) -> None:
        """Count what was found in a row, whose conversations may be several."""
        self._within.update(self._found)
        self._rows += bool(self._found)
        self._unended += self._is_unended

    def notes(self) -> TokenNotes:
        return TokenNotes(dict(self._within), self._rows, self._unended)

    @property
    def _turns(self) -> SpecialTokens:
        """The tokens that the template writes around turns, and those around a text: few, so that
        the search in each message is short.
        """
        if self._of_turns is None:
            written = "".join(self._around())
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
            self._of_turns = SpecialTokens(SpecialTokens(self._every).one_token.findall(written))
        return self._of_turns
