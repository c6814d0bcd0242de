"""TRL's trainers beside torchtune's recipes: the same rows, batches, weights and adapters give the same losses."""

import json
import math
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from multicard.config.placement import place
from multicard.llm import preflight, torchtune_config
from multicard.llm.data.row_sources import CHOICES
from multicard.ranks.process import Rank
from multicard.records import rank_files, run_folder
from multicard.records.progress import Board
from multicard.records.rank_files import LlmReport
from tests.conftest import Called, Tuning, awaited, typed_llm

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")

SHORT = ("device=cpu", "max_steps=3", "dataset.rows=40", "template=grammar")
ROUNDING = {"fp32": 2e-5, "bf16": 3e-3}  # of a loss of about 7; in bf16 a step of its last bit is 3e-2
# bitsandbytes' NF4 quantises scales otherwise than torchao's; next to a boundary of int4 a weight may take either side
QUANTISED = {"qlora": 5e-3, "qat": 1e-2}
Steps = dict[str, np.ndarray]
Both = Callable[..., tuple[Any, Any]]


def tuned_here(folder: Path, *words: str) -> tuple[LlmReport, Steps]:
    """A run of one CPU rank in this process: its report and its steps."""
    from multicard.llm import tune

    config = typed_llm(*SHORT, *words)
    preflight.refuse(config)
    (folder / "ranks").mkdir(parents=True)
    (folder / "steps").mkdir()
    Board(folder, 1, create=True)
    cfg = torchtune_config.write(config, place(config, 0), folder)
    tune.tune(Rank(0, 0, 1, torch.device("cpu"), "gloo", torch.get_num_threads()), config, folder, cfg)
    table = run_folder.read_steps(folder)
    return rank_files.read(folder)[0], {name: table[name].to_numpy() for name in table.column_names}


def forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("the trainer's own callbacks began a run in W&B")


@pytest.fixture
def both(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    """Report and steps of both engines with the same words."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("wandb.init", forbidden)  # a run is one in W&B, the controller's

    def run(*words: str) -> tuple[Any, Any]:
        return tuple(tuned_here(tmp_path / name, f"engine={name}", *words) for name in ("torchtune", "trl"))

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
        ["method=dpo", "lr=3e-3", "activation_checkpointing=true"],
        ["packed=true", "max_seq_len=256"],
        ["method=qlora", "lr=3e-3"],
        ["method=qat", "lr=3e-4", "gradient_accumulation_steps=2"],
        ["method=qat", "precision=bf16", "model=qwen2_5_tiny", "max_seq_len=64"],
        ["model=qwen2_5_tiny", "max_seq_len=64", "method.lora_attn_modules=[q_proj,k_proj]"],
        ["model.tied=true", "method=full", "precision=bf16"],
    ],
    ids=" ".join,
)
def test_one_rank_takes_the_same_steps_in_both_engines(both: Both, words: list[str]):
    (theirs, expected), (ours, steps) = both(*words)
    method, dtype = words[0].removeprefix("method="), "bf16" if "precision=bf16" in words else "fp32"
    assert np.abs(steps["loss"] - expected["loss"]).max() < QUANTISED.get(method, ROUNDING[dtype])
    if method == "qat":  # before the first step all weights are alike
        assert abs(steps["loss"][0] - expected["loss"][0]) < ROUNDING[dtype]
    assert expected["loss"][0] != expected["loss"][-1]
    for name in SAME_COLUMNS:
        np.testing.assert_allclose(steps[name], expected[name], rtol=1e-6, err_msg=name)
    for name in SAME_FACTS:
        assert getattr(ours, name) == getattr(theirs, name), name
    nf4_saves = 0 if ours.nf4_tensors == 0 else LINEARS * 3.5  # bytes: half of one a weight, for 4
    assert ours.parameter_bytes == theirs.parameter_bytes - nf4_saves
    rewards = ("rewards_chosen", "rewards_rejected", "rewards_accuracies")
    assert all(np.allclose(steps[name], expected[name], atol=1e-4, equal_nan=True) for name in rewards)
    assert (steps["data_s"] > 0).all() and (steps["step_s"] > steps["data_s"]).all()


def test_a_run_that_diverges_stops_at_the_end_of_the_epoch(both: Both):
    for report, steps in both("method=full", "lr=1e30", "epochs=3", "warmup_steps=0"):
        assert len(report.epochs) == 1 and not np.isfinite(steps["loss"][-1])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["method=full", "optimizer_in_bwd=true"], "optimizer_in_bwd=true: TRL has no such option"),
        (["compile=true"], "compile=true: transformers' layers compile again within measured steps"),
        (["recipe=distributed"], "recipe=distributed: is torchtune's"),
        (["gpus=2", "custom_sharded_layers=[output]"], r"custom_sharded_layers=\['output'\]: accelerate shards"),
        (["method.apply_lora_to_output=true"], "method.apply_lora_to_output=true: TRL's loss"),
        (["sharding=ddp"], "sharding=ddp: one GPU shares nothing"),
        (["engine=torchtune", "sharding=ddp", "gpus=2"], "sharding=ddp: torchtune's recipes know FSDP2 alone"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(words: list[str], problem: str):
    with pytest.raises(ValueError, match=problem):
        preflight.refuse(typed_llm("engine=trl", *words))


def test_the_extra_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("multicard.llm.engines.find_spec", lambda name: None if name == "peft" else object())
    with pytest.raises(ValueError, match=r"engine=trl: needs peft; run: pip install -e '\.\[trl\]'"):
        preflight.refuse(typed_llm("engine=trl"))


def test_a_key_that_came_later_changes_no_identity():
    assert typed_llm("engine=torchtune", "sharding=fsdp").identity() == typed_llm().identity()
    assert len({typed_llm("gpus=2", *words).identity() for words in ([], ["engine=trl"], ["sharding=ddp"])}) == 3


@pytest.mark.parametrize("method", ["lora", "dpo", "qlora", "qat"])
def test_two_ranks_take_the_same_steps_sharded_or_copied(tuned: Tuning, method: str):
    """FSDP gathers layers for each pass, and the output once a step; DDP reduces all gradients of a step."""
    words = (f"method={method}", "gpus=2", "dataset.rows=40", "max_steps=3", "model.vocab_size=1600", "lr=3e-3")
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
    looked_up = passes if method == "qat" else passes - 1  # backward passes gather the embedding where it is trained
    gathered_once = embedding + 256  # the output and the last norm
    layers = runs[0]["parameters"] - embedding - gathered_once - (LINEARS * 7 / 8 if method == "qlora" else 0)
    assert sharded["all_gather"] == 3 * (passes * layers + looked_up * embedding + gathered_once) * 4 / 2


@pytest.mark.slow
def test_a_probe_ends_once_its_seconds_are_over(tuned: Tuning):
    run = tuned(
        "engine=trl",
        "gpus=2",
        "dataset.rows=40",
        "epochs=1000",
        "probe.enabled=true",
        "probe.seconds=2",
        "skip_steps=0",
    )
    assert run["status"] == "ok" and 0 < run["probe"]["steps"] < 4000 and len(run["epochs"]) < 1000, run["cause"]


@pytest.mark.slow
def test_a_run_that_was_stopped_starts_again_to_the_same_losses(called: Called, tuned: Tuning, tmp_path: Path):
    words = ("engine=trl", "gpus=2", "dataset.rows=40", "max_steps=3", "epochs=8", "template=grammar", "lr=3e-3")
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
    again, whole = run_folder.read_steps(folder)["loss"], run_folder.read_steps(Path(tuned(*words)["folder"]))["loss"]
    np.testing.assert_array_equal(again.to_numpy(), whole.to_numpy())


@pytest.mark.slow  # it imports TRL
def test_another_wrapper_than_asked_for_is_an_error():
    from multicard.llm.trl import engine

    recipe: Any = SimpleNamespace(_model=torch.nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match=r"sharding=fsdp: accelerate wrapped the model as None \(Linear\)"):
        engine.check_built(recipe, typed_llm("engine=trl", "gpus=2"))
    with pytest.raises(RuntimeError, match="precision=bf16: weights are trained in"):
        engine.check_built(recipe, typed_llm("engine=trl", "precision=bf16"))


# ---- models of a folder

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}"
TEMPLATE = TURNS + "{% if add_generation_prompt %}<assistant>{% endif %}"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with a tiny Mistral's configuration, and a tokenizer of bytes."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral", **SIZES}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def words_of(folder: Path, *words: str) -> list[str]:
    return ["engine=trl", "model=hf", f"model.path={folder}", "model.weights=random", *words]


@pytest.mark.usefixtures("processes")  # imports TRL, which takes seconds
@pytest.mark.parametrize("words", [[], ["method=full", "packed=true", "max_seq_len=256"]], ids=" ".join)
def test_a_folder_tunes_by_its_own_tokenizer_and_chat_template(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    report, steps = tuned_here(tmp_path / "run", *words_of(checkpoint, *words))
    lines = (tmp_path / "run" / "inputs" / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line)["pieces"] for line in lines]
    assert abs(steps["loss"][0] - math.log(300)) < 0.2
    layer = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 128
    assert report.linear_weights == 2 * layer + 300 * 64 and report.attention_width == 2 * 64
    assert report.parameters - 2 * layer - 2 * 300 * 64 - 5 * 64 == (0 if words else report.trainable_parameters)
    if not words:
        order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()[:6]
        length = [sum(len(piece["content"].replace("</s>", "x").encode()) for piece in rows[row]) for row in order]
        learnt = [len(rows[row][1]["content"].encode()) - 3 for row in order]  # the answer, and the token that ends it
        assert steps["non_padding"].sum() == sum(length) and steps["loss_bearing"].sum() == sum(learnt)
        assert steps["tokens"].tolist() == [2 * max(length[first : first + 2]) for first in (0, 2, 4)]


def test_a_pair_of_a_folder_is_two_conversations(checkpoint: Path):
    inputs = preflight.prepare(typed_llm(*words_of(checkpoint, "method=dpo", "dataset.rows=4")))
    chosen, rejected = ("".join(piece["content"] for piece in (inputs.rows or [])[0][name]) for name in CHOICES)
    assert chosen != rejected and chosen.partition("<assistant>")[0] == rejected.partition("<assistant>")[0]


@pytest.mark.usefixtures("processes")  # imports TRL, which takes seconds
@pytest.mark.parametrize(
    ("has", "remedy"),
    [
        ("o_proj", r"method=full, or method.lora_attn_modules=\[output_proj\] method.apply_lora_to_mlp=false$"),
        ("dense", "has dense; use method=full$"),
    ],
)
def test_linears_that_can_be_named_are_the_remedy_of_those_that_are_not_there(has: str, remedy: str):
    from multicard.llm.trl import models

    with pytest.raises(ValueError, match=remedy):
        models.adapters(torch.nn.ModuleDict({has: torch.nn.Linear(2, 2)}), typed_llm("engine=trl"))


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "has no whole config.json"),
    "no folder": (lambda folder: folder.rename(folder.with_name("elsewhere")), "checkpoint: no such folder; give"),
    "no sizes": (lambda folder: (folder / "config.json").write_text('{"vocab_size": 300}'), "num_hidden_layers=None"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), r"has no tokenizer \(tokenizer.json\)"),
    "a broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json cannot be"),
    "no template": (lambda folder: (folder / "chat_template.jinja").unlink(), "its tokenizer has no chat template"),
    "few embeddings": (
        lambda folder: (folder / "config.json").write_text(json.dumps({**SIZES, "vocab_size": 200})),
        "has 257 tokens, more than config.json's vocab_size=200",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused(checkpoint: Path, name: str):
    breaks, problem = BROKEN[name]
    breaks(checkpoint)
    with pytest.raises(ValueError, match=problem):
        preflight.check(typed_llm(*words_of(checkpoint)))


def test_pickled_weights_are_refused(checkpoint: Path):
    own = words_of(checkpoint, "model.weights=own")
    with pytest.raises(ValueError, match="holds no weights"):
        preflight.check(typed_llm(*own))
    (checkpoint / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"weights are pickled.*save them as safetensors"):
        preflight.check(typed_llm(*own))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["engine=torchtune"], "model=hf: torchtune has its own models alone; use engine=trl"),
        (["tokenizer=embedded"], "tokenizer=embedded: does not go with model=hf"),
        (["model=llama3_tiny", "tokenizer=own"], "tokenizer=own: does not go with model=llama3_tiny"),
    ],
)
def test_what_does_not_go_with_a_folder_is_refused(checkpoint: Path, words: list[str], problem: str):
    own = words_of(checkpoint) if "model=llama3_tiny" not in words else ["engine=trl"]
    kept = [word for word in own if word.partition("=")[0] not in {each.partition("=")[0] for each in words}]
    with pytest.raises(ValueError, match=problem):
        preflight.refuse(typed_llm(*kept, *words))
