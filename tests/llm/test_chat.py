"""Chat data: the text and the tokens that transformers makes of it, loss on answers,
and rows that are broken.
"""

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX as IGNORED

from multicard.estimate.memory import facts
from multicard.llm import labelled_rows, preflight
from multicard.llm.data import chat, row_sources
from multicard.llm.data import tokenizer as tokens
from multicard.llm.data.tokenizer import PATTERN, SPECIAL
from multicard.messages import Refusal
from tests.conftest import Measured, ok, shared, typed_llm
from tests.helpers.messages import find, refused, remedies
from tests.llm.test_llm_data import read

# the ends that they put behind an answer, and their text: the forms in use, shortened
TEMPLATES = {
    "qwen": (
        "<|eot_id|>",
        """{%- if tools %}
    {{- '<|start_header_id|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|eot_id|>\\n' }}
{%- elif messages[0]['role'] != 'system' %}
    {{- '<|start_header_id|>system\\nYou are helpful.<|eot_id|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- '<|start_header_id|>assistant' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|eot_id|>\\n' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '\\n' + message.content + '<|eot_id|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant\\n' }}
{%- endif %}
""",
    ),
    "mistral": (
        "<|end_of_text|>",
        """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set said = messages[0]['content'] + '\\n\\n' %}
{% set rest = messages[1:] %}{% else %}{% set said = '' %}{% set rest = messages %}{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
{{ '[INST] ' + (said if loop.first else '') + message['content'] + ' [/INST]' }}
    {%- else %}
{{ ' ' + message['content'] + eos_token }}
    {%- endif %}
{% endfor %}
""",
    ),
    "generation": (
        "<|eom_id|>",
        """{% for message in messages %}{% if message.role == 'assistant' %}<|start_header_id|>a
{% generation %}{{ message.content }}<|eom_id|>{% endgeneration %}{% else %}<|start_header_id|>u
{{ message.content }}{% endif %}

{% if message.content == 'stop' %}{% break %}{% endif %}{% endfor %}""",
    ),
}
ROWS = [
    {
        "messages": [
            {"role": "user", "content": "Is it?"},
            {"role": "assistant", "content": "Yes, it is."},
        ]
    },
    {
        "messages": [
            {"role": "system", "content": "Be brief & naïve <b>."},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Un, deux — 猫 🙂"},
            {"role": "user", "content": " Two?\n"},
            {"role": "assistant", "content": "{{ two }}"},
            {"role": "user", "content": "Three?"},
        ]
    },
]


def written(folder: Path, *rows: Any, name: str = "chats.jsonl") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"dataset.data_files={folder / name}"


def with_template(folder: Path, name: str) -> str:
    """A model's folder with this template."""
    folder.mkdir(exist_ok=True)
    settings = {"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|end_of_text|>"}
    text = TEMPLATES[name][1]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": text}))
    return f"dataset.chat_template={folder}"


def answers(rows: list[Any]) -> list[str]:
    return [
        turn["content"] for row in rows for turn in row["messages"] if turn["role"] == "assistant"
    ]


def learnt(row: Any, decode: Callable[[list[int]], str]) -> list[str]:
    """The text of each run of tokens with loss."""
    labels = [int(label) for label in row["labels"]]
    return [
        decode(list(run))
        for is_learnt, run in groupby(labels, lambda label: label != IGNORED)
        if is_learnt
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_tokens_are_those_of_transformers_and_answers_are_learnt_whole(
    name: str, tmp_path: Path
):
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    end, source = TEMPLATES[name]
    words = ("dataset=chat", written(tmp_path, *ROWS), with_template(tmp_path / "model", name))
    tokenizer, data = read(tmp_path / "run", *words)
    converter = TikTokenConverter(
        str(tmp_path / "run/inputs/tokenizer.tiktoken"), PATTERN, extra_special_tokens=SPECIAL
    )
    special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    theirs: Any = PreTrainedTokenizerFast(tokenizer_object=converter.converted(), **special)
    expected = [
        theirs.apply_chat_template(row["messages"], chat_template=source)["input_ids"]
        for row in ROWS
    ]
    assert sorted(list(row["tokens"]) for row in data) == sorted(expected)
    decode = tokenizer.tt_model.tt_model.decode
    runs = [run for row in data for run in learnt(row, decode)]
    assert sorted(run.removeprefix(" ") for run in runs) == sorted(
        answer + end for answer in answers(ROWS)
    )
    everything = read(tmp_path / "all", *words, "dataset.loss=all")[1]
    assert [list(row["labels"][1:]) for row in everything] == [
        list(row["tokens"][1:]) for row in everything
    ]
    assert sorted(list(row["tokens"]) for row in everything) == sorted(expected)


def test_tools_and_their_answers_are_written_by_the_template(tmp_path: Path):
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    row = {
        "messages": [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "2", "name": "add"},
            {"role": "assistant", "content": "Two"},
        ],
        "tools": json.dumps([{"name": "add"}]),
    }
    words = ("dataset=chat", written(tmp_path, row), with_template(tmp_path / "m", "qwen"))
    (pieces,) = [row["pieces"] for row in row_sources.load_rows(typed_llm(*words))[0] or []]
    said = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|eot_id|>'
    tool = '{"type": "function", "function": {"name": "add"}}'
    assert pieces[0]["content"].startswith("<|start_header_id|>system\n" + tool + "<|eot_id|>\n")
    assert [piece["content"] for piece in pieces if piece["learnt"]] == [
        said.removeprefix("\n"),
        "Two<|eot_id|>",
    ]
    with refused("llm.broken-rows", row=1) as caught:
        row_sources.load_rows(typed_llm(*words[:2]))
    assert find(str(caught.value), "llm.chat-unwritten", column="tools")


def test_without_a_template_the_form_is_the_models_own(tmp_path: Path):
    """Llama 3's, as torchtune's tokenizer writes it but for its end of text; and Qwen's."""
    from torchtune.data import Message

    shared_gpt = {
        "conversations": [
            {"from": "human", "value": "Is it?"},
            {"from": "gpt", "value": " Yes, it is. "},
        ]
    }
    words = ("dataset=chat", "batch_size=1", written(tmp_path, shared_gpt))
    tokenizer, data = read(tmp_path / "run", *words)
    messages = [Message("user", "Is it?", masked=True), Message("assistant", "Yes, it is.")]
    expected, mask = tokenizer.tokenize_messages(messages)
    assert list(data[0]["tokens"]) == expected[:-1]
    assert (
        learnt(data[0], tokenizer.tt_model.tt_model.decode) == ["Yes, it is.<|eot_id|>"]
        and not mask[-2]
    )
    vocabulary = [*tokens.byte_level_alphabet(), "Ye"]
    vocabulary += [f"unused {i}" for i in range(tokens.QWEN25_TOKENS - len(vocabulary))]
    (tmp_path / "vocab.json").write_text(
        json.dumps({token: i for i, token in enumerate(vocabulary)})
    )
    (tmp_path / "merges.txt").write_text("#version: 0.2\nY e\n")
    files = (
        f"tokenizer.path={tmp_path / 'vocab.json'}",
        f"tokenizer.merges_file={tmp_path / 'merges.txt'}",
    )
    qwen = ("model=qwen2_5_tiny", "tokenizer=qwen2_5", *files)
    written(
        tmp_path,
        {
            "messages": [
                {"role": "user", "content": "e\u0301?"},
                {"role": "assistant", "content": "Yés"},
            ]
        },
    )
    tokenizer, data = read(tmp_path / "qwen", *words, *qwen)
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    whole = "<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\nYés<|im_end|>\n"
    assert decode(list(data[0]["tokens"])) == whole and learnt(data[0], decode) == ["Yés<|im_end|>"]


def test_a_template_is_found_beside_the_tokenizer_and_the_file_wins(tmp_path: Path):
    path = shared("tokenizer") / "tokenizer.model"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tokenizer.model").symlink_to(path)
    words = (
        "dataset=chat",
        written(tmp_path, *ROWS),
        "tokenizer=llama3",
        f"tokenizer.path={tmp_path}/own/tokenizer.model",
    )
    config = typed_llm(*words)
    assert chat.template(config).source.startswith("{{- bos_token -}}")
    with_template(tmp_path / "own", "qwen")
    assert chat.template(config).source == TEMPLATES["qwen"][1]
    (tmp_path / "own" / "chat_template.jinja").write_text(
        '{{ eos_token + strftime_now("%d %b %Y") }}'
    )
    assert chat.template(config).render() == "<|end_of_text|>26 Jul 2024"
    parts = dict(preflight.data_parts(config)["tokenizer"])
    assert set(parts) == {"tokenizer.model", "chat_template"}


@pytest.mark.parametrize("name", ["chats.jsonl", "chats.json"])
def test_a_byte_order_mark_blank_lines_and_rows_of_all_forms_are_read(name: str, tmp_path: Path):
    shared_gpt = {
        "conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}],
        "tools": "",
    }
    parts = [
        turn | {"content": [{"type": "text", "text": text} for text in turn["content"]]}
        for turn in ROWS[0]["messages"]
    ]
    rows = [ROWS[0], shared_gpt, ROWS[1] | {"tools": None}, {"messages": parts}]
    text = json.dumps(rows) if name.endswith("json") else "\n \r\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(text, "utf-8-sig")
    loaded, broken, *_ = row_sources.load_rows(
        typed_llm("dataset=chat", f"dataset.data_files={tmp_path / name}")
    )
    assert loaded is not None
    # in parts and in one
    assert (len(loaded), broken) == (4, None) and max(map(loaded.count, loaded)) == 2


USER, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


def test_an_answer_of_weight_0_is_read_and_not_learnt(tmp_path: Path):
    row = {"messages": [USER, ANSWER | {"weight": 0}, USER, ANSWER | {"content": "B", "weight": 1}]}
    words = ("dataset=chat", written(tmp_path, row))
    (pieces,) = [row["pieces"] for row in row_sources.load_rows(typed_llm(*words))[0] or []]
    assert "A<|eot_id|>" in pieces[0]["content"] and [each["learnt"] for each in pieces] == [
        False,
        True,
    ]
    (pieces,) = [
        row["pieces"]
        for row in row_sources.load_rows(
            typed_llm(*words, with_template(tmp_path / "m", "generation"))
        )[0]
        or []
    ]
    assert [each["content"] for each in pieces if each["learnt"]] == ["B<|eom_id|>"]
    twice = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    (tmp_path / "m" / "twice.jinja").write_text(twice)
    with refused("llm.broken-rows", row=1) as caught:
        row_sources.load_rows(
            typed_llm(*words, f"dataset.chat_template={tmp_path / 'm' / 'twice.jinja'}")
        )
    assert find(str(caught.value), "llm.chat-weight")


# what the template itself says
ALTERNATE = "Roles must alternate user/assistant/user/assistant/..."
BROKEN: list[tuple[Any, str, dict[str, Any]]] = [
    ("Q", "llm.row-no-object", {}),
    ({"title": "Q"}, "llm.chat-no-messages", {"found": ["title"]}),
    ({"messages": "Q"}, "llm.chat-no-messages", {"found": ["messages"]}),
    ({"messages": ["Q", 1]}, "llm.chat-no-messages", {}),
    ({"messages": [{"content": "Q"}, ANSWER]}, "llm.chat-role", {"message": 1, "role": None}),
    (
        {"messages": [{"role": "usr", "content": "Q"}, ANSWER]},
        "llm.chat-role",
        {"message": 1, "role": "usr"},
    ),
    (
        {"messages": [USER, {"role": "assistant", "content": " "}]},
        "llm.chat-empty-answer",
        {"message": 2},
    ),
    (
        {"messages": [USER, {"role": "assistant"}]},
        "llm.chat-no-text",
        {"message": 2, "role": "assistant"},
    ),
    ({"messages": [USER, USER]}, "llm.chat-no-answer", {}),
    ({"messages": [USER, ANSWER], "tools": "add"}, "llm.chat-tools", {"tools": "add"}),
    (
        {"messages": [{"role": "user", "content": [{"image": "x"}]}, ANSWER]},
        "llm.chat-part",
        {"message": 1, "role": "user"},
    ),
    ({"messages": [USER, {"role": "system", "content": "S"}, ANSWER]}, "llm.chat-late-system", {}),
    ({"messages": [USER, USER, ANSWER]}, "llm.chat-refused-by-template", {"reason": ALTERNATE}),
    (
        {"messages": [USER | {"content": "\ud800"}, ANSWER]},
        "llm.row-half-character",
        {"half": "\\ud800"},
    ),
]


def assert_left_out(row: Any, tmp_path: Path) -> str:
    """A file with the row is refused, and read without it where that is asked for;
    why it is refused.
    """
    words = (
        "dataset=chat",
        written(tmp_path, ROWS[0], row, ROWS[1], row),
        with_template(tmp_path / "m", "mistral"),
    )
    file = {"key": "dataset.data_files", "value": str(tmp_path / "chats.jsonl")}
    with refused("llm.broken-rows", **file, row=2, broken=2, rows=4, skippable=2) as caught:
        row_sources.load_rows(typed_llm(*words))
    loaded = row_sources.load_rows(typed_llm(*words, "dataset.skip_broken=true"))
    assert (len(loaded[0] or []), loaded[1]) == (2, 2)
    written(tmp_path, row)
    with refused("llm.broken-rows", row=1, broken=1, rows=1, skippable=0):
        row_sources.load_rows(typed_llm(*words, "dataset.skip_broken=true"))
    return caught.value.facts["reason"]


@pytest.mark.parametrize(("row", "code", "facts"), BROKEN)
def test_a_broken_row_is_named_and_left_out_where_that_is_asked_for(
    row: Any, code: str, facts: dict[str, Any], tmp_path: Path
):
    assert find(assert_left_out(row, tmp_path), code, **facts)


@pytest.mark.parametrize(
    ("template", "code", "facts"),
    [
        (None, "llm.chat-template-absent", {"key": "dataset.chat_template"}),
        ("{% if %}", "llm.chat-template-unread", {"key": "dataset.chat_template"}),
        (
            "{{ messages | map(attribute='content') | join | reverse }} {{ messages[-1].content }}",
            "llm.chat-message-changes",
            {"message": 2},
        ),
        ("no answer", "llm.chat-answer-unwritten", {}),
        ("{{ messages.x.y }}", "llm.chat-refused-by-template", {}),
        ("{{ messages.append(1) }}", "llm.chat-refused-by-template", {}),
    ],
)
def test_a_template_that_is_missing_or_cannot_be_used_is_refused(
    template: str | None, code: str, facts: dict[str, Any], tmp_path: Path
):
    place = tmp_path
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    if code == "llm.chat-template-unread":
        place = tmp_path / "chat_template.jinja"
    words = ("dataset=chat", written(tmp_path, *ROWS), f"dataset.chat_template={place}")
    with pytest.raises(Refusal) as caught:
        row_sources.load_rows(typed_llm(*words))
    found = find(str(caught.value), code, **facts)
    if found.key:
        assert found.facts["value"] == str(place)
    else:
        assert (caught.value.facts["broken"], caught.value.facts["rows"]) == (2, 2)
    if template and "append" in template:
        assert "'append'" in found.facts["reason"]


def test_rows_are_cut_and_packed_and_the_longest_is_predicted(tmp_path: Path):
    words = ("dataset=chat", written(tmp_path, *ROWS), "batch_size=1")
    rows = read(tmp_path / "whole", *words)[1]
    longest = max(len(row["tokens"]) for row in rows)
    assert facts.sizes(typed_llm(*words)).length == pytest.approx(longest, abs=3)  # type: ignore[union-attr]
    first = min(i for row in rows for i, label in enumerate(row["labels"]) if label != IGNORED)
    cut = read(tmp_path / "cut", *words, f"max_seq_len={first + 1}")[1]
    counts = {
        "read": 2,
        "cut": 2,
        "left_out": 1,
        "broken": None,
        "equal": None,
        "last_alone": 0,
        "sequences": None,
    }
    assert labelled_rows.counts(cut) == counts and len(cut[0]["tokens"]) == first + 1
    packs = read(tmp_path / "packs", *words, f"max_seq_len={2 * longest}", "packed=true")[1]
    labels = sorted(int(label) for pack in packs for label in pack["labels"] if label != IGNORED)
    assert labels == sorted(
        int(label) for row in rows for label in row["labels"] if label != IGNORED
    )


def test_a_run_on_chats_counts_what_it_left_out(tuned: Measured, tmp_path: Path):
    words = written(tmp_path, *ROWS * 8, {"messages": []})
    record = ok(
        tuned("dataset=chat", words, "dataset.split=0", "dataset.skip_broken=true", "gpus=2")
    )
    assert record["text_rows"] == {
        "read": 16,
        "cut": 0,
        "left_out": 0,
        "broken": 1,
        "equal": None,
        "last_alone": 0,
        "sequences": None,
    }
    assert record["ignored"] == []
    assert record["tokens"]["loss_bearing"] < record["tokens"]["non_padding"] / 2


@pytest.mark.parametrize(
    ("words", "code", "key", "offered"),
    [
        (
            ["method=dpo"],
            "llm.dataset-without-pairs",
            "dataset",
            ["dataset=preference", "dataset=synthetic"],
        ),
        (["template=instruct"], "llm.template-unfit", "template", []),  # to leave it out
    ],
)
def test_what_does_not_go_with_chats_is_refused(
    words: list[str], code: str, key: str, offered: list[str]
):
    with refused(code, key=key) as caught:
        preflight.refuse(typed_llm("dataset=chat", "dataset.data_files=x.jsonl", *words))
    assert remedies(caught.value) == offered
