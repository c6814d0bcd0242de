"""Sizes and work in closed form, against the models that torchtune builds."""

import importlib
import math

import pytest
import torch

from multicard.config.llm import MODELS
from multicard.llm import methods, models, summary
from tests.conftest import typed_llm


def built(words: list[str], vocabulary: int) -> torch.nn.Module:
    from omegaconf import OmegaConf
    from torchtune import config

    with torch.device("meta"):
        return config.instantiate(OmegaConf.create(methods.model_component(typed_llm(*words), vocabulary)))


# Parameters as the models' cards on the Hugging Face hub have them
@pytest.mark.parametrize(
    ("name", "builder", "parameters"),
    [
        ("llama3_8b", "llama3.llama3_8b", 8_030_261_248),
        ("llama3_1b", "llama3_2.llama3_2_1b", 1_235_814_400),
        ("llama3_3b", "llama3_2.llama3_2_3b", 3_212_749_824),
        ("qwen2_5_0_5b", "qwen2_5.qwen2_5_0_5b", 494_032_768),
        ("qwen2_5_7b", "qwen2_5.qwen2_5_7b_base", 7_615_616_512),
    ],
)
def test_sizes_are_those_of_torchtunes_own_models(name: str, builder: str, parameters: int):
    package, _, function = builder.partition(".")
    with torch.device("meta"):
        theirs = getattr(importlib.import_module(f"torchtune.models.{package}"), function)()
    vocabulary = typed_llm(f"model={name}").model.vocab_size
    assert vocabulary is not None
    ours = built([f"model={name}", "method=full"], vocabulary)
    assert str(ours) == str(theirs)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    assert sum(parameter.numel() for parameter in ours.parameters()) == parameters
    rope = [(module.base, module.dim) for module in ours.modules() if hasattr(module, "base")]
    assert rope == [(module.base, module.dim) for module in theirs.modules() if hasattr(module, "base")]
    eps = [{module.eps for module in each.modules() if hasattr(module, "eps")} for each in (ours, theirs)]
    assert eps[0] == eps[1]


@pytest.mark.parametrize("name", MODELS)
def test_tensors_are_those_of_torchtunes_model(name: str):
    model = typed_llm(f"model={name}").model
    vocabulary = model.vocab_size or 1234
    expected, module = models.tensors(model, vocabulary), built([f"model={name}", "method=full"], vocabulary)
    assert {key: tuple(value.shape) for key, value in module.state_dict().items()} == expected
    # 6 operations a weight: of all but the embedding, which is looked up unless it is the output too
    weights = sum(math.prod(shape) for key, shape in expected.items() if key.endswith("weight") and len(shape) == 2)
    looked_up = 0 if model.tied else vocabulary * model.embed_dim
    assert models.flops_per_token(model, vocabulary, 0, None, 0) == 6 * (weights - looked_up)


@pytest.mark.parametrize("model", ["llama3_tiny", "qwen2_5_tiny"])
@pytest.mark.parametrize("words", [[], ["method.apply_lora_to_mlp=false"], ["method.apply_lora_to_output=true"]])
def test_adapter_parameters(words: list[str], model: str):
    words = [f"model={model}", "model.tied=false", *words]
    module = built(words, 1000)
    adapters = sum(p.numel() for name, p in module.named_parameters() if "lora_" in name)
    assert methods.adapter_parameters(typed_llm(*words), 1000) == adapters > 0


def test_flops_per_token_in_closed_form():
    config = typed_llm("model.num_layers=1", "model.embed_dim=8", "model.num_heads=2", "model.num_kv_heads=1")
    config.model.intermediate_dim = 16
    weights = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16 + 10 * 8  # q, k and v, output, feed-forward, vocabulary
    forward = 2 * weights + 4 * 8 * 16  # and attention: 2 d s for the scores, 2 d s for the values

    def count(adapters: int | None, reference_passes: int = 0) -> float:
        return models.flops_per_token(config.model, 10, 16, adapters, reference_passes)

    assert count(None) == 3 * forward
    frozen = 2 * weights  # gradients of weights that are not trained
    assert count(7) == 3 * forward - frozen + 6 * 7
    assert count(7, 1) == count(7) + forward
    assert {name for name, method in methods.METHODS.items() if method.reference_passes} == {"dpo"}


def test_the_peak_of_a_device_follows_from_its_name():
    names = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "cpu": None}
    assert {name: summary.peak_flops_per_s(name, "bf16") for name in names} == names
    assert summary.peak_flops_per_s("NVIDIA H100 80GB HBM3", "fp32") == 67e12
