"""Random weights: the same on every rank and for any number of them, and never held twice."""

import multiprocessing
import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torchtune import config, training
from torchtune.training.checkpointing._utils import safe_torch_load

from multicard.llm import methods, pretrained
from multicard.llm.torchtune_components import CALL, STD, RandomCheckpointer, RandomWeight, random_weights
from tests.conftest import typed_llm, warm_up
from tests.llm.test_llm_run import on_ranks

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
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["qlora", "full"])
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


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("method", "precision"),
    [("lora", "fp32"), ("lora", "bf16"), ("qlora", "bf16"), ("dpo", "bf16"), ("full", "bf16"), ("qat", "bf16")],
)
def test_two_ranks_begin_with_the_weights_of_one(method: str, precision: str, tmp_path: Path):
    words = [f"method={method}", f"precision={precision}", "dataset.rows=20", "model.vocab_size=1600"]
    (alone,) = on_ranks(words, 1, tmp_path / "1")
    ranks = on_ranks(words, 2, tmp_path / "2")
    assert len(alone["weights"]) > 20
    for name, whole in alone["weights"].items():
        assert torch.equal(torch.cat([rank["weights"][name] for rank in ranks]), whole), name


class _Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


def test_weights_that_would_run_a_command_are_not_unpickled(tmp_path: Path):
    file, ran = tmp_path / "consolidated.00.pth", tmp_path / "ran"
    config = typed_llm("model=llama3_tiny", f"model.weights={tmp_path}").model
    file.write_bytes(pickle.dumps({"tok_embeddings.weight": _Hostile(ran)}, protocol=2))
    with pytest.raises(ValueError, match=r"consolidated\.00\.pth is cut off"):
        pretrained.check_weights(config, 512)
    torch.save({"tok_embeddings.weight": _Hostile(ran)}, file)  # whole: torchtune's own loading meets it
    with pytest.raises(ValueError, match="Unable to load checkpoint"):
        safe_torch_load(file)
    assert not ran.exists()
