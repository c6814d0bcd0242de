"""Count what is in torchtune's batches, and collate packed or evenly chunked batches.

A packed batch (`packed=true`) concatenates rows into sequences, in which a token only attends to
its own row. torchtune does not put the rows' lengths into the batch, so they are counted while
sequences are collated.

torchtune's loss computes the output layer in chunks of a sequence. There are at most 8 chunks, and
fewer for most lengths below 57: 41 tokens are 7 chunks of 6. If FSDP shards the output layer
separately, it gathers the layer for each chunk. Ranks with sequences of different lengths would
then call different numbers of collectives, which fails or hangs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX

# `tokens` counts all tokens in the batch, with padding. `attended` is the sum over the tokens of
# their row's length, from which the work of the attention follows. A row is a padded row, or a row
# inside a packed sequence. `attended_non_padding` is the same sum without padding.
COUNTS = (
    "samples",
    "tokens",
    "non_padding",
    "loss_bearing",
    "attended",
    "attended_non_padding",
    "h2d_bytes",
)

Batch = Any  # A dict of tensors for SFT, or (tokens, labels) for pairs.
Collate = Callable[[Sequence[Any]], dict[str, torch.Tensor]]
Sequences = Sequence[dict[str, torch.Tensor]]  # Sequences of `torchtune.datasets.PackedDataset`.


class PackedBatch(dict[str, Any]):
    """A batch of `padded_collate_packed`: tokens, labels and input_pos (B, S), and a mask.

    Attributes:
        attended: The sum over tokens of their row's length. In torchtune, the padding at the end
            of a sequence attends to itself, as a row of its own.
        attended_non_padding: The same sum without padding.
        padding: Number of padding tokens. They cannot be counted later: their value 0 is also a
            token's.
    """

    attended: int
    attended_non_padding: int
    padding: int

    def h2d_bytes(self, device_type: str) -> int:
        """Return the bytes of the batch that are copied to a GPU.

        From compute capability 7.5 on, torchtune 0.6.1 copies each token's row number while it
        collates (int64, as the tokens), and builds the mask on the GPU. On older GPUs, the host
        copies the mask, S x S booleans. CPU ranks have the same mask, but the row numbers are
        counted, as what would be copied to a device.
        """
        copied_bytes = sum(self[name].nbytes for name in ("tokens", "labels", "input_pos"))
        mask = self.get("mask")
        if mask is None:  # The rows are separated by their positions instead.
            return copied_bytes
        copies_mask = isinstance(mask, torch.Tensor) and device_type == "cuda"
        return copied_bytes + (mask.nbytes if copies_mask else self["tokens"].nbytes)


def count(batch: Batch, pad_id: int, device_type: str, copies: int = 1) -> tuple[int, ...]:
    """Return a batch's `COUNTS`, in the same way for every method.

    A pair is one sample with the tokens of both its rows.

    Args:
        batch: Tokens and labels (B, S), or (2B, S) for B pairs. Labels are not yet shifted, and
            the first one bears no loss.
        copies: How often the recipe copies the batch to the device.
    """
    tokens, labels = batch if isinstance(batch, tuple) else (batch["tokens"], batch["labels"])
    rows, length = tokens.shape
    lengths = (tokens != pad_id).sum(1)  # Lengths of padded rows.
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


def map_tensors(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Return a new batch with each tensor changed. Recipes remove entries from a batch."""
    if isinstance(batch, tuple):
        return tuple(map(change, batch))
    return {
        key: change(value) if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
    }


def half_batch(batch: Batch) -> Batch | None:
    """Return half of the rows (B, S), or half of the pairs, or None for a single one.

    B pairs are B chosen rows followed by B rejected rows (2B, S).
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


def stack_sequences(sequences: Sequences) -> dict[str, torch.Tensor]:
    """Stack packed sequences to tokens, labels and input_pos (B, S), without a mask."""
    return {
        name: torch.stack([sequence[name] for sequence in sequences])
        for name in ("tokens", "labels", "input_pos")
    }


def with_counts(
    collate: Callable[[Sequences], dict[str, Any]],
) -> Callable[[Sequences], PackedBatch]:
    """Return torchtune's `collate`, extended so that it counts the rows."""

    def collate_counted(sequences: Sequences) -> PackedBatch:
        batch = PackedBatch(collate(sequences))
        batch.attended = sum(int(sequence["seq_lens"].square().sum()) for sequence in sequences)
        paddings = [padding(sequence) for sequence in sequences]
        batch.attended_non_padding = batch.attended - sum(tokens**2 for tokens in paddings)
        batch.padding = sum(paddings)
        return batch

    return collate_counted


def padding(sequence: dict[str, torch.Tensor]) -> int:
    """Count the tokens at the end of a packed sequence that belong to no row.

    Their positions continue the last row's, whereas the positions of a row begin at 0.
    """
    last_length = int(sequence["seq_lens"][-1])
    return last_length if int(sequence["input_pos"][-last_length]) > 0 else 0


def half_mask(mask: Any, size: int) -> Any:
    """Return the mask of the batch's first `size` sequences.

    A mask is booleans (B, S, S), or a block mask of flex attention.
    """
    part = mask[:size]
    if not isinstance(mask, torch.Tensor):
        # The part of a block mask has no function of its own. The whole mask's function also fits,
        # since it counts sequences from the first.
        part.mask_mod = mask.mask_mod
    return part


def with_even_chunks(collate: Collate, chunks: int, pad_id: int) -> Collate:
    """Return torchtune's `collate`, extended so that it pads to exactly `chunks` chunks.

    It pads tokens and labels (B, S).
    """

    def collate_evened(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
        batch = collate(rows)
        length = batch["tokens"].shape[1]
        added = (0, least_length(length, chunks) - length)
        values = {"tokens": pad_id, "labels": CROSS_ENTROPY_IGNORE_IDX}
        return batch | {
            name: pad(batch[name], added, value=value) for name, value in values.items()
        }

    return collate_evened


def least_length(length: int, chunks: int) -> int:
    """Return the least length >= `length` that `torch.chunk` cuts into exactly `chunks` chunks.

    A length S has ceil(S / ceil(S / chunks)) chunks.
    """
    while -(-length // -(-length // chunks)) != chunks:
        length += 1
    return length
