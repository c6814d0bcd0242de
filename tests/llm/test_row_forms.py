"""Public forms of rows: the smallest row of each, and the messages that it becomes,
or why it is refused.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from multicard.llm import preflight
from multicard.llm.data import beside_messages, columns, forms, pairs, row_sources, turns
from multicard.llm.data.forms import Conversation
from multicard.messages import Refusal
from tests.conftest import Called, typed_llm
from tests.helpers.messages import find, refused, says
from tests.llm.test_chat import with_template, written

Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
S, B = {"role": "system", "content": "S"}, {"role": "assistant", "content": "B"}
ASKED = {"from": "human", "value": "Q"}
GPT = {"from": "gpt", "value": "A"}
TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}

# By form: the row, what it says as "user: Q | assistant: A", and the columns that nobody reads
CONVERSATIONS: dict[str, tuple[Any, str, list[str]]] = {
    "openai": ({"messages": [S, Q, A]}, "system: S | user: Q | assistant: A", []),
    "ultrachat_200k": (
        {"prompt": "Q", "prompt_id": "x", "messages": [Q, A]},
        "user: Q | assistant: A",
        ["prompt_id"],
    ),
    "no_robots": (
        {"prompt": "Q", "prompt_id": "x", "messages": [S, Q, A], "category": "Chat"},
        "system: S | user: Q | assistant: A",
        ["prompt_id", "category"],
    ),
    "ultrafeedback's sft": (
        {
            "prompt": "Q",
            "messages": [Q, A],
            "chosen": [Q, A],
            "rejected": [Q, B],
            "score_chosen": 7.0,
        },
        "user: Q | assistant: A",
        ["chosen", "rejected", "score_chosen"],
    ),
    "numina": (
        {"problem": "Q", "solution": "A", "source": "x", "messages": [Q, A]},
        "user: Q | assistant: A",
        ["source"],
    ),
    "sharegpt": ({"id": "x", "conversations": [ASKED, GPT]}, "user: Q | assistant: A", ["id"]),
    "sharegpt with system": (
        {"system": "S", "conversations": [ASKED, GPT]},
        "system: S | user: Q | assistant: A",
        [],
    ),
    "pygmalion": (
        {"conversations": [{"role": "human", "value": "Q"}, {"role": "bot", "value": "A"}]},
        "user: Q | assistant: A",
        [],
    ),
    "gemini": ({"messages": [Q, {"role": "model", "content": "A"}]}, "user: Q | assistant: A", []),
    "capitals": (
        {"messages": [{"role": "User", "content": "Q"}, {"role": "Assistant", "content": "A"}]},
        "user: Q | assistant: A",
        [],
    ),
    "capybara": (
        {
            "source": "x",
            "conversation": [{"input": "Q", "output": "A"}, {"input": "Q", "output": "B"}],
        },
        "user: Q | assistant: A | user: Q | assistant: B",
        ["source"],
    ),
    "lima": ({"conversations": ["Q", "A"], "source": "x"}, "user: Q | assistant: A", ["source"]),
    "ultrachat": (
        {"id": "0", "data": ["Q", "A", "Q", "B"]},
        "user: Q | assistant: A | user: Q | assistant: B",
        ["id"],
    ),
    "as JSON in a cell": ({"messages": json.dumps([Q, A])}, "user: Q | assistant: A", []),
    "a list of messages": ([Q, A], "user: Q | assistant: A", []),
    "oasst as messages": (
        {"messages": [{"role": "prompter", "content": "Q"}, A]},
        "user: Q | assistant: A",
        [],
    ),
    "text parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, A]},
        "user: Q | assistant: A",
        [],
    ),
    "alpaca": (
        {"instruction": "Q", "input": "", "output": "A", "text": "Below is Q A"},
        "user: Q | assistant: A",
        ["text"],
    ),
    "alpaca with input": (
        {"instruction": "Q", "input": "I", "output": "A"},
        "user: Q\nI | assistant: A",
        [],
    ),
    "alpaca of llama-factory": (
        {"instruction": "Q", "input": "", "output": "A", "system": "S", "history": [["q", "a"]]},
        "system: S | user: q | assistant: a | user: Q | assistant: A",
        [],
    ),
    "dolly": (
        {"instruction": "Q", "context": "C", "response": "A", "category": "open_qa"},
        "user: Q\nC | assistant: A",
        ["category"],
    ),
    "open orca": (
        {"id": "x", "system_prompt": "S", "question": "Q", "response": "A"},
        "system: S | user: Q | assistant: A",
        ["id"],
    ),
    "metamath": (
        {"type": "x", "query": "Q", "original_question": "O", "response": "A"},
        "user: Q | assistant: A",
        ["type", "original_question"],
    ),
    "gsm8k": ({"question": "Q", "answer": "A"}, "user: Q | assistant: A", []),
    "swift": (
        {"system": "S", "query": "Q", "response": "A", "history": [["q", "a"]]},
        "system: S | user: q | assistant: a | user: Q | assistant: A",
        [],
    ),
    "oasst of axolotl": ({"INSTRUCTION": "Q", "RESPONSE": "A"}, "user: Q | assistant: A", []),
    "trl": ({"prompt": "Q", "completion": "A"}, "user: Q | assistant: A", []),
    "trl, conversational": (
        {"prompt": [S, Q], "completion": [A]},
        "system: S | user: Q | assistant: A",
        [],
    ),
    "gpteacher": ({"instruction": "Q", "input": "", "response": "A"}, "user: Q | assistant: A", []),
    "input and output": ({"input": "Q", "output": "A"}, "user: Q | assistant: A", []),
    "hh, to be completed": (
        {"prompt": "\n\nHuman: Q\n\nAssistant: A\n\nHuman: Q\n\nAssistant:", "response": " B"},
        "user: Q | assistant: A | user: Q | assistant: B",
        [],
    ),
    "words before the first Human": (
        {"prompt": "S\n\nHuman: Q\n\nAssistant:", "completion": " A"},
        "system: S | user: Q | assistant: A",
        [],
    ),
    "a text about Human:": (
        {"prompt": "Q\n\nHuman: is a mark", "completion": "A"},
        "user: Q\n\nHuman: is a mark | assistant: A",
        [],
    ),
    "code": (
        {"prompt": "  x = 1\n", "completion": "    return x\n"},
        "user:   x = 1\n | assistant:     return x\n",
        [],
    ),
}


def said_by(conversation: Conversation) -> str:
    return " | ".join(f"{each['role']}: {each['content']}" for each in conversation.messages)


@pytest.mark.parametrize("form", CONVERSATIONS)
def test_a_public_form_becomes_messages_and_what_it_has_beside_them_is_named(form: str):
    row, expected, left = CONVERSATIONS[form]
    held = forms.columns_of(row, {})
    assert said_by(forms.conversation(held)) == expected
    assert held.unread() == left and held.unread_with_meaning() is None


CALLS: dict[str, Any] = {
    "llama-factory": [
        ASKED,
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "1"},
        GPT,
    ],
    "swift": [
        Q,
        {"role": "tool_call", "content": '{"name": "add", "arguments": {"a": 1}}'},
        {"role": "tool_response", "content": "1"},
        A,
    ],
    "openai": [
        Q,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "1"},
        A,
    ],
    "openai's earlier": [
        Q,
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "add", "arguments": '{"a": 1}'},
        },
        {"role": "tool", "content": "1"},
        A,
    ],
}


@pytest.mark.parametrize("form", CALLS)
def test_calls_of_tools_in_each_form_are_those_that_templates_read(form: str):
    found = forms.conversation(
        forms.columns_of({"messages": CALLS[form], "functions": [{"name": "add"}]}, {})
    )
    assert found.tools == [TOOL]
    assert [each["role"] for each in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[1]["tool_calls"] == [CALL]


# By form: the row, and the chosen answer with what is before it
PAIRS: dict[str, tuple[Any, str]] = {
    "trl": ({"prompt": "Q", "chosen": "A", "rejected": "B"}, "user: Q | assistant: A"),
    "trl, conversational": (
        {"prompt": [S, Q], "chosen": [A], "rejected": [B]},
        "system: S | user: Q | assistant: A",
    ),
    "trl, implicit prompt": (
        {"chosen": [S, Q, A], "rejected": [S, Q, B]},
        "system: S | user: Q | assistant: A",
    ),
    "a prompt beside lists": (
        {"prompt": "Q", "chosen": [A], "rejected": [B]},
        "user: Q | assistant: A",
    ),
    "ultrafeedback": (
        {"prompt": "Q", "messages": [Q, A], "chosen": [Q, A], "rejected": [Q, B]},
        "user: Q | assistant: A",
    ),
    "hh-rlhf": (
        {"chosen": "\n\nHuman: Q\n\nAssistant: A", "rejected": "\n\nHuman: Q\n\nAssistant: B"},
        "user: Q | assistant: A",
    ),
    "hh with prompt": (
        {"prompt": "\n\nHuman: Q\n\nAssistant:", "chosen": " A", "rejected": " B"},
        "user: Q | assistant: A",
    ),
    "orca": (
        {"system": "S", "question": "Q", "chosen": "A", "rejected": "B"},
        "system: S | user: Q | assistant: A",
    ),
    "argilla": (
        {"system": "S", "instruction": "Q", "chosen_response": "A", "rejected_response": "B"},
        "system: S | user: Q | assistant: A",
    ),
    "distilabel": (
        {"system": "S", "input": "Q", "chosen": "A", "rejected": "B"},
        "system: S | user: Q | assistant: A",
    ),
    "llama-factory's sharegpt": (
        {
            "system": "S",
            "conversations": [ASKED],
            "chosen": GPT,
            "rejected": {"from": "gpt", "value": "B"},
        },
        "system: S | user: Q | assistant: A",
    ),
    "llama-factory's alpaca": (
        {"instruction": "Q", "input": "I", "chosen": "A", "rejected": "B"},
        "user: Q\nI | assistant: A",
    ),
    "axolotl's chat": ({"messages": [Q], "chosen": A, "rejected": B}, "user: Q | assistant: A"),
    "openai": (
        {"input": {"messages": [S, Q]}, "preferred_output": [A], "non_preferred_output": [B]},
        "system: S | user: Q | assistant: A",
    ),
    "swift": (
        {"messages": [S, Q, A], "rejected_response": "B"},
        "system: S | user: Q | assistant: A",
    ),
    "swift's messages": (
        {"messages": [Q, A], "rejected_messages": [Q, B]},
        "user: Q | assistant: A",
    ),
    "parts with what a service keeps": (
        {
            "prompt": [
                Q
                | {
                    "content": [
                        {"type": "text", "text": "Q", "cache_control": {"type": "ephemeral"}}
                    ]
                }
            ],
            "chosen": [A],
            "rejected": [B],
        },
        "user: Q | assistant: A",
    ),
    "zephyr, whole": (
        {"prompt": " Q ", "question": "Q", "chosen": [Q, A], "rejected": [Q, B]},
        "user: Q | assistant: A",
    ),
    "an answer that begins with Human:": (
        {"question": "Q", "chosen": "Human: a species", "rejected": "B"},
        "user: Q | assistant: Human: a species",
    ),
    "code": ({"prompt": "Q", "chosen": "    a\n", "rejected": "B"}, "user: Q | assistant:     a\n"),
    "answers of several turns": (
        {"prompt": [Q], "chosen": [B, Q, A], "rejected": [B, Q, B]},
        "user: Q | assistant: B | user: Q | assistant: A",
    ),
    "words before the first Human": (
        {"prompt": "S\n\nHuman: Q\n\nAssistant:", "chosen": " A", "rejected": " B"},
        "system: S | user: Q | assistant: A",
    ),
}


@pytest.mark.parametrize("form", PAIRS)
def test_pairs_of_each_public_form_hold_all_that_is_before_the_answers(form: str):
    row, expected = PAIRS[form]
    held = forms.columns_of(row, {})
    found = pairs.pair(held, "dataset=preference")
    assert said_by(Conversation(found.chosen)) == expected
    assert found.chosen[:-1] == found.rejected[:-1] and found.rejected[-1]["content"] == "B"
    assert not held.unread()


# By what is wrong: the row as a conversation, and why it is refused
REFUSED: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "kto": ({"prompt": "Q", "completion": "A", "label": True}, "llm.row-kto", {"column": "label"}),
    "kto of llama-factory": (
        {"messages": [Q, A], "kto_tag": False},
        "llm.row-kto",
        {"column": "kto_tag"},
    ),
    "kto in numbers": (
        {"prompt": "Q", "completion": "A", "label": 0},
        "llm.row-kto",
        {"column": "label"},
    ),
    "a pair": ({"prompt": "Q", "chosen": "A", "rejected": "B"}, "llm.row-pair", {}),
    "a tree's message": (
        {"message_id": "x", "parent_id": None, "role": "prompter", "text": "Q"},
        "llm.row-single-message",
        {},
    ),
    "two questions": (
        {"question": "Q", "prompt": "P", "answer": "A"},
        "llm.row-ambiguous",
        {"columns": ["prompt", "question"]},
    ),
    "two answers": (
        {"problem": "Q", "solution": "A", "answer": "B"},
        "llm.row-ambiguous",
        {"columns": ["answer", "solution"]},
    ),
    "another prompt": (
        {"prompt": "P", "messages": [Q, A]},
        "llm.row-two-prompts",
        {"column": "prompt"},
    ),
    "another system": ({"system": "T", "messages": [S, Q, A]}, "llm.row-two-systems", {}),
    "another conversation": (
        {"messages": [Q, A], "conversations": [Q, B]},
        "llm.row-two-conversations",
        {},
    ),
    "a weight between": (
        {"messages": [Q, A | {"weight": 0.5}]},
        "llm.row-switch",
        {"message": 2, "switch": "weight"},
    ),
    "two switches": (
        {"messages": [Q, A | {"weight": 0, "train": True}]},
        "llm.row-switches",
        {"message": 2},
    ),
    "parts of a message": (
        {
            "messages": [
                Q,
                A | {"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]},
            ]
        },
        "llm.row-partly-learnt",
        {"message": 2, "switch": "train_detail"},
    ),
    "an image": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "image"}]},
                A,
            ]
        },
        "llm.chat-part",
        {"part": "image"},
    ),
    "an image beside a text": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Q", "image_url": {"url": "x"}}],
                },
                A,
            ]
        },
        "llm.chat-part",
        {"part": "text"},
    ),
    "no call": (
        {"conversations": [ASKED, {"from": "function_call", "value": "add(1)"}]},
        "llm.row-call",
        {"message": 2},
    ),
    "an empty answer": ({"instruction": "Q", "output": ""}, "llm.chat-empty-answer", {}),
    "a number": (
        {"question": "Q", "answer": 42},
        "llm.row-number",
        {"column": "answer", "value": 42},
    ),
    "a prompt with an answer": (
        {"prompt": "\n\nHuman: Q\n\nAssistant: So", "completion": "A"},
        "llm.row-prompt-answered",
        {"column": "prompt"},
    ),
    "two roles": (
        {"messages": [Q, A | {"from": "human"}]},
        "llm.row-two-values",
        {"message": 2, "columns": ["role", "from"]},
    ),
    "two contents": (
        {"messages": [Q, A | {"value": "B"}]},
        "llm.row-two-values",
        {"message": 2, "columns": ["content", "value"]},
    ),
    "several answers": (
        {"question": "Q", "answer": ["A", "B"]},
        "llm.row-list",
        {"column": "answer", "length": 2},
    ),
    "several prompts": (
        {"prompt": ["P", "Q"], "completion": "A"},
        "llm.row-list",
        {"column": "prompt"},
    ),
    "a file by columns": (
        {"instruction": ["P", "Q"], "output": ["A", "B"]},
        "llm.row-list",
        {"column": "instruction", "length": 2},
    ),
    "answers with their kinds": (
        {"question": "Q", "answer": [["A", "name"], ["B", "name"]]},
        "llm.row-list",
        {"column": "answer"},
    ),
    "mt-bench": (
        {"question_id": 1, "turns": ["P", "Q"]},
        "llm.chat-no-messages",
        {"found": ["question_id", "turns"]},
    ),
    "segments": ({"segments": [{"text": "Q"}]}, "llm.row-segments", {}),
    "shp": (
        {"post": "Q", "human_ref_A": "A", "human_ref_B": "B"},
        "llm.chat-no-messages",
        {"found": ["post", "human_ref_A", "human_ref_B"]},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_bears_meaning_and_cannot_be_read_is_refused(case: str):
    row, code, facts = REFUSED[case]
    with refused(code, **facts):
        forms.conversation(forms.columns_of(row, {}))


# ---- whole data sets


def loaded(folder: Path, rows: list[Any], *words: str) -> row_sources.LoadedRows:
    return row_sources.load_rows(typed_llm(written(folder, *rows), "batch_size=1", *words))


def pieces(row: Any, name: str = "pieces") -> list[tuple[str, bool]]:
    return [(piece["content"], piece["learnt"]) for piece in row[name]]


ALL = "dataset.split=0"  # of so few rows, each is to be looked at
CHAT, PREFERENCE = ("dataset=chat", ALL), ("dataset=preference", "method=dpo", ALL)
ALPACA, GRAMMAR, SLIMORCA = ("dataset=alpaca_cleaned",), ("dataset=grammar",), ("dataset=slimorca",)
INSTRUCTED = {"instruction": "Q", "input": "", "output": "A"}
PAIR = {"prompt": "Q", "chosen": "A", "rejected": "B"}

# The words of a command, a row, and why this run cannot read it as it is meant
BORNE: list[tuple[tuple[str, ...], Any, str, dict[str, Any]]] = [
    (ALPACA, INSTRUCTED | {"system": "S"}, "llm.row-bears", {"column": "system"}),
    (ALPACA, INSTRUCTED | {"history": [["q", "a"]]}, "llm.row-bears", {"column": "history"}),
    (ALPACA, INSTRUCTED | {"images": ["x.png"]}, "llm.row-bears", {"column": "images"}),
    (
        GRAMMAR,
        {"input": "a", "output": "b", "system_prompt": "S"},
        "llm.row-bears",
        {"column": "system_prompt"},
    ),
    (CHAT, {"messages": [Q, A], "history": [["q", "a"]]}, "llm.row-bears", {"column": "history"}),
    (
        CHAT,
        {"messages": [Q, A], "documents": [{"text": "x"}]},
        "llm.row-bears",
        {"column": "documents"},
    ),
    (
        CHAT,
        {"messages": [Q, A], "chat_template_kwargs": {"a": 1}},
        "llm.row-bears",
        {"column": "chat_template_kwargs"},
    ),
    (CHAT, INSTRUCTED | {"reasoning": "R"}, "llm.row-bears", {"column": "reasoning"}),
    (
        CHAT,
        {"messages": [Q, A | {"reasoning_content": "R"}]},
        "llm.chat-unwritten",
        {"column": "reasoning_content"},
    ),
    (
        CHAT,
        {"messages": [Q, A | {"thinking": "R"}]},
        "llm.chat-unwritten",
        {"column": "thinking", "message": 2},
    ),
    (
        CHAT,
        {"messages": [Q, A], "functions": [{"name": "add"}]},
        "llm.chat-unwritten",
        {"column": "tools"},
    ),
    (CHAT, {"messages": [Q, CALLED, A]}, "llm.chat-unwritten", {"column": "tool_calls"}),
    (CHAT, {"messages": [Q, A | {"train": False}]}, "llm.row-nothing-learnt", {}),
    (CHAT, {"messages": [Q, A | {"tool_calls": "add(1)"}]}, "llm.row-call", {"message": 2}),
    (ALPACA, INSTRUCTED | {"input": ["a", "b"]}, "llm.row-no-text", {"columns": ["input"]}),
    (CHAT, {"messages": [Q | {"weight": 1}, A]}, "llm.row-learns-others", {"message": 1}),
    (
        (*CHAT, "dataset.loss=all"),
        {"messages": [Q, A | {"loss": False}, Q, B]},
        "llm.row-unlearnt",
        {"message": 2},
    ),
    (CHAT, {"text": "Q"}, "llm.row-text", {"key": "dataset.loss"}),
    (
        SLIMORCA,
        {"conversations": [ASKED, GPT | {"weight": 0}, ASKED, GPT]},
        "llm.chat-unwritten",
        {"column": "weight"},
    ),
    (SLIMORCA, {"messages": [Q, A], "tools": [TOOL]}, "llm.chat-unwritten", {"column": "tools"}),
    (SLIMORCA, {"text": "Q"}, "llm.row-no-conversation", {}),
    (PREFERENCE, PAIR | {"tools": [TOOL]}, "llm.chat-unwritten", {"column": "tools"}),
    (PREFERENCE, PAIR | {"images": ["x.png"]}, "llm.row-bears", {"column": "images"}),
    (
        PREFERENCE,
        PAIR | {"chosen": [A | {"tool_calls": [CALL]}]},
        "llm.chat-unwritten",
        {"column": "tool_calls"},
    ),
    (
        PREFERENCE,
        {"prompt": [Q, {"role": "tool", "content": "1"}], "chosen": [A], "rejected": [B]},
        "llm.row-role",
        {"role": "tool"},
    ),
    (
        PREFERENCE,
        {"prompt": "P", "chosen": [Q, A], "rejected": [Q, B]},
        "llm.row-two-prompts",
        {"column": "prompt"},
    ),
    (
        PREFERENCE,
        {"messages": [Q, B], "chosen": "A", "rejected": "B"},
        "llm.row-two-prompts",
        {"column": "messages"},
    ),
    (PREFERENCE, {"chosen": [Q, A], "rejected": [B]}, "llm.row-no-answer", {"column": "rejected"}),
    (PREFERENCE, PAIR | {"rejected": ""}, "llm.row-no-answer", {"column": "rejected"}),
    (PREFERENCE, PAIR | {"chosen": None}, "llm.row-no-answer", {"column": "chosen"}),
    (PREFERENCE, PAIR | {"chosen": ["A", "B"]}, "llm.row-list", {"column": "chosen"}),
    (PREFERENCE, PAIR | {"prompt": ["P", "Q"]}, "llm.row-list", {"column": "prompt"}),
    (
        PREFERENCE,
        {"prompt": ["P", "Q"], "chosen": [Q, A], "rejected": [Q, B]},
        "llm.row-two-prompts",
        {"column": "prompt"},
    ),
    (PREFERENCE, PAIR | {"rejected": [B | {"weight": 0}]}, "llm.row-nothing-learnt", {}),
    (PREFERENCE, {"chosen": "A", "rejected": "B"}, "llm.row-columns", {"missing": ["prompt"]}),
    (
        PREFERENCE,
        {"prompt": "Q", "completion": "A", "label": True},
        "llm.row-kto",
        {"column": "label"},
    ),
]


@pytest.mark.parametrize(("words", "row", "code", "facts"), BORNE)
def test_nothing_that_bears_meaning_is_dropped_and_remedies_work(
    words: tuple[str, ...], row: Any, code: str, facts: dict[str, Any], tmp_path: Path
):
    """A remedy that names a column is typed as it stands: the row is then read,
    or refused for another reason.
    """
    with refused("llm.broken-rows", row=1) as caught:
        loaded(tmp_path, [row], *words)
    found = find(str(caught.value), code, **facts)
    remedy = found.facts.get("remedy")
    if remedy is not None:
        (word,) = shlex.split(remedy)
        try:
            rows = loaded(tmp_path, [row], *words, word)
            assert rows.rows is not None and len(rows.rows) == 1
            assert [*rows.ignored] == [facts["column"]]
        except Refusal as error:
            assert code not in str(error), remedy


def test_a_message_that_is_not_to_be_learnt_is_read_and_not_learnt_whatever_the_key(tmp_path: Path):
    for switch in (
        {"train": False},
        {"weight": "0"},
        {"weight": 0.0},
        {"loss": False},
        {"masked": True},
        {"training": "false"},
        {"loss_mask": 0},
        {"step_loss_mask": 0},
    ):
        (row,) = loaded(tmp_path, [{"messages": [Q, A | switch, Q, B]}], *CHAT).rows or []
        assert [text for text, learnt in pieces(row) if learnt] == ["B<|eot_id|>"], switch
        assert any("A<|eot_id|>" in text for text, learnt in pieces(row) if not learnt)
    weights = [ASKED | {"weight": 0}, GPT | {"weight": 1}]
    assert loaded(tmp_path, [{"conversations": weights}], *SLIMORCA).rows == [
        {"conversations": [ASKED, GPT]}
    ]


@pytest.mark.parametrize(
    ("template", "said", "message"),
    [
        (
            "{{ m.content.split('</think>')[-1] }}",
            [Q, {"role": "assistant", "content": "<think>R</think>A"}],
            2,
        ),
        ("{% if m.role != 'system' %}{{ m.content }}{% endif %}", [S, Q, A], 1),
        ("{{ m.content[:2] }}", [{"role": "user", "content": "Quite"}, A], 1),
    ],
)
def test_words_that_a_template_leaves_out_are_refused(
    template: str, said: Any, message: int, tmp_path: Path
):
    """As DeepSeek R1's leaves out reasoning, and some the system's text."""
    written_by = f"{{% for m in messages %}}{template}{{% endfor %}}"
    (tmp_path / "t.jinja").write_text(written_by)
    words = (*CHAT, "dataset.loss=all", f"dataset.chat_template={tmp_path / 't.jinja'}")
    with refused("llm.broken-rows") as caught:
        loaded(tmp_path / "data", [{"messages": said}], *words)
    assert find(str(caught.value), "llm.chat-unwritten", column="content", message=message)


def test_reasoning_reaches_a_template_that_writes_it(tmp_path: Path):
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{% if m.thinking %}<{{ m.thinking }}>{% endif %}{{"
        " m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    words = (*CHAT, f"dataset.chat_template={tmp_path / 't.jinja'}")
    (row,) = (
        loaded(tmp_path / "data", [{"messages": [Q, A | {"thinking": "R"}]}], *words).rows or []
    )
    assert "".join(text for text, _ in pieces(row)) == "user:Q\nassistant:<R>A\n"


def test_what_is_not_read_is_counted_and_said_before_the_start(tmp_path: Path):
    rows = [
        {"id": 1, "messages": [Q, A | {"ts": 3, "name": ""}], "score": 0.5},
        {"id": 2, "messages": [Q | {"ts": 1}, A | {"ts": 2}], "empty": [], "null": None},
    ]
    config = typed_llm(written(tmp_path, *rows), *CHAT, "epochs=20")
    inputs = preflight.prepare(config)
    assert inputs.ignored == {"id": 2, "score": 1, "messages.ts": 2}
    (notice,) = preflight.notices(config)
    assert (notice.code, notice.facts) == ("llm.ignored", {"ignored": inputs.ignored})
    assert inputs.dataset_arguments == {"ignored": inputs.ignored}


@pytest.mark.parametrize("value", [4, 0.5, True])
def test_a_number_as_an_answer_is_called_so(value: float, tmp_path: Path):
    with pytest.raises(Refusal) as caught:
        preflight.prepare(typed_llm(written(tmp_path, {"question": "2+2", "answer": value}), *CHAT))
    assert find(str(caught.value), "llm.row-number", column="answer", value=value)


@pytest.mark.parametrize("more", [(), ("-m", "lr=0.1,0.2")])
def test_a_dry_run_says_what_is_not_read(more: tuple[str, ...], called: Called, tmp_path: Path):
    place = "hydra.sweep.dir" if more else "hydra.run.dir"
    words = (
        written(tmp_path, *[{"id": 1, "messages": [Q, A]}] * 8),
        *CHAT,
        "dry_run=true",
        f"{place}={tmp_path}/s",
    )
    code, printed = called(*more, *words, "max_steps=1", "batch_size=1", entry="tune_llm.py")
    assert code == 0 and says(printed, "llm.ignored", ignored={"id": 8}), printed


def test_a_key_that_another_form_reads_is_passed_over_if_it_says_the_same_and_else_named(
    tmp_path: Path,
):
    both = [Q | ASKED, A | {"content": "", "value": "A"}]
    named = [Q | {"from": "Ann"}, A | {"value": 0.5}]
    for said, ignored in ((both, {}), (named, {"messages.from": 1, "messages.value": 1})):
        found = loaded(tmp_path, [{"messages": said}], *CHAT)
        assert found.ignored == ignored
        assert found.rows == loaded(tmp_path, [{"messages": [Q, A]}], *CHAT).rows


def test_rows_of_several_forms_in_one_file_are_each_read(tmp_path: Path):
    rows = [
        {"messages": [Q, A]},
        {"conversations": [ASKED, GPT]},
        {"prompt": "Q", "completion": "A"},
    ]
    rows += [
        {"question": "Q", "answer": "A"},
        INSTRUCTED,
        [Q, A],
        {"prompt": [Q], "completion": [A]},
    ]
    found = loaded(tmp_path, rows, *CHAT).rows or []
    assert len(found) == len(rows) and all(row == found[0] for row in found)
    of_pairs = [
        PAIR,
        {"prompt": [Q], "chosen": [A], "rejected": [B]},
        {"chosen": [Q, A], "rejected": [Q, B]},
    ]
    found = loaded(tmp_path, of_pairs, *PREFERENCE).rows or []
    assert found == [{"chosen": [Q, A], "rejected": [Q, B]}] * 3


def test_a_text_is_learnt_whole_and_segments_as_they_say(tmp_path: Path):
    segments = {"segments": [{"text": "<s>Q", "label": False}, {"text": "A</s>", "label": True}]}
    words = (*CHAT, "dataset.loss=all", "seed=1")
    found = loaded(tmp_path, [{"text": "Q"}, segments], *words).rows or []
    assert sorted(map(pieces, found)) == [
        [("<s>Q", False), ("A</s>", True)],
        [("<|begin_of_text|>Q<|end_of_text|>", True)],
    ]


@pytest.mark.parametrize("text", ["Q<|end_of_text|>", "Q<|end_of_text|>\n"])
def test_a_text_that_ends_with_the_token_gets_no_second_one(text: str, tmp_path: Path):
    (row,) = loaded(tmp_path, [{"text": text}], *CHAT, "dataset.loss=all").rows or []
    assert pieces(row) == [(f"<|begin_of_text|>{text}", True)]


@pytest.mark.parametrize(
    ("rows", "words", "remedy"),
    [
        (8, ("batch_size=4", "dataset.rows=2"), "dataset.rows=4"),
        (3, ("batch_size=4", "dataset.rows=2"), "batch_size=2"),
        (3, ("batch_size=4",), "batch_size=3"),
        (
            3,
            ("batch_size=4", "gradient_accumulation_steps=8"),
            "batch_size=1 gradient_accumulation_steps=3",
        ),
    ],
)
def test_too_few_rows_for_a_step_name_what_the_data_can_fill(
    rows: int, words: tuple[str, ...], remedy: str, tmp_path: Path
):
    """More rows than there are would be refused in turn."""
    place = written(tmp_path, *[{"messages": [Q, A]}] * rows)
    with refused("llm.rows-below-a-step", remedy=remedy):
        preflight.prepare(typed_llm(place, *CHAT, *words))
    assert preflight.prepare(typed_llm(place, *CHAT, *words, *remedy.split())).rows


def test_pairs_with_the_same_answers_are_left_out_and_counted(tmp_path: Path):
    same = PAIR | {"rejected": "A"}
    found = loaded(tmp_path, [PAIR, same, same | {"chosen": "A\n"}], *PREFERENCE)
    assert (found.rows, found.equal) == ([{"chosen": [Q, A], "rejected": [Q, B]}], 2)
    with refused("llm.pairs-equal", pairs=1):
        loaded(tmp_path, [same], *PREFERENCE)
    config = typed_llm(written(tmp_path, PAIR, PAIR, same), *PREFERENCE, "epochs=20")
    assert preflight.prepare(config).equal == 1
    assert [notice.code for notice in preflight.notices(config)] == ["llm.equal-pairs"]


# ---- `dataset.columns`


@pytest.mark.parametrize(
    ("words", "row", "expected"),
    [
        (ALPACA, {"question": "Q", "answer": "A", "id": 1}, INSTRUCTED),
        (
            ALPACA,
            {"instruction": "Q", "context": "C", "response": "A"},
            INSTRUCTED | {"input": "C"},
        ),
        (
            ALPACA,
            {"question": "Q", "passage": "C", "answer": "A", "id": 1},
            INSTRUCTED | {"input": "C"},
        ),
        (CHAT, {"my question": "Q", "what, said": "A", "id": 1}, None),
        (CHAT, {"ask": "Q", "passage": "C", "reply": "A"}, None),
        (CHAT, {"ask": "Q", "context": "C", "reply": "A"}, None),
        (("dataset=samsum",), {"text": "Q", "tldr": "A"}, {"dialogue": "Q", "summary": "A"}),
        (GRAMMAR, {"src": "Q", "tgt": "A"}, {"input": "Q", "output": "A"}),
        (PREFERENCE, {"ask": "Q", "good": "A", "bad": "B"}, {"chosen": [Q, A], "rejected": [Q, B]}),
        (
            PREFERENCE,
            {"text": "Q", "chosen": "A", "rejected": "B"},
            {"chosen": [Q, A], "rejected": [Q, B]},
        ),
    ],
)
def test_columns_of_other_names_are_refused_with_the_words_that_name_them(
    words: tuple[str, ...], row: Any, expected: Any, tmp_path: Path
):
    with refused("llm.broken-rows") as caught:
        loaded(tmp_path, [row], *words)
    code = "llm.chat-no-messages" if words == CHAT else "llm.row-columns"
    message = find(str(caught.value), code, found=[*row])
    (word,) = shlex.split(message.facts["remedy"])
    found = loaded(tmp_path, [row], *words, word)
    assert found.rows is not None
    if expected is None:
        assert [learnt for _, learnt in pieces(found.rows[0])] == [False, True]
    else:
        assert found.rows == [expected]
    assert found.ignored == ({"id": 1} if "id" in row else {})


@pytest.mark.parametrize(
    "row",
    [
        {"content": "T"},
        {"raw_content": "T", "url": "x", "meta": {"a": 1}},
        {"prompt": "", "completion": "T"},
    ],
)
def test_a_text_under_another_name_is_refused_with_how_to_learn_it_whole(row: Any, tmp_path: Path):
    with refused("llm.broken-rows") as caught:
        loaded(tmp_path, [row], *CHAT)
    (word,) = shlex.split(find(str(caught.value), "llm.chat-no-messages").facts["remedy"])
    (found,) = loaded(tmp_path, [row], *CHAT, word, "dataset.loss=all").rows or ()
    (piece,) = found["pieces"]
    assert piece["learnt"] and "T" in piece["content"]


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (CHAT, {"post": "Q", "human_ref_A": "A", "human_ref_B": "B"}),
        (CHAT, {"prompts": ["P", "Q"], "answers": ["A", "B"]}),
        (CHAT, {"prompt_id": "x", "reply": "A"}),
        (CHAT, {"source": "web", "reply": "A"}),
        (CHAT, {"tasks": "sum", "bottom": "x", "body": "y"}),
        (CHAT, {"ask": "Q", "answers": {"text": ["A"]}}),
        # SQuAD
        (CHAT, {"context": "C", "question": "Q", "answers": {"text": ["A"], "answer_start": [3]}}),
        (CHAT, {"body": "C", "question": "Q", "answers": ["A"]}),
        (CHAT, {"question": "Q", "passage": "C"}),
        (ALPACA, {"instruction": "Q", "context": "C"}),
        (CHAT, {"a": "Q", "b": "A"}),
        (CHAT, {"title": "T", "paragraphs": [{"context": "C", "qas": []}]}),
        (ALPACA, {"instruction": "Q", "score": "A"}),
        (PREFERENCE, {"prompt": "Q", "a": "A", "b": "B"}),
    ],
)
def test_columns_that_cannot_be_told_are_not_guessed(
    words: tuple[str, ...], row: Any, tmp_path: Path
):
    """A list, an identifier or one of several equal names would be learnt as what it is not."""
    with refused("llm.broken-rows") as caught:
        loaded(tmp_path, [row], *words)
    code = "llm.chat-no-messages" if words == CHAT else "llm.row-columns"
    assert find(str(caught.value), code, found=[*row]).facts.get("remedy") is None


def test_a_name_that_means_nothing_is_refused_with_the_columns_that_are_there(tmp_path: Path):
    row = {"question": "Q", "answer": "A"}
    named = "dataset.columns={instruction: quest, output: answer}"
    with refused(
        "llm.columns-absent", key="dataset.columns", value="quest", found=["question", "answer"]
    ) as caught:
        loaded(tmp_path, [row], *ALPACA, named)
    (word,) = shlex.split(caught.value.facts["remedy"])
    assert loaded(tmp_path, [row], *ALPACA, word).rows == [INSTRUCTED]
    with refused("llm.columns-unknown", value="instrucion") as caught:
        loaded(tmp_path, [row], *ALPACA, "dataset.columns={instrucion: question, output: answer}")
    (word,) = shlex.split(caught.value.facts["remedy"])
    assert loaded(tmp_path, [row], *ALPACA, word).rows == [INSTRUCTED]
    with refused("llm.columns-unknown", value="score"):
        loaded(tmp_path, [row], *ALPACA, "dataset.columns={score: null}")


def test_a_name_decides_between_columns_of_one_meaning(tmp_path: Path):
    row = {"problem": "Q", "solution": "A", "answer": "B"}
    found = loaded(tmp_path, [row], *CHAT, "dataset.columns={output: answer}")
    assert pieces((found.rows or [])[0])[1] == ("B<|eot_id|>", True) and found.ignored == {
        "solution": 1
    }


def test_names_are_part_of_the_identity_and_absent_ones_change_none():
    plain = typed_llm(*CHAT, "dataset.data_files=a.jsonl")
    assert (
        plain.identity()
        == typed_llm(*CHAT, "dataset.data_files=a.jsonl", "dataset.columns={}").identity()
    )
    assert (
        plain.identity()
        != typed_llm(*CHAT, "dataset.data_files=a.jsonl", "dataset.columns={input: x}").identity()
    )
    assert columns.override({"a": None, "b": "c d"}) == """'dataset.columns={a: null, b: "c d"}'"""


def test_tools_are_written_beside_pairs_by_a_template_that_knows_them(tmp_path: Path):
    """The column `functions` of OpenAI's earlier form, and calls in a pair's answers."""
    words = (*CHAT, with_template(tmp_path / "m", "qwen"))
    (row,) = (
        loaded(
            tmp_path, [{"messages": [Q, CALLED, A], "functions": [{"name": "add"}]}], *words
        ).rows
        or []
    )
    text = "".join(text for text, _ in pieces(row))
    assert json.dumps(TOOL) in text and '"arguments": {"a": 1}' in text


@pytest.mark.parametrize("column", ["tools", "functions"])
def test_flat_tools_are_wrapped_as_templates_read_them(column: str):
    flat = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    row = columns.RowColumns({column: [flat, {"type": "function", "function": flat}]})
    assert beside_messages.tools_of(row) == [{"type": "function", "function": flat}] * 2


def test_several_calls_of_a_function_call_turn_are_read():
    said = turns.messages(
        [
            {
                "from": "function_call",
                "value": '[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]',
            }
        ]
    )
    assert said is not None
    assert [call["function"] for call in said[0]["tool_calls"]] == [
        {"name": "f", "arguments": {"a": 1}},
        {"name": "g", "arguments": {}},
    ]


def test_a_call_without_text_has_an_empty_one():
    """Templates write None as a word."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    (said,) = turns.messages([{"role": "assistant", "content": None, "tool_calls": [call]}]) or ()
    assert said["content"] == ""


REPEATING = {"role": "assistant", "content": "Q is A"}
# The words of a command, its rows, and how many rows are said
# to have an answer that repeats what it answers
REPEATED: dict[str, tuple[tuple[str, ...], list[Any], int]] = {
    "completions": (
        CHAT,
        [{"prompt": "Q\n", "completion": "Q\nA"}, {"prompt": "Q", "completion": "Q A"}],
        2,
    ),
    "messages": (CHAT, [{"messages": [S, Q, A, Q, REPEATING]}], 1),
    "a single one": (CHAT, [{"messages": [Q, REPEATING]}, {"messages": [Q, A]}], 0),
    "an earlier answer": (
        CHAT,
        [{"messages": [Q, REPEATING, {"role": "user", "content": "R"}, A]}],
        0,
    ),
    "pairs": (PREFERENCE, [{"prompt": "Q", "chosen": "Q A", "rejected": "Q B"}], 1),
    "one of a pair": (PREFERENCE, [{"prompt": "Q", "chosen": "Q A", "rejected": "B"}], 0),
    "whole conversations": (PREFERENCE, [{"prompt": "Q", "chosen": [Q, A], "rejected": [Q, B]}], 0),
}


@pytest.mark.parametrize("name", REPEATED)
def test_answers_that_begin_with_what_they_answer_are_said(name: str, tmp_path: Path):
    words, rows, count = REPEATED[name]
    config = typed_llm(written(tmp_path, *rows), "batch_size=1", *words)
    preflight.prepare(config)
    found = [each.facts for each in preflight.notices(config) if each.code == "llm.answers-repeat"]
    assert found == ([{"rows": count}] if count else [])
