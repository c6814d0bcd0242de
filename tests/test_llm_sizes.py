"""Sizes and work in closed form, against the models that torchtune builds."""

import pytest
import torch

from multicard.config.llm import LlamaName, LoraConfig, MethodName
from multicard.llm import llama_sizes
from multicard.llm.torchtune_config import model_component
from tests.conftest import typed_llm


def built(words: list[str], vocabulary: int) -> torch.nn.Module:
    from omegaconf import OmegaConf
    from torchtune import config

    with torch.device("meta"):
        return config.instantiate(OmegaConf.create(model_component(typed_llm(*words), vocabulary)))


@pytest.mark.parametrize("name", LlamaName)
def test_tensors_are_those_of_torchtunes_model(name: LlamaName):
    vocabulary = 1234 if name is LlamaName.llama3_tiny else 128_256
    model = built([f"model={name}", "method=full"], vocabulary)
    expected = llama_sizes.tensors(typed_llm(f"model={name}").model, vocabulary)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == expected


@pytest.mark.parametrize(
    ("name", "builder"), [("llama3_8b", "llama3"), ("llama3_1b", "llama3_2"), ("llama3_3b", "llama3_2")]
)
def test_sizes_are_those_of_torchtunes_own_models(name: str, builder: str):
    import importlib

    module = importlib.import_module(f"torchtune.models.{builder}")
    own = name if builder == "llama3" else name.replace("llama3", "llama3_2")
    with torch.device("meta"):
        theirs = getattr(module, own)()
    ours = built([f"model={name}", "method=full"], 128_256)
    assert str(ours) == str(theirs)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}


@pytest.mark.parametrize("words", [[], ["method.apply_lora_to_mlp=false"], ["method.apply_lora_to_output=true"]])
def test_adapter_parameters(words: list[str]):
    model = built(words, 1000)
    adapters = sum(p.numel() for name, p in model.named_parameters() if "lora_" in name)
    config = typed_llm(*words)
    assert isinstance(config.method, LoraConfig)
    assert llama_sizes.adapter_parameters(config.model, 1000, config.method) == adapters > 0


def test_flops_per_token_in_closed_form():
    config = typed_llm("model.num_layers=1", "model.embed_dim=8", "model.num_heads=2", "model.num_kv_heads=1")
    model, vocabulary, adapters, length = config.model, 10, 7, 16
    model.intermediate_dim = 16
    weights = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16 + 10 * 8  # q, k and v, output, feed-forward, vocabulary
    forward = 2 * weights + 4 * 8 * 16  # and attention: 2 d s for the scores, 2 d s for the values
    count = lambda method, extra: llama_sizes.flops_per_token(model, vocabulary, method, extra, length)  # noqa: E731
    assert count(MethodName.full, 0) == count(MethodName.qat, 0) == 3 * forward
    frozen = 2 * weights  # gradients of weights that are not trained
    assert count(MethodName.lora, adapters) == 3 * forward - frozen + 6 * adapters
    assert count(MethodName.dpo, adapters) == count(MethodName.qlora, adapters) + forward


def test_8b_takes_its_known_work():
    model = typed_llm("model=llama3_8b").model
    flops = llama_sizes.flops_per_token(model, 128_256, MethodName.full, 0, 0)
    assert flops == pytest.approx(6 * 7.5e9, rel=0.01)  # 8.03e9 parameters less the embedding


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [("NVIDIA H200", "bf16", 989e12), ("NVIDIA H100 80GB HBM3", "fp32", 67e12), ("cpu", "fp32", None)],
)
def test_peaks_are_found_by_the_devices_name(device: str, precision: str, peak: float | None):
    assert llama_sizes.peak_flops_per_s(device, precision) == peak
