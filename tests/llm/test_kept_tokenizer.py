"""The tokenizer that is kept beside a tuned model gives the tokens that the run was tuned on."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer
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
    assert [kept.id_to_token(number) for number in ids["eos_token_id"]] == ["<|eot_id|>", "<|end_of_text|>"]


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
    files = [f"tokenizer.path={tmp_path / 'vocab.json'}", f"tokenizer.merges_file={tmp_path / 'merges.txt'}"]
    config = typed_llm("model=qwen2_5_tiny", "tokenizer=qwen2_5", *files)
    check(config, tmp_path, tmp_path / "kept")
