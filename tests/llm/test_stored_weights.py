"""Folders with weights that are not those of one model: adapters, weights twice, other outputs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from multicard.llm import stored_weights
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused

ONES = np.ones((2, 3), np.float32)
INDEX = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}


def write(folder: Path, file: str = "model.safetensors", **tensors: Any) -> None:
    folder.mkdir(exist_ok=True)
    save_file(tensors or {"a": ONES}, folder / file)


def adapter(folder: Path) -> None:
    held = {"base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(held))


def damaged_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("[]")


def shards(folder: Path) -> None:
    write(folder, "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(INDEX))


WRONG: dict[str, tuple[Callable[[Path], None], str, dict[str, Any]]] = {
    "adapter": (adapter, "llm.weights-adapter", {"base": "base"}),
    "damaged adapter": (damaged_adapter, "llm.weights-adapter", {"base": None}),
    "shards beside a whole": (shards, "llm.weights-twice", {}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_folder_of_two_models_is_refused(name: str, tmp_path: Path):
    spoil, code, facts = WRONG[name]
    write(tmp_path)
    assert stored_weights.stored_shapes(str(tmp_path), "model.path") == {"a": (2, 3)}
    spoil(tmp_path)
    with refused(code, key="model.path", value=str(tmp_path), **facts):
        stored_weights.stored_shapes(str(tmp_path), "model.path")


@pytest.mark.parametrize("index", ["{}", "[", json.dumps(INDEX), '{"weight_map": {"a": "x"}}'])
def test_an_index_without_files_is_not_read(index: str, tmp_path: Path):
    write(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert stored_weights.stored_shapes(str(tmp_path), "model.path") == {"a": (2, 3)}


def test_tensors_are_compared_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_weights, "BLOCK", 5)
    other = ONES.copy()
    other[1, 2] = 2
    write(tmp_path, "1.safetensors", a=ONES, b=other)
    write(tmp_path, "2.safetensors", c=ONES.copy(), d=ONES[:1])
    same = [stored_weights.hold_the_same(str(tmp_path), "a", name) for name in "abcd"]
    assert same == [True, False, True, False]


def test_an_adapter_alone_and_a_name_on_the_hub_are_refused_with_what_to_give(tmp_path: Path):
    adapter(tmp_path)
    own = ("engine=trl", "model=hf", "dataset=chat")
    with refused("config.hf-no-config", key="model.path"):
        typed_llm(*own, f"model.path={tmp_path}")
    with refused("config.hf-no-folder", key="model.path", value="owner/name-1.5B") as caught:
        typed_llm(*own, "model.path=owner/name-1.5B")
    assert find(str(caught.value), "config.hf-no-folder")
