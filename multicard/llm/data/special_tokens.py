"""Where answers begin and end among special tokens, in the text that a chat template writes."""

import re
from collections.abc import Sequence

# A tag that opens reasoning, at the end of a prompt: `<think>`, `[THINK]`, `<|START_THINKING|>`
OPENS = re.compile(r"[<\[](?!/)[^<>\[\]\s]*think[^<>\[\]\s]*[>\]]\s*\Z", re.IGNORECASE)


class SpecialTokens:
    """A tokenizer's special tokens, as they are found in texts.

    Args:
        tokens: as texts have them; empty ones are passed over.
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
        """Learn the special tokens that a whole text begins with."""
        begun = self.run.match(text.lstrip())
        self._first = frozenset(self.one.findall(begun[0]) if begun else ())

    def ending(self, run: str) -> int:
        """How many characters of the special tokens behind an answer end it.

        A token that begins the whole text ends no answer: Command
        A writes the beginning of another behind each.
        """
        for token in self.one.finditer(run):
            if token.start() and token[0] in self._first:
                return token.start()
        return len(run)

    def beginning_another(self, behind: str) -> str:
        """The part of what is behind an answer that begins another, if it has a special token."""
        run = self.run.search(behind)
        rest = "" if run is None else behind[run.start() + self.ending(run[0]) :]
        return rest if self.one.search(rest) else ""

    def ends(self, text: str) -> bool:
        """True of a text that ends with a special token."""
        return any(run.end() == len(text) for run in self.run.finditer(text))

    def shared(self, prompt: str, text: str) -> int:
        """With how many characters of a prompt a text begins, in whole tags and words.

        A tag that opens reasoning belongs to the answer if the prompt goes on otherwise.
        """
        at = 0
        for unit in self._unit.finditer(prompt):
            if not text.startswith(unit[0], at):
                opens = OPENS.search(text[:at])
                return opens.start() if opens else at
            at = unit.end()
        return at

    def within(self, prompt: str, before: str, span: str) -> int:
        """How many characters at the beginning of a span belong to
        the prompt that begins before it, or there.
        """
        for begun in range(len(prompt)):
            if before.endswith(prompt[:begun]) and span.startswith(prompt[begun:]):
                return len(prompt) - begun
        return self.shared(prompt, span)
