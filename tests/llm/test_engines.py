"""TRL's trainers beside torchtune's recipes: the same rows, batches,
weights and adapters give the same losses.
"""

import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from multicard.config.placement import place
from multicard.llm import preflight, torchtune_config
from multicard.llm.trl_kind import TrlKind
from multicard.ranks.process import Rank
from multicard.records import rank_files, run_folder
from multicard.records.progress import Board
from multicard.records.rank_files import LlmReport
from tests.conftest import Called, Tuning, awaited, typed_llm
from tests.helpers.messages import find, refused, remedies

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")

SHORT = ("device=cpu", "max_steps=3", "dataset.rows=40", "template=grammar")
# of a loss of about 7; in bf16 a step of its last bit is 3e-2
ROUNDING = {"fp32": 2e-5, "bf16": 3e-3}
# Of DPO's rewards: log-probabilities times beta=0.1, summed over an answer's tokens (15 or so),
# each of a logit that in bf16 is off by up to 8e-3; four seeds were apart by up to 3e-3,
# of rewards of 0.05
REWARDS = {"fp32": 1e-4, "bf16": 1e-2}
# bitsandbytes' NF4 quantises scales otherwise than torchao's;
# next to a boundary of int4 a weight may take either side
QUANTISED = {"qlora": 5e-3, "qat": 1e-2}
Steps = dict[str, np.ndarray]
Both = Callable[..., tuple[Any, Any]]


def tuned_here(
    folder: Path, *words: str, short: tuple[str, ...] = SHORT
) -> tuple[LlmReport, Steps]:
    """A run of one CPU rank in this process: its report and its steps."""
    from multicard.llm import tune

    config = typed_llm(*short, *words)
    preflight.refuse(config)
    (folder / "ranks").mkdir(parents=True)
    (folder / "steps").mkdir()
    Board(folder, 1, create=True)
    cfg = torchtune_config.write(config, place(config, 0), folder)
    tune.tune(
        Rank(0, 0, 1, torch.device("cpu"), "gloo", torch.get_num_threads()), config, folder, cfg
    )
    table = run_folder.read_steps(folder)
    return rank_files.read_reports(folder)[0], {
        name: table[name].to_numpy() for name in table.column_names
    }


@pytest.fixture
def both(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    """Report and steps of both engines with the same words."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # a run is one in W&B, the controller's
    monkeypatch.setattr(
        "wandb.init", lambda *_, **__: pytest.fail("the trainer's own callbacks began a run in W&B")
    )

    def run(*words: str) -> tuple[Any, Any]:
        return tuple(
            tuned_here(tmp_path / name, f"engine={name}", *words) for name in ("torchtune", "trl")
        )

    return run


LINEARS = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 768 * 256)  # weights of the tiny model's layers
SAME_FACTS = ("parameters", "trainable_parameters", "warmup_steps", "text_rows", "vocabulary")
SAME_FACTS += ("nf4_tensors", "fake_quantised_linears")
SAME_COLUMNS = ("samples", "tokens", "non_padding", "loss_bearing", "attended", "lr")


@pytest.mark.parametrize(
    "words",
    [
        ["method=lora", "lr=3e-3"],
        ["method=full", "gradient_accumulation_steps=2", "epochs=2"],
        ["method=full", "weight_decay=30", "lr=3e-3", "warmup_steps=0"],  # of norms, too
        ["method=dpo", "lr=3e-3", "activation_checkpointing=true"],
        ["method=dpo", "lr=3e-3", "precision=bf16", "max_steps=4"],
        ["packed=true", "max_seq_len=256"],
        ["method=qlora", "lr=3e-3"],
        ["method=qat", "lr=3e-4", "gradient_accumulation_steps=2"],
        ["method=qat", "precision=bf16", "model=qwen2_5_tiny", "max_seq_len=64"],
        ["model=qwen2_5_tiny", "max_seq_len=64", "method.lora_attn_modules=[q_proj,k_proj]"],
        ["model.tied=true", "method=full", "precision=bf16"],
        ["method=qlora", "precision=bf16"],
        [
            "method=lora",
            "precision=bf16",
            "packed=true",
            "max_seq_len=256",
            "activation_checkpointing=true",
        ],
    ],
    ids=" ".join,
)
def test_one_rank_takes_the_same_steps_in_both_engines(both: Both, words: list[str]):
    (theirs, expected), (ours, steps) = both(*words)
    method, dtype = (
        words[0].removeprefix("method="),
        ("bf16" if "precision=bf16" in words else "fp32"),
    )
    assert np.abs(steps["loss"] - expected["loss"]).max() < QUANTISED.get(method, ROUNDING[dtype])
    if method == "qat":  # before the first step all weights are alike
        assert abs(steps["loss"][0] - expected["loss"][0]) < ROUNDING[dtype]
    assert expected["loss"][0] != expected["loss"][-1]
    for name in SAME_COLUMNS:
        np.testing.assert_allclose(steps[name], expected[name], rtol=1e-6, err_msg=name)
    for name in SAME_FACTS:
        assert getattr(ours, name) == getattr(theirs, name), name
    wide = 2 if dtype == "bf16" else 4
    # bytes: half of one a weight
    nf4_saves = 0 if ours.nf4_tensors == 0 else LINEARS * (wide - 0.5)
    assert ours.parameter_bytes == theirs.parameter_bytes - nf4_saves
    rewards = ("rewards_chosen", "rewards_rejected", "rewards_accuracies")
    for name in rewards:
        np.testing.assert_allclose(
            steps[name], expected[name], rtol=0, atol=REWARDS[dtype], err_msg=name
        )
    assert (steps["data_s"] > 0).all() and (steps["step_s"] > steps["data_s"]).all()


def test_a_third_engine_is_a_class_and_a_function(both: Both, monkeypatch: pytest.MonkeyPatch):
    """That of tests/helpers, in the place of TRL's."""
    monkeypatch.setattr(TrlKind, "module", "tests.helpers.plain_engine")
    (theirs, expected), (ours, steps) = both("method=full", "epochs=2", "lr=3e-3")
    for name in ("loss", *SAME_COLUMNS):
        np.testing.assert_allclose(steps[name], expected[name], rtol=1e-5, err_msg=name)
    assert expected["loss"][0] != expected["loss"][-1] and len(steps["loss"]) == 6
    for name in (*SAME_FACTS, "parameter_bytes"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_a_run_that_diverges_stops_at_the_end_of_the_epoch(both: Both):
    for report, steps in both("method=full", "lr=1e30", "epochs=3", "warmup_steps=0"):
        assert len(report.epochs) == 1 and not np.isfinite(steps["loss"][-1])


@pytest.mark.parametrize(
    ("words", "code", "key"),
    [
        (["method=full", "optimizer_in_bwd=true"], "llm.trl-optimizer-in-bwd", "optimizer_in_bwd"),
        (["method=qat", "compile=true"], "llm.recipe-compile", "compile"),
        (["recipe=distributed"], "llm.trl-recipe", "recipe"),
        (
            ["gpus=2", "custom_sharded_layers=[output]"],
            "llm.trl-sharded-layers",
            "custom_sharded_layers",
        ),
        (
            ["method.apply_lora_to_output=true"],
            "llm.trl-output-adapter",
            "method.apply_lora_to_output",
        ),
        (["sharding=ddp"], "llm.sharding-alone", "sharding"),
        (["engine=torchtune", "sharding=ddp", "gpus=2"], "llm.torchtune-sharding", "sharding"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(words: list[str], code: str, key: str):
    with refused(code, key=key):
        preflight.refuse(typed_llm("engine=trl", *words))


def test_the_extra_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "multicard.llm.trl_kind.find_spec", lambda name: None if name == "peft" else object()
    )
    with refused("llm.no-trl", key="engine", missing=["peft"]) as caught:
        preflight.refuse(typed_llm("engine=trl"))
    assert remedies(caught.value) == ["pip install -e '.[trl]'"]


def test_a_key_that_came_later_changes_no_identity():
    assert typed_llm("engine=torchtune", "sharding=fsdp").identity() == typed_llm().identity()
    assert (
        len(
            {
                typed_llm("gpus=2", *words).identity()
                for words in ([], ["engine=trl"], ["sharding=ddp"])
            }
        )
        == 3
    )


@pytest.mark.parametrize("method", ["lora", "dpo", "qlora", "qat"])
def test_two_ranks_take_the_same_steps_sharded_or_copied(tuned: Tuning, method: str):
    """FSDP gathers layers for each pass, and the output once a step;
    DDP reduces all gradients of a step.
    """
    words = (
        f"method={method}",
        "gpus=2",
        "dataset.rows=40",
        "max_steps=3",
        "model.vocab_size=1600",
        "lr=3e-3",
    )
    runs = [tuned(*words), tuned(*words, "engine=trl"), tuned(*words, "engine=trl", "sharding=ddp")]
    assert [run["status"] for run in runs] == ["ok"] * 3
    losses = [run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy() for run in runs]
    for own in losses[1:]:
        assert np.nanmax(np.abs(own - losses[0])) < QUANTISED.get(method, ROUNDING["fp32"])
    sharded, copied = (run["communication_bytes"] for run in runs[1:])
    trained = runs[0]["trainable_parameters"]
    assert sharded["reduce_scatter"] == 3 * trained * 4 / 2 and sharded["all_reduce"] == 0
    assert copied == sharded | {"all_gather": 0, "reduce_scatter": 0, "all_reduce": 3 * trained * 4}
    passes, embedding = (3 if method == "dpo" else 2), 1600 * 256
    # backward passes gather the embedding where it is trained
    looked_up = passes if method == "qat" else passes - 1
    gathered_once = embedding + 256  # the output and the last norm
    layers = (
        runs[0]["parameters"]
        - embedding
        - gathered_once
        - (LINEARS * 7 / 8 if method == "qlora" else 0)
    )
    assert (
        sharded["all_gather"]
        == 3 * (passes * layers + looked_up * embedding + gathered_once) * 4 / 2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["method=full", "precision=bf16"],
        ["method=full", "gradient_accumulation_steps=2"],
        ["packed=true", "max_seq_len=256", "activation_checkpointing=true", "precision=bf16"],
    ],
    ids=" ".join,
)
def test_two_ranks_take_the_same_steps_in_bf16_and_of_several_batches_or_packs(
    tuned: Tuning, words: list[str]
):
    words = ["gpus=2", "dataset.rows=40", "max_steps=3", "model.vocab_size=1600", "lr=3e-3", *words]
    runs = [tuned(*words), tuned(*words, "engine=trl"), tuned(*words, "engine=trl", "sharding=ddp")]
    assert [run["status"] for run in runs] == ["ok"] * 3, [run["cause"] for run in runs]
    expected, *others = (
        run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy() for run in runs
    )
    assert expected[0] != expected[-1]
    for own in others:
        assert (
            np.nanmax(np.abs(own - expected))
            < ROUNDING["bf16" if "precision=bf16" in words else "fp32"]
        )


@pytest.mark.slow
def test_a_probe_ends_once_its_seconds_are_over(tuned: Tuning):
    words = (
        "gpus=2",
        "dataset.rows=40",
        "epochs=1000",
        "probe.enabled=true",
        "probe.seconds=2",
        "skip_steps=0",
    )
    run = tuned("engine=trl", *words)
    assert (
        run["status"] == "ok" and 0 < run["probe"]["steps"] < 4000 and len(run["epochs"]) < 1000
    ), run["cause"]


@pytest.mark.slow
def test_a_run_that_was_stopped_starts_again_to_the_same_losses(
    called: Called, tuned: Tuning, tmp_path: Path
):
    words = (
        "engine=trl",
        "gpus=2",
        "dataset.rows=40",
        "max_steps=3",
        "epochs=8",
        "template=grammar",
        "lr=3e-3",
    )
    line = (*Tuning.small, *words, f"hydra.sweep.dir={tmp_path / 'stopped'}", "-m")

    def stop() -> None:
        awaited(lambda: [*tmp_path.glob("stopped/*/steps/*")])
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = Thread(target=stop)
    stopping.start()
    code, printed = called(*line, entry="tune_llm.py")
    stopping.join()
    (folder,) = (tmp_path / "stopped").glob("*/")
    stopped = run_folder.read_json(folder / run_folder.RESULT) or {}
    assert code == 1 and stopped["status"] == "interrupted", printed
    code, printed = called(*line, entry="tune_llm.py")
    assert code == 0, printed
    again, whole = (
        run_folder.read_steps(folder)["loss"],
        run_folder.read_steps(Path(tuned(*words)["folder"]))["loss"],
    )
    np.testing.assert_array_equal(again.to_numpy(), whole.to_numpy())


@pytest.mark.slow  # it imports TRL
def test_another_wrapper_than_asked_for_is_an_error():
    from multicard.llm.trl import engine

    model = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError) as caught:
        engine.built_figures(model, typed_llm("engine=trl", "gpus=2"))
    assert find(str(caught.value), "llm.wrapper", asked="fsdp", wrapper=None, type="Linear")
    with pytest.raises(RuntimeError) as caught:
        engine.built_figures(model, typed_llm("engine=trl", "precision=bf16"))
    assert find(str(caught.value), "llm.trained-type", asked="bf16", types=["torch.float32"])
