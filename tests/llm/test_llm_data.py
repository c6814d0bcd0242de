"""Rows, generated or read, cut and packed, and the tokenizers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX as IGNORED

from multicard.config.placement import Placement
from multicard.llm import batches, labelled_rows, models, summary
from multicard.llm.batches import COUNTS, PackedBatch, count, half_mask, with_counts
from multicard.llm.data import pairs, row_sources
from multicard.llm.data import tokenizer as tokens
from multicard.llm.data.templates import TEMPLATES, examples
from multicard.llm.torchtune_config import write as torchtune_config_of
from multicard.records.rank_files import LlmReport
from tests.conftest import Measured, ok, shared, typed_llm
from tests.helpers import records
from tests.helpers.messages import find, refused, remedies
from tests.helpers.recorded import steps

# Tokens and bytes of the 500-row extracts of 2505.22905, section 5.4.3
PAPER = {
    "instruct": (59_330, 374_000),
    "summarize": (83_544, 341_000),
    "grammar": (28_683, 135_000),
}


def read(folder: Path, *words: str) -> tuple[Any, Any]:
    """The tokenizer and the data set that a recipe gets."""
    from omegaconf import OmegaConf
    from torchtune import config as torchtune_config

    cfg = OmegaConf.create(
        torchtune_config_of(typed_llm(*words), Placement("cpu", "gloo", 1, False), folder)
    )
    tokenizer = torchtune_config.instantiate(cfg.tokenizer)
    return tokenizer, torchtune_config.instantiate(
        cfg.dataset, tokenizer, cache_dir=str(folder / "cache")
    )


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
    assert (tmp_path / "own" / "inputs" / "rows.jsonl").stat().st_size == pytest.approx(
        size, rel=0.05
    )
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
        numbers = [
            int(word.rstrip(",")) for word in row.prompt.split() if word.rstrip(",").isdigit()
        ]
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
        return row_sources.load_rows(typed_llm("dataset=grammar", *words))[0] or []

    rows = sampled("r.jsonl")
    # another sample
    assert rows == sampled("r.json") == sampled("r.parquet") != sampled("r.json", seed=0)
    assert len({row["input"] for row in rows}) == 4 and all(
        row.keys() == {"input", "output"} for row in rows
    )


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
        config = typed_llm(
            "dataset=preference", "method=dpo", f"dataset.data_files={tmp_path / 'p.json'}"
        )
        (pair,) = row_sources.load_rows(config)[0] or []
        assert [(turn["role"], turn["content"]) for turn in pair["chosen"]] == expected
        assert pair["rejected"][:-1] == pair["chosen"][:-1]


@pytest.mark.parametrize(
    "who", ["system human gpt", "human gpt human gpt", "gpt human", "human", "human human"]
)
def test_a_conversation_must_take_turns(who: str, tmp_path: Path):
    row = {"conversations": [{"from": name, "value": "x"} for name in who.split()]}
    (tmp_path / "c.json").write_text(json.dumps([row]))
    config = typed_llm("dataset=slimorca", f"dataset.data_files={tmp_path / 'c.json'}")
    if "human gpt" in who and not who.startswith("gpt"):
        assert row_sources.load_rows(config)[0] == [row]
    else:
        with refused(
            "llm.broken-rows", key="dataset.data_files", value=str(tmp_path / "c.json"), row=1
        ) as caught:
            row_sources.load_rows(config)
        assert find(str(caught.value), "llm.row-no-conversation")


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
    batch = batches.with_even_chunks(
        lambda _: {"tokens": rows[None], "labels": rows[None]}, 8, pad_id=0
    )([])
    assert batch["tokens"].tolist() == [[*range(1, 42), 0, 0]] and batch["labels"][
        0, 41:
    ].tolist() == [-100, -100]
    for length in range(1, 200):
        padded = batches.least_length(length, 8)
        counts = [len(torch.empty(each).chunk(8)) for each in range(length, padded + 1)]
        assert counts[-1] == 8 and 8 not in counts[:-1] and (length < 57 or padded == length)


ROWS = 60
CASES = [["template=grammar"], ["template=summarize"], ["template=instruct"], ["method=dpo"]]


def cut_rows(folder: Path, *words: str) -> Any:
    return read(folder, f"dataset.rows={ROWS}", *words)[1]


def parts(row: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of a row, or of a pair's two."""
    names = (
        [("tokens", "labels")]
        if "tokens" in row
        else [(f"{n}_input_ids", f"{n}_labels") for n in pairs.CHOICES]
    )
    return [(list(row[tokens]), [int(label) for label in row[labels]]) for tokens, labels in names]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_rows_without_a_label_are_left_out(words: list[str], tmp_path: Path):
    whole = [parts(row) for row in cut_rows(tmp_path / "whole", *words)]
    lengths = [max(len(tokens) for tokens, _ in row) for row in whole]
    prompts = [
        next(i for i, label in enumerate(labels[1:]) if label != IGNORED)
        for row in whole
        for _, labels in row
    ]
    learns_prompts = words == ["template=instruct"]
    assert len(whole) == ROWS
    # at the longest row's length all are whole; little above a median prompt's,
    # longer prompts lose their answers
    for limit in (max(lengths), int(np.median(lengths if learns_prompts else prompts)) + 4):
        # by hand: of a longer row the first tokens remain, the last of which becomes the end,
        # without a label
        cut = [
            [labels[: limit - 1] if len(tokens) > limit else labels for tokens, labels in row]
            for row in whole
        ]
        expected = [
            all(any(label != IGNORED for label in labels[1:]) for labels in row) for row in cut
        ]
        # of a pair whose answers are the same now, no preference is left
        for place, row in enumerate(whole):
            answers = {
                tuple(tokens[: limit - 1] if len(tokens) > limit else tokens) for tokens, _ in row
            }
            expected[place] &= not (len(row) == 2 and len(answers) == 1 and lengths[place] > limit)
        rows = cut_rows(tmp_path / str(limit), *words, f"max_seq_len={limit}")
        too_long = sum(length > limit for length in lengths)
        counts = {
            "read": ROWS,
            "cut": too_long,
            "left_out": ROWS - sum(expected),
            "broken": None,
            "equal": None,
            "last_alone": 0,
            "sequences": None,
        }
        assert labelled_rows.counts(rows) == counts and len(rows) == sum(expected)
        kept = [row for row, has_label in zip(whole, expected, strict=True) if has_label]
        for row, original in zip(rows, kept, strict=True):
            for (kept_tokens, labels), (before, _) in zip(parts(row), original, strict=True):
                assert kept_tokens[: limit - 1] == before[: limit - 1] and len(kept_tokens) <= limit
                assert any(label != IGNORED for label in labels[1:])
    assert too_long > 0 and (counts["left_out"] > 0) is not learns_prompts


def test_no_row_has_more_tokens_than_its_bound_and_short_ones_are_not_tokenized(
    tmp_path: Path, monkeypatch
):
    for words in CASES:
        rows = cut_rows(tmp_path / words[0], *words)
        for bound, row in zip(labelled_rows.most_tokens(rows._rows._data), rows, strict=True):
            assert max(len(tokens) for tokens, _ in parts(row)) <= bound
    monkeypatch.setattr(labelled_rows, "labels", lambda _: pytest.fail("tokenized"))
    whole = {
        "read": ROWS,
        "cut": 0,
        "left_out": 0,
        "broken": None,
        "equal": None,
        "last_alone": 0,
        "sequences": None,
    }
    assert labelled_rows.counts(cut_rows(tmp_path / "again")) == whole


def test_packs_hold_no_row_without_a_label(tmp_path: Path):
    words, limit = ["template=grammar"], "max_seq_len=40"
    rows = cut_rows(tmp_path / "rows", *words, limit)
    packs = cut_rows(tmp_path / "packs", *words, limit, "packed=true")
    assert labelled_rows.counts(packs) == labelled_rows.counts(rows) | {"sequences": len(packs)}
    assert 0 < labelled_rows.counts(packs)["left_out"] < ROWS
    packed = [int(label) for pack in packs for label in pack["labels"] if label != IGNORED]
    assert packed == [
        label for row in rows for _, labels in parts(row) for label in labels if label != IGNORED
    ]


def test_pairs_that_are_cut_until_both_answers_are_equal_are_left_out(tmp_path: Path):
    """Of such a pair the loss is 0.693147 whatever the model says."""
    same, other = (
        {"prompt": "Why?", "chosen": "So " * 40 + "yes", "rejected": "So " * 40 + "no"},
        {"prompt": "Why?"},
    )
    other |= {"chosen": "Yes " * 40, "rejected": "No " * 40}
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in (same, other, other))
    )
    words = ("dataset=preference", "method=dpo", f"dataset.data_files={tmp_path / 'p.jsonl'}")
    whole = read(tmp_path / "whole", *words)[1]
    assert (len(whole), labelled_rows.counts(whole)["left_out"]) == (3, 0)
    cut = read(tmp_path / "cut", *words, "max_seq_len=30")[1]
    counts = {
        "read": 3,
        "cut": 3,
        "left_out": 1,
        "broken": None,
        "equal": 0,
        "last_alone": 0,
        "sequences": None,
    }
    assert labelled_rows.counts(cut) == counts and len(cut) == 2
    assert all(row["chosen_input_ids"] != row["rejected_input_ids"] for row in cut)
    with refused("llm.answers-cut-off", rows=1):
        (tmp_path / "p.jsonl").write_text(json.dumps(same) + "\n")
        read(tmp_path / "none", *words, "max_seq_len=30", "batch_size=1")


@pytest.mark.parametrize("is_pair", [False, True])
def test_the_length_that_is_offered_leaves_an_answer_and_null_is_not_offered_where_it_is_null(
    is_pair: bool, tmp_path: Path
):
    asked = "Why is it so? " * 40
    row = (
        {"prompt": asked, "chosen": "Yes", "rejected": "No"}
        if is_pair
        else {"input": asked, "output": "Yes"}
    )
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    words = ["dataset=preference", "method=dpo"] if is_pair else ["dataset=grammar"]
    words += [f"dataset.data_files={tmp_path / 'p.jsonl'}", "dataset.split=0", "batch_size=1"]
    with refused("llm.answers-cut-off", key="max_seq_len", rows=1) as caught:
        read(tmp_path / "cut", *words, "max_seq_len=20")
    (remedy,) = remedies(caught.value)
    assert len(read(tmp_path / "offered", *words, remedy)[1]) == 1
    with refused("llm.answers-beyond-model", key="model.max_seq_len", value=60) as caught:
        read(tmp_path / "null", *words, "model.max_seq_len=60")
    assert remedies(caught.value) == []
    with refused("llm.answers-beyond-model", key="model.max_seq_len", value=60):
        read(tmp_path / "both", *words, "model.max_seq_len=60", "max_seq_len=50")


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["max_seq_len=3"], "llm.answers-cut-off", {"value": 3, "rows": 10}),
        (
            ["max_seq_len=60", "packed=true", "batch_size=11"],
            "llm.samples-below-a-step",
            {"value": 60, "samples": 10, "packed": True, "needed": 11},
        ),
    ],
)
def test_too_little_to_tune_on_ends_in_a_line(
    tuned: Measured, words: list[str], code: str, facts: dict[str, Any]
):
    record = tuned("template=grammar", "dataset.rows=10", *words)
    assert record["status"] == "failed" and record["cause"]["rank"] == 0, record["cause"]
    assert find(record["cause"]["message"], code, key="max_seq_len", **facts)


def test_bytes_of_all_text_of_a_row_whatever_its_columns():
    import datasets

    turns = [[{"from": "human", "value": "é?"}], [], None]
    rows = datasets.Dataset.from_dict(
        {"id": [1, 2, 3], "text": ["abc", "", None], "conversations": turns}
    )
    around, each = labelled_rows.EXTRA_TOKENS_OF_ROW, labelled_rows.EXTRA_TOKENS_OF_TEXT
    assert labelled_rows.most_tokens(rows).tolist() == [
        around + 3 + 3 * each + 5 + 3,
        around + each,
        around,
    ]
    assert labelled_rows.most_tokens(rows.select([2, 0])).tolist() == [
        around,
        around + 3 + 3 * each + 5 + 3,
    ]
    assert labelled_rows.most_tokens(rows.select([])).tolist() == []


LENGTH = 16
PACKS = [[5, 4, 3], [7, 9], [2, 6]]  # rows' lengths; 4, 0 and 8 tokens of padding


def packed(mask: Any = None) -> PackedBatch:
    """The three sequences above as torchtune packs and collates them;
    `mask` in place of its own.
    """
    from torchtune.data import padded_collate_packed
    from torchtune.datasets import PackedDataset

    # token 0 is real
    rows = [{"tokens": [0] * size, "labels": [1] * size} for pack in PACKS for size in pack]
    sequences = list(PackedDataset(rows, max_seq_len=LENGTH))  # pyright: ignore[reportArgumentType]
    batch = with_counts(padded_collate_packed)(sequences)  # pyright: ignore[reportArgumentType]
    if mask is not None:
        batch["mask"] = mask
    return batch


def counts(batch: PackedBatch, device: str) -> dict[str, int]:
    return dict(zip(COUNTS, count(batch, 128_004, device), strict=True))


def test_attention_is_within_each_row():
    batch = counts(packed(), "cpu")
    # padding attends to itself, as torchtune masks it
    squares = 25 + 16 + 9 + 4 * 4 + 49 + 81 + 4 + 36 + 8 * 8
    assert batch["attended"] == squares
    assert (batch["tokens"], batch["non_padding"], batch["samples"]) == (48, 36, 3)
    mask = packed()["mask"]  # lower triangles of S_d (S_d + 1) / 2
    assert 2 * int(mask.sum()) - 48 == squares


def test_the_work_of_packed_rows_follows_from_their_lengths():
    config = typed_llm("packed=true", "max_seq_len=16", "method=full")
    batch = counts(packed(), "cpu")
    table = {name: torch.tensor([value]).numpy() for name, value in batch.items()}
    ranks = [LlmReport(rank=0, vocabulary=100)]
    record = records.as_record(records.llm(tokens_per_s={"all": 1.0}))
    flops_per_token, _ = summary._flops_and_mfu(record, config, ranks, table)
    alone = [
        models.flops_per_token(config.model, 100, size, None, 0) * size
        for size in (5, 4, 3, 4, 7, 9, 2, 6, 8)
    ]
    assert flops_per_token == pytest.approx(sum(alone) / 48)


def test_the_work_without_padding_is_that_of_rows_as_they_are(monkeypatch: pytest.MonkeyPatch):
    """Of packed sequences and of padded rows alike: each row by itself."""
    config = typed_llm("packed=true", "max_seq_len=16", "method=full")
    batch = counts(packed(), "cpu")
    tokens = torch.full((2, 9), 128_004)
    tokens[0, :9], tokens[1, :4] = 1, 1
    padded = dict(zip(COUNTS, count((tokens, tokens), 128_004, "cpu"), strict=True))
    assert (padded["tokens"], padded["non_padding"]) == (18, 13)
    assert (padded["attended"], padded["attended_non_padding"]) == (2 * 81, 81 + 16)
    assert batch["attended_non_padding"] == 25 + 16 + 9 + 49 + 81 + 4 + 36
    monkeypatch.setattr(summary, "peak_flops_per_s", lambda *_: 1e12)
    table = {name: torch.tensor([value]).numpy() for name, value in batch.items()}
    ranks = [LlmReport(rank=0, vocabulary=100)]
    record = records.as_record(records.llm(tokens_per_s={"all": 48.0, "non_padding": 36.0}))
    alone = [
        models.flops_per_token(config.model, 100, size, None, 0) * size
        for size in (5, 4, 3, 7, 9, 2, 6)
    ]
    assert summary._mfu_non_padding(record, config, ranks, table) == pytest.approx(
        sum(alone) / 1e12
    )
    _, with_padding = summary._flops_and_mfu(record, config, ranks, table)
    assert with_padding is not None and with_padding > sum(alone) / 1e12
    del table["attended_non_padding"]  # as in older records
    assert summary._mfu_non_padding(record, config, ranks, table) is None


def test_bytes_are_those_that_cross_to_a_gpu():
    tokens = 3 * LENGTH
    with_rows = 8 * tokens * 4  # tokens, labels, positions and each token's row number
    assert counts(packed(), "cpu")["h2d_bytes"] == with_rows
    # flex attention's mask is made there
    assert counts(packed(mask=object()), "cuda")["h2d_bytes"] == with_rows
    # before capability 7.5
    assert counts(packed(), "cuda")["h2d_bytes"] == 8 * tokens * 3 + 3 * LENGTH * LENGTH


def test_half_a_mask_of_flex_attention_masks_the_same():
    from torch.nn.attention.flex_attention import create_block_mask, create_mask

    dense = packed()["mask"]

    def within_rows(
        b: torch.Tensor, _: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return dense[b, q, k]

    whole = create_block_mask(within_rows, 3, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
    half = half_mask(whole, 2)
    assert half.shape == (2, 1, LENGTH, LENGTH)
    assert torch.equal(
        create_mask(half.mask_mod, 2, None, LENGTH, LENGTH, device="cpu")[:, 0], dense[:2]
    )
    assert torch.equal(half.kv_num_blocks, whole.kv_num_blocks[:2])
    assert torch.equal(half_mask(dense, 2), dense[:2])


def test_packing_changes_neither_the_tokens_nor_their_attention(
    tuned: Callable[..., dict[str, Any]],
):
    words = ("dataset.rows=24", "max_steps=null", "max_seq_len=256", "batch_size=1", "skip_steps=0")
    rows, sequences = ok(tuned(*words)), ok(tuned(*words, "packed=true"))
    assert (
        sequences["tokens"]["non_padding"]
        == rows["tokens"]["non_padding"]
        < sequences["tokens"]["all"]
    )
    padding = steps(sequences, "tokens") - steps(sequences, "non_padding")
    assert steps(sequences, "attended").sum() == steps(rows, "attended").sum() + (padding**2).sum()
    without = steps(sequences, "attended_non_padding").sum()
    assert without == steps(rows, "attended_non_padding").sum() == steps(rows, "attended").sum()
    assert 0 < sequences["tokens_per_s"]["non_padding"] < sequences["tokens_per_s"]["all"]
    assert sequences["transfer_bytes"]["h2d"] == 4 * 8 * sequences["tokens"]["all"]
    assert set(steps(sequences, "tokens")) == {256}
    # rows are not split over sequences
    assert sequences["tokens"]["non_padding"] / sequences["tokens"]["all"] > 0.6
    yaml = (Path(sequences["folder"]) / "torchtune.yaml").read_text()
    # which only torchtune knows beforehand
    assert f"num_warmup_steps: {sequences['warmup_steps']}" in yaml
