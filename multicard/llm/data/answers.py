"""Which part of a conversation's text its answers are: what the model is to write,
to the token that ends it.

Chat templates are programs, so that answers are found in what they write. A prompt for an answer
ends where the answer begins. It ends with the first special tokens behind its content: neither the
line break that Gemma's template adds, nor Phi 3's end of text, is ever generated. GLM's template
writes no such token, as the model ends an answer with the token that begins the user's next
message.

Some templates write an answer differently once others follow, without its thoughts (Qwen 3) or with
another end (gpt-oss). TRL has forms of the known ones for training, which mark the answers. Of
others the last answer is learnt. Reasoning is part of its answer, also if the prompt for an answer
without any ends with empty reasoning.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from multicard.config.llm_texts import ChatLoss
from multicard.llm.data.special_tokens import SpecialTokens
from multicard.llm.data.written import REASONING
from multicard.messages import Refusal

Row = dict[str, Any]

# `{% generation %}`, by which a template says what the model
# writes: a filter that puts MARK before and after it
GENERATION = re.compile(r"({%[-+]?\s*)(end)?generation\b")
MARK = "\0generation\0"
CONTENT = "\0content\0"  # in the place of a message's own, to see what the template puts around it
THOUGHT = "\0thought\0"
CLOSES = "</think>"  # behind the reasoning that an answer's content holds


class Span(NamedTuple):
    """A part of a text that is to be learnt, from the character `begin` to before `end`."""

    begin: int
    end: int


class Written(NamedTuple):
    """A conversation as pieces of text, `content`, those `learnt` with loss; `last_alone`: of
    several answers, only the last.
    """

    pieces: list[Row]
    last_alone: bool = False


class FoundAnswer(NamedTuple):
    """An answer within a text: what stands before it, and itself to the token that ends it."""

    before: str
    answer: str
    ends: bool


class Writer:
    """A conversation, the template that writes it, and what is special in its text.

    Args:
        render: writes messages, with `MARK` around what the template itself marks.
        training: the same of TRL's form for training; None where it has none of this template.
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
        self._lenient = False  # a prompt that an answer continues in part is its prompt too
        self._begun: dict[tuple[int, bool], str] = {}
        self._parts: dict[int, list[str]] = {}
        self.answers = [
            place for place, message in enumerate(messages) if message["role"] == "assistant"
        ]
        # OpenAI's: an answer of weight 0 is not to be learnt
        self.turns = [place for place in self.answers if messages[place].get("weight") != 0]

    def written(self, loss: ChatLoss) -> Written:
        """The conversation in pieces: the answers with loss, or all of it.
        Refuses (ValueError) what cannot be told.
        """
        whole = self._upto(len(self._messages))
        if loss is ChatLoss.all:
            return Written([{"content": whole.replace(MARK, ""), "learnt": True}])
        by_marks = self._of_marks(whole)
        if by_marks is not None:
            return Written(by_marks)
        self._special.begin(whole)
        drops_thoughts = any(map(self._drops_thoughts, self.turns))
        trained = self._for_training() if drops_thoughts else None
        if trained is None and any(map(self._leaves_out, self.turns)):
            return Written(_pieces(whole, []))
        pieces = trained or self._of_spans(whole) or self._for_training()
        if pieces is None:
            self._lenient = True
            pieces = self._of_spans(whole)
        return self._last() if pieces is None else Written(pieces)

    def _text(self, messages: list[Row], prompt: bool = False) -> str:
        return self._render(
            messages=messages, tools=self._tools, documents=None, add_generation_prompt=prompt
        )

    def _upto(self, turns: int, prompt: bool = False) -> str:
        """The text of the first turns, which is written once."""
        if (turns, prompt) not in self._begun:
            self._begun[turns, prompt] = self._text(self._messages[:turns], prompt)
        return self._begun[turns, prompt]

    def _of_marks(self, whole: str, prompt: str = "") -> list[Row] | None:
        """The pieces of a text whose answers the template marks; None where it marks none.

        Args:
            prompt: what stands before an answer, which is not learnt where a mark begins within it.
        """
        parts = whole.split(MARK)
        if len(parts) == 1:
            return None
        text = ""
        spans = list[Span]()
        learnt = self._weighed(len(parts) // 2)
        for place, part in enumerate(parts):
            if place % 2 == 1 and learnt[place // 2]:
                end = self._special.at_end.search(part)
                begin = len(text) + self._special.within(prompt, text, part)
                spans.append(Span(begin, len(text) + (end.end(1) if end else len(part))))
            text += part
        return _pieces(text, spans)

    def _weighed(self, marked: int) -> list[bool]:
        """Whether each of the answers that a template marks is to be learnt."""
        if self.turns == self.answers:
            return [True] * marked
        if marked != len(self.answers):
            raise Refusal(
                "llm.chat-weight",
                "has a message of weight 0, but the chat template marks other parts than the"
                " answers; use a template without {% generation %}, or leave the row out",
            )
        return [place in self.turns for place in self.answers]

    def _leaves_out(self, turn: int) -> bool:
        """True of an answer that the template does not write."""
        content = self._messages[turn].get("content")
        try:
            around = self._around(turn)
            if around is None or len(around) > 1 or not isinstance(content, str):
                return False
            return content.strip() not in self._upto(turn + 1)
        except jinja2.TemplateError:  # it takes the whole alone
            return False

    def _drops_thoughts(self, turn: int) -> bool:
        """True of an answer whose content holds reasoning that the template never writes,
        as DeepSeek's drops it.
        """
        message = self._messages[turn]
        if CLOSES not in str(message.get("content")):
            return False
        thoughtful = message | {"content": f"<think>\n{THOUGHT}\n{CLOSES}\n\n{CONTENT}"}
        try:
            return THOUGHT not in self._text([*self._messages[:turn], thoughtful])
        except jinja2.TemplateError:
            return False

    def _around(self, turn: int) -> list[str] | None:
        """What the template writes before and after an answer's content;
        None of an answer that calls tools.
        """
        message = self._messages[turn]
        if not isinstance(message.get("content"), str) or message.get("tool_calls"):
            return None
        if turn not in self._parts:
            text = self._text([*self._messages[:turn], message | {"content": CONTENT}])
            self._parts[turn] = text.split(CONTENT)
        return self._parts[turn]

    def _of_spans(self, whole: str) -> list[Row] | None:
        """The pieces of a text in which each answer is found;
        None where one is written differently in the whole.
        """
        spans = self._each(whole)
        return None if spans is None else _pieces(self._closed(whole, spans), spans)

    def _each(self, whole: str) -> list[Span] | None:
        """Where each answer is in a text; None where one is written
        differently there than before others follow.
        """
        spans = list[Span]()
        for turn in self.turns:
            found = self._find(turn)
            if found is None:
                return None
            place = Span(len(found.before), len(found.before) + len(found.answer))
            if not whole.startswith(found.before + found.answer) or (
                spans and place.begin < spans[-1].end
            ):
                return None
            following = self._messages[turn + 1 : turn + 2]
            # by another answer's beginning
            ends = found.ends or any(each["role"] == "assistant" for each in following)
            if not ends and (token := self._special.one.match(whole, place.end)):
                place = Span(place.begin, token.end())
            spans.append(place)
        return spans

    def _find(self, turn: int) -> FoundAnswer | None:
        """An answer, in the text that ends with it;
        None where it cannot be told from what stands before.
        """
        try:
            text = self._upto(turn + 1)
            prompt = self._prompt(turn, text) if turn else self._greeted(text)
            around = self._around(turn)
        except jinja2.TemplateError:  # it takes the whole alone
            return None
        if prompt is None:
            return None
        answer = text[len(prompt) :]
        if around is None or len(around) != 2 or not answer.endswith(around[1]):
            behind = self._behind(turn)
            answer = answer.removesuffix(self._special.beginning_another(behind))
            end = self._special.at_end.search(answer)
            if end is None:
                return FoundAnswer(prompt, answer, ends=around is not None or bool(behind.strip()))
            return FoundAnswer(
                prompt, answer[: end.start() + self._special.ending(end[1])], ends=True
            )
        behind = around[1]
        content = answer.removesuffix(behind)
        end = self._special.run.search(behind)
        if end is not None:
            return FoundAnswer(
                prompt, content + behind[: end.start() + self._special.ending(end[0])], ends=True
            )
        return FoundAnswer(prompt, content + (behind.rstrip() or behind), ends=bool(behind.strip()))

    def _behind(self, turn: int) -> str:
        """What the template itself writes behind an answer without calls;
        nothing where it refuses one.
        """
        plain = {"role": "assistant", "content": CONTENT}
        try:
            return self._text([*self._messages[:turn], plain]).rpartition(CONTENT)[2]
        except jinja2.TemplateError:
            return ""

    def _prompt(self, turn: int, text: str) -> str | None:
        """What stands before an answer, in the text that ends with it;
        None where that cannot be told.
        """
        prompt = self._upto(turn, prompt=True)
        if text.startswith(prompt):
            return prompt
        # It may end with what this answer does not have: DeepSeek's begins thoughts,
        # Qwen 3.5's has empty ones
        around = self._around(turn)
        if around is not None and text.startswith(around[0]) and not self._thinks(turn):
            return around[0]
        before = self._upto(turn)
        if not self._lenient or not text.startswith(before) or not prompt.startswith(before):
            return None
        shared = self._special.shared(prompt[len(before) :], text[len(before) :])
        return text[: len(before) + shared] if shared else None

    def _greeted(self, text: str) -> str | None:
        """What stands before an answer that begins the conversation.
        No template is asked for a text of no message.
        """
        around = self._around(0)
        if around is not None and (not text.startswith(around[0]) or self._thinks(0)):
            around = None
        before = text if around is None else around[0]
        header = self._header()
        if header and header in before:
            return before[: before.index(header) + len(header)]
        # as of later answers, a space is learnt
        return None if around is None else before.rstrip(" ")

    def _thinks(self, turn: int) -> bool:
        """True of an answer with reasoning beside its content."""
        return any(self._messages[turn].get(key) for key in REASONING)

    def _closed(self, whole: str, spans: list[Span]) -> str:
        """The text, with the token that ends the last answer, where the template writes it with the
        next message alone. The answer's span then reaches to it.
        """
        last = self._messages[-1]
        if (
            not spans
            or spans[-1].end != len(whole)
            or last["role"] != "assistant"
            or self._special.ends(whole)
        ):
            return whole
        token = self._next_begins(last)
        spans[-1] = Span(spans[-1].begin, len(whole) + len(token))
        return whole + token

    def _next_begins(self, last: Row) -> str:
        """The special token that begins the message behind an answer: a call's result,
        else the user's; or nothing.

        The answer is written without reasoning, which some templates drop once others follow.
        """
        plain: Row = {"role": "assistant", "content": CONTENT}
        other: Row = {"role": "user", "content": CONTENT}
        if calls := last.get("tool_calls"):
            plain |= {
                "content": str(last.get("content") or "").rpartition(CLOSES)[2],
                "tool_calls": calls,
            }
            other["role"] = "tool"
            if isinstance(calls, list):
                other |= {
                    "name": calls[-1]["function"]["name"],
                    "tool_call_id": calls[-1].get("id"),
                }
        said = [{"role": "user", "content": CONTENT}, plain]
        try:
            whole = self._text(said)
            followed = self._text([*said, other])
        except (jinja2.TemplateError, TypeError):
            return ""
        token = (
            self._special.one.match(followed, len(whole)) if followed.startswith(whole) else None
        )
        return token[0] if token else ""

    def _for_training(self) -> list[Row] | None:
        """The pieces that TRL's form of the template marks; None where it has none,
        or refuses the conversation.
        """
        if self._training is None:
            return None
        own, self._render = self._render, self._training
        try:
            return self._of_marks(self._text(self._messages), self._header())
        except jinja2.TemplateError:
            return None
        finally:
            self._render = own

    def _header(self) -> str:
        """What the template writes to ask for an answer: for the first one,
        or for one of a question.
        """
        for before in (self._messages[: self.answers[0]], [{"role": "user", "content": CONTENT}]):
            try:
                told = self._text(before) if before else ""
                prompt = self._text(before, prompt=True) if before else ""
            except jinja2.TemplateError:
                continue
            if told and prompt.startswith(told):
                return prompt.removeprefix(told)
        return ""

    def _last(self) -> Written:
        """The conversation up to its last answer, which alone is learnt."""
        turn = self.turns[-1] if self.turns else -1
        found = self._find(turn) if self.turns else None
        if found is None:
            raise Refusal(
                "llm.chat-message-changes",
                f"message {turn + 1} does not continue the prompt that the chat template writes for"
                " it; use `dataset.loss=all`, or a template with {% generation %} around"
                " answers",
                message=turn + 1,
            )
        self._messages = self._messages[: turn + 1]
        spans = [Span(len(found.before), len(found.before) + len(found.answer))]
        text = (
            self._closed(found.before + found.answer, spans)
            if not found.ends
            else found.before + found.answer
        )
        return Written(_pieces(text, spans), last_alone=len(self.turns) > 1)


def _pieces(text: str, spans: Sequence[Span]) -> list[Row]:
    """A text cut before and after its spans, which are learnt."""
    pieces = list[Row]()
    at = 0
    for span in spans:
        pieces.append({"content": text[at : span.begin], "learnt": False})
        pieces.append({"content": text[span.begin : span.end], "learnt": True})
        at = span.end
    pieces.append({"content": text[at:], "learnt": False})
    return [piece for piece in pieces if piece["content"]]


def marked(source: str) -> str:
    """A template's source with filters in the place of its `{% generation %}`."""
    return GENERATION.sub(
        lambda tag: tag[1] + ("endfilter" if tag[2] else "filter generation"), source
    )


def reads_parts(render: Callable[..., str]) -> Callable[..., str]:
    """The same template, given messages as it reads them: some, of models that read images, write
    nothing of a content that is a text, as they take a list of parts.
    """

    def parted(messages: list[Row], **options: Any) -> str:
        return render(messages=[_parted(message) for message in messages], **options)

    return parted if not _writes(render) and _writes(parted) else render


def _parted(message: Row) -> Row:
    content = message.get("content")
    return (
        message | {"content": [{"type": "text", "text": content}]}
        if isinstance(content, str)
        else message
    )


def _writes(render: Callable[..., str]) -> bool:
    """True where a template writes the text of a question and of its answer."""
    said = [{"role": role, "content": f"{CONTENT}{role}"} for role in ("user", "assistant")]
    try:
        text = render(messages=said, tools=None, documents=None, add_generation_prompt=False)
    except (jinja2.TemplateError, TypeError, AttributeError, LookupError):
        return False
    return all(message["content"] in text for message in said)


@lru_cache(maxsize=1)
def _known() -> dict[str, Path]:
    """TRL's forms for training, by the original that each of them is for."""
    trl = find_spec("trl")
    folder = Path(trl.origin).parent / "chat_templates" if trl is not None and trl.origin else None
    if folder is None or not folder.is_dir():
        return {}
    forms = {
        path: path.with_name(f"{path.stem}_training.jinja")
        for path in sorted(folder.glob("*.jinja"))
    }
    return {path.read_text("utf-8").strip(): form for path, form in forms.items() if form.is_file()}


def for_training(source: str) -> str | None:
    """TRL's form of a template, with marks around answers; None where it is none that TRL knows."""
    form = _known().get(source.strip())
    return None if form is None else form.read_text("utf-8")
