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
        one = (
            "|".join(map(re.escape, sorted(filter(None, tokens), key=len, reverse=True))) or r"(?!)"
        )
        self.one = re.compile(one)
        self.run = re.compile(rf"(?:{one})+")
        self.at_end = re.compile(rf"((?:{one})+)\s+\Z")
        self._unit = re.compile(rf"{one}|<[^<>]*>|\[[^\[\]]*\]|\w+|\s+|.", re.DOTALL)
        self._first = frozenset[str]()

    def begin(self, text: str) -> None:
        """Remember the special tokens with which a whole text begins."""
        begun = self.run.match(text.lstrip())
        self._first = frozenset(self.one.findall(begun[0]) if begun else ())

    def ending(self, run: str) -> int:
        """Return how many characters of the special tokens after an answer belong to it.

        A token that begins the whole text does not end an answer: after each answer, Command A
        writes the beginning of another one.
        """
        for token in self.one.finditer(run):
            if token.start() and token[0] in self._first:
                return token.start()
        return len(run)

    def beginning_another(self, behind: str) -> str:
        """Return the text with which another message begins, if it has a special token.

        Args:
            behind: the text after an answer.
        """
        run = self.run.search(behind)
        rest = "" if run is None else behind[run.start() + self.ending(run[0]) :]
        return rest if self.one.search(rest) else ""

    def ends(self, text: str) -> bool:
        """Tell whether a text ends with a special token."""
        return any(run.end() == len(text) for run in self.run.finditer(text))

    def shared(self, prompt: str, text: str) -> int:
        """Return the length of the beginning that a prompt and a text share.

        It counts whole tags and words, in characters. If the prompt differs after a tag that opens
        reasoning, this tag belongs to the answer.
        """
        at = 0
        for unit in self._unit.finditer(prompt):
            if not text.startswith(unit[0], at):
                opens = OPENS.search(text[:at])
                return opens.start() if opens else at
            at = unit.end()
        return at

    def within(self, prompt: str, before: str, span: str) -> int:
        """Return how many characters at the beginning of a span still belong to the prompt.

        The prompt may begin in the text before the span, or with the span.
        """
        for begun in range(len(prompt)):
            if before.endswith(prompt[:begun]) and span.startswith(prompt[begun:]):
                return len(prompt) - begun
        return self.shared(prompt, span)
