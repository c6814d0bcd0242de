"""Find the answers in the text that a chat template writes, so that only they count in the loss.

An answer is all that the model has to write, including the token that ends it. In this text, which
Qwen's template writes, the answer is `Hello!<|im_end|>`:

    <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello!<|im_end|>\\n

Chat templates are programs, so answers are located in their output:

- An answer begins where the prompt for it ends: the text of the messages before it, rendered with
  `add_generation_prompt`.
- It ends with the first special tokens after its content. What follows is not learnt, because a
  model never generates it: the line break that Gemma's template adds, or Phi 3's end of text.
- GLM's template writes no end. The model ends an answer with the token that begins the next
  message.
- Reasoning is part of its answer, even if the prompt for an answer without reasoning ends with an
  empty block of it.

Some templates rewrite an answer once other messages follow: without its reasoning (Qwen 3), or with
another end (gpt-oss). For well-known templates, TRL has training forms that mark the answers. With
other templates of this kind, only the last answer is learnt.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jinja2

from multicard.config.llm_texts import ChatLoss
from multicard.llm.data.answer_finder import AnswerFinder
from multicard.llm.data.marked_templates import MARK, Row
from multicard.llm.data.special_tokens import SpecialTokens
from multicard.messages import Refusal


class Span(NamedTuple):
    """The part of a text from character `begin` up to but not including character `end`."""

    begin: int
    end: int


class WrittenConversation(NamedTuple):
    """A conversation as it was written.

    Fields:
        pieces: Pieces of text, as {"content": text, "learnt": whether it counts in the loss}.
        last_alone: True if there are several answers, and only the last one is learnt.
    """

    pieces: list[Row]
    last_alone: bool = False


class Writer:
    """Writes one conversation with a chat template, and locates its answers.

    Args:
        render: Writes messages, with `MARK` around the parts that the template itself marks.
        training: The same for TRL's training form. None if TRL has none for this template.
        special: The tokenizer's special tokens.
    """

    def __init__(
        self,
        render: Callable[..., str],
        training: Callable[..., str] | None,
        special: Sequence[str],
        messages: list[Row],
        tools: Any,
    ) -> None:
        self._training = training
        self._messages = messages
        self._tools = tools
        self._special = SpecialTokens(special)
        self._finder = AnswerFinder(render, self._special, messages, tools)
        self.answers = [
            place for place, message in enumerate(messages) if message["role"] == "assistant"
        ]
        # An answer with OpenAI's weight 0 is not learnt.
        self.learnt_answers = [
            place for place in self.answers if messages[place].get("weight") != 0
        ]

    def write(self, loss: ChatLoss) -> WrittenConversation:
        """Return the conversation in pieces. The answers are learnt, or all of it (`ChatLoss.all`).

        The first of these that works locates the answers:

        1. the template's own marks;
        2. TRL's training form, if the template drops reasoning that is part of the content;
        3. the places of the answers in the text;
        4. TRL's training form, for any other template;
        5. the places of the answers, with lenient prompts;
        6. the place of the last answer, which alone is learnt.

        If the template does not write an answer's content at all, no piece is learnt, and the
        caller refuses the row.

        Raises:
            Refusal: The answers cannot be located.
        """
        whole = self._finder.text_of_first(len(self._messages))
        if loss is ChatLoss.all:
            return WrittenConversation([{"content": whole.replace(MARK, ""), "learnt": True}])
        marked_pieces = self._pieces_by_marks(whole)
        if marked_pieces is not None:
            return WrittenConversation(marked_pieces)
        self._special.note_first_tokens(whole)
        drops_reasoning = any(map(self._finder.drops_reasoning, self.learnt_answers))
        trained = self._pieces_by_training_form() if drops_reasoning else None
        if trained is None and any(map(self._finder.leaves_out_content, self.learnt_answers)):
            return WrittenConversation(_cut_at_spans(whole, []))
        pieces = trained or self._pieces_by_spans(whole) or self._pieces_by_training_form()
        if pieces is None:
            self._finder.is_lenient = True
            pieces = self._pieces_by_spans(whole)
        return self._up_to_last_answer() if pieces is None else WrittenConversation(pieces)

    def _pieces_by_marks(self, whole: str, prompt: str = "") -> list[Row] | None:
        """Cut a text before and after the answers that the template marks; None without marks.

        Args:
            prompt: The text that asks for an answer. It is not learnt, even if the mark of the
                answer's beginning stands before or within it.
        """
        parts = whole.split(MARK)
        if len(parts) == 1:
            return None
        text = ""
        spans = list[Span]()
        learnt = self._learnt_marks(len(parts) // 2)
        for place, part in enumerate(parts):
            is_marked = place % 2 == 1  # A mark is on both sides of an answer.
            if is_marked and learnt[place // 2]:
                # White space after the tokens that end the answer is not learnt.
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

    def _pieces_by_spans(self, whole: str) -> list[Row] | None:
        """Cut the text around its answers; None if one is written differently in the whole."""
        spans = self._answer_spans(whole)
        if spans is None:
            return None
        return _cut_at_spans(*self._close_last_answer(whole, spans))

    def _answer_spans(self, whole: str) -> list[Span] | None:
        """Return the place of each answer in the text.

        Returns None if the template writes an answer differently once other messages follow.
        """
        spans = list[Span]()
        for turn in self.learnt_answers:
            answer = self._finder.find(turn)
            if answer is None:
                return None
            span = Span(len(answer.before), len(answer.before) + len(answer.answer))
            if not whole.startswith(answer.before + answer.answer) or (
                spans and span.begin < spans[-1].end
            ):
                return None
            next_messages = self._messages[turn + 1 : turn + 2]
            # The beginning of another answer ends this one too.
            has_end = answer.has_end or any(
                message["role"] == "assistant" for message in next_messages
            )
            if not has_end and (token := self._special.one_token.match(whole, span.end)):
                span = Span(span.begin, token.end())
            spans.append(span)
        return spans

    def _close_last_answer(self, whole: str, spans: list[Span]) -> tuple[str, list[Span]]:
        """Add the token that ends the last answer to the text and to the answer's span.

        Some templates write this token only together with the next message.
        """
        last = self._messages[-1]
        if (
            not spans
            or spans[-1].end != len(whole)
            or last["role"] != "assistant"
            or self._special.ends_with_token(whole)
        ):
            return whole, spans
        closed = whole + self._finder.next_message_token(last)
        return closed, [*spans[:-1], Span(spans[-1].begin, len(closed))]

    def _pieces_by_training_form(self) -> list[Row] | None:
        """Cut the text that TRL's training form writes, at its marks.

        Returns None if there is no such form, or if it refuses the conversation.
        """
        if self._training is None:
            return None
        form = AnswerFinder(self._training, self._special, self._messages, self._tools)
        try:
            return self._pieces_by_marks(form.text(self._messages), form.answer_header())
        except jinja2.TemplateError:
            return None

    def _up_to_last_answer(self) -> WrittenConversation:
        """Write the conversation up to its last answer, which alone is learnt."""
        turn = self.learnt_answers[-1]
        answer = self._finder.find(turn)
        if answer is None:
            raise Refusal(
                "llm.chat-message-changes",
                f"message {turn + 1} does not continue the prompt that the chat template writes for"
                " it; use `dataset.loss=all`, or a template with {% generation %} around"
                " answers",
                message=turn + 1,
            )
        self._messages = self._messages[: turn + 1]
        text = answer.before + answer.answer
        spans = [Span(len(answer.before), len(text))]
        if not answer.has_end:
            text, spans = self._close_last_answer(text, spans)
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
