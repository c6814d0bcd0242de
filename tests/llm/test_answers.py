"""Which part of a text is learnt as an answer: reasoning, greetings, calls and ends,
in templates of public forms.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.config.llm_texts import ChatLoss
from multicard.llm.data import chat, forms
from tests.conftest import typed_llm
from tests.helpers.messages import refused
from tests.llm.test_chat import written

# Qwen 3.5's form: the prompt ends with empty reasoning,
# and earlier answers are written without theirs
EMPTY_THOUGHTS = """{%- for m in messages %}
{{- '<|eot_id|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}
{%- set thought = m.reasoning_content or '' %}
{%- set answer = m.content %}
{%- if '</think>' in answer %}
{%- set thought = answer.split('</think>')[0].split('<think>')[-1] | trim %}
{%- set answer = answer.split('</think>')[-1] | trim %}
{%- endif %}
{%- if loop.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
{{- answer }}
{%- for call in m.tool_calls %}{{- '<tool_call>' + call.function.name + '</tool_call>' }}{%- endfor %}
{%- else %}{{- m.content }}{%- endif %}
{{- '<|eom_id|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|eot_id|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}"""

# GLM's form: an answer ends with the token that begins the next message
BY_THE_NEXT = """{%- set last = namespace(user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|eot_id|>' + m.content }}
{%- elif m.role == 'tool' %}{{- '<|eom_id|>' + m.content }}
{%- else %}
{{- '<|python_tag|>' }}
{%- if loop.index0 > last.user and m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>' }}
{%- else %}{{- '<think></think>' }}{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls %}{{- '(' + call.function.name + ')' }}{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|python_tag|>' }}{%- endif %}"""

# Command A's form: the beginning of another answer behind each text
BEGINS_ANOTHER = """{{- bos_token + '<|start_header_id|><|eom_id|>Be.<|eot_id|>' }}
{%- for m in messages %}
{{- '<|start_header_id|>' + ('<|python_tag|>' if m.role == 'assistant' else '<|end_header_id|>') }}
{%- for call in m.tool_calls %}{{- '(' + call.function.name + ')<|eom_id|>' }}{%- endfor %}
{{- m.content + '<|eot_id|>' }}
{%- endfor %}
{{- '<|start_header_id|><|python_tag|>' }}"""

# DeepSeek R1's: reasoning within the content is dropped; and a form for training that keeps it
DROPS = """{{- bos_token }}{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|eot_id|>' + m.content }}
{%- else %}{{- '<|python_tag|>' + m.content.split('</think>')[-1] + eos_token }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|python_tag|><think>\\n' }}{%- endif %}"""
KEEPS = """{{- bos_token }}{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|eot_id|>' + m.content }}
{%- else %}{%- generation %}{{- '<|python_tag|>' + m.content + eos_token }}{%- endgeneration %}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|python_tag|><think>\\n' }}{%- endif %}"""

# Qwen 2.5's: reads the first message
READS_FIRST = """{%- if messages[0].role != 'system' %}{{- '<|eot_id|>system\\nBe.<|eom_id|>\\n' }}{%- endif %}
{%- for m in messages %}{{- '<|eot_id|>' + m.role + '\\n' + m.content + '<|eom_id|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|eot_id|>assistant\\n' }}{%- endif %}"""
# Qwen 3.5's: wants a question
WANTS_A_QUESTION = (
    "{%- if not messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{- raise_exception('No user query found in messages.') }}{%- endif %}" + READS_FIRST
)

Q = {"role": "user", "content": "Question"}
A = {"role": "assistant", "content": "Answer"}
THOUGHT = A | {"reasoning_content": "Thought"}
INLINE = A | {"content": "<think>\nThought\n</think>\n\nAnswer"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "add", "arguments": {}}}],
}
RESULT = {"role": "tool", "content": "Result"}


def read(folder: Path, template: str, *said: Any) -> dict[str, Any]:
    """A conversation's pieces, by this template."""
    (folder / "t.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin_of_text|>"}))
    words = (
        "dataset=chat",
        written(folder / "data", {}),
        f"dataset.chat_template={folder / 't.jinja'}",
    )
    conversation = forms.conversation(forms.columns_of({"messages": list(said)}, {}))
    return chat.converted(conversation, chat.template(typed_llm(*words)), ChatLoss.answers)[0]


def learnt(row: dict[str, Any]) -> list[str]:
    return [piece["content"] for piece in row["pieces"] if piece["learnt"]]


def text(row: dict[str, Any]) -> str:
    return "".join(piece["content"] for piece in row["pieces"])


@pytest.mark.parametrize(
    ("template", "said", "expected"),
    [
        (EMPTY_THOUGHTS, [Q, THOUGHT], ["<think>\nThought\n</think>\n\nAnswer<|eom_id|>"]),
        (EMPTY_THOUGHTS, [Q, INLINE], ["<think>\nThought\n</think>\n\nAnswer<|eom_id|>"]),
        (
            EMPTY_THOUGHTS,
            [Q, CALL | {"reasoning_content": "Thought"}],
            ["<think>\nThought\n</think>\n\n<tool_call>add</tool_call><|eom_id|>"],
        ),
        (EMPTY_THOUGHTS, [Q, A], ["Answer<|eom_id|>"]),
        (BY_THE_NEXT, [Q, THOUGHT], ["<think>Thought</think>Answer<|eot_id|>"]),
        (
            BY_THE_NEXT,
            [Q, CALL, RESULT, A],
            ["<think></think>(add)<|eom_id|>", "<think></think>Answer<|eot_id|>"],
        ),
        (
            BY_THE_NEXT,
            [Q, CALL | {"reasoning_content": "Thought"}, RESULT, THOUGHT],
            ["<think>Thought</think>(add)<|eom_id|>", "<think>Thought</think>Answer<|eot_id|>"],
        ),
        (BY_THE_NEXT, [Q, CALL], ["<think></think>(add)<|eom_id|>"]),
        (BY_THE_NEXT, [Q, CALL, RESULT], ["<think></think>(add)<|eom_id|>"]),
        (BY_THE_NEXT, [Q, A, A], ["<think></think>Answer", "<think></think>Answer<|eot_id|>"]),
        (BEGINS_ANOTHER, [Q, A], ["Answer<|eot_id|>"]),
        (BEGINS_ANOTHER, [Q, A, Q, A], ["Answer<|eot_id|>"] * 2),
        (BEGINS_ANOTHER, [Q, CALL], ["(add)<|eom_id|><|eot_id|>"]),
        (BEGINS_ANOTHER, [Q, A, Q, CALL], ["Answer<|eot_id|>", "(add)<|eom_id|><|eot_id|>"]),
        (BEGINS_ANOTHER, [Q, CALL, RESULT, A], ["(add)<|eom_id|><|eot_id|>", "Answer<|eot_id|>"]),
        (READS_FIRST, [A, Q, A], ["Answer<|eom_id|>"] * 2),
        (READS_FIRST, [A], ["Answer<|eom_id|>"]),
    ],
)
def test_an_answer_is_learnt_with_its_reasoning_to_the_token_that_ends_it(
    template: str, said: list[Any], expected: list[str], tmp_path: Path
):
    row = read(tmp_path, template, *said)
    assert learnt(row) == expected and "last_alone" not in row


def test_a_template_that_wants_a_question_takes_a_greeting_before_it(tmp_path: Path):
    row = read(tmp_path, WANTS_A_QUESTION, A, Q, A)
    assert learnt(row) == ["Answer<|eom_id|>"] and row["last_alone"]


def test_reasoning_that_a_template_drops_is_learnt_by_its_form_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chat, "training_form_of", {DROPS: KEEPS}.get)
    row = read(tmp_path, DROPS, Q, INLINE, Q, INLINE)
    assert learnt(row) == ["Thought\n</think>\n\nAnswer<|end_of_text|>"] * 2
    assert text(row).count("<|python_tag|><think>\n") == 2
    assert learnt(read(tmp_path, DROPS, Q, A)) == ["Answer<|end_of_text|>"]


@pytest.mark.parametrize("said", [[A, Q, INLINE], [Q, A, Q, INLINE]])
def test_the_form_for_training_learns_no_header_of_an_answer(
    said: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chat, "training_form_of", {DROPS: KEEPS}.get)
    found = learnt(read(tmp_path, DROPS, *said))
    assert found == ["Answer<|end_of_text|>", "Thought\n</think>\n\nAnswer<|end_of_text|>"]


@pytest.mark.parametrize("form", ["settings", "files"])
def test_of_named_templates_conversations_with_tools_take_tool_use(form: str, tmp_path: Path):
    plain = "{% for m in messages %}{{ '<|eot_id|>' + m.content + '<|eom_id|>' }}{% endfor %}"
    tool_use = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + plain
    if form == "settings":
        several = [
            {"name": "default", "template": plain},
            {"name": "tool_use", "template": tool_use},
        ]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    else:
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "chat_template.jinja").write_text(plain)
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use)
    config = typed_llm(
        "dataset=chat", written(tmp_path / "data", {}), f"dataset.chat_template={tmp_path}"
    )
    template = chat.template(config)
    rows = [
        {"messages": [Q, A]},
        {"messages": [Q, A], "tools": [{"type": "function", "function": {"name": "add"}}]},
    ]
    texts = []
    for row in rows:
        conversation = forms.conversation(forms.columns_of(row, {}))
        texts.append(text(chat.converted(conversation, template, ChatLoss.answers)[0]))
    assert texts == [
        f"{before}<|eot_id|>Question<|eom_id|><|eot_id|>Answer<|eom_id|>" for before in ("", "add")
    ]
    assert template.text == plain + tool_use


# Marks by `{% generation %}` that leave reasoning out, and that reach over a question
MARKS = """{%- for m in messages %}{%- if m.role == 'user' %}{{- m.content }}
{%- else %}{{- m.reasoning_content }}{%- generation %}{{- m.content }}{%- endgeneration %}{%- endif %}{%- endfor %}"""
MARKS_ALL = (
    "!{%- generation %}{%- for m in messages %}{{- m.content }}{%- endfor %}{%- endgeneration %}"
)


@pytest.mark.parametrize(
    ("template", "said", "message", "column"),
    [(MARKS, [Q, THOUGHT], 2, "reasoning_content"), (MARKS_ALL, [Q, A], 1, "content")],
)
def test_an_answer_that_is_learnt_in_part_and_a_question_that_is_learnt_are_refused(
    template: str, said: list[Any], message: int, column: str, tmp_path: Path
):
    with refused("llm.chat-mislearnt", message=message, column=column):
        read(tmp_path, template, *said)
    assert learnt(read(tmp_path, MARKS, Q, A)) == ["Answer"]
