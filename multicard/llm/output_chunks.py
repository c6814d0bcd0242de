"""Batches that every rank cuts into as many chunks.

torchtune's loss has the output layer computed in chunks of a sequence: at most 8, and fewer for most lengths below 57
(41 tokens are 7 chunks of 6). Where FSDP shards the output layer by itself, it gathers it for each chunk. Ranks whose
sequences have other lengths would then call other numbers of collectives, which ends in an error or never.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX

Collate = Callable[[Sequence[Any]], dict[str, torch.Tensor]]


def evened(collate: Collate, chunks: int, pad_id: int) -> Collate:
    """torchtune's `collate`, whose tokens and labels (B, S) are padded to a length of exactly `chunks` chunks."""

    def collate_evened(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
        batch = collate(rows)
        length = batch["tokens"].shape[1]
        more = (0, least_length(length, chunks) - length)
        values = {"tokens": pad_id, "labels": CROSS_ENTROPY_IGNORE_IDX}
        return batch | {name: pad(batch[name], more, value=value) for name, value in values.items()}

    return collate_evened


def least_length(length: int, chunks: int) -> int:
    """The least length, from `length` on, that `torch.chunk` cuts into exactly `chunks`: ceil(S / ceil(S / chunks))."""
    while -(-length // -(-length // chunks)) != chunks:
        length += 1
    return length
