"""The place where evidence is gathered: its devices, its folder of results, and its data."""

import struct
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from multicard.machine.rates import counts
from multicard.records.run_folder import replacing
from multicard.vision.data.datasets import MNIST_FILES

# Patterns of files below the folder of the data.
IMAGES = "MNIST/raw"
ROWS = "alpaca*.jsonl"
TOKENIZER = "tokenizer.model"
# The bytes of GPU memory that tuning each Llama 3 model with preset=fast needs: 8,192 tokens a
# step, packed, without activation checkpointing. Smaller GPUs tune the last model, and may run out
# of memory.
MODELS = ((70e9, "llama3_8b"), (36e9, "llama3_2_3b"), (0.0, "llama3_2_1b"))


@dataclass(frozen=True)
class Circumstances:
    """The circumstances of all steps.

    out: the folder of the results.
    gpus: the number of GPUs, or of CPU ranks that are tried.
    is_cuda: False if everything is measured on CPU ranks, shrunk.
    memory_bytes: the memory of a GPU.
    data: a folder with MNIST/raw, alpaca*.jsonl or Llama's tokenizer.model, or with folders that
        hold these.
    """

    out: Path
    gpus: int
    is_cuda: bool
    memory_bytes: float = 0.0
    data: Path | None = None

    @property
    def counts(self) -> list[int]:
        """The numbers of GPUs that are measured: 1, 2, 4 ... and all."""
        return counts(self.gpus)

    @property
    def model(self) -> str:
        """The largest language model that fits into a GPU of this machine."""
        if not self.is_cuda:
            return "llama3_tiny"
        return next(name for least_bytes, name in MODELS if self.memory_bytes >= least_bytes)

    def log(self, name: str) -> Path:
        return self.out / f"{name}.log"

    def runs(self, name: str) -> Path:
        """Return the folder of a step's runs."""
        return self.out / name

    def images(self) -> Path:
        """Return the folder of MNIST's files, or of images that are made to replace them."""
        raw = self.found(IMAGES)
        return raw.parents[1] if raw else make_images(self.out / "stand_in")

    def found(self, pattern: str) -> Path | None:
        """Find a file or folder of the data by its pattern; None if it is missing."""
        if self.data is None:
            return None
        return min([*self.data.glob(pattern), *self.data.glob(f"*/{pattern}")], default=None)

    def holds_data(self) -> bool:
        """Return True if `data` holds any of the files that the steps use."""
        return any(self.found(pattern) for pattern in (IMAGES, ROWS, TOKENIZER))


def engines() -> list[str]:
    """Return the tuning engines that are installed."""
    has_trl = find_spec("trl") and find_spec("peft")
    return ["torchtune", "trl"] if has_trl else ["torchtune"]


def has_dali() -> bool:
    return bool(find_spec("nvidia") and find_spec("nvidia.dali"))


def make_images(root: Path) -> Path:
    """Make 70,000 images as MNIST's four files below `root`, if they are missing; return `root`.

    They are scikit-learn's digits (8 x 8), enlarged three times, each at a random position. The
    test images show digits that no training image shows.
    """
    from sklearn.datasets import load_digits

    raw = root / "MNIST" / "raw"
    if all((raw / name).exists() for name in MNIST_FILES):
        return root
    raw.mkdir(parents=True, exist_ok=True)
    digits, labels = map(np.asarray, load_digits(return_X_y=True))
    # Shape: (1797, 24, 24).
    large_digits = np.kron(digits.reshape(-1, 8, 8) * (255 / 16), np.ones((3, 3))).astype(np.uint8)
    random = np.random.default_rng(0)
    is_test_digit = np.arange(len(labels)) % 5 == 0
    for part, is_chosen in (("train", ~is_test_digit), ("t10k", is_test_digit)):
        count = MNIST_FILES[f"{part}-labels-idx1-ubyte"][1]
        drawn_digits = random.choice(np.flatnonzero(is_chosen), count)
        positions = random.integers(0, 5, (count, 2))
        images = np.zeros((count, 28, 28), np.uint8)
        for image, digit, (row, column) in zip(images, drawn_digits, positions, strict=True):
            image[row : row + 24, column : column + 24] = large_digits[digit]
        for name, values in (
            ("images-idx3", images),
            ("labels-idx1", labels[drawn_digits].astype(np.uint8)),
        ):
            header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}i", *values.shape)
            with replacing(raw / f"{part}-{name}-ubyte") as file:
                file.write(header + values.tobytes())
    return root
