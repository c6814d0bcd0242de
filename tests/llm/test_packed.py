"""Packed rows: their work, their bytes and their padding, in closed form."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.llm import models, summary
from multicard.llm.batches import COUNTS, PackedBatch, count, counted, half_mask
from multicard.records.rank_files import LlmReport
from tests.conftest import typed_llm
from tests.helpers import records
from tests.llm.test_llm_run import ok, steps

LENGTH = 16
PACKS = [[5, 4, 3], [7, 9], [2, 6]]  # rows' lengths; 4, 0 and 8 tokens of padding


def packed(mask: Any = None) -> PackedBatch:
    """The three sequences above as torchtune packs and collates them; `mask` in place of its own."""
    from torchtune.data import padded_collate_packed
    from torchtune.datasets import PackedDataset

    rows = [{"tokens": [0] * size, "labels": [1] * size} for pack in PACKS for size in pack]  # token 0 is real
    sequences = list(PackedDataset(rows, max_seq_len=LENGTH))  # pyright: ignore[reportArgumentType]
    batch = counted(padded_collate_packed)(sequences)  # pyright: ignore[reportArgumentType]
    if mask is not None:
        batch["mask"] = mask
    return batch


def counts(batch: PackedBatch, device: str) -> dict[str, int]:
    return dict(zip(COUNTS, count(batch, 128_004, device), strict=True))


def test_attention_is_within_each_row():
    batch = counts(packed(), "cpu")
    squares = 25 + 16 + 9 + 4 * 4 + 49 + 81 + 4 + 36 + 8 * 8  # padding attends to itself, as torchtune masks it
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
    flops_per_token, _ = summary._work(record, config, ranks, table)
    alone = [models.flops_per_token(config.model, 100, size, None, 0) * size for size in (5, 4, 3, 4, 7, 9, 2, 6, 8)]
    assert flops_per_token == pytest.approx(sum(alone) / 48)


def test_bytes_are_those_that_cross_to_a_gpu():
    tokens = 3 * LENGTH
    with_rows = 8 * tokens * 4  # tokens, labels, positions and each token's row number
    assert counts(packed(), "cpu")["h2d_bytes"] == with_rows
    assert counts(packed(mask=object()), "cuda")["h2d_bytes"] == with_rows  # flex attention's mask is made there
    assert counts(packed(), "cuda")["h2d_bytes"] == 8 * tokens * 3 + 3 * LENGTH * LENGTH  # before capability 7.5


def test_half_a_mask_of_flex_attention_masks_the_same():
    from torch.nn.attention.flex_attention import create_block_mask, create_mask

    dense = packed()["mask"]

    def within_rows(b: torch.Tensor, _: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return dense[b, q, k]

    whole = create_block_mask(within_rows, 3, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=8)
    half = half_mask(whole, 2)
    assert half.shape == (2, 1, LENGTH, LENGTH)
    assert torch.equal(create_mask(half.mask_mod, 2, None, LENGTH, LENGTH, device="cpu")[:, 0], dense[:2])
    assert torch.equal(half.kv_num_blocks, whole.kv_num_blocks[:2])
    assert torch.equal(half_mask(dense, 2), dense[:2])


def test_packing_changes_neither_the_tokens_nor_their_attention(tuned: Callable[..., dict[str, Any]]):
    words = ("dataset.rows=24", "max_steps=null", "max_seq_len=256", "batch_size=1", "skip_steps=0")
    rows, sequences = ok(tuned(*words)), ok(tuned(*words, "packed=true"))
    assert sequences["tokens"]["non_padding"] == rows["tokens"]["non_padding"] < sequences["tokens"]["all"]
    padding = steps(sequences, "tokens") - steps(sequences, "non_padding")
    assert steps(sequences, "attended").sum() == steps(rows, "attended").sum() + (padding**2).sum()
    assert sequences["transfer_bytes"]["h2d"] == 4 * 8 * sequences["tokens"]["all"]
    assert set(steps(sequences, "tokens")) == {256}
    assert sequences["tokens"]["non_padding"] / sequences["tokens"]["all"] > 0.6  # rows are not split over sequences
    yaml = (Path(sequences["folder"]) / "torchtune.yaml").read_text()
    assert f"num_warmup_steps: {sequences['warmup_steps']}" in yaml  # which only torchtune knows beforehand
