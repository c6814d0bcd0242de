"""Predicted memory of a folder's model, and of what bitsandbytes holds: closed forms,
and the truth on the CPU.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.estimate.memory import answers, facts, simulate
from multicard.estimate.memory.facts import TextFacts
from multicard.estimate.memory.torch_internals import grouped_shape
from multicard.records.rank_files import ModelSizes
from tests.conftest import typed_llm
from tests.estimate.test_predict_memory import needs_trl
from tests.helpers import real_peaks

Folder = Callable[[str], Path]
SIZES = {
    "vocab_size": real_peaks.ROWS.vocabulary,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen2": SIZES | {"tie_word_embeddings": True},
    "gemma2": SIZES | {"head_dim": 16, "sliding_window": 32},
    "gemma3_text": SIZES | {"head_dim": 16, "sliding_window": 32},
    "glm4": SIZES | {"head_dim": 16, "pad_token_id": 0},
    "phi3": SIZES | {"pad_token_id": 0},
    "gpt2": {"vocab_size": real_peaks.ROWS.vocabulary, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "qwen3_moe": SIZES | EXPERTS,
    "mixtral": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": (
        SIZES
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "intermediate_size": 64,
        }
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Makes the folder of a family's model, with its config.json alone."""

    def make(family: str) -> Path:
        place = tmp_path / family
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps({"model_type": family} | FAMILIES[family]))
        return place

    return make


def words(place: Path, *more: str) -> tuple[str, ...]:
    return (
        "model=hf",
        f"model.path={place}",
        "model.weights=random",
        "engine=trl",
        "dataset=synthetic",
        *more,
    )


def simulated(place: Path, *more: str, device: str = "cpu") -> answers.Active:
    config = typed_llm(*words(place, "batch_size=2", "gpus=1", *more))
    return simulate.simulate(config, real_peaks.ROWS, device)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((24, 8), (3, 8, 16), (24, 16)),  # tokens of all experts, by the weights of each
        ((3, 16, 8), (8, 24), (16, 24)),
        ((8, 24), (24, 16), (3, 8, 16)),  # the gradient of the weights
        ((3, 8, 8), (3, 8, 16), (3, 8, 16)),
    ],
)
def test_shapes_of_grouped_products_are_torchs_own(left: Any, right: Any, expected: Any):
    one, other = torch.ones(left, dtype=torch.bfloat16), torch.ones(right, dtype=torch.bfloat16)
    ends = None if one.dim() == other.dim() == 3 else torch.tensor([8, 16, 24], dtype=torch.int32)
    assert grouped_shape(one, other, ends) == expected
    # columns of the right side lie beside one another, as torch wants them
    other = other.transpose(-2, -1).contiguous().transpose(-2, -1)
    assert torch._grouped_mm(one, other, offs=ends).shape == expected


@needs_trl
def test_bytes_of_nf4_layers(folder: Folder):
    """4 bits a weight, a scale of 8 bits for 64 weights, and one of 32 bits for 256 of those."""
    full, nf4 = (
        simulated(folder("llama"), f"method={method}", "precision=bf16")
        for method in ("lora", "qlora")
    )
    linears = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    small = sum(-(-count // (64 * 256)) for count in 2 * (4096, 4096, 2048, 2048, 8192, 8192, 8192))
    held = linears // 2 + linears // 64 + 4 * small + 14 * (4 * 16 + 4 * 256 + 4)
    assert full.by_kind["weights"] - nf4.by_kind["weights"] == 2 * linears - held


@needs_trl
def test_on_a_gpu_a_quantised_weight_is_whole_for_its_product(folder: Folder):
    """On the CPU that is within one operator of bitsandbytes."""
    seen = simulated(folder("llama"), "method=qlora", "precision=bf16", device="cuda")
    assert seen.active_bytes > 0 and seen.by_kind["weights"] > 0


@needs_trl
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe"])
def test_a_folders_weights_are_counted(folder: Folder, family: str):
    """By transformers' own count of them, in two bytes each."""
    import transformers

    place = folder(family)
    sizes = transformers.AutoConfig.from_pretrained(place)
    with torch.device("meta"):
        count = transformers.AutoModelForCausalLM.from_config(sizes).num_parameters()
    weights = simulated(place, "method=full", "precision=bf16").by_kind["weights"]
    assert weights == pytest.approx(2 * count, rel=0.01)  # and the frequencies of positions


@needs_trl
@pytest.mark.parametrize(("method", "gpus"), [("lora", 1), ("qlora", 1), ("full", 2)])
def test_the_work_of_a_folders_model_is_counted_on_its_step_without_values(
    folder: Folder, method: str, gpus: int
):
    """The same sizes whether weights are whole, in NF4 or sharded; of a mixture of experts none."""
    precision = "precision=bf16"
    found = simulated(folder("llama"), f"method={method}", precision, f"gpus={gpus}").sizes
    vocabulary = SIZES["vocab_size"]
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    output = vocabulary * 64
    adapters = None
    if method != "full":  # of rank 8, beside q, v and the attention's output, and the MLP
        adapters = 2 * 8 * ((64 + 64) + (64 + 32) + (64 + 64) + 3 * (64 + 128))
    assert found == ModelSizes(
        layers=2,
        weights=2 * layer + output,
        output=output,
        width=2 * 64,
        parameters=2 * layer + 2 * output + 5 * 64,
        adapters=adapters,
    )


@needs_trl
def test_the_work_of_a_mixture_of_experts_is_not_counted(folder: Folder):
    assert simulated(folder("mixtral"), "method=full", "precision=bf16").sizes is None


def test_a_change_of_config_json_is_another_answer(folder: Folder):
    place = folder("llama")
    config = typed_llm(*words(place))
    before = answers.identity(
        answers.Request(config, TextFacts(2304, 64, folder=facts._folder_digest(config.model)))
    )
    (place / "config.json").write_text(
        json.dumps({"model_type": "llama"} | SIZES | {"attention_bias": True})
    )
    after = answers.identity(
        answers.Request(config, TextFacts(2304, 64, folder=facts._folder_digest(config.model)))
    )
    assert before != after


def test_several_processes_answer_in_the_order_of_the_requests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "cores", lambda: 3)
    config = typed_llm()
    asked = [answers.Request(config, TextFacts(n, n)) for n in range(9)]
    given: list[list[int]] = []

    class Computing:
        def __init__(self, part: list[answers.Request]) -> None:
            self.numbers = [
                request.facts.length for request in part if isinstance(request.facts, TextFacts)
            ]
            given.append(self.numbers)

        def __enter__(self) -> Any:
            return iter(map(str, self.numbers))

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(answers, "_running_process", Computing)
    assert [*answers.compute_answers(asked)] == [*map(str, range(9))]
    assert [len(part) for part in given] == [3, 3, 3]


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "gpus", "more"),
    [
        ("qwen3_moe", 1, ("method=full", "precision=fp32")),
        ("gemma3_text", 1, ("method=lora", "precision=bf16")),
        ("gpt_oss", 2, ("method=full", "precision=bf16", "sharding=fsdp")),
        ("llama", 2, ("method=qlora", "precision=bf16", "sharding=fsdp")),
        ("llama", 2, ("method=qlora", "precision=fp32", "sharding=ddp")),
        ("phi3", 1, ("method=full", "precision=bf16", "activation_checkpointing=true")),
        ("qwen2", 2, ("method=qat", "method.groupsize=32", "sharding=fsdp")),
    ],
)
def test_real_steps_of_a_folders_model_take_what_is_predicted(
    folder: Folder, family: str, gpus: int, more: tuple[str, ...]
):
    assert abs(real_peaks.error(gpus, "tune_llm", words(folder(family), *more))) <= 0.02


METHODS = ("lora", "qlora", "full")
EVERY = [
    *product(FAMILIES, (1, 2), METHODS, ("fp32", "bf16"), ("fsdp", "ddp")),
]


@needs_trl
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("family", "gpus", "method", "precision", "sharding"), EVERY)
def test_every_family_takes_what_is_predicted(
    folder: Folder, family: str, gpus: int, method: str, precision: str, sharding: str
):
    if gpus == 1 and sharding == "ddp":
        pytest.skip("one rank shares nothing")
    has_experts = family in ("qwen3_moe", "mixtral", "gpt_oss")
    if has_experts and method == "qlora":
        pytest.skip("it would leave the experts as they are")
    more = [f"method={method}", f"precision={precision}", f"sharding={sharding}"]
    if method != "full" and family in ("gpt2", "phi3", "glm4"):
        more.append("method.lora_attn_modules=all-linear")
    elif method != "full" and has_experts:
        more.append("method.apply_lora_to_mlp=false")
    assert abs(real_peaks.error(gpus, "tune_llm", words(folder(family), *more))) <= 0.02
