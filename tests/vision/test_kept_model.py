"""`save=model`: what is kept of a training, read again by the libraries alone."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import multicard
from multicard.config.vision import ModelConfig, VisionConfig
from multicard.messages import Message
from multicard.records import run_folder
from multicard.run.workload import Workload
from multicard.vision import kept_model, models, weights
from multicard.vision.data.datasets import read_digits
from multicard.vision.workload import WORKLOAD
from tests.conftest import ROOT, SMALL, Called, Measuring, ok, typed
from tests.helpers.messages import find, refused

KINDS = {
    "mobilenet_v2": ["model.width=0.35"],
    "layers of our own": ["model.width=0.35", "model.pointwise=linear", "layout=nhwc"],
    "resnet18": ["model=resnet18"],
    "vit_b_16": ["model=vit_b_16"],
    "googlenet": ["model=googlenet"],
    "timm": ["model=timm/resnet18", "precision=fp64"],
    "timm's fixed size": ["model=vit_tiny_patch16_224"],
}


def trained(*words: str) -> tuple[VisionConfig, torch.nn.Module]:
    """A configuration, and its model with other weights than it starts from."""
    config = typed("save=model", "dataset.image_size=64", *words)
    model = models.build(config.model, 10, config.dataset.image_size)
    if config.precision.name == "fp64":
        model.double()
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand(buffer.shape))
    return config, model.eval()


def classes() -> list[str]:
    return [f"class {number}" for number in range(10)]


@pytest.mark.parametrize("words", KINDS.values(), ids=KINDS.keys())
def test_a_kept_model_computes_the_same(tmp_path: Path, words: list[str]):
    config, model = trained(*words)
    saved = kept_model.keep(model, config, classes(), 0.5, tmp_path)
    assert saved.problem is None
    assert saved.bytes == (tmp_path / "model/model.safetensors").stat().st_size
    again = multicard.load_model(tmp_path)
    images = torch.rand(2, 3, 64, 64, dtype=next(model.parameters()).dtype)
    with torch.inference_mode():
        # Kernels are chosen by where in memory the weights lie, and add in another order
        torch.testing.assert_close(again(images), model(images), rtol=1e-5, atol=1e-7)
    assert again.classes == classes() and not again.training


def loaded(file: Path, names: list[str]) -> tuple[list[Message], torch.Tensor]:
    """Start from a kept model with classes of these names; the notes, and its last layer."""
    config = ModelConfig("resnet18", weights=str(file))
    model = models.build(config, len(names), 64)
    notes = weights.load(model, config, len(names), 64, names)
    return notes, model.get_parameter("fc.weight").detach()


def test_a_kept_model_starts_with_the_classes_of_the_data_in_their_order(tmp_path: Path):
    config, model = trained("model=resnet18")
    names = [str(number) for number in range(10)]
    kept_model.keep(model, config, names, 0.5, tmp_path)
    file = tmp_path / "model/model.safetensors"
    last_layer = model.get_parameter("fc.weight")
    notes, same = loaded(file, names)
    assert notes == [] and torch.equal(same, last_layer)
    (note,), reversed_layer = loaded(file, names[::-1])
    assert note.code == "weights.last-layer-reordered"
    assert torch.equal(reversed_layer, last_layer.flip(0))
    (note,), other_layer = loaded(file, [*names[:8], "cat", "dog"])
    assert note.code == "weights.new-last-layer"
    assert note.facts["why"].facts == {"lacking": ["8", "9"]}
    assert not torch.equal(other_layer, last_layer)
    renamed = tmp_path / "weights.safetensors"  # Nothing says which classes it has.
    renamed.write_bytes(file.read_bytes())
    assert torch.equal(loaded(renamed, names[::-1])[1], last_layer)


@pytest.mark.process
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("loader", ["torch", "device"])
@pytest.mark.parametrize("name", ["mobilenet_v2", "timm/resnet18"])
def test_the_lines_that_load_it_need_nothing_of_multicard(tmp_path: Path, name: str, loader: str):
    config, model = trained(f"model={name}", f"loader={loader}")
    kept_model.keep(model, config, classes(), 0.5, tmp_path)
    again = multicard.load_model(tmp_path)
    rng = np.random.default_rng(0)
    photographs, expected = [], []
    for number in range(6):
        photograph = tmp_path / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (80 + number, 100, 3), dtype=np.uint8)).save(
            photograph
        )
        photographs.append(photograph)
        with torch.inference_mode():
            expected.append(
                again.classes[again(again.preprocess(Image.open(photograph))[None]).argmax()]
            )
    lines = kept_model.lines_to_load(tmp_path)
    loading, classifying = lines[:-4], lines[-4:]
    of_each = [
        line.replace("IMAGE", str(photograph)) for photograph in photographs for line in classifying
    ]
    script = "\n".join([*loading, *of_each, "import sys", "print('multicard' in sys.modules)"])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == [*expected, "False"]


def test_a_full_disk_leaves_the_run_and_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config, model = trained()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    saved = kept_model.keep(model, config, classes(), 0.5, tmp_path)
    assert (
        saved.folder is None
        and saved.problem is not None
        and os.strerror(errno.ENOSPC) in saved.problem
    )
    assert not [*tmp_path.iterdir()]


def test_a_write_that_fails_leaves_the_run_and_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config, model = trained()
    monkeypatch.setattr(
        "safetensors.torch.save_file",
        lambda *_, **__: Path("/dev/full").write_text("x" * 1_000_000),
    )
    saved = kept_model.keep(model, config, classes(), 0.5, tmp_path)
    assert saved.folder is None and saved.problem is not None
    assert not [*tmp_path.iterdir()]


def test_what_is_no_model_is_refused(tmp_path: Path):
    with refused("save.none", key="save"):
        multicard.load_model(tmp_path)
    config, model = trained()
    for name in "ab":
        (tmp_path / name).mkdir()
        kept_model.keep(model, config, classes(), 0.5, tmp_path / name)
    with refused("save.several", folders=[str(tmp_path / "a"), str(tmp_path / "b")]):
        multicard.load_model(tmp_path)
    weights = tmp_path / "a/model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with refused("save.unreadable", key="save"):
        multicard.load_model(tmp_path / "a")


@pytest.mark.parametrize(
    ("word", "code"),
    [("probe.enabled=true", "config.save-probe"), ("race.figure=images_per_s", "config.save-race")],
)
def test_a_training_that_is_not_whole_keeps_no_model(word: str, code: str):
    with refused(code, key="save"):
        typed("save=model", word)


def test_keeping_the_model_is_no_part_of_the_identity():
    assert typed("save=model").identity() == typed().identity()


class OnAFullDisk(Measuring):
    @property
    def workload(self) -> Workload:
        return replace(WORKLOAD, work="tests.helpers.rank_work:train_on_a_full_disk")


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_disk_that_fills_up_under_two_ranks_leaves_the_run_and_nothing_else(tmp_path: Path):
    run = ok(OnAFullDisk(tmp_path)("save=model", "model.width=0.35", "gpus=2"))
    assert run["saved"]["folder"] is None and run["test_accuracy"] is not None
    assert find(run["saved"]["problem"], "save.failed")
    assert not {path.name for path in Path(run["folder"]).iterdir()} & {"model", "model.part"}
    assert not [*Path(run["folder"]).rglob("*.safetensors*")]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_the_kept_model_has_the_records_accuracy(tmp_path: Path, called: Called):
    """Two ranks, whose BatchNorm sees other images: the first one's statistics are evaluated,
    and kept.
    """
    words = [
        *SMALL,
        "gpus=2",
        "epochs=3",
        "dataset.train_limit=600",
        f"hydra.run.dir={tmp_path}/run",
    ]
    code, _ = called(*words)
    assert code == 0
    code, printed = called(*words, "save=model")  # measured before
    assert code == 0 and find(printed, "save.not-kept", key="save")
    assert not [*tmp_path.rglob("model.json")]
    code, _ = called(*words, "save=model", "rerun=true")
    assert code == 0
    (path,) = tmp_path.rglob("result.json")
    run = run_folder.read_run(path.parent)
    assert run is not None and run.record.kind == "vision" and run.record.saved is not None
    assert run.record.saved.folder == "model" and run.record.saved.save_s > 0
    model = multicard.load_model(path.parent)
    test = read_digits(None, 0).test  # pyright: ignore[reportArgumentType]
    test = test.take(run.record.config["dataset"]["test_limit"], run.record.config["seed"])
    images = torch.stack([model.preprocess(torch.from_numpy(image)[None]) for image in test.images])
    with torch.inference_mode():
        right = int((model(images).argmax(dim=1) == torch.from_numpy(test.labels)).sum())
    assert right == run.record.epochs[-1].test_right
    assert str(ROOT) not in (path.parent / "model/model.json").read_text()
