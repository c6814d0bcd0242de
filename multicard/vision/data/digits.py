"""`dataset=digits`: handwritten digits, as scikit-learn ships them."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from multicard.config.vision import DatasetConfig
from multicard.vision.data.splits import Data, Split


def read(_: DatasetConfig) -> Data:
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
