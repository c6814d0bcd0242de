"""Rows that hold the chat template's own tokens already,
and templates that end no answer: said before the start.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.llm import preflight
from multicard.messages import Message
from tests.conftest import typed_llm
from tests.llm.test_chat import with_template, written
from tests.llm.test_row_forms import CHAT, A, Q

CODES = ("llm.template-twice", "llm.answers-unended")
ENDED = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}\n{{ m.content }}<|eot_id|>{% endfor %}"
)
UNENDED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"


def noticed(folder: Path, template: str, rows: list[Any], *words: str) -> list[Message]:
    (folder / "chat.jinja").write_text(template)
    place = f"dataset.chat_template={folder / 'chat.jinja'}"
    config = typed_llm(written(folder, *rows), place, "batch_size=1", *CHAT, *words)
    preflight.prepare(config)
    return [notice for notice in preflight.notices(config) if notice.code in CODES]


TWICE: dict[str, tuple[Any, dict[str, int]]] = {
    "a prompt that was written before": (
        {
            "prompt": "<|start_header_id|>user\nQ<|eot_id|><|start_header_id|>assistant\n",
            "completion": "A",
        },
        {"<|start_header_id|>": 1, "<|eot_id|>": 1},
    ),
    "an answer with its end": (
        {"messages": [Q, A | {"content": "A<|eot_id|>"}]},
        {"<|eot_id|>": 1},
    ),
    "a beginning of text": (
        {"prompt": "<|begin_of_text|>Q", "completion": "A"},
        {"<|begin_of_text|>": 1},
    ),
}


@pytest.mark.parametrize("case", TWICE)
def test_tokens_of_the_template_within_a_text_are_counted_by_rows(case: str, tmp_path: Path):
    row, tokens = TWICE[case]
    (notice,) = noticed(tmp_path, ENDED, [row, {"messages": [Q, A]}])
    assert notice.code == "llm.template-twice" and notice.facts == {"rows": 1, "tokens": tokens}


@pytest.mark.parametrize(
    "text", ["<|im_start|>Q", "[INST] Q", "<b>Q</b>", "<|finetune_right_pad_id|>"]
)
def test_other_text_and_other_special_tokens_are_not_said(text: str, tmp_path: Path):
    assert noticed(tmp_path, ENDED, [{"prompt": text, "completion": "A"}]) == []


TAGGED = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}\n"
    "{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "result", "tokens"),
    [
        (TAGGED, "<tool_response>\n42\n</tool_response>", {"<tool_response>": 1}),
        (TAGGED, "42", None),
        (TAGGED, "<b>42</b>", None),
        (ENDED, "<tool_response>\n42\n</tool_response>", None),
    ],
)
def test_tags_around_a_result_that_the_template_writes_too_are_said(
    template: str, result: str, tokens: dict[str, int] | None, tmp_path: Path
):
    row = {"messages": [Q, A, {"role": "tool", "content": result}, A]}
    said = noticed(tmp_path, template, [row, {"messages": [Q, A]}])
    assert [notice.facts for notice in said] == ([{"rows": 1, "tokens": tokens}] if tokens else [])


def test_answers_that_no_token_ends_are_said_with_their_number(tmp_path: Path):
    (notice,) = noticed(tmp_path, UNENDED, [{"messages": [Q, A]}, {"messages": [Q, A, Q, A]}])
    assert notice.code == "llm.answers-unended" and notice.facts == {"rows": 2}
    assert noticed(tmp_path, UNENDED, [{"messages": [Q, A]}], "dataset.loss=all") == []


def test_an_end_that_is_marked_apart_from_its_answer_ends_it(tmp_path: Path):
    marks = (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}\n{% endgeneration %}"
        "{% generation %}<|eot_id|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|eot_id|>{% endif %}{% endfor %}"
    )
    assert noticed(tmp_path, marks, [{"messages": [Q, A, Q, A]}]) == []


def test_a_broken_row_counts_for_nothing(tmp_path: Path):
    broken = {"messages": [Q | {"content": "<|eot_id|>"}, A | {"content": ""}]}
    assert (
        noticed(tmp_path, ENDED, [broken, {"messages": [Q, A]}], "dataset.skip_broken=true") == []
    )


@pytest.mark.parametrize("name", ["qwen", "mistral", "generation"])
def test_known_templates_end_their_answers(name: str, tmp_path: Path):
    rows = [{"messages": [Q, A]}, {"messages": [Q, A, Q, A]}]
    folder = tmp_path / "model"
    config = typed_llm(written(tmp_path, *rows), with_template(folder, name), "batch_size=1", *CHAT)
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    preflight.prepare(config)
    assert not [notice for notice in preflight.notices(config) if notice.code in CODES]
