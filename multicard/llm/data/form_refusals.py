"""Refusals that readers of conversations and of pairs share."""

from collections.abc import Sequence
from typing import Any

from multicard.llm.data import columns as names
from multicard.llm.data import json_texts
from multicard.llm.data.columns import RowColumns, override
from multicard.llm.data.guessed_columns import guessed_messages, guessed_override, guessed_text
from multicard.llm.data.turns import FORM
from multicard.messages import Refusal


def unknown_form(row: RowColumns) -> Refusal:
    for name in row.filled(names.CONVERSATION):
        value = row.peek(name)
        is_begun = isinstance(value, str) and value.lstrip().startswith(("[", "{"))
        if is_begun and json_texts.as_object(value) is value:
            return Refusal(
                "llm.row-text-of-list",
                f"holds a text in {name} that begins like a list of messages, but is neither JSON"
                " nor Python's print of a list; write the column as JSON",
                column=name,
            )
    remedy = guessed_messages(row.values())
    if remedy is not None:
        return Refusal(
            "llm.row-other-messages",
            "holds messages in a column whose name is not read by itself (found:"
            f" {', '.join(row.all())}); name the column, as `{remedy}`",
            found=row.all(),
            remedy=remedy,
        )
    # With a question and its answer, a context is read whatever its name.
    is_read = bool(row.filled(names.CONTEXT))
    remedy = guessed_override(
        row.values(), ("instruction", "output"), with_input=not is_read, with_system=True
    )
    hint = f", or name the columns, as `{remedy}`" if remedy else ""
    if remedy is None:
        remedy = guessed_text(row.values())
        if remedy is not None:
            hint = f", or learn its text as a whole, by `{remedy}` and `dataset.loss=all`"
        elif sum(isinstance(value, str) for value in row.values().values()) > 1:
            hint = ", or name the columns by dataset.columns={instruction: ..., output: ...}"
    return Refusal(
        "llm.chat-no-messages",
        "has no list of messages, nor a question and its answer (found:"
        f" {', '.join(row.all()) or 'no columns'}); {FORM}{hint}",
        found=row.all(),
        remedy=remedy,
    )


def no_text_refusal(columns: Sequence[str]) -> Refusal:
    return Refusal(
        "llm.row-no-text",
        f"holds no text in {', '.join(columns)}; give text in every row",
        columns=list(columns),
    )


def object_refusal(row: RowColumns, column: str) -> Refusal:
    """Return the refusal of a row with objects in columns whose text is read.

    Args:
        column: one of them, by our name or in lower case.
    """
    held = [column]
    for group in (names.QUESTION, names.CONTEXT, names.ANSWER):
        held += [name for name in row.filled(group) if isinstance(row.peek(name), dict)]
    columns = [row.file_name(name) for name in dict.fromkeys(held)]
    remedy = override(dict.fromkeys(columns)) if {*held} <= {*names.CONTEXT} else None
    hint = f", or leave it out, as `{remedy}`" if remedy else ""
    return Refusal(
        "llm.row-object",
        f"holds an object in {' and '.join(columns)}, where text is read; write the object's JSON"
        f" as a text{hint}",
        columns=columns,
        remedy=remedy,
    )


def text_list_refusal(column: str, value: Sequence[Any]) -> Refusal:
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


def two_prompts_refusal(name: str) -> Refusal:
    remedy = override({name: None})
    return Refusal(
        "llm.row-two-prompts",
        f"has a {name} that its messages do not contain; leave it out, as `{remedy}`, or put it"
        " into the messages",
        column=name,
        remedy=remedy,
    )


def no_answer_refusal(column: str) -> Refusal:
    return Refusal(
        "llm.row-no-answer",
        f'holds no answered conversation in {column}; write [{{"role": "user", "content": "..."}},'
        ' {"role": "assistant", "content": "..."}], or plain text',
        column=column,
    )


def missing_columns_refusal(
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
    read_names = (*names.CHOSEN, *names.REJECTED, "instruction", "output", *names.DIALOGUE)
    free_columns = {
        name: value
        for name, value in row.values().items()
        if name in missing or name not in read_names
    }
    with_input = reads_input and not row.filled(("input",))
    remedy = guessed_override(free_columns, [*also, *missing], with_input) or guessed_override(
        free_columns, missing, with_input
    )
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
