"""70,000 images in MNIST's form, made of scikit-learn's 1,797 digits, for machines without MNIST."""

import struct
from pathlib import Path

import numpy as np

from multicard.vision.data.mnist import FILES

SIDE, DIGIT = 28, 24  # pixels of an image, and of the digit in it
FADED = 0.15  # of a digit's brightness, at most


def written(root: Path) -> Path:
    """`root`, with MNIST's four files: digits of 8 x 8, enlarged three times, each at a place and brightness of its
    own. The test images show digits that no training image shows."""
    from sklearn.datasets import load_digits

    raw = root / "MNIST" / "raw"
    if all((raw / name).exists() for name in FILES):
        return root
    raw.mkdir(parents=True, exist_ok=True)
    digits, labels = map(np.asarray, load_digits(return_X_y=True))
    large = np.kron(digits.reshape(-1, 8, 8) * (255 / 16), np.ones((3, 3))).astype(np.float32)  # (1797, 24, 24)
    random, tested = np.random.default_rng(0), np.arange(len(labels)) % 5 == 0
    for part, chosen in (("train", ~tested), ("t10k", tested)):
        count = FILES[f"{part}-labels-idx1-ubyte"][1]
        drawn = random.choice(np.flatnonzero(chosen), count)
        images = np.zeros((count, SIDE, SIDE), np.uint8)
        rows, columns = random.integers(0, SIDE - DIGIT + 1, (2, count))
        for index, (row, column) in enumerate(zip(rows, columns, strict=True)):
            faded = large[drawn[index]] * (1 - FADED * random.random())
            images[index, row : row + DIGIT, column : column + DIGIT] = faded
        _write(raw / f"{part}-images-idx3-ubyte", images)
        _write(raw / f"{part}-labels-idx1-ubyte", labels[drawn].astype(np.uint8))
    return root


def _write(path: Path, values: np.ndarray) -> None:
    """An IDX file of unsigned bytes."""
    partial = path.with_suffix(".part")
    partial.write_bytes(
        bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}i", *values.shape) + values.tobytes()
    )
    partial.replace(path)
