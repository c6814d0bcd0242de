"""Messages whose role is called otherwise in the chat template than in the data: the results of
functions, and the developer's message.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from multicard.llm.data import row_sources
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused
from tests.helpers.tuning import NEEDS_TRL
from tests.llm.test_chat import written

# Qwen 2.5's form: messages of other roles are left out
QWEN = """{%- for message in messages %}
{%- if message.role in ('user', 'system') or (message.role == 'assistant' and not message.tool_calls) %}
    {{- '<|start_header_id|>' + message.role + '\\n' + message.content + '<|eot_id|>\\n' }}
{%- elif message.role == 'assistant' %}
    {{- '<|start_header_id|>assistant' }}
    {%- for call in message.tool_calls %}{{- '\\n<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
    {{- '<|eot_id|>\\n' }}
{%- elif message.role == 'tool' %}
    {{- '<|start_header_id|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|eot_id|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant\\n' }}{% endif %}"""
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 40, "b": 2}}}


def row(role: str, results: int = 1) -> dict[str, Any]:
    said: list[dict[str, Any]] = [{"role": "user", "content": "How much is it?"}]
    for number in range(results):
        said.append({"role": "assistant", "content": "", "tool_calls": [CALL]})
        said.append({"role": role, "name": "add", "content": f"{number}2 it is"})
    return {"messages": [*said, {"role": "assistant", "content": "It is 42 then."}]}


def texts(folder: Path, template: str, *rows: Any) -> list[str]:
    """What the template writes of each row, with marks around what is learnt."""
    (folder / "chat_template.jinja").write_text(template)
    data = written(folder, *rows)
    words = (
        "dataset=chat",
        data,
        f"dataset.chat_template={folder / 'chat_template.jinja'}",
        "dataset.split=0",
    )
    pieces = [
        row["pieces"] for row in row_sources.load_rows(typed_llm(*words, "batch_size=1")).rows or []
    ]
    return [
        "".join(f"[{each['content']}]" if each["learnt"] else each["content"] for each in one)
        for one in pieces
    ]


@pytest.mark.parametrize("results", [1, 2])
@pytest.mark.parametrize("role", ["function", "ipython", "observation", "function_response"])
def test_a_result_is_read_as_one_of_the_role_that_the_template_knows(
    role: str, results: int, tmp_path: Path
):
    (expected,) = texts(tmp_path, QWEN, row("tool", results))
    assert (
        "<tool_response>\n02 it is\n</tool_response>" in expected
        and "[It is 42 then.<|eot_id|>]" in expected
    )
    assert texts(tmp_path, QWEN, row(role, results)) == [expected]


def test_a_template_that_knows_the_role_keeps_it_and_one_that_knows_none_is_refused(tmp_path: Path):
    own = QWEN.replace("'tool'", "'function'")
    (kept,) = texts(tmp_path, own, row("function"))
    assert "<tool_response>\n02 it is" in kept and texts(tmp_path, own, row("tool")) == [kept]
    with refused("llm.broken-rows") as caught:
        texts(tmp_path, QWEN.replace("'tool'", "'other'"), row("function"))
    assert find(str(caught.value), "llm.chat-unwritten", message=3, column="content")


def public_template(name: str) -> str:
    """A public model's chat template, which TRL has too."""
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


@NEEDS_TRL
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "glm4moe", "gptoss"])
def test_templates_of_public_models_read_results_of_the_role_function(name: str, tmp_path: Path):
    template = public_template(name)
    assert texts(tmp_path, template, row("function")) == texts(tmp_path, template, row("tool"))


def told(role: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "Be brief."}, *ASKED]}


ASKED = [
    {"role": "user", "content": "How much is it?"},
    {"role": "assistant", "content": "It is 42."},
]


def test_a_first_message_of_the_developer_is_the_systems_if_the_template_knows_no_developer(
    tmp_path: Path,
):
    (expected,) = texts(tmp_path, QWEN, told("system"))
    assert expected.startswith("<|start_header_id|>system\nBe brief.<|eot_id|>")
    assert texts(tmp_path, QWEN, told("developer")) == [expected]
    (kept,) = texts(
        tmp_path, QWEN.replace("'system')", "'system', 'developer')"), told("developer")
    )
    assert kept == expected.replace("system", "developer")


def test_a_later_message_of_the_developer_is_refused_if_the_template_leaves_it_out(tmp_path: Path):
    late = {"messages": [*ASKED, {"role": "developer", "content": "Be brief."}, *ASKED]}
    with refused("llm.broken-rows") as caught:
        texts(tmp_path, QWEN, late)
    assert find(str(caught.value), "llm.chat-unwritten", message=3, column="content")


@NEEDS_TRL
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "gemma3", "glm4moe"])
def test_templates_of_public_models_read_the_developer_as_the_system(name: str, tmp_path: Path):
    template = public_template(name)
    assert texts(tmp_path, template, told("developer")) == texts(tmp_path, template, told("system"))


def test_pairs_of_torchtunes_form_read_the_developer_as_the_system(tmp_path: Path):
    def read(role: str) -> Any:
        pair = {
            "prompt": told(role)["messages"][:2],
            "chosen": ASKED[1:],
            "rejected": [{"role": "assistant", "content": "Much."}],
        }
        words = ("dataset=preference", "method=dpo", written(tmp_path, pair), "batch_size=1")
        return row_sources.load_rows(typed_llm(*words, "dataset.split=0")).rows

    assert read("developer") == read("system")
