"""`dataset=chat`: conversations as the text that the model's
own chat template, a Jinja program, writes.

Templates find the functions, filters and settings of `transformers.apply_chat_template`. Only the
date is fixed, so that a run can be repeated.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.llm_texts import ChatLoss
from multicard.config.llm_tokenizers import Qwen25TokenizerConfig
from multicard.llm.data import result_roles, templates, turns
from multicard.llm.data.answers import (
    MARK,
    Writer,
    WrittenConversation,
    adapt_to_parts,
    training_form_of,
    with_mark_filters,
)
from multicard.llm.data.forms import Conversation
from multicard.llm.data.tokenizer import SPECIAL, check_folder, special_of
from multicard.llm.data.turns import FORM
from multicard.llm.data.written import Checked, arguments_as_text, calls_of, has_python
from multicard.messages import Refusal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Row = dict[str, Any]

# the folder in which transformers saves templates beside the default one
ADDITIONAL = "additional_chat_templates"
LLAMA3, QWEN25 = (Path(__file__).with_name(f"{name}.jinja") for name in ("llama3", "qwen2_5"))


def raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


JINJA = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
# 26 July 2024: the day that Llama 3's own templates fall back to
JINJA.globals |= {
    "raise_exception": raise_exception,
    "strftime_now": datetime(2024, 7, 26).strftime,
}
JINJA.filters["generation"] = f"{MARK}{{}}{MARK}".format
JINJA.filters["tojson"] = lambda value, **options: json.dumps(
    value, **{"ensure_ascii": False, **options}
)


class ModelTokens(NamedTuple):
    """The special tokens of a model.

    special: as text has them. named: those with a role, which templates write, as `bos_token`; one
    that the model lacks is absent, and so is written as nothing.
    around: those before and after a text without any.
    """

    special: tuple[str, ...]
    named: Mapping[str, str]
    around: Callable[[], tuple[str, str]]

    def named_beside(self, others: Mapping[str, str]) -> "ModelTokens":
        """With the roles that files beside a template give to tokens of this model.
        Others are only letters to it.
        """
        named = {
            **self.named,
            **{role: token for role, token in others.items() if token in self.special},
        }
        return self._replace(named=named, around=partial(_between, named))


class ChatTemplate(NamedTuple):
    """A chat template; `render` writes messages,
    with `MARK` around what the template itself marks as answers.

    around: the special tokens before and after a text without any. special: those that its text may
    have.
    training: renders TRL's form of it for training, if any. checks: that rows are written whole, by
    what is learnt.
    with_tools: of several named templates the one for conversations with tools, as transformers
    chooses it.
    others: the sources of all templates beside this one, by their names.
    """

    source: str
    render: Callable[..., str]
    around: Callable[[], tuple[str, str]]
    special: tuple[str, ...]
    training: Callable[..., str] | None
    checks: dict[ChatLoss, Checked]
    with_tools: "ChatTemplate | None" = None
    others: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """All that writes rows, which identifies the data."""
        return self.source if self.with_tools is None else self.source + self.with_tools.source

    def pieces(self, messages: list[Row], tools: Any, loss: ChatLoss) -> WrittenConversation:
        """The text of a conversation in pieces, `content`; those `learnt` bear loss: the
        assistant's turns with the token that ends them, or all.
        """
        return Writer(self.render, self.training, self.special, messages, tools).write(loss)

    def checked(self, loss: ChatLoss) -> Checked:
        """The check that what rows hold is written,
        which remembers what it found of each shape of conversation.
        """
        if loss not in self.checks:

            def write(messages: list[Row], tools: Any) -> WrittenConversation:
                return _pieces_of(messages, tools, self, loss)[1]

            self.checks[loss] = Checked(write, self.source)
        return self.checks[loss]


def template(config: LlmConfig) -> ChatTemplate:
    """The chat template in force: `dataset.chat_template`, else that of the tokenizer's or the
    weights' folder, else the form of Llama 3 or Qwen 2.5. Refuses (ValueError) one that is missing
    or cannot be read.
    """
    asked = getattr(config.dataset, "chat_template", None)
    is_qwen = isinstance(config.tokenizer, Qwen25TokenizerConfig)
    path = getattr(config.tokenizer, "path", None)
    folders = [path and Path(path).parent, config.model.folder, QWEN25 if is_qwen else LLAMA3]
    own = [config.model.path] if isinstance(config.model, HfConfig) else folders
    tokens = _tokens_of(config)
    key = "dataset.chat_template"
    for place in filter(None, [asked] if asked else own):
        try:
            stored = _read(Path(place).expanduser())
            if stored.source is not None:
                of_model = tokens
                if not isinstance(config.model, HfConfig):
                    of_model = tokens.named_beside(stored.tokens)
                tool_use = stored.others.get("tool_use")
                with_tools = None if tool_use is None else _made(tool_use, of_model)
                return _made(stored.source, of_model, with_tools)._replace(others=stored.others)
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            jinja2.TemplateError,
        ) as error:
            raise Refusal(
                "llm.chat-template-unread",
                f"{key}={asked or 'null'}: {place} has a chat template that cannot be read"
                f" ({error}); give a .jinja file, or a folder with one",
                key=key,
                value=asked,
                place=str(place),
                reason=str(error),
            ) from None
    if isinstance(config.model, HfConfig) and not asked:
        raise Refusal(
            "llm.no-chat-template",
            f"model.path={config.model.path}: its tokenizer has no chat template; put a"
            " chat_template.jinja there",
            key="model.path",
            value=config.model.path,
        )
    raise Refusal(
        "llm.chat-template-absent",
        f"{key}={asked}: no such file, or folder with a chat template; "
        f"give a .jinja file, a folder with one, or `{key}=null` for the model's own",
        key=key,
        value=asked,
    )


def _made(source: str, tokens: ModelTokens, with_tools: ChatTemplate | None = None) -> ChatTemplate:
    """A template of this source."""
    training = training_form_of(source)
    training_form = None if training is None else _renders(training, tokens.named)
    render = _renders(source, tokens.named)
    return ChatTemplate(
        source, render, tokens.around, tokens.special, training_form, {}, with_tools
    )


def _renders(source: str, named: Mapping[str, str]) -> Callable[..., str]:
    """A template that writes messages, with marks around what it marks as answers."""
    return adapt_to_parts(JINJA.from_string(with_mark_filters(source), globals=dict(named)).render)


def _tokens_of(config: LlmConfig) -> ModelTokens:
    """The special tokens of the run's tokenizer. Refuses
    (ValueError) a folder whose tokenizer cannot be read.
    """
    if isinstance(config.model, HfConfig):
        own = check_folder(config.model)
        return ModelTokens(
            tuple(special_of(own)), own.special_tokens_map, cache(partial(_around_text, own))
        )
    if isinstance(config.tokenizer, Qwen25TokenizerConfig):
        named = {"eos_token": "<|im_end|>"}
        special = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
    else:
        named = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
        special = SPECIAL
    return ModelTokens(special, named, partial(_between, named))


class StoredTemplates(NamedTuple):
    """The template of a file or a folder, None if there is none; special tokens that it may name,
    by their roles; and the templates beside it by their names, as tool_use.
    """

    source: str | None
    tokens: dict[str, str]
    others: dict[str, str]


def _read(place: Path) -> StoredTemplates:
    file = place if place.is_file() else place / "chat_template.jinja"
    settings_file = file.with_name("tokenizer_config.json")
    settings = json.loads(settings_file.read_text("utf-8")) if settings_file.is_file() else {}
    tokens = {name: _content(value) for name, value in settings.items() if name.endswith("_token")}
    tokens = {name: token for name, token in tokens.items() if token is not None}
    source = settings.get("chat_template")
    others = dict[str, str]()
    if isinstance(source, list):  # several, with names
        others = {each["name"]: each["template"] for each in source}
        source = others.pop("default")
    of_images = file.with_name("chat_template.json")  # of models that read images
    if source is None and of_images.is_file() and not file.is_file():
        source = json.loads(of_images.read_text("utf-8"))["chat_template"]
    if not file.is_file() or file == settings_file:
        return StoredTemplates(source, tokens, others)
    beside = (
        sorted((file.parent / ADDITIONAL).glob("*.jinja"))
        if file.name == "chat_template.jinja"
        else []
    )
    return StoredTemplates(
        file.read_text("utf-8"), tokens, {path.stem: path.read_text("utf-8") for path in beside}
    )


def _content(value: Any) -> str | None:
    """The text of a token, which stands alone or among its properties; None of what is no token,
    as a switch.
    """
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def converted(
    said: Conversation, chat_template: ChatTemplate, loss: ChatLoss
) -> tuple[Row, list[str]]:
    """A conversation as the pieces of its text, and the keys of its messages that are not written,
    as "messages.id".

    last_alone, beside the pieces: of several answers only the last is learnt.
    Refuses (ValueError) a broken one, and one that bears what the template does not write.
    """
    if said.segments is not None:
        return {
            "pieces": [{"content": text, "learnt": label} for text, label in said.segments if text]
        }, []
    if said.text is not None:
        return {"pieces": [_whole(said.text, chat_template, loss)]}, []
    if said.tools and chat_template.with_tools is not None:
        chat_template = chat_template.with_tools
    if said.tools and "tools" not in chat_template.source:
        raise turns.unwritten("tools", chat_template.source)
    messages, unread = turns.settle(said.messages, chat_template.source, said.column)
    messages = result_roles.as_known(
        messages, said.tools, chat_template.render, chat_template.source
    )
    if loss is ChatLoss.answers:
        for place in said.answers_of_prompt():
            messages[place]["weight"] = 0
    roles = [message["role"] for message in messages]
    if "system" in roles[1:]:
        raise Refusal(
            "llm.chat-late-system", "has a system message that is not the first one; put it first"
        )
    if "assistant" not in roles:
        raise Refusal(
            "llm.chat-no-answer",
            f"has no message of the assistant, and so nothing to learn; {FORM}",
        )
    turns.check_learnt(messages, everything=loss is ChatLoss.all)
    try:
        messages, (pieces, last_alone) = _pieces_of(messages, said.tools, chat_template, loss)
    except (
        jinja2.TemplateError,
        TypeError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise Refusal(
            "llm.chat-refused-by-template",
            f"is refused by the chat template ({error}); correct the row, or use another template",
            reason=str(error),
        ) from None
    if not any(piece["learnt"] for piece in pieces):
        raise Refusal(
            "llm.chat-answer-unwritten",
            "has no answer in what the chat template writes; use another template",
        )
    text = "".join(piece["content"] for piece in pieces)
    unread += chat_template.checked(loss).unread(messages, said.tools, text, said.column)
    return {"pieces": pieces} | ({"last_alone": True} if last_alone else {}), unread


def _pieces_of(
    messages: list[Row], tools: Any, chat_template: ChatTemplate, loss: ChatLoss
) -> tuple[list[Row], WrittenConversation]:
    """What a template writes, and the messages as it reads them:
    with arguments of calls as objects, else as JSON.

    A template that puts arguments between texts fails on an object,
    or writes it as Python prints it.
    """
    if not any(map(calls_of, messages)):
        return messages, chat_template.pieces(messages, tools, loss)
    failed: Exception | None = None
    try:
        found = chat_template.pieces(messages, tools, loss)
        if not has_python(messages, "".join(piece["content"] for piece in found.pieces)):
            return messages, found
    except (jinja2.TemplateError, TypeError) as error:
        failed = error
    as_text = arguments_as_text(messages)
    try:
        found = chat_template.pieces(as_text, tools, loss)
    except (jinja2.TemplateError, TypeError):
        if failed is not None:
            raise failed from None
        place = next(place for place, each in enumerate(messages, start=1) if calls_of(each))
        raise turns.unwritten("tool_calls", chat_template.source, place) from None
    if has_python(messages, "".join(piece["content"] for piece in found.pieces)):
        place = next(place for place, each in enumerate(messages, start=1) if calls_of(each))
        raise turns.unwritten("tool_calls", chat_template.source, place)
    return messages, found


def _around_text(own: "PreTrainedTokenizerFast") -> tuple[str, str]:
    """What a folder's own tokenizer puts before a text, and the token that ends one."""
    tokens: list[str] = own.backend_tokenizer.encode("x").tokens
    plain: list[str] = own.backend_tokenizer.encode("x", add_special_tokens=False).tokens
    before = next(
        (place for place in range(len(tokens)) if tokens[place : place + len(plain)] == plain), 0
    )
    return "".join(tokens[:before]), own.special_tokens_map.get("eos_token", "")


def _between(named: Mapping[str, str]) -> tuple[str, str]:
    return named.get("bos_token", ""), named.get("eos_token", "")


def _whole(text: str, chat_template: ChatTemplate, loss: ChatLoss) -> Row:
    """A text that is learnt as it is, between the tokens that begin and end one."""
    if loss is not ChatLoss.all:
        raise Refusal(
            "llm.row-text",
            "is a text without an answer, of which every token would be learnt; use"
            " `dataset.loss=all`",
            key="dataset.loss",
        )
    begin, end = chat_template.around()
    whole = text if text.startswith(begin) else begin + text
    return {"content": whole if whole.endswith(end) else whole + end, "learnt": True}


def from_columns(config: LlmConfig, row: Row) -> Conversation:
    """The conversation of a row in a template's columns: what
    torchtune puts around a prompt is the user's.
    """
    around = templates.chosen(config)
    text = row.get("input") or row.get("dialogue", "")
    assert around is not None
    asked = [around.around[0], text, around.around[-1]]
    if "instruction" in row:
        first, last = templates.INSTRUCT_PAIRS
        asked = [first, row["instruction"], last]
        if text:
            first, middle, last = around.around
            asked = [first, row["instruction"], middle, text, last]
    answer = {"role": "assistant", "content": row[around.columns[-1]]}
    return Conversation(
        [turns.message(1, {"role": "user", "content": "".join(asked)}), turns.message(2, answer)]
    )
