"""`dataset=chat`: write conversations with the model's chat template, which is a Jinja program.

Templates see the same functions, filters and settings as in `transformers.apply_chat_template`.
Only the date is fixed, so that a run can be repeated.

`template` finds and compiles the template of a run. `converted` writes a conversation with it, as
pieces of text that bear loss or not.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.llm_texts import ChatConfig, ChatLoss
from multicard.config.llm_tokenizers import Qwen25TokenizerConfig
from multicard.config.pasting import override
from multicard.llm.data import known_roles, stored_templates, templates, turns
from multicard.llm.data.answers import Writer, WrittenConversation
from multicard.llm.data.forms import Conversation
from multicard.llm.data.marked_templates import (
    MARK,
    adapt_to_parts,
    training_form_of,
    with_mark_filters,
)
from multicard.llm.data.model_tokens import ModelTokens, TextEnds, model_tokens_of
from multicard.llm.data.turns import FORM
from multicard.llm.data.written import TemplateChecks, arguments_as_text, calls_of, has_python
from multicard.messages import Refusal

Row = dict[str, Any]
# A template fails in these ways on a conversation that it does not support.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)
# A missing or damaged template fails in these ways when it is read and compiled.
UNREADABLE_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    jinja2.TemplateError,
)


def raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


JINJA = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
# 26 July 2024 is the date that Llama 3's templates use if they are given none.
JINJA.globals |= {
    "raise_exception": raise_exception,
    "strftime_now": datetime(2024, 7, 26).strftime,
}
JINJA.filters["generation"] = f"{MARK}{{}}{MARK}".format
JINJA.filters["tojson"] = lambda value, **options: json.dumps(
    value, **{"ensure_ascii": False, **options}
)


class RenderMessages(Protocol):
    """Renders a chat template, with `MARK` around the parts that it marks as answers.

    Args:
        variables: the names that the template reads, such as `messages` and `tools`.
    """

    def __call__(self, **variables: Any) -> str: ...


class ChatTemplate(NamedTuple):
    """A chat template, and the model's special tokens.

    Fields:
        source: the template's text.
        render: writes messages with the template.
        begin_and_end: returns the special tokens before and after a text without any.
        special: the special tokens that the template's text may contain.
        training: renders TRL's training form of the template, if there is one.
        checks: for each loss, the check that rows are written completely.
        with_tools: the template for conversations with tools, if there are several named ones;
            transformers chooses it in the same way.
        others: the sources of all further templates, by name.
    """

    source: str
    render: RenderMessages
    begin_and_end: Callable[[], TextEnds]
    special: tuple[str, ...]
    training: RenderMessages | None
    checks: dict[ChatLoss, TemplateChecks]
    with_tools: "ChatTemplate | None" = None
    others: Mapping[str, str] = {}

    @property
    def text(self) -> str:
        """The sources of all templates that write rows; they identify the data."""
        return self.source if self.with_tools is None else self.source + self.with_tools.source

    def pieces(self, messages: list[Row], tools: Any, loss: ChatLoss) -> WrittenConversation:
        """Write a conversation in pieces of text.

        The assistant's turns are learnt, each with the token that ends it. With `ChatLoss.all`, all
        pieces are learnt.
        """
        return Writer(self.render, self.training, self.special, messages, tools).write(loss)

    def checks_of(self, loss: ChatLoss) -> TemplateChecks:
        """Return the check that the template writes everything that rows hold.

        It remembers its result for each shape of conversation.
        """
        if loss not in self.checks:

            def write(messages: list[Row], tools: Any) -> WrittenConversation:
                return _write_conversation(messages, tools, self, loss)

            self.checks[loss] = TemplateChecks(write, self.source)
        return self.checks[loss]


def template(config: LlmConfig) -> ChatTemplate:
    """Return the chat template that the run uses.

    It is `dataset.chat_template`, else the one in the tokenizer's or the weights' folder, else
    the form of Llama 3 or Qwen 2.5.

    Raises:
        Refusal: the template is missing or cannot be read.
    """
    configured = getattr(config.dataset, "chat_template", None)
    is_qwen = isinstance(config.tokenizer, Qwen25TokenizerConfig)
    path = getattr(config.tokenizer, "path", None)
    tokens = model_tokens_of(config)
    key = "dataset.chat_template"
    if configured:
        places = [configured]
    elif isinstance(config.model, HfConfig):
        places = [config.model.path]
    else:
        tokenizer_folder = path and Path(path).parent
        builtin_file = stored_templates.QWEN25 if is_qwen else stored_templates.LLAMA3
        places = [tokenizer_folder, config.model.folder, builtin_file]
    for place in filter(None, places):
        try:
            stored = stored_templates.read_stored_templates(Path(place).expanduser())
            if stored.source is not None:
                model_tokens = tokens
                if not isinstance(config.model, HfConfig):
                    model_tokens = tokens.named_beside(stored.tokens)
                tool_use = stored.others.get("tool_use")
                with_tools = (
                    None if tool_use is None else _compiled_template(tool_use, model_tokens)
                )
                return _compiled_template(stored.source, model_tokens, with_tools)._replace(
                    others=stored.others
                )
        except UNREADABLE_ERRORS as error:
            raise Refusal(
                "llm.chat-template-unread",
                f"{key}={configured or 'null'}: the chat template of {place} cannot be read"
                f" ({error}); give a .jinja file, or a folder with one",
                key=key,
                value=configured,
                place=str(place),
                reason=str(error),
            ) from None
    if isinstance(config.model, HfConfig) and not configured:
        fitting = stored_templates.fitting_template(tokens.special, tokens.named)
        remedy = None
        hint = ""
        if fitting is not None and isinstance(config.dataset, ChatConfig):
            remedy = override(key, str(fitting.file))
            hint = f", or use {fitting.kind}, by `{remedy}`"
        elif fitting is not None:  # The other data sets have no key for a template.
            missing = Path(config.model.path or "") / "chat_template.jinja"
            files = shlex.join([str(fitting.file), str(missing)])
            hint = f", as {fitting.kind}, by `cp {files}`"
        raise Refusal(
            "llm.no-chat-template",
            f"model.path={config.model.path}: its tokenizer has no chat template; put a"
            f" chat_template.jinja there{hint}",
            key="model.path",
            value=config.model.path,
            remedy=remedy,
        )
    raise Refusal(
        "llm.chat-template-absent",
        f"{key}={configured}: is neither a file nor a folder with a chat template; "
        f"give a .jinja file, a folder with one, or `{key}=null` for the model's own",
        key=key,
        value=configured,
    )


def _compiled_template(
    source: str, tokens: ModelTokens, with_tools: ChatTemplate | None = None
) -> ChatTemplate:
    training = training_form_of(source)
    training_form = None if training is None else _render_function(training, tokens.named)
    render = _render_function(source, tokens.named)
    return ChatTemplate(
        source, render, tokens.begin_and_end, tokens.special, training_form, {}, with_tools
    )


def _render_function(source: str, named: Mapping[str, str]) -> RenderMessages:
    return adapt_to_parts(JINJA.from_string(with_mark_filters(source), globals=dict(named)).render)


def converted(
    conversation: Conversation, chat_template: ChatTemplate, loss: ChatLoss
) -> tuple[Row, list[str]]:
    """Write a conversation as a row of pieces of text.

    Returns:
        The row, and the keys of messages that are not written, as "messages.id". The row has the
        text as `pieces`. It also has `last_alone` if only the last of several answers is learnt.

    Raises:
        Refusal: the conversation is broken, or bears text that the template does not write.
    """
    if conversation.segments is not None:
        segment_pieces = [
            {"content": text, "learnt": is_learnt}
            for text, is_learnt in conversation.segments
            if text
        ]
        return {"pieces": segment_pieces}, []
    if conversation.text is not None:
        return {"pieces": [_whole_text(conversation.text, chat_template, loss)]}, []
    if conversation.tools and chat_template.with_tools is not None:
        chat_template = chat_template.with_tools
    if conversation.tools and "tools" not in chat_template.source:
        raise turns.unwritten("tools", chat_template.source)
    messages, unwritten_keys = _settled_messages(conversation, chat_template, loss)
    written = _written_answers(messages, conversation.tools, chat_template, loss)
    text = "".join(piece["content"] for piece in written.pieces)
    unwritten_keys += chat_template.checks_of(loss).unwritten_keys(
        messages, conversation.tools, text, conversation.column
    )
    row: Row = {"pieces": written.pieces}
    if written.last_alone:
        row["last_alone"] = True
    return row, unwritten_keys


def _settled_messages(
    conversation: Conversation, chat_template: ChatTemplate, loss: ChatLoss
) -> tuple[list[Row], list[str]]:
    """Return the messages with the keys and roles that the template knows, and the other keys.

    Answers that belong to the prompt get OpenAI's weight 0, so they are not learnt.

    Raises:
        Refusal: a message is out of place, or no message can be learnt.
    """
    messages, unwritten_keys = turns.settle(
        conversation.messages, chat_template.source, conversation.column
    )
    messages = known_roles.with_known_roles(
        messages, conversation.tools, chat_template.render, chat_template.source
    )
    if loss is ChatLoss.answers:
        for place in conversation.answers_of_prompt():
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
    return messages, unwritten_keys


def _written_answers(
    messages: list[Row], tools: Any, chat_template: ChatTemplate, loss: ChatLoss
) -> WrittenConversation:
    """Write messages in pieces, some of which are learnt.

    Raises:
        Refusal: the template refuses the messages, or writes no answer.
    """
    try:
        written = _write_conversation(messages, tools, chat_template, loss)
    except TEMPLATE_ERRORS as error:
        raise Refusal(
            "llm.chat-refused-by-template",
            f"is refused by the chat template ({error}); correct the row, or use another template",
            reason=str(error),
        ) from None
    if not any(piece["learnt"] for piece in written.pieces):
        raise Refusal(
            "llm.chat-answer-unwritten",
            "has no answer in the text that the chat template writes; use another template",
        )
    return written


def _write_conversation(
    messages: list[Row], tools: Any, chat_template: ChatTemplate, loss: ChatLoss
) -> WrittenConversation:
    """Write messages in pieces, with the arguments of calls as objects or as JSON text.

    Some templates put the arguments between texts. They fail on an object, or write it as Python
    prints it. They get the arguments as JSON text. The caller's messages are not changed.
    """
    if not any(map(calls_of, messages)):
        return chat_template.pieces(messages, tools, loss)
    object_error: Exception | None = None
    try:
        written = chat_template.pieces(messages, tools, loss)
        if not _writes_python(messages, written):
            return written
    except (jinja2.TemplateError, TypeError) as error:
        object_error = error
    try:
        written = chat_template.pieces(arguments_as_text(messages), tools, loss)
    except (jinja2.TemplateError, TypeError):
        if object_error is not None:
            raise object_error from None
        raise _unwritten_calls(messages, chat_template) from None
    if _writes_python(messages, written):
        raise _unwritten_calls(messages, chat_template)
    return written


def _writes_python(messages: list[Row], written: WrittenConversation) -> bool:
    """Return True if the text has an argument as Python prints it."""
    return has_python(messages, "".join(piece["content"] for piece in written.pieces))


def _unwritten_calls(messages: list[Row], chat_template: ChatTemplate) -> Refusal:
    """Return the refusal of a template that cannot write the calls of tools."""
    first_with_calls = 1
    while not calls_of(messages[first_with_calls - 1]):
        first_with_calls += 1
    return turns.unwritten("tool_calls", chat_template.source, first_with_calls)


def _whole_text(text: str, chat_template: ChatTemplate, loss: ChatLoss) -> Row:
    """Return a text that is learnt whole, between the tokens that begin and end a text.

    Raises:
        Refusal: the loss is for answers, and the text has none.
    """
    if loss is not ChatLoss.all:
        raise Refusal(
            "llm.row-text",
            "is a text without an answer, so every token of it would be learnt; use"
            " `dataset.loss=all`",
            key="dataset.loss",
        )
    begin, end = chat_template.begin_and_end()
    if not text.startswith(begin):
        text = begin + text
    # Texts that a template wrote before often end with a line break after the token.
    if not text.rstrip().endswith(end):
        text += end
    return {"content": text, "learnt": True}


def from_columns(config: LlmConfig, row: Row) -> Conversation:
    """Return the conversation of a row in the columns of a prompt template.

    The text that torchtune puts around a prompt belongs to the user's message.
    """
    prompt_template = templates.chosen(config)
    text = row.get("input") or row.get("dialogue", "")
    assert prompt_template is not None
    parts = [prompt_template.around[0], text, prompt_template.around[-1]]
    if "instruction" in row:
        first, last = templates.INSTRUCT_AROUND_PAIRS
        parts = [first, row["instruction"], last]
        if text:
            first, middle, last = prompt_template.around
            parts = [first, row["instruction"], middle, text, last]
    answer = {"role": "assistant", "content": row[prompt_template.columns[-1]]}
    return Conversation(
        [turns.message(1, {"role": "user", "content": "".join(parts)}), turns.message(2, answer)]
    )
