"""Sizes and work in closed form, against the models that torchtune builds."""

import importlib
import math
from pathlib import Path

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
        ("llama3_1_8b", "llama3_1.llama3_1_8b", 8_030_261_248),
        ("llama3_2_1b", "llama3_2.llama3_2_1b", 1_235_814_400),
        ("llama3_2_3b", "llama3_2.llama3_2_3b", 3_212_749_824),
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


SMALL = (
    *("model.num_layers=2", "model.num_heads=4", "model.num_kv_heads=2", "model.embed_dim=256"),
    *("model.intermediate_dim=512", "model.max_seq_len=4096", "model.vocab_size=500", "method=full"),
)
PARTS = {"llama3_8b": {}, "llama3_1_8b": {"factor": 8.0}, "llama3_2_1b": {"factor": 32.0}, "qwen2_5_0_5b": {}}


@pytest.mark.parametrize("name", PARTS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path):
    """The same weights in the classes that the published checkpoints are for, which write config.json by themselves."""
    from omegaconf import OmegaConf
    from safetensors.torch import load_file
    from torchtune import config as torchtune_config
    from torchtune.models.convert_weights import hf_to_tune
    from torchtune.models.qwen2 import qwen2_hf_to_tune
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    qwen, tied = name.startswith("qwen"), name in ("llama3_2_1b", "qwen2_5_0_5b")
    rope = {"rope_theta": 1e6 if qwen else 5e5, "rope_type": "default"} | PARTS[name]
    if PARTS[name]:
        rope |= {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["original_max_position_embeddings"] = 8192
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256}
    sizes |= {"intermediate_size": 512, "vocab_size": 500, "max_position_embeddings": 4096}
    settings = sizes | {"rms_norm_eps": 1e-6 if qwen else 1e-5, "tie_word_embeddings": tied, "rope_parameters": rope}
    torch.manual_seed(0)
    theirs = (Qwen2ForCausalLM(Qwen2Config(**settings)) if qwen else LlamaForCausalLM(LlamaConfig(**settings))).eval()
    for parameter in theirs.parameters():  # beyond what normalisation evens out
        parameter.data += 0.05 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)

    config = typed_llm(f"model={name}", *SMALL, f"model.weights={tmp_path}")
    models.check_weights(config.model, 500)
    state = load_file(tmp_path / "model.safetensors")
    shape = {"num_heads": 4, "num_kv_heads": 2, "dim": 256}
    state = qwen2_hf_to_tune(state, **shape, tie_word_embeddings=tied) if qwen else hf_to_tune(state, **shape)
    tokens = torch.randint(500, (1, 2000))
    found = {}
    for built_as in PARTS:
        if built_as.startswith("qwen") == qwen and (built_as in ("llama3_2_1b", "qwen2_5_0_5b")) == tied:
            component = methods.model_component(typed_llm(f"model={built_as}", *SMALL), 500)
            ours = torchtune_config.instantiate(OmegaConf.create(component)).eval()
            ours.load_state_dict(state)
            with torch.no_grad():
                found[built_as] = (ours(tokens) - theirs(tokens).logits).abs().max().item()
    assert found.pop(name) < 1e-4
    assert all(difference > 0.01 for difference in found.values())  # one Llama is not the other


@pytest.mark.parametrize("name", [name for name in MODELS if name != "hf"])
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
