"""The file of a plan: what it may hold, what is refused, and what is predicted of its runs on this node."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from multicard.decide.plan import command, jobs_file, tasks
from multicard.decide.plan.jobs_file import Node
from multicard.decide.plan.tasks import PlannedNode
from multicard.estimate.estimates import Estimate, Predictor
from multicard.estimate.target import Target
from multicard.estimate.totals import exact
from multicard.machine import devices, environment
from multicard.records.schema_parts import Interval, Prediction
from tests.helpers import past_runs


def written(folder: Path, text: str) -> Path:
    path = folder / "jobs.yaml"
    path.write_text(text)
    return path


def test_a_file_has_a_node_and_jobs(tmp_path: Path):
    file = jobs_file.read(written(tmp_path, """
node: {gpus: 4}
slowdown: [1.05, 1.0, 1.2]
jobs:
  big: {run: python train_vision.py precision=bf16 'model.name=mobilenet_v2', gpus: [4, 1, 2], repeat: 2}
  table: {seconds: {1: 6266, 2: [3339, 3200, 3500]}, after: big, deadline: 1.5h}
"""))  # fmt: skip
    big, table = file.jobs
    assert big.words == ("train_vision.py", "precision=bf16", "model.name=mobilenet_v2")
    assert (big.allowed, big.task_names, big.predecessors, big.deadline_s) == ((1, 2, 4), ["big#1", "big#2"], (), None)
    assert table.times == {1: Interval(6266, 6266, 6266), 2: Interval(3339, 3200, 3500)}
    assert (table.predecessors, table.deadline_s, table.allowed) == (("big",), 5400, ())
    assert (file.node, file.slowdown) == (Node(4), Interval(1.05, 1.0, 1.2))
    twice = jobs_file.parsed({"jobs": {"a": {"seconds": {1: 1}}, "b": {"seconds": {1: 1}, "after": ["a", "a"]}}})
    assert twice.jobs[1].predecessors == ("a",)
    least = jobs_file.parsed({"jobs": {"a": {"seconds": {1: 1}}}, "node": None, "slowdown": None})
    assert (least.slowdown, least.node) == (jobs_file.SLOWDOWN, Node())


GOOD = {"seconds": {1: 10}}
RUN = {"run": "train_vision.py"}
SECONDS = "; write {1: 600, 2: [320, 300, 350]}, by number of GPUs, as value or [value, low, high]"
REFUSED: list[tuple[Any, str]] = [
    (None, "the file: expected `keys`, got `null`"),
    ({"jbos": {}}, "jbos: no such key; there are jobs, node, slowdown"),
    ({"jobs": {}}, "jobs: expected `keys` of length >= 1; write {name: {run: train_vision.py}}"),
    ({"jobs": {"a b": GOOD}}, "jobs.a b: a name has letters"),
    ({"jobs": {"a": GOOD | {"gpu": 1}}}, "jobs.a.gpu: no such key; there are run, "),
    ({"jobs": {"a": {}}}, "jobs.a: needs run or seconds"),
    ({"jobs": {"a": {"seconds": 10}}}, f"jobs.a.seconds: expected `keys | null`, got `int`{SECONDS}"),
    ({"jobs": {"a": {"seconds": {0: 10}}}}, f"jobs.a.seconds: expected `int` >= 1{SECONDS}"),
    ({"jobs": {"a": {"seconds": {1: math.nan}}}}, f"jobs.a.seconds: expected `float` > 0.0{SECONDS}"),
    ({"jobs": {"a": {"seconds": {1: [1, 2, 3]}}}}, "jobs.a.seconds.1: must be a number, or [value, low, high]"),
    ({"jobs": {"a": GOOD | {"repeat": 150}, "b": GOOD | {"repeat": 51}}}, "jobs: are 201 runs; plan 200 at a time"),
    ({"jobs": {"a": GOOD | {"repeat": 0}}}, "jobs.a.repeat: expected `int` >= 1; write 3"),
    ({"jobs": {"a": GOOD | {"gpus": [1, 4]}}}, "jobs.a.gpus: [4] have no time in seconds; add it, or leave them out"),
    ({"jobs": {"a": GOOD | {"deadline": "soon"}}}, "jobs.a.deadline=soon: must be a time above 0, as 90s"),
    ({"jobs": {"a": GOOD | {"after": ["b"]}}}, "jobs.a.after: b: no such job; there are a"),
    ({"jobs": {"a": GOOD | {"after": "a"}}}, "jobs.a.after: waits for itself"),
    ({"jobs": {"a": GOOD | {"after": "b"}, "b": GOOD | {"after": "a"}, "c": GOOD}}, "for itself, by way of b, a"),
    ({"jobs": {"a": {"run": "sleep 3"}}}, "jobs.a.run: begins with train_vision.py or tune_llm.py"),
    ({"jobs": {"a": {"run": "train_vision.py 'x"}}}, "jobs.a.run: no closing quotation"),
    ({"jobs": {"a": {"run": "train_vision.py -m"}}}, "jobs.a.run: -m: a job is one run"),
    ({"jobs": {"a": {"run": "train_vision.py gpus=2"}}}, "jobs.a.run: gpus=2: the job's gpus: "),
    ({"jobs": {"a": {"run": "train_vision.py predict.gpu=t4"}}}, "jobs.a.run: predict.gpu=t4: a plan predicts"),
    ({"jobs": {"a": {"run": "train_vision.py hydra/launcher=local"}}}, "jobs.a.run: hydra/launcher=local: "),
    ({"jobs": {"a": {"run": "train_vision.py name=x"}}}, "jobs.a.run: name=x: --name names all runs of the plan"),
    ({"jobs": {"a": {"run": "train_vision.py lr=${oc.env:HOME}"}}}, "lr=${oc.env:HOME}: nothing is looked up for"),
    ({"jobs": {"a": GOOD}, "slowdown": 0.9}, "slowdown: must be 1 or more, a number"),
    ({"jobs": {"a": GOOD}, "node": {"gpu": "h100-80gb"}}, "node.gpu: needs node.gpus"),
    ({"jobs": {"a": GOOD}, "node": {"gpus": 2, "gpu": "nonsense"}}, "node.gpu=nonsense: no such GPU; choose one"),
    ({"jobs": {"a": GOOD}, "node": {"cores": 2}}, "node.cores: no such key"),
    ({"jobs": {"a": GOOD | {"name": "b"}}}, "jobs.a.name: no such key; a is its name"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_a_mistake_is_one_line_with_the_key(content: Any, message: str):
    with pytest.raises(ValueError, match=rf"^.*{re.escape(message)}.*\Z"):  # one line
        jobs_file.parsed(content)


TENFOLD = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefgh")
)
MERGED = TENFOLD.replace("[*", "{<<: [*").replace("]\n", "]}\n").replace("[x,x,x,x,x,x,x,x,x,x]}", "{x: 1, y: 2}")
NO_YAML = [
    (TENFOLD, "line 5: has more than 100,000 values, those behind aliases counted each time"),
    (MERGED, "line 6: has more than 100,000 values"),
    ("[" * 50_000, "line 1: is nested more than 100 deep"),
    ("- " * 50_000, "line 1: is nested more than 100 deep"),
    ("jobs: {a: {seconds: {1: 5}, deadline: &a [*a]}}", "line 1: has more than 100,000 values"),
    ("jobs: ${oc.env:HOME}", r"jobs: expected `keys`, got `str`"),
    ("{jobs: {a: {seconds: {1: 5, 1: 6}}}}", "line 1: found duplicate key 1"),
    ('jobs: {1: {seconds: {1: 5}}, "1": {seconds: {1: 5}}}', "line 1: found duplicate key 1"),
    ("jobs: {a: {seconds: {1: 5}, deadline: 1:30}}", "jobs.a.deadline: expected `str | null`, got `int`; write 90s"),
    ("jobs: {a: {run: train_vision.py x=fp32,bf16}}", "jobs.a.bf16: no such key; .*; a value with a comma needs quot"),
    ("null: 3", "the file: expected `str`"),
    ("jobs: 3\n---\njobs: 4", "line 2: expected a single document in the stream, but found another document"),
    ("3", "the file: expected `keys`, got `int`"),
    ("jobs: {a: {", ""),
    ("\x00", ""),
    ("&a [*a]", ""),
    ("jobs: {[a]: 3}", ""),
]


@pytest.mark.parametrize(("content", "message"), NO_YAML)
def test_what_yaml_reads_otherwise_is_refused_in_a_line(tmp_path: Path, content: str, message: str, capsys):
    assert command.main([str(written(tmp_path, content))]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"refused: {tmp_path}") and printed.err.count("\n") == 1 and not printed.out
    assert re.search(message, printed.err)


def test_what_the_command_cannot_do_is_refused_before_it_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert command.main([str(tmp_path / "nowhere.yaml"), "--seconds", "0"]) == 1
    assert capsys.readouterr().err == "refused: --seconds 0: must be from 1 to 3600\n"
    assert command.main([str(tmp_path / "nowhere.yaml")]) == 1
    assert capsys.readouterr().err == f"refused: {tmp_path}/nowhere.yaml: no such file or directory\n"


H100 = Target("h100-nvl", None, "cuda", "NVIDIA H100 NVL", 94 * 10**9)


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
    assert printed.err == "refused: no time is known of 1 job:\n  a: gpus=2,4: no run like it on h100-nvl\n"
    share = "hydra/launcher=submitit_local exclusive=false max_jobs=1"
    probe = f"  python train_vision.py -m batch_size=8 {share} gpus={{}} probe=true name=jobs rerun=true\n"
    assert printed.out == f"to know all times, probe first, one after the other:\n{probe.format(2)}{probe.format(4)}"


@pytest.mark.usefixtures("on_gpus")
def test_numbers_of_gpus_that_are_unknown_or_do_not_fit_are_left_out():
    some, big = {"run": "train_vision.py batch_size=8"}, {"run": "train_vision.py batch_size=64"}
    runs, file, where = planned({"jobs": {"some": some}})
    assert numbers(runs, file, where) == [1]
    assert tasks.notes(file, runs) == (["some: not planned with gpus=2,4: no run like it on h100-nvl"], [])
    runs, file, _ = planned({"jobs": {"some": some, "big": big}})
    with pytest.raises(ValueError, match=r"jobs\.big: cannot run \(gpus=1,2,4: does not fit into the memory"):
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
