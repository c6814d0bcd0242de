"""The same run by torchtune's own command, real rows and tokenizer, checkpoints,
memory running out, compilation.
"""

import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from multicard.llm import models
from multicard.llm import workload as llm
from multicard.records import run_folder
from tests.conftest import ROOT, Measured, command, ok, shared, typed_llm
from tests.helpers.messages import find, refused
from tests.helpers.recorded import steps
from tests.helpers.tuning import NEEDS_TRL
from tests.llm.test_llm_data import read

VOCABULARY = 1600


def tune(*words: str) -> subprocess.CompletedProcess[str]:
    """torchtune's `tune`, as a user types it in the project's root."""
    line = [str(Path(sys.executable).with_name("tune")), *words]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "."}
    return subprocess.run(
        line, capture_output=True, text=True, cwd=ROOT, check=False, timeout=300, env=offline
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["template=grammar"], ["method=dpo", "template=instruct"]], ids=" ".join
)
def test_tune_run_gives_the_same_losses(tuned: Measured, words: list[str]):
    result = ok(tuned(*words, "dataset.rows=20", "max_steps=5", "lr=3e-3"))
    folder = Path(result["folder"])
    yaml = folder / "torchtune.yaml"
    if "dpo" not in words[0]:  # it takes as long as a run
        checked = tune("validate", str(yaml))
        assert checked.returncode == 0 and "well-formed" in checked.stdout, (
            checked.stdout + checked.stderr
        )
    done = tune("run", result["axes"]["recipe"], "--config", str(yaml))
    assert done.returncode == 0, done.stderr[-2000:]
    (log,) = (folder / "tune_run" / "logs").glob("*.txt")
    losses = [float(loss) for loss in re.findall(r"loss:([\d.]+)", log.read_text())]
    assert losses == pytest.approx(steps(result, "loss").tolist(), abs=1e-5)
    assert losses[-1] != losses[0]


@pytest.mark.parametrize(
    ("words", "name", "template", "tokenizer"),
    [
        (["dataset=alpaca_cleaned"], "alpaca_cleaned_500.jsonl", "instruct", "llama3"),
        (["dataset=grammar", "method=qlora"], "jfleg_500.jsonl", "grammar", "embedded"),
        (["dataset=preference", "method=dpo"], "hh_helpful_500.jsonl", None, "embedded"),
    ],
)
def test_real_rows(
    tuned: Measured, words: list[str], name: str, template: str | None, tokenizer: str
):
    chosen = ["tokenizer=embedded", "tokenizer.vocab_size=1024"]
    if tokenizer == "llama3":
        chosen = [
            "tokenizer=llama3",
            f"tokenizer.path={shared('tokenizer') / 'tokenizer.model'}",
            "max_seq_len=256",
        ]
    rows = [f"dataset.data_files={shared('text') / name}", "dataset.rows=60"]
    result = ok(tuned(*words, *rows, *chosen, "max_steps=3"))
    assert result["axes"]["template"] == template and result["axes"]["tokenizer"] == tokenizer
    assert np.isfinite(steps(result, "loss")).all()
    vocabulary = 128_256 if tokenizer == "llama3" else 1034
    embeddings = 2 * 256 * vocabulary
    assert embeddings < result["parameters"] < embeddings + 3e6


def says(**said: str) -> dict[str, Any]:
    """A conversation in SlimOrca's columns."""
    return {"conversations": [{"from": who, "value": text} for who, text in said.items()]}


@pytest.mark.parametrize(
    ("dataset", "row", "template"),
    [
        (
            "samsum",
            {"id": "1", "dialogue": "A: One?\r\nB: Yes, one.", "summary": "A and B speak of one."},
            "summarize",
        ),
        ("slimorca", says(system="Be brief.", human="One?", gpt="Yes"), None),
    ],
)
def test_rows_in_the_columns_of_a_data_set(
    dataset: str, row: dict[str, Any], template: str | None, tmp_path: Path
):
    (tmp_path / "rows.json").write_text(json.dumps([row] * 9))
    words = (
        f"dataset={dataset}",
        f"dataset.data_files={tmp_path / 'rows.json'}",
        "dataset.split=0",
    )
    assert (
        typed_llm(*words).template_name == template and len(read(tmp_path / "run", *words)[1]) == 9
    )


def test_conversations_in_alpacas_text(tmp_path: Path):
    """SlimOrca as 2503.15252 has it: what torchtune makes of Alpaca's columns."""
    rows = {
        "slimorca": [
            says(system="Be brief.", human="Is it?", gpt="Yes"),
            says(human="Is it?", gpt="No"),
        ],
        "alpaca_cleaned": [
            {"instruction": "Be brief.", "input": "Is it?", "output": "Yes"},
            {"instruction": "Is it?", "input": "", "output": "No"},
        ],
    }
    texts = {}
    for name, of_set in rows.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(of_set))
        words = (
            f"dataset={name}",
            "template=instruct",
            f"dataset.data_files={tmp_path}/{name}.json",
        )
        tokenizer, data = read(tmp_path / name, *words)
        texts[name] = sorted(tokenizer.decode(row["tokens"]) for row in data)
    assert texts["slimorca"] == texts["alpaca_cleaned"] and "### Input:\nIs it?" in "".join(
        texts["slimorca"]
    )


CHECKPOINTS: dict[str, list[str]] = {"llama": [], "qwen": ["model=qwen2_5_tiny"]}


def write_checkpoint(folder: Path, family: str) -> None:
    """The weights that a run of seed 0 generates, in Hugging Face's form."""
    from torchtune.models import convert_weights
    from torchtune.models.qwen2 import qwen2_tune_to_hf

    from multicard.llm.methods import model_component
    from multicard.llm.torchtune_components import random_weights

    folder.mkdir()
    component = model_component(typed_llm("method=full", *CHECKPOINTS[family]), VOCABULARY)
    state = {name: weight.to("cpu") for name, weight in random_weights(component, 0).items()}
    to_hugging_face = convert_weights.tune_to_hf if family == "llama" else qwen2_tune_to_hf
    renamed = to_hugging_face(state, num_heads=4, num_kv_heads=2, dim=256)
    save_file(
        {name: tensor.contiguous() for name, tensor in renamed.items()},
        folder / "model.safetensors",
    )
    sizes = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 256,
        "intermediate_size": 768,
    }
    sizes |= {
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": family == "qwen",
    }
    own = {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}
    if family == "qwen":
        own = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 1e6}}
    (folder / "config.json").write_text(json.dumps(sizes | own))


@pytest.mark.parametrize(
    ("family", "words"), [("llama", ["method=full"]), ("qwen", ["method=lora", "gpus=2"])]
)
def test_a_checkpoint_is_what_is_tuned(
    tuned: Measured, family: str, words: list[str], tmp_path: Path
):
    write_checkpoint(tmp_path / "weights", family)
    before = sorted(path.name for path in (tmp_path / "weights").iterdir())
    words = [
        *CHECKPOINTS[family],
        *words,
        f"model.vocab_size={VOCABULARY}",
        "dataset.rows=20",
        "max_steps=2",
    ]
    own = ok(tuned(*words))
    from_file = ok(tuned(*words, f"model.weights={tmp_path / 'weights'}"))
    assert from_file["loss"]["first"] == pytest.approx(own["loss"]["first"], abs=1e-5)
    assert own["axes"]["weights"] == "random" and from_file["axes"]["weights"] == str(
        tmp_path / "weights"
    )
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == before
    assert not (Path(from_file["folder"]) / "tune_run").exists()  # nothing is saved


def test_qwens_own_tokenizer(tuned: Measured, tmp_path: Path):
    """With files in its form and of its size, and two merges."""
    from multicard.llm.data.tokenizer import QWEN25_TOKENS, QWEN25_VOCABULARY, byte_level_alphabet

    tokens = [*byte_level_alphabet(), "th", "the"]
    tokens += [f"unused {i}" for i in range(QWEN25_TOKENS - len(tokens))]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    files = [
        f"tokenizer.path={tmp_path / 'vocab.json'}",
        f"tokenizer.merges_file={tmp_path / 'merges.txt'}",
    ]
    result = ok(
        tuned("model=qwen2_5_tiny", "tokenizer=qwen2_5", *files, "dataset.rows=20", "max_steps=2")
    )
    assert result["axes"]["tokenizer"] == "qwen2_5"
    embeddings = 256 * QWEN25_VOCABULARY  # shared with the output
    assert embeddings < result["parameters"] < embeddings + 3e6
    assert (
        result["tokens"]["all"]
        > result["tokens"]["non_padding"]
        > result["tokens"]["loss_bearing"]
        > 0
    )


STRETCHED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
STRETCHED |= {"original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("changed", "name", "stored", "expected"),
    [
        (["model.intermediate_dim=512"], "intermediate_size", 768, 512),
        (["model.num_layers=3"], "num_hidden_layers", 2, 3),
        (["model.num_heads=8", "model.num_kv_heads=4"], "num_attention_heads", 4, 8),
        (["model.vocab_size=1700"], "vocab_size", 1600, 1700),
        ({"model_type": "mistral"}, "model_type", "mistral", "llama"),
        ({"rope_theta": 10_000.0}, "rope_theta", 10_000, 500_000),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta", 1e6, 500_000),
        ({"rope_scaling": STRETCHED}, "rope_type", "llama3", "default"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type", "linear", "default"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps", 1e-6, 1e-5),
        ({"hidden_act": "gelu"}, "hidden_act", "gelu", "silu"),
    ],
)
def test_a_checkpoint_whose_configuration_is_another_decoders_is_refused(
    changed: Any, name: str, stored: Any, expected: Any, tmp_path: Path
):
    facts = {"name": name, "stored": stored, "expected": expected, "model": "llama3_tiny"}
    assert_refused(tmp_path / "weights", changed, "llm.weights-of-another-model", facts)


@pytest.mark.parametrize(
    ("changed", "code", "facts"),
    [
        (("layers.1.mlp.up_proj.weight", None), "llm.weights-missing-tensor", {}),
        (("norm.weight", 1), "llm.weights-shape", {"shape": [1], "expected": [256]}),
        (
            ("layers.0.self_attn.q_proj.bias", 256),
            "llm.weights-unknown-tensor",
            {"model": "llama3_tiny"},
        ),
    ],
)
def test_a_checkpoint_with_other_tensors_is_refused(
    changed: Any, code: str, facts: dict[str, Any], tmp_path: Path
):
    assert_refused(tmp_path / "weights", changed, code, {"tensor": f"model.{changed[0]}"} | facts)


def assert_refused(folder: Path, changed: Any, code: str, facts: dict[str, Any]) -> None:
    """A checkpoint for other words, or with a config.json or a
    tensor (its name and size) that is changed.
    """
    write_checkpoint(folder, "llama")
    if isinstance(changed, dict):
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | changed))
    elif isinstance(changed, tuple):
        held, (name, size) = load_file(folder / "model.safetensors"), changed
        held[f"model.{name}"] = torch.ones(size or 0)
        save_file(
            {name: tensor for name, tensor in held.items() if tensor.numel()},
            folder / "model.safetensors",
        )
    words = changed if isinstance(changed, list) else []
    config = typed_llm(f"model.vocab_size={VOCABULARY}", f"model.weights={folder}", *words).model
    with refused(code, key="model.weights", value=str(folder), **facts):
        models.check_weights(config, config.vocab_size or 0)


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchtune", pytest.param("trl", marks=NEEDS_TRL)])
def test_running_out_of_memory_is_recorded_and_the_sweep_goes_on(engine: str, tmp_path: Path):
    limit = 12 * 2**30  # of address space: the first cell's feed-forward layers alone take 48 GB
    bounded = lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # noqa: E731
    words = [
        f"hydra.sweep.dir={tmp_path / 's'}",
        "tracker.mode=disabled",
        "max_steps=2",
        "method=full",
        "gpus=2",
    ]
    words.append("order=typed")
    done = command(
        "-m",
        *words,
        f"engine={engine}",
        "model.intermediate_dim=8000000,512",
        entry="tune_llm.py",
        preexec_fn=bounded,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [
        json.loads(path.read_text()) for path in sorted((tmp_path / "s").glob("*/result.json"))
    ]
    assert sorted(result["status"] for result in results) == ["ok", "oom"]
    (oom,) = (result for result in results if result["status"] == "oom")
    assert oom["cause"]["rank"] in (0, 1)
    assert 2e8 < oom["cause"]["memory_bytes"] < limit
    assert "oom: rank" in done.stdout and "Traceback" not in done.stdout + done.stderr
    # not tried again
    assert run_folder.finished(Path(next((tmp_path / "s").glob("*8000000*")))) is not None


def instead(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Have ranks run a function of `tests.helpers.rank_work_llm`."""
    monkeypatch.setattr(
        llm, "WORKLOAD", replace(llm.WORKLOAD, work=f"tests.helpers.rank_work_llm:{work}")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["gpus=2", "method.lora_dropout=0.1"],
        ["method=dpo", "gradient_accumulation_steps=3", "batch_size=2"],
        ["method=full", "optimizer_in_bwd=true", "warmup_steps=0"],
        ["packed=true", "max_seq_len=128", "epochs=2"],
        # rows that are cut alike make batches without padding,
        # and long rows sequences of a single one
        pytest.param(["engine=trl", "max_seq_len=110"], marks=NEEDS_TRL),
        pytest.param(["engine=trl", "gpus=2", "packed=true", "max_seq_len=128"], marks=NEEDS_TRL),
    ],
    ids=" ".join,
)
def test_nothing_compiles_while_training_which_begins_as_if_nothing_had(
    tuned: Measured, words: list[str], monkeypatch
):
    words = [*words, "dataset.rows=60", "lr=3e-3"]
    plain = ok(tuned(*words))
    instead(monkeypatch, "tune_and_count_graphs")
    compiled = ok(tuned(*words, "compile=true"))
    for rank in range(compiled["axes"]["gpus"]):
        before, after = torch.load(Path(compiled["folder"]) / f"{rank}.pt")
        assert after == before > 0
    assert compiled["compile_s"] > 0 and plain["compile_s"] is None
    assert compiled["late_graphs"] == 0 and plain["late_graphs"] is None
    assert steps(compiled, "loss") == pytest.approx(steps(plain, "loss"), abs=1e-4)
    for column in ("lr", "tokens", "non_padding", "h2d_bytes"):
        assert steps(compiled, column).tolist() == steps(plain, column).tolist()
    for key in ("communication_bytes", "transfer_bytes", "tokens"):
        assert compiled[key] == plain[key]


def test_what_torch_cannot_compile_is_said(tuned: Measured, monkeypatch: pytest.MonkeyPatch):
    instead(monkeypatch, "tune_without_a_compiler")
    record = tuned("compile=true")
    assert record["status"] == "failed"
    assert record["cause"]["rank"] == 0
    assert find(record["cause"]["message"], "compile.failed", key="compile", value="true")
