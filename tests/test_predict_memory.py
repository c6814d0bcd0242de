"""Predicted memory: closed forms, what must not fall back in silence, and the truth on the CPU."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from benchmarks import prediction_memory as truth
from multicard.predict import memory
from multicard.predict.memory import checks, cuda_autocast, extras, fake_device, nf4, requests, simulate, wrappers
from multicard.predict.memory.facts import ImageFacts, Machine, TextFacts, image_facts
from multicard.predict.memory.result import Active, Extra, PeakMemory
from multicard.predict.memory.tracker import Tracker
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from tests.conftest import typed, typed_llm

IMAGES, TEXT = ImageFacts(96, 16, 10, 8, 1), TextFacts(2304, 64)
TINY = ("dataset=digits", "model.width=0.25", "batch_size=4", "gpus=1")
LLAMA = ("model=llama3_tiny", "model.num_kv_heads=4", "batch_size=2")
MIB = 1 << 20


def linear_step(dtype: torch.dtype, low: torch.dtype | None = None, wide: int = 256, batch: int = 32) -> Tracker:
    """Forward and backward of one linear layer, without values."""
    with fake_device.fake(fake_device.CPU):
        tracker = Tracker("cpu", 1)
        model, images = nn.Linear(wide, wide, dtype=dtype), torch.randn(batch, wide, dtype=dtype)
        tracker.note_model(model)
        tracker.note(images, "batch")
        with tracker:
            tracker.phase = "forward"
            with torch.autocast("cpu", dtype=low) if low else nullcontext():
                loss = model(images).sum()
            tracker.phase = "backward"
            loss.backward()
    return tracker


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_of_a_linear_model(dtype):
    """(256 + 1) x 256 weights and gradients, and 32 x 256 inputs; the outputs are gone by then, the loss and its
    gradient are a number each."""
    tracker, size = linear_step(dtype), dtype.itemsize
    weights, inputs = 257 * 256 * size, 32 * 256 * size
    assert (tracker.peak_now["weights"], tracker.peak_now["batch"]) == (weights, inputs)
    assert tracker.peak_bytes == 2 * weights + inputs + 2 * size


def test_bytes_of_a_linear_model_under_autocast():
    """Weights and inputs in float32, and the gradient of the weights in both types while it is cast."""
    tracker = linear_step(torch.float32, torch.bfloat16)
    expected = (257 * 256 + 32 * 256) * 4 + 256 * 256 * (2 + 4)
    assert 0 <= tracker.peak_bytes - expected <= 32 * 256 * 2 + 256 * 8 + 16
    assert tracker.operators["aten::addmm"] == {torch.bfloat16}


def test_states_of_adamw():
    """Two moments of each parameter, and a number for each tensor."""
    with fake_device.fake(fake_device.CPU):
        tracker, model = Tracker("cpu", 1), nn.Linear(64, 32)
        optimizer = torch.optim.AdamW(model.parameters())
        with tracker:
            model(torch.randn(2, 64)).sum().backward()
            optimizer.step()
            tracker.note_states(optimizer)
    assert tracker.now["optimizer"] == 2 * 4 * 65 * 32 + 2 * 4


def test_buckets_of_ddp():
    """Filled from the last parameter on: the first to 1 MiB, the others to the cap."""
    parameters = [torch.empty(MIB // 4) for _ in range(4)]
    assert wrappers.bucket_sizes(parameters, 2.0) == [[3], [2, 1], [0]]
    config = typed(*TINY[:-1], "gpus=2", "strategy=ddp_ds")
    apart = simulate.simulate(config, IMAGES, "cpu")
    config.strategy.gradient_as_bucket_view = True  # pyright: ignore[reportAttributeAccessIssue]
    shared = simulate.simulate(config, IMAGES, "cpu")
    alone = simulate.simulate(typed(*TINY), IMAGES, "cpu")
    gradients = 4 * sum(p.numel() for p in truth.models_of(config).parameters())
    assert apart.by_kind["buckets"] == shared.by_kind["buckets"] == gradients
    assert apart.active_bytes - alone.active_bytes == pytest.approx(gradients, abs=1024)  # losses of fewer steps
    assert shared.by_kind.get("gradients", 0) < 0.1 * gradients


@pytest.mark.parametrize("ranks", [2, 4])
def test_shards_of_fsdp(ranks):
    """Each rank has its part of weights and states; the gathered ones are buckets."""
    config = typed_llm("method=full", *LLAMA, f"gpus={ranks}")
    seen = simulate.simulate(config, TEXT, "cpu")
    weights = 4 * (2 * 2304 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256) + 256)
    rope = 4096 * 32 * 2 * 4  # of one layer; all layers share it
    assert seen.by_kind["weights"] == pytest.approx(weights / ranks + rope, rel=0.01)
    assert seen.by_kind["optimizer"] == pytest.approx(2 * weights / ranks, rel=0.01)
    assert seen.by_kind["buckets"] > 0
    assert (
        seen.phase == "backward"
    )  # not where DTensor tries AdamW on tensors of the whole shapes, which have no memory


def test_nf4_has_the_sizes_of_torchaos():
    from torchao.dtypes.nf4tensor import to_nf4

    weight = torch.randn(128, 256)
    real, made = to_nf4(weight), nf4.nf4_like(weight)
    for name in ("quantized_scalers", "quantization_factor", "scaler_mean", "quantized_data", "nf4"):
        assert getattr(made, name).shape == getattr(real, name).shape, name
        assert getattr(made, name).dtype == getattr(real, name).dtype, name


def test_autocast_for_a_gpu_that_is_not_there():
    fp32, fp16 = (simulate.simulate(typed(*TINY, f"precision={name}"), IMAGES, "cuda") for name in ("fp32", "fp16"))
    assert fp16.by_kind["activations"] < 0.6 * fp32.by_kind["activations"]
    policies = cuda_autocast.operators()
    assert (policies["conv2d"], policies["layer_norm"], policies["softmax.int"]) == ("lower", "fp32", "fp32 result")


def test_what_falls_back_in_silence_is_an_error():
    without = mock.patch.object(cuda_autocast, "emulated", nullcontext)
    with without, pytest.raises(checks.FellBackError, match="not torch"):
        simulate.simulate(typed(*TINY, "precision=fp16"), IMAGES, "cuda")
    config = typed_llm("method=lora", *LLAMA, "precision=bf16", "gpus=1")
    math = torch.ops.aten._scaled_dot_product_attention_math
    fallen = mock.patch("multicard.predict.memory.attention.of_torchtune", lambda q, k, v, **_: math(q, k, v)[0])
    with fallen, pytest.raises(checks.FellBackError, match="attention"):
        simulate.simulate(config, TEXT, "cuda")


@pytest.mark.parametrize("method", ["lora", "qlora", "dpo", "qat"])
def test_methods_on_two_gpus_that_are_not_there(method):
    config = typed_llm(f"method={method}", *LLAMA, "precision=bf16", "gpus=2")
    seen = simulate.simulate(config, TEXT, "cuda")
    if method == "dpo":
        config.activation_checkpointing = True
        assert simulate.simulate(config, TEXT, "cuda").active_bytes < seen.active_bytes
    assert seen.phase in ("forward", "backward", "optimizer") and seen.by_phase[seen.phase] == seen.active_bytes


def real_rank(tmp_path: Path) -> Rank:
    Board(tmp_path, 1, create=True)
    return Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)


@pytest.mark.parametrize("words", [(), ("precision=bf16",), ("precision=fp64", "layout=nhwc")])
def test_real_steps_on_the_cpu_take_what_is_predicted(tmp_path, words):
    config, peaks = typed(*TINY, *words), truth.Peaks()
    truth.train_vision(config, real_rank(tmp_path), tmp_path, peaks)
    assert simulate.simulate(config, IMAGES, "cpu").active_bytes == pytest.approx(peaks.tracked_bytes, rel=0.02)


def test_a_request_keeps_the_configuration():
    for config, facts in ((typed(*TINY, "optimizer=adamw"), IMAGES), (typed_llm("method=qlora", *LLAMA), TEXT)):
        request = requests.request(config, facts, Machine())
        assert requests.config_of(request) == config
        config.seed += 1
        assert requests.identity(requests.request(config, facts, Machine())) == requests.identity(request)
        config.batch_size += 1
        assert requests.identity(requests.request(config, facts, Machine())) != requests.identity(request)


def test_predictions_are_made_in_another_process_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, machine = typed(*TINY), Machine("cuda", "NVIDIA H100", 94 * 10**9)
    first = memory.predict(config, machine)
    assert image_facts(config).train == 1438 and first.active_bytes == sum(first.by_kind.values())
    monkeypatch.setattr(memory, "_computed", lambda _: pytest.fail("computed again"))
    assert memory.predict(config, machine) == first
    assert first.fits(94 * 10**9) == "yes" and first.fits(first.total_bytes) == "tight" and first.fits(10**8) == "no"


def test_a_run_that_cannot_be_predicted_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(memory, "_computed", lambda asked: ["FellBackError: attention"])
    with pytest.raises(memory.UnpredictableError, match="FellBackError: attention"):
        memory.predict(typed(*TINY))


def test_extras_of_a_gpu():
    alone = extras.Situation(10**9, 5 * 10**8, (2, 11), "NVIDIA H100 80GB HBM3", 1, convolutions=False)
    assert set(extras.of(alone)) == {"cublas", "slack", "context"}
    assert extras.of(alone)["cublas"].bytes == 32 * MIB
    assert extras.of(alone._replace(gpu="NVIDIA A100"))["cublas"].bytes == 8_519_680
    together = extras.of(alone._replace(ranks=4, compiled=True, convolutions=True))
    assert together["nccl"].bytes == 688 * MIB
    assert together["compile"].low_bytes < together["compile"].bytes < 0 < together["compile"].high_bytes
    for extra in together.values():
        assert extra.low_bytes <= extra.bytes <= extra.high_bytes


def test_deviations_add_as_squares():
    found = {"a": Extra(10, 7, 14), "b": Extra(20, 16, 23)}
    assert extras.summed(100, found, 0.0) == (130, 125, 135)


def test_extras_are_learned_from_three_runs_on():
    runs = [extras.Measured(1000, 1000 + beyond) for beyond in (100, 110, 120)]
    assert extras.learned(runs[:2]) is None
    assert extras.learned(runs) == Extra(110, 90, 130)
    active = Active(2 * 10**9, {"weights": 2 * 10**9}, "forward", "aten::mm", {}, 1.0)
    answers = mock.patch.object(memory, "_answers", lambda asked: [active])
    wide = [extras.Measured(10**9, 10**9 + beyond) for beyond in (10**8, 10**8, 10**8)]
    with answers:
        plain, informed = (memory.predict(typed(*TINY), known=IMAGES, measured=some) for some in ((), wide))
    assert informed.allocated_bytes == 2 * 10**9 + 10**8 and "3 runs" in informed.basis
    assert isinstance(plain, PeakMemory) and plain.allocated_bytes != informed.allocated_bytes
