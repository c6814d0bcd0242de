"""Fingerprints of data: equal if the content is equal, wherever it is stored.

A part of the data (the data set, the tokenizer's files, a checkpoint) is a list of named blobs,
which are files and arrays. Its digits cover every name and size, in order, and the content.

Content is hashed completely up to BUDGET_BYTES in MOST_FILES blobs. Above that, MOST_FILES evenly
spaced blobs are sampled, each with an equal share of the budget, in evenly spaced pieces of
PIECE_BYTES. A change that leaves all sizes the same is therefore missed if it lies between the
pieces. Dates, and folders above the data, are not covered.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from multicard.messages import Refusal
from multicard.records.schema_data import DataContent

BUDGET_BYTES = 64 << 20
MOST_FILES = 1024
PIECE_BYTES = 64 << 10
DIGITS = 12  # Hex digits of a fingerprint.
Blob = tuple[str, Path | memoryview]  # The name within the data, and a file or the bytes.
Parts = Mapping[str, Sequence[Blob]]


def fingerprint(parts: Parts) -> DataContent:
    """Return the record's `data`.

    Args:
        parts: the parts of the data by name; parts without blobs are left out.

    Raises:
        ValueError: a file cannot be read.
    """
    digits = {}
    size_bytes = 0
    hashed_bytes = 0
    for part, blobs in parts.items():
        if blobs:
            digits[part], own_bytes, own_hashed_bytes = _digest(blobs)
            size_bytes, hashed_bytes = size_bytes + own_bytes, hashed_bytes + own_hashed_bytes
    digest = sha256(
        " ".join(f"{part}={part_digits}" for part, part_digits in digits.items()).encode()
    )
    return DataContent(digest.hexdigest()[:DIGITS], digits, size_bytes, hashed_bytes)


def difference(before: DataContent | None, now: DataContent | None) -> str | None:
    """Return the parts in which two fingerprints differ, as in "dataset 1a2b, now 3c4d".

    None if they agree in all parts that both have.
    """
    if before is None or now is None:
        return None
    pairs = {
        name: (before.parts[name], new) for name, new in now.parts.items() if name in before.parts
    }
    return (
        ", ".join(f"{name} {old}, now {new}" for name, (old, new) in pairs.items() if old != new)
        or None
    )


def text_blob(name: str, text: str) -> Blob:
    return name, memoryview(text.encode())


def unreadable(error: OSError) -> Refusal:
    """Return the refusal of data that cannot be read."""
    return Refusal(
        "data.unreadable",
        f"{error.filename}: cannot be read ({error.strerror}); check that it exists and is"
        " complete",
        file=str(error.filename),
        reason=error.strerror,
    )


def _digest(blobs: Sequence[Blob]) -> tuple[str, int, int]:
    """Return the digits of a part, its size in bytes, and how many bytes were hashed."""
    try:
        sizes = [
            blob.stat().st_size if isinstance(blob, Path) else blob.nbytes for _, blob in blobs
        ]
        names = "".join(f"{name}\0{size}\n" for (name, _), size in zip(blobs, sizes, strict=True))
        # File names may be invalid UTF-8.
        digest = sha256(names.encode(errors="surrogateescape"))
        count = min(len(blobs), MOST_FILES)
        is_small = sum(sizes) <= BUDGET_BYTES and count == len(blobs)
        share = None if is_small else BUDGET_BYTES // count
        hashed_bytes = 0
        for number in range(count):
            index = number * (len(blobs) - 1) // max(1, count - 1)
            for piece in _pieces(blobs[index][1], sizes[index], share):
                digest.update(piece)
                hashed_bytes += len(piece)
    except OSError as error:
        raise unreadable(error) from None
    return digest.hexdigest()[:DIGITS], sum(sizes), hashed_bytes


def _pieces(blob: Path | memoryview, size: int, share: int | None) -> Iterator[bytes | memoryview]:
    """Yield a blob's bytes, or evenly spaced pieces with about `share` bytes in total."""
    count = -(-size // PIECE_BYTES)
    if share is not None and size > share:
        count = max(1, share // PIECE_BYTES)
        offsets = [number * (size - PIECE_BYTES) // max(1, count - 1) for number in range(count)]
    else:
        offsets = [number * PIECE_BYTES for number in range(count)]
    if isinstance(blob, memoryview):
        yield from (blob[offset : offset + PIECE_BYTES] for offset in offsets)
        return
    with blob.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            yield file.read(PIECE_BYTES)
