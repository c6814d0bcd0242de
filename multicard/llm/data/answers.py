"""Find the answers in the text that a chat template writes, so that only they bear loss.

An answer is all that the model has to write, up to the token that ends it. Chat templates are
programs, so answers are located in their output. A prompt for an answer ends where the answer
begins. The answer ends with the first special tokens after its content. A model never generates
the line break that Gemma's template adds there, nor Phi 3's end of text. GLM's template writes no
end: the model ends an answer with the token that begins the user's next message.

Some templates rewrite an answer once other messages follow: without its reasoning (Qwen 3), or with
another end (gpt-oss). For well-known templates TRL has training forms that mark the answers. With
other templates of this kind, only the last answer is learnt. Reasoning is part of its answer, even
if the prompt for an answer without reasoning ends with an empty block of it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jinja2

from multicard.config.llm_texts import ChatLoss
from multicard.llm.data.marked_templates import CONTENT, MARK, Row
from multicard.llm.data.special_tokens import SpecialTokens
from multicard.llm.data.written import REASONING
from multicard.messages import Refusal

THOUGHT = "\0thought\0"
THINK_END = "</think>"  # Ends the reasoning within an answer's content.


class Span(NamedTuple):
    """The part of a text from character `begin` up to, but without, character `end`."""

    begin: int
    end: int


class WrittenConversation(NamedTuple):
    """A conversation as it was written.

    Fields:
        pieces: pieces of text, as {"content": text, "learnt": bears loss}.
        last_alone: there are several answers, and only the last one is learnt.
    """

    pieces: list[Row]
    last_alone: bool = False


class FoundAnswer(NamedTuple):
    """An answer in a text, the text `before` it, and whether a token `ends` it."""

    before: str
    answer: str
    ends: bool


class Writer:
    """Writes one conversation with a chat template, and locates its answers.

    Args:
        render: writes messages, with `MARK` around the parts that the template itself marks.
        training: the same for TRL's training form; None if TRL has none for this template.
        special: the tokenizer's special tokens.
    """

    def __init__(
        self,
        render: Callable[..., str],
        training: Callable[..., str] | None,
        special: Sequence[str],
        messages: list[Row],
        tools: Any,
    ) -> None:
        self._render = render
        self._training = training
        self._messages = messages
        self._tools = tools
        self._special = SpecialTokens(special)
        self._lenient = False  # If true, a prompt may end with text that the answer lacks.
        self._first_texts: dict[tuple[int, bool], str] = {}
        self._texts_around: dict[int, list[str]] = {}
        self.answers = [
            place for place, message in enumerate(messages) if message["role"] == "assistant"
        ]
        # An answer with OpenAI's weight 0 is not learnt.
        self.learnt_answers = [
            place for place in self.answers if messages[place].get("weight") != 0
        ]

    def write(self, loss: ChatLoss) -> WrittenConversation:
        """Return the conversation in pieces. The answers bear loss, or all of the text.

        The template's own marks are used first. Without marks, the answers are located in the text.
        TRL's training form is the next choice, and the first one if the template drops reasoning.
        Then the answers are located with lenient prompts. At last only the last answer is learnt.

        Raises:
            Refusal: the answers cannot be located.
        """
        whole = self._text_of_first(len(self._messages))
        if loss is ChatLoss.all:
            return WrittenConversation([{"content": whole.replace(MARK, ""), "learnt": True}])
        marked_pieces = self._pieces_by_marks(whole)
        if marked_pieces is not None:
            return WrittenConversation(marked_pieces)
        self._special.note_first_tokens(whole)
        drops_reasoning = any(map(self._drops_reasoning, self.learnt_answers))
        trained = self._pieces_by_training_form() if drops_reasoning else None
        if trained is None and any(map(self._leaves_out_content, self.learnt_answers)):
            return WrittenConversation(_cut_at_spans(whole, []))
        pieces = trained or self._pieces_by_spans(whole) or self._pieces_by_training_form()
        if pieces is None:
            self._lenient = True
            pieces = self._pieces_by_spans(whole)
        return self._up_to_last_answer() if pieces is None else WrittenConversation(pieces)

    def _text(self, messages: list[Row], prompt: bool = False) -> str:
        return self._render(
            messages=messages, tools=self._tools, documents=None, add_generation_prompt=prompt
        )

    def _text_of_first(self, turns: int, prompt: bool = False) -> str:
        """Return the text of the first `turns` messages. Each text is rendered only once."""
        if (turns, prompt) not in self._first_texts:
            self._first_texts[turns, prompt] = self._text(self._messages[:turns], prompt)
        return self._first_texts[turns, prompt]

    def _pieces_by_marks(self, whole: str, prompt: str = "") -> list[Row] | None:
        """Cut a text before and after the answers that the template marks; None without marks.

        Args:
            prompt: the text before an answer. Where a mark begins within it, it is not learnt.
        """
        parts = whole.split(MARK)
        if len(parts) == 1:
            return None
        text = ""
        spans = list[Span]()
        learnt = self._learnt_marks(len(parts) // 2)
        for place, part in enumerate(parts):
            if place % 2 == 1 and learnt[place // 2]:
                trailing_run = self._special.run_before_spaces.search(part)
                begin = len(text) + self._special.prompt_length_within(prompt, text, part)
                spans.append(
                    Span(begin, len(text) + (trailing_run.end(1) if trailing_run else len(part)))
                )
            text += part
        return _cut_at_spans(text, spans)

    def _learnt_marks(self, mark_count: int) -> list[bool]:
        """Tell for each answer that the template marks whether it is learnt."""
        if self.learnt_answers == self.answers:
            return [True] * mark_count
        if mark_count != len(self.answers):
            raise Refusal(
                "llm.chat-weight",
                "has a message of weight 0, but the chat template marks other parts than the"
                " answers; use a template without {% generation %}, or leave the row out",
            )
        return [place in self.learnt_answers for place in self.answers]

    def _leaves_out_content(self, turn: int) -> bool:
        """Tell whether the template leaves out this answer's content."""
        content = self._messages[turn].get("content")
        try:
            surroundings = self._text_around(turn)
            if surroundings is None or len(surroundings) > 1 or not isinstance(content, str):
                return False
            return content.strip() not in self._text_of_first(turn + 1)
        except jinja2.TemplateError:  # The template only accepts whole conversations.
            return False

    def _drops_reasoning(self, turn: int) -> bool:
        """Tell whether an answer's content holds reasoning that the template never writes.

        DeepSeek's template drops it.
        """
        message = self._messages[turn]
        if THINK_END not in str(message.get("content")):
            return False
        with_thought = message | {"content": f"<think>\n{THOUGHT}\n{THINK_END}\n\n{CONTENT}"}
        try:
            return THOUGHT not in self._text([*self._messages[:turn], with_thought])
        except jinja2.TemplateError:
            return False

    def _text_around(self, turn: int) -> list[str] | None:
        """Return the texts that the template writes before and after an answer's content.

        Returns None for an answer that calls tools.
        """
        message = self._messages[turn]
        if not isinstance(message.get("content"), str) or message.get("tool_calls"):
            return None
        if turn not in self._texts_around:
            text = self._text([*self._messages[:turn], message | {"content": CONTENT}])
            self._texts_around[turn] = text.split(CONTENT)
        return self._texts_around[turn]

    def _pieces_by_spans(self, whole: str) -> list[Row] | None:
        """Cut the text around its answers; None if one is written differently in the whole."""
        spans = self._answer_spans(whole)
        return (
            None if spans is None else _cut_at_spans(self._close_last_answer(whole, spans), spans)
        )

    def _answer_spans(self, whole: str) -> list[Span] | None:
        """Return the place of each answer in the text.

        Returns None if the template writes an answer differently once other messages follow.
        """
        spans = list[Span]()
        for turn in self.learnt_answers:
            answer = self._find_answer(turn)
            if answer is None:
                return None
            span = Span(len(answer.before), len(answer.before) + len(answer.answer))
            if not whole.startswith(answer.before + answer.answer) or (
                spans and span.begin < spans[-1].end
            ):
                return None
            next_messages = self._messages[turn + 1 : turn + 2]
            # The beginning of another answer ends this one too.
            ends = answer.ends or any(message["role"] == "assistant" for message in next_messages)
            if not ends and (token := self._special.one_token.match(whole, span.end)):
                span = Span(span.begin, token.end())
            spans.append(span)
        return spans

    def _find_answer(self, turn: int) -> FoundAnswer | None:
        """Find an answer in the text that ends with it.

        Returns None if the text before it cannot be separated from it.
        """
        try:
            text = self._text_of_first(turn + 1)
            prompt = self._prompt_before(turn, text) if turn else self._prompt_before_first(text)
            surroundings = self._text_around(turn)
        except jinja2.TemplateError:  # The template only accepts whole conversations.
            return None
        if prompt is None:
            return None
        answer = text[len(prompt) :]
        if surroundings is None or len(surroundings) != 2 or not answer.endswith(surroundings[1]):
            text_after = self._text_after(turn)
            answer = answer.removesuffix(self._special.next_message_start(text_after))
            end_run = self._special.run_before_spaces.search(answer)
            if end_run is None:
                return FoundAnswer(
                    prompt, answer, ends=surroundings is not None or bool(text_after.strip())
                )
            return FoundAnswer(
                prompt, answer[: end_run.start() + self._special.end_length(end_run[1])], ends=True
            )
        text_after = surroundings[1]
        content = answer.removesuffix(text_after)
        end_run = self._special.token_run.search(text_after)
        if end_run is not None:
            return FoundAnswer(
                prompt,
                content + text_after[: end_run.start() + self._special.end_length(end_run[0])],
                ends=True,
            )
        return FoundAnswer(
            prompt, content + (text_after.rstrip() or text_after), ends=bool(text_after.strip())
        )

    def _text_after(self, turn: int) -> str:
        """Return the text that the template adds after an answer without calls.

        It is empty if the template refuses such an answer.
        """
        answer = {"role": "assistant", "content": CONTENT}
        try:
            return self._text([*self._messages[:turn], answer]).rpartition(CONTENT)[2]
        except jinja2.TemplateError:
            return ""

    def _prompt_before(self, turn: int, text: str) -> str | None:
        """Return the part of `text` before its last answer; None if it cannot be determined."""
        prompt = self._text_of_first(turn, prompt=True)
        if text.startswith(prompt):
            return prompt
        # The prompt may end with reasoning that this answer lacks: DeepSeek's template begins
        # some, and Qwen 3.5's writes an empty block.
        surroundings = self._text_around(turn)
        if (
            surroundings is not None
            and text.startswith(surroundings[0])
            and not self._has_reasoning(turn)
        ):
            return surroundings[0]
        before = self._text_of_first(turn)
        if not self._lenient or not text.startswith(before) or not prompt.startswith(before):
            return None
        shared = self._special.shared_length(prompt[len(before) :], text[len(before) :])
        return text[: len(before) + shared] if shared else None

    def _prompt_before_first(self, text: str) -> str | None:
        """Return the text before an answer that begins the conversation.

        No template is asked to render an empty list of messages.
        """
        surroundings = self._text_around(0)
        if surroundings is not None and (
            not text.startswith(surroundings[0]) or self._has_reasoning(0)
        ):
            surroundings = None
        before = text if surroundings is None else surroundings[0]
        header = self._answer_header()
        if header and header in before:
            return before[: before.index(header) + len(header)]
        # As in later answers, a space before the content is learnt.
        return None if surroundings is None else before.rstrip(" ")

    def _has_reasoning(self, turn: int) -> bool:
        """Tell whether a key of the answer holds reasoning, outside of its content."""
        return any(self._messages[turn].get(key) for key in REASONING)

    def _close_last_answer(self, whole: str, spans: list[Span]) -> str:
        """Add the token that ends the last answer, and extend the answer's span to include it.

        Some templates write this token only together with the next message.
        """
        last = self._messages[-1]
        if (
            not spans
            or spans[-1].end != len(whole)
            or last["role"] != "assistant"
            or self._special.ends_with_token(whole)
        ):
            return whole
        token = self._next_message_token(last)
        spans[-1] = Span(spans[-1].begin, len(whole) + len(token))
        return whole + token

    def _next_message_token(self, last: Row) -> str:
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
            whole = self._text(messages)
            longer = self._text([*messages, next_message])
        except (jinja2.TemplateError, TypeError):
            return ""
        if not longer.startswith(whole):
            return ""
        token = self._special.one_token.match(longer, len(whole))
        return token[0] if token else ""

    def _pieces_by_training_form(self) -> list[Row] | None:
        """Cut the text that TRL's training form writes, at its marks.

        Returns None if there is no such form, or if it refuses the conversation.
        """
        if self._training is None:
            return None
        original_render, self._render = self._render, self._training
        try:
            return self._pieces_by_marks(self._text(self._messages), self._answer_header())
        except jinja2.TemplateError:
            return None
        finally:
            self._render = original_render

    def _answer_header(self) -> str:
        """Return the text with which the template asks for an answer.

        The first answer's prompt is tried, then the prompt of a single question.
        """
        for messages in (self._messages[: self.answers[0]], [{"role": "user", "content": CONTENT}]):
            try:
                text = self._text(messages) if messages else ""
                prompt = self._text(messages, prompt=True) if messages else ""
            except jinja2.TemplateError:
                continue
            if text and prompt.startswith(text):
                return prompt.removeprefix(text)
        return ""

    def _up_to_last_answer(self) -> WrittenConversation:
        """Write the conversation up to its last answer, which alone is learnt."""
        turn = self.learnt_answers[-1] if self.learnt_answers else -1
        answer = self._find_answer(turn) if self.learnt_answers else None
        if answer is None:
            raise Refusal(
                "llm.chat-message-changes",
                f"message {turn + 1} does not continue the prompt that the chat template writes for"
                " it; use `dataset.loss=all`, or a template with {% generation %} around"
                " answers",
                message=turn + 1,
            )
        self._messages = self._messages[: turn + 1]
        spans = [Span(len(answer.before), len(answer.before) + len(answer.answer))]
        text = (
            self._close_last_answer(answer.before + answer.answer, spans)
            if not answer.ends
            else answer.before + answer.answer
        )
        return WrittenConversation(
            _cut_at_spans(text, spans), last_alone=len(self.learnt_answers) > 1
        )


def _cut_at_spans(text: str, spans: Sequence[Span]) -> list[Row]:
    """Cut a text before and after its spans, which are learnt."""
    pieces = list[Row]()
    cut = 0
    for span in spans:
        pieces.append({"content": text[cut : span.begin], "learnt": False})
        pieces.append({"content": text[span.begin : span.end], "learnt": True})
        cut = span.end
    pieces.append({"content": text[cut:], "learnt": False})
    return [piece for piece in pieces if piece["content"]]
