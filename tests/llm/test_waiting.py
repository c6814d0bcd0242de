"""A tuning step whose products take little of it: what is said, when, and what to try next."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import conclusion
from analysis.answers import Answer, answers
from analysis.answers import sentences as spoken
from analysis.runs import details, load
from multicard.config.llm import LlmConfig
from multicard.config.placement import Placement
from multicard.llm import preflight, step_work, summary, waiting
from multicard.llm import workload as llm
from multicard.machine.gpu_models import GPUS
from multicard.measure import formulas
from multicard.records import bounds
from multicard.records.arithmetic import Arithmetic
from multicard.records.rank_files import LlmReport
from multicard.records.run_folder import RecordedRun
from multicard.run import outcome
from tests.conftest import Measured, ok, typed_llm
from tests.helpers import records
from tests.helpers.messages import find, says

CUDA = Placement("cuda", "nccl", 1, False)
LLAMA = ("method=lora", "model=llama3_8b", "precision=bf16", "dataset.rows=5000")
# A run of LoRA on Llama 3 8B on an H200, of short rows in batches of two
FIGURES: dict[str, Any] = {
    "hardware": "NVIDIA H200",
    "iteration_s": formulas.statistics([0.326] * 30, 5),
    "tokens": {"all": 16_650, "non_padding": 11_640, "loss_bearing": 11_640},
    "tokens_per_s": {"all": 1700.0, "non_padding": 1261.0, "loss_bearing": 1261.0},
    "epochs": [{"epoch": 0, "steps": 30, "train_s": 9.8, "ended_s": 9.8, "samples": 60}],
    "text_rows": {"read": 5000, "cut": 0, "left_out": 0},
    "mfu": 0.055,
    "mfu_non_padding": 0.041,
    "peak_memory_bytes": {
        "max": 24 * 10**9,
        "per_rank": [],
        "kind": "cuda_allocated",
        "setup": 17 * 10**9,
    },
}
SHARES = {"share": 0.056, "moved_share": 0.02, "tokens": 555.0}


def config(*words: str) -> LlmConfig:
    found = typed_llm(*LLAMA, *words)
    assert isinstance(found, LlmConfig)
    return found


def explained(own: LlmConfig, **changes: Any) -> Any:
    """The record of a run like that of FIGURES, once it was explained."""
    figures = FIGURES | {"arithmetic": SHARES} | changes
    record = records.as_record(records.llm() | figures)
    waiting.explain(own, CUDA, record)
    return record


# ---- the shares


def test_the_share_of_a_step_in_closed_form():
    """Operations at the GPU's peak and bytes at its memory's rate, over the median step."""
    own = config("activation_checkpointing=true")
    steps, length, vocabulary = 8, 30, 128_256
    table = {name: np.full(steps, 60) for name in ("tokens", "non_padding", "loss_bearing")}
    table |= {"attended": np.full(steps, 60 * length)}
    record = records.as_record(records.llm())
    record.iteration_s.mean, record.iteration_s.median = 0.2, 0.1
    record.tokens_per_s.all = 300.0
    ranks = [LlmReport(rank=0, device="NVIDIA H200", vocabulary=vocabulary)]
    found = summary._arithmetic(record, own, ranks, table)
    assert found is not None and found.tokens == pytest.approx(60)
    sizes = step_work.sizes_of_decoder(own, vocabulary)
    flops = 60 * step_work.executed_flops(own, sizes, length, is_causal=False)
    assert found.share == pytest.approx(flops / 989e12 / 0.1)
    moved = step_work.read_bytes(own, sizes) + step_work.update_bytes(own, sizes)
    assert found.moved_share == pytest.approx(moved / GPUS["h200"].memory_bytes_per_s / 0.1)
    ranks[0].device = "NVIDIA A100-SXM-64GB"  # of a chip whose peak is known, and no memory
    custom = summary._arithmetic(record, own, ranks, table)
    assert custom is not None and custom.moved_share is None
    ranks[0].device = "cpu"
    assert summary._arithmetic(record, own, ranks, table) is None


# ---- what is said


def test_a_step_of_few_tokens_waits_for_the_host():
    record = explained(config())
    found = record.arithmetic
    assert found.cause == "host" and says(found.finding, "diagnosis.gpu-waits", cause="host")
    told = find(found.sentence, "diagnosis.little-arithmetic", cause="host", tokens=555.0)
    assert (told.facts["mfu"], told.facts["mfu_non_padding"]) == (0.055, 0.041)
    assert (
        told.facts["tries"]
        == found.tries
        == ["packed=true max_seq_len=2048", "batch_size=16", "compile=true"]
    )


@pytest.mark.parametrize(
    ("words", "changes", "cause"),
    [
        ((), {"arithmetic": SHARES | {"share": 0.34}}, None),
        ((), {"arithmetic": SHARES | {"share": 0.32, "moved_share": 0.005}}, "host"),
        ((), {"arithmetic": SHARES | {"share": 0.1, "moved_share": 0.25}}, "memory"),
        ((), {"arithmetic": SHARES | {"moved_share": None}}, "unknown"),
        ((), {"arithmetic": None}, None),
        ((), {"data_s": 0.2}, "input"),
        (("gpus=2",), {}, "unknown"),
        (("method=qlora",), {}, "unknown"),
        (("engine=trl", "attention=eager"), {}, "unknown"),
        (
            (),
            {"load": {"seconds": 9.0, "others_cores": 3.0, "stolen_cores": 0.0}, "cores": 4},
            None,
        ),
        ((), {"status": "oom"}, None),
        (
            (),
            {"diagnosis": {"bound": "compute", "sentence": "x", "finding": "x", "advice": "y"}},
            None,
        ),
        ((), {"diagnosis": {"bound": None, "sentence": "no bound is clear", "finding": "x"}}, None),
        # of stalled steps the median knows nothing
        (
            (),
            {"iteration_s": formulas.statistics([0.326] * 22 + [2.0] * 3, 5) | {"slow_steps": [3]}},
            "host",
        ),
    ],
)
def test_the_cause_is_said_as_far_as_it_is_known(
    words: tuple[str, ...], changes: dict[str, Any], cause: str | None
):
    record = explained(config(*words), **changes)
    found = record.arithmetic
    assert (found.cause if found is not None else None) == cause
    assert (bounds.of(record) is not None) == (cause is not None or record.diagnosis is not None)
    if cause == "unknown":
        assert found.tries[0] == "diagnose=true"


# ---- what to try next


@pytest.mark.parametrize(
    ("words", "changes", "tries"),
    [
        (("max_seq_len=1024",), {}, ["packed=true", "batch_size=16", "compile=true"]),
        (("packed=true", "max_seq_len=2048", "compile=true"), {}, ["batch_size=16"]),
        (("compile=true",), {}, ["packed=true max_seq_len=2048", "batch_size=16"]),
        # few rows fill few sequences, and few batches
        (
            (),
            {"text_rows": {"read": 500, "cut": 0, "left_out": 0}},
            ["packed=true max_seq_len=2048", "batch_size=16"],
        ),
        (
            (),
            {"text_rows": {"read": 100, "cut": 0, "left_out": 0}},
            ["packed=true max_seq_len=512", "batch_size=8"],
        ),
        # memory holds little more
        (
            (),
            {"peak_memory_bytes": {"max": 100 * 10**9, "per_rank": [], "setup": 17 * 10**9}},
            ["packed=true max_seq_len=512 batch_size=1"],
        ),
        # a batch of all ranks is set, and stays
        (("global_batch_size=2",), {}, ["packed=true max_seq_len=2048"]),
    ],
)
def test_what_to_try_next_is_not_in_force_and_fits(
    words: tuple[str, ...], changes: dict[str, Any], tries: list[str]
):
    own = config(*words)
    found = explained(own, **changes).arithmetic
    expected = tries if own.compile or "compile=true" in tries else [*tries, "compile=true"]
    assert found.tries == expected
    for each in found.tries:
        given = {word.partition("=")[0] for word in each.split()}
        kept = [word for word in words if word.partition("=")[0] not in given]
        pasted = config(*kept, *each.split())
        preflight.refuse(pasted)
        assert pasted != own


def test_what_a_method_does_not_take_is_not_offered():
    """Pairs cannot be packed, and the recipe of QAT compiles nothing."""
    pairs = typed_llm("method=dpo", "model=llama3_8b", "dataset=preference", "precision=bf16")
    assert isinstance(pairs, LlmConfig)
    assert not any("packed" in words for words in explained(pairs).arithmetic.tries)
    qat = typed_llm("method=qat", "model=llama3_8b", "precision=bf16", "dataset.rows=5000")
    assert isinstance(qat, LlmConfig)
    assert "compile=true" not in explained(qat).arithmetic.tries


@pytest.mark.parametrize("bound", ["input", "launch"])
def test_a_diagnosis_advises_packing_with_its_length(bound: str):
    """Without one it would be refused."""
    own = config("compile=true")
    words = llm.advise(own, CUDA, bound)
    assert words == "packed=true max_seq_len=512"
    preflight.refuse(config("compile=true", *words.split()))


# ---- where it is said


def run_with(
    folder: Path, diagnosis: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    record = explained(config())
    found = records.llm(total_s=9.0, **changes) | FIGURES
    arithmetic = record.arithmetic
    shown = {name: getattr(arithmetic, name) for name in Arithmetic.__struct_fields__}
    loss = {"loss": {"first": 7.0, "last": 2.0, "mean_of_last_tenth": 2.5}}
    return found | loss | {"folder": str(folder), "arithmetic": shown, "diagnosis": diagnosis}


def answered(folder: Path, *each: dict[str, Any]) -> Answer:
    for place, record in enumerate(each):
        records.put(folder / "s" / str(place), record)
    (only,) = answers(load.read_runs([folder / "s"]).runs)
    return only


def test_the_end_of_a_run_the_page_and_best_say_the_same(tmp_path: Path):
    record = explained(config())
    ended = outcome.line(RecordedRun(tmp_path, record), "").plain
    assert says(ended, "diagnosis.little-arithmetic", cause="host")
    of_a_cell = outcome.line(RecordedRun(tmp_path, record), "[1/9] ").plain
    assert not says(of_a_cell, "diagnosis.little-arithmetic")  # a sweep says it once, at its end
    only = answered(tmp_path, run_with(tmp_path))
    limit, following = only.limit, only.next
    assert limit.sentence.code == "answer.by-rates" and says(limit.sentence, "diagnosis.gpu-waits")
    assert following.sentence.facts == {"advice": "packed=true max_seq_len=2048"}
    waits = find("\n".join(spoken(only.ranking).sentences), "answer.gpu-waits")
    assert waits.facts["tries"] == "packed=true max_seq_len=2048"
    (detailed,) = details.read_details(only.best.runs)
    assert says(str(detailed.diagnosis), "diagnosis.little-arithmetic")


def test_what_a_sweep_varied_is_not_what_to_try(tmp_path: Path):
    slower = run_with(tmp_path, packed=True, max_seq_len=64) | {
        "tokens_per_s": {"all": 900.0, "non_padding": 700.0}
    }
    only = answered(tmp_path, run_with(tmp_path, max_seq_len=64), slower)
    assert only.waits is not None and "packed" in only.ranking.keys
    assert only.waits.sentence.facts["tries"] == "batch_size=16"


def test_a_sweep_ends_with_it_once(tmp_path: Path):
    for place, lr in enumerate((1e-3, 1e-4)):
        records.put(tmp_path / "s" / str(place), run_with(tmp_path, lr=lr))
    lines = "\n".join(
        map(str, conclusion([tmp_path / "s" / str(place) for place in range(2)]).lines)
    )
    assert lines.count("answer.gpu-waits") == 1


def test_a_measured_diagnosis_of_any_run_of_the_setting_comes_first(tmp_path: Path):
    told = {
        "bound": "compute",
        "sentence": "bound by compute",
        "finding": "computing",
        "advice": "more GPUs",
    }
    only = answered(
        tmp_path, run_with(tmp_path), run_with(tmp_path, told, repetition=2) | {"arithmetic": None}
    )
    assert only.limit.sentence.code == "answer.diagnosed" and only.waits is None
    assert only.next.sentence.facts == {"advice": "more GPUs"}
    assert "answer.gpu-waits" not in "\n".join(spoken(only.ranking).sentences)


def test_the_record_is_read_as_it_was_written(tmp_path: Path):
    records.put(tmp_path / "a", run_with(tmp_path))
    (found,) = load.read_runs([tmp_path / "a"]).runs
    assert bounds.of(found.record()) == bounds.of(explained(config()))


def test_what_a_run_offers_can_be_typed_behind_its_command(
    tuned: Measured, monkeypatch: pytest.MonkeyPatch
):
    """A run to its end, on a processor whose peak is far above what the tiny model needs;
    then each offer.
    """
    monkeypatch.setattr(summary, "peak_flops_per_s", lambda *_: 1e15)
    monkeypatch.setattr(summary.gpu_models, "known", lambda _: GPUS["h200"])
    monkeypatch.setattr(waiting, "_is_reliable", lambda _: True)  # whatever else this machine does
    words = ("dataset.rows=120",)
    result = ok(tuned(*words))
    found = result["arithmetic"]
    assert found["cause"] == "host" and found["share"] < waiting.THIRD
    assert [each.partition("=")[0] for each in found["tries"]] == [
        "packed",
        "batch_size",
        "compile",
    ]
    for each in found["tries"][:2]:
        tried = ok(tuned(*words, *each.split()))
        assert tried["arithmetic"]["tokens"] > found["tokens"]
