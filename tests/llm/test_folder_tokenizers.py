"""What the files of a model's folder say of its tokens: rows
have the tokens that transformers gives them.
"""

import json
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from multicard.config.llm_texts import ChatLoss
from multicard.llm import kept_tokenizer, labelled_rows, preflight
from multicard.llm.data import chat, forms
from multicard.llm.data.tokenizer import FolderTokenizer, check_folder, of_folder
from tests.conftest import typed_llm
from tests.helpers.messages import refused, remedies
from tests.llm.test_folders import SIZES, byte_tokenizer, words_of

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")

SAID = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "An answer."}]
NAMED = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
)
NAMED += "{% if add_generation_prompt %}<assistant>{% endif %}"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SPECIAL = {
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
    "special": True,
}
FIRST = 256 + len(("</s>", "<s>"))  # the next number behind those of `model`
FAST: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}


def model(
    folder: Path, template: str, settings: dict[str, Any] | None = None, **files: Any
) -> Path:
    """A folder with a tokenizer of bytes, `<s>` and `</s>`, and these settings of it."""
    folder.mkdir(exist_ok=True)
    byte_tokenizer(folder, "<s>")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps(FAST | (settings or {})))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def written(folder: Path, *words: str) -> dict[str, Any]:
    """The pieces of the conversation, by the folder's tokenizer."""
    config = typed_llm(
        *words_of(folder, "dataset=chat", f"dataset.data_files={folder / 'rows.jsonl'}", *words)
    )
    conversation = forms.conversation(forms.columns_of({"messages": SAID}, {}))
    return chat.converted(conversation, chat.template(config), ChatLoss.answers)[0]


def text(row: dict[str, Any]) -> str:
    return "".join(piece["content"] for piece in row["pieces"])


def learnt(row: dict[str, Any]) -> list[str]:
    return [piece["content"] for piece in row["pieces"] if piece["learnt"]]


def theirs(folder: Path, **options: Any) -> Any:
    """The tokens by transformers."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder).apply_chat_template(
        SAID, return_dict=True, **options
    )["input_ids"]


TRUNCATION = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    **{"strategy": {"Fixed": 128}, "direction": "Left", "pad_to_multiple_of": None},
    **{"pad_id": 0, "pad_type_id": 0, "pad_token": "</s>"},
}


@pytest.mark.parametrize("own", [{"truncation": TRUNCATION}, {"padding": PADDING}], ids=str)
def test_rows_are_neither_cut_nor_padded_by_what_tokenizer_json_holds(
    tmp_path: Path, own: dict[str, Any]
):
    folder = model(tmp_path / "model", CHATML)
    plain = labelled_rows.chat_tokens(FolderTokenizer(str(folder)), written(folder))
    stored = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(stored | own))
    row = labelled_rows.chat_tokens(FolderTokenizer(str(folder)), written(folder))
    assert row["tokens"] == plain["tokens"] and row["mask"].tolist() == plain["mask"].tolist()
    assert len(row["tokens"]) == len(text(written(folder)).encode())  # a token a byte


@pytest.mark.parametrize(
    ("settings", "files", "expected"),
    [
        (
            {"bos_token": None, "eos_token": "</s>"},
            {},
            "<user>What is it?</s><assistant>An answer.</s>",
        ),
        ({"eos_token": "</s>"}, {}, "<user>What is it?</s><assistant>An answer.</s>"),
        ({}, {}, "<user>What is it?<assistant>An answer."),
        ({"bos_token": "<s>"}, {}, "<s><user>What is it?<assistant>An answer."),
        (
            {},
            {
                "special_tokens_map": {
                    "bos_token": "<s>",
                    "eos_token": {"content": "</s>", **SPECIAL},
                }
            },
            "<s><user>What is it?</s><assistant>An answer.</s>",
        ),
        (
            {
                "add_bos_token": True,
                "add_eos_token": False,
                "bos_token": "<s>",
                "eos_token": "</s>",
            },
            {},
            "<s><user>What is it?</s><assistant>An answer.</s>",
        ),
    ],
)
def test_a_template_writes_the_models_own_tokens_and_nothing_for_those_it_lacks(
    tmp_path: Path, settings: dict[str, Any], files: dict[str, Any], expected: str
):
    folder = model(tmp_path / "model", NAMED, settings, **files)
    row = written(folder)
    assert text(row) == expected
    assert labelled_rows.chat_tokens(FolderTokenizer(str(folder)), row)["tokens"] == theirs(folder)


def test_a_token_that_the_model_lacks_is_undefined_in_its_template(tmp_path: Path):
    asks = "{% if bos_token is defined %}<begin>{% endif %}" + CHATML
    assert text(written(model(tmp_path / "model", asks))).startswith("<|im_start|>")


@pytest.mark.parametrize("beside", [{}, {"bos_token": "<other>", "eos_token": "<end>"}], ids=str)
def test_tokens_are_the_models_where_the_template_is_another_file(
    tmp_path: Path, beside: dict[str, str]
):
    folder = model(tmp_path / "model", CHATML, {"bos_token": "<s>", "eos_token": "</s>"})
    (tmp_path / "other").mkdir()
    asked = tmp_path / "other" / "named.jinja"
    asked.write_text(NAMED)
    (tmp_path / "other" / "tokenizer_config.json").write_text(json.dumps(beside))
    row = written(folder, f"dataset.chat_template={asked}")
    assert text(row) == "<s><user>What is it?</s><assistant>An answer.</s>" and learnt(row) == [
        "An answer.</s>"
    ]
    tokens = labelled_rows.chat_tokens(FolderTokenizer(str(folder)), row)["tokens"]
    assert tokens == theirs(folder, chat_template=NAMED)


ADDED = {
    str(FIRST + place): {"content": f"<|im_{name}|>", **SPECIAL}
    for place, name in enumerate(("start", "end"))
}


@pytest.mark.parametrize(
    ("settings", "end"),
    [({"added_tokens_decoder": ADDED}, FIRST + 1), ({"eos_token": "<|im_end|>"}, FIRST)],
    ids=["added_tokens_decoder", "eos_token"],
)
def test_tokens_that_tokenizer_json_lacks_are_tokens(
    tmp_path: Path, settings: dict[str, Any], end: int
):
    folder = model(tmp_path / "model", CHATML, settings)
    row = labelled_rows.chat_tokens(FolderTokenizer(str(folder)), written(folder))
    assert row["tokens"] == theirs(folder) and row["tokens"].count(end) == 2
    last = max(place for place, masked in enumerate(row["mask"]) if not masked)
    assert row["tokens"][last] == end  # the answer is learnt to the token that ends it


def test_the_class_that_a_folder_names_splits_its_text(tmp_path: Path):
    """Llama 2's with `legacy: false` puts no space behind special tokens,
    whatever tokenizer.json does.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    folder = model(
        tmp_path / "model", NAMED, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    )
    letters = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    own = Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # pyright: ignore[reportAttributeAccessIssue]
    own.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )  # pyright: ignore[reportAttributeAccessIssue]
    own.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in letters[:3]]
    )
    own.save(str(folder / "tokenizer.json"))
    counts = list[int]()
    for name in ("PreTrainedTokenizerFast", "LlamaTokenizer"):
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings | {"tokenizer_class": name, "legacy": False})
        )
        tokens = labelled_rows.chat_tokens(FolderTokenizer(str(folder)), written(folder))["tokens"]
        assert tokens == theirs(folder)
        counts.append(len(tokens))
    assert counts[0] > counts[1]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {"added_tokens_decoder": ADDED, "eos_token": "</s>"}),
        # of which config.json knows better
        ("qwen2", {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}),
        ("qwen2", {"tokenizer_class": None}),
    ],
    ids=str,
)
def test_a_kept_tokenizer_has_the_same_tokens_without_the_models_configuration(
    tmp_path: Path, kind: str, settings: dict[str, Any]
):
    folder = model(tmp_path / "model", CHATML, settings, special_tokens_map={"bos_token": "<s>"})
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SIZES}))
    words = ("dataset=chat", f"dataset.data_files={folder / 'rows.jsonl'}")
    (tmp_path / "kept").mkdir()
    kept_tokenizer.write(
        typed_llm(*words_of(folder, *words)), tmp_path / "inputs", tmp_path / "kept"
    )
    assert theirs(tmp_path / "kept") == theirs(folder)
    own, kept = (of_folder(str(place)) for place in (folder, tmp_path / "kept"))
    assert kept.special_tokens_map == own.special_tokens_map and kept.get_vocab() == own.get_vocab()


def test_the_files_that_say_which_tokens_there_are_identify_the_tokenizer(tmp_path: Path):
    roles = {"special_tokens_map": {"eos_token": "</s>"}}
    folder = model(tmp_path / "model", NAMED, **roles)
    words = ("dataset=chat", f"dataset.data_files={folder / 'config.json'}")
    names = [
        name for name, _ in preflight.data_parts(typed_llm(*words_of(folder, *words)))["tokenizer"]
    ]
    own = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template",
    ]
    assert names == own


def test_a_token_beyond_the_models_vocabulary_is_refused_unless_it_only_pads(tmp_path: Path):
    folder = model(tmp_path / "model", CHATML, {"pad_token": "<pad>", "eos_token": "</s>"})
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", **SIZES, "vocab_size": FIRST})
    )
    options = typed_llm(*words_of(folder)).model
    assert check_folder(options).pad_token_id == FIRST  # pyright: ignore[reportArgumentType]
    model(folder, CHATML, {"pad_token": "<pad>", "eos_token": "<end>"})
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", **SIZES, "vocab_size": FIRST})
    )
    with refused("llm.folder-tokens", key="model.path", vocab_size=FIRST):
        check_folder(options)  # pyright: ignore[reportArgumentType]


def test_tokens_beside_a_template_are_a_torchtune_models_only_if_it_has_them(tmp_path: Path):
    (tmp_path / "named.jinja").write_text(NAMED)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "<|eot_id|>"})
    )
    words = ("dataset=chat", f"dataset.data_files={tmp_path / 'rows.jsonl'}")
    own = chat.template(typed_llm(*words, f"dataset.chat_template={tmp_path / 'named.jinja'}"))
    conversation = forms.conversation(forms.columns_of({"messages": SAID}, {}))
    row = chat.converted(conversation, own, ChatLoss.answers)[0]
    assert (
        text(row) == "<|begin_of_text|><user>What is it?<|eot_id|><assistant>An answer.<|eot_id|>"
    )


@pytest.mark.parametrize("turn", ["<|im_start|>", "<|start_header_id|>", "<turn>"])
def test_a_base_model_is_refused_with_the_form_that_its_tokens_fit(turn: str, tmp_path: Path):
    place = tmp_path / "base"
    place.mkdir()
    byte_tokenizer(place, turn, "<|im_end|>", "<|eot_id|>")
    (place / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": SAID}) + "\n")
    chats = ("dataset=chat", f"dataset.data_files={tmp_path / 'rows.jsonl'}", "dataset.split=0")
    words = words_of(place, *chats, "batch_size=1")
    with refused("llm.no-chat-template", key="model.path") as caught:
        preflight.prepare(typed_llm(*words))
    remedy = caught.value.facts["remedy"]
    if turn == "<turn>":
        assert remedy is None
        return
    (word,) = shlex.split(remedy)
    (row,) = preflight.prepare(typed_llm(*words, word)).rows or ()
    assert turn in "".join(piece["content"] for piece in row["pieces"])


@pytest.mark.parametrize("bos", ["<s>", None])
def test_a_base_model_without_tokens_for_turns_is_given_a_form_of_plain_headers(
    bos: str | None, tmp_path: Path
):
    place = model(tmp_path / "base", "", {"eos_token": "</s>", "bos_token": bos})
    (place / "chat_template.jinja").unlink()
    rows: list[dict[str, Any]] = [{"messages": [*SAID, *SAID]}, {"text": "A text."}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chats = ("dataset=chat", f"dataset.data_files={tmp_path / 'rows.jsonl'}", "dataset.split=0")
    words = words_of(place, *chats, "batch_size=1")
    with refused("llm.no-chat-template", key="model.path") as caught:
        preflight.prepare(typed_llm(*words))
    remedy = shlex.split(caught.value.facts["remedy"])
    config = typed_llm(*words, *remedy, "dataset.skip_broken=true")
    (row,) = preflight.prepare(config).rows or ()
    turns = "### User:\nWhat is it?\n\n### Assistant:\nAn answer.</s>\n\n"
    assert text(row) == (bos or "") + turns * 2
    assert learnt(row) == ["An answer.</s>"] * 2
    whole = preflight.prepare(typed_llm(*words, *remedy, "dataset.loss=all")).rows or ()
    assert "A text.</s>" in [text(each) for each in whole]


def test_a_base_model_is_given_a_template_for_data_sets_without_a_key_for_it(tmp_path: Path):
    place = model(tmp_path / "the base", "", {"eos_token": "</s>"})
    (place / "chat_template.jinja").unlink()
    row = {"instruction": "What is it?", "input": "", "output": "An answer."}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    rows = ("dataset=alpaca_cleaned", f"dataset.data_files={tmp_path / 'rows.jsonl'}")
    words = words_of(place, *rows, "dataset.split=0", "batch_size=1")
    with refused("llm.no-chat-template", key="model.path") as caught:
        preflight.prepare(typed_llm(*words))
    (command,) = remedies(caught.value)
    subprocess.run(command, shell=True, check=True)
    (written,) = preflight.prepare(typed_llm(*words)).rows or ()
    assert learnt(written) == ["An answer.</s>"]
