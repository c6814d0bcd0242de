"""Data sets by name, and how each is read and checked. Imports neither torch nor torchvision."""

import gzip
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multicard.config.vision import DatasetConfig, ImagesConfig, MnistConfig
from multicard.records.content import Blob, text_blob
from multicard.vision.data import decoding, mnist, photographs
from multicard.vision.data.splits import Data, Split


@dataclass(frozen=True)
class DataSet:
    """One data set.

    read: the whole of it, as configured.
    options: the schema of `dataset.*`.
    check: raises ValueError, with the key and the remedy, where it is absent, cut off or altered.
    downloads: True if `check` downloads it first, which a dry run must not.
    finish: what is done to the part that `train_limit` and `test_limit` leave.
    require_room: raises ValueError where the copies of a number of processes do not fit into memory.
    """

    read: Callable[[Any], Data]
    options: type[DatasetConfig] = DatasetConfig
    check: Callable[[Any], None] = lambda config: None
    downloads: Callable[[Any], bool] = lambda config: False
    finish: Callable[[Data, Any], Data] = lambda data, config: data
    require_room: Callable[[Any, int], None] = lambda config, processes: None


def read_digits(_: DatasetConfig) -> Data:
    """1,797 handwritten digits, 8 x 8, of 43 people (Alpaydin and Kaynak, UCI 1998), as scikit-learn ships them.

    Read from scikit-learn's own file: importing sklearn.datasets takes longer than a second. The split does not depend
    on the seed: every fifth sample of each class, by a fixed shuffle, is for testing.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.submodule_search_locations, "scikit-learn is in requirements.txt"
    with gzip.open(Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    images = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 0..16 in the file
    labels = table[:, -1].astype(np.int64)
    shuffle = np.random.default_rng(0)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = shuffle.permutation(np.flatnonzero(labels == digit))
        is_test[members[: round(len(members) / 5)]] = True
    return Data(Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test]), classes=10)


DATASETS = {
    "digits": DataSet(read_digits),
    "mnist": DataSet(mnist.read, MnistConfig, mnist.check, lambda config: config.download),
    "images": DataSet(
        photographs.read,
        ImagesConfig,
        photographs.check,
        finish=photographs.finish,
        require_room=photographs.require_room,
    ),
}


def check(config: DatasetConfig) -> None:
    """See that the data set is there and whole.

    Raises:
        ValueError: what is absent, cut off or altered, and what to do.
    """
    DATASETS[config.name].check(config)


def load(config: DatasetConfig, seed: int) -> Data:
    """Read the data set; `train_limit` and `test_limit` take the first images after a shuffle by `seed`."""
    dataset = DATASETS[config.name]
    whole = dataset.read(config)
    part = Data(whole.train.take(config.train_limit, seed), whole.test.take(config.test_limit, seed), whole.classes)
    return dataset.finish(part, config)


def content(config: DatasetConfig) -> list[Blob]:
    """Content that identifies the whole data set: images and labels, or names and files of photographs and labels."""
    data = DATASETS[config.name].read(config)
    blobs: list[Blob] = []
    paths = [path for split in (data.train, data.test) if isinstance(split.images, list) for path in split.images]
    root = os.path.commonpath(paths) if paths else ""
    for name, split in (("train", data.train), ("test", data.test)):
        blobs.append((f"{name} labels", _bytes_of(split.labels)))
        if isinstance(split.images, list):
            blobs += [(str(path)[len(root) :], path) for path in split.images]  # relative_to takes 7 us each
        else:
            blobs.append((f"{name} images {split.images.shape}", _bytes_of(split.images)))
    return blobs


def decoding_version(config: DatasetConfig) -> list[Blob]:
    """The version of decoding photographs; empty where the pixels are the data."""
    return [text_blob("decoding", str(decoding.VERSION))] if isinstance(config, ImagesConfig) else []


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
