"""Weights as training scripts save them: in whatever dictionary, under whatever prefix;
and what is no such file.
"""

import argparse
import gzip
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn

from multicard.config.vision import ModelConfig
from multicard.messages import Message, Refusal
from multicard.vision import models, weights
from tests.conftest import typed
from tests.helpers.messages import refused, remedies

NAME, CLASSES, SIZE = "shufflenet_v2_x0_5", 5, 32  # its last layer is fc
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved() -> nn.Module:
    torch.manual_seed(1)
    return models.build(ModelConfig(NAME), CLASSES, SIZE)


def loaded(path: Path, classes: int = CLASSES, **keys: Any) -> tuple[nn.Module, list[Message]]:
    """A model of other random weights, with those of a file."""
    config = ModelConfig(NAME, weights=str(path), **keys)
    torch.manual_seed(2)
    model = models.build(config, classes, SIZE)
    return model, weights.load(model, config, classes, SIZE)


def same(model: nn.Module, other: nn.Module, *leaving_out: str) -> bool:
    """True where all weights and statistics are those of the other, but for names that begin so."""
    mine, theirs = model.state_dict(), other.state_dict()
    counted = [name for name in mine if not name.endswith("num_batches_tracked")]
    if leaving_out:
        counted = [name for name in counted if not name.startswith(leaving_out)]
    return all(torch.equal(mine[name], theirs[name]) for name in counted)


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


def of_body(state: State) -> State:
    return {name: value for name, value in state.items() if not name.startswith("fc.")}


class Unknown:
    """A class of somebody's own, as in hyperparameters: its code would end the test."""

    def __init__(self) -> None:
        self.depth = 3

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("code of the file was run")


def optimizer_state(model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


HELD: dict[str, Callable[[nn.Module], Any]] = {
    "itself": lambda model: model.state_dict(),
    "DDP": lambda model: under("module.", model.state_dict()),
    "compiled": lambda model: under("_orig_mod.", model.state_dict()),
    "compiled under DDP": lambda model: under("module._orig_mod.", model.state_dict()),
    "a wrapper": lambda model: under("model.", model.state_dict()),
    "a deep wrapper": lambda model: under("net.backbone.", model.state_dict()),
    "model_state_dict": lambda model: {
        "epoch": 3,
        "model_state_dict": model.state_dict(),
        "loss": 0.1,
    },
    "model": lambda model: {
        "model": under("module.", model.state_dict()),
        "optimizer": optimizer_state(model),
    },
    "net": lambda model: {"net": model.state_dict(), "acc": 91.2},
    "deep": lambda model: {"trainer": {"weights": {"model": model.state_dict()}}},
    "parts": lambda model: {"model": {"conv1": under("0.", {}), "all": model.state_dict()}},
    "Lightning": lambda model: {
        "epoch": 1,
        "state_dict": under("model.", model.state_dict()),
        "hyper_parameters": argparse.Namespace(lr=0.1, own=Unknown()),
        "optimizer_states": [optimizer_state(model)],
    },
    "a best figure of NumPy": lambda model: {
        "state_dict": model.state_dict(),
        "best": __import__("numpy").float64(9),
    },
    "a whole model": lambda model: model,
    "a whole model in DataParallel": lambda model: {"model": nn.DataParallel(model)},
    "half of its names in another order": lambda model: OrderedDict(
        reversed([*model.state_dict().items()])
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_weights_are_found_wherever_they_are_held(name: str, saved: nn.Module, tmp_path: Path):
    torch.save(HELD[name](saved), tmp_path / "a.pth")
    model, notes = loaded(tmp_path / "a.pth")
    assert same(model, saved) and notes == []


def test_the_form_of_a_file_is_by_its_content(saved: nn.Module, tmp_path: Path):
    save_file(under("model.", saved.state_dict()), tmp_path / "a.bin")
    torch.save(saved.state_dict(), tmp_path / "a.safetensors")
    torch.save(saved.state_dict(), tmp_path / "old.pth.tar", _use_new_zipfile_serialization=False)
    torch.save(
        {"hparams": Unknown(), "net": saved.state_dict()},
        tmp_path / "b.ckpt",
        _use_new_zipfile_serialization=False,
    )
    for path in tmp_path.iterdir():
        model, notes = loaded(path)
        assert same(model, saved) and notes == []


SEVERAL = {
    "timm": ("state_dict_ema", ["state_dict"], lambda plain, ema: {"state_dict": plain, "state_dict_ema": ema}),
    "torchvision": (
        "model_ema.module", ["model"], lambda plain, ema: {"model": plain, "model_ema": under("module.", ema)}
    ),
    "SWA in Lightning": (
        "swa_model", ["model"], lambda plain, ema: {"state_dict": under("model.", plain) | under("swa_model.", ema)}
    ),
    "beside the weights themselves": ("ema", ["."], lambda plain, ema: plain | {"ema": ema}),
    "a teacher": ("teacher", ["student"], lambda plain, ema: under("student.", plain) | under("teacher.", ema)),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_weights_those_that_are_taken_are_named_and_others_can_be(
    name: str, saved: nn.Module, tmp_path: Path
):
    taken, others, held = SEVERAL[name]
    if name == "SWA in Lightning":
        taken, others = f"state_dict.{taken}", [f"state_dict.{other}" for other in others]
    plain, averaged = models.build(ModelConfig(NAME), CLASSES, SIZE), saved
    torch.save(held(plain.state_dict(), averaged.state_dict()), tmp_path / "a.pth")
    model, (note,) = loaded(tmp_path / "a.pth")
    assert same(model, averaged)
    assert (note.code, note.key) == ("weights.taken", "model.weights")
    assert (note.facts["taken"], note.facts["others"]) == (taken, others)
    (remedy,) = remedies(note)
    plainly = (
        "dataset.image_size=32",
        "dataset.mean=[0,0,0]",
        "dataset.std=[1,1,1]",
    )  # not those of a library's weights
    chosen = typed(
        f"model={NAME}", f"model.weights={tmp_path / 'a.pth'}", remedy, *plainly
    ).model.weights_from
    model, (note,) = loaded(tmp_path / "a.pth", weights_from=chosen)
    assert same(model, plain) and (note.facts["taken"], note.facts["others"]) == (
        others[0],
        [taken],
    )
    with refused("weights.no-set", key="model.weights_from", names=[taken, *others]):
        loaded(tmp_path / "a.pth", weights_from="best")


def test_a_choice_among_weights_needs_a_file():
    for value in ("random", "pretrained"):
        with refused("config.model-weights-from", key="model.weights_from", weights=value):
            ModelConfig(NAME, weights=value, weights_from="ema")
    assert (
        typed("model=resnet18").identity()
        == typed("model=resnet18", "model.weights_from=null").identity()
    )


def test_tensors_beside_the_weights_are_named(saved: nn.Module, tmp_path: Path):
    state = under("model.", saved.state_dict()) | {
        "criterion.weight": torch.ones(CLASSES),
        "n": torch.tensor(3),
    }
    torch.save({"state_dict": state}, tmp_path / "a.ckpt")
    model, (note,) = loaded(tmp_path / "a.ckpt")
    assert same(model, saved) and note.code == "weights.taken"
    assert (note.facts["taken"], note.facts["others"], note.facts["left_count"]) == (
        "state_dict.model",
        [],
        2,
    )
    assert note.facts["left"] == ["state_dict.criterion.weight", "state_dict.n"]


@dataclass(frozen=True)
class LastLayer:
    """How the last layer is saved; what is said of it, and whether the model has it."""

    state: Callable[[State], State]
    why: str
    facts: dict[str, Any] = field(default_factory=dict)
    classes: int = CLASSES

    @property
    def is_read(self) -> bool:
        return self.why == "weights.head-renamed"


def renamed(state: State, name: str) -> State:
    return of_body(state) | {f"{name}.weight": state["fc.weight"], f"{name}.bias": state["fc.bias"]}


LAST = {
    "behind dropout": LastLayer(
        lambda state: renamed(state, "fc.1"), "weights.head-renamed", {"layer": "fc.1"}
    ),
    "another name": LastLayer(
        lambda state: renamed(state, "head"), "weights.head-renamed", {"layer": "head"}
    ),
    "beside a prefix": LastLayer(
        lambda state: (
            under("backbone.", of_body(state))
            | {"head.weight": state["fc.weight"], "head.bias": state["fc.bias"]}
        ),
        "weights.head-renamed",
        {"layer": "head"},
    ),
    "other classes": LastLayer(
        lambda state: state, "weights.head-of-other-classes", {"saved": 5, "classes": 3}, 3
    ),
    "other classes behind dropout": LastLayer(
        lambda state: renamed(state, "fc.1"),
        "weights.head-of-other-classes",
        {"saved": 5, "classes": 3},
        3,
    ),
    "a tensor of no layer": LastLayer(
        lambda state: (
            of_body(state) | {"mask_token": torch.ones(1, 8), "decoder.weight": state["fc.weight"]}
        ),
        "weights.head-of-other-layers",
        {"layers": ["decoder", "mask_token"]},
    ),
    "none": LastLayer(of_body, "weights.head-absent"),
    "two layers": LastLayer(
        lambda state: (
            of_body(state)
            | under("fc.0.", {"weight": torch.ones(8, 1024)})
            | under("fc.2.", {"weight": torch.ones(5, 8)})
        ),
        "weights.head-of-other-layers",
        {"layers": ["fc.0", "fc.2"]},
    ),
}


@pytest.mark.parametrize("name", LAST)
def test_what_became_of_the_last_layer_is_said_with_its_reason(
    name: str, saved: nn.Module, tmp_path: Path
):
    last = LAST[name]
    torch.save(last.state(saved.state_dict()), tmp_path / "a.pth")
    model, notes = loaded(tmp_path / "a.pth", last.classes)
    (note,) = notes
    assert note.code == ("weights.last-layer-renamed" if last.is_read else "weights.new-last-layer")
    assert (note.facts["why"].code, dict(note.facts["why"].facts)) == (last.why, last.facts)
    assert same(model, saved, *([] if last.is_read else ["fc."]))
    assert (
        torch.equal(model.get_parameter("fc.weight"), saved.get_parameter("fc.weight"))
        is last.is_read
    )


def test_weights_of_another_model_are_refused_whatever_their_prefix(
    saved: nn.Module, tmp_path: Path
):
    state = saved.state_dict()
    narrow = {
        name: value[:1] if name.startswith("conv1.0") else value for name, value in state.items()
    }
    lacking = {name: value for name, value in state.items() if not name.startswith("stage4.3")}
    more = state | {f"extra.{number}.weight": torch.ones(1) for number in range(9)}
    for wrong in (
        narrow,
        lacking,
        more,
        models.build(ModelConfig("resnet18"), CLASSES, SIZE).state_dict(),
    ):
        for held in (wrong, under("model.", wrong), {"state_dict": wrong}):
            torch.save(held, tmp_path / "a.pth")
            with refused("weights.of-another-model", key="model.weights"):
                loaded(tmp_path / "a.pth")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n"
OTHER: dict[str, tuple[bytes, str]] = {
    "LFS": (POINTER, "a pointer of Git LFS"),
    "HTML": (b"\n<!DOCTYPE html>\n<html><head>", "a web page"),
    "HTML without a type": (b"<HTML lang=en>", "a web page"),
    "XML": (b'<?xml version="1.0"?><Error>', "an answer in XML"),
    "an answer": (b'{"error": "Repository not found"}', "a text"),
    "words": (b"Entry not found", "a text"),
    "nothing": (b"", "empty"),
    "Keras": (b"\x89HDF\r\n\x1a\n" + bytes(99), "a file of Keras (HDF5)"),
    "gzip": (gzip.compress(b"x" * 99), "an archive (gzip)"),
}


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_what_is_no_file_of_weights_is_named(name: str, suffix: str, tmp_path: Path):
    content, what = OTHER[name]
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    with refused("weights.other-file", key="model.weights", file=str(path), what=what):
        loaded(path)


def test_archives_and_programs_are_named(saved: nn.Module, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("model.pth", b"x")
    with refused("weights.other-file", what="an archive (zip)"):
        loaded(tmp_path / "a.pth")
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "b.pth"))
    with refused("weights.other-file", what="a TorchScript program"):
        loaded(tmp_path / "b.pth")


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_a_file_that_is_cut_off_is_named(form: str, share: float, saved: nn.Module, tmp_path: Path):
    path = tmp_path / "a.pth"
    if form == "safetensors":
        path.write_bytes(save(saved.state_dict()))
    else:
        torch.save(saved.state_dict(), path, _use_new_zipfile_serialization=form == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with refused("weights.other-file", what="cut off"):
        loaded(path)


class Attack:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_no_code_of_a_file_is_run(saved: nn.Module, tmp_path: Path):
    mark = tmp_path / "mark"
    for attack in (
        Attack(os.system, f"touch {mark}"),
        Attack(mark.touch),
        Attack(eval, f"open({str(mark)!r}, 'w')"),
    ):
        for old in (True, False):
            torch.save(
                {"net": saved.state_dict(), "x": attack},
                tmp_path / "a.pth",
                _use_new_zipfile_serialization=old,
            )
            try:
                model, _ = loaded(tmp_path / "a.pth")
            except Refusal as refusal:
                assert refusal.code == "weights.unreadable"
            else:
                assert same(model, saved)
            assert not mark.exists()


@pytest.mark.parametrize(
    "content", [[torch.ones(2)], torch.ones(2), {0: torch.ones(2)}, {"a": 1}, None], ids=str
)
def test_files_without_names_are_refused(content: Any, tmp_path: Path):
    torch.save(content, tmp_path / "a.pth")
    with refused("weights.unreadable", key="model.weights", file=str(tmp_path / "a.pth")):
        loaded(tmp_path / "a.pth")


def test_a_layer_that_gives_classes_by_convolution_is_found_under_another_name(tmp_path: Path):
    config = ModelConfig("squeezenet1_1", weights=str(tmp_path / "a.pth"))
    own = models.build(config, CLASSES, 64)
    state = {
        name.replace("classifier.1.", "classifier.0."): value
        for name, value in own.state_dict().items()
    }
    torch.save({"model": state}, tmp_path / "a.pth")
    other = models.build(replace(config), CLASSES, 64)
    (note,) = weights.load(other, config, CLASSES, 64)
    assert note.code == "weights.last-layer-renamed" and same(other, own)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], "model.safetensors"),
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin"),
        (["rng_state.pth", "pytorch_model.bin"], None),
        ([], None),
    ],
)
def test_a_folder_of_a_hub_is_answered_by_its_file(
    files: list[str], named: str | None, tmp_path: Path
):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"x")
    with refused("weights.folder", key="model.weights", folder=str(folder)) as refusal:
        models.weights_file(ModelConfig(NAME, weights=str(folder)))
    offered = remedies(refusal.value)
    assert offered == ([] if named is None else [f"model.weights={folder / named}"])
