"""The data sets: what is in them, where they come from, and whether they are whole.

Checks run in the controller, before anything starts, and import neither torch nor torchvision.
"""

import gzip
import hashlib
import importlib.util
import struct
from pathlib import Path

import numpy as np

from multicard.config.base import require
from multicard.config.vision import CacheMode, DatasetConfig, DatasetName, ImagesConfig, MnistConfig
from multicard.vision.data.splits import IMAGE_SUFFIXES, Data, Split

# File: md5 of its .gz as torchvision 0.26 lists it, images or labels in it. They come four in a set.
MNIST_FILES = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 60_000),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 60_000),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 10_000),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 10_000),
}


def check(config: DatasetConfig) -> None:
    """See that the data set is there and whole.

    Raises:
        ValueError: what is absent, cut off or altered, and what to do.
    """
    if isinstance(config, MnistConfig):
        _check_mnist(config)
    elif isinstance(config, ImagesConfig):
        _check_images(Path(config.root or ""))
        if config.cache is not CacheMode.none:
            from multicard.vision.data import decoded_cache

            decoded_cache.check(config)


def load(config: DatasetConfig, seed: int) -> Data:
    """Read the data set; `train_limit` and `test_limit` are applied. Photographs are decoded, unless they are to be
    decoded each time."""
    whole = LOADS[config.name](config)
    found = Data(whole.train.take(config.train_limit, seed), whole.test.take(config.test_limit, seed), whole.classes)
    if not isinstance(config, ImagesConfig) or config.cache is CacheMode.none:
        return found
    from multicard.vision.data import decoded_cache

    return decoded_cache.cached(found, config)


def _digits(config: DatasetConfig) -> Data:
    """1,797 handwritten digits, 8 x 8, of 43 people (Alpaydin and Kaynak, UCI 1998), as scikit-learn ships them.

    Read from scikit-learn's own file: importing sklearn.datasets for it would take longer than a second. The
    split is the same whatever the seed: every fifth sample of each class, by a fixed shuffle, is for testing.
    """
    found = importlib.util.find_spec("sklearn")
    assert found is not None and found.submodule_search_locations, "scikit-learn is in requirements.txt"
    with gzip.open(Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    images = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 0..16 in the file
    labels = table[:, -1].astype(np.int64)
    shuffle = np.random.default_rng(0)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = shuffle.permutation(np.flatnonzero(labels == digit))
        is_test[members[: round(len(members) / 5)]] = True
    return Data(Split(images[~is_test], labels[~is_test]), Split(images[is_test], labels[is_test]), classes=10)


def _mnist(config: DatasetConfig) -> Data:
    """MNIST's four IDX files (LeCun, Cortes, Burges), plain or .gz."""
    assert isinstance(config, MnistConfig)
    raw = _mnist_folder(config)
    train, test = (
        Split(_idx(raw, f"{part}-images-idx3-ubyte"), _idx(raw, f"{part}-labels-idx1-ubyte").astype(np.int64))
        for part in ("train", "t10k")
    )
    return Data(train, test, classes=10)


def _mnist_folder(config: MnistConfig) -> Path:
    return Path(config.root).expanduser() / "MNIST" / "raw"


def _mnist_file(raw: Path, name: str) -> Path | None:
    return next((path for path in (raw / name, raw / f"{name}.gz") if path.is_file()), None)


def _idx(raw: Path, name: str) -> np.ndarray:
    """An IDX file of unsigned bytes: a header of big-endian int32 (magic, then one a dimension), then the values."""
    path = _mnist_file(raw, name)
    assert path is not None, f"{raw / name} was there when it was checked"
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}i", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def _check_mnist(config: MnistConfig) -> None:
    raw = _mnist_folder(config)
    if config.download:
        _download_mnist(config)
    for name, (md5, count) in MNIST_FILES.items():
        path = _mnist_file(raw, name)
        remedy = "set dataset.root to the folder that holds MNIST/raw, or dataset.download=true to fetch it there"
        require(path is not None, f"dataset.root={config.root}: no {name}[.gz] in {raw}; {remedy}")
        assert path is not None
        remedy = "fetch the file again (remove it and use dataset.download=true)"
        if path.suffix == ".gz":
            found = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            require(found == md5, f"dataset.root={config.root}: {path} is cut off or altered (md5 {found}); {remedy}")
        else:
            expected = _idx_bytes(name, count)
            found_bytes = path.stat().st_size
            problem = f"{path} has {found_bytes} bytes, not {expected}"
            require(found_bytes == expected, f"dataset.root={config.root}: {problem}; {remedy}")
            header = path.open("rb").read(8)
            magic = (0, 0, 8, 3 if "idx3" in name else 1, *count.to_bytes(4, "big"))
            require(tuple(header) == magic, f"dataset.root={config.root}: {path} is not an IDX file; {remedy}")


def _idx_bytes(name: str, count: int) -> int:
    return 16 + count * 28 * 28 if "idx3" in name else 8 + count


def _download_mnist(config: MnistConfig) -> None:
    if all(_mnist_file(_mnist_folder(config), name) for name in MNIST_FILES):
        return
    from torchvision.datasets import MNIST

    try:
        MNIST(Path(config.root).expanduser(), download=True)
    except (OSError, RuntimeError) as error:
        problem = f"dataset.download=true: could not fetch MNIST into {config.root} ({error})"
        raise ValueError(f"{problem}; see that the machine has network, or put the files there yourself") from None


def _images(config: DatasetConfig) -> Data:
    """A folder of photographs: train/<class>/* and validation/<class>/*, as torchvision's ImageFolder reads it."""
    assert isinstance(config, ImagesConfig) and config.root is not None
    from torchvision.datasets import ImageFolder

    root = Path(config.root).expanduser()
    train, test = (ImageFolder(root / part) for part in ("train", "validation"))
    splits = (
        Split([Path(path) for path, _ in part.samples], np.array([label for _, label in part.samples], np.int64))
        for part in (train, test)
    )
    return Data(*splits, classes=len(train.classes))


def _check_images(root: Path) -> None:
    root = root.expanduser()
    key = f"dataset.root={root}"
    remedy = "it must hold train/<class>/ and validation/<class>/ with the images"
    classes: dict[str, set[str]] = {}
    for part in ("train", "validation"):
        require((root / part).is_dir(), f"{key}: no folder {part}/ in it; {remedy}")
        folders = [path for path in (root / part).iterdir() if path.is_dir()]
        require(bool(folders), f"{key}: no class folders in {part}/; {remedy}")
        for path in folders:
            images = any(file.suffix.lower() in IMAGE_SUFFIXES for file in path.rglob("*"))
            require(images, f"{key}: no image in {part}/{path.name}/; put its images there or remove the folder")
        classes[part] = {path.name for path in folders}
    differ = sorted(classes["train"] ^ classes["validation"])
    remedy = "both parts need the same class folders"
    require(not differ, f"{key}: only in one of train/ and validation/: {', '.join(differ)}; {remedy}")


LOADS = {DatasetName.digits: _digits, DatasetName.mnist: _mnist, DatasetName.images: _images}
