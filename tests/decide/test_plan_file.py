"""The file of a plan: what it may hold, and what is refused."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from multicard.decide.plan import command, jobs_file
from multicard.decide.plan.jobs_file import Node
from multicard.records.schema_parts import Interval


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
    (
        {"jobs": {"a": {"seconds": {1: [1, 2, 3]}}}},
        "jobs.a.seconds.1: must be a number, or [value, low, high]",
    ),
    ({"jobs": {"a": GOOD | {"repeat": 150}, "b": GOOD | {"repeat": 51}}}, "jobs: are 201 runs; plan 200 at a time"),
    ({"jobs": {"a": GOOD | {"repeat": 0}}}, "jobs.a.repeat: expected `int` >= 1; write 3"),
    ({"jobs": {"a": GOOD | {"gpus": [1, 4]}}}, "jobs.a.gpus: [4] have no time in seconds; add it, or leave them out"),
    ({"jobs": {"a": GOOD | {"deadline": "soon"}}}, "jobs.a.deadline=soon: must be a time above 0, as 90s"),
    ({"jobs": {"a": GOOD | {"after": ["b"]}}}, "jobs.a.after: b: no such job; there are a"),
    ({"jobs": {"a": GOOD | {"after": "a"}}}, "jobs.a.after: waits for itself"),
    (
        {"jobs": {"a": GOOD | {"after": "b"}, "b": GOOD | {"after": "a"}, "c": GOOD}},
        "jobs.a.after: waits for itself, by way of b, a",
    ),
    ({"jobs": {"a": {"run": "sleep 3"}}}, "jobs.a.run: begins with train_vision.py or tune_llm.py"),
    ({"jobs": {"a": {"run": "train_vision.py 'x"}}}, "jobs.a.run: no closing quotation"),
    ({"jobs": {"a": {"run": "train_vision.py -m"}}}, "jobs.a.run: -m: a job is one run"),
    ({"jobs": {"a": {"run": "train_vision.py gpus=2"}}}, "jobs.a.run: gpus=2: the job's gpus: "),
    ({"jobs": {"a": {"run": "train_vision.py predict.gpu=t4"}}}, "jobs.a.run: predict.gpu=t4: a plan predicts"),
    ({"jobs": {"a": {"run": "train_vision.py hydra/launcher=local"}}}, "jobs.a.run: hydra/launcher=local: "),
    ({"jobs": {"a": {"run": "train_vision.py name=x"}}}, "jobs.a.run: name=x: --name names all runs of the plan"),
    ({"jobs": {"a": GOOD}, "slowdown": 0.9}, "slowdown: must be 1 or more, a number"),
    ({"jobs": {"a": GOOD}, "node": {"gpu": "h100-80gb"}}, "node.gpu: needs node.gpus"),
    ({"jobs": {"a": GOOD}, "node": {"gpus": 2, "gpu": "nonsense"}}, "node.gpu=nonsense: no such GPU; choose one"),
    ({"jobs": {"a": GOOD}, "node": {"cores": 2}}, "node.cores: no such key"),
    ({"jobs": {"a": GOOD | {"name": "b"}}}, "jobs.a.name: no such key; a is its name"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_a_mistake_is_one_line_with_the_key(content: Any, message: str):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        jobs_file.parsed(content)
    assert "\n" not in str(refused.value)


NO_YAML = [
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
def test_what_yaml_reads_otherwise_is_refused_in_a_line(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
):
    assert command.main([str(written(tmp_path, content))]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"refused: {tmp_path}") and printed.err.count("\n") == 1 and not printed.out
    assert re.search(message, printed.err)


def test_what_the_command_cannot_do_is_refused_before_it_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert command.main([str(tmp_path / "nowhere.yaml"), "--seconds", "0"]) == 1
    assert capsys.readouterr().err == "refused: --seconds 0: must be from 1 to 3600\n"
    assert command.main([str(tmp_path / "nowhere.yaml")]) == 1
    assert capsys.readouterr().err == f"refused: {tmp_path}/nowhere.yaml: no such file or directory\n"
