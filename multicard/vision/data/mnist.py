"""`dataset=mnist`: its four IDX files, downloaded on request and checked."""

import errno
import gzip
import hashlib
import os
import struct
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from multicard.config.keys import require
from multicard.config.vision import MnistConfig
from multicard.machine import network
from multicard.records import run_folder
from multicard.vision.data.splits import Data, Split

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")  # torchvision's
# File: md5 of its .gz as torchvision 0.26 lists it, images or labels in it. They come four in a set.
FILES = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 60_000),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 60_000),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 10_000),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 10_000),
}


def read(config: MnistConfig) -> Data:
    """MNIST's four IDX files (LeCun, Cortes, Burges), plain or .gz."""
    raw = _folder(config)
    train, test = (
        Split(_idx(raw, f"{part}-images-idx3-ubyte"), _idx(raw, f"{part}-labels-idx1-ubyte").astype(np.int64))
        for part in ("train", "t10k")
    )
    return Data(train, test, classes=10)


def _folder(config: MnistConfig) -> Path:
    return Path(config.root).expanduser() / "MNIST" / "raw"


def _file(raw: Path, name: str) -> Path | None:
    return next((path for path in (raw / name, raw / f"{name}.gz") if path.is_file()), None)


def _idx(raw: Path, name: str) -> np.ndarray:
    """An IDX file of unsigned bytes: a header of big-endian int32 (magic, then one a dimension), then the values."""
    path = _file(raw, name)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(raw / name))
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}i", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def check(config: MnistConfig) -> None:
    """Download the files where that is asked for, and see that all are there and whole.

    Raises:
        ValueError: the file that is absent, cut off or altered, and what to do.
    """
    raw = _folder(config)
    if config.download:
        _download(config)
    key = f"dataset.root={config.root}"
    for name, (md5, count) in FILES.items():
        path = _file(raw, name)
        remedy = "set dataset.root to the folder that holds MNIST/raw, or dataset.download=true to fetch it there"
        require(path is not None, f"{key}: no {name}[.gz] in {raw}; {remedy}")
        assert path is not None
        remedy = "fetch the file again (remove it and use dataset.download=true)"
        if path.suffix == ".gz":
            digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            require(digest == md5, f"{key}: {path} is cut off or altered (md5 {digest}); {remedy}")
            continue
        is_images = "idx3" in name
        size, expected = path.stat().st_size, 16 + count * 28 * 28 if is_images else 8 + count
        require(size == expected, f"{key}: {path} has {size} bytes, not {expected}; {remedy}")
        magic = bytes((0, 0, 8, 3 if is_images else 1)) + count.to_bytes(4, "big")
        require(path.open("rb").read(8) == magic, f"{key}: {path} is not an IDX file; {remedy}")


def _download(config: MnistConfig) -> None:
    """Fetch the files that are absent, each whole or not at all."""
    raw, problems = _folder(config), []
    absent = [name for name in FILES if _file(raw, name) is None]
    for mirror in MIRRORS if absent else ():
        why = network.problem(mirror)
        try:
            for name in absent if why is None else ():
                _fetch(f"{mirror}{name}.gz", raw / f"{name}.gz", FILES[name][0])
        except (OSError, HTTPException) as error:
            why = str(error)
        if why is None:
            return
        problems.append(f"{mirror}: {why}")
    remedy = "see that the machine has network, or put its four files into MNIST/raw of dataset.root yourself"
    problem = f"dataset.download=true: could not fetch MNIST into {config.root} ({'; '.join(problems)})"
    require(not problems, f"{problem}; {remedy}")


def _fetch(url: str, path: Path, md5: str) -> None:
    with urlopen(url, timeout=network.ANSWERS_WITHIN_S) as response:
        content = response.read()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise OSError(f"{path.name} came cut off or altered")
    with run_folder.replacing(path) as file:
        file.write(content)
