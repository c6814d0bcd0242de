"""A tuning step's time where nothing was measured: each formula in closed form, and the published
steps that its interval has to hold.
"""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multicard.config.llm import LlmConfig
from multicard.estimate import peaks, roofline
from multicard.estimate.estimates import Effort, Estimate, Predictor
from multicard.estimate.history import PastRun
from multicard.estimate.memory import facts as memory_facts
from multicard.estimate.memory.answers import Active, Request
from multicard.estimate.memory.facts import TextFacts
from multicard.estimate.observations import Basis
from multicard.estimate.roofline import Range, Roofline
from multicard.estimate.target import TargetMachine
from multicard.llm import step_work
from multicard.machine.gpu_models import GPUS
from multicard.messages import Message
from multicard.records.rank_files import ModelSizes
from multicard.records.schema_parts import Prediction
from multicard.sweep import prediction_table
from multicard.sweep.prediction_table import PredictionRow
from tests.conftest import typed_llm
from tests.helpers import records
from tests.helpers.messages import find, says
from tests.helpers.past_runs import config as config_of
from tests.helpers.past_runs import past

TABLE = Path(__file__).with_name("tuning_rates.csv")
# How far the ends of an interval may be apart: where the GPU bounds the step, and in any case
MOST_TIMES_OF_A_GPU, MOST_TIMES = 3.2, 13.0


def config(*words: str) -> LlmConfig:
    found = typed_llm("method=full", "precision=bf16", *words)
    assert isinstance(found, LlmConfig)
    return found


def bounded(
    config: LlmConfig, gpu: str, facts: TextFacts, sizes: ModelSizes | None = None
) -> Roofline:
    found = roofline.step(
        config, GPUS[gpu], facts, sizes or step_work.sizes_of_decoder(config, facts.vocabulary)
    )
    assert isinstance(found, Roofline), found
    return found


# ---- formulas


def test_the_longest_of_some_rows():
    assert roofline.mean_of_longest([7], 5) == 7
    assert roofline.mean_of_longest([1, 3], 1) == 2
    assert roofline.mean_of_longest([3, 1], 2) == 0.25 * 1 + 0.75 * 3
    lengths = [1, 2, 3, 4]  # of two dice with four faces
    assert roofline.mean_of_longest(lengths, 2) == pytest.approx((1 + 2 * 3 + 3 * 5 + 4 * 7) / 16)


def test_the_tokens_of_a_step():
    facts = TextFacts(100, 4, rows=(2, 4))
    three_quarters = 0.25 * 2 + 0.75 * 4
    padded = roofline.tokens_of_a_step(
        config("batch_size=2", "gradient_accumulation_steps=3"), facts
    )
    assert padded.likely == pytest.approx(6 * three_quarters)
    assert padded.least == pytest.approx(0.9 * padded.likely) and padded.most == pytest.approx(
        1.1 * padded.likely
    )
    cut = roofline.tokens_of_a_step(config("batch_size=2", "max_seq_len=3"), facts)
    assert cut.likely == pytest.approx(2 * (0.25 * 2 + 0.75 * 3))
    pairs = typed_llm("method=dpo", "dataset=preference", "precision=bf16", "batch_size=1")
    assert isinstance(pairs, LlmConfig)
    assert roofline.tokens_of_a_step(pairs, facts).likely == pytest.approx(2 * three_quarters)
    packed = config("packed=true", "max_seq_len=64", "batch_size=2")
    assert roofline.tokens_of_a_step(packed, facts) == (128, 128, 128)
    # each token attends to its own row
    assert roofline.row_length(packed, facts).likely == (4 + 16) / 6
    elsewhere = roofline.tokens_of_a_step(config("batch_size=2"), replace_rows(facts))
    assert elsewhere == tuple(2 * tokens for tokens in roofline.ROW_TOKENS)


def replace_rows(facts: TextFacts) -> TextFacts:
    return facts.of_memory


def test_a_step_in_closed_form(monkeypatch: pytest.MonkeyPatch):
    """With every range a number: the longest of GPU and host, and half of the exchange."""
    one = Range(0.5, 0.5, 0.5)
    monkeypatch.setattr(roofline, "EFFICIENCY", {("bf16", False): one})
    monkeypatch.setattr(roofline, "MEMORY_SHARE", one)
    monkeypatch.setattr(roofline, "LINKS_SHARE", one)
    monkeypatch.setattr(roofline, "LAUNCH_S", {False: Range(1.0, 1.0, 1.0)})
    monkeypatch.setattr(roofline, "FROM_NF4_BYTES", Range(8.0, 8.0, 8.0))
    gpu = replace(
        GPUS["h200"], flops_per_s={"bf16": 2e3}, memory_bytes_per_s=2e3, links_bytes_per_s=2e3
    )
    sizes = ModelSizes(layers=2, weights=1000, output=200, width=0, parameters=1500)
    packed = config("packed=true", "max_seq_len=50", "batch_size=2")
    facts = TextFacts(100, 50, rows=(10,))

    def step_s(config: LlmConfig, sizes: ModelSizes = sizes) -> Any:
        found = roofline.step(config, gpu, facts, sizes)
        assert isinstance(found, Roofline)
        return found.step_s

    products_s, moves_s, host_s = 100 * 6000 / 1e3, 1500 * 2 * 9 / 1e3, 2.0
    alone = step_s(packed)
    assert (alone.low, alone.value) == (products_s + moves_s, products_s + moves_s)
    assert alone.high == products_s + moves_s + host_s / 2
    again = step_s(
        config("packed=true", "max_seq_len=50", "batch_size=2", "activation_checkpointing=true")
    )
    assert again.value == 100 * 8000 / 1e3 + moves_s
    assert again.high == pytest.approx(again.value + host_s * 4 / 3 / 2)
    two = step_s(config("packed=true", "max_seq_len=50", "batch_size=2", "gpus=2"))
    exchange_s, shard_s = (2 * 2 * 1500 + 2 * 1500) / 2 / 1e3, 1500 * 2 * (2 + 7 / 2) / 1e3
    assert two.value == products_s + shard_s + exchange_s / 2
    assert two.low == products_s + shard_s and two.high == two.low + host_s / 2 + exchange_s
    single = typed_llm(
        "method=qlora", "precision=bf16", "packed=true", "max_seq_len=2", "batch_size=1"
    )
    assert isinstance(single, LlmConfig)
    adapted = replace_adapters(sizes, 10)
    nf4 = step_s(single, adapted)
    reads_s = 2 * 1000 * step_work.NF4_BYTES / 1e3
    products_s = 2 * (4000 + 60) / 1e3
    converted_s = 8 * 2 * 800 / 1e3  # of all weights but the output's, in two passes
    assert nf4.value == pytest.approx(max(reads_s, products_s) + 10 * 2 * 9 / 1e3 + converted_s)


def replace_adapters(sizes: ModelSizes, adapters: int) -> ModelSizes:
    return ModelSizes(
        sizes.layers, sizes.weights, sizes.output, sizes.width, sizes.parameters, adapters
    )


def test_a_format_without_a_published_peak_has_no_roofline():
    for_bf16 = config("model=llama3_2_1b")
    sizes = step_work.sizes_of_decoder(for_bf16, 128_256)
    none = roofline.step(for_bf16, GPUS["t4"], TextFacts(128_256, 100), sizes)
    assert isinstance(none, Message)
    assert says(none, "roofline.no-peak", key="precision", gpu="t4")
    assert (
        bounded(
            config("model=llama3_2_1b", "precision=fp32"), "t4", TextFacts(128_256, 100)
        ).step_s.low
        > 0
    )


# ---- against what others measured


def known() -> list[dict[str, str]]:
    with TABLE.open(newline="") as lines:
        return list(csv.DictReader(lines))


def measured_s(row: dict[str, str], tokens: float) -> float:
    return float(row["step_s"]) if row["step_s"] else tokens / float(row["tokens_per_s"])


def of_row(row: dict[str, str]) -> tuple[LlmConfig, Roofline]:
    own = typed_llm(*row["words"].split())
    assert isinstance(own, LlmConfig)
    facts = TextFacts(own.model.vocab_size, int(row["row_tokens"]), rows=(int(row["row_tokens"]),))
    return own, bounded(own, row["gpu"], facts)


def test_every_published_step_lies_in_its_interval():
    sound = [row for row in known() if not row["left_out"]]
    assert len(sound) >= 45 and len({row["source"] for row in sound}) >= 7
    outside = list[str]()
    errors = list[float]()
    for row in sound:
        _, found = of_row(row)
        step_s = measured_s(row, found.tokens)
        if not found.step_s.low <= step_s <= found.step_s.high:
            outside.append(f"{row['source']}, {row['words']}: {step_s:.3f} s, {found.step_s}")
        errors.append(abs(math.log(step_s / found.step_s.value)))
    assert not outside
    assert sorted(errors)[len(errors) // 2] < math.log(1.35)  # the likely step, in the median


def test_an_interval_is_no_wider_than_its_term_is_unknown():
    for row in known():
        own, found = of_row(row)
        times = found.step_s.high / found.step_s.low
        by_gpu = own.packed and own.world_size == 1 and own.method.name != "qlora"
        assert times < (MOST_TIMES_OF_A_GPU if by_gpu else MOST_TIMES), row


def test_what_is_left_out_is_faster_than_a_gpu_can_be():
    """More than a large product alone reaches: four fifths of
    the peak (788 of 989 TFLOP/s on an H200).
    """
    left = [row for row in known() if row["left_out"]]
    assert left
    for row in left:
        own, found = of_row(row)
        sizes = step_work.sizes_of_decoder(own, own.model.vocab_size)
        flops = (
            step_work.executed_flops(own, sizes, int(row["row_tokens"]), is_causal=True)
            * found.tokens
        )
        assert flops / measured_s(row, found.tokens) > 0.8 * GPUS[row["gpu"]].flops_per_s["bf16"]


def test_the_fast_preset_on_an_h200_is_what_is_expected_of_it():
    """docs/reference/tuning.md says 12,000 to 15,000 tokens/s of LoRA on Llama 3 8B."""
    own = typed_llm("preset=fast", "method=lora", "model=llama3_8b")
    assert isinstance(own, LlmConfig)
    found = bounded(own, "h200", TextFacts(128_256, 2048, rows=(57, 119, 167)))
    least, most = found.tokens_per_s
    assert found.tokens == 8192 and least < 12_000 and 15_000 < most
    likely = found.tokens / found.step_s.value
    assert 12_000 < likely < 17_500 and most / least < MOST_TIMES_OF_A_GPU


# ---- what predictions say of it

H200 = TargetMachine("h200", None, "cuda", "NVIDIA H200", GPUS["h200"].memory_bytes)
LLAMA = ("method=lora", "model=llama3_2_1b", "precision=bf16")


def predicted(
    *words: str, target: TargetMachine = H200, runs: Sequence[PastRun] = ()
) -> Prediction:
    (found,) = Predictor(target, runs, None).predict_all([typed_llm(*words)], Effort.records)
    return found


def test_a_tuning_run_that_nothing_tells_of_has_the_times_of_a_roofline():
    found = predicted(*LLAMA, "max_steps=40")
    assert (found.basis, found.runs, found.energy_joules) == (Basis.roofline, 0, None)
    assert found.step_s is not None and found.total_s is not None
    assert found.total_s.low == pytest.approx(40 * found.step_s.low)
    about = find(found.about, "estimate.roofline", gpu="h200")
    assert (
        0 < about.facts["mfu"][0] < about.facts["mfu"][1] < roofline.EFFICIENCY["bf16", False].most
    )
    assert not Basis(found.basis).is_measured and not Basis(found.basis).is_own
    longer = predicted(*LLAMA, "max_steps=40", "batch_size=64")
    assert longer.step_s is not None and longer.step_s.low > found.step_s.low


def test_whatever_somebody_measured_comes_before_a_roofline():
    record = records.llm(hardware="NVIDIA H200", prediction=None)
    (run,) = past(record)
    known, other = config_of(record), config_of(record, seed=1)
    found = Predictor(H200, [run], None).predict_all([known, other], Effort.records)
    assert [each.basis for each in found] == [Basis.measured, Basis.measured]
    printed = TargetMachine(
        "h100-94gb", None, "cuda", "NVIDIA H100", GPUS["h100-94gb"].memory_bytes
    )
    table5 = "method=lora", "model=llama3_8b", "precision=fp32", "dataset=alpaca_cleaned"
    assert predicted(*table5, target=printed).basis == Basis.published


@pytest.mark.parametrize(
    ("target", "words", "code"),
    [
        (TargetMachine("AMD EPYC", "16 cores", "cpu"), (), "estimate.no-run"),
        (TargetMachine("NVIDIA X1", None, "cuda"), (), "estimate.no-run"),
        (TargetMachine("t4", None, "cuda", "Tesla T4", 15 << 30), (), "roofline.no-peak"),
        (H200, ("gpus=2", "oversubscribe=true"), "estimate.no-run"),
        (H200, ("gpus=2", "sharding=fsdp_offload"), "roofline.offloaded"),
    ],
)
def test_without_published_rates_times_stay_unknown(
    target: TargetMachine, words: tuple[str, ...], code: str
):
    found = predicted(*LLAMA, *words, target=target)
    assert (found.basis, found.step_s, found.total_s) == (Basis.unknown, None, None)
    assert says(found.about, code)


@pytest.mark.parametrize("counted", [True, False])
def test_a_folders_model_has_a_roofline_where_its_step_without_values_counted_it(
    counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A mixture of experts is not counted: a token reads a part of it."""
    named = step_work.sizes_of_decoder(config(*LLAMA[1:]), 128_256)
    answer = Active(10**9, {}, named if counted else None)

    def answer_all(requests: Sequence[Request], compute: bool) -> list[Active | str]:
        """As simulations do: of no other optimiser and kernels than the plain ones."""
        own = [request.config for request in requests]
        plain = [
            isinstance(one, LlmConfig) and one.kernels == "torch" and not one.optimizer.has_8_bits
            for one in own
        ]
        return [answer if is_plain else "not simulated" for is_plain in plain]

    monkeypatch.setattr(peaks.answers, "answer_all", answer_all)
    monkeypatch.setattr(memory_facts, "sizes", lambda _: TextFacts(128_256, 64, rows=(64,)))
    sizes = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "vocab_size": 128_256,
    }
    sizes |= {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    words = (
        "engine=trl",
        "model=hf",
        f"model.path={tmp_path}",
        "model.weights=random",
        "method=full",
    )
    found = predicted(*words, "precision=bf16", "optimizer.name=adamw_8bit", "kernels=liger")
    if not counted:
        assert found.basis == Basis.unknown and says(found.about, "roofline.no-sizes")
        return
    alike = predicted(
        "model=llama3_2_1b", "method=full", "precision=bf16", "optimizer.name=adamw_8bit"
    )
    assert found.basis == alike.basis == Basis.roofline and found.step_s == alike.step_s


def test_the_table_says_that_nothing_was_measured():
    own = typed_llm(*LLAMA)
    cell = PredictionRow({"gpus": "1"}, Estimate(own, H200, predicted(*LLAMA, "max_steps=10")))
    head, line = prediction_table.table_lines([cell], 120)
    assert line.endswith("not measured (roofline)") and head.endswith("basis")
    notes = "\n".join(prediction_table.note_lines([cell]))
    assert says(notes, "estimate.roofline") and says(notes, "predict.probe")
    other = replace(
        cell, estimate=replace(cell.estimate, prediction=predicted(*LLAMA, "batch_size=8"))
    )
    assert find(
        "\n".join(prediction_table.note_lines([cell, other])), "predict.roofline"
    ).facts == {"cells": 2}
    sums = prediction_table.sums_line([cell], on_gpus=True)
    assert sums.facts["not_measured"] == sums.facts["runs"] == 1
