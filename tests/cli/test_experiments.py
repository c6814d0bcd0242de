"""Every table and figure of the papers: what it measures at full scale and shrunk, and what a user's words change."""

import json
import re
import subprocess
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from multicard import workloads
from multicard.config.base import RunConfig, WindowConfig
from multicard.config.llm import LlmConfig
from multicard.config.placement import place
from multicard.config.vision import VisionConfig
from multicard.llm import workload as llm
from multicard.sweep import dry_run
from multicard.sweep.cells import Sweep
from multicard.vision import workload as vision
from tests.conftest import ROOT, has_dali

Plan = Callable[..., list[RunConfig]]
Called = Callable[..., tuple[int, str]]

VISION, TUNING = "train_vision.py", "tune_llm.py"
UP_TO_4 = {"gpus": {1, 2, 3, 4}}
PINNED = {"pin_memory": {True, False}}
PRECISIONS = {"precision": {"fp64", "fp32", "fp16"}}
METHODS = {"method": {"lora", "qlora", "dpo", "qat"}}
TEMPLATES = {"template": {"instruct", "grammar", "summarize"}}
DATASETS = {"dataset": {"alpaca_cleaned", "grammar", "samsum", "slimorca"}} | TEMPLATES  # each has one template
LOADERS = {"loader": {"torch", "dali"}}
LAYOUTS = {"layout": {"nchw", "nhwc"}}

WHOLE = {"method": "lora", "rows": None}

# Axes at full scale, and what stays the same over all cells
EXPERIMENTS: dict[str, tuple[str, dict[str, set[Any]], dict[str, Any]]] = {
    "table2": (VISION, PRECISIONS | UP_TO_4, {"image_size": 500, "epochs": 20, "pin_memory": False}),
    "table3": (VISION, PINNED | UP_TO_4, {"image_size": 500, "epochs": 20, "precision": "fp32"}),
    "strategies": (VISION, {"strategy": {"ddp_ds", "ddp_rr", "ddp"}} | UP_TO_4, {"image_size": 700}),
    "image_size": (VISION, {"image_size": {100, 200, 300, 400, 500}} | UP_TO_4, {"precision": "fp64"}),
    "vision_metrics": (VISION, {"image_size": {100, 500}, "gpus": {2, 4}} | PINNED, {"precision": "fp32"}),
    "precision_metrics": (VISION, PRECISIONS | {"gpus": {2, 4}}, {"image_size": 500, "pin_memory": False}),
    "loss_curves": (VISION, PRECISIONS | PINNED, {"epochs": 20, "gpus": 1}),
    "loaders": (VISION, LOADERS | LAYOUTS | {"image_size": {300, 500}} | UP_TO_4, {"dataset": "images"}),
    "layout": (VISION, LOADERS | LAYOUTS | UP_TO_4, {"dataset": "images", "image_size": 300}),
    "datasets": (TUNING, DATASETS | UP_TO_4, WHOLE | {"pin_memory": False, "max_steps": 25_880}),
    "dataset_metrics": (TUNING, DATASETS, WHOLE | {"pin_memory": False, "gpus": 1, "max_steps": 2500}),
    "table5": (TUNING, PINNED | UP_TO_4, WHOLE | {"dataset": "alpaca_cleaned"}),
    "llm_metrics": (TUNING, PINNED | {"gpus": {1, 2}}, WHOLE | {"dataset": "alpaca_cleaned", "max_steps": 2500}),
    "templates": (TUNING, METHODS | TEMPLATES | {"gpus": {1, 4}}, {}),
    "template_scaling": (TUNING, {"method": {"dpo", "lora"}} | TEMPLATES | UP_TO_4, {}),
    "llm_api_share": (TUNING, METHODS | TEMPLATES, {"gpus": 4}),
    "peak_memory": (TUNING, METHODS | TEMPLATES | UP_TO_4, {}),
    "transfer_volume": (TUNING, METHODS | TEMPLATES, {"gpus": 4}),
}
EACH = {  # of all experiments of an entry, where not said otherwise above
    VISION: {"dataset": "mnist", "model": "mobilenet_v2", "strategy": "ddp_ds", "loader": "torch", "scale": "full"},
    TUNING: {"model": "llama3_8b", "precision": "fp32", "batch_size": 2, "lr": 3e-4, "epochs": 1, "max_steps": None}
    | {"dataset": "synthetic", "rows": 500},
}
# By number of GPUs, cells of the axes that cannot be, or are not printed
EXCLUDED: dict[str, dict[int, int]] = {
    "loaders": dict.fromkeys((1, 2, 3, 4), 4),
    "layout": dict.fromkeys((1, 2, 3, 4), 1),
    "peak_memory": {3: 3},
    "datasets": dict.fromkeys((1, 2, 3, 4), 8),
    "dataset_metrics": {1: 8},
}
FROM_START = {"llm_metrics", "dataset_metrics"}
NAMES = [
    name if name in ("table3", "dataset_metrics", "loss_curves") else pytest.param(name, marks=pytest.mark.slow)
    for name in EXPERIMENTS
]
PROFILED = {"vision_metrics", "precision_metrics", "llm_api_share", "transfer_volume", *FROM_START}
PHOTOGRAPHS = {"loaders", "layout"}


@pytest.fixture
def plan(called: Called, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The typed configurations of the cells that a command would measure."""

    def planned(*words: str, entry: str) -> list[RunConfig]:
        seen: list[Sweep] = []
        monkeypatch.setattr(dry_run, "show", lambda sweep, *_, **__: seen.append(sweep))
        monkeypatch.setattr(dry_run, "check", lambda *_, **__: None)  # the data need not be on this machine
        code, printed = called(*words, "dry_run=true", entry=entry)
        assert code == 0, printed
        (sweep,) = seen
        assert not sweep.refused
        return [cell.config for cell in sweep.cells]

    return planned


def axes(config: RunConfig) -> dict[str, Any]:
    return llm.WORKLOAD.axes(config, "-") if isinstance(config, LlmConfig) else vision.WORKLOAD.axes(config, "-")


def varied(configs: list[RunConfig]) -> dict[str, set[Any]]:
    """The axes that differ, less torchtune's recipe, which follows from method and GPUs."""
    rows = [axes(config) for config in configs]
    values = {key: {row[key] for row in rows} for key in rows[0] if key != "recipe"}
    return {key: several for key, several in values.items() if len(several) > 1}


def number(name: str, expected: dict[str, set[Any]]) -> int:
    """The cells of an experiment with these axes; all of them without the data sets."""
    excluded = EXCLUDED.get(name, {}) if expected.keys() == EXPERIMENTS[name][1].keys() else {}
    cells = prod(len(values) for values in expected.values())
    return cells - sum(count for gpus, count in excluded.items() if gpus in expected.get("gpus", {1}))


def test_each_file_is_an_experiment_of_one_entry():
    files = {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
    assert files == {*EXPERIMENTS, workloads.ALL}
    for workload in workloads.WORKLOADS:
        names = [name for name, (entry, *_) in EXPERIMENTS.items() if entry == workload.entry]
        assert workloads.experiments(workload) == sorted(names)


def test_make_experiments_runs_all_of_both_entries():
    done = subprocess.run(["make", "-n", "experiments"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "experiment=all name=smoke_$2 scale=smoke" in done.stdout
    assert "run train_vision.py vision; run tune_llm.py tuning;" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "words"),
    [(VISION, ["gpus=1", "precision=fp32"]), (TUNING, ["gpus=2", "template=instruct", "method=lora"])],
    ids=[VISION, TUNING],
)
def test_all_is_every_experiment_and_each_setting_once(entry: str, words: list[str], plan: Plan):
    def identities(name: str) -> list[str]:
        return [config.identity() for config in plan(f"experiment={name}", "scale=smoke", *words, entry=entry)]

    of_each = [identities(name) for name, (own, *_) in EXPERIMENTS.items() if own == entry]
    together = identities("all")
    assert sorted(together) == sorted({digits for of_one in of_each for digits in of_one})
    assert len(together) < sum(map(len, of_each))


@pytest.mark.slow
def test_cells_alike_are_measured_once_and_said_in_a_line_where_they_are_many(called: Called, tmp_path: Path):
    words = ["-m", "dry_run=true", f"hydra.sweep.dir={tmp_path}", "scale=smoke"]
    _, printed = called(*words, "gpus=1,2", "pin_memory=true,True")
    assert "[2/4] measures the same as [1/4]: left out" in printed and "2 cells, to be measured" in printed
    _, printed = called(*words, "pin_memory=true,True,TRUE,on", "seed=0,1,2,3")
    assert "12 of 16 cells measure the same as others: left out" in printed and "measures the same" not in printed


@pytest.mark.parametrize("name", NAMES)
def test_at_full_scale_it_is_the_papers_and_fits_a_node_of_4_gpus(name: str, plan: Plan):
    entry, expected, same = EXPERIMENTS[name]
    root = ["dataset.root=photographs"] if name in PHOTOGRAPHS else []
    cells = plan(f"experiment={name}", *root, entry=entry)
    assert varied(cells) == expected
    assert len(cells) == number(name, expected)
    held = {key: value for key, value in (EACH[entry] | same).items() if key not in expected}
    for config in cells:
        assert {key: axes(config)[key] for key in held} == held
        assert config.profile.name == ("auto" if name in PROFILED else "none")
        if name in FROM_START:
            assert isinstance(config.profile, WindowConfig)
            assert config.profile.from_start and config.profile.seconds == 720
        if isinstance(config, LlmConfig):
            assert config.warmup_steps == 100 and config.recipe == "auto"
            whole = config.dataset.name != "synthetic"
            assert config.custom_sharded_layers == ([] if whole else ["tok_embeddings", "output"])
        placement = place(config, 4)
        assert (placement.device, placement.backend, placement.oversubscribed) == ("cuda", "nccl", False)
        if isinstance(config, VisionConfig) and name in PHOTOGRAPHS:
            reads = {"torch": "process", "dali": "none"}  # tensors in RAM, files
            assert (getattr(config.dataset, "cache", None), config.numa) == (reads[config.loader.name], "none")


@pytest.mark.slow
def test_no_cell_of_the_full_model_is_refused_for_its_sizes(plan: Plan):
    """Rows, tokenizer, NF4's blocks and QAT's groups fit, as it is checked before a run."""
    checked = set()
    for name in ("peak_memory", "templates"):
        for config in plan(f"experiment={name}", entry=TUNING):
            assert isinstance(config, LlmConfig)
            what = (config.method.name, config.gpus)
            if what not in checked:
                llm.WORKLOAD.check(config)
                checked.add(what)
    assert len(checked) == 15


@pytest.mark.parametrize("name", NAMES)
def test_at_smoke_scale_it_has_the_same_axes_on_small_things(name: str, plan: Plan):
    entry, expected, _ = EXPERIMENTS[name]
    words = list[str]()
    if "dataset" in expected:  # offline: made rows, of the templates
        expected = {key: values for key, values in expected.items() if key != "dataset"}
    if expected.get("gpus") == {1, 2, 3, 4}:  # half of the cells tell as much
        expected, words = expected | {"gpus": {1, 4}}, ["gpus=1,4"]
    cells = plan(f"experiment={name}", "scale=smoke", *words, entry=entry)
    axes_of_cells = varied(cells)
    assert {key: len(values) for key, values in axes_of_cells.items()} == {key: len(v) for key, v in expected.items()}
    assert {key: v for key, v in axes_of_cells.items() if key != "image_size"} == {
        key: v for key, v in expected.items() if key != "image_size"
    }
    assert len(cells) == number(name, expected)
    for config in cells:
        assert axes(config)["scale"] == "smoke" and place(config, 4).device == "cpu"
        if isinstance(config, VisionConfig):
            assert config.dataset.name == "digits" and config.dataset.image_size <= 96 and config.epochs <= 3
            if config.loader.name != "dali" or has_dali():
                vision.WORKLOAD.check(config)
        else:
            assert isinstance(config, LlmConfig) and config.model.name == "llama3_tiny" and config.max_steps == 4
            assert config.dataset.name == "synthetic"


def test_every_tiny_method_fits_its_ranks(plan: Plan):
    for config in plan("experiment=templates", "template=grammar", "scale=smoke", entry=TUNING):
        llm.WORKLOAD.check(config)


WINS = [
    (["gpus=1,2"], {**PRECISIONS, "gpus": {1, 2}}, {}),
    (["precision=fp32"], UP_TO_4, {"precision": "fp32", "image_size": 500}),
    (["gpus=2", "precision=fp16", "pin_memory=true,false"], PINNED, {"gpus": 2, "precision": "fp16"}),
    (["gpus=1", "dataset=digits", "epochs=3"], PRECISIONS, {"dataset": "digits", "epochs": 3, "image_size": 500}),
    (["gpus=1", "layout=nhwc", "strategy=ddp_rr"], PRECISIONS, {"layout": "nhwc", "strategy": "ddp_rr"}),
    (["gpus=1", "scale=smoke", "dataset=mnist", "dataset.image_size=48"], PRECISIONS, {"dataset": "mnist"}),
    (["gpus=1", "scale=smoke", "device=auto", "epochs=2"], PRECISIONS, {"epochs": 2, "image_size": 32}),
]


@pytest.mark.parametrize(("words", "expected", "same"), WINS, ids=[" ".join(words) for words, *_ in WINS])
def test_the_users_words_win(words: list[str], expected: dict[str, set[Any]], same: dict[str, Any], plan: Plan):
    cells = plan("experiment=table2", *words, entry=VISION)
    assert varied(cells) == expected
    assert all(axes(config)[key] == value for config in cells for key, value in same.items())
    assert all(config.device == "auto" for config in cells) == ("device=auto" in words or "scale=smoke" not in words)


def test_smoke_shrinks_a_command_without_an_experiment_too(plan: Plan):
    (single,) = plan("scale=smoke", entry=VISION)
    assert (axes(single)["scale"], axes(single)["image_size"], single.epochs) == ("smoke", 32, 1)
    (whole,) = plan("-m", "scale=full", entry=VISION)
    assert (axes(whole)["scale"], axes(whole)["image_size"], whole.epochs) == ("full", 64, 10)
    assert single.identity() != whole.identity()


def test_photographs_are_the_users(called: Called, tmp_path: Path):
    code, printed = called("experiment=loaders", f"hydra.sweep.dir={tmp_path}", "gpus=1", "loader=torch")
    assert code == 1
    assert printed.count("refused: dataset.root is not set: set it to a folder") == 2  # both sizes


@pytest.mark.slow
def test_on_slurm_an_experiment_is_arrays_by_gpus(called: Called, tmp_path: Path):
    words = ["experiment=table2", "hydra/launcher=submitit_slurm", "dry_run=true", f"hydra.sweep.dir={tmp_path}"]
    code, printed = called(*words)
    assert code == 0 and "12 cells, to be measured as arrays of SLURM" in printed
    assert re.findall(r"^ *3 +1 node, (\d) GPUs?, (\d+) cores, 240 min", printed, re.MULTILINE) == [
        (str(gpus), str(8 * gpus)) for gpus in (1, 2, 3, 4)
    ]


RUNS = [
    (VISION, ["experiment=table2", "precision=fp64,fp32"], {("fp64", 1), ("fp64", 2), ("fp32", 1), ("fp32", 2)}),
    (TUNING, ["experiment=peak_memory", "method=lora", "max_steps=2"], {("fp32", 1), ("fp32", 2)}),
]


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
@pytest.mark.parametrize(("entry", "words", "cells"), RUNS, ids=[entry for entry, *_ in RUNS])
def test_it_runs_at_smoke_scale(entry: str, words: list[str], cells: set[Any], tmp_path: Path, called: Called):
    shrunk = ["gpus=1,2", "scale=smoke", "tracker.mode=disabled", f"hydra.sweep.dir={tmp_path}"]
    code, printed = called(*words, *shrunk, entry=entry)
    assert code == 0, printed
    assert "scale=smoke: shrunk, to try the code: not figures" in printed
    records = [(path, json.loads(path.read_text())) for path in tmp_path.glob("*/result.json")]
    assert {(record["axes"]["precision"], record["axes"]["gpus"]) for _, record in records} == cells
    for path, record in records:
        assert record["status"] == "ok"
        assert record["axes"]["scale"] == record["config"]["scale"] == "smoke"
        assert "scale=smoke" in path.parent.name and "experiment" not in path.parent.name
        assert "dataset" not in path.parent.name  # what scale=smoke sets is in the record, not in every folder's name
