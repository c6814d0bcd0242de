"""The tokenizer that is kept beside a tuned model gives the tokens that the run was tuned on."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torchtune import config as components

from multicard.llm import kept_tokenizer
from multicard.llm.data import tokenizer
from multicard.messages import ROOT
from tests.conftest import typed_llm

TEXTS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs.",
    "  spaces,\n\n\tlines and\r\n  more   ",
    "naïve café, Ünïcödé — 日本語 🙂 e\u0301",
    "def f(x):\n    return x ** 2  # comment",
    "",
]


def corpus() -> list[str]:
    return [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))[:4]]


def embedded(folder: Path, ranks: list[bytes]) -> None:
    folder.mkdir()
    (folder / "tokenizer.tiktoken").write_text(tokenizer.tiktoken_lines(ranks))
    (folder / "special_tokens.json").write_text(json.dumps(tokenizer.special_tokens(len(ranks))))


def check(config: Any, inputs: Path, place: Path) -> None:
    place.mkdir()
    kept_tokenizer.write(config, inputs, place)
    kept = Tokenizer.from_file(str(place / tokenizer.FILE))
    component = tokenizer.component(config.tokenizer, inputs) | {"max_seq_len": 512}
    own = components.instantiate(OmegaConf.create(component))
    for text in TEXTS:
        encoded = kept.encode(text, add_special_tokens=False).ids
        assert encoded == own.encode(text, add_bos=False, add_eos=False), text
    for token, number in kept_tokenizer.special_numbers(config, inputs).items():
        assert kept.token_to_id(token) == number
        if token.startswith("<|"):
            assert kept.encode(f"a{token}b", add_special_tokens=False).ids.count(number) == 1


def test_the_embedded_tokenizer_is_kept(tmp_path: Path):
    embedded(tmp_path / "inputs", tokenizer.train(corpus(), 1500))
    check(typed_llm(), tmp_path / "inputs", tmp_path / "kept")
    ids = kept_tokenizer.special_ids(typed_llm(), tmp_path / "inputs")
    kept = Tokenizer.from_file(str(tmp_path / "kept/tokenizer.json"))
    assert kept.encode("a").ids[0] == ids["bos_token_id"]
    assert [kept.id_to_token(number) for number in ids["eos_token_id"]] == [
        "<|eot_id|>",
        "<|end_of_text|>",
    ]


def test_a_file_that_changed_is_read_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """tiktoken keeps copies of files by their paths, if it may."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    inputs = tmp_path / "inputs"
    lengths = []
    for text in ("a", corpus()[0]):
        embedded(inputs, tokenizer.train([text], 400))
        component = tokenizer.component(typed_llm().tokenizer, inputs) | {"max_seq_len": 512}
        own = components.instantiate(OmegaConf.create(component))
        lengths.append(len(own.encode(corpus()[0], add_bos=False, add_eos=False)))
        shutil.rmtree(inputs)
    assert lengths[1] < lengths[0]
    assert not (tmp_path / "data-gym-cache").exists()


@pytest.mark.slow  # 128,000 tokens, most of them never met
def test_llama_3s_own_tokenizer_is_kept(tmp_path: Path):
    ranks = tokenizer.train(corpus(), 3000)
    ranks += [f"\x00{number}".encode() for number in range(tokenizer.LLAMA3_RANKS - len(ranks))]
    file = tmp_path / "tokenizer.model"
    file.write_text(tokenizer.tiktoken_lines(ranks))
    config = typed_llm("tokenizer=llama3", f"tokenizer.path={file}", "model.vocab_size=null")
    numbers = kept_tokenizer.special_numbers(config, tmp_path)
    assert max(numbers.values()) < tokenizer.LLAMA3_VOCABULARY and numbers["<|eot_id|>"] == 128_009
    check(config, tmp_path, tmp_path / "kept")


@pytest.mark.slow  # 151,643 tokens
def test_qwens_own_tokenizer_is_kept(tmp_path: Path):
    letters = {byte: letter for letter, byte in tokenizer.byte_level_alphabet().items()}
    words = ["".join(letters[byte] for byte in token) for token in tokenizer.train(corpus(), 1000)]
    vocabulary = {word: place for place, word in enumerate(words)}
    ranks = tokenizer.train(corpus(), 1000)
    known = set(ranks)
    merges = []
    for token in ranks:
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        halves = next(((a, b) for a, b in cuts if a in known and b in known), None)
        if halves is not None:
            merges.append(" ".join("".join(letters[byte] for byte in half) for half in halves))
    vocabulary |= {f"unmet {place}": place for place in range(len(words), tokenizer.QWEN25_TOKENS)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    files = [
        f"tokenizer.path={tmp_path / 'vocab.json'}",
        f"tokenizer.merges_file={tmp_path / 'merges.txt'}",
    ]
    config = typed_llm("model=qwen2_5_tiny", "tokenizer=qwen2_5", *files)
    check(config, tmp_path, tmp_path / "kept")


# ---- chat templates

NAMED = {
    "default": "D {{ messages[0].content }}",
    "tool_use": "T {{ messages[0].content }}",
    "rag": "R {{ documents }}",
}


def in_a_list(folder: Path) -> None:
    listed = [{"name": name, "template": source} for name, source in NAMED.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))


def in_files(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(NAMED["default"])
    (folder / "additional_chat_templates").mkdir()
    for name in ("tool_use", "rag"):
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(NAMED[name])


def kept_templates(place: Path) -> Any:
    """The templates as transformers finds them in a folder."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(place).chat_template


def with_model(folder: Path, form: Callable[[Path], None]) -> Path:
    folder.mkdir()
    form(folder)
    Tokenizer(WordLevel({"a": 0, "?": 1}, "?")).save(str(folder / tokenizer.FILE))
    return folder


@pytest.mark.parametrize("form", [in_a_list, in_files])
def test_all_named_chat_templates_are_kept(form: Callable[[Path], None], tmp_path: Path):
    asked, embedding, place = (
        with_model(tmp_path / "asked", form),
        tmp_path / "inputs",
        tmp_path / "kept",
    )
    embedded(embedding, tokenizer.train(["a b c"], 300))
    place.mkdir()
    config = typed_llm("dataset=chat", "dataset.data_files=x", f"dataset.chat_template={asked}")
    kept_tokenizer.write(config, embedding, place)
    assert kept_templates(place) == NAMED


@pytest.mark.parametrize("form", [in_a_list, in_files])
def test_all_named_chat_templates_of_a_folder_are_kept(
    form: Callable[[Path], None], tmp_path: Path
):
    model = with_model(tmp_path / "model", form)
    sizes = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": 8,
        "intermediate_size": 8,
    }
    (model / "config.json").write_text(
        json.dumps({"model_type": "llama", "vocab_size": 9, **sizes})
    )
    words = ("engine=trl", "model=hf", f"model.path={model}", "model.weights=random")
    words += ("dataset=chat", "dataset.data_files=x")
    for name, other, expected in (
        ("own", [], NAMED),
        ("other", [f"dataset.chat_template={model / 'a.jinja'}"], "A"),
    ):
        (model / "a.jinja").write_text("A")
        (tmp_path / name).mkdir()
        kept_tokenizer.write(typed_llm(*words, *other), tmp_path, tmp_path / name)
        assert kept_templates(tmp_path / name) == expected
