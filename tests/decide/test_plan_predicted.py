"""Plans of jobs: runs that are predicted, on the node that there is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicard.decide.plan import command, durations, jobs_file, node, runs
from multicard.estimate.estimates import Estimate, Predictor
from multicard.estimate.target import Target
from multicard.machine import devices, environment, slurm
from multicard.records.schema_parts import Interval, Prediction
from tests.conftest import ROOT
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
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A node of four GPUs, and the probes that were run on it."""
    gpus = [{"name": "NVIDIA H100 NVL", "memory_bytes": 94 * 10**9}] * 4
    monkeypatch.setattr(environment, "gpus", lambda: gpus)
    monkeypatch.setattr(devices, "visible_gpus", lambda: [f"GPU-{number}" for number in range(4)])
    monkeypatch.setattr(
        runs, "estimate", lambda configs, *_: [Estimate(config, H100, predicted(config)) for config in configs]
    )
    probes: list[list[str]] = []
    monkeypatch.setattr(command, "subprocess", SimpleNamespace(run=lambda words, **_: probes.append(words)))
    return probes


def test_runs_are_predicted_on_every_number_of_gpus(on_gpus: list[list[str]], tmp_path: Path):
    file = jobs_file.parsed({"jobs": {"a": {"run": "train_vision.py precision=bf16"}}})
    where = node.resolve(file)
    assert (where.gpus, where.on_gpus, where.name) == (4, True, "4 GPUs NVIDIA H100 NVL")
    found = runs.estimated(file.jobs, where, tmp_path / "multirun" / "s")
    assert [run.gpus for run in found] == [1, 2, 4]
    beside_s = runs.START.value + runs.END.value
    assert [run.seconds and run.seconds.value for run in found] == [600 + beside_s, 300 + beside_s, 150 + beside_s]
    (one,) = durations.tasks(file, where, found).tasks
    assert len(one.options) == 3 and one.options[0].basis == "measured"
    assert runs.probes(found, where) == []


def test_the_start_of_a_races_cell_beside_others_is_none_of_a_run():
    here, wanted = past_runs.CPU, past_runs.config(past_runs.vision())
    alone = past_runs.past(past_runs.vision(startup_s=4.0), past_runs.raced())  # 99 s
    start_s = Predictor(here, alone, None).start_s(wanted)
    assert start_s is not None and start_s.value == pytest.approx(4.0)
    assert Predictor(here, past_runs.past(past_runs.raced()), None).start_s(wanted) is None


def test_unknown_times_are_named_with_their_probes(
    on_gpus: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: {a: {run: train_vision.py batch_size=8, gpus: [2, 4]}}")
    assert command.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err == "refused: no time is known of 1 job:\n  a: no run like it on h100-nvl\n" and not on_gpus
    probe = "train_vision.py -m hydra/launcher=submitit_local exclusive=false batch_size=8 gpus=2 probe=true"
    assert f"  python {probe}\n" in printed.out
    assert command.main([str(path), "--probe"]) == 1  # the stand-in for a probe teaches nothing
    assert on_gpus[0][1:] == [str(ROOT / "train_vision.py"), *probe.split()[1:]]  # where the command was called


def test_numbers_of_gpus_that_are_unknown_or_do_not_fit_are_left_out(on_gpus: list[list[str]], tmp_path: Path):
    jobs = {"some": {"run": "train_vision.py batch_size=8"}, "none": {"run": "train_vision.py batch_size=64"}}
    file = jobs_file.parsed({"jobs": jobs})
    where = node.resolve(file)
    found = runs.estimated(file.jobs, where, tmp_path / "multirun" / "s")
    with pytest.raises(ValueError, match=r"jobs\.none: can run on no allowed number of GPUs .* does not fit"):
        durations.tasks(file, where, found)
    file = jobs_file.parsed({"jobs": {"some": jobs["some"]}})
    tasks = durations.tasks(file, where, runs.estimated(file.jobs, where, tmp_path / "multirun" / "s"))
    assert [option.gpus for option in tasks.tasks[0].options] == [1] and not tasks.unknown
    assert tasks.notes == ("some: not planned on 2, 4 GPUs, whose time is not known",)


def test_words_that_cannot_be_composed_are_refused_with_the_job(on_gpus: list[list[str]], tmp_path: Path):
    for words, message in (
        ("precision=fp7", "precision=fp7: no such option"),
        ("btach_size=3", "btach_size: no such key"),
        ("batch_size=1,2", "batch_size=1,2: is a sweep; write a job for each value"),
        ("method=lora", "method: belongs to tune_llm.py"),
    ):
        file = jobs_file.parsed({"jobs": {"a": {"run": f"train_vision.py {words}"}}})
        with pytest.raises(ValueError, match=rf"^jobs\.a\.run: {message}"):
            runs.estimated(file.jobs, node.resolve(file), tmp_path / "multirun" / "s")
    file = jobs_file.parsed({"jobs": {"a": {"run": "train_vision.py batch_size=0"}}})
    found = runs.estimated(file.jobs, node.resolve(file), tmp_path / "multirun" / "s")
    assert {run.problem for run in found} == {"batch_size=0: must be 1 or more"}


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
    assert elsewhere.on_gpus and "predict.gpu=h100-80gb" in elsewhere.words
    assert elsewhere.packing == ("exclusive=false",)


def test_a_node_of_slurm_has_the_gpus_that_sinfo_says(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, ...]] = []
    answers: list[str | None] = ["gpu:a100:4(S:0-1),shard:8\n(null)\ngpu:2\n", None]
    monkeypatch.setattr(slurm, "ask", lambda *words: asked.append(words) or answers[len(asked) - 1])
    known = {"a": {"run": "train_vision.py", "seconds": {1: 10}}}
    content = {"jobs": known, "node": {"slurm": True, "partition": "long", "cpus_per_gpu": 3}}
    where = node.resolve(jobs_file.parsed(content), is_here=True)
    assert (where.gpus, where.on_slurm, where.words) == (4, True, ("cpus_per_gpu=3",))
    assert asked == [("sinfo", "-h", "-o", "%G", "-p", "long")]
    (cell,) = runs.cells(jobs_file.parsed(content), where, Path("mine")).values()
    assert cell.composed.hydra.launcher.partition == "long"
    assert (cell.config.cpus_per_gpu, cell.config.gpus, cell.cfg.name) == (3, 1, "mine")
    with pytest.raises(ValueError, match=r"node\.slurm: sinfo names no GPUs"):
        node.resolve(jobs_file.parsed({"jobs": known, "node": {"slurm": True}}))
    with pytest.raises(ValueError, match=r"jobs\.b: needs seconds, or node\.gpu: the nodes' GPU"):
        node.resolve(jobs_file.parsed({"jobs": {"b": RUN}, "node": {"slurm": True, "gpus": 2}}))
