"""Bring the messages of public conversations into one form: role, content, and keys of templates.

Each key of a message is read, passed on to the code that writes the message, or refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from multicard.llm.data import json_texts
from multicard.llm.data.calls import call_of, calls_of, join
from multicard.llm.data.columns import RowColumns, is_filled
from multicard.llm.data.harmony import check_harmony
from multicard.llm.data.roles import (
    BEARING_KEYS,
    CALLS,
    CONTENT_KEYS,
    EXCHANGES,
    OFF,
    ON,
    OPPOSITE,
    PARTLY_LEARNT,
    ROLE_KEYS,
    ROLES,
    SWITCHES,
    plain_name,
    role_named,
    with_lower_keys,
)
from multicard.messages import Refusal

Message = dict[str, Any]

FORM = (
    'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content":'
    ' "..."}]}'
)

RESULT_ROLES = ("tool", "ipython", "function")

# Keys of a part of a content. `cache_control` says how long a service keeps what it has read.
PART_KEYS = ("type", "text", "cache_control")


def messages(turns: Any, by_place: bool = False, by_pairs: bool = False) -> list[Message] | None:
    """Return the messages of a column; None if it holds no list of turns.

    Args:
        turns: objects with a role and a content, or objects with a question and its answer. All of
            them, or each, may be JSON. An object with a list for each key is read too.
        by_place: the column may hold texts without roles, whose speakers alternate. In other
            columns a list of texts means several answers, or the values of several rows.
        by_pairs: the column may hold lists of a question and its answer, as histories do.
    """
    turns = json_texts.as_messages(turns)
    if isinstance(turns, str):
        # CSV, and Parquet with only text columns, hold messages as JSON.
        turns = json_texts.as_object(turns)
    if isinstance(turns, dict):
        turns = with_lower_keys(turns)
        turns = _split_lists(turns) or turns
    if isinstance(turns, dict) and ({*ROLE_KEYS} & turns.keys()):
        turns = [turns]
    if not isinstance(turns, list):
        return None
    if by_place and turns and all(isinstance(turn, str) for turn in turns):
        pairs = zip(turns, _alternating(len(turns)), strict=True)
        return [
            _with_text_content({"role": role, "content": text}, number)
            for number, (text, role) in enumerate(pairs, start=1)
        ]
    if (
        by_pairs
        and turns
        and all(isinstance(turn, list | tuple) and len(turn) == 2 for turn in turns)
    ):
        turns = [{"input": question, "output": answer} for question, answer in turns]
    if not all(isinstance(turn, dict) for turn in turns):
        return None
    converted = list[Message]()
    for number, turn in enumerate(map(with_lower_keys, turns), start=1):
        exchange = None
        if not {*ROLE_KEYS} & turn.keys():
            exchange = next((names for names in EXCHANGES if {*names} <= turn.keys()), None)
        if exchange is not None:
            converted += _split_exchange(turn, exchange, number)
            continue
        read = message(number, turn)
        joined = join(converted[-1], read, number) if converted and _is_call(turn) else None
        if joined is None:
            converted.append(read)
        else:
            converted[-1] = joined
    return converted


def _is_call(turn: Mapping[str, Any]) -> bool:
    """Tell whether a message is a call of a tool by its role."""
    return any(plain_name(turn.get(key)) in CALLS for key in ROLE_KEYS)


def are_texts(turns: Any) -> bool:
    """Tell whether a value is a list of texts without speakers, which are not JSON of messages."""
    if isinstance(turns, str):
        turns = json_texts.as_object(turns)
    turns = json_texts.as_messages(turns)
    return isinstance(turns, list) and bool(turns) and all(isinstance(turn, str) for turn in turns)


def _split_lists(turn_lists: Mapping[str, Any]) -> list[Message] | None:
    """Split an object with a list for each key into its turns; None for any other object.

    The type Sequence of older `datasets` stores turns like this. If a key holds nothing, the turns
    lack it.
    """
    lists = {key: values for key, values in turn_lists.items() if values is not None}
    if not ({*ROLE_KEYS} & lists.keys()) or not all(
        isinstance(values, list) for values in lists.values()
    ):
        return None
    if len({len(values) for values in lists.values()}) != 1:
        return None
    turns = list[Message]()
    for values in zip(*lists.values(), strict=True):
        turns.append(
            {key: value for key, value in zip(lists, values, strict=True) if value is not None}
        )
    return turns


def _alternating(count: int) -> list[str]:
    return (["user", "assistant"] * count)[:count]


def _split_exchange(turn: Mapping[str, Any], names: Sequence[str], number: int) -> list[Message]:
    """Return the two messages of an object with a question and its answer."""
    others = {name: value for name, value in turn.items() if name not in names}
    question, answer = (
        {"role": role, "content": turn[name]}
        for role, name in zip(("user", "assistant"), names, strict=True)
    )
    if is_filled(answer["content"]):
        return [message(number, question), message(number, answer | others)]
    return [message(number, question | others)]


def message(number: int, turn: Mapping[str, Any]) -> Message:
    """Return a message with the keys and roles that templates read.

    If a key says whether the message is learnt, `weight` is 0 or 1. Other keys with a value are
    kept for `settle`.
    """
    turn = with_lower_keys(turn)
    columns = RowColumns(turn)
    stated_role = columns.get(*ROLE_KEYS)
    speaker = turn.get("from")
    # If `from` does not name a known role, it is a key that is not read.
    if role_named(speaker) is not None:
        if is_filled(turn.get("role")) and role_named(speaker) != role_named(stated_role):
            raise _two_values(number, ROLE_KEYS)
        columns.pass_over("from")
    present_keys = [name for name in CONTENT_KEYS if turn.get(name) is not None]
    filled_keys = columns.filled(CONTENT_KEYS) or present_keys
    content = turn[filled_keys[0]] if filled_keys else None
    columns.pass_over(*filled_keys[:1])
    for name in filled_keys[1:]:
        if turn[name] == content:
            columns.pass_over(name)
        elif name == "value" and isinstance(turn[name], str | list):
            # A number would not be a text of the message.
            raise _two_values(number, CONTENT_KEYS[:2])
    role = role_named(stated_role)
    if role is None:
        stated = "no role" if stated_role is None else f"role {stated_role!r}"
        raise Refusal(
            "llm.chat-role",
            f"message {number} has {stated}; use one of {', '.join(ROLES)}",
            message=number,
            role=stated_role,
        )
    if role == "assistant":
        check_harmony(columns, number)
    if role in RESULT_ROLES and _is_data(content):
        content = json.dumps(content, ensure_ascii=False)
    converted: Message = {"role": role, "content": content}
    converted |= {name: turn[name] for name in columns.unread() if name not in SWITCHES}
    if plain_name(stated_role) in CALLS:
        converted |= {"content": "", "tool_calls": calls_of(content, number)}
    elif role == "assistant" and is_filled(converted.get("function_call")):  # OpenAI's older form
        converted["tool_calls"] = [call_of(converted.pop("function_call"), number)]
    if is_filled(converted.get("tool_calls")):
        converted["tool_calls"] = calls_of(converted["tool_calls"], number)
    return _with_text_content(converted | _weight(number, role, turn), number)


def _is_data(content: Any) -> bool:
    """Tell whether the result of a tool is a value of JSON, rather than a text or its parts."""
    if isinstance(content, list):
        items = [item for item in content if isinstance(item, dict)]
        return bool(content) and not any("type" in item or "text" in item for item in items)
    return isinstance(content, dict | int | float)


def _two_values(number: int, keys: Sequence[str]) -> Refusal:
    return Refusal(
        "llm.row-two-values",
        f"message {number} has {' and '.join(keys)}, which contradict each other; keep one of them",
        message=number,
        columns=list(keys),
    )


def _with_text_content(turn: Message, number: int) -> Message:
    """Return the message with its content as one text."""
    role = turn["role"]
    content = turn["content"]
    if isinstance(content, list):  # OpenAI's parts
        content = "".join(_part_text(part, number, role) for part in content)
    if not turn.get("tool_calls"):
        if not isinstance(content, str):
            raise Refusal(
                "llm.chat-no-text",
                f"message {number} ({role}) holds no text; give its text as content, or leave the"
                " row out",
                message=number,
                role=role,
            )
        if role == "assistant" and not content.strip():
            raise Refusal(
                "llm.chat-empty-answer",
                f"message {number} (assistant) is empty; give its text as content, or leave the"
                " row out",
                message=number,
            )
    # Templates would write None as a word.
    return turn | {"content": "" if content is None else content}


def _part_text(part: Any, number: int, role: str) -> str:
    """Return the text of a part of a content, or refuse a part that holds anything else."""
    others = list[str]()
    if isinstance(part, dict) and part.get("type", "text") in ("text", "input_text", "output_text"):
        others = [
            name for name, value in part.items() if name not in PART_KEYS and is_filled(value)
        ]
        if isinstance(part.get("text"), str) and not others:
            return part["text"]
    kind = part.get("type") if isinstance(part, dict) else None
    stated = f"{kind} with {', '.join(others)}" if others else kind or str(part)[:40]
    raise Refusal(
        "llm.chat-part",
        f"message {number} ({role}) has a part that is not only text ({stated}); leave the row out",
        message=number,
        role=role,
        part=kind,
    )


# ---- which messages are learnt


def _weight(number: int, role: str, turn: Mapping[str, Any]) -> dict[str, int]:
    """Return {"weight": 0 or 1} if a key says whether the message is learnt, else nothing."""
    for name in PARTLY_LEARNT:
        if is_filled(turn.get(name)):
            raise Refusal(
                "llm.row-partly-learnt",
                f"message {number} ({role}) is to be learnt in parts ({name}); give the row as"
                ' {"segments": [{"text": "...", "label": true}, ...]}, or leave it out',
                message=number,
                role=role,
                switch=name,
            )
    learnt_by_key = dict[str, bool]()
    for name in SWITCHES:
        value = turn.get(name)
        if value is None:
            continue
        lower_value = str(value).lower()
        if lower_value not in (*ON, *OFF):
            raise Refusal(
                "llm.row-switch",
                f"message {number} ({role}) has {name}={value!r}, but only 0 and 1, or false and"
                " true, are understood",
                message=number,
                role=role,
                switch=name,
                value=str(value),
            )
        learnt_by_key[name] = (lower_value in ON) != (name in OPPOSITE)
    if len({*learnt_by_key.values()}) > 1:
        raise Refusal(
            "llm.row-switches",
            f"message {number} ({role}) says both that it is learnt and that it is not"
            f" ({', '.join(learnt_by_key)}); keep one",
            message=number,
            role=role,
            switches=list(learnt_by_key),
        )
    return {"weight": int(True in learnt_by_key.values())} if learnt_by_key else {}


def check_learnt(conversation: Sequence[Message], everything: bool) -> None:
    """Refuse keys that contradict which messages are learnt.

    Args:
        everything: every token is learnt, rather than the assistant's turns of weight 1.

    Raises:
        Refusal: a message asks to be learnt and is not, or the reverse.
    """
    answers = [turn for turn in conversation if turn["role"] == "assistant"]
    for number, turn in enumerate(conversation, start=1):
        role = turn["role"]
        weight = turn.get("weight")
        if everything and weight == 0:
            raise Refusal(
                "llm.row-unlearnt",
                f"message {number} ({role}) is not to be learnt, but dataset.loss=all learns every"
                " token; use `dataset.loss=answers`, or leave the key out",
                key="dataset.loss",
                message=number,
                role=role,
            )
        if not everything and weight == 1 and role != "assistant":
            raise Refusal(
                "llm.row-learns-others",
                f"message {number} ({role}) is to be learnt, but dataset.loss=answers learns only"
                " the assistant's messages; leave the key out, or use `dataset.loss=all` for every"
                " message",
                key="dataset.loss",
                message=number,
                role=role,
            )
    if answers and all(turn.get("weight") == 0 for turn in answers):
        raise Refusal(
            "llm.row-nothing-learnt", "has no answer that is to be learnt; leave the row out"
        )


# ---- which keys are written


def settle(
    conversation: Sequence[Message], source: str | None, column: str, instead: str = ""
) -> tuple[list[Message], list[str]]:
    """Keep the keys of messages that the writer knows, and name the others, as "messages.id".

    Args:
        source: the chat template's source, which names the keys that it writes; None for
            torchtune's forms.
        column: the column that held the messages.
        instead: advice for keys that torchtune's form lacks.

    Raises:
        Refusal: a key bears text that would be lost.
    """
    settled = list[Message]()
    unread_keys = list[str]()
    for number, turn in enumerate(conversation, start=1):
        written: Message = {
            name: turn[name] for name in ("role", "content", "weight") if name in turn
        }
        for name, value in turn.items():
            if name in written or not is_filled(value):
                continue
            if source is not None and re.search(rf"\b{re.escape(name)}\b", source):
                written[name] = value
            elif name in BEARING_KEYS:
                raise unwritten(name, source, number, instead)
            else:
                unread_keys.append(f"{column}.{name}")
        settled.append(written)
    return settled, unread_keys


def unwritten(
    column: str, source: str | None, number: int | None = None, instead: str = ""
) -> Refusal:
    """Return the refusal of a column or key that the form defines and the writer drops."""
    place = "" if number is None else f"message {number} "
    other = instead if source is None else ", or give another template"
    writer = "torchtune's form" if source is None else "the chat template"
    return Refusal(
        "llm.chat-unwritten",
        f"{place}has {column}, which {writer} does not write; leave it out of the row{other}",
        column=column,
        message=number,
    )


def repeats_prompt(conversation: Sequence[Message]) -> bool:
    """Tell whether the last answer begins with the whole text of the message before it.

    Such rows were stored in the way that a model continues a prompt: first the prompt, then the
    answer.
    """
    if (
        len(conversation) < 2
        or conversation[-1]["role"] != "assistant"
        or conversation[-2]["role"] != "user"
    ):
        return False
    question = conversation[-2].get("content")
    answer = conversation[-1].get("content")
    if not isinstance(question, str) or not isinstance(answer, str) or not question.strip():
        return False
    return answer.strip().startswith(question.strip())
