"""The names of classes that training scripts save beside their weights; whole numbers in place of
weights, and weights for images of another size.
"""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.config.vision import ModelConfig
from multicard.messages import Message
from multicard.vision import models, weights
from tests.helpers.messages import refused, remedies

NAME, SIZE = "shufflenet_v2_x0_5", 32  # its last layer is fc
NAMES = ["owl", "cat", "dog"]  # the order in which the file was trained
NUMBERS = {name: number for number, name in enumerate(NAMES)}
State = dict[str, torch.Tensor]


def trained() -> State:
    torch.manual_seed(1)
    return models.build(ModelConfig(NAME), len(NAMES), SIZE).state_dict()


def loaded(path: Path, content: Any, class_names: list[str]) -> tuple[list[Message], torch.Tensor]:
    """Start from a file with this content: the notes, and the last layer."""
    torch.save(content, path)
    config = ModelConfig(NAME, weights=str(path))
    torch.manual_seed(2)
    model = models.build(config, len(class_names), SIZE)
    notes = weights.load(model, config, len(class_names), SIZE, class_names)
    return notes, model.get_parameter("fc.weight").detach()


HELD: dict[str, dict[str, Any]] = {
    "as ImageFolder has them": {"class_to_idx": NUMBERS},
    "a list": {"classes": NAMES},
    "a tuple": {"meta": {"class_names": tuple(NAMES)}},
    "numbers first": {"idx_to_class": dict(enumerate(NAMES))},
    "numbers as text": {"config": {"id2label": {str(n): name for n, name in enumerate(NAMES)}}},
    "hyperparameters": {"hyper_parameters": argparse.Namespace(lr=0.1, classes=NAMES)},
    "twice the same": {"classes": NAMES, "class_to_idx": NUMBERS},
    "as MMPretrain 0.x has them": {"meta": {"CLASSES": tuple(NAMES)}},
    "another key": {"label_map": NUMBERS},
    "a list under another key": {"dls": {"vocab": NAMES}},
    "another key beside other words": {"classes": ["n1", "n2", "n3"], "idx2label": NAMES},
    "spelled otherwise": {"class_names": ["OWL", "Cat", " dog"]},
}


@pytest.mark.parametrize("name", HELD)
def test_the_last_layer_gets_the_order_of_the_data(name: str, tmp_path: Path):
    state = trained()
    (note,), layer = loaded(tmp_path / "a.pth", HELD[name] | {"model": state}, sorted(NAMES))
    assert note.code == "weights.last-layer-reordered"
    assert torch.equal(layer, state["fc.weight"][[1, 2, 0]])
    notes, layer = loaded(tmp_path / "a.pth", HELD[name] | {"model": state}, NAMES)
    assert not notes and torch.equal(layer, state["fc.weight"])


OF_NO_USE: dict[str, dict[str, Any]] = {
    "other words for the same classes": {"classes": ["n01", "n02", "n03"]},
    "another number of classes": {"classes": [*NAMES, "fox"]},
    "lists that differ": {"classes": NAMES, "names": NAMES[::-1]},
    "numbers that are not those of outputs": {"class_to_idx": {"cat": 3, "dog": 1, "owl": 2}},
    "other keys that differ": {"vocab": NAMES, "labels": NAMES[::-1]},
    "another key with other names": {"labels": [*NAMES[:2], "fox"]},
    "the same names under a key of something else": {"hardest": NAMES},
    "no names": {"classes": 3, "names": [0.5, 1.5, 2.5], "id2label": {"a": "b"}},
}


@pytest.mark.parametrize("name", OF_NO_USE)
def test_names_that_say_nothing_of_the_outputs_are_not_used(name: str, tmp_path: Path):
    state = trained()
    content = OF_NO_USE[name] | {"model": state}
    notes, layer = loaded(tmp_path / "a.pth", content, sorted(NAMES))
    assert not notes and torch.equal(layer, state["fc.weight"])


def test_numbers_under_another_key_are_not_taken_for_classes(tmp_path: Path):
    state = trained()
    content = {"model": state, "labels_to_skip": [2, 0, 1]}
    notes, layer = loaded(tmp_path / "a.pth", content, ["0", "1", "2"])
    assert not notes and torch.equal(layer, state["fc.weight"])


def test_names_that_only_one_spelling_divides_are_compared_as_they_are(tmp_path: Path):
    state = trained()
    content = {"model": state, "classes": ["cat", "Cat", "dog"]}
    (note,), layer = loaded(tmp_path / "a.pth", content, ["Cat", "cat", "dog"])
    assert note.code == "weights.last-layer-reordered"
    assert torch.equal(layer, state["fc.weight"][[1, 0, 2]])


def test_a_class_that_the_data_lack_makes_the_last_layer_new(tmp_path: Path):
    state = trained()
    content = {"model": state, "class_to_idx": NUMBERS}
    (note,), layer = loaded(tmp_path / "a.pth", content, ["cat", "dog", "fox"])
    assert note.code == "weights.new-last-layer"
    assert note.facts["why"].facts == {"lacking": ["owl"]}
    assert not torch.equal(layer, state["fc.weight"])


def test_quantized_weights_are_refused(tmp_path: Path):
    state = trained()
    content = state | {"conv1.0.weight": (state["conv1.0.weight"] * 100).to(torch.int8)}
    with refused("weights.whole-numbers", name="conv1.0.weight", kind="int8"):
        loaded(tmp_path / "a.pth", content, NAMES)


@pytest.mark.parametrize(
    "name",
    [
        "timm/vit_tiny_patch16_224",
        "timm/deit_tiny_distilled_patch16_224",
        pytest.param("vit_b_32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("saved", "wanted"), [(64, 96), (96, 64)])
def test_weights_for_images_of_another_size_are_refused_with_it(
    name: str, saved: int, wanted: int, tmp_path: Path
):
    config = ModelConfig(name, weights=str(tmp_path / "a.pth"))
    torch.save(models.build(config, 3, saved).state_dict(), config.weights)
    with refused("weights.of-another-size", saved=saved, size=wanted) as refusal:
        weights.load(models.build(config, 3, wanted), config, 3, wanted)
    assert remedies(refusal.value) == [f"dataset.image_size={saved}"]
    assert weights.load(models.build(config, 3, saved), config, 3, saved) == []


def test_positions_of_another_width_are_of_another_model(tmp_path: Path):
    config = ModelConfig("timm/vit_tiny_patch16_224", weights=str(tmp_path / "a.pth"))
    state = models.build(config, 3, 64).state_dict()
    torch.save(state | {"pos_embed": torch.zeros(1, 37, 64)}, config.weights)
    with refused("weights.of-another-model"):
        weights.load(models.build(config, 3, 64), config, 3, 64)
