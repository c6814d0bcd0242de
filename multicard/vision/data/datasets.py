"""The data sets by name: how each is read, checked and downloaded. Digits and MNIST are read here.

This module imports neither torch nor torchvision. Absent, truncated and altered files are refused.
"""

import gzip
import hashlib
import importlib.util
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from multicard.config.vision_data import DatasetConfig, ImagesConfig, MnistConfig
from multicard.machine import network
from multicard.messages import Refusal
from multicard.records import run_folder
from multicard.records.content import Blob, text_blob
from multicard.records.schema_data import RepeatedImages
from multicard.vision.data import decoding, photographs
from multicard.vision.data.splits import DataSplits, Split, held_out
from multicard.vision.data.stored_images import column_of, path_of


@dataclass(frozen=True)
class DataSet:
    """How one data set is handled.

    Attributes:
        read: Reads the whole data set as configured. The seed matters only if it has no test part.
        options: The schema of `dataset.*`.
        check: Refuses a data set that is absent, truncated or altered.
        downloads: Whether `check` downloads the data first, which a dry run must not do.
        finish: Processes the samples that `train_limit` and `test_limit` leave.
        require_room: Refuses copies in this number of processes if they exceed the memory.
    """

    read: Callable[[Any, int], DataSplits]
    options: type[DatasetConfig] = DatasetConfig
    check: Callable[[Any], None] = lambda config: None
    downloads: Callable[[Any], bool] = lambda config: False
    finish: Callable[[DataSplits, Any], DataSplits] = lambda data, config: data
    require_room: Callable[[Any, int], None] = lambda config, processes: None


# ---- digits


def read_digits(_: DatasetConfig, __: int) -> DataSplits:
    """Read 1,797 handwritten digits, 8 x 8, of 43 people (Alpaydin and Kaynak, UCI 1998).

    They are read from scikit-learn's own file, as importing sklearn.datasets takes over a second.
    The split does not depend on the seed: a fixed shuffle puts a fifth of each class into the test
    part.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.submodule_search_locations, (
        "scikit-learn is in requirements.txt"
    )
    with gzip.open(
        Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt"
    ) as file:
        table = np.loadtxt(file, delimiter=",")
    # The file has values from 0 to 16.
    images = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    is_test = held_out(labels, 1 / 5, seed=0)
    return DataSplits(
        Split(images[~is_test], labels[~is_test]),
        Split(images[is_test], labels[is_test]),
        classes=10,
    )


# ---- MNIST


# The mirrors that torchvision uses.
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
# For each file: the md5 of its .gz, as in torchvision 0.26, and its number of images or labels.
MNIST_FILES = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 60_000),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 60_000),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 10_000),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 10_000),
}


def read_mnist(config: MnistConfig, _: int) -> DataSplits:
    """Read MNIST's four IDX files (LeCun, Cortes, Burges), plain or compressed."""
    raw_folder = _mnist_folder(config)
    train, test = (
        Split(
            _read_idx(raw_folder, f"{part}-images-idx3-ubyte"),
            _read_idx(raw_folder, f"{part}-labels-idx1-ubyte").astype(np.int64),
        )
        for part in ("train", "t10k")
    )
    return DataSplits(train, test, classes=10)


def _mnist_folder(config: MnistConfig) -> Path:
    return Path(config.root).expanduser() / "MNIST" / "raw"


def _mnist_file(raw_folder: Path, name: str) -> Path:
    """Return the plain file if it exists, or else the .gz, which need not exist."""
    return raw_folder / name if (raw_folder / name).is_file() else raw_folder / f"{name}.gz"


def _read_idx(raw_folder: Path, name: str) -> np.ndarray:
    """Read an IDX file of unsigned bytes.

    It has a header of big-endian int32 (magic number, then one size per dimension) and the values.
    """
    path = _mnist_file(raw_folder, name)
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}i", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def check_mnist(config: MnistConfig) -> None:
    """Download the files if configured, and check that all are present and complete."""
    raw_folder = _mnist_folder(config)
    if config.download:
        _download(config)
    for name, (md5, count) in MNIST_FILES.items():
        path = _mnist_file(raw_folder, name)
        if not path.is_file():
            raise Refusal(
                "mnist.absent",
                f"dataset.root={config.root}: there is no {name}[.gz] in {raw_folder}; give the"
                " folder that holds MNIST/raw, `dataset.root=FOLDER`, or download it there with"
                " `dataset.download=true`",
                key="dataset.root",
                file=name,
                folder=str(raw_folder),
            )
        if path.suffix == ".gz":
            is_whole = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == md5
        else:
            is_whole = _has_shape(raw_folder, name, (count, 28, 28) if "idx3" in name else (count,))
        if not is_whole:
            raise Refusal(
                "mnist.altered",
                f"dataset.root={config.root}: {path} is truncated or altered; remove it, and"
                " download it again with `dataset.download=true`",
                key="dataset.root",
                file=path.name,
            )


def _has_shape(raw_folder: Path, name: str, shape: tuple[int, ...]) -> bool:
    try:
        return _read_idx(raw_folder, name).shape == shape
    except (IndexError, struct.error, ValueError):
        return False


def _download(config: MnistConfig) -> None:
    """Download the absent files, each completely or not at all."""
    raw_folder = _mnist_folder(config)
    problems = []
    absent = [name for name in MNIST_FILES if not _mnist_file(raw_folder, name).is_file()]
    for mirror in MIRRORS if absent else ():
        why = network.problem(mirror)
        try:
            for name in absent if why is None else ():
                _download_file(
                    f"{mirror}{name}.gz", raw_folder / f"{name}.gz", MNIST_FILES[name][0]
                )
        except (OSError, HTTPException) as error:
            why = str(error)
        if why is None:
            return
        problems.append(f"{mirror}: {why}")
    if problems:
        raise Refusal(
            "mnist.not-fetched",
            "dataset.download=true: could not download MNIST into"
            f" {config.root} ({'; '.join(problems)}); connect the machine to the network, or put"
            " the four files into MNIST/raw of dataset.root yourself",
            key="dataset.download",
            root=config.root,
            problems=problems,
        )


def _download_file(url: str, path: Path, md5: str) -> None:
    with urlopen(url, timeout=network.ANSWERS_WITHIN_S) as response:
        content = response.read()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise OSError(f"{path.name} arrived truncated or altered")
    with run_folder.replacing(path) as file:
        file.write(content)


# ---- all data sets


DATASETS = {
    "digits": DataSet(read_digits),
    "mnist": DataSet(read_mnist, MnistConfig, check_mnist, lambda config: config.download),
    "images": DataSet(
        photographs.read_photographs,
        ImagesConfig,
        photographs.check_photographs,
        finish=photographs.finish,
        require_room=photographs.require_room,
    ),
}


def check(config: DatasetConfig) -> None:
    """Check that the data set is present and complete."""
    DATASETS[config.name].check(config)


def load(config: DatasetConfig, seed: int) -> DataSplits:
    """Read the data set. `train_limit` and `test_limit` keep the first images after a shuffle."""
    dataset = DATASETS[config.name]
    return dataset.finish(_limited(dataset.read(config, seed), config, seed), config)


def repeated(config: DatasetConfig, seed: int) -> RepeatedImages | None:
    """Count images that this configuration reads more than once, and print a notice about them.

    Return None for built-in data sets.
    """
    if not isinstance(config, ImagesConfig):
        return None
    data = DATASETS[config.name].read(config, seed)
    return photographs.count_repeated(_limited(data, config, seed), config)


def _limited(data: DataSplits, config: DatasetConfig, seed: int) -> DataSplits:
    train = data.train.take(config.train_limit, seed)
    test = data.test.take(config.test_limit, seed)
    return replace(data, train=train, test=test)


def content(config: DatasetConfig) -> dict[str, list[Blob]]:
    """Return what identifies the whole data set, as named blobs to be hashed.

    They are its images (names and files of photographs) and labels. For photographs, the version of
    their decoding is included.
    """
    # With a fixed seed, runs with different seeds count as repetitions on the same data.
    data = DATASETS[config.name].read(config, 0)
    blobs: dict[str, Path | memoryview] = {}
    encoded = [split.images for split in (data.train, data.test) if isinstance(split.images, list)]
    paths = []
    for images in encoded:
        paths.extend(path_of(image) for image in images)
    root = os.path.commonpath(paths) if paths else ""
    for name, split in (("train", data.train), ("test", data.test)):
        blobs[f"{name} labels"] = _bytes_of(split.labels)
        if isinstance(split.images, np.ndarray):
            blobs[f"{name} images {split.images.shape}"] = _bytes_of(split.images)
        else:
            # A file that holds many images counts once. Slicing avoids relative_to: 7 us per path.
            columns = {path_of(image): column_of(image) for image in split.images}
            blobs |= {str(path)[len(root) :] + column: path for path, column in columns.items()}
    return {
        "dataset": [*blobs.items()],
        "decoding": [text_blob("decoding", str(decoding.VERSION))] if paths else [],
    }


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
