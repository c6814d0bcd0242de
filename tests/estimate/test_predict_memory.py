"""Predicted memory: closed forms, what must not fall back in silence, and the truth on the CPU."""

import pickle
import re
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import multicard.llm.before_torchtune  # noqa: F401  torchtune's parts import each other in a circle without it
from multicard.config import schema
from multicard.config.base import RunConfig, plain
from multicard.config.placement import Placement
from multicard.config.roles import Role
from multicard.estimate import peaks
from multicard.estimate.memory import answers, facts, simulate, torch_internals, tuning_step
from multicard.estimate.memory.answers import Active
from multicard.estimate.memory.facts import ImageFacts, TextFacts
from multicard.estimate.memory.torch_internals import CPU, GPU, Mode, fake
from multicard.estimate.memory.tracker import Tracker
from multicard.estimate.target import TargetMachine
from multicard.llm import models as decoders
from multicard.llm import torchtune_config
from multicard.llm.preflight import Inputs
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.records.schema_parts import PredictedInterval, Prediction
from multicard.vision import models
from tests.conftest import typed, typed_llm
from tests.helpers import real_peaks
from tests.helpers.messages import codes, refused, says

IMAGES, TEXT = ImageFacts(96, 16, 10, 8, 1), TextFacts(2304, 64)
TINY = ("dataset=digits", "model.width=0.25", "batch_size=4")
LLAMA = ("model=llama3_tiny", "model.num_kv_heads=4", "batch_size=2")
MIB = 1 << 20
# Keys on which a step's tensors do not depend, or only through the ranks,
# the loader and the sizes of the data
IRRELEVANT = """
    batch_size_asked global_batch_size
    clip_grad_norm method.rslora
    backend compile cpus_per_gpu cudnn_benchmark dataset device diagnose epochs eval_steps gpus loader lr malloc
    max_seq_len max_steps nodes num_workers numa oversubscribe pin_memory profile scale schedule seed skip_steps
    stop_at_target target_accuracy target_loss template tokenizer warmup_steps weight_decay
"""


def needs_trl(test):
    """It imports TRL, which takes seconds."""
    skips = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
    return pytest.mark.usefixtures("processes")(skips(test))


@cache
def images(*words: str, device: str = "cuda") -> Active:
    """The step of a small image model, on one GPU unless the words say otherwise."""
    return simulate.simulate(typed(*TINY, "gpus=1", *words), IMAGES, device)


@cache
def tuned(
    *words: str, device: str = "cuda", length: int = TEXT.length, evaluates: bool = False
) -> Active:
    """The step of a small Llama, on two GPUs unless the words say otherwise."""
    sizes = TextFacts(TEXT.vocabulary, length, evaluates=evaluates)
    return simulate.simulate(typed_llm(*LLAMA, "gpus=2", *words), sizes, device)


# ---- closed forms


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_of_a_linear_model(dtype):
    """(256 + 1) x 256 weights and gradients, and 32 x 256 inputs; the outputs are gone by then, the
    loss and its gradient are a number each.
    """
    with fake(CPU):
        tracker = Tracker("cpu", 1)
        model, inputs = nn.Linear(256, 256, dtype=dtype), torch.randn(32, 256, dtype=dtype)
        tracker.note_model(model)
        tracker.note(inputs, "batch")
        with tracker:
            loss = model(inputs).sum()
            loss.backward()
    weights, inputs = 257 * 256 * dtype.itemsize, 32 * 256 * dtype.itemsize
    assert (tracker.peak_now["weights"], tracker.peak_now["batch"]) == (weights, inputs)
    assert tracker.peak_bytes == 2 * weights + inputs + 2 * dtype.itemsize


def test_buckets_of_ddp():
    """Filled from the last parameter on: the first to 1 MiB, the others to the cap."""
    parameters = [torch.empty(MIB // 4) for _ in range(4)]
    assert torch_internals.ddp_buckets(parameters, 2.0) == [[3], [2, 1], [0]]
    ddp = ("gpus=2", "strategy=ddp_ds")
    alone, apart = images(device="cpu"), images(*ddp, device="cpu")
    shared = images(*ddp, "strategy.gradient_as_bucket_view=true", device="cpu")
    gradients = 4 * sum(p.numel() for p in models.build(typed(*TINY).model, 10, 64).parameters())
    assert apart.by_kind["buckets"] == shared.by_kind["buckets"] == gradients
    # losses of fewer steps
    assert apart.active_bytes - alone.active_bytes == pytest.approx(gradients, abs=1024)
    assert shared.by_kind.get("gradients", 0) < 0.1 * gradients


def test_shards_of_fsdp():
    """Each rank has its part of weights and states; the gathered ones are buckets. The peak is in
    the backward pass: where DTensor tries AdamW on tensors of the whole shapes,
    these have no memory.
    """
    seen = tuned("method=full", "gpus=4", device="cpu")
    weights = 4 * (2 * 2304 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256) + 256)
    rope = 4096 * 32 * 2 * 4  # of one layer; all layers share it
    assert seen.by_kind["weights"] == pytest.approx(weights / 4 + rope, rel=0.01)
    assert seen.by_kind["optimizer"] == pytest.approx(2 * weights / 4, rel=0.01)
    assert seen.by_kind["buckets"] > 0 and seen.by_kind["activations"] > 0


def test_nf4_has_the_sizes_of_torchaos():
    from torchao.dtypes.nf4tensor import to_nf4

    weight = torch.randn(128, 256)
    real, made = to_nf4(weight), torch_internals.nf4_like(weight)
    for name in (
        "quantized_scalers",
        "quantization_factor",
        "scaler_mean",
        "quantized_data",
        "nf4",
    ):
        assert getattr(made, name).shape == getattr(real, name).shape, name
        assert getattr(made, name).dtype == getattr(real, name).dtype, name


def test_pairs_hold_the_references_output_of_the_step_before():
    every = tuned("method=dpo", "gpus=1", device="cpu")
    with mock.patch.object(tuning_step, "step_count", lambda _: 1):
        first = tuned.__wrapped__("method=dpo", "gpus=1", device="cpu")
    logits = 2 * 2 * TEXT.length * TEXT.vocabulary * 4
    assert every.active_bytes - first.active_bytes == pytest.approx(logits, abs=1024)


@pytest.mark.slow
def test_the_first_gpu_of_dataparallel_has_all_of_the_batch():
    alone, parallel = images(), images("gpus=2", "strategy=dp")
    assert parallel.by_kind["batch"] == 2 * 4 * 3 * 64 * 64 * 4 + 512  # two GPUs' batches
    assert parallel.by_kind["activations"] == alone.by_kind["activations"]


def test_what_training_adds_on_a_gpu():
    """A resident data set is as large as its images, labels and order;
    a fused optimiser takes what another does.
    """
    alone = images()
    assert images("optimizer.fused=true").active_bytes == alone.active_bytes
    # training images, half of the test images
    blocks = (96 * 64, 96 * 8, 96 * 8, 8 * 64, 8 * 8, 8 * 8)
    resident = images("gpus=2", "strategy=ddp", "loader=device").by_kind["resident"]
    assert resident == sum(-(-size // 512) * 512 for size in blocks)


@pytest.mark.slow
def test_options_of_tuning_change_what_they_should():
    whole = tuned("method=lora")
    apart = tuned("method=lora", "custom_sharded_layers=[tok_embeddings,output]")
    assert (
        apart.by_kind["buckets"] < whole.by_kind["buckets"]
        and apart.active_bytes < whole.active_bytes
    )
    packed = tuned("method=lora", "packed=true", "max_seq_len=64")
    positions = row_numbers = 2 * 64 * 8
    assert (
        packed.by_kind["batch"] >= row_numbers
        and packed.active_bytes - whole.active_bytes >= positions
    )
    summed = tuned("method=lora", "gradient_accumulation_steps=2")
    adapters = whole.by_kind["optimizer"] / 2  # whose gradients are kept for the second batch
    assert summed.by_kind["gradients"] == pytest.approx(adapters, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["qlora", "qat"])  # of the others above
def test_methods_on_two_gpus_that_are_not_there(method):
    seen = tuned(f"method={method}", "precision=bf16")
    assert sum(seen.by_kind.values()) == seen.active_bytes
    if method == "qat":
        again = tuned(f"method={method}", "precision=bf16", "activation_checkpointing=true")
        assert again.active_bytes < seen.active_bytes


@pytest.mark.parametrize(("layers", "length"), [("[output]", 43), ("[]", 41)])
def test_sharded_output_pads_batches_to_as_many_chunks(layers, length):
    config = typed_llm("method=full", *LLAMA, "gpus=2", f"custom_sharded_layers={layers}")
    tokens = tuning_step.batch(config, TextFacts(2304, 41), CPU, Tracker("cpu"), 8)["tokens"]
    assert tokens.shape == (2, length)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_scaled_positions_take_as_much_as_others(device):
    small = (
        "model.num_layers=1",
        "model.num_heads=4",
        "model.embed_dim=256",
        "model.intermediate_dim=256",
    )
    scaled, plain_ones = (tuned(f"model={name}", *small, "model.max_seq_len=512", "gpus=1", device=device)
                          for name in ("llama3_1_8b", "llama3_8b"))  # fmt: skip
    assert scaled == plain_ones


# ---- fallbacks, and the truth


def test_a_model_whose_shape_follows_from_the_values_of_tensors_is_whole():
    words = ("model.name=regnet_y_400mf", "model.width=1")
    weights = sum(
        4 * each.numel() for each in models.build(typed(*words).model, 10, 32).parameters()
    )
    assert images(*words).by_kind["weights"] == pytest.approx(weights, rel=0.05)


def test_autocast_for_a_gpu_that_is_not_there():
    fp32, fp16 = images(), images("precision=fp16")
    assert fp16.by_kind["activations"] < 0.6 * fp32.by_kind["activations"]


def test_autocast_casts_as_the_installed_torch_does():
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    lists = zip(
        ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE"),
        torch_internals.AUTOCAST_POLICIES.values(),
        strict=True,
    )
    for name, operators in lists:
        (body,) = re.findall(rf"#define AT_FORALL_{name}\(_\)((?:[^\n]*\\\n)*[^\n]*)", header)
        assert {*operators.split()} <= {
            entry.replace(", ", ".") for entry in re.findall(r"_\(([\w, ]+)\)", body)
        }


def test_what_falls_back_in_silence_is_an_error():
    without = mock.patch.object(torch_internals, "cuda_autocast", nullcontext)
    with without, pytest.raises(simulate.FellBackError) as caught:
        images.__wrapped__("precision=fp16")
    assert says(str(caught.value), "memory.product-type", expected="torch.float16")
    math = torch.ops.aten._scaled_dot_product_attention_math
    fallen = mock.patch.object(
        torch_internals, "torchtune_attention", lambda q, k, v, **_: math(q, k, v)[0]
    )
    with fallen, pytest.raises(simulate.FellBackError) as caught:
        tuned.__wrapped__("method=lora", "precision=bf16", "gpus=1")
    assert codes(str(caught.value)) == ["memory.attention"]
    with pytest.raises(simulate.FellBackError) as caught:
        images("gpus=2", "strategy.sync_batchnorm=true")
    assert says(str(caught.value), "memory.sync-batchnorm", key="strategy.sync_batchnorm")


@pytest.mark.parametrize(
    "reason", ["Found no NVIDIA driver on your system.", "No CUDA GPUs are available"]
)
def test_an_operator_that_torch_tries_on_a_gpu_is_named_without_a_driver_and_where_gpus_are_hidden(
    reason,
):
    mode, relu = Mode(GPU), torch.ops.aten.relu.default
    tried = mock.patch.object(FakeTensorMode, "dispatch", side_effect=RuntimeError(reason))
    with tried, pytest.raises(NotImplementedError) as caught:
        mode.dispatch(relu, ())
    assert says(str(caught.value), "memory.no-operator", operator=str(relu))
    other = mock.patch.object(FakeTensorMode, "dispatch", side_effect=RuntimeError("sizes differ"))
    with other, pytest.raises(RuntimeError, match="sizes differ"):
        mode.dispatch(relu, ())


@pytest.mark.slow
def test_real_steps_on_the_cpu_take_what_is_predicted(tmp_path):
    words = ("precision=bf16", "layout=nhwc")
    real, threads = real_peaks.Peaks(), torch.get_num_threads()
    Board(tmp_path, 1, create=True)
    torch.set_num_threads(1)
    real_peaks.train_vision(
        typed(*TINY, "gpus=1", *words), Rank(0, 0, 1, CPU, "gloo", 1), tmp_path, real
    )
    torch.set_num_threads(threads)
    assert images(*words, device="cpu").active_bytes == pytest.approx(real.most_bytes, rel=0.02)


@needs_trl
@pytest.mark.parametrize(("sharding", "ranks"), [("fsdp", 2), ("ddp", 1)])
def test_trl_keeps_all_weights_or_a_part(sharding, ranks):
    seen = tuned("engine=trl", "method=full", f"sharding={sharding}", device="cpu").by_kind
    weights = 4 * (2 * 2304 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256) + 256)
    assert seen["weights"] == pytest.approx(weights / ranks, rel=0.001)
    assert seen["optimizer"] == pytest.approx(2 * weights / ranks, rel=0.001)
    if sharding == "ddp":
        # the gradients', and a number of the logs
        assert seen["buckets"] == pytest.approx(weights, abs=8)


@needs_trl
def test_replicas_on_gpus_have_buckets_as_on_cpu_ranks():
    words = "engine=trl", "method=full", "sharding=ddp"
    on_gpu, on_cpu = (tuned(*words, device=device).by_kind for device in ("cuda", "cpu"))
    assert on_gpu["buckets"] == pytest.approx(on_cpu["buckets"], rel=0.01)
    alone = TextFacts(TEXT.vocabulary, TEXT.length)
    one = simulate.simulate(typed_llm(*LLAMA, "engine=trl", "method=full", "gpus=1"), alone, "cuda")
    assert "buckets" not in one.by_kind  # nothing is left of the ranks before


@needs_trl
def test_weights_that_are_moved_to_where_they_are_have_no_second_copy():
    on_gpu, on_cpu = (
        tuned("engine=trl", "method=full", "gpus=1", device=device).by_kind
        for device in ("cuda", "cpu")
    )
    assert on_gpu.get("temporaries", 0) < on_cpu.get("temporaries", 0) + 0.5 * on_gpu["weights"]


@needs_trl
def test_trls_loss_on_a_gpu_takes_a_tile_of_logits():
    seen = tuned("engine=trl", "method=lora", "precision=bf16", "gpus=1")
    tile = 2 * (TEXT.length - 1) * 32768 * 2
    assert tile < seen.by_kind["temporaries"] < 1.1 * tile
    layers, bias = 2, 2 * TEXT.length**2 * 2  # of a mask, in each
    longer = tuned(
        "engine=trl", "method=lora", "precision=bf16", "gpus=1", "packed=true", "max_seq_len=64"
    )
    assert (
        seen.by_kind["activations"] > layers * bias
        and longer.active_bytes < 1.05 * seen.active_bytes
    )


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (1, ("method=dpo", "precision=bf16")),
        (2, ("method=lora", "gradient_accumulation_steps=2")),
        (2, ("method=full", "sharding=ddp")),
        (1, ("method=lora", "precision=bf16_mixed")),
    ],
)
def test_real_steps_of_trl_take_what_is_predicted(gpus: int, words: tuple[str, ...]):
    assert abs(real_peaks.error(gpus, "tune_llm", (*LLAMA, "engine=trl", *words))) <= 0.02


@pytest.mark.slow
def test_held_out_rows_take_more_where_a_step_takes_little():
    """Without gradients, but with a chunk of logits in float32,
    and in int4 with a layer's weights once more.
    """
    words = (
        "method=full",
        "precision=bf16",
        "activation_checkpointing=true",
        "optimizer_in_bwd=true",
        "batch_size=1",
    )
    alone = tuned(*words, "gpus=1", device="cpu")
    evaluated = tuned(*words, "gpus=1", device="cpu", evaluates=True)
    assert 1.02 < evaluated.active_bytes / alone.active_bytes < 1.3


@pytest.mark.parametrize(
    ("words", "evaluates"),
    [
        (("dataset.split=0.1",), True),
        (("dataset.split=0",), False),
        (("dataset=samsum",), False),
        (("dataset=samsum", "dataset.split=0.1"), True),  # whose rows are not at hand
    ],
)
def test_a_prediction_knows_whether_rows_are_held_out(words: tuple[str, ...], evaluates: bool):
    sizes = facts.sizes(typed_llm(*words))
    assert isinstance(sizes, TextFacts) and sizes.evaluates is evaluates
    (*requests,) = peaks._requests(typed_llm(*words), sizes, TargetMachine(device_type="cpu"))
    assert {request.facts.evaluates for request in requests} == {evaluates}  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("gpus", "entry", "words"),
    [
        (1, "tune_llm", ("method=lora", "precision=bf16", "activation_checkpointing=true")),
        (1, "tune_llm", ("method=dpo", "precision=bf16", "activation_checkpointing=true")),
        (1, "tune_llm", ("method=full", "precision=bf16", "optimizer_in_bwd=true", "batch_size=1")),
        (2, "tune_llm", ("method=lora", "precision=bf16", "activation_checkpointing=true")),
        (1, "train_vision", ("model.freeze=backbone", "batch_size=12")),
        pytest.param(
            *(1, "tune_llm", ("engine=trl", "method=lora", "activation_checkpointing=true")),
            marks=pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]"),
        ),
    ],
)
def test_real_evaluations_take_no_more_than_is_predicted(
    gpus: int, entry: str, words: tuple[str, ...]
):
    of_entry = LLAMA if entry == "tune_llm" else ("dataset=digits", *real_peaks.MODELS["tiny"])
    assert real_peaks.evaluation(gpus, entry, (*of_entry, *words)) <= 1.02


@needs_trl
@pytest.mark.slow
def test_real_steps_of_trl_on_a_folders_weights_take_what_is_predicted(tmp_path):
    import transformers

    words = (
        "model=llama3_tiny",
        "model.num_kv_heads=4",
        "engine=trl",
        f"model.vocab_size={real_peaks.ROWS.vocabulary}",
    )
    sizes = decoders.hugging_face_config(typed_llm(*words).model, real_peaks.ROWS.vocabulary)
    config = transformers.AutoConfig.for_model(**sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "weights")
    words = (*words, "batch_size=2", "method=full", f"model.weights={tmp_path / 'weights'}")
    assert abs(real_peaks.error(2, "tune_llm", words)) <= 0.02


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "cell", [*real_peaks.cells()], ids=lambda cell: f"gpus={cell[0]} {' '.join(cell[2])}"
)
def test_every_cell_on_the_cpu_takes_what_is_predicted(cell: real_peaks.Cell):
    assert abs(real_peaks.error(*cell)) <= 0.02


# ---- requests and answers


def memory(config: RunConfig, machine: TargetMachine) -> Prediction:
    prediction = Prediction("unknown")
    peaks.add_peaks([prediction], [config], machine, [], compute=True)
    return prediction


def identity(config: RunConfig) -> str:
    sizes = IMAGES if hasattr(config, "strategy") else TEXT
    request = answers.Request(config, sizes)
    assert pickle.loads(pickle.dumps(request)) == request
    return answers.identity(request)


RANKS = [(f"gpus={count}",) for count in (2, 3, 4)]


@pytest.mark.parametrize(
    ("entry", "cells", "different"),
    [
        (
            typed,
            [(*ranks, "num_workers=1", "seed=7") for ranks in RANKS]
            + [("gpus=2", "fit=off", "repeat=2")],
            1,
        ),
        (
            typed,
            [
                (),
                ("gpus=2",),
                ("optimizer=adamw",),
                ("batch_size=5",),
                ("loader=batched", "pin_memory=true"),
            ],
            5,
        ),
        # each has a share of the data set
        (typed, [(*ranks, "loader=device") for ranks in RANKS], 3),
        (typed, [(*ranks, "strategy=dp") for ranks in RANKS], 3),
        (
            typed_llm,
            [("method=qlora",), ("method=qlora", "seed=1"), ("method=qlora", "batch_size=3")],
            2,
        ),
    ],
)
def test_cells_that_take_the_same_share_an_answer(entry, cells, different):
    base = TINY if entry is typed else LLAMA
    assert len({identity(entry(*base, *words)) for words in cells}) == different


def test_every_key_either_matters_to_memory_or_does_not():
    """A new key has to be put into one of the two."""
    irrelevant = {*schema.beside(), *IRRELEVANT.split()}
    for config in (typed(*TINY), typed_llm(*LLAMA)):
        assert {*plain(config)} <= {*schema.own(type(config), Role.memory), *irrelevant}


def active(length: int) -> Active:
    return Active(1000 * length, {"activations": 1000 * length})


def test_equal_requests_are_computed_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    computed: list[int] = []

    def compute(asked: Sequence[answers.Request]) -> list[Active | str]:
        lengths = [request.facts.length for request in asked]
        computed.extend(lengths)
        return ["FellBackError: attention" if length == 1 else active(length) for length in lengths]

    monkeypatch.setattr(answers, "compute_answers", compute)
    asked = [
        answers.Request(typed_llm(*LLAMA), TextFacts(2304, length)) for length in (64, 100, 64, 1)
    ]
    assert answers.answer_all(asked, compute=False) == [answers.NOT_COMPUTED] * 4
    every = [active(64), active(100), active(64), "FellBackError: attention"]
    assert answers.answer_all(asked) == every and computed == [64, 100, 1]
    # what failed is tried again
    assert answers.answer_all(asked) == every and computed == [64, 100, 1, 1]


@pytest.mark.usefixtures("processes")
def test_predictions_are_made_in_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, machine = (
        typed(*TINY, "gpus=1"),
        TargetMachine(gpu="NVIDIA H100 NVL", memory_bytes=94 * 10**9),
    )
    told = memory(config, machine)
    assert told.fits == "yes" and told.memory_bytes
    assert says(told.memory_basis, "memory.without-values", device="cuda")
    sizes = {94 * 10**9: "yes", int(told.memory_bytes.value): "tight", 10**8: "no", None: None}
    assert {size: peaks.fits(told.memory_bytes, size) for size in sizes} == sizes


# ---- sizes of the data


def test_files_of_a_tokenizer_that_cannot_be_read_are_named(tmp_path):
    files = [tmp_path / "vocab.json", tmp_path / "merges.txt"]
    for file, text in zip(files, ('{"a": 0, "b": 1}', "#version: 0.2\na b c\n"), strict=True):
        file.write_text(text)
    words = [
        f"tokenizer.{key}={file}" for key, file in zip(("path", "merges_file"), files, strict=True)
    ]
    with refused(
        "memory.tokenizer-files", key="tokenizer.merges_file", value=str(files[1])
    ) as caught:
        facts._counter(typed_llm("tokenizer=qwen2_5", *words), Inputs([], None, 0))
    assert "line 1" in caught.value.facts["reason"]


def test_rows_that_are_not_at_hand_give_an_interval(monkeypatch):
    hub = (*LLAMA, "dataset=alpaca_cleaned", "model.max_seq_len=2048")
    sizes = facts.sizes(typed_llm(*hub))
    assert (
        isinstance(sizes, TextFacts)
        and sizes.lengths == (1024, 256, 2048)
        and sizes.vocabulary > 2048
    )
    assert facts.sizes(typed_llm(*hub, "max_seq_len=512")).lengths == (512, 256, 512)
    assert facts.sizes(typed_llm(*hub, "max_seq_len=512", "packed=true")).lengths == (512,)
    monkeypatch.setattr(
        answers, "answer_all", lambda asked, _: [active(request.facts.length) for request in asked]
    )
    told = memory(typed_llm(*hub), TargetMachine(device_type="cpu"))
    assert says(told.memory_basis, "memory.without-values", lengths=[1024, 256, 2048], device="cpu")
    assert told.memory_bytes == PredictedInterval(
        1_024_000, round(0.98 * 256_000), round(1.02 * 2_048_000)
    )
    packed, v100 = (
        typed_llm(*LLAMA, "packed=true", "max_seq_len=64"),
        TargetMachine(gpu="Tesla V100-SXM2-16GB"),
    )
    assert memory(packed, v100).memory_bytes is None
    assert says(memory(packed, v100).memory_basis, "memory.dense-masks", key="packed", gpu=v100.gpu)


@pytest.mark.parametrize("words", [("method=lora",), ("method=dpo", "template=grammar")])
def test_the_longest_row_is_as_torchtunes(tmp_path, words):
    from torchtune import config as components

    config = typed_llm("model=llama3_tiny", "max_seq_len=4000", "dataset.rows=50", *words)
    cfg = OmegaConf.create(
        torchtune_config.write(config, Placement("cpu", "gloo", 1, False), tmp_path)
    )
    rows = components.instantiate(
        cfg.dataset, components.instantiate(cfg.tokenizer), cache_dir=str(tmp_path)
    )
    columns = ("tokens", "chosen_input_ids", "rejected_input_ids")
    longest = max(
        len(rows[number].get(column, ())) for number in range(len(rows)) for column in columns
    )
    assert longest <= facts.sizes(config).length <= longest + 3


# ---- beside the tensors


def test_extras_of_a_gpu(monkeypatch):
    size = Active(10**9, {"activations": 5 * 10**8})

    def added(
        config: RunConfig, gpu: str = "NVIDIA H100 80GB HBM3"
    ) -> dict[str, PredictedInterval]:
        return peaks.extras_of(config, TargetMachine(gpu=gpu), size)

    alone = typed_llm(*LLAMA)
    assert (
        set(added(alone)) == {"cublas", "slack", "context"}
        and added(alone)["cublas"].value == 32 * MIB
    )
    assert added(alone, "NVIDIA A100-SXM4-80GB")["cublas"].value == 8_519_680
    config = typed("dataset=digits", "gpus=4", "compile=true")
    together = added(config)
    assert together["nccl"].value == 688 * MIB
    assert together["compile"] == PredictedInterval(-(10**8), -25 * 10**7, 75 * 10**6)
    assert all(extra.low <= extra.value <= extra.high for extra in together.values())
    monkeypatch.setattr(answers, "answer_all", lambda asked, compute: [size])
    told = memory(config, TargetMachine(gpu="NVIDIA H100 80GB HBM3"))
    assert told.allocated_bytes and told.memory_bytes
    inside = sum(together[name].value for name in ("cublas", "cudnn", "compile"))
    beside = sum(together[name].value for name in ("slack", "context", "nccl"))
    assert told.allocated_bytes.value == 10**9 + inside
    assert told.memory_bytes.value == told.allocated_bytes.value + beside
