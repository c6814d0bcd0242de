"""Tuning runs of the tiny model, from words to record, on CPU ranks."""

import json
import math
import mmap
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicard.llm.methods import METHODS
from multicard.records.schema import Record
from tests.conftest import Measured, ok, typed_llm
from tests.helpers.recorded import steps

FIXED = "model.vocab_size=1600"  # an even vocabulary: FSDP pads no shard
QWEN = "model=qwen2_5_tiny"
ALL_ADAPTED = "method.lora_attn_modules=[q_proj,k_proj,v_proj,output_proj]"


def validate_yaml(result: dict[str, Any]) -> None:
    from omegaconf import OmegaConf
    from torchtune import config

    file = Path(result["folder"]) / "torchtune.yaml"
    config.validate(OmegaConf.load(file))
    first = file.read_text().splitlines()[0]
    assert first.startswith("# PYTHONPATH=. tune run ") and first.endswith("torchtune.yaml")


@pytest.mark.parametrize(
    ("method", "template"),
    [*product(METHODS, ["instruct"]), ("lora", "summarize"), ("dpo", "grammar")],
)
def test_every_method_tunes_on_rows_of_a_template(tuned: Measured, method: str, template: str):
    result = ok(tuned(f"method={method}", f"template={template}", "dataset.rows=40"))
    assert result["kind"] == "llm"
    validate_yaml(result)
    axes = result["axes"]
    assert (axes["method"], axes["template"], axes["rows"], axes["gpus"]) == (
        method,
        template,
        40,
        1,
    )
    assert axes["recipe"] == typed_llm(f"method={method}").recipe_name
    assert result["iteration_s"]["count"] == 3 and result["iteration_s"]["warmup_count"] == 1
    assert len(steps(result, "step_s")) == 4 and (steps(result, "step_s") > 0).all()
    vocabulary = (
        len((Path(result["folder"]) / "inputs" / "tokenizer.tiktoken").read_text().splitlines())
        + 10
    )
    # of random weights: of a uniform guess, or of DPO's equal models
    loss = result["loss"]["first"]
    assert (
        loss == np.float32(math.log(2))
        if method == "dpo"
        else abs(loss - math.log(vocabulary)) < 0.3
    )
    assert result["peak_memory_bytes"]["max"] > 100e6 and result["total_s"] > 0
    tokens = result["tokens"]
    assert tokens["all"] >= tokens["non_padding"] > tokens["loss_bearing"] > 0
    assert result["transfer_bytes"]["h2d"] == tokens["all"] * 16 * (2 if method == "dpo" else 1)
    assert result["communication_bytes"]["all_gather"] == 0


@pytest.mark.parametrize(
    ("method", "gpus"),
    [
        *(pytest.param(method, 2, marks=pytest.mark.core) for method in ("lora", "dpo")),
        *((method, 2) for method in METHODS if method not in ("lora", "dpo")),
        ("lora", 4),
    ],
)
def test_communication_bytes_in_closed_form(tuned: Measured, method: str, gpus: int):
    result = ok(tuned(f"method={method}", f"gpus={gpus}", "dataset.rows=80", FIXED, "max_steps=3"))
    assert len(result["peak_memory_bytes"]["per_rank"]) == gpus
    assert result["axes"]["recipe"] == typed_llm(f"method={method}", "gpus=2").recipe_name
    share, parameters, trainable = (
        (gpus - 1) / gpus,
        result["parameters"],
        result["trainable_parameters"],
    )
    passes = 2 + METHODS[method].reference_passes  # forward, backward, and the reference model's
    received = result["communication_bytes"]
    if METHODS[method].nf4:  # the base travels in NF4: half a byte a weight and its scales
        assert received["all_gather"] < 3 * passes * share * 4 * parameters / 2
    else:
        assert received["all_gather"] == 3 * passes * share * 4 * parameters
    assert received["reduce_scatter"] == 3 * share * 4 * trainable
    # the loss, the count of tokens (int64), DPO's figures
    per_step = 4 + 8 if method != "dpo" else 4 + 8 + 7 * 4
    assert received["all_reduce"] == round(3 * 2 * share * per_step)


@pytest.mark.parametrize("method", ["lora", "qat"])
def test_parts_that_are_sharded_by_themselves(tuned: Measured, method: str):
    """Memory-efficient FSDP wrapping: the same numbers; the output is gathered for each chunk of a
    sequence, of which short rows would have other numbers on each rank.
    """
    words = (
        f"method={method}",
        "gpus=2",
        "dataset.rows=80",
        FIXED,
        "max_steps=5",
        "template=grammar",
    )
    usual, apart = (
        ok(tuned(*words)),
        ok(tuned(*words, "custom_sharded_layers=[tok_embeddings,output]")),
    )
    yaml = (Path(apart["folder"]) / "torchtune.yaml").read_text()
    assert "custom_sharded_layers:\n- tok_embeddings\n- output" in yaml
    assert np.abs(steps(usual, "loss") - steps(apart, "loss")).max() < 1e-5
    assert apart["communication_bytes"]["all_gather"] > usual["communication_bytes"]["all_gather"]


@pytest.mark.parametrize("method", ["qlora", "qat"])  # of lora and full below
def test_the_loss_falls(tuned: Measured, method: str):
    losses = steps(
        result := ok(tuned(f"method={method}", "max_steps=50", "lr=3e-3", "template=grammar")),
        "loss",
    )
    assert len(losses) == 50 and losses[-10:].mean() < losses[:10].mean() - 0.5
    assert result["loss"]["mean_of_last_tenth"] == pytest.approx(losses[-5:].mean())


@pytest.mark.parametrize("gpus", [1, 2])
def test_dpo_starts_at_ln_2_and_its_margin_grows(tuned: Measured, gpus: int):
    result = ok(
        tuned(
            "method=dpo",
            f"gpus={gpus}",
            "max_steps=60",
            "lr=1e-3",
            "template=grammar",
            "batch_size=2",
        )
    )
    losses = steps(result, "loss")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)  # not times the world size
    margins = steps(result, "rewards_chosen") - steps(result, "rewards_rejected")
    assert margins[-12:].mean() > margins[:12].mean()
    rewards = result["rewards"]
    assert (
        rewards["margin"] == pytest.approx(margins[-6:].mean(), abs=1e-6)
        and 0 <= rewards["accuracy"] <= 1
    )


@pytest.mark.parametrize("words", [[], [QWEN], [QWEN, "method=full"]], ids=" ".join)
def test_two_ranks_and_two_accumulated_batches_learn_as_one_joined_batch(
    tuned: Measured, words: list[str]
):
    words = ["max_steps=20", "lr=3e-3", FIXED, *words]
    one = ok(tuned("batch_size=2", *words))
    others = [["batch_size=1", "gpus=2"], ["batch_size=1", "gradient_accumulation_steps=2"]]
    for apart in others[: 1 if QWEN in words else 2]:
        two = ok(tuned(*apart, *words))
        assert np.abs(steps(one, "loss") - steps(two, "loss")).max() < 1e-4
        assert steps(one, "loss")[-1] < steps(one, "loss")[0]
        assert one["tokens"]["loss_bearing"] == two["tokens"]["loss_bearing"]


@pytest.mark.parametrize(
    "words",
    [
        ["precision=bf16", "method=qlora", "gpus=2"],
        ["precision=bf16", "method=dpo"],
        ["max_seq_len=128", "method=dpo", "activation_checkpointing=true"],
        ["optimizer_in_bwd=true", "method=qat", "activation_checkpointing=true"],
        ["model.tied=true", "gpus=2"],
        ["epochs=2", "batch_size=3"],
        ["recipe=distributed"],
        ["method.lora_attn_modules=[q_proj,k_proj]", "method.apply_lora_to_mlp=false"],
        [QWEN, "method=dpo", "precision=bf16"],
        [QWEN, "method=qlora", ALL_ADAPTED, "gpus=2"],
    ],
    ids=" ".join,
)
def test_other_options_tune_too(tuned: Measured, words: list[str]):
    result = ok(tuned("dataset.rows=40", *words))
    assert math.isfinite(result["loss"]["last"])
    validate_yaml(result)
    assert len(result["epochs"]) == result["axes"]["epochs"]


# ---- tokens, counted by hand on ten rows


class ByHand:
    """Rows of a run, and token counts of a chat in Llama 3's form by tiktoken's own encoder."""

    def __init__(self, folder: Path) -> None:
        import base64

        import tiktoken

        from multicard.llm.data.tokenizer import PATTERN

        self.rows = [
            json.loads(line) for line in (folder / "inputs" / "rows.jsonl").read_text().splitlines()
        ]
        lines = (folder / "inputs" / "tokenizer.tiktoken").read_text().splitlines()
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
        self.encoder = tiktoken.Encoding(
            "test", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
        )

    def text(self, *parts: str) -> int:
        return sum(len(self.encoder.encode(part.strip())) for part in parts)

    def header(self, role: str) -> int:
        return 2 + len(self.encoder.encode(role)) + len(self.encoder.encode("\n\n"))

    def row(self, prompt: tuple[str, ...], answer: str) -> tuple[int, int]:
        """All tokens of a row and those that bear loss: the
        answer with its header and its end of turn.
        """
        bearing = self.header("assistant") + self.text(answer) + 1
        return 1 + self.header("user") + self.text(*prompt) + 1 + bearing + 1, bearing


def order(rows: int) -> list[int]:
    """How torch's DistributedSampler shuffles in epoch 0, at torchtune's fixed seed of 0."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize(
    "words",
    [["gpus=1", "batch_size=2"], ["gpus=2", "batch_size=1"], ["method=dpo", "batch_size=2"]],
    ids=" ".join,
)
def test_tokens_by_hand(tuned: Measured, words: list[str]):
    """All tokens and those that bear loss of each row's answers,
    which are padded to the batch's longest.
    """
    result = ok(tuned("template=grammar", "dataset.rows=10", "max_steps=null", *words))
    hand, batch_size = ByHand(Path(result["folder"])), int(words[-1][-1])
    before, after = "Correct this to standard English: ", "\n---\nCorrected: "

    def answers(row: dict[str, Any]) -> list[tuple[str, str]]:
        """The prompt and the answer of a row, or of each of a pair's two."""
        pair = [row[name] for name in ("chosen", "rejected") if name in row]
        return [(ask["content"], say["content"]) for ask, say in pair] or [
            (row["input"], row["output"])
        ]

    counted = [
        [hand.row((before, prompt, after), answer) for prompt, answer in answers(row)]
        for row in hand.rows
    ]
    assert steps(result, "samples").tolist() == [batch_size] * 5
    assert result["tokens"]["non_padding"] == sum(length for row in counted for length, _ in row)
    assert result["tokens"]["loss_bearing"] == sum(bearing for row in counted for _, bearing in row)
    longest = [max(length for length, _ in counted[index]) for index in order(10)]
    batches = [longest[first : first + batch_size] for first in range(0, 10, batch_size)]
    assert result["tokens"]["all"] == sum(
        len(counted[0]) * len(batch) * max(batch) for batch in batches
    )


def test_rates_are_tokens_over_the_time_of_the_same_steps(
    tuned: Measured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Record, "training_joules", 5e3)  # as if GPUs had been there
    result = ok(tuned("gpus=2", "dataset.rows=28", "max_steps=null"))
    assert result["joules_per_token"] == 5e3 / sum(
        steps(result, "non_padding", rank).sum() for rank in (0, 1)
    )
    # one logs it for all
    assert np.isfinite(steps(result, "loss")).all() and np.isnan(steps(result, "loss", 1)).all()
    times = [steps(result, "step_s", rank)[1:] for rank in (0, 1)]
    ends_s = np.maximum(*(steps(result, "step_s", rank).cumsum() for rank in (0, 1)))
    assert result["iteration_s"]["mean"] == pytest.approx(np.diff(ends_s).mean())
    # which goes on until the recipe ends
    assert ends_s[-1] <= result["epochs"][0]["train_s"] + 1e-6
    for name, column in (
        ("all", "tokens"),
        ("non_padding", "non_padding"),
        ("loss_bearing", "loss_bearing"),
    ):
        counted = sum(steps(result, column, rank)[1:].sum() for rank in (0, 1))
        assert result["tokens_per_s"][name] == pytest.approx(
            counted / max(time.sum() for time in times)
        )


def test_a_seed_repeats_and_another_differs(tuned: Measured):
    first, again, other = (ok(tuned("dataset.rows=40", f"seed={seed}")) for seed in (0, 0, 1))
    assert steps(first, "loss").tolist() == steps(again, "loss").tolist()
    assert steps(first, "loss").tolist() != steps(other, "loss").tolist()
    folder = Path(first["folder"])
    files = "config.yaml environment.json result.json steps.parquet torchtune.yaml inputs logs"
    assert {path.name for path in folder.iterdir()} == {*files.split()}  # nothing that was passing
    environment = json.loads((folder / "environment.json").read_text())
    assert (
        environment["packages"]["torchtune"] == "0.6.1"
        and environment["flags"]["matmul_allow_tf32"] is False
    )


def test_what_a_rank_holds_is_its_resident_set():
    from multicard.measure import memory

    before = memory.held_memory_bytes("cpu")
    # A mapping of its own: an array may get memory that an earlier test freed.
    block = mmap.mmap(-1, 240_000_000)
    np.frombuffer(block, np.uint8)[:] = 1
    assert memory.held_memory_bytes("cpu") - before == pytest.approx(len(block), rel=0.1)
