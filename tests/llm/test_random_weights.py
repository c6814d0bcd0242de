"""What recipes build: weights, random ones the same on every rank, never held twice, of the kinds of the method."""

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

from multicard.config.placement import Placement
from multicard.estimate.memory import torch_internals
from multicard.estimate.memory.facts import TextFacts
from multicard.llm import methods, models, torchtune_config
from multicard.llm.torchtune_components import CALL, STD, RandomCheckpointer, RandomWeight, random_weights
from multicard.ranks.process import Rank
from tests.conftest import typed_llm, warm_up
from tests.helpers.launching import on_ranks
from tests.llm.test_llm_run import ALL_ADAPTED, QWEN

CPU = torch.device("cpu")
VOCABULARY = 96_000
ROOM_BYTES = 96 * 2**20  # NF4's arithmetic takes most of it; the model has 100 million weights


def weight(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return RandomWeight(name, 0, torch.Size(shape), dtype, CPU)


def test_values_follow_from_seed_and_name():
    values = weight("layers.0.mlp.w1.weight", 500, 300).to("cpu")
    assert type(values) is torch.Tensor and values.mean().abs() < 1e-3
    assert values.std() == pytest.approx(STD, rel=0.01)
    assert torch.equal(values, weight("layers.0.mlp.w1.weight", 500, 300) + 0)  # any operation reads the same
    assert not torch.equal(values, weight("layers.1.mlp.w1.weight", 500, 300).to("cpu"))
    assert values.numel() > 2 * CALL and values.unique().numel() > 0.9 * values.numel()  # no call repeats another's
    into = torch.empty(500, 300, dtype=torch.bfloat16)
    into.copy_(weight("layers.0.mlp.w1.weight", 500, 300, dtype=torch.bfloat16))
    assert torch.equal(into, values.bfloat16())  # a type rounds the same numbers


def test_each_kind_of_weight_begins_as_it_does_in_training():
    assert torch.equal(weight("layers.0.sa_norm.scale", 9).to("cpu"), torch.ones(9))
    assert not weight("layers.0.attn.q_proj.bias", 9).to("cpu").any()
    assert not weight("layers.0.attn.q_proj.lora_b.weight", 9, 4).to("cpu").any()
    uniform = weight("layers.0.attn.q_proj.lora_a.weight", 64, 100).to("cpu")
    assert 0.09 < uniform.abs().max() <= 0.1 and uniform.var() == pytest.approx(0.1**2 / 3, rel=0.05)


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
    child = multiprocessing.get_context("forkserver").Process(target=load_in_little_memory, args=(method, precision))
    child.start()
    child.join()
    assert child.exitcode == 0  # its error is printed


def load_in_little_memory(method: str, precision: str) -> None:
    """In a process of its own: what other tests freed would be room beside the limit."""
    words = [f"method={method}", "model.embed_dim=512", "model.intermediate_dim=1024", "model.num_layers=4"]
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


LARGE = ("model.embed_dim=512", "model.intermediate_dim=2048", "model.num_layers=8", "model.vocab_size=2304")


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
def test_a_rank_of_trl_reads_its_shards_of_a_folder_without_the_whole_model(tmp_path: Path):
    """Of a folder in bf16 a model in float32: weights in the files' own type would stay where the files are mapped."""
    import transformers

    sizes = models.hugging_face_config(typed_llm(*LARGE).model, 2304)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**sizes))
    model.bfloat16().save_pretrained(tmp_path / "weights", max_shard_size="8MB")
    arguments = tmp_path, model.num_parameters()
    child = multiprocessing.get_context("spawn").Process(target=read_in_little_memory, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 0  # its error is printed


def read_in_little_memory(folder: Path, parameters: int) -> None:
    """As rank 0 of eight. In a process that was not forked: what others freed would be room beside the limit."""
    from multicard.estimate.memory import trl_step
    from multicard.llm.trl import models as trl_models

    torch.set_num_threads(1)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "OMP_NUM_THREADS": "1"}
    options: Any = typed_llm(
        "engine=trl", "method=full", "gpus=8", "device=cpu", *LARGE, f"model.weights={folder}/weights"
    )
    rank, facts = Rank(0, 0, 8, CPU, "gloo", 1), TextFacts(2304, 96)
    mapped_bytes, shard_bytes, whole_bytes = 2 * parameters, 4 * parameters // 8, 4 * parameters
    room_bytes = mapped_bytes + shard_bytes + 32 * 2**20  # some of it for a weight at a time
    assert mapped_bytes + whole_bytes > 1.5 * room_bytes
    ready = trl_step.ready(options, facts, rank, folder, 1, mock.Mock())
    with torch_internals.fake_ranks(8, CPU), address_space(room_bytes), ready as recipe:
        parts: Any = [parameter.to_local() for parameter in recipe._model.parameters()]
    assert sum(part.numel() for part in parts) == parameters // 8 and all(part.isfinite().all() for part in parts)
    one_by_one = mock.patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1")  # threads take room of their own
    with address_space(room_bytes), one_by_one, pytest.raises(RuntimeError, match="can't allocate memory"):
        trl_models.stored(options.model, {"dtype": torch.float32})


def built(words: list[str], gpus: int, folder: Path) -> list[Any]:
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
    (alone,), ranks = built(words, 1, tmp_path / "1"), built(words, 2, tmp_path / "2")
    assert len(alone["weights"]) > 20
    for weight_name, whole in alone["weights"].items():
        assert torch.equal(torch.cat([rank["weights"][weight_name] for rank in ranks]), whole), weight_name
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
