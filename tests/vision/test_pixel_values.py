"""What is said of images whose values are not those of photographs: few of 16 bits, further bands,
further pages.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from multicard.vision.data import datasets, decoding, pixel_values
from tests.helpers.messages import find, told
from tests.vision.test_class_folders import left, options, put

SIZE = 32


def grey(most: int, seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, most, (SIZE, SIZE), np.uint16, endpoint=True)
    values[0, 0] = most
    return Image.fromarray(values)


def of_classes(root: Path, ending: str, *most: int) -> Path:
    """Images of 16 bits in two classes, each with one of these greatest values."""
    for place, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for number, value in enumerate(most):
            grey(value, 10 * place + number).save(root / name / f"{number}{ending}")
    return root


@pytest.mark.parametrize("ending", [".png", ".tif", ".pgm"])
@pytest.mark.parametrize(("most", "bits"), [(4095, 12), (10_000, 14), (700, 10)])
def test_few_of_16_bits_are_said_with_their_range(
    most: int, bits: int, ending: str, tmp_path: Path, capsys: Any
):
    root = of_classes(tmp_path / "root", ending, most, most // 2, most // 3)
    datasets.check(options(root, "dataset.split=0.34"))
    said = find(capsys.readouterr().out, "photographs.dark", key="dataset.root")
    levels = len(np.unique(decoding.decode(root / "cat" / f"0{ending}", SIZE)))
    assert said.facts["most"] == most and said.facts["bits"] == bits
    assert said.facts["images"] == 6 and levels <= said.facts["levels"] <= levels + 1


@pytest.mark.parametrize("most", [65_535, 16_384])
def test_the_full_range_of_one_image_is_that_of_all(most: int, tmp_path: Path, capsys: Any):
    root = of_classes(tmp_path / "root", ".png", most, 4095, 4095)
    datasets.check(options(root, "dataset.split=0.34"))
    assert told(capsys.readouterr().out) == []


def test_a_fourth_band_is_transparency_where_the_file_says_so(tmp_path: Path, capsys: Any):
    root = tmp_path / "root"
    values = np.zeros((SIZE, SIZE, 4), np.uint8)
    values[...] = (200, 100, 50, 0)
    unspecified = entry(decoding.EXTRA_SAMPLES, 0)
    for place, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for number in range(4):
            values[0, 0] = place, number, 0, 0
            file = root / name / f"{number}.tif"
            Image.fromarray(values).save(file)
            assert decoding.decode(file, SIZE)[9, 9].tolist() == [255, 255, 255]
            other = unspecified if number % 2 else entry(60_000, 2)  # a tag that nobody knows
            file.write_bytes(file.read_bytes().replace(entry(decoding.EXTRA_SAMPLES, 2), other))
            assert decoding.decode(file, SIZE)[9, 9].tolist() == [200, 100, 50]
    datasets.check(options(root, "dataset.split=0.25"))
    said = find(capsys.readouterr().out, "photographs.further-band")
    assert said.facts["images"] == said.facts["opened"] == 8


def entry(tag: int, value: int) -> bytes:
    """A tag with one number of 16 bits in a TIFF."""
    return struct.pack("<HHIHH", tag, 3, 1, value, 0)


def test_further_pages_are_counted_and_smaller_copies_are_not(tmp_path: Path):
    root = put(tmp_path / "root", "cat", "dog", count=4)
    page = Image.new("RGB", (SIZE, SIZE), "red")
    others = [Image.new("RGB", (SIZE, SIZE), colour) for colour in ("green", "blue")]
    page.save(root / "cat/stack.tif", save_all=True, append_images=others)
    for other in others:
        other.encoderinfo = {"tiffinfo": {pixel_values.SUBFILE: 1}}
    page.save(root / "dog/pyramid.tif", save_all=True, append_images=others)
    assert left(root, "dataset.split=0.2") == {pixel_values.PAGES: 2}
