"""Models by name: of torchvision and timm, from their own or a file's weights,
with a frozen backbone.
"""

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models as torchvision_models

from multicard.config.vision import Freeze, ModelConfig
from multicard.estimate.memory import answers, facts
from multicard.estimate.memory.simulate import simulate
from multicard.vision import model_names, models, optim, weights
from multicard.vision.trial import Trial, try_model
from multicard.vision.workload import WORKLOAD
from tests.conftest import Called, composed, typed
from tests.helpers.messages import find, refused, says

SIZES = {
    32: (
        "resnet18 vit_b_16 regnet_y_400mf swin_t convnext_atto efficientnet_b0 timm/resnet18"
        " densenet121 mnasnet0_5"
    ),
    48: "vit_tiny_patch16_224",
    64: "googlenet mixer_s32_224 squeezenet1_1 mobilevit_xxs poolformer_s12 edgenext_xx_small",
    224: "maxvit_t levit_128s",
}
SIZES[32] += " shufflenet_v2_x0_5 vgg11_bn ghostnet_050"
FAMILIES = {name: size for size, names in SIZES.items() for name in names.split()}
QUICK = (
    "resnet18",
    "vit_b_16",
    "regnet_y_400mf",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "timm/resnet18",
)


def trial(name: str, size: int, batch_size: int = 2, **keys: object) -> Trial:
    return Trial(ModelConfig(name, **keys), 7, size, batch_size, averages=True)  # pyright: ignore[reportArgumentType]


def test_the_names_are_those_that_the_libraries_register():
    names = {*model_names.classifier_names()}
    theirs = {*torchvision_models.list_models(module=torchvision_models)} | {*timm.list_models()}
    assert {name for name in names if not name.startswith("timm/")} == theirs
    assert {name for name in names if name.startswith("timm/")} == {
        f"timm/{name}" for name in timm.list_models()
    }


def test_a_name_is_an_option_with_the_identity_of_the_older_form():
    assert typed("model=resnet50").identity() == typed("model.name=resnet50").identity()
    assert composed("model=timm/resnet18").model.name == "timm/resnet18"
    own = (
        models.build(typed("model=resnet18").model, 7, 32),
        models.build(typed("model=timm/resnet18").model, 7, 32),
    )
    assert [type(model).__module__.partition(".")[0] for model in own] == ["torchvision", "timm"]


def test_a_name_may_have_a_tag_of_timms_weights():
    assert composed("model=resnet50.a1_in1k").model.name == "resnet50.a1_in1k"
    assert try_model(trial("timm/resnet18.a1_in1k", 32)).problem is None
    for name in ("mobilenet_v2.x", "resnet1.a1_in1k"):  # timm has no such model
        with refused("classifier.unknown", key="model", model=name):
            models.refuse(name)


@pytest.mark.parametrize("name", QUICK)
def test_a_model_is_tried_without_values(name: str):
    assert try_model(trial(name, FAMILIES[name])).problem is None


@pytest.mark.parametrize(
    ("asked", "code", "remedies"),
    [
        (trial("vit_h_14", 64), "trial.cannot-train", ["dataset.image_size=518"]),
        (trial("maxvit_t", 64), "trial.cannot-train", ["dataset.image_size=224"]),
        (trial("inception_v3", 64), "trial.cannot-train", []),
        # one value a channel, which BatchNorm cannot train on
        (trial("resnet18", 32, 1), "trial.cannot-train", []),
        (trial("resnet50.nosuch", 32), "trial.unknown-tag", []),
    ],
)
def test_what_a_model_cannot_do_is_said(asked: Trial, code: str, remedies: list[str]):
    problem = try_model(asked).problem
    assert problem is not None
    assert (problem.code, problem.key, problem.remedies) == (code, "model", remedies)
    if code == "trial.unknown-tag":
        assert "nosuch" in problem.facts["why"]
    else:
        assert problem.facts["image_size"] == asked.image_size


class Two(nn.Module):
    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs, inputs


@pytest.mark.parametrize(
    ("outputs", "gives"),
    [(nn.Identity(), [2, 3, 32]), (Two(), "a tuple of outputs"), (nn.Flatten(), [2, 96])],
)
def test_no_classifier_is_trained(
    outputs: nn.Module, gives: object, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(
        models.BUILDERS,
        "own",
        lambda *_: nn.Sequential(nn.Flatten(2), nn.Linear(1024, 32), outputs),
    )
    problem = try_model(trial("own", 32)).problem
    assert problem is not None
    assert says(problem.facts["why"], "trial.no-classifier", gives=gives, expected=[2, 7])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model=resnet5", ("classifier.unknown", {"model": "resnet5"})),
        ("model.name=fasterrcnn_resnet50_fpn", ("classifier.other-task", {"folder": "detection"})),
        ("model=llama3_8b", "tune_llm.py"),
        ("model=resnet18 model.weights=nowhere.pth", ("weights.no-file", {"file": "nowhere.pth"})),
    ],
)
@pytest.mark.usefixtures("processes")
def test_bad_names_and_files_are_refused_in_a_line(
    words: str, said: str | tuple[str, dict], called: Called
):
    code, printed = called(*words.split(), "dry_run=true", "device=cpu", entry="train_vision.py")
    assert code == 1 and "Traceback" not in printed
    if isinstance(said, str):
        assert said in printed
    else:
        refusal = find(printed, said[0], **said[1])
        assert said[0] != "classifier.unknown" or refusal.facts["near"][0] == "resnet50"


def test_weights_have_each_key_in_its_shape_and_the_last_layer_may_be_new(tmp_path: Path):
    config = ModelConfig("resnet18", weights=str(tmp_path / "own.safetensors"))
    saved = models.build(config, 9, 32)
    save_file(saved.state_dict(), config.weights)
    same, other = models.build(config, 9, 32), models.build(config, 7, 32)
    before = other.get_parameter("fc.weight").clone()
    assert weights.load(same, config, 9, 32) == [] and torch.equal(same.fc.weight, saved.fc.weight)  # pyright: ignore
    (note,) = weights.load(other, config, 7, 32)
    assert (note.code, note.facts["layers"]) == ("weights.new-last-layer", ["fc"])
    assert note.facts["why"].code == "weights.head-of-other-classes"
    assert note.facts["why"].facts == {"saved": 9, "classes": 7}
    assert torch.equal(other.get_parameter("conv1.weight"), saved.get_parameter("conv1.weight"))
    assert torch.equal(other.get_parameter("fc.weight"), before)
    with refused("weights.of-another-model", key="model.weights") as refusal:
        weights.load(models.build(replace(config, name="resnet34"), 9, 32), config, 9, 32)
    assert "layer1.2.conv1.weight" in refusal.value.facts["problems"][0]
    pickled = tmp_path / "code.pth"
    pickled.write_bytes(pickle.dumps({"fc.weight": print}, protocol=2))
    with refused("weights.unreadable", file=str(pickled)):
        weights.load(same, replace(config, weights=str(pickled)), 9, 32)


def test_pretrained_weights_are_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    file = str(tmp_path / "checkpoints" / "resnet18-f37072fd.pth")
    with refused("weights.not-fetched", key="model.weights", file=file, why="no network here"):
        monkeypatch.setattr("multicard.machine.network.problem", lambda url: "no network here")
        weights.load(
            models.build(ModelConfig("resnet18"), 7, 32),
            ModelConfig("resnet18", weights="pretrained"),
            7,
            32,
        )
    (tmp_path / "checkpoints").mkdir()
    saved = torchvision_models.resnet18()
    torch.save(saved.state_dict(), tmp_path / "checkpoints" / "resnet18-f37072fd.pth")
    model = models.build(ModelConfig("resnet18"), 7, 32)
    (note,) = weights.load(model, ModelConfig("resnet18", weights="pretrained"), 7, 32)
    assert note.code == "weights.new-last-layer" and note.facts["why"].facts == {
        "saved": 1000,
        "classes": 7,
    }
    assert torch.equal(model.get_parameter("conv1.weight"), saved.conv1.weight)


@pytest.mark.usefixtures("processes")
def test_loaded_weights_bring_their_images_unless_these_are_given():
    given = typed(
        "model=vit_tiny_patch16_224", "model.weights=pretrained", "dataset.std=[1,1,1]"
    ).dataset
    assert (given.image_size, given.mean, given.std) == (224, [0.5] * 3, [1, 1, 1])
    assert typed("model=vit_tiny_patch16_224").dataset.image_size == 64


def test_a_frozen_backbone_keeps_its_weights_and_statistics():
    config = typed(
        "model=resnet18", "model.freeze=backbone", "dataset.image_size=32", "strategy=ddp_ds"
    )
    model = models.build(config.model, 7, 32)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = optim.optimizer_of(model, 0.1, config.optimizer)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    changed = {
        name for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"fc.weight", "fc.bias"} and len(optimizer.param_groups[0]["params"]) == 2
    sizes = facts.ImageFacts(64, 10, 7, 32, 1)
    frozen, whole = (
        simulate(replace(config, model=replace(config.model, freeze=f)), sizes, "cpu")
        for f in Freeze
    )
    assert isinstance(frozen, answers.Active) and frozen.active_bytes != whole.active_bytes


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_takes_a_step_in_half_precision_and_channels_last_and_is_predicted(name: str):
    size = FAMILIES[name]
    words = (
        "precision=bf16",
        "layout=nhwc",
        "gpus=2",
        f"dataset.image_size={size}",
        "batch_size=2",
    )
    config = typed(f"model={name}", *words)
    WORKLOAD.refuse(config)
    torch.manual_seed(0)
    model = models.build(config.model, 10, size).to(memory_format=torch.channels_last)
    optimizer = optim.optimizer_of(model, 0.01, config.optimizer)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(torch.randn(2, 3, size, size).to(memory_format=torch.channels_last))
    outputs.float().square().mean().backward()
    optimizer.step()
    assert outputs.shape == (2, 10) and all(p.grad is not None for p in model.parameters())
    assert all(value.isfinite().all() for value in model.parameters())
    held = simulate(config, facts.ImageFacts(64, 10, 10, size, 1), "cuda")
    assert held.active_bytes > sum(p.nbytes for p in model.parameters())


def older_densenet(name: str) -> str:
    return re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", name)


def older_transformer(name: str) -> str:
    return name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.")


@pytest.mark.parametrize(
    ("name", "older"),
    [("densenet121", older_densenet), ("vit_b_16", older_transformer), ("mnasnet0_5", str)],
)
def test_files_of_older_versions_of_torchvision_are_read(
    name: str, older: Callable[[str], str], tmp_path: Path
):
    config = ModelConfig(name, weights=str(tmp_path / "older.pth"))
    saved = models.build(config, 7, 32).state_dict()
    torch.save({older(key): value for key, value in saved.items()}, config.weights)
    model = models.build(config, 7, 32)
    assert weights.load(model, config, 7, 32) == []
    loaded = model.state_dict()
    assert all(torch.equal(value, loaded[key]) for key, value in saved.items())
