"""The file of a plan: what it may hold, what is refused,
and what is predicted of its runs on this node.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from multicard.decide.plan import command, jobs_file, tasks
from multicard.decide.plan.jobs_file import EXAMPLES, Node
from multicard.decide.plan.tasks import PlannedNode
from multicard.estimate.estimates import Estimate, Predictor
from multicard.estimate.target import TargetMachine
from multicard.estimate.totals import exact
from multicard.machine import devices, environment, gpu_models
from multicard.records.schema_parts import PredictedInterval, Prediction
from tests.helpers import past_runs
from tests.helpers.messages import Told, codes, find, refused, says


def written(folder: Path, text: str) -> Path:
    path = folder / "jobs.yaml"
    path.write_text(text)
    return path


def test_a_file_has_a_node_and_jobs(tmp_path: Path):
    file = jobs_file.read_jobs_file(written(tmp_path, """
node: {gpus: 4}
slowdown: [1.05, 1.0, 1.2]
jobs:
  big: {run: python train_vision.py precision=bf16 'model.name=mobilenet_v2', gpus: [4, 1, 2], repeat: 2}
  table: {seconds: {1: 6266, 2: [3339, 3200, 3500]}, after: big, deadline: 1.5h}
"""))  # fmt: skip
    big, table = file.jobs
    assert big.words == ("train_vision.py", "precision=bf16", "model.name=mobilenet_v2")
    assert (big.allowed, big.task_names, big.predecessors, big.deadline_s) == (
        (1, 2, 4),
        ["big#1", "big#2"],
        (),
        None,
    )
    assert table.times == {
        1: PredictedInterval(6266, 6266, 6266),
        2: PredictedInterval(3339, 3200, 3500),
    }
    assert (table.predecessors, table.deadline_s, table.allowed) == (("big",), 5400, ())
    assert (file.node, file.slowdown) == (Node(4), PredictedInterval(1.05, 1.0, 1.2))
    twice = jobs_file.parse_jobs(
        {"jobs": {"a": {"seconds": {1: 1}}, "b": {"seconds": {1: 1}, "after": ["a", "a"]}}}
    )
    assert twice.jobs[1].predecessors == ("a",)
    least = jobs_file.parse_jobs(
        {"jobs": {"a": {"seconds": {1: 1}}}, "node": None, "slowdown": None}
    )
    assert (least.slowdown, least.node) == (jobs_file.SLOWDOWN, Node())


GOOD = {"seconds": {1: 10}}
RUN = {"run": "train_vision.py"}
REFUSED: list[tuple[Any, str, str, dict[str, Any]]] = [  # content, code, key, facts
    (None, "plan.value", "the file", {"problem": "expected keys, got null"}),
    ({"jbos": {}}, "plan.unknown-key", "jbos", {"known": ["jobs", "node", "slowdown"]}),
    ({"jobs": {}}, "plan.value", "jobs", {"example": EXAMPLES["jobs"]}),
    ({"jobs": {"a b": GOOD}}, "plan.job-name", "jobs.a b", {}),
    ({"jobs": {"a": GOOD | {"gpu": 1}}}, "plan.unknown-key", "jobs.a.gpu", {"is_cut": False}),
    ({"jobs": {"a": {}}}, "plan.empty-job", "jobs.a", {}),
    (
        {"jobs": {"a": {"seconds": 10}}},
        "plan.value",
        "jobs.a.seconds",
        {"example": EXAMPLES["seconds"]},
    ),
    (
        {"jobs": {"a": {"seconds": {0: 10}}}},
        "plan.value",
        "jobs.a.seconds",
        {"problem": "expected int >= 1"},
    ),
    (
        {"jobs": {"a": {"seconds": {1: math.nan}}}},
        "plan.value",
        "jobs.a.seconds",
        {"problem": "expected float > 0.0"},
    ),
    ({"jobs": {"a": {"seconds": {1: [1, 2, 3]}}}}, "plan.seconds-order", "jobs.a.seconds.1", {}),
    (
        {"jobs": {"a": GOOD | {"repeat": 150}, "b": GOOD | {"repeat": 51}}},
        "plan.too-many-runs",
        "jobs",
        {"runs": 201},
    ),
    (
        {"jobs": {"a": GOOD | {"repeat": 0}}},
        "plan.value",
        "jobs.a.repeat",
        {"problem": "expected int >= 1"},
    ),
    ({"jobs": {"a": GOOD | {"gpus": [1, 4]}}}, "plan.untimed", "jobs.a.gpus", {"gpus": [4]}),
    (
        {"jobs": {"a": GOOD | {"deadline": "soon"}}},
        "plan.deadline",
        "jobs.a.deadline",
        {"value": "soon"},
    ),
    (
        {"jobs": {"a": GOOD | {"after": ["b"]}}},
        "plan.no-such-job",
        "jobs.a.after",
        {"job": "b", "known": ["a"]},
    ),
    ({"jobs": {"a": GOOD | {"after": "a"}}}, "plan.cycle", "jobs.a.after", {"through": ["a"]}),
    (
        {"jobs": {"a": GOOD | {"after": "b"}, "b": GOOD | {"after": "a"}, "c": GOOD}},
        *("plan.cycle", "jobs.a.after", {"through": ["b", "a"]}),
    ),
    ({"jobs": {"a": {"run": "sleep 3"}}}, "plan.entry", "jobs.a.run", {"value": "sleep"}),
    ({"jobs": {"a": {"run": "train_vision.py 'x"}}}, "plan.quotation", "jobs.a.run", {}),
    ({"jobs": {"a": {"run": "train_vision.py -m"}}}, "plan.flag", "jobs.a.run", {"word": "-m"}),
    (
        {"jobs": {"a": {"run": "train_vision.py gpus=2"}}},
        "plan.planned-key",
        "jobs.a.run",
        {"group": "gpus"},
    ),
    (
        {"jobs": {"a": {"run": "train_vision.py predict.gpu=t4"}}},
        "plan.planned-key",
        "jobs.a.run",
        {"group": "predict"},
    ),
    (
        {"jobs": {"a": {"run": "train_vision.py hydra/launcher=local"}}},
        *("plan.planned-key", "jobs.a.run", {"group": "hydra", "word": "hydra/launcher=local"}),
    ),
    (
        {"jobs": {"a": {"run": "train_vision.py name=x"}}},
        "plan.planned-key",
        "jobs.a.run",
        {"group": "name"},
    ),
    (
        {"jobs": {"a": {"run": "train_vision.py batch_size=auto"}}},
        "plan.auto",
        "jobs.a.run",
        {"word": "batch_size=auto"},
    ),
    (
        {"jobs": {"a": {"run": "train_vision.py lr=${oc.env:HOME}"}}},
        "plan.interpolation",
        "jobs.a.run",
        {},
    ),
    ({"jobs": {"a": GOOD}, "slowdown": 0.9}, "plan.slowdown-range", "slowdown", {}),
    ({"jobs": {"a": GOOD}, "node": {"gpu": "h100-80gb"}}, "plan.no-node-gpus", "node.gpu", {}),
    (
        {"jobs": {"a": GOOD}, "node": {"gpus": 2, "gpu": "x"}},
        "predict.gpu",
        "node.gpu",
        {"known": [*gpu_models.GPUS]},
    ),
    ({"jobs": {"a": GOOD}, "node": {"cores": 2}}, "plan.unknown-key", "node.cores", {}),
    ({"jobs": {"a": GOOD | {"name": "b"}}}, "plan.name-twice", "jobs.a.name", {}),
]


@pytest.mark.parametrize(("content", "code", "key", "facts"), REFUSED)
def test_a_mistake_is_one_line_with_the_key(
    content: Any, code: str, key: str, facts: dict[str, Any]
):
    with refused(code, key=key, **facts) as caught:
        jobs_file.parse_jobs(content)
    assert "\n" not in caught.value.message.sentence


TENFOLD = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefgh")
)
MERGED = (
    TENFOLD.replace("[*", "{<<: [*")
    .replace("]\n", "]}\n")
    .replace("[x,x,x,x,x,x,x,x,x,x]}", "{x: 1, y: 2}")
)
NO_YAML = [  # content, and the key and facts where the plan's own code refuses it, else None
    (TENFOLD, None),
    (MERGED, None),
    ("[" * 50_000, None),
    ("- " * 50_000, None),
    ("jobs: {a: {seconds: {1: 5}, deadline: &a [*a]}}", None),
    ("jobs: ${oc.env:HOME}", Told("plan.value", "jobs", {"problem": "expected keys, got str"})),
    ("{jobs: {a: {seconds: {1: 5, 1: 6}}}}", None),
    ('jobs: {1: {seconds: {1: 5}}, "1": {seconds: {1: 5}}}', None),
    (
        "jobs: {a: {seconds: {1: 5}, deadline: 1:30}}",
        Told("plan.deadline", "jobs.a.deadline", {"value": "1:30"}),
    ),
    (
        "jobs: {a: {run: train_vision.py x=fp32,bf16}}",
        Told("plan.unknown-key", "jobs.a.bf16", {"is_cut": True}),
    ),
    ("null: 3", Told("plan.value", "the file", {"problem": "expected str"})),
    ("jobs: 3\n---\njobs: 4", None),
    ("3", Told("plan.value", "the file", {"problem": "expected keys, got int"})),
    ("jobs: {a: {", None),
    ("\x00", None),
    ("&a [*a]", None),
    ("jobs: {[a]: 3}", None),
]


@pytest.mark.parametrize(("content", "by_plan"), NO_YAML)
def test_what_yaml_reads_otherwise_is_refused_in_a_line(
    tmp_path: Path, content: str, by_plan: Told | None, capsys
):
    path = written(tmp_path, content)
    assert command.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and not printed.out
    file = find(printed.err, "plan.file", path=str(path))
    if by_plan is not None:
        assert says(printed.err, by_plan.code, key=by_plan.key, **by_plan.facts)
        assert file.key == by_plan.key


def test_what_the_command_cannot_do_is_refused_before_it_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert command.main([str(tmp_path / "nowhere.yaml"), "--seconds", "0"]) == 1
    assert says(capsys.readouterr().err, "plan.search-range", key="--seconds", value=0.0)
    assert command.main([str(tmp_path / "nowhere.yaml")]) == 1
    printed = capsys.readouterr().err
    assert (
        says(printed, "plan.unreadable", path=f"{tmp_path}/nowhere.yaml")
        and printed.count("\n") == 1
    )


H100 = TargetMachine("h100-nvl", None, "cuda", "NVIDIA H100 NVL", 94 * 10**9)


def predicted(config: Any) -> Prediction:
    """By number of GPUs and batch size: 64 does not fit, 8 is not known on two or more."""
    if config.batch_size == 8 and config.gpus > 1:
        return Prediction("unknown", about="not measured")
    if config.batch_size == 4:  # of which a plan takes nothing
        return Prediction(
            "roofline", about="by published rates", step_s=exact(1.0), total_s=exact(9.0)
        )
    total_s = PredictedInterval(600 / config.gpus, 500 / config.gpus, 700 / config.gpus)
    fits = "no" if config.batch_size == 64 else "yes"
    return Prediction(
        "measured", 3, "runs", exact(0.1), total_s, energy_joules=exact(1e5), fits=fits
    )


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A node of four GPUs."""
    gpus = [{"name": "NVIDIA H100 NVL", "memory_bytes": 94 * 10**9}] * 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "gpus", lambda: gpus)
    monkeypatch.setattr(devices, "visible_gpus", lambda: [f"GPU-{number}" for number in range(4)])
    monkeypatch.setattr(
        tasks,
        "estimate",
        lambda configs, *_: [Estimate(config, H100, predicted(config)) for config in configs],
    )


def planned(content: Any) -> tuple[list[tasks.JobRun], jobs_file.JobsFile, PlannedNode]:
    file = jobs_file.parse_jobs(content)
    where = tasks.resolve(file)
    return tasks.runs(file, where, Path("multirun", "s")), file, where


def numbers(
    runs: Sequence[tasks.JobRun], file: jobs_file.JobsFile, where: PlannedNode
) -> list[int]:
    return [option.gpus for option in tasks.tasks(file, where, runs)[0].options]


@pytest.mark.usefixtures("on_gpus")
def test_runs_are_predicted_on_every_number_of_gpus():
    runs, file, where = planned({"jobs": {"a": {"run": "train_vision.py precision=bf16"}}})
    assert (where.gpus, where.on_gpus, where.name) == (4, True, "4 GPUs NVIDIA H100 NVL")
    beside_s = tasks.START.value + tasks.END.value
    assert [run.seconds and run.seconds.value for run in runs] == [
        600 + beside_s,
        300 + beside_s,
        150 + beside_s,
    ]
    assert numbers(runs, file, where) == [1, 2, 4] and runs[0].basis == "measured"
    assert not tasks.probes(runs, where, Path("s"))


def test_the_start_of_a_races_cell_beside_others_is_none_of_a_run():
    here, wanted = past_runs.CPU, past_runs.config(past_runs.vision())
    alone = past_runs.past(past_runs.vision(startup_s=4.0), past_runs.raced())  # 99 s
    start_s = Predictor(here, alone, None).start_s(wanted)
    assert start_s is not None and start_s.value == pytest.approx(4.0)
    assert Predictor(here, past_runs.past(past_runs.raced()), None).start_s(wanted) is None


@pytest.mark.usefixtures("on_gpus")
def test_unknown_times_are_named_with_the_commands_of_their_probes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: {a: {run: train_vision.py batch_size=8, gpus: [2, 4]}}")
    assert command.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert codes(printed.err) == ["plan.times-unknown", "plan.not-on"] and says(
        printed.err, "plan.times-unknown", jobs=1
    )
    assert (
        says(printed.err, "plan.not-on", gpus=[2, 4], reason="not measured")
        and "\n  a: " in printed.err
    )
    assert codes(printed.out) == ["plan.probe-first"]
    share = "hydra/launcher=submitit_local exclusive=false max_jobs=1"
    probe = (
        f"  python train_vision.py -m batch_size=8 {share} gpus={{}} probe=true name=jobs"
        " rerun=true\n"
    )
    assert printed.out.endswith(f"\n{probe.format(2)}{probe.format(4)}")


@pytest.mark.usefixtures("on_gpus")
def test_a_plan_rests_on_no_roofline(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "jobs.yaml"
    path.write_text("jobs: {a: {run: train_vision.py batch_size=4}}")
    assert command.main([str(path)]) == 1
    printed = capsys.readouterr()
    assert says(printed.err, "plan.times-unknown", jobs=1) and codes(printed.out) == [
        "plan.probe-first"
    ]
    assert says(printed.err, "plan.not-on", gpus=[1, 2, 4], reason="by published rates")


@pytest.mark.usefixtures("on_gpus")
def test_numbers_of_gpus_that_are_unknown_or_do_not_fit_are_left_out():
    some, big = {"run": "train_vision.py batch_size=8"}, {"run": "train_vision.py batch_size=64"}
    runs, file, where = planned({"jobs": {"some": some}})
    assert numbers(runs, file, where) == [1]
    (note,), unknown = tasks.notes(file, runs)
    left_out = find(note, "plan.left-out", job="some")
    assert (
        says(left_out.facts["reasons"], "plan.not-on", gpus=[2, 4], reason="not measured")
        and unknown == []
    )
    runs, file, _ = planned({"jobs": {"some": some, "big": big}})
    with refused("plan.cannot-run", key="jobs.big") as caught:
        tasks.notes(file, runs)
    assert says(
        caught.value.facts["reasons"],
        "plan.not-on",
        gpus=[1, 2, 4],
        reason=Told("plan.needs-more-memory"),
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("precision=fp7", "precision"),
        ("btach_size=3", "btach_size"),
        ("batch_size=1,2", "batch_size=1,2"),
        ("method=lora", "tune_llm.py"),
    ],
)
@pytest.mark.usefixtures("on_gpus")
def test_words_that_cannot_be_composed_are_refused_with_the_job(words: str, named: str):
    for more in ({}, GOOD):  # also where its times are known
        with refused("plan.run", key="jobs.a.run") as caught:
            planned({"jobs": {"a": {"run": f"train_vision.py {words}"} | more}})
        reason = caught.value.facts["reason"]
        assert named in reason and says(reason, "plan.sweep", word=words) == ("," in words)


@pytest.mark.usefixtures("on_gpus")
def test_a_cell_that_is_refused_has_the_reason():
    runs, _, _ = planned({"jobs": {"a": {"run": "train_vision.py batch_size=0"}}})
    assert all("batch_size" in run.problem for run in runs)


def test_cpu_ranks_stand_in_for_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "gpus", list)
    monkeypatch.setattr(environment, "cores", lambda: 4)
    run = {"a": RUN}
    for given, gpus, words in (
        (None, 4, "cpus_per_gpu=1"),
        ({"gpus": 2}, 2, "cpus_per_gpu=2"),
        ({"cpus_per_gpu": 4}, 1, "cpus_per_gpu=4"),
    ):
        where = tasks.resolve(
            jobs_file.parse_jobs({"jobs": run} | ({"node": given} if given else {}))
        )
        assert (where.gpus, where.on_gpus, where.words) == (gpus, False, (words,))
    with refused("plan.too-few-cores", key="node.gpus", value=8, cores=4):
        tasks.resolve(jobs_file.parse_jobs({"jobs": run, "node": {"gpus": 8}}))
    # only known times
    assert tasks.resolve(jobs_file.parse_jobs({"jobs": {"a": GOOD}, "node": {"gpus": 8}})).gpus == 8
    elsewhere = jobs_file.parse_jobs({"jobs": run, "node": {"gpus": 8, "gpu": "h100-80gb"}})
    where = tasks.resolve(elsewhere)
    assert where.on_gpus and where.words == ("predict.gpu=h100-80gb",)
    with refused("plan.other-node", key="node.gpu"):
        tasks.resolve(elsewhere, is_here=True)
