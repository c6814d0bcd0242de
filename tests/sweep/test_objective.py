"""What Hydra's sweepers get of each cell, and sweepers that are not multicard's."""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from multicard import workloads
from multicard.cli import command_line
from multicard.llm import workload as llm
from multicard.sweep import objective
from multicard.sweep.axes import shrunk
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, Called
from tests.helpers import records
from tests.helpers.cells import cell


def test_a_figure_is_a_number_of_the_record():
    made = {"status": "ok", "total_s": 3, "step_s": {"mean": 0.5}, "time_to_target_s": None}
    record, failed = records.as_run(made), records.as_run(made | {"status": "oom"})
    assert objective.value(record, "total_s") == 3.0 and objective.value(record, "step_s.mean") == 0.5
    assert objective.value(record, None) is None
    nothing = [(record, "time_to_target_s"), (record, "step_s.mean.x"), (failed, "total_s")]
    assert all(math.isnan(objective.value(*case) or 0.0) for case in [*nothing, (None, "total_s")])


def test_a_name_that_is_none_is_refused_with_the_nearest():
    for workload, name in ((WORKLOAD, "images_per_s"), (WORKLOAD, "step_s.mean"), (llm.WORKLOAD, "tokens_per_s.all")):
        objective.refuse(workload, name)
    for workload, name, message in (
        (WORKLOAD, "image_per_s", "no figure of a record of train_vision.py; nearest: images_per_s"),
        (WORKLOAD, "step_s", "nearest: step_s.mean"),
        (llm.WORKLOAD, "images_per_s", "no figure of a record of tune_llm.py"),
        (WORKLOAD, "status", "no figure"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            objective.refuse(workload, name)


def test_cells_that_measure_the_same_return_the_same():
    result = records.as_run({"status": "ok", "total_s": 2.0})
    cells = [cell(2, overrides={2: ["a=2"]}), cell(1, result=result, overrides={1: ["a=1"], 3: ["b=1"]})]
    jobs = objective.returns(cells, "total_s")
    assert [job.overrides for job in jobs] == [["a=1"], ["a=2"], ["b=1"]]
    assert jobs[0].return_value == jobs[2].return_value == 2.0
    with pytest.raises(objective.NoFigureError, match=r"objective=total_s: x has none \(not measured\)"):
        assert jobs[1].return_value


def test_smoke_values_fill_what_a_cell_does_not_set():
    smoke = {"dataset": "digits", "gpus": "1,2", "epochs": 1, "profile.skip": None}
    assert shrunk(["epochs=3", "seed=1"], smoke) == ["dataset=digits", "gpus=1", "epochs=3", "seed=1"]


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> list[JobReturn]:
    """What a sweeper is returned."""
    jobs: list[JobReturn] = []
    returns = objective.returns

    def watched(*arguments: Any) -> list[JobReturn]:
        jobs.extend(returns(*arguments))
        return jobs

    monkeypatch.setattr(objective, "returns", watched)
    return jobs


@pytest.mark.usefixtures("processes")
def test_another_sweeper_gets_the_figure_of_each_cell(called: Called, returned: list[JobReturn], tmp_path: Path):
    words = ["precision=tf32,fp32", "objective=test_accuracy", f"hydra.sweep.dir={tmp_path}"]  # no tf32 on the CPU
    code, printed = called("-m", "hydra/sweeper=basic", *SMALL, *words)
    assert code == 1 and "[1/2] precision=tf32   refused: precision=tf32" in printed
    assert ["precision=tf32" in (job.overrides or ()) for job in returned] == [True, False]
    assert returned[0].status is JobStatus.FAILED and 0 <= returned[1].return_value <= 1
    assert "\nthe sweeper ended at a cell without its figure: objective=test_accuracy: [1/2] " in printed
    assert "Traceback" not in printed


def test_experiments_go_with_another_sweeper(called: Called, returned: list[JobReturn], tmp_path: Path):
    words = ["scale=smoke", "precision=fp32,fp64", "dry_run=true", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    code, printed = called("hydra/sweeper=basic", "+experiment=table2", *words, "gpus=1")
    assert code == 0 and "2 cells, to be measured" in printed, printed
    assert [job.return_value for job in returned] == [None, None]
    _, own = called("experiment=table2", *words, "gpus=1")
    assert sorted(own.splitlines()) == sorted(printed.splitlines())
    assert not (tmp_path / "sweep").exists()


class Search(Sweeper):
    """As Optuna's sweeper (facebookresearch/hydra, plugins/hydra_optuna_sweeper) works with a launcher: it proposes
    cells in batches, the next by what the last have returned. The best of the first is proposed again."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        fixed, best = [word for word in arguments if "interval(" not in word], ["precision=tf32", "precision=fp32"]
        for first in (0, len(best)):
            proposed, best = best, []
            returns = self.launcher.launch([(*fixed, word) for word in proposed], initial_job_idx=first)
            for word, job in zip(proposed, returns, strict=True):
                try:
                    TOLD.append((word, float(job.return_value)))
                    best = [word]
                except Exception as error:
                    TOLD.append((word, str(error)))


TOLD: list[tuple[str, float | str]] = []


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The words that choose the sweeper."""
    module = ModuleType("hydra_plugins.search")
    monkeypatch.setattr(module, "Search", Search, raising=False)
    monkeypatch.setattr(Search, "__module__", module.__name__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    Plugins.instance().register(Search)
    node = {"_target_": "hydra_plugins.search.Search"}
    ConfigStore.instance().store(group="hydra/sweeper", name="search", node=node)
    yield ["-m", "hydra/sweeper=search"]
    del ConfigStore.instance().repo["hydra"]["sweeper"]["search.yaml"]
    del Plugins.instance().class_name_to_class["hydra_plugins.search.Search"]
    Plugins.instance().plugin_type_to_subclass_list[Sweeper].remove(Search)
    TOLD.clear()


@pytest.mark.usefixtures("processes")
def test_a_search_goes_on_by_what_cells_return(called: Called, search: list[str], tmp_path: Path):
    words = [*search, *SMALL, "objective=test_accuracy", "lr=interval(0.1,0.2)", f"hydra.sweep.dir={tmp_path / 'x'}"]
    code, printed = called(*words, "dry_run=true")
    assert code == 1 and "1 cell, to be measured" in printed  # tf32 would be refused
    assert "these are the first cells of a search" in printed and not TOLD and not (tmp_path / "x").exists()
    code, printed = called(*words)
    (refused, reason), (word, accuracy), again = TOLD
    assert refused == "precision=tf32" and str(reason).endswith("has none (refused)")
    assert word == "precision=fp32" and isinstance(accuracy, float) and again == (word, accuracy)
    assert code == 1 and "measured before: ok" in printed, printed  # 1: a cell was refused


def test_groups_without_an_option_may_be_added():
    assert workloads.optional_groups(WORKLOAD) == ["experiment"]
    assert workloads.optional_groups(llm.WORKLOAD) == ["template", "experiment"]
    words = ["+experiment=table2", "+precision=bf16", "+seed=1", "+template=grammar"]
    assert command_line.switched(words, WORKLOAD) == ["experiment=table2", *words[1:]]
    assert command_line.switched(words, llm.WORKLOAD) == ["experiment=table2", *words[1:3], "template=grammar"]
