"""Plans of jobs: runs that are predicted, on the node that there is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from multicard.decide.plan import command, jobs_file, tasks
from multicard.decide.plan.tasks import PlannedNode
from multicard.estimate.estimates import Estimate, Predictor
from multicard.estimate.target import Target
from multicard.estimate.totals import exact
from multicard.machine import devices, environment
from multicard.records.schema_parts import Interval, Prediction
from tests.helpers import past_runs

H100 = Target("h100-nvl", None, "cuda", "NVIDIA H100 NVL", 94 * 10**9)
GOOD = {"seconds": {1: 10}}
RUN = {"run": "train_vision.py"}


def predicted(config: Any) -> Prediction:
    """By number of GPUs and batch size: 64 does not fit, 8 is not known on two or more."""
    if config.batch_size == 8 and config.gpus > 1:
        return Prediction("unknown", about="no run like it on h100-nvl")
    total_s = Interval(600 / config.gpus, 500 / config.gpus, 700 / config.gpus)
    fits = "no" if config.batch_size == 64 else "yes"
    return Prediction("measured", 3, "runs", exact(0.1), total_s, energy_joules=exact(1e5), fits=fits)


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A node of four GPUs."""
    gpus = [{"name": "NVIDIA H100 NVL", "memory_bytes": 94 * 10**9}] * 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "gpus", lambda: gpus)
    monkeypatch.setattr(devices, "visible_gpus", lambda: [f"GPU-{number}" for number in range(4)])
    monkeypatch.setattr(
        tasks, "estimate", lambda configs, *_: [Estimate(config, H100, predicted(config)) for config in configs]
    )


def planned(content: Any) -> tuple[list[tasks.JobRun], jobs_file.JobsFile, PlannedNode]:
    file = jobs_file.parsed(content)
    where = tasks.resolve(file)
    return tasks.runs(file, where, Path("multirun", "s")), file, where


def numbers(runs: Sequence[tasks.JobRun], file: jobs_file.JobsFile, where: PlannedNode) -> list[int]:
    return [option.gpus for option in tasks.tasks(file, where, runs)[0].options]


@pytest.mark.usefixtures("on_gpus")
def test_runs_are_predicted_on_every_number_of_gpus():
    runs, file, where = planned({"jobs": {"a": {"run": "train_vision.py precision=bf16"}}})
    assert (where.gpus, where.on_gpus, where.name) == (4, True, "4 GPUs NVIDIA H100 NVL")
    beside_s = tasks.START.value + tasks.END.value
    assert [run.seconds and run.seconds.value for run in runs] == [600 + beside_s, 300 + beside_s, 150 + beside_s]
    assert numbers(runs, file, where) == [1, 2, 4] and runs[0].basis == "measured"
    assert not tasks.probes(runs, where, Path("s"))


def test_the_start_of_a_races_cell_beside_others_is_none_of_a_run():
    here, wanted = past_runs.CPU, past_runs.config(past_runs.vision())
    alone = past_runs.past(past_runs.vision(startup_s=4.0), past_runs.raced())  # 99 s
    start_s = Predictor(here, alone, None).start_s(wanted)
    assert start_s is not None and start_s.value == pytest.approx(4.0)
    assert Predictor(here, past_runs.past(past_runs.raced()), None).start_s(wanted) is None


@pytest.mark.usefixtures("on_gpus")
def test_unknown_times_are_named_with_the_commands_of_their_probes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: {a: {run: train_vision.py batch_size=8, gpus: [2, 4]}}")
    assert command.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err == "refused: no time is known of 1 job:\n  a: no run like it on h100-nvl\n"
    share = "hydra/launcher=submitit_local exclusive=false max_jobs=1"
    probe = f"  python train_vision.py -m batch_size=8 {share} gpus={{}} probe=true name=jobs\n"
    assert printed.out == f"to know all times, probe first, one after the other:\n{probe.format(2)}{probe.format(4)}"
    cell = planned({"jobs": {"a": {"run": "train_vision.py batch_size=8", "gpus": [2]}}})[0][0].cell
    assert cell is not None
    done = tmp_path / "multirun" / "jobs" / f"gpus=2-{cell.config.identity()}-probe" / "result.json"
    done.parent.mkdir(parents=True)
    done.write_text("{}")  # it said nothing of the time
    assert command.main([str(path)]) == 1
    again = probe.format(2).replace("name=jobs", "name=jobs rerun=true")
    assert capsys.readouterr().out.endswith(f"{again}{probe.format(4)}")


@pytest.mark.usefixtures("on_gpus")
def test_numbers_of_gpus_that_are_unknown_or_do_not_fit_are_left_out():
    some, big = {"run": "train_vision.py batch_size=8"}, {"run": "train_vision.py batch_size=64"}
    runs, file, where = planned({"jobs": {"some": some}})
    assert numbers(runs, file, where) == [1]
    assert tasks.notes(file, runs) == (["some: not planned on 2, 4 GPUs, whose time is not known"], [])
    runs, file, _ = planned({"jobs": {"some": some, "big": big}})
    message = r"jobs\.big: can run on no allowed number of GPUs \(1 GPU: does not fit .*; 2 GPUs: does not"
    with pytest.raises(ValueError, match=message):
        tasks.notes(file, runs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("precision=fp7", "precision=fp7: no such option"),
        ("btach_size=3", "btach_size: no such key"),
        ("batch_size=1,2", "batch_size=1,2: is a sweep; write a job for each value"),
        ("method=lora", "method: belongs to tune_llm.py"),
    ],
)
@pytest.mark.usefixtures("on_gpus")
def test_words_that_cannot_be_composed_are_refused_with_the_job(words: str, message: str):
    for more in ({}, GOOD):  # also where its times are known
        with pytest.raises(ValueError, match=rf"^jobs\.a\.run: {message}"):
            planned({"jobs": {"a": {"run": f"train_vision.py {words}"} | more}})


@pytest.mark.usefixtures("on_gpus")
def test_a_cell_that_is_refused_has_the_reason():
    runs, _, _ = planned({"jobs": {"a": {"run": "train_vision.py batch_size=0"}}})
    assert {run.problem for run in runs} == {"batch_size=0: must be 1 or more"}


def test_cpu_ranks_stand_in_for_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "gpus", list)
    monkeypatch.setattr(environment, "cores", lambda: 4)
    run = {"a": RUN}
    for given, gpus, words in (
        (None, 4, "cpus_per_gpu=1"),
        ({"gpus": 2}, 2, "cpus_per_gpu=2"),
        ({"cpus_per_gpu": 4}, 1, "cpus_per_gpu=4"),
    ):
        where = tasks.resolve(jobs_file.parsed({"jobs": run} | ({"node": given} if given else {})))
        assert (where.gpus, where.on_gpus, where.words) == (gpus, False, (words,))
    with pytest.raises(ValueError, match=r"node\.gpus=8: this machine has no GPU, and 4 cores for CPU ranks"):
        tasks.resolve(jobs_file.parsed({"jobs": run, "node": {"gpus": 8}}))
    assert tasks.resolve(jobs_file.parsed({"jobs": {"a": GOOD}, "node": {"gpus": 8}})).gpus == 8  # only known times
    elsewhere = jobs_file.parsed({"jobs": run, "node": {"gpus": 8, "gpu": "h100-80gb"}})
    where = tasks.resolve(elsewhere)
    assert where.on_gpus and where.words == ("predict.gpu=h100-80gb",)
    with pytest.raises(ValueError, match=r"node\.gpu: is another node, on which --run can start nothing"):
        tasks.resolve(elsewhere, is_here=True)
