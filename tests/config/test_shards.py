"""Which shards of a data set are missing, by the names of those that are there."""

import pytest

from multicard.config.shards import missing_shards


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["train-00000-of-00002.parquet"], ["train-00001-of-00002.parquet"]),
        (["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"], []),
        (["data-00001-of-00002.arrow", "data-00000-of-00001.arrow"], ["data-00000-of-00002.arrow"]),
        (
            ["train-00001-of-00003-0a1b2c3d.parquet", "train-00002-of-00003-ffffffff.parquet"],
            ["train-00000-of-00003.parquet"],
        ),
        (["a-00000-of-00002.json.gz"], ["a-00001-of-00002.json.gz"]),
        (["train.parquet", "page-1-of-2.csv", "x-00000-of-99999999.csv"], []),
    ],
)
def test_missing_shards_are_those_between_the_numbers_that_names_count(
    names: list[str], missing: list[str]
):
    assert missing_shards(names) == missing
