"""Every table and figure of the papers: what it measures at full scale and shrunk,
and what a user's words change.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multicard import workloads
from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.config.llm_texts import SyntheticConfig
from multicard.config.placement import place
from multicard.config.vision import VisionConfig
from multicard.llm import workload as llm
from multicard.run.workload import Workload
from multicard.sweep import cell_checks, dry_run
from multicard.sweep.cells import Sweep
from multicard.vision import workload as vision
from tests.conftest import ROOT, Called, has_dali
from tests.helpers.messages import codes, find

Plan = Callable[..., list[RunConfig]]

VISION, TUNING = "train_vision.py", "tune_llm.py"
PRECISIONS = {"precision": {"fp64", "fp32", "fp16"}}
PHOTOGRAPHS = {"loaders", "layout", "numa"}
NAMES = [
    (workload, name) for workload in workloads.WORKLOADS for name in workloads.experiments(workload)
]


@pytest.fixture
def plan(called: Called, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The typed configurations of the cells that a command would measure."""

    def planned(*words: str, entry: str) -> list[RunConfig]:
        seen: list[Sweep] = []
        monkeypatch.setattr(dry_run, "show", lambda sweep, *_, **__: seen.append(sweep))
        # the data need not be on this machine
        monkeypatch.setattr(cell_checks, "check_cells", lambda *_, **__: None)
        code, printed = called(*words, "dry_run=true", entry=entry)
        assert code == 0, printed
        (sweep,) = seen
        assert not sweep.refused
        return [cell.config for cell in sweep.cells]

    return planned


def axes(config: RunConfig) -> dict[str, Any]:
    return (
        llm.WORKLOAD.axes(config, "-")
        if isinstance(config, LlmConfig)
        else vision.WORKLOAD.axes(config, "-")
    )


def varied(configs: list[RunConfig]) -> dict[str, set[Any]]:
    """The axes that differ, less torchtune's recipe, which follows from method and GPUs."""
    rows = [axes(config) for config in configs]
    values = {key: {row[key] for row in rows} for key in rows[0] if key != "recipe"}
    return {key: several for key, several in values.items() if len(several) > 1}


def test_each_file_is_an_experiment_of_one_entry():
    files = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
    assert files == sorted([*(name for _, name in NAMES), workloads.ALL])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (VISION, ["gpus=1", "precision=fp32"]),
        (TUNING, ["gpus=2", "template=instruct", "method=lora"]),
    ],
    ids=[VISION, TUNING],
)
def test_all_is_every_experiment_and_each_setting_once(entry: str, words: list[str], plan: Plan):
    def identities(name: str) -> list[str]:
        return [
            config.identity()
            for config in plan(f"experiment={name}", "scale=smoke", *words, entry=entry)
        ]

    of_each = [identities(name) for workload, name in NAMES if workload.entry == entry]
    together = identities("all")
    assert sorted(together) == sorted({digits for of_one in of_each for digits in of_one})
    assert len(together) < sum(map(len, of_each))


@pytest.mark.slow
def test_cells_alike_are_measured_once_and_said_in_a_line_where_they_are_many(
    called: Called, tmp_path: Path
):
    words = ["-m", "dry_run=true", f"hydra.sweep.dir={tmp_path}", "scale=smoke"]
    _, printed = called(*words, "gpus=1,2", "pin_memory=true,True")
    assert find(printed, "cells.alike", cell=2, as_cell=1) and find(
        printed, "sweep.dry-run", cells=2
    )
    _, printed = called(*words, "pin_memory=true,True,TRUE,on", "seed=0,1,2,3")
    assert find(printed, "cells.many-alike", alike=12, cells=16) and "cells.alike" not in codes(
        printed
    )


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "name"), NAMES, ids=[name for _, name in NAMES])
def test_its_cells_fit_a_node_of_4_gpus_and_are_small_at_smoke_scale(
    workload: Workload, name: str, plan: Plan
):
    """Which cells these are is in tests/goldens."""
    root = ["dataset.root=photographs"] if name in PHOTOGRAPHS else []
    for config in plan(f"experiment={name}", *root, entry=workload.entry):
        placement = place(config, 4)
        assert (placement.device, placement.backend, placement.oversubscribed) == (
            "cuda",
            "nccl",
            False,
        )
    for config in plan(f"experiment={name}", "scale=smoke", entry=workload.entry):
        assert axes(config)["scale"] == "smoke" and place(config, 4).device == "cpu"
        if isinstance(config, VisionConfig):
            assert (
                config.dataset.name == "digits"
                and config.dataset.image_size <= 96
                and config.epochs <= 3
            )
        else:
            assert isinstance(config, LlmConfig) and config.model.name == "llama3_tiny"
            assert isinstance(config.dataset, SyntheticConfig) and config.dataset.rows == 40
            assert config.max_steps == 4 or name == "fast_tuning"  # an epoch, of packed rows too
        if axes(config).get("loader") != "dali" or has_dali():
            workload.check(config)


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


WINS = [
    (["gpus=1,2"], {**PRECISIONS, "gpus": {1, 2}}, {}),
    (
        ["gpus=1", "dataset=digits", "epochs=3"],
        PRECISIONS,
        {"dataset": "digits", "epochs": 3, "image_size": 500},
    ),
    (
        ["gpus=1", "layout=nhwc", "strategy=ddp_rr"],
        PRECISIONS,
        {"layout": "nhwc", "strategy": "ddp_rr"},
    ),
    (
        ["gpus=1", "scale=smoke", "dataset=mnist", "dataset.image_size=48"],
        PRECISIONS,
        {"dataset": "mnist"},
    ),
    (
        ["gpus=1", "scale=smoke", "device=auto", "epochs=2"],
        PRECISIONS,
        {"epochs": 2, "image_size": 32},
    ),
]


@pytest.mark.parametrize(
    ("words", "expected", "same"), WINS, ids=[" ".join(words) for words, *_ in WINS]
)
def test_the_users_words_win(
    words: list[str], expected: dict[str, set[Any]], same: dict[str, Any], plan: Plan
):
    cells = plan("experiment=table2", *words, entry=VISION)
    assert varied(cells) == expected
    assert all(axes(config)[key] == value for config in cells for key, value in same.items())
    assert all(config.device == "auto" for config in cells) == (
        "device=auto" in words or "scale=smoke" not in words
    )


def test_smoke_shrinks_a_command_without_an_experiment_too(plan: Plan):
    (single,) = plan("scale=smoke", entry=VISION)
    assert (axes(single)["scale"], axes(single)["image_size"], single.epochs) == ("smoke", 32, 1)
    (whole,) = plan("-m", "scale=full", entry=VISION)
    assert (axes(whole)["scale"], axes(whole)["image_size"], whole.epochs) == ("full", 64, 10)
    assert single.identity() != whole.identity()
