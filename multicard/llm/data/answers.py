"""Which part of a conversation's text its answers are: what the model is to write, to the token that ends it.

Chat templates are programs, so that answers are found in what they write. A prompt for an answer ends where the answer
begins. It ends with the first special tokens behind its content: neither the line break that Gemma's template adds, nor
Phi 3's end of text, is ever generated. GLM's template writes no such token, as the model ends an answer with the token
that begins the user's next message.

Some templates write an answer differently once others follow, without its thoughts (Qwen 3) or with another end
(gpt-oss). TRL has forms of the known ones for training, which mark the answers. Of others the last answer is learnt.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from multicard.config.llm import ChatLoss
from multicard.messages import Refusal

Row = dict[str, Any]

# `{% generation %}`, by which a template says what the model writes: a filter that puts MARK before and after it
GENERATION, MARK = re.compile(r"({%[-+]?\s*)(end)?generation\b"), "\0generation\0"
CONTENT = "\0content\0"  # in the place of a message's own, to see what the template puts around it


class Span(NamedTuple):
    """A part of a text that is to be learnt, from the character `begin` to before `end`."""

    begin: int
    end: int


class Written(NamedTuple):
    """A conversation as pieces of text, `content`, those `learnt` with loss; `last_alone`: of several answers, only the
    last."""

    pieces: list[Row]
    last_alone: bool = False


class Found(NamedTuple):
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
        self._render, self._training, self._messages, self._tools = render, training, messages, tools
        one = "|".join(map(re.escape, sorted(filter(None, special), key=len, reverse=True))) or r"(?!)"
        self._one, self._run = re.compile(one), re.compile(rf"(?:{one})+")
        self._at_end = re.compile(rf"((?:{one})+)\s+\Z")
        self._begun: dict[tuple[int, bool], str] = {}
        self._parts: dict[int, list[str]] = {}
        self.answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        # OpenAI's: an answer of weight 0 is not to be learnt
        self.turns = [place for place in self.answers if messages[place].get("weight") != 0]

    def written(self, loss: ChatLoss) -> Written:
        """The conversation in pieces: the answers with loss, or all of it. Refuses (ValueError) what cannot be told."""
        whole = self._upto(len(self._messages))
        if loss is ChatLoss.all:
            return Written([{"content": whole.replace(MARK, ""), "learnt": True}])
        by_marks = self._of_marks(whole)
        if by_marks is not None:
            return Written(by_marks)
        if any(map(self._leaves_out, self.turns)):
            return Written(_pieces(whole, []))
        spans = self._each(whole)
        if spans is not None:
            return Written(_pieces(self._closed(whole, spans), spans))
        trained = self._for_training()
        if trained is not None:
            return Written(trained)
        return self._last()

    def _text(self, messages: list[Row], prompt: bool = False) -> str:
        return self._render(messages=messages, tools=self._tools, documents=None, add_generation_prompt=prompt)

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
        text, spans, learnt = "", list[Span](), self._weighed(len(parts) // 2)
        for place, part in enumerate(parts):
            if place % 2 == 1 and learnt[place // 2]:
                end = self._at_end.search(part)
                begin = len(text) + _within(prompt, text, part)
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
                "has a message of weight 0, but the chat template marks other parts than the answers; "
                "use a template without {% generation %}, or leave the row out",
            )
        return [place in self.turns for place in self.answers]

    def _leaves_out(self, turn: int) -> bool:
        """True of an answer that the template does not write."""
        content, around = self._messages[turn].get("content"), self._around(turn)
        if around is None or len(around) > 1 or not isinstance(content, str):
            return False
        return content.strip() not in self._upto(turn + 1)

    def _around(self, turn: int) -> list[str] | None:
        """What the template writes before and after an answer's content; None of an answer that calls tools."""
        message = self._messages[turn]
        if not isinstance(message.get("content"), str) or message.get("tool_calls"):
            return None
        if turn not in self._parts:
            text = self._text([*self._messages[:turn], message | {"content": CONTENT}])
            self._parts[turn] = text.split(CONTENT)
        return self._parts[turn]

    def _each(self, whole: str) -> list[Span] | None:
        """Where each answer is in a text; None where one is written differently there than before others follow."""
        spans = list[Span]()
        for turn in self.turns:
            found = self._find(turn)
            if found is None:
                return None
            place = Span(len(found.before), len(found.before) + len(found.answer))
            if not whole.startswith(found.before + found.answer) or (spans and place.begin < spans[-1].end):
                return None
            if not found.ends and (token := self._one.match(whole, place.end)):
                place = Span(place.begin, token.end())
            spans.append(place)
        return spans

    def _find(self, turn: int) -> Found | None:
        """An answer, in the text that ends with it; None where it cannot be told from what stands before."""
        text, prompt = self._upto(turn + 1), self._upto(turn, prompt=True)
        around = self._around(turn)
        if not text.startswith(prompt):  # it may end with what this answer does not have: DeepSeek's begins thoughts
            if around is None or not text.startswith(around[0]):
                return None
            prompt = around[0]
        answer = text[len(prompt) :]
        if around is None or len(around) != 2 or not answer.endswith(around[1]):
            end = self._at_end.search(answer)
            return Found(prompt, answer[: end.end(1)] if end else answer, ends=True)
        behind = around[1]
        content = answer.removesuffix(behind)
        end = self._run.search(behind)
        if end is not None:
            return Found(prompt, content + behind[: end.end()], ends=True)
        return Found(prompt, content + (behind.rstrip() or behind), ends=bool(behind.strip()))

    def _closed(self, whole: str, spans: list[Span]) -> str:
        """The text, with the token that ends the last answer, where the template writes it with the next message alone.
        The answer's span then reaches to it."""
        last = self._messages[-1]
        if not spans or spans[-1].end != len(whole) or last["role"] != "assistant" or self._run_ends(whole):
            return whole
        try:
            followed = self._text([*self._messages, {"role": "user", "content": CONTENT}])
        except jinja2.TemplateError:
            return whole
        token = self._one.match(followed, len(whole)) if followed.startswith(whole) else None
        if token is None:
            return whole
        spans[-1] = Span(spans[-1].begin, token.end())
        return whole + token[0]

    def _run_ends(self, text: str) -> bool:
        """True where a text ends with a special token."""
        return any(run.end() == len(text) for run in self._run.finditer(text))

    def _for_training(self) -> list[Row] | None:
        """The pieces that TRL's form of the template marks; None where it has none, or refuses the conversation."""
        if self._training is None:
            return None
        own, self._render = self._render, self._training
        try:
            before = self._messages[: self.answers[0]]
            prompt = self._text(before, prompt=True).removeprefix(self._text(before))
            return self._of_marks(self._text(self._messages), prompt)
        except jinja2.TemplateError:
            return None
        finally:
            self._render = own

    def _last(self) -> Written:
        """The conversation up to its last answer, which alone is learnt."""
        turn = self.turns[-1] if self.turns else -1
        found = self._find(turn) if self.turns else None
        if found is None:
            raise Refusal(
                "llm.chat-message-changes",
                f"message {turn + 1} does not continue the prompt that the chat template writes for it; "
                "use `dataset.loss=all`, or a template with {% generation %} around answers",
                message=turn + 1,
            )
        self._messages = self._messages[: turn + 1]
        spans = [Span(len(found.before), len(found.before) + len(found.answer))]
        text = self._closed(found.before + found.answer, spans) if not found.ends else found.before + found.answer
        return Written(_pieces(text, spans), last_alone=len(self.turns) > 1)


def _within(prompt: str, before: str, span: str) -> int:
    """How many characters at the beginning of a span still belong to the prompt that begins before it."""
    for begun in range(len(prompt)):
        if before.endswith(prompt[:begun]) and span.startswith(prompt[begun:]):
            return len(prompt) - begun
    return 0


def _pieces(text: str, spans: Sequence[Span]) -> list[Row]:
    """A text cut before and after its spans, which are learnt."""
    pieces, at = list[Row](), 0
    for span in spans:
        pieces.append({"content": text[at : span.begin], "learnt": False})
        pieces.append({"content": text[span.begin : span.end], "learnt": True})
        at = span.end
    pieces.append({"content": text[at:], "learnt": False})
    return [piece for piece in pieces if piece["content"]]


def marked(source: str) -> str:
    """A template's source with filters in the place of its `{% generation %}`."""
    return GENERATION.sub(lambda tag: tag[1] + ("endfilter" if tag[2] else "filter generation"), source)


def reads_parts(render: Callable[..., str]) -> Callable[..., str]:
    """The same template, given messages as it reads them: some, of models that read images, write nothing of a content
    that is a text, as they take a list of parts."""

    def parted(messages: list[Row], **options: Any) -> str:
        return render(messages=[_parted(message) for message in messages], **options)

    return parted if not _writes(render) and _writes(parted) else render


def _parted(message: Row) -> Row:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


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
    forms = {path: path.with_name(f"{path.stem}_training.jinja") for path in sorted(folder.glob("*.jinja"))}
    return {path.read_text("utf-8").strip(): form for path, form in forms.items() if form.is_file()}


def for_training(source: str) -> str | None:
    """TRL's form of a template, with marks around answers; None where it is none that TRL knows."""
    form = _known().get(source.strip())
    return None if form is None else form.read_text("utf-8")
