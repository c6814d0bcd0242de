"""Rows, generated or read, and the tokenizers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicard.config.placement import Placement
from multicard.llm import batches
from multicard.llm.data import row_sources
from multicard.llm.data import tokenizer as tokens
from multicard.llm.data.templates import TEMPLATES, examples
from multicard.llm.torchtune_config import write as torchtune_config_of
from tests.conftest import shared, typed_llm

# Tokens and bytes of the 500-row extracts of 2505.22905, section 5.4.3
PAPER = {"instruct": (59_330, 374_000), "summarize": (83_544, 341_000), "grammar": (28_683, 135_000)}


def read(folder: Path, *words: str) -> tuple[Any, Any]:
    """The tokenizer and the data set that a recipe gets."""
    from omegaconf import OmegaConf
    from torchtune import config as torchtune_config

    cfg = OmegaConf.create(torchtune_config_of(typed_llm(*words), Placement("cpu", "gloo", 1, False), folder))
    tokenizer = torchtune_config.instantiate(cfg.tokenizer)
    return tokenizer, torchtune_config.instantiate(cfg.dataset, tokenizer, cache_dir=str(folder / "cache"))


def lengths(folder: Path, *words: str) -> np.ndarray:
    """Tokens of each row as torchtune cuts them."""
    return np.array([len(row["tokens"]) for row in read(folder, *words)[1]])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("template", TEMPLATES)
def test_synthetic_rows_have_the_papers_tokens_and_bytes(template: str, seed: int, tmp_path: Path):
    tokens, size = PAPER[template]
    words = [f"template={template}", f"seed={seed}"]
    own = lengths(tmp_path / "own", *words)
    assert own.sum() == pytest.approx(tokens, rel=0.01)
    assert np.percentile(own, 95) > 1.6 * np.percentile(own, 5)  # spread as real rows are
    assert (tmp_path / "own" / "inputs" / "rows.jsonl").stat().st_size == pytest.approx(size, rel=0.05)
    path = shared("tokenizer") / "tokenizer.model"
    real = lengths(tmp_path / "real", *words, "tokenizer=llama3", f"tokenizer.path={path}")
    assert real.sum() == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize("template", TEMPLATES)
def test_synthetic_rows_follow_from_the_seed_in_words_and_not_in_amount(template: str):
    """Which makes 500 rows of any seed as long as the paper's."""
    by_seed = [examples(template, 500, seed) for seed in range(4)]
    sizes = [[len(row.prompt.split()) for row in rows] for rows in by_seed]
    assert max(map(sum, sizes)) < 1.01 * min(map(sum, sizes)) and sizes[0][:20] != sizes[1][:20]
    assert examples(template, 20, 1) == by_seed[1][:20] != by_seed[2][:20]
    assert len({row.right for row in by_seed[0][:300]}) > 200  # not a few rows over and over
    assert sum(row.right == row.wrong for row in by_seed[0][:300]) < 30


def test_synthetic_answers_follow_from_their_prompts():
    for row in examples("grammar", 50, 0):
        assert row.columns["input"] == row.wrong != row.columns["output"] == row.right
    for row in examples("summarize", 50, 0):
        for sentence in row.right.split(". "):
            if sentence.startswith("They meet"):
                assert sentence.rstrip(".").split()[4] in row.prompt
    adding = [row for row in examples("instruct", 300, 0) if row.prompt.startswith("Add")]
    for row in adding:
        numbers = [int(word.rstrip(",")) for word in row.prompt.split() if word.rstrip(",").isdigit()]
        assert row.right.endswith(f"The sum is {sum(numbers)}.")
    assert len(adding) == 30  # 2 of each 20
    assert {bool(row.columns["input"]) for row in examples("instruct", 50, 0)} == {True, False}


def test_files_of_each_form_give_the_same_rows(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"input": f"a {i}", "output": f"b {i}", "more": i} for i in range(9)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "r.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")

    def sampled(name: str, seed: int = 3) -> list[Any]:
        words = (f"dataset.data_files={tmp_path / name}", "dataset.rows=4", f"seed={seed}")
        return row_sources.load(typed_llm("dataset=grammar", *words))[0] or []

    rows = sampled("r.jsonl")
    assert rows == sampled("r.json") == sampled("r.parquet") != sampled("r.json", seed=0)  # another sample
    assert len({row["input"] for row in rows}) == 4 and all(row.keys() == {"input", "output"} for row in rows)


def test_flat_pairs_become_torchtunes_chats(tmp_path: Path):
    turns = "\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: Why?\n\nAssistant:"
    flat = {"prompt": turns, "chosen": " So", "rejected": "No"}
    plain = {"prompt": "Why?", "chosen": "So", "rejected": "No"}
    chat = {
        name: [{"role": "user", "content": "Q"}, {"role": "assistant", "content": name}]
        for name in ("chosen", "rejected")
    }
    for row, expected in (
        (flat, [("user", "Hi"), ("assistant", "Yes?"), ("user", "Why?"), ("assistant", "So")]),
        (plain, [("user", "Why?"), ("assistant", "So")]),
        (chat, [("user", "Q"), ("assistant", "chosen")]),
    ):
        (tmp_path / "p.json").write_text(json.dumps([row]))
        row_sources.read_file.cache_clear()
        config = typed_llm("dataset=preference", "method=dpo", f"dataset.data_files={tmp_path / 'p.json'}")
        (pair,) = row_sources.load(config)[0] or []
        assert [(turn["role"], turn["content"]) for turn in pair["chosen"]] == expected
        assert pair["rejected"][:-1] == pair["chosen"][:-1]


@pytest.mark.parametrize("who", ["system human gpt", "human gpt human gpt", "gpt human", "human", "human human"])
def test_a_conversation_must_take_turns(who: str, tmp_path: Path):
    row = {"conversations": [{"from": name, "value": "x"} for name in who.split()]}
    (tmp_path / "c.json").write_text(json.dumps([row]))
    config = typed_llm("dataset=slimorca", f"dataset.data_files={tmp_path / 'c.json'}")
    if "human gpt" in who and not who.startswith("gpt"):
        assert row_sources.load(config)[0] == [row]
    else:
        with pytest.raises(ValueError, match="holds no conversation"):
            row_sources.load(config)


def test_the_embedded_tokenizer_is_byte_level_repeatable_and_gives_text_back(tmp_path: Path):
    from torchtune.models.llama3 import llama3_tokenizer
    from torchtune.models.llama3._tokenizer import CL100K_PATTERN

    texts = [f"the cat number {i} sat on the mat, naïve 猫" for i in range(50)]
    ranks = tokens.train(texts, 300)
    assert ranks == tokens.train(texts, 300) and len(ranks) == len(set(ranks)) == 300
    assert {bytes([byte]) for byte in range(256)} <= set(ranks) and {b" the", b"the"} & set(ranks)
    (tmp_path / "t").write_text(tokens.tiktoken_lines(ranks))
    (tmp_path / "s.json").write_text(json.dumps(tokens.special_tokens(len(ranks))))
    tokenizer = llama3_tokenizer(str(tmp_path / "t"), str(tmp_path / "s.json"))
    text = "Other text: 1,234 naïve cafés — 猫 🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False, add_eos=False)) == text
    assert tokenizer.pad_id == len(ranks) + tokens.SPECIAL.index("<|finetune_right_pad_id|>")
    assert tokens.PATTERN == CL100K_PATTERN


def test_sequences_are_padded_to_as_many_chunks_as_the_loss_takes():
    rows = torch.arange(1, 42)
    batch = batches.evened(lambda _: {"tokens": rows[None], "labels": rows[None]}, 8, pad_id=0)([])
    assert batch["tokens"].tolist() == [[*range(1, 42), 0, 0]] and batch["labels"][0, 41:].tolist() == [-100, -100]
    for length in range(1, 200):
        padded = batches.least_length(length, 8)
        counts = [len(torch.empty(each).chunk(8)) for each in range(length, padded + 1)]
        assert counts[-1] == 8 and 8 not in counts[:-1] and (length < 57 or padded == length)
