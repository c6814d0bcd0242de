"""Find one answer of a conversation in the text that a chat template writes."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple

import jinja2

from multicard.llm.data.marked_templates import CONTENT, Row
from multicard.llm.data.special_tokens import SpecialTokens
from multicard.llm.data.written import REASONING

THOUGHT = "\0thought\0"
THINK_END = "</think>"  # Ends the reasoning within an answer's content.


class FoundAnswer(NamedTuple):
    """An answer in a text.

    Fields:
        before: The text before the answer.
        answer: The answer, with the tokens that end it.
        has_end: False if the template writes nothing after the answer that could end it. A special
            token that begins the next message then ends it.
    """

    before: str
    answer: str
    has_end: bool


class TextAround(NamedTuple):
    """The text before and after an answer's content, if the template writes it exactly once."""

    before: str
    after: str


class AnswerFinder:
    """Renders a conversation with a chat template, and finds its answers in the text.

    Messages are numbered from 0; `turn` is the number of an answer's message.

    Args:
        render: Writes messages.
        special: The tokenizer's special tokens.

    Attributes:
        is_lenient: If true, a prompt may go on differently from the text, such as with empty
            reasoning. Then only the beginning that both share counts as the prompt.
    """

    def __init__(
        self,
        render: Callable[..., str],
        special: SpecialTokens,
        messages: list[Row],
        tools: Any,
    ) -> None:
        self._render = render
        self._special = special
        self._messages = messages
        self._tools = tools
        self.is_lenient = False
        self._first_texts: dict[tuple[int, bool], str] = {}
        self._parts_around: dict[int, list[str]] = {}

    def text(self, messages: list[Row], prompt: bool = False) -> str:
        return self._render(
            messages=messages, tools=self._tools, documents=None, add_generation_prompt=prompt
        )

    def text_of_first(self, turns: int, prompt: bool = False) -> str:
        """Return the text of the first `turns` messages. Each text is rendered only once."""
        if (turns, prompt) not in self._first_texts:
            self._first_texts[turns, prompt] = self.text(self._messages[:turns], prompt)
        return self._first_texts[turns, prompt]

    def find(self, turn: int) -> FoundAnswer | None:
        """Find an answer in the text that ends with it.

        Returns None if the text before it cannot be separated from it.
        """
        try:
            text = self.text_of_first(turn + 1)
            prompt = self._prompt_before(turn, text) if turn else self._prompt_before_first(text)
            around = self._text_around(turn)
        except jinja2.TemplateError:  # The template only accepts whole conversations.
            return None
        if prompt is None:
            return None
        rest = text[len(prompt) :]
        if around is not None and rest.endswith(around.after):
            return self._end_after_content(prompt, rest.removesuffix(around.after), around.after)
        return self._end_at_last_tokens(turn, prompt, rest)

    def _end_after_content(self, prompt: str, content: str, text_after: str) -> FoundAnswer:
        """End an answer with the first special tokens after its content.

        Without such tokens, all text that the template adds belongs to the answer.
        """
        end_run = self._special.token_run.search(text_after)
        if end_run is None:
            end = text_after.rstrip() or text_after
            return FoundAnswer(prompt, content + end, has_end=bool(text_after.strip()))
        end = text_after[: end_run.start() + self._special.end_length(end_run[0])]
        return FoundAnswer(prompt, content + end, has_end=True)

    def _end_at_last_tokens(self, turn: int, prompt: str, rest: str) -> FoundAnswer:
        """End an answer with the last special tokens of the text.

        This is for answers whose content is not found in the text: calls of tools, and content that
        the template rewrites.
        """
        text_after = self._text_after(turn)
        rest = rest.removesuffix(self._special.next_message_start(text_after))
        end_run = self._special.run_before_spaces.search(rest)
        if end_run is not None:
            end = end_run.start() + self._special.end_length(end_run[1])
            return FoundAnswer(prompt, rest[:end], has_end=True)
        calls_tools = self._split_at_content(turn) is None
        return FoundAnswer(prompt, rest, has_end=not calls_tools or bool(text_after.strip()))

    def _text_after(self, turn: int) -> str:
        """Return the text that the template adds after an answer without calls.

        It is empty if the template refuses such an answer.
        """
        answer = {"role": "assistant", "content": CONTENT}
        try:
            return self.text([*self._messages[:turn], answer]).rpartition(CONTENT)[2]
        except jinja2.TemplateError:
            return ""

    def _prompt_before(self, turn: int, text: str) -> str | None:
        """Return the part of `text` before its last answer; None if it cannot be determined."""
        prompt = self.text_of_first(turn, prompt=True)
        if text.startswith(prompt):
            return prompt
        # The prompt may end with reasoning that this answer lacks: DeepSeek's template begins
        # some, and Qwen 3.5's writes an empty block.
        before_content = self._text_before_content(turn)
        if (
            before_content is not None
            and text.startswith(before_content)
            and not self._has_reasoning(turn)
        ):
            return before_content
        messages_before = self.text_of_first(turn)
        if (
            not self.is_lenient
            or not text.startswith(messages_before)
            or not prompt.startswith(messages_before)
        ):
            return None
        begin = len(messages_before)
        shared = self._special.shared_length(prompt[begin:], text[begin:])
        return text[: begin + shared] if shared else None

    def _prompt_before_first(self, text: str) -> str | None:
        """Return the text before an answer that begins the conversation.

        The prompt for it cannot be rendered, because templates need at least one message.
        """
        before_content = self._text_before_content(0)
        if before_content is not None and (
            not text.startswith(before_content) or self._has_reasoning(0)
        ):
            before_content = None
        before = text if before_content is None else before_content
        header = self.answer_header()
        if header and header in before:
            return before[: before.index(header) + len(header)]
        # A space before the content belongs to the answer, as in later answers.
        return None if before_content is None else before_content.rstrip(" ")

    def _has_reasoning(self, turn: int) -> bool:
        """Tell whether a key of the answer holds reasoning, outside of its content."""
        return any(self._messages[turn].get(key) for key in REASONING)

    def _split_at_content(self, turn: int) -> list[str] | None:
        """Cut the text up to an answer wherever the template writes the answer's content.

        Returns None for an answer that calls tools.
        """
        message = self._messages[turn]
        if not isinstance(message.get("content"), str) or message.get("tool_calls"):
            return None
        if turn not in self._parts_around:
            text = self.text([*self._messages[:turn], message | {"content": CONTENT}])
            self._parts_around[turn] = text.split(CONTENT)
        return self._parts_around[turn]

    def _content_count(self, turn: int) -> int | None:
        """Return how often the template writes an answer's content; None if it calls tools."""
        parts = self._split_at_content(turn)
        return None if parts is None else len(parts) - 1

    def _text_before_content(self, turn: int) -> str | None:
        """Return the text before an answer's content; None if the answer calls tools."""
        parts = self._split_at_content(turn)
        return None if parts is None else parts[0]

    def _text_around(self, turn: int) -> TextAround | None:
        """Return the text before and after an answer's content.

        Returns None if the answer calls tools, or if its content is not written exactly once.
        """
        parts = self._split_at_content(turn)
        return None if parts is None or len(parts) != 2 else TextAround(*parts)

    def leaves_out_content(self, turn: int) -> bool:
        """Tell whether the template leaves out this answer's content."""
        content = self._messages[turn].get("content")
        try:
            if self._content_count(turn) != 0 or not isinstance(content, str):
                return False
            return content.strip() not in self.text_of_first(turn + 1)
        except jinja2.TemplateError:  # The template only accepts whole conversations.
            return False

    def drops_reasoning(self, turn: int) -> bool:
        """Tell whether an answer's content holds reasoning that the template never writes.

        DeepSeek's template drops it.
        """
        message = self._messages[turn]
        if THINK_END not in str(message.get("content")):
            return False
        with_thought = message | {"content": f"<think>\n{THOUGHT}\n{THINK_END}\n\n{CONTENT}"}
        try:
            return THOUGHT not in self.text([*self._messages[:turn], with_thought])
        except jinja2.TemplateError:
            return False

    def next_message_token(self, last: Row) -> str:
        """Return the special token that begins the message after an answer, or an empty text.

        The next message is the result of a call, or else the user's. The answer is rendered
        without reasoning, which some templates drop once other messages follow.
        """
        answer: Row = {"role": "assistant", "content": CONTENT}
        next_message: Row = {"role": "user", "content": CONTENT}
        if calls := last.get("tool_calls"):
            answer |= {
                "content": str(last.get("content") or "").rpartition(THINK_END)[2],
                "tool_calls": calls,
            }
            next_message["role"] = "tool"
            if isinstance(calls, list):
                next_message |= {
                    "name": calls[-1]["function"]["name"],
                    "tool_call_id": calls[-1].get("id"),
                }
        messages = [{"role": "user", "content": CONTENT}, answer]
        try:
            whole = self.text(messages)
            longer = self.text([*messages, next_message])
        except (jinja2.TemplateError, TypeError):
            return ""
        if not longer.startswith(whole):
            return ""
        token = self._special.one_token.match(longer, len(whole))
        return token[0] if token else ""

    def answer_header(self) -> str:
        """Return the text with which the template asks for an answer.

        The first answer's prompt is tried, then the prompt of a single question.
        """
        before_first_answer = list(
            takewhile(lambda message: message["role"] != "assistant", self._messages)
        )
        for messages in (before_first_answer, [{"role": "user", "content": CONTENT}]):
            try:
                text = self.text(messages) if messages else ""
                prompt = self.text(messages, prompt=True) if messages else ""
            except jinja2.TemplateError:
                continue
            if text and prompt.startswith(text):
                return prompt.removeprefix(text)
        return ""
