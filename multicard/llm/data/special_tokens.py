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
        """Return how many characters of a run of special tokens belong to the answer before it.

        A token with which the whole text begins does not end an answer. Command A's template writes
        `<|END|><|START|>` after each answer, where `<|START|>` also begins the text: from there on,
        the run belongs to the next message.
        """
        for token in self.one_token.finditer(run):
            if token.start() and token[0] in self._first_tokens:
                return token.start()
        return len(run)

    def next_message_start(self, text_after: str) -> str:
        """Return what follows the tokens that end an answer, if it begins another message.

        It does so if it has a special token. Otherwise, the result is empty.

        Args:
            text_after: The text after an answer's content.
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
        """Return the length of the beginning that a prompt and a text share, in characters.

        Only whole tags and words count. If the two part right after a tag that opens reasoning,
        this tag belongs to the answer. With the prompt `<bot><think></think>` and the text
        `<bot><think>Because`, the length is that of `<bot>`.
        """
        length = 0
        for unit in self._unit.finditer(prompt):
            if not text.startswith(unit[0], length):
                opens = OPENS.search(text[:length])
                return opens.start() if opens else length
            length = unit.end()
        return length

    def prompt_length_within(self, prompt: str, before: str, span: str) -> int:
        """Return how many characters at the beginning of a marked span belong to the prompt.

        The mark may stand within the prompt: then `before` ends with the prompt's first part, and
        the span begins with the rest. With the prompt `<bot><think>`, the text `<user>Hi<bot>`
        before the mark and the span `<think>Because`, `<think>` belongs to the prompt. If the
        prompt is not found in this way, the beginning that it shares with the span counts.
        """
        for cut in range(len(prompt)):
            if before.endswith(prompt[:cut]) and span.startswith(prompt[cut:]):
                return len(prompt) - cut
        return self.shared_length(prompt, span)
