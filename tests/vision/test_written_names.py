"""Names of classes whose accents are written in two ways, as Linux and macOS do."""

import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from multicard.vision.data import class_names
from tests.helpers.messages import refused
from tests.vision.test_sample_sources import loaded

pytestmark = pytest.mark.core

ONE = unicodedata.normalize("NFC", "café")
OTHER = unicodedata.normalize("NFD", "café")


def test_accents_are_no_difference_between_classes():
    assert class_names.group_similar_names([ONE, "dog", OTHER, "cafe"]) == [[ONE, OTHER]]


def test_parts_whose_classes_are_written_in_two_ways_are_refused_with_both(tmp_path: Path):
    for part, name in (("train", ONE), ("val", OTHER)):
        for folder in (name, "dog"):
            (tmp_path / part / folder).mkdir(parents=True)
            Image.new("RGB", (32, 32), (len(part), 9, 9)).save(tmp_path / part / folder / "0.png")
    with refused("photographs.other-classes", alike=[OTHER, ONE]) as caught:
        loaded(tmp_path)
    assert "caf\\xe9" in caught.value.message.sentence
