"""Only runs that differ in one thing are compared."""

from typing import Any

from multicard.records import comparable
from tests.helpers import records


def result(status: str = "ok", own: dict[str, Any] | None = None, **changes: Any) -> Any:
    config: dict[str, Any] = {
        "name": "x",
        "gpus": 1,
        "precision": {"name": "fp32"},
        "dataset": {"name": "digits", "train_limit": None, "mean": [0.1]},
        "lr": 0.05,
    }
    hardware = changes.pop("hardware", "cpu")
    commit = changes.pop("commit", "abc")
    dirty = changes.pop("dirty", False)
    for key, value in changes.items():
        group, _, inner = key.partition("__")
        if inner:
            config[group] = config[group] | {inner: value}
        else:
            config[group] = value
    axes = {"gpus": config["gpus"], "precision": config["precision"]["name"], "dataset": config["dataset"]["name"]}
    state = {"hardware": hardware, "commit": commit, "dirty": dirty}
    made = {"status": status, "axes": axes | {"device": "cpu"}, "config": config, **state}
    return records.as_record(made | (own or {}))


def test_a_reference_differs_on_its_axis_alone():
    one, two = result(), result(gpus=2)
    assert comparable.reference(two, [two, one], gpus=1) is one
    assert comparable.reference(one, [two, one], gpus=1) is one
    assert comparable.reference(two, [two, result(gpus=1, name="y")], gpus=1) is not None  # the name measures nothing
    for other in (
        result(lr=0.1),
        result(dataset__train_limit=5),
        result(precision__name="fp64"),
        result(hardware="H200"),
        result(commit="def"),
        result(dirty=True),
        result(status="failed"),
    ):
        assert comparable.reference(two, [two, other], gpus=1) is None


def test_an_option_counts_with_all_its_keys():
    fp64 = result(precision={"name": "fp64", "extra": 1})
    assert comparable.reference(result(), [fp64], precision="fp64") is fp64


def test_what_differs_beside_the_axes_is_shown():
    assert comparable.varied([result(), result()], ("gpus",)) == ["gpus"]
    assert comparable.varied([result(), result(precision__name="fp64")], ("gpus",)) == ["gpus", "precision"]
    limits = [result(), result(dataset__train_limit=5)]
    assert comparable.varied(limits, ("gpus",)) == ["gpus", "dataset.train_limit"]
    assert [comparable.cell(r, "dataset.train_limit") for r in limits] == ["null", "5"]
    other_set = result(dataset={"name": "mnist", "train_limit": None, "mean": [0.2], "root": "x"})
    assert comparable.varied([result(), other_set], ()) == ["dataset"]  # and not all that comes with it


def test_a_refused_run_has_no_configuration():
    refused = result(status="refused")
    refused.config = {}
    assert comparable.varied([refused, result(gpus=2)], ()) == ["gpus"]
    assert comparable.cell(refused, "lr") == "-" and comparable.cell(refused, "gpus") == "1"


def test_several_commits_and_machines_are_said():
    assert comparable.notes([result(), result(gpus=2)]) == []
    commits, machines = comparable.notes([result(), result(commit="def", dirty=True, hardware="H200")])
    assert "abc, def+changes" in commits and "H200, cpu" in machines


def test_runs_of_several_pieces_are_said():
    whole = result(own={"segments": [{"commit": "abc", "steps": 9}]})
    stopped = result(own={"segments": [{"commit": "abc", "steps": 4}, {"commit": "abc", "steps": 5}]})
    anew = result(own={"segments": [{"commit": "abc", "steps": 0}, {"commit": "def", "steps": 9}]})
    assert comparable.notes([whole]) == []
    assert comparable.notes([whole, stopped]) == ["1 stopped and started again: see segments in the records"]
    (note,) = comparable.notes([stopped, anew])
    shares = "1 of them from the start, 1 of them on another commit"
    assert note == f"2 stopped and started again, {shares}: see segments in the records"


def test_an_input_that_is_not_as_asked_is_said():
    fits = result(own={"input": {"loader": "device", "train": {"mode": "resident"}}})
    streamed = result(own={"input": {"loader": "device", "train": {"mode": "streamed"}}})
    (note,) = comparable.notes([fits, streamed, result()])
    assert note.startswith("1 with more images than dataset.device_budget_bytes")
    parts = {"train": {"skipped": 2}, "test": {"skipped": 1}}
    assert comparable.notes([result(own={"input": {"decoded": parts}})]) == [
        "up to 3 broken images left out: see input in the records"
    ]


def test_runs_that_others_disturbed_are_said():
    alone = result(own={"gpu": {"disturbed_by": []}})
    shared = result(own={"gpu": {"disturbed_by": [{"name": "solve", "pid": 7}, {"name": None, "pid": 8}]}})
    assert comparable.notes([alone, result(own={"gpu": None})]) == []
    assert comparable.notes([alone, shared, shared]) == [
        "! others used the GPUs of 2 while they were measured (8, solve): see gpu.disturbed_by in the records"
    ]


def test_what_follows_from_another_axis_is_not_shown():
    single, distributed = result(recipe="auto"), result(recipe="auto", gpus=2)
    single.axes["recipe"], distributed.axes["recipe"] = "single_device", "distributed"
    assert comparable.varied([single, distributed], ()) == ["gpus"]
    forced = result(recipe="distributed")
    forced.axes["recipe"] = "distributed"
    assert comparable.varied([single, forced], ()) == ["recipe"]


def test_bytes_that_a_profiler_saw_otherwise_are_said():
    def profiled(disagreement: float | None) -> Any:
        return result(own={"profile": {"h2d": {"disagreement": disagreement}}})

    assert comparable.notes([profiled(0.02), profiled(None), result(own={"profile": {"error": "x"}})]) == []
    assert comparable.notes([profiled(0.01), profiled(-0.05)]) == [
        "profiled bytes to the device are -5% off those counted: see profile.h2d in the records"
    ]
