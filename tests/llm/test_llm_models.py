"""Models of tuning: sizes and work in closed form, random weights alike on every rank,
and what recipes build.
"""

import importlib
import math
import multiprocessing
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf
from torchtune import config, training

from multicard.config.llm_models import MODELS
from multicard.config.placement import Placement
from multicard.estimate.memory import torch_internals
from multicard.estimate.memory.facts import TextFacts
from multicard.llm import methods, models, torchtune_config
from multicard.llm.torchtune_components import (
    NUMBERS_PER_CALL,
    STD,
    RandomCheckpointer,
    RandomWeight,
    random_weights,
)
from multicard.machine import gpu_models
from multicard.ranks.process import Rank
from tests.conftest import typed_llm, warm_up
from tests.helpers.launching import on_ranks
from tests.helpers.messages import refused
from tests.llm.test_llm_run import ALL_ADAPTED, QWEN


def built(words: list[str], vocabulary: int) -> torch.nn.Module:
    with torch.device("meta"):
        return config.instantiate(
            OmegaConf.create(methods.model_component(typed_llm(*words), vocabulary))
        )


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
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }
    assert sum(parameter.numel() for parameter in ours.parameters()) == parameters
    rope = [(module.base, module.dim) for module in ours.modules() if hasattr(module, "base")]
    assert rope == [
        (module.base, module.dim) for module in theirs.modules() if hasattr(module, "base")
    ]
    eps = [
        {module.eps for module in each.modules() if hasattr(module, "eps")}
        for each in (ours, theirs)
    ]
    assert eps[0] == eps[1]


SMALL = (
    *("model.num_layers=2", "model.num_heads=4", "model.num_kv_heads=2", "model.embed_dim=256"),
    *(
        "model.intermediate_dim=512",
        "model.max_seq_len=4096",
        "model.vocab_size=500",
        "method=full",
    ),
)
PARTS = {
    "llama3_8b": {},
    "llama3_1_8b": {"factor": 8.0},
    "llama3_2_1b": {"factor": 32.0},
    "qwen2_5_0_5b": {},
}


@pytest.mark.parametrize("name", PARTS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path):
    """The same weights in the classes that the published checkpoints are for,
    which write config.json by themselves.
    """
    from safetensors.torch import load_file, save_file
    from torchtune import config as torchtune_config
    from torchtune.models.convert_weights import hf_to_tune
    from torchtune.models.qwen2 import qwen2_hf_to_tune
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    qwen, tied = name.startswith("qwen"), name in ("llama3_2_1b", "qwen2_5_0_5b")
    rope = {"rope_theta": 1e6 if qwen else 5e5, "rope_type": "default"} | PARTS[name]
    if PARTS[name]:
        rope |= {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["original_max_position_embeddings"] = 8192
    sizes = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 256,
    }
    sizes |= {"intermediate_size": 512, "vocab_size": 500, "max_position_embeddings": 4096}
    settings = sizes | {
        "rms_norm_eps": 1e-6 if qwen else 1e-5,
        "tie_word_embeddings": tied,
        "rope_parameters": rope,
    }
    torch.manual_seed(0)
    theirs = (
        Qwen2ForCausalLM(Qwen2Config(**settings))
        if qwen
        else LlamaForCausalLM(LlamaConfig(**settings))
    ).eval()
    for parameter in theirs.parameters():  # beyond what normalisation evens out
        parameter.data += 0.05 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)

    config = typed_llm(f"model={name}", *SMALL, f"model.weights={tmp_path}")
    models.check_weights(config.model, 500)
    state = load_file(tmp_path / "model.safetensors")
    if qwen and tied:
        own_output = state | {"lm_head.weight": state["model.embed_tokens.weight"].clone()}
        save_file(own_output, tmp_path / "model.safetensors", {"format": "pt"})
        models.check_weights(config.model, 500)
        own_output["lm_head.weight"][0] += 1
        save_file(own_output, tmp_path / "model.safetensors", {"format": "pt"})
        with refused("llm.weights-two-outputs", key="model.weights"):
            models.check_weights(config.model, 500)
    shape = {"num_heads": 4, "num_kv_heads": 2, "dim": 256}
    state = (
        qwen2_hf_to_tune(state, **shape, tie_word_embeddings=tied)
        if qwen
        else hf_to_tune(state, **shape)
    )
    tokens = torch.randint(500, (1, 2000))
    found = {}
    for built_as in PARTS:
        if (
            built_as.startswith("qwen") == qwen
            and (built_as in ("llama3_2_1b", "qwen2_5_0_5b")) == tied
        ):
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
    expected, module = (
        models.tensors(model, vocabulary),
        built([f"model={name}", "method=full"], vocabulary),
    )
    assert {key: tuple(value.shape) for key, value in module.state_dict().items()} == expected
    # 6 operations a weight: of all but the embedding,
    # which is looked up unless it is the output too
    weights = sum(
        math.prod(shape)
        for key, shape in expected.items()
        if key.endswith("weight") and len(shape) == 2
    )
    looked_up = 0 if model.tied else vocabulary * model.embed_dim
    assert models.flops_per_token(model, vocabulary, 0, None, 0) == 6 * (weights - looked_up)


@pytest.mark.parametrize("model", ["llama3_tiny", "qwen2_5_tiny"])
@pytest.mark.parametrize(
    "words", [[], ["method.apply_lora_to_mlp=false"], ["method.apply_lora_to_output=true"]]
)
def test_adapter_parameters(words: list[str], model: str):
    words = [f"model={model}", "model.tied=false", *words]
    module = built(words, 1000)
    adapters = sum(p.numel() for name, p in module.named_parameters() if "lora_" in name)
    assert methods.adapter_parameters(typed_llm(*words), 1000) == adapters > 0


def test_flops_per_token_in_closed_form():
    config = typed_llm(
        "model.num_layers=1", "model.embed_dim=8", "model.num_heads=2", "model.num_kv_heads=1"
    )
    config.model.intermediate_dim = 16
    # q, k and v, output, feed-forward, vocabulary
    weights = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16 + 10 * 8
    forward = 2 * weights + 4 * 8 * 16  # and attention: 2 d s for the scores, 2 d s for the values

    def count(adapters: int | None, reference_passes: int = 0) -> float:
        return models.flops_per_token(config.model, 10, 16, adapters, reference_passes)

    assert count(None) == 3 * forward
    frozen = 2 * weights  # gradients of weights that are not trained
    assert count(7) == 3 * forward - frozen + 6 * 7
    assert count(7, 1) == count(7) + forward
    assert {name for name, method in methods.METHODS.items() if method.reference_passes} == {"dpo"}


def test_the_peak_of_a_device_follows_from_its_name():
    names = {
        "NVIDIA H200": 989e12,
        "NVIDIA H200 NVL": 835e12,  # not that of the H200, whose name it begins with
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA A100-SXM-64GB": 312e12,  # of no known memory: all A100 have one peak
        "NVIDIA H100 SXM5 64GB": None,  # those of H100 differ
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb": None,
        "Tesla T4": None,  # has no products in bf16
        "cpu": None,
    }
    assert {name: gpu_models.peak_flops_per_s(name, "bf16") for name in names} == names
    assert gpu_models.peak_flops_per_s("NVIDIA H100 80GB HBM3", "fp32") == 67e12


CPU = torch.device("cpu")
VOCABULARY = 96_000
ROOM_BYTES = 96 * 2**20  # NF4's arithmetic takes most of it; the model has 100 million weights


def weight(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return RandomWeight(name, 0, torch.Size(shape), dtype, CPU)


def test_values_follow_from_seed_and_name():
    values = weight("layers.0.mlp.w1.weight", 500, 300).to("cpu")
    assert type(values) is torch.Tensor and values.mean().abs() < 1e-3
    assert values.std() == pytest.approx(STD, rel=0.01)
    # any operation reads the same
    assert torch.equal(values, weight("layers.0.mlp.w1.weight", 500, 300) + 0)
    assert not torch.equal(values, weight("layers.1.mlp.w1.weight", 500, 300).to("cpu"))
    # no call repeats another's
    assert values.numel() > 2 * NUMBERS_PER_CALL and values.unique().numel() > 0.9 * values.numel()
    into = torch.empty(500, 300, dtype=torch.bfloat16)
    into.copy_(weight("layers.0.mlp.w1.weight", 500, 300, dtype=torch.bfloat16))
    assert torch.equal(into, values.bfloat16())  # a type rounds the same numbers


def test_each_kind_of_weight_begins_as_it_does_in_training():
    assert torch.equal(weight("layers.0.sa_norm.scale", 9).to("cpu"), torch.ones(9))
    assert not weight("layers.0.attn.q_proj.bias", 9).to("cpu").any()
    assert not weight("layers.0.attn.q_proj.lora_b.weight", 9, 4).to("cpu").any()
    uniform = weight("layers.0.attn.q_proj.lora_a.weight", 64, 100).to("cpu")
    assert 0.09 < uniform.abs().max() <= 0.1 and uniform.var() == pytest.approx(
        0.1**2 / 3, rel=0.05
    )


@contextmanager
def address_space(more_bytes: int) -> Iterator[None]:
    """Let this process map only so much more."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + more_bytes, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("method", "precision"), [("qlora", "bf16"), ("full", "fp32")])
def test_loading_takes_no_memory_beside_the_model(method: str, precision: str):
    warm_up()
    child = multiprocessing.get_context("forkserver").Process(
        target=load_in_little_memory, args=(method, precision)
    )
    child.start()
    child.join()
    assert child.exitcode == 0  # its error is printed


def load_in_little_memory(method: str, precision: str) -> None:
    """In a process of its own: what other tests freed would be room beside the limit."""
    words = [
        f"method={method}",
        "model.embed_dim=512",
        "model.intermediate_dim=1024",
        "model.num_layers=4",
    ]
    component = methods.model_component(typed_llm(*words, "model.num_heads=8"), VOCABULARY)
    dtype = training.get_dtype(precision, CPU)
    with training.set_default_dtype(dtype):
        model = config.instantiate(OmegaConf.create(component))
    plain = {key: value for key, value in component.items() if key != "quantize_base"}
    checkpointer = RandomCheckpointer(plain, 0, precision)
    with address_space(ROOM_BYTES):
        loaded = model.load_state_dict(checkpointer.load_checkpoint()[training.MODEL_KEY])
    assert not loaded.missing_keys and not loaded.unexpected_keys
    embeddings = random_weights(plain, 0, dtype)["tok_embeddings.weight"]
    assert torch.equal(model.tok_embeddings.weight, embeddings.to("cpu"))
    state = random_weights(plain, 0, dtype)
    with address_space(ROOM_BYTES), pytest.raises(RuntimeError, match="can't allocate memory"):
        _ = [weight.to("cpu") for weight in state.values()]  # all at once do not fit


LARGE = (
    "model.embed_dim=512",
    "model.intermediate_dim=2048",
    "model.num_layers=8",
    "model.vocab_size=2304",
)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
def test_a_rank_of_trl_reads_its_shards_of_a_folder_without_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of a folder in bf16 a model in float32: weights in the files'
    own type would stay where the files are mapped.
    """
    import transformers

    sizes = models.hugging_face_config(typed_llm(*LARGE).model, 2304)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**sizes)
    )
    model.bfloat16().save_pretrained(tmp_path / "weights", max_shard_size="8MB")
    arguments = tmp_path, model.num_parameters()
    # what is freed goes back to the system, and further threads, each with 64 MiB of its own,
    # load nothing
    for setting in (
        "MALLOC_MMAP_THRESHOLD_=65536",
        "MALLOC_ARENA_MAX=1",
        "HF_DEACTIVATE_ASYNC_LOAD=1",
    ):
        monkeypatch.setenv(*setting.split("="))
    child = multiprocessing.get_context("spawn").Process(
        target=read_in_little_memory, args=arguments
    )
    child.start()
    child.join()
    assert child.exitcode == 0  # its error is printed


def read_in_little_memory(folder: Path, parameters: int) -> None:
    """As rank 0 of eight. In a process that was not forked: what
    others freed would be room beside the limit.
    """
    from multicard.estimate.memory import trl_step
    from multicard.llm.trl import models as trl_models

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "8",
        "OMP_NUM_THREADS": "1",
    }
    options: Any = typed_llm(
        "engine=trl",
        "method=full",
        "gpus=8",
        "device=cpu",
        *LARGE,
        f"model.weights={folder}/weights",
    )
    rank, facts = Rank(0, 0, 8, CPU, "gloo", 1), TextFacts(2304, 96)
    mapped_bytes, shard_bytes, whole_bytes = 2 * parameters, 4 * parameters // 8, 4 * parameters
    room_bytes = mapped_bytes + shard_bytes + 40 * 2**20  # some of it for a weight at a time
    assert mapped_bytes + whole_bytes > 1.5 * room_bytes
    ready = trl_step.engine_on_equal_batches(options, facts, rank, folder, 1, mock.Mock())
    with torch_internals.fake_ranks(8, CPU), address_space(room_bytes), ready as recipe:
        parts: Any = [parameter.to_local() for parameter in recipe.model.parameters()]
    assert sum(part.numel() for part in parts) == parameters // 8 and all(
        part.isfinite().all() for part in parts
    )
    with address_space(room_bytes), pytest.raises(RuntimeError, match="can't allocate memory"):
        trl_models.read_model(options.model, {"dtype": torch.float32})


def built_on_ranks(words: list[str], gpus: int, folder: Path) -> list[Any]:
    folder.mkdir()
    config = typed_llm(*words, f"gpus={gpus}")
    cfg = torchtune_config.write(config, Placement("cpu", "gloo", gpus, False), folder)
    return on_ranks(gpus, "build", folder, config, folder, cfg, module="rank_work_llm")


BUILT = {
    "lora": ["precision=fp32", "pin_memory=false"],
    "qlora of qwen": ["precision=bf16", QWEN, ALL_ADAPTED],
    "dpo": ["precision=bf16", "pin_memory=true"],
    "full": ["precision=bf16", "pin_memory=true"],
    "qat of qwen": ["precision=bf16", QWEN],
}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("name", BUILT)
def test_ranks_build_what_the_method_says_with_the_weights_of_one(name: str, tmp_path: Path):
    method, words = name.split(maxsplit=1)[0], BUILT[name]
    words = [f"method={method}", "dataset.rows=20", "model.vocab_size=1600", *words]
    (alone,), ranks = (
        built_on_ranks(words, 1, tmp_path / "1"),
        built_on_ranks(words, 2, tmp_path / "2"),
    )
    assert len(alone["weights"]) > 20
    for weight_name, whole in alone["weights"].items():
        assert torch.equal(torch.cat([rank["weights"][weight_name] for rank in ranks]), whole), (
            weight_name
        )
    for rank in (alone, *ranks):
        assert rank["pin_memory"] is typed_llm(*words).pin_memory
        for weight_name, (kind, _, trained) in rank["kinds"].items():
            base = ".weight" in weight_name and ("attn." in weight_name or "mlp." in weight_name)
            in_nf4 = method == "qlora" and base and "lora_" not in weight_name
            assert (kind == "NF4Tensor") is in_nf4, weight_name
            assert trained is ("lora_" in weight_name or method in ("full", "qat"))
        if method == "qat":  # the tied embeddings of the Qwen are no linear
            assert len(rank["linears"]) == 2 * 7 + (QWEN not in words)
            assert all("Int8DynActInt4WeightQATLinear" in kind for kind in rank["linears"].values())
