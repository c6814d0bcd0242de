"""Read rows of public data in any of their forms, as conversations or pairs.

Each row is recognized by itself, from its columns. A column is read, repeats the text of the
messages, or is left to the caller, which counts it or refuses it by its meaning.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from multicard.llm.data import choices, json_texts, turns
from multicard.llm.data import columns as names
from multicard.llm.data.beside_messages import history, tools_of, with_system
from multicard.llm.data.columns import RowColumns, guessed, override
from multicard.llm.data.flat_dialogues import flat_turns, is_dialogue
from multicard.llm.data.learnt_rows import refuse_label
from multicard.llm.data.roles import ROLE_KEYS, lowered
from multicard.llm.data.turns import FORM, Message
from multicard.messages import Refusal


class Conversation(NamedTuple):
    """The content of a row: messages, a text, or segments of a text.

    Fields:
        messages: the messages; empty for a text.
        tools: the tools that the assistant may call.
        column: the column that held the messages.
        text: a text without messages.
        segments: the parts of a text, each with whether it is learnt.
        prompt: the places of the messages that belong to the prompt, if the answer has a column of
            its own. As in TRL, answers among them are not learnt unless one of their keys says so.
        is_by_place: the messages named no speakers, and were assigned to the user and the
            assistant in turn.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    column: str = "messages"
    text: str | None = None
    segments: list[tuple[str, bool]] | None = None
    prompt: range = range(0)
    is_by_place: bool = False

    def answers_of_prompt(self) -> list[int]:
        """Return the places of answers within the prompt that no key marks as learnt."""
        said = self.messages
        return [
            place
            for place in self.prompt
            if said[place]["role"] == "assistant" and "weight" not in said[place]
        ]


def columns_of(row: Any, named: dict[str, str | None]) -> RowColumns:
    """Return the columns of a row. A list of messages counts as a row with a conversation.

    Raises:
        Refusal: the row is not an object.
    """
    if (
        isinstance(row, list)
        and row
        and all(isinstance(turn, dict) and {*ROLE_KEYS} & lowered(turn).keys() for turn in row)
    ):
        row = {"messages": row}
    if not isinstance(row, dict):
        raise Refusal("llm.row-no-object", "is not an object with columns; write each row as {...}")
    held = row.get("input")
    # OpenAI's pairs have the messages within `input`.
    if isinstance(held, dict) and "messages" in held and "input" not in named:
        row = {name: value for name, value in row.items() if name != "input"} | held
    return RowColumns(row, named)


# ---- conversations


def conversation(row: RowColumns) -> Conversation:
    """Return the conversation that a row holds.

    Raises:
        Refusal: the row holds none, or is of another kind.
    """
    json_texts.decode(row)
    refuse_label(row)
    held = held_messages(row)
    if held is not None:
        column, said = held
        is_by_place = turns.are_texts(row.peek(column))
        _check_said(row, said)
        if said[-1]["role"] != "assistant":
            said = [*said, *_answer_beside(row)]
        return Conversation(with_system(row, said), tools_of(row), column, is_by_place=is_by_place)
    asked = row.there(names.QUESTION) or row.there(names.CONTEXT[:1])
    if asked and row.present(names.ANSWER):
        return _answered(row, asked)
    if row.there(names.CHOSEN) and row.there(names.REJECTED):
        chosen = row.there(names.CHOSEN)[0]
        remedy = override({"output" if isinstance(row.peek(chosen), str) else "messages": chosen})
        raise Refusal(
            "llm.row-pair",
            "holds a chosen and a rejected answer; use `dataset=preference method=dpo`, "
            f"or learn only the chosen one, by `{remedy}`",
            remedy=remedy,
        )
    if row.there(names.SEGMENTS):
        return Conversation([], segments=_segments(row.get(*names.SEGMENTS)))
    if row.there(("role", "from")) and not row.there(names.QUESTION):
        raise Refusal(
            "llm.row-single-message",
            f"holds a single message; put the messages of a conversation into one row: {FORM}",
            found=row.all(),
        )
    if row.there(names.TEXT):
        text = row.get(*names.TEXT)
        if isinstance(text, str) and not asked:
            return Conversation([], text=text)
    raise _unknown(row)


def _unknown(row: RowColumns) -> Refusal:
    for name in row.there(names.CONVERSATION):
        value = row.peek(name)
        is_begun = isinstance(value, str) and value.lstrip().startswith(("[", "{"))
        if is_begun and json_texts.as_object(value) is value:
            return Refusal(
                "llm.row-text-of-list",
                f"holds a text in {name} that begins like a list of messages, but is neither JSON"
                " nor Python's print of a list; write the column as JSON",
                column=name,
            )
    # A context is read beside a question and its answer, whatever its name.
    is_read = bool(row.there(names.CONTEXT))
    remedy = guessed(row.values(), ("instruction", "output"), beside=not is_read)
    hint = f", or name the columns, as `{remedy}`" if remedy else ""
    return Refusal(
        "llm.chat-no-messages",
        "has no list of messages, nor a question and its answer (found:"
        f" {', '.join(row.all()) or 'no columns'}); {FORM}{hint}",
        found=row.all(),
        remedy=remedy,
    )


def held_messages(row: RowColumns) -> tuple[str, list[Message]] | None:
    """Return the first column that holds messages, and its messages.

    Other columns with the same messages count as read.
    """
    found: tuple[str, list[Message]] | None = None
    is_question = bool(row.there(names.QUESTION) and row.there(names.ANSWER))
    for name in row.there(names.CONVERSATION):
        if is_question and name in names.LISTS:
            continue
        value = _alone(row.peek(name))
        if name in names.BY_PLACE and _are_conversations(value):
            raise Refusal(
                "llm.row-conversations",
                f"holds {len(value)} lists in {name}, which may be separate conversations or the"
                " turns of one; write a row for each conversation, or messages with a role",
                column=name,
                length=len(value),
            )
        said = turns.messages(value, by_place=name in names.BY_PLACE)
        if not said:
            continue
        if found is None:
            found = name, said
            row.get(name)
        elif texts_of(said) == texts_of(found[1]):
            row.pass_over(name)
        else:
            remedy = override({name: None})
            raise Refusal(
                "llm.row-two-conversations",
                f"holds two conversations, {found[0]} and {name}; leave one out, as `{remedy}`",
                columns=[found[0], name],
                remedy=remedy,
            )
    return found


def _alone(value: Any) -> Any:
    """Unwrap a list of one conversation; return any other value unchanged."""
    held = json_texts.as_object(value) if isinstance(value, str) else value
    return held[0] if _are_conversations(held) and len(held) == 1 else value


def _are_conversations(value: Any) -> bool:
    """Tell whether a value is a list of lists of texts or messages."""
    held = json_texts.as_object(value) if isinstance(value, str) else value
    return (
        isinstance(held, list)
        and bool(held)
        and all(isinstance(each, list | tuple) and len(each) > 0 for each in held)
    )


def _answered(row: RowColumns, asked: Sequence[str]) -> Conversation:
    """Return the conversation of a question and its answer, with the messages before them."""
    question = one_of(row, asked)
    answer = one_of(row, row.there(names.ANSWER) or row.present(names.ANSWER))
    refuse_number(row, answer)
    past = history(row)
    prompt = question_messages(row, question)
    said = [*past, *prompt, *_answer_of(row, answer, flat=is_dialogue(row.peek(question)))]
    whole = with_system(row, said)
    begin = len(whole) - len(said) + len(past)
    return Conversation(whole, tools_of(row), answer, prompt=range(begin, begin + len(prompt)))


def _answer_beside(row: RowColumns) -> list[Message]:
    """Return the answer from a separate column, for messages that end without one.

    The list is empty if there is no such column.
    """
    found = row.left(names.ANSWER)
    return _answer_of(row, one_of(row, found)) if found else []


def _answer_of(row: RowColumns, answer: str, flat: bool = False) -> list[Message]:
    """Return the messages of a column with an answer, or refuse a number."""
    refuse_number(row, answer)
    value = row.get(answer)
    return answer_messages(value if value is not None else "", row, answer, flat)


def refuse_number(row: RowColumns, answer: str) -> None:
    """Refuse a number in the place of an answer's text."""
    value = row.peek(answer)
    if isinstance(value, int | float):
        raise Refusal(
            "llm.row-number",
            f"has {json.dumps(value)} in {answer}, which is a number and not a text; write it in"
            " quotes, or leave the row out",
            column=answer,
            value=value,
        )


def one_of(row: RowColumns, found: Sequence[str]) -> str:
    """Return the only one of several columns with the same meaning.

    If they differ they are refused: what a run learns would depend on the choice.
    """
    if len(found) > 1 and any(row.peek(name) != row.peek(found[0]) for name in found):
        ours = "instruction" if found[0] in (*names.QUESTION, *names.CONTEXT) else "output"
        remedy = override({ours: found[-1]})
        raise Refusal(
            "llm.row-ambiguous",
            f"has {' and '.join(found)}, but only one can be read; name it, as `{remedy}`",
            columns=list(found),
            remedy=remedy,
        )
    row.pass_over(*found)
    return found[0]


def prompt_messages(row: RowColumns, question: str) -> list[Message]:
    """Return the messages before an answer: the history, and the question with its context."""
    return history(row) + question_messages(row, question)


def question_messages(row: RowColumns, question: str) -> list[Message]:
    """Return a question with its context as a message, or the messages of a prompt."""
    value = row.get(question)
    if isinstance(value, list | dict):
        said = None if _say_nobody(value) else turns.messages(value)
        if not said:
            raise _several_texts(question, value) if isinstance(value, list) else _unknown(row)
        return said
    contexts = [name for name in row.there(names.CONTEXT) if name != question]
    texts = [value, *(context(row, name) for name in contexts)]
    if not all(isinstance(text, str) for text in texts):
        raise no_text(
            [
                name
                for name, text in zip((question, *contexts), texts, strict=True)
                if type(text) is not str
            ]
        )
    said = flat_turns("\n".join(texts))
    choices.refuse_unasked(row, "\n".join(texts))
    if said[-1]["role"] == "assistant":
        raise Refusal(
            "llm.row-prompt-answered",
            f"ends its {question} with words of the assistant; put them into the answer, or leave"
            " the row out",
            column=question,
        )
    return said


def context(row: RowColumns, name: str) -> Any:
    """Return a question's context. Choices that the command names as context become lines."""
    value = row.get(name)
    is_choices = name in row.named and row.theirs(name).lower().strip() in names.CHOICES
    return choices.as_lines(value) if is_choices else value


def no_text(found: Sequence[str]) -> Refusal:
    return Refusal(
        "llm.row-no-text",
        f"holds no text in {', '.join(found)}; give text in every row",
        columns=list(found),
    )


def _several_texts(column: str, value: Sequence[Any]) -> Refusal:
    """Return the refusal of a list that does not say who speaks.

    It may hold several answers, or a column of several rows.
    """
    return Refusal(
        "llm.row-list",
        f"holds a list of {len(value)} in {column}, which does not say who speaks; "
        "write one text, a row for each, or messages with a role",
        column=column,
        length=len(value),
    )


def answer_messages(value: Any, row: RowColumns, column: str, flat: bool = False) -> list[Message]:
    """Return the messages of an answer, given as a text, a message, or several messages.

    Args:
        flat: the answer follows "Assistant:", so a space at its beginning is not part of it.
    """
    if isinstance(value, list | dict):
        said = None if _say_nobody(value) else turns.messages(value)
        if not said:
            raise _several_texts(column, value) if isinstance(value, list) else unanswered(column)
        return said
    text = value.removeprefix(" ") if flat and isinstance(value, str) else value
    return [turns.message(1, {"role": "assistant", "content": text})]


def _segments(value: Any) -> list[tuple[str, bool]]:
    """Return axolotl's parts of a text, each with whether it is learnt."""
    fits = isinstance(value, list) and all(
        isinstance(part, dict)
        and isinstance(part.get("text"), str)
        and isinstance(part.get("label"), bool)
        for part in value
    )
    if not fits or not any(part["label"] for part in value):
        raise Refusal(
            "llm.row-segments",
            'holds no segments to learn; write [{"text": "...", "label": true}, ...], with true'
            " for at least one of them",
        )
    return [(part["text"], part["label"]) for part in value]


def _check_said(row: RowColumns, said: Sequence[Message]) -> None:
    """Count columns as read whose text the messages repeat.

    A prompt that the messages do not contain is refused.
    """
    texts = texts_of(said)
    for name in row.there((*names.QUESTION, *names.CONTEXT, *names.ANSWER, *names.SYSTEM)):
        value = row.peek(name)
        own = texts_of(turns.messages(value) or ()) if _has_roles(value) else ()
        if (isinstance(value, str) and value.strip() in {text for _, text in texts}) or (
            own and own == texts[: len(own)]
        ):
            row.pass_over(name)
        elif name == "prompt":
            raise two_prompts(name)


def _say_nobody(value: Any) -> bool:
    """Tell whether a list holds objects with a text and no role, such as several answers."""
    parts = [lowered(part) for part in value if isinstance(part, dict)]
    return len(parts) == len(value) and all("text" in part and "role" not in part for part in parts)


def _has_roles(value: Any) -> bool:
    """Tell whether a value is a list of messages, rather than of the parts of a text."""
    return isinstance(value, list) and all(
        isinstance(turn, dict) and {*ROLE_KEYS} & lowered(turn).keys() for turn in value
    )


def two_prompts(name: str) -> Refusal:
    remedy = override({name: None})
    return Refusal(
        "llm.row-two-prompts",
        f"has a {name} that its messages do not contain; leave it out, as `{remedy}`, or put it"
        " into the messages",
        column=name,
        remedy=remedy,
    )


def texts_of(said: Sequence[Message]) -> list[tuple[str, str]]:
    return [(each["role"], str(each["content"]).strip()) for each in said]


# ---- refusals that conversations and pairs share


def unanswered(column: str) -> Refusal:
    return Refusal(
        "llm.row-no-answer",
        f'holds no answered conversation in {column}; write [{{"role": "user", "content": "..."}},'
        ' {"role": "assistant", "content": "..."}], or plain text',
        column=column,
    )


def missing_columns(
    row: RowColumns,
    missing: Sequence[str],
    reader: str,
    also: Sequence[str] = (),
    reads_input: bool = False,
) -> Refusal:
    """Return the refusal of a row that lacks columns which its reader needs.

    Args:
        also: columns that the reader may need too, and that are guessed together with these.
        reads_input: the reader takes an `input` that may be absent.
    """
    read = (*names.CHOSEN, *names.REJECTED, "instruction", "output", *names.DIALOGUE)
    free = {
        name: value for name, value in row.values().items() if name in missing or name not in read
    }
    beside = reads_input and not row.there(("input",))
    remedy = guessed(free, [*also, *missing], beside) or guessed(free, missing, beside)
    unread = [name for name in row.all() if name not in (*names.CHOSEN, *names.REJECTED)]
    hint = "rename the columns" if unread else "add it to each row"
    if remedy:
        hint = f"name the columns, as `{remedy}`"
    return Refusal(
        "llm.row-columns",
        f"has no column {', '.join(missing)} for {reader} (found:"
        f" {', '.join(row.all()) or 'none'}); {hint}, or choose another template or dataset",
        missing=list(missing),
        found=row.all(),
        reader=reader,
        remedy=remedy,
    )
