"""`save=adapter` and `save=model` of tuning: what is kept computes what was tuned,
read by transformers and PEFT.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import multicard
from multicard.llm import kept_model, model_writer, preflight
from multicard.llm import workload as llm
from multicard.llm.model_writer import TensorPart, write_weights
from multicard.records import kept, run_folder
from multicard.records.schema_parts import SavedModel
from multicard.run import outcome
from tests.conftest import Called, Tuning, ok, typed_llm
from tests.helpers.messages import find, refused, remedies
from tests.llm.test_engines import tuned_here
from tests.llm.test_folders import SIZES, TEMPLATE, built, byte_tokenizer, linears_of, words_of

needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
TOKENS = torch.arange(3, 43).reshape(2, 20)
# Of logits of about 1: rounding; in bf16 the engines round
# products otherwise than transformers does
CLOSE = {"fp32": 1e-5, "bf16": 0.02}


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    from multicard.llm.trl import checks

    with checks.without_trace(model):
        yield


def logits_of(engine: Any) -> torch.Tensor:
    """What the engine's own model says after its last step, without dropout."""
    with evaluating(engine.model):
        if hasattr(engine, "trainer"):
            return engine.trainer.model(input_ids=TOKENS).logits.float()
        said = engine.model(TOKENS)
        return (torch.cat(said, dim=1) if isinstance(said, list) else said).float()


Kept = Callable[..., torch.Tensor]


@pytest.fixture
def tuned_and_kept(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Tune with some words and keep it, on one rank in this process;
    returns the logits of the tuned model.
    """
    from multicard.llm.torchtune_engine import TorchtuneEngine
    from multicard.llm.trl.engine import TrlEngine

    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found: list[torch.Tensor] = []
    for kind in (TorchtuneEngine, TrlEngine):

        def noting(engine: Any, trained: Any = kind.trained) -> Any:
            found.append(logits_of(engine))
            return trained(engine)

        monkeypatch.setattr(kind, "trained", noting)

    def run(*words: str, folder: Path = tmp_path / "run") -> torch.Tensor:
        report, _ = tuned_here(folder, "lr=3e-3", "warmup_steps=0", *words)
        assert report.saved is not None and report.saved.problem is None
        assert report.saved.save_s is not None and report.saved.save_s > 0
        return found[-1]

    return run


def by_its_lines(folder: Path) -> dict[str, Any]:
    """What the printed lines define, run here."""
    names: dict[str, Any] = {}
    exec("\n".join(kept_model.lines_to_load(folder)), names)
    return names


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits.float()


ADAPTERS = {
    "lora": ["method=lora"],
    "qwen": ["model=qwen2_5_tiny", "method.lora_attn_modules=[q_proj,k_proj,v_proj,output_proj]"],
    "all-linear": ["method.lora_attn_modules=all-linear", "method.lora_dropout=0.2"],
    "dpo": ["method=dpo", "activation_checkpointing=true"],
    "bf16": ["precision=bf16", "model.tied=true"],
    "rslora": ["method.rslora=true", "method.lora_rank=4", "method.lora_alpha=8"],
}
WHOLE = {
    "full": ["method=full"],
    "qwen": ["method=full", "model=qwen2_5_tiny"],
    "tied": ["method=full", "model.tied=true", "activation_checkpointing=true"],
    "tied qwen": ["method=full", "model=qwen2_5_tiny", "model.tied=true"],
    "llama 3.1": [
        "method=full",
        "model=llama3_1_8b",
        "model.num_layers=2",
        "model.embed_dim=64",
        "model.num_heads=4",
    ],
}
WHOLE["llama 3.1"] += ["model.num_kv_heads=2", "model.intermediate_dim=96", "model.vocab_size=null"]
QUICK = [("torchtune", "lora"), ("torchtune", "qwen"), ("trl", "lora")]


@needs_trl
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        pytest.param(engine, name, marks=[] if (engine, name) in QUICK else [pytest.mark.slow])
        for engine in ("torchtune", "trl")
        for name in ADAPTERS
    ],
)
def test_a_kept_adapter_computes_what_was_tuned(
    tuned_and_kept: Kept, tmp_path: Path, engine: str, name: str
):
    words = ADAPTERS[name]
    expected = tuned_and_kept(f"engine={engine}", "save=adapter", *words)
    close = CLOSE["bf16" if "precision=bf16" in words else "fp32"]
    named = by_its_lines(tmp_path / "run")
    assert (logits(named["model"]) - expected).abs().max() < close
    with named["model"].disable_adapter():
        assert (logits(named["model"]) - expected).abs().max() > 2 * close
    again = multicard.load_model(tmp_path / "run")
    assert (logits(again) - expected).abs().max() < close and not again.training
    assert sorted(path.name for path in (tmp_path / "run").glob("*.part")) == []


@needs_trl
@pytest.mark.slow
def test_an_adapter_of_the_output_is_kept_too(tuned_and_kept: Kept, tmp_path: Path):
    expected = tuned_and_kept("save=adapter", "method.apply_lora_to_output=true")
    assert (logits(multicard.load_model(tmp_path / "run")) - expected).abs().max() < CLOSE["fp32"]


@needs_trl
@pytest.mark.parametrize("name", ["lora", pytest.param("qwen", marks=pytest.mark.slow)])
def test_both_engines_keep_the_same_adapters(tuned_and_kept: Kept, tmp_path: Path, name: str):
    """Those of TRL have PEFT's names and transformers' order by themselves."""
    from safetensors.torch import load_file

    states = []
    for engine in ("torchtune", "trl"):
        folder = tmp_path / engine
        tuned_and_kept(f"engine={engine}", "save=adapter", *ADAPTERS[name], folder=folder)
        states.append(load_file(folder / "adapter/adapter_model.safetensors"))
    assert states[0].keys() == states[1].keys()
    learnt = [tensor for tensor_name, tensor in states[0].items() if "lora_B" in tensor_name]
    assert max(tensor.abs().max() for tensor in learnt) > 1e-3
    for tensor_name, tensor in states[0].items():
        assert (tensor - states[1][tensor_name]).abs().max() < 5e-5, tensor_name


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchtune", "trl"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_kept_model_computes_what_was_tuned(
    tuned_and_kept: Kept, tmp_path: Path, engine: str, name: str
):
    expected = tuned_and_kept(f"engine={engine}", "save=model", *WHOLE[name])
    named = by_its_lines(tmp_path / "run")
    assert (logits(named["model"]) - expected).abs().max() < CLOSE["fp32"]
    assert (logits(multicard.load_model(tmp_path / "run")) - expected).abs().max() < CLOSE["fp32"]
    assert not (tmp_path / "run/base").exists()


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torchtune", "trl"])
def test_qlora_is_loaded_on_a_base_in_nf4(tuned_and_kept: Kept, tmp_path: Path, engine: str):
    """bitsandbytes' NF4 and torchao's differ a little,
    and so does what bitsandbytes computes of it for inference.
    """
    expected = tuned_and_kept(f"engine={engine}", "save=adapter", "method=qlora")
    named = by_its_lines(tmp_path / "run")
    for model in (named["model"], multicard.load_model(tmp_path / "run")):
        assert any(type(part).__name__ == "Linear4bit" for part in model.modules())
        assert (logits(model) - expected).abs().mean() < 0.01


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "tied"), [("torchtune", "false"), ("trl", "false"), ("trl", "true")]
)
def test_qat_is_loaded_as_the_quantised_model(
    tuned_and_kept: Kept, tmp_path: Path, engine: str, tied: str
):
    import transformers

    words = (
        "save=model",
        "method=qat",
        "method.groupsize=32",
        "warmup_steps=null",
        f"model.tied={tied}",
    )
    expected = tuned_and_kept(f"engine={engine}", *words)
    quantised = logits(multicard.load_model(tmp_path / "run"))
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run/model")
    assert 3 * (quantised - expected).abs().mean() < (logits(plain) - expected).abs().mean()
    assert torch.equal(logits(by_its_lines(tmp_path / "run")["model"]), quantised)


FOLDERS = ["llama", "qwen3", "gpt2", "mixtral", "gemma2"]


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_model_of_a_folder_is_kept(tuned_and_kept: Kept, tmp_path: Path, kind: str, method: str):
    folder = tmp_path / "checkpoint"
    model = built(kind)
    model.save_pretrained(folder)
    byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    form = "adapter" if method == "lora" else "model"
    words = words_of(folder, "model.weights=own", f"method={method}", f"save={form}")
    if method == "lora":
        words += [
            f"method.lora_attn_modules=[{linears_of(model)}]",
            "method.apply_lora_to_mlp=false",
        ]
    expected = tuned_and_kept(*words)
    place = tmp_path / "run" / form
    named = by_its_lines(tmp_path / "run")
    assert (logits(named["model"]) - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (logits(model) - expected).abs().max() > 1e-3 * expected.abs().max()
    assert named["tokenizer"].chat_template == TEMPLATE
    if method == "lora":
        assert json.loads((place / "adapter_config.json").read_text())[
            "base_model_name_or_path"
        ] == str(folder)
        assert not (tmp_path / "run/base").exists()


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(("method", "form"), [("lora", "adapter"), ("full", "model")])
def test_a_model_that_reads_images_too_is_kept_whole(
    tuned_and_kept: Kept, tmp_path: Path, method: str, form: str
):
    from tests.llm.test_text_part import written

    folder = written(tmp_path / "model", "gemma3")
    expected = tuned_and_kept(
        *words_of(folder, "model.weights=own", f"method={method}", f"save={form}")
    )
    again = by_its_lines(tmp_path / "run")["model"]
    assert (logits(again) - expected).abs().max() < 1e-4 * expected.abs().max()


@needs_trl
@pytest.mark.slow
def test_random_weights_of_a_folder_are_kept_as_the_base(tuned_and_kept: Kept, tmp_path: Path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    built("llama").config.save_pretrained(folder)
    byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    expected = tuned_and_kept(*words_of(folder, "save=adapter"))
    assert (logits(multicard.load_model(tmp_path / "run")) - expected).abs().max() < CLOSE["fp32"]


@needs_trl
@pytest.mark.slow
def test_the_lines_need_nothing_of_multicard(tuned_and_kept: Kept, tmp_path: Path):
    expected = tuned_and_kept("save=adapter", "method=lora")
    assert _apart(tmp_path, expected) < 1e-6


@needs_trl
@pytest.mark.slow
def test_peft_alone_puts_adapters_of_a_mixture_of_experts_where_they_were(
    tuned_and_kept: Kept, tmp_path: Path
):
    """It converts the names of layers that older models of the kind have."""
    folder = tmp_path / "checkpoint"
    model = built("mixtral")
    model.save_pretrained(folder)
    byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    words = words_of(folder, "model.weights=own", "save=adapter", "method.apply_lora_to_mlp=false")
    expected = tuned_and_kept(*words, f"method.lora_attn_modules=[{linears_of(model)}]")
    assert _apart(tmp_path, expected) < 1e-5


def _apart(folder: Path, expected: torch.Tensor) -> float:
    """How far apart, relatively, is what the printed lines load in a process of their own."""
    lines = kept_model.lines_to_load(folder / "run")
    check = [
        "import sys, torch",
        f"said = model.eval()(input_ids=torch.tensor({TOKENS.tolist()})).logits",
        (
            "print(said.double().abs().sum().item(), 'multicard' in sys.modules, 'torchtune' in"
            " sys.modules)"
        ),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = "\n".join([*lines, *check])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    total, *others = ended.stdout.split()
    assert others == ["False", "False"]
    return abs(float(total) / expected.double().abs().sum().item() - 1)


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["engine=torchtune", "method=lora", "save=adapter"],
        ["engine=trl", "method=lora", "save=adapter"],
        ["engine=trl", "method=lora", "save=adapter", "sharding=ddp"],
        ["engine=torchtune", "method=full", "save=model"],
        ["engine=trl", "method=full", "save=model"],
        ["engine=trl", "method=full", "save=model", "sharding=ddp"],
    ],
    ids=" ".join,
)
def test_two_ranks_keep_what_one_rank_keeps(tuned: Tuning, words: list[str]):
    """One rank, of batches twice as large, meets the same rows in each step."""
    from safetensors.torch import load_file

    common = ("dataset.rows=40", "max_steps=3", "lr=1e-3", "warmup_steps=0")
    alone = [word for word in words if not word.startswith("sharding=")]
    runs = [
        tuned(*common, *alone, "batch_size=2"),
        tuned(*common, *words, "gpus=2", "batch_size=1"),
    ]
    states = []
    for run in runs:
        assert run["status"] == "ok", run["cause"]
        saved = run["saved"]
        assert saved["problem"] is None and saved["save_s"] > 0
        (weights,) = (Path(run["folder"]) / saved["folder"]).glob("*.safetensors")
        assert saved["bytes"] <= weights.stat().st_size
        states.append(load_file(weights))
    assert states[0].keys() == states[1].keys()
    moved = 1e-3 * 3  # by steps of Adam
    for name, tensor in states[0].items():
        assert (tensor - states[1][name]).abs().mean() < 0.02 * moved, name


@needs_trl
def test_a_full_disk_leaves_the_run_and_nothing_else(
    processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOCAL_RANK", "0")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    report, steps = tuned_here(tmp_path / "run", "save=adapter")
    assert report.saved is not None and report.saved.folder is None and len(steps["loss"]) == 3
    assert find(
        str(report.saved.problem),
        "save.failed-tuned",
        form="adapter",
        reason=os.strerror(errno.ENOSPC),
    )
    assert not {"adapter", "base"} & {
        path.name.partition(".")[0] for path in (tmp_path / "run").iterdir()
    }


@needs_trl
def test_a_write_that_fails_leaves_the_run_and_nothing_else(
    processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOCAL_RANK", "0")

    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(model_writer.WeightFile, "add", fails)
    report, _ = tuned_here(tmp_path / "run", "save=adapter")
    assert (
        report.saved is not None
        and report.saved.folder is None
        and report.saved.problem is not None
    )
    assert not {"adapter", "base"} & {
        path.name.partition(".")[0] for path in (tmp_path / "run").iterdir()
    }


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["engine=torchtune", "method=full", "save=model"],
        ["engine=torchtune", "method=lora", "save=adapter"],
        ["engine=trl", "method=full", "save=model"],
        ["engine=trl", "method=lora", "save=adapter", "sharding=ddp"],
    ],
    ids=" ".join,
)
def test_a_disk_that_fills_up_under_two_ranks_leaves_the_run_and_nothing_else(
    tuned: Tuning, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        llm,
        "WORKLOAD",
        replace(llm.WORKLOAD, work="tests.helpers.rank_work_llm:tune_on_a_full_disk"),
    )
    run = ok(tuned(*words, "dataset.rows=40", "max_steps=2", "model.num_layers=2", "gpus=2"))
    form, folder = (
        words[-1 if "ddp" not in words[-1] else -2].partition("=")[2],
        Path(run["folder"]),
    )
    assert run["saved"]["folder"] is None and run["saved"]["form"] == form
    assert find(
        run["saved"]["problem"], "save.failed-tuned", form=form, reason=os.strerror(errno.EFBIG)
    )
    left = {path.name for path in folder.iterdir()}
    assert left <= {
        "config.yaml",
        "environment.json",
        "inputs",
        "logs",
        "ranks",
        "result.json",
        "steps.parquet",
    } | {"torchtune.yaml"}
    assert run["loss"]["first"] > 0 and len(run["epochs"]) == 1
    read = run_folder.read_run(folder)
    assert read is not None and find(str(outcome.line(read)), "save.failed-tuned", form=form)


@needs_trl
@pytest.mark.slow
def test_what_cannot_be_named_leaves_the_run(
    processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from multicard.llm.torchtune_engine import TorchtuneEngine

    monkeypatch.setenv("LOCAL_RANK", "0")

    def fails(*_: Any) -> Any:
        raise KeyError("layers.0.experts")

    monkeypatch.setattr(TorchtuneEngine, "trained", fails)
    report, steps = tuned_here(tmp_path / "run", "save=adapter")
    assert report.saved is not None and report.saved.folder is None and len(steps["loss"]) == 3
    assert find(str(report.saved.problem), "save.failed-tuned", form="adapter")


class Watched(TensorPart):
    """A part that notes how many whole tensors of its kind are alive when it is read."""

    alive: weakref.WeakSet[Any]
    most: list[int]

    def gather(self) -> torch.Tensor:
        made = super().gather().clone()
        self.alive.add(made)
        self.most.append(len(self.alive))
        return made


@pytest.mark.parametrize("fails_at", [None, 0, 2])
def test_tensors_are_gathered_one_by_one_also_where_the_writer_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int | None
):
    """Other ranks wait for a rank that does not gather."""
    from safetensors.torch import load_file

    Watched.alive, Watched.most = weakref.WeakSet(), []
    tensors = {
        "a": torch.rand(3, 4),
        "b": torch.tensor(2.0),
        "c": torch.arange(5),
        "d": torch.rand(7).bfloat16(),
    }
    parts = {name: Watched(tensor) for name, tensor in tensors.items()}
    add, written = model_writer.WeightFile.add, []

    def may_fail(self: Any, whole: torch.Tensor) -> None:
        if len(written) == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(whole.shape)
        add(self, whole)

    monkeypatch.setattr(model_writer.WeightFile, "add", may_fail)
    path = tmp_path / "x.safetensors"
    if fails_at is None:
        write_weights(path, parts, is_writer=True)
        read = load_file(path)
        assert read.keys() == tensors.keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    else:
        with pytest.raises(OSError):
            write_weights(path, parts, is_writer=True)
    assert len(Watched.most) == len(parts) and max(Watched.most) == 1


def test_a_rank_that_cannot_take_a_tensor_gathers_the_others(tmp_path: Path):
    """The writer waits for it in the next collective; it deletes nothing that the writer wrote."""
    taken = list[str]()

    class Failing(TensorPart):
        def gather(self) -> torch.Tensor:
            taken.append("taken")
            raise MemoryError("no room")

    parts = {name: Failing(torch.rand(3)) for name in "abc"}
    with pytest.raises(MemoryError):
        write_weights(tmp_path / "x.safetensors", parts, is_writer=False)
    assert len(taken) == 3


@needs_trl
def test_what_diverged_is_not_kept(
    processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOCAL_RANK", "0")
    report, _ = tuned_here(
        tmp_path / "run", "method=full", "lr=1e30", "warmup_steps=0", "save=model"
    )
    assert report.saved is not None and find(str(report.saved.problem), "save.diverged", key="save")
    assert not (tmp_path / "run/model").exists()


@pytest.mark.parametrize(
    ("words", "code", "remedy"),
    [
        (["method=full", "save=adapter"], "llm.save-no-adapter", "save=model"),
        (["method=qat", "save=adapter"], "llm.save-no-adapter", "save=model"),
        (["method=lora", "save=model"], "llm.save-adapter-alone", "save=adapter"),
        (["method=dpo", "save=model"], "llm.save-adapter-alone", "save=adapter"),
    ],
)
def test_what_the_method_does_not_train_is_not_kept(words: list[str], code: str, remedy: str):
    with refused(code, key="save") as caught:
        preflight.refuse(typed_llm(*words))
    assert remedies(caught.value) == [remedy]
    preflight.refuse(typed_llm(*words[:1], remedy))


@pytest.mark.parametrize("word", ["probe.enabled=true", "race.figure=tokens_per_s"])
def test_a_tuning_that_is_not_whole_keeps_nothing(word: str):
    with refused("config.save-probe" if "probe" in word else "config.save-race", key="save"):
        typed_llm("save=adapter", word)


@needs_trl
def test_an_nf4_base_that_lies_nowhere_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    with refused("llm.save-random-nf4", key="save"):
        preflight.refuse(typed_llm(*words_of(tmp_path, "method=qlora", "save=adapter")))


def test_keeping_is_no_part_of_the_identity():
    assert typed_llm("save=adapter").identity() == typed_llm().identity()


@pytest.mark.slow
@needs_trl
@pytest.mark.usefixtures("processes")
def test_a_cell_that_was_measured_without_is_trained_again_only_when_asked(
    tmp_path: Path, called: Called
):
    words = ["dataset.rows=40", "max_steps=3", "device=cpu", f"hydra.run.dir={tmp_path}/run"]
    tune: Any = lambda *more: called(*words, *more, entry="tune_llm")  # noqa: E731
    assert tune()[0] == 0
    code, printed = tune("save=adapter")
    assert code == 0 and find(printed, "save.not-kept", key="save")
    assert not [*tmp_path.rglob(kept.TUNED_MODEL)]
    code, printed = tune("save=adapter", "rerun=true")
    (path,) = tmp_path.rglob("result.json")
    run = run_folder.read_run(path.parent)
    assert code == 0 and run is not None and find(printed, "save.kept", form="adapter")
    saved = getattr(run.record, "saved", None)
    assert isinstance(saved, SavedModel) and saved.folder == "adapter"
    code, printed = tune("save=adapter")
    assert code == 0 and find(printed, "save.kept", form="adapter")
    assert logits(multicard.load_model(path.parent)).isfinite().all()
