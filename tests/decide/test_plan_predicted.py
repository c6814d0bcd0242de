"""Plans of jobs: runs that are predicted, on the node that there is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from multicard.decide.plan import command, jobs_file, node, places, tasks
from multicard.decide.plan.node import PlannedNode
from multicard.estimate.estimates import Estimate, Predictor
from multicard.estimate.target import Target
from multicard.machine import devices, environment, slurm
from multicard.records.schema_parts import Interval, Prediction
from multicard.sweep import executor
from multicard.sweep.cells import Cell
from tests.helpers import past_runs

H100 = Target("h100-nvl", None, "cuda", "NVIDIA H100 NVL", 94 * 10**9)
GOOD = {"seconds": {1: 10}}
RUN = {"run": "train_vision.py"}


def exact(seconds: float) -> Interval:
    return Interval(seconds, seconds, seconds)


def predicted(config: Any) -> Prediction:
    """By number of GPUs and batch size: 64 does not fit, 8 is not known on two or more."""
    if config.batch_size == 8 and config.gpus > 1:
        return Prediction("unknown", about="no run like it on h100-nvl")
    total_s = Interval(600 / config.gpus, 500 / config.gpus, 700 / config.gpus)
    fits = "no" if config.batch_size == 64 else "yes"
    return Prediction("measured", 3, "runs", exact(0.1), total_s, energy_joules=exact(1e5), fits=fits)


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Cell]:
    """A node of four GPUs, and the probes that were run on it."""
    gpus = [{"name": "NVIDIA H100 NVL", "memory_bytes": 94 * 10**9}] * 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "gpus", lambda: gpus)
    monkeypatch.setattr(devices, "visible_gpus", lambda: [f"GPU-{number}" for number in range(4)])
    monkeypatch.setattr(
        tasks, "estimate", lambda configs, *_: [Estimate(config, H100, predicted(config)) for config in configs]
    )
    probes: list[Cell] = []
    monkeypatch.setattr(executor, "run_all", lambda sweep: probes.extend(sweep.cells))
    return probes


def planned(content: Any) -> tuple[list[tasks.JobRun], jobs_file.JobsFile, PlannedNode]:
    file = jobs_file.parsed(content)
    where = node.resolve(file)
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


def test_unknown_times_are_named_with_their_probes_which_are_cells(
    on_gpus: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: {a: {run: train_vision.py batch_size=8, gpus: [2, 4]}}")
    assert command.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err == "refused: no time is known of 1 job:\n  a: no run like it on h100-nvl\n" and not on_gpus
    assert "run this command with --probe here; it probes a on 2 GPUs, a on 4 GPUs\n" in printed.out
    assert command.main([str(path), "--probe"]) == 1  # the stand-in for a probe teaches nothing
    probe, _ = on_gpus
    assert probe.config.probe.enabled and (probe.config.gpus, probe.config.batch_size) == (2, 8)
    assert probe.config.exclusive is False and probe.folder.parent == tmp_path / "multirun" / "jobs"


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
def test_words_that_cannot_be_composed_are_refused_with_the_job(on_gpus: list[Cell], words: str, message: str):
    for more in ({}, GOOD):  # also where its times are known
        with pytest.raises(ValueError, match=rf"^jobs\.a\.run: {message}"):
            planned({"jobs": {"a": {"run": f"train_vision.py {words}"} | more}})
    assert not on_gpus


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
        where = node.resolve(jobs_file.parsed({"jobs": run} | ({"node": given} if given else {})))
        assert (where.gpus, where.on_gpus, where.words) == (gpus, False, ("exclusive=false", words))
    with pytest.raises(ValueError, match=r"node\.gpus=8: this machine has no GPU, and 4 cores for CPU ranks"):
        node.resolve(jobs_file.parsed({"jobs": run, "node": {"gpus": 8}}))
    assert node.resolve(jobs_file.parsed({"jobs": {"a": GOOD}, "node": {"gpus": 8}})).gpus == 8  # only known times
    elsewhere = node.resolve(jobs_file.parsed({"jobs": run, "node": {"gpus": 8, "gpu": "h100-80gb"}}))
    assert elsewhere.on_gpus and elsewhere.words == ("exclusive=false",)
    assert elsewhere.predict_words == ("predict.gpu=h100-80gb",)


def test_a_node_of_slurm_has_the_gpus_that_sinfo_says(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, ...]] = []
    answers: list[str | None] = ["gpu:a100:4(S:0-1),shard:8\n(null)\ngpu:2\n", None]
    monkeypatch.setattr(slurm, "ask", lambda *words: asked.append(words) or answers[len(asked) - 1])
    known = {"a": {"run": "train_vision.py", "seconds": {1: 10}}}
    content = {"jobs": known, "node": {"slurm": True, "partition": "long", "cpus_per_gpu": 3}}
    where = node.resolve(jobs_file.parsed(content), is_here=True)
    assert (where.gpus, where.on_slurm, where.words[-1]) == (4, True, "cpus_per_gpu=3")
    assert asked == [("sinfo", "-h", "-o", "%G", "-p", "long")]
    (cell,) = tasks.cells(jobs_file.parsed(content), where, Path("mine")).values()
    assert cell.composed.hydra.launcher.partition == "long" and cell.composed.hydra.launcher.signal_delay_s
    assert (cell.config.cpus_per_gpu, cell.config.gpus, cell.cfg.name) == (3, 1, "mine")
    assert places.Slurm().age_s(cell) is None  # it waits
    with pytest.raises(ValueError, match=r"node\.slurm: sinfo names no GPUs"):
        node.resolve(jobs_file.parsed({"jobs": known, "node": {"slurm": True}}))
    with pytest.raises(ValueError, match=r"jobs\.b: needs seconds, or node\.gpu: the nodes' GPU"):
        node.resolve(jobs_file.parsed({"jobs": {"b": RUN}, "node": {"slurm": True, "gpus": 2}}))
