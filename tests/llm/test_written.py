"""What a chat template leaves out of a conversation is named or refused,
whatever its source names.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.llm.data import columns, pairs
from tests.helpers.messages import find, refused
from tests.llm.test_row_forms import CHAT, loaded, pieces

Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
ANSWER = "{{ m.role }}:{{ m.content }}\n"
CALLS = (
    "{{ m.role }}:{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{{ m.content }}\n"
)
FIRST_CALL = (
    "{{ m.role }}:{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}{{"
    " m.content }}\n"
)
ONE_OF = (
    "{{ m.role }}:{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% else %}{{"
    " m.content }}{% endif %}\n"
)
JOINED = (
    "{{ m.role }}:{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor"
    " %}{{ m.content }}\n"
)
PRINTED = (
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    + ANSWER
)
LAST_THOUGHTS = (
    "{{ m.role }}:{% if loop.last and m.reasoning_content %}<{{ m.reasoning_content }}>{% endif"
    " %}{{ m.content }}\n"
)
LAST_INLINE = "{{ m.role }}:{{ m.content if loop.last else m.content.split('</think>')[-1] }}\n"
NO_TOOLS = "{% if m.role != 'tool' %}" + ANSWER + "{% endif %}"
NAMES_NAME = "{# name #}" + ANSWER
FIRST_SYSTEM = (
    "{% if m.role != 'system' or loop.first %}{% if m.role != 'developer' %}"
    + ANSWER
    + "{% endif %}{% endif %}"
)
UNREPEATED = "{% if loop.index < 3 or m.content != messages[0].content %}" + ANSWER + "{% endif %}"


def of_calls(*arguments: Any, content: str = "") -> dict[str, Any]:
    calls = [
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": each}}
        for each in arguments
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def read(folder: Path, template: str, said: list[Any], *others: str, **beside: Any) -> Any:
    (folder / "t.jinja").write_text(
        "{% for m in messages %}"
        + template
        + "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    words = (*CHAT, "dataset.loss=all", f"dataset.chat_template={folder / 't.jinja'}", *others)
    return loaded(folder / "data", [{"messages": said} | beside], *words)


def text_of(rows: Any) -> str:
    return "".join(text for text, _ in pieces(rows.rows[0]))


@pytest.mark.parametrize(
    ("template", "said", "column", "message"),
    [
        (FIRST_CALL, [Q, of_calls({"a": 1}, {"a": 1}), A], "tool_calls", 2),
        (ONE_OF, [Q, of_calls({"a": 1}, content="I add."), A], "content", 2),
        (NO_TOOLS, [Q, {"role": "tool", "content": "Q"}, A], "content", 2),
        (
            LAST_THOUGHTS.replace("loop.last", "loop.first"),
            [Q, A | {"reasoning_content": "A"}],
            "reasoning_content",
            2,
        ),
        (
            FIRST_SYSTEM,
            [{"role": "system", "content": "Be"}, {"role": "developer", "content": "Be"}, Q, A],
            "content",
            2,
        ),
        (UNREPEATED, [Q, A, Q, A], "content", 3),
        ("{{ m.role }}:{{ m.content | lower }}\n", [Q, A], "content", 1),
        ("{{ m.role }}:{{ m.content[:20] }}\n", [Q, A | {"content": "a" * 21}], "content", 2),
    ],
)
def test_a_part_that_is_not_written_is_refused_also_where_its_words_stand_elsewhere(
    template: str, said: list[Any], column: str, message: int, tmp_path: Path
):
    with refused("llm.broken-rows") as caught:
        read(tmp_path, template, said)
    assert find(str(caught.value), "llm.chat-unwritten", column=column, message=message)


def test_tools_that_the_template_asks_for_and_does_not_write_are_refused(tmp_path: Path):
    with refused("llm.broken-rows") as caught:
        read(tmp_path, "{% if tools %}{% endif %}" + ANSWER, [Q, A], tools=[{"name": "A"}])
    assert find(str(caught.value), "llm.chat-unwritten", column="tools")


@pytest.mark.parametrize(
    ("template", "said", "unread"),
    [
        (
            LAST_THOUGHTS,
            [Q, A | {"reasoning_content": "R"}, Q, A | {"reasoning_content": "S"}],
            "reasoning_content",
        ),
        (
            LAST_INLINE,
            [Q, A | {"content": "<think>R</think>A"}, Q, A | {"content": "<think>S</think>B"}],
            "<think>",
        ),
        (NAMES_NAME, [Q, {"role": "tool", "content": "1", "name": "Q"}, A], "name"),
    ],
)
def test_reasoning_of_earlier_answers_and_names_are_counted_where_they_are_not_written(
    template: str, said: list[Any], unread: str, tmp_path: Path
):
    assert read(tmp_path, template, said).ignored == {f"messages.{unread}": 1}


ARGUMENTS = {"a": 1, "b": [True, None, 1.5, {"c": 'é"'}], "d": ""}


@pytest.mark.parametrize(
    "stored", [ARGUMENTS, json.dumps(ARGUMENTS), json.dumps(ARGUMENTS, ensure_ascii=False)]
)
@pytest.mark.parametrize("template", [CALLS, JOINED, PRINTED])
def test_arguments_are_written_as_json_once_however_they_are_stored(
    template: str, stored: Any, tmp_path: Path
):
    text = text_of(read(tmp_path, template, [Q, of_calls(stored), A]))
    assert json.dumps(ARGUMENTS, ensure_ascii=False) in text


@pytest.mark.parametrize(
    "call",
    [
        {"name": "add", "arguments": {"a": 1}},
        {"id": "c", "index": 0, "type": "function", "name": "add", "arguments": '{"a": 1}'},
        {"function": {"name": "add", "parameters": {"a": 1}}},
    ],
)
def test_calls_of_each_form_are_those_that_templates_read(call: Any, tmp_path: Path):
    said = [Q, {"role": "assistant", "content": "", "tool_calls": [call]}, A]
    assert '{"name": "add", "arguments": {"a": 1}}' in text_of(read(tmp_path, CALLS, said))


@pytest.mark.parametrize("arguments", ["a=1", "[1]", "1", '{"a": 1'])
def test_arguments_that_are_no_object_are_refused(arguments: str, tmp_path: Path):
    with refused("llm.broken-rows") as caught:
        read(tmp_path, CALLS, [Q, of_calls(arguments), A])
    assert find(str(caught.value), "llm.row-call", message=2)


OTHER, B = {"role": "user", "content": "O"}, {"role": "assistant", "content": "B"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": [Q, A], "rejected": [OTHER, B]}, 1),
        ({"chosen": [Q, A, Q, A], "rejected": [Q, A, OTHER, B]}, 3),
        ({"chosen": [{"role": "system", "content": "S"}, Q, A], "rejected": [Q, B]}, 1),
        ({"chosen": "\n\nHuman: Q\n\nAssistant: A", "rejected": "\n\nHuman: O\n\nAssistant: B"}, 1),
        ({"messages": [Q, A], "rejected": [OTHER, B]}, 1),
    ],
)
def test_pairs_that_answer_different_prompts_are_refused(row: Any, message: int):
    with refused("llm.row-pair-prompts", message=message):
        pairs.pair(columns.RowColumns(row), "dataset=preference")


def test_after_answers_that_differ_the_user_may_differ_too():
    found = pairs.pair(
        columns.RowColumns({"chosen": [Q, A, Q, A], "rejected": [Q, B, OTHER, B]}),
        "dataset=preference",
    )
    assert [each["content"] for each in found.rejected] == ["Q", "B", "O", "B"]
