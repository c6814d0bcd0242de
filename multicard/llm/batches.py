"""Batches of torchtune: what is counted in them, and those that are collated here: packed,
or cut into equal chunks.

Packed batches (`packed=true`) have rows put one after the other into sequences, where a token sees
its own row alone. torchtune keeps the rows' lengths out of the batch;
they are counted where it collates its sequences.

torchtune's loss has the output layer computed in chunks of a sequence: at most 8, and fewer for
most lengths below 57 (41 tokens are 7 chunks of 6). Where FSDP shards the output layer by itself,
it gathers it for each chunk. Ranks whose sequences have other lengths would then call other numbers
of collectives, which ends in an error or never.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX

# `tokens` are all in the batch, padding too; `attended` is the sum of their rows' lengths, for the
# attention's work: of padded rows, or of each row of a packed sequence;
# `attended_non_padding` is that of tokens and rows without padding
COUNTS = (
    "samples",
    "tokens",
    "non_padding",
    "loss_bearing",
    "attended",
    "attended_non_padding",
    "h2d_bytes",
)

Batch = Any  # dict of tensors for SFT, (tokens, labels) for pairs
Collate = Callable[[Sequence[Any]], dict[str, torch.Tensor]]
Sequences = Sequence[dict[str, torch.Tensor]]  # of `torchtune.datasets.PackedDataset`


class PackedBatch(dict[str, Any]):
    """A batch of `padded_collate_packed`: tokens, labels and input_pos (B, S), and a mask.

    Fields:
        attended: the sum over tokens of their row's length. torchtune has the padding at a
            sequence's end attend to itself, as a row of its own.
        attended_non_padding: the same without it.
        padding: tokens that pad a sequence. Their value, 0, is also that of a token.
    """

    attended: int
    attended_non_padding: int
    padding: int

    def h2d_bytes(self, device_type: str) -> int:
        """Bytes of the batch that cross to a GPU.

        From compute capability 7.5 on, torchtune 0.6.1 copies each token's row number (int64, as
        the tokens) while it collates, and makes the mask of it on the GPU. Older GPUs get the mask,
        S x S booleans, from the host; on CPU ranks, whose mask is the same,
        the row numbers are counted: what would cross to a device.
        """
        moved = sum(self[name].nbytes for name in ("tokens", "labels", "input_pos"))
        mask = self.get("mask")
        if mask is None:  # of rows that are told apart by their positions
            return moved
        dense = isinstance(mask, torch.Tensor) and device_type == "cuda"
        return moved + (mask.nbytes if dense else self["tokens"].nbytes)


def count(batch: Batch, pad_id: int, device_type: str, copies: int = 1) -> tuple[int, ...]:
    """A batch's `COUNTS`, the same way for every method.
    A pair is one sample with both its rows' tokens.

    Args:
        batch: tokens and labels (B, S), or (2B, S) of B pairs; labels are not yet shifted, the
            first bears no loss.
        copies: how often the recipe copies the batch to the device.
    """
    tokens, labels = batch if isinstance(batch, tuple) else (batch["tokens"], batch["labels"])
    rows, length = tokens.shape
    lengths = (tokens != pad_id).sum(1)  # of rows that are padded
    packed = batch if isinstance(batch, PackedBatch) else None
    return (
        rows // 2 if isinstance(batch, tuple) else rows,
        tokens.numel(),
        tokens.numel() - packed.padding if packed else int(lengths.sum()),
        int((labels[:, 1:] != CROSS_ENTROPY_IGNORE_IDX).sum()),
        packed.attended if packed else rows * length * length,
        packed.attended_non_padding if packed else int(lengths.square().sum()),
        packed.h2d_bytes(device_type) if packed else copies * (tokens.nbytes + labels.nbytes),
    )


def mapped(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """A batch of the same form, each of its tensors changed; recipes take the dictionary apart."""
    if isinstance(batch, tuple):
        return tuple(map(change, batch))
    return {
        key: change(value) if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
    }


def half(batch: Batch) -> Batch | None:
    """Half of the rows (B, S), or of the pairs, B chosen and then B rejected rows (2B, S);
    None of a single one.
    """
    if isinstance(batch, tuple):
        pairs = len(batch[0]) // 2
        rows = [*range(pairs // 2), *range(pairs, pairs + pairs // 2)]
        return tuple(tensor[rows] for tensor in batch) if pairs > 1 else None
    size = len(batch["tokens"]) // 2
    parts = {
        key: half_mask(value, size) if key == "mask" else value[:size]
        for key, value in batch.items()
    }
    return parts if size else None


def stacked(sequences: Sequences) -> dict[str, torch.Tensor]:
    """Packed sequences as tokens, labels and input_pos (B, S), without a mask."""
    return {
        name: torch.stack([each[name] for each in sequences])
        for name in ("tokens", "labels", "input_pos")
    }


def counted(collate: Callable[[Sequences], dict[str, Any]]) -> Callable[[Sequences], PackedBatch]:
    """torchtune's `collate`, with the rows counted."""

    def collate_counted(sequences: Sequences) -> PackedBatch:
        batch = PackedBatch(collate(sequences))
        batch.attended = sum(int(sequence["seq_lens"].square().sum()) for sequence in sequences)
        paddings = [padding(sequence) for sequence in sequences]
        batch.attended_non_padding = batch.attended - sum(tokens**2 for tokens in paddings)
        batch.padding = sum(paddings)
        return batch

    return collate_counted


def padding(sequence: dict[str, torch.Tensor]) -> int:
    """Tokens at the end of a sequence that belong to no row: their positions go on from the last
    row's, where those of a row begin at 0.
    """
    last = int(sequence["seq_lens"][-1])
    return last if int(sequence["input_pos"][-last]) > 0 else 0


def half_mask(mask: Any, size: int) -> Any:
    """The mask of the batch's first `size` sequences: booleans (B, S, S),
    or flex attention's blocks.
    """
    part = mask[:size]
    if not isinstance(mask, torch.Tensor):
        # a part has none of its own; this one counts sequences from the first
        part.mask_mod = mask.mask_mod
    return part


def evened(collate: Collate, chunks: int, pad_id: int) -> Collate:
    """torchtune's `collate`, whose tokens and labels (B,
    S) are padded to a length of exactly `chunks` chunks.
    """

    def collate_evened(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
        batch = collate(rows)
        length = batch["tokens"].shape[1]
        more = (0, least_length(length, chunks) - length)
        values = {"tokens": pad_id, "labels": CROSS_ENTROPY_IGNORE_IDX}
        return batch | {name: pad(batch[name], more, value=value) for name, value in values.items()}

    return collate_evened


def least_length(length: int, chunks: int) -> int:
    """The least length, from `length` on, that `torch.chunk` cuts into
    exactly `chunks`: ceil(S / ceil(S / chunks)).
    """
    while -(-length // -(-length // chunks)) != chunks:
        length += 1
    return length
