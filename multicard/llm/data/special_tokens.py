"""Special tokens in the text that a chat template writes: they show where answers begin and end."""

import re
from collections.abc import Sequence

# A tag that begins reasoning, at the end of a prompt: `<think>`, `[THINK]`, `<|START_THINKING|>`
OPENS = re.compile(r"[<\[](?!/)[^<>\[\]\s]*think[^<>\[\]\s]*[>\]]\s*\Z", re.IGNORECASE)


class SpecialTokens:
    """Finds a tokenizer's special tokens in texts.

    Args:
        tokens: their texts; empty ones are skipped.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        one_token = (
            "|".join(map(re.escape, sorted(filter(None, tokens), key=len, reverse=True))) or r"(?!)"
        )
        self.one_token = re.compile(one_token)
        self.token_run = re.compile(rf"(?:{one_token})+")
        self.run_before_spaces = re.compile(rf"((?:{one_token})+)\s+\Z")
        self._unit = re.compile(rf"{one_token}|<[^<>]*>|\[[^\[\]]*\]|\w+|\s+|.", re.DOTALL)
        self._first_tokens = frozenset[str]()

    def note_first_tokens(self, text: str) -> None:
        """Remember the special tokens with which a whole text begins."""
        first_run = self.token_run.match(text.lstrip())
        self._first_tokens = frozenset(self.one_token.findall(first_run[0]) if first_run else ())

    def end_length(self, run: str) -> int:
        """Return how many characters of the special tokens after an answer belong to it.

        A token that begins the whole text does not end an answer: after each answer, Command A
        writes the beginning of another one.
        """
        for token in self.one_token.finditer(run):
            if token.start() and token[0] in self._first_tokens:
                return token.start()
        return len(run)

    def next_message_start(self, text_after: str) -> str:
        """Return the text with which another message begins, if it has a special token.

        Args:
            text_after: the text after an answer.
        """
        first_run = self.token_run.search(text_after)
        rest = (
            ""
            if first_run is None
            else text_after[first_run.start() + self.end_length(first_run[0]) :]
        )
        return rest if self.one_token.search(rest) else ""

    def ends_with_token(self, text: str) -> bool:
        """Tell whether a text ends with a special token."""
        return any(run.end() == len(text) for run in self.token_run.finditer(text))

    def shared_length(self, prompt: str, text: str) -> int:
        """Return the length of the beginning that a prompt and a text share.

        It counts whole tags and words, in characters. If the prompt differs after a tag that opens
        reasoning, this tag belongs to the answer.
        """
        length = 0
        for unit in self._unit.finditer(prompt):
            if not text.startswith(unit[0], length):
                opens = OPENS.search(text[:length])
                return opens.start() if opens else length
            length = unit.end()
        return length

    def prompt_length_within(self, prompt: str, before: str, span: str) -> int:
        """Return how many characters at the beginning of a span still belong to the prompt.

        The prompt may begin in the text before the span, or with the span.
        """
        for begin in range(len(prompt)):
            if before.endswith(prompt[:begin]) and span.startswith(prompt[begin:]):
                return len(prompt) - begin
        return self.shared_length(prompt, span)
