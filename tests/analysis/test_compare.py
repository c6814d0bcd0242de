"""Intervals of ratios, and `compare`: two sweeps cell by cell."""

import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.commands import compare, compared_cells, gate
from analysis.commands.gate import GateVerdict
from analysis.runs import circumstances, load
from analysis.stats.between_runs import Ratio
from multicard.measure import formulas
from multicard.records import run_folder
from tests.analysis.conftest import Said
from tests.helpers import messages, records
from tests.helpers.messages import Told, says, told
from tests.measure.test_series import autocorrelated


def write(folder: Path, record: dict[str, Any], steps_s: np.ndarray) -> Path:
    """A run of these steps, the first of which is its warm-up."""
    record["step_s"] = formulas.statistics(steps_s, 1)
    return records.write(folder, record, records.steps(np.stack([steps_s, steps_s / 2], 1)))


def sweep(
    folder: Path,
    factor: float = 1.0,
    seed: int = 0,
    runs: int = 1,
    differ: float = 0.01,
    **changes: Any,
) -> Path:
    """Four cells of some runs, whose steps take `factor` times as long;
    runs of a cell differ by 1 %.
    """
    random = np.random.default_rng(seed)
    for precision, gpus, run in product(("fp32", "fp16"), (1, 2), range(runs)):
        mean_s = 0.1 * factor / gpus * math.exp(differ * random.normal())
        record = records.vision(precision=precision, gpus=gpus, seed=run, **changes)
        steps_s = autocorrelated(random, 201, mean_s, 0.4, 0.05)
        write(folder / (f"{precision}-{gpus}" + f"-{run}" * (run > 0)), record, steps_s)
    return folder


def compared(
    a: Path, b: Path, *by: str, common: bool = False, mix: bool = False
) -> list[compared_cells.CellComparison]:
    return compared_cells.compare(
        load.read_runs([a]).runs, load.read_runs([b]).runs, by, common, mix
    )


def test_equal_runs_do_not_differ_and_a_slow_down_is_seen(tmp_path: Path, capsys, said: Said):
    a, same, twin = (
        sweep(tmp_path / name, seed=seed, runs=3)
        for name, seed in (("a", 0), ("same", 1), ("twin", 0))
    )
    slow = sweep(tmp_path / "slow", 1.1, seed=2, runs=3)
    fast = sweep(tmp_path / "fast", 1 / 1.1, seed=3, runs=3)
    assert {one.verdict for one in compared(a, twin)} == {"no difference"}
    assert [one.verdict for one in compared(a, same)].count("no difference") >= 3
    cells = compared(a, slow)
    assert {one.verdict for one in cells} == {"slower"}
    assert all(
        one.step is not None and one.step.ratio == pytest.approx(1.1, rel=0.03) for one in cells
    )
    assert {one.verdict for one in compared(a, fast)} == {"faster"}
    assert main(["compare", str(a), str(slow), "--gate", "5%"]) == 1
    assert says(capsys.readouterr().out, "compare.gate-failed", gate=0.05, slower=4, cells=4)
    assert main(["compare", str(a), str(slow), "--gate", "10%"]) == 2  # on the bound itself
    capsys.readouterr()
    assert said("compare", a, slow, "--gate", "20%") and said("compare", a, slow)
    assert said("compare", a, fast, "--gate", "0%")


def test_without_a_repetition_nothing_is_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Steps are sure that the runs differ by 5 %, but so may two runs of the same program."""
    a, b = sweep(tmp_path / "a", differ=0), sweep(tmp_path / "b", 1.05, seed=1, differ=0)
    cells = compared(a, b)
    assert {one.verdict for one in cells} == {compared_cells.ONE_RUN}
    bounds = [one.step.bounds() for one in cells if one.step is not None]
    assert len(bounds) == 4 and all(of_one is not None and of_one[0] > 1.005 for of_one in bounds)
    assert main(["compare", str(a), str(b), "--gate", "0.1%"]) == 2
    printed = capsys.readouterr().out
    assert says(printed, "compare.gate-cannot-tell", unclear=4, cells=4) and says(
        printed, "spread.assumed"
    )
    assert says(printed, "compare.counts", faster=0, slower=0, same=0, others=4)
    # One repeated cell tells how runs of the machine differ, and decides in all of them
    for seed in range(1, 6):
        write(
            tmp_path / "a" / str(seed),
            records.vision(precision="fp32", seed=seed),
            0.1 * np.ones(50),
        )
    assert {one.step.repeated for one in compared(a, b) if one.step is not None} == {True}


def test_tuning_runs_of_one_seed_are_paired_step_by_step(tmp_path: Path):
    """Rows of many lengths, in the order that the seed gives them."""
    random, widths = np.random.default_rng(3), {}
    rows = random.lognormal(0.0, 0.6, 61)
    for side, seed in (("a", 0), ("same", 0), ("other", 1)):
        step_s = rows * (1 + 0.02 * random.normal(size=61))
        records.write(tmp_path / side, records.llm(seed=seed), records.steps(step_s))
    for side in ("same", "other"):
        (one,) = compared(tmp_path / "a", tmp_path / side)
        bounds = one.step and one.step.bounds()
        assert bounds
        widths[side] = bounds[1] - bounds[0]
    assert widths["other"] > 4 * widths["same"]


def test_what_was_not_measured_by_turns_is_said(tmp_path: Path):
    for side, days in (("a", (1, 3)), ("b", (2, 4)), ("c", (5, 6))):
        for day in days:
            record = records.vision(seed=day, started_at=f"2026-11-{day:02d}T09:41:29Z")
            write(tmp_path / side / str(day), record, np.full(50, 0.1))
    a, b, c = (load.read_runs([tmp_path / side]).runs for side in "abc")
    assert circumstances.differences(a, b) == []
    for sides, older in (((a, c), "A"), ((c, a), "B")):
        (line,) = circumstances.differences(*sides)
        assert says(line, "compare.not-by-turns", older=older)


def test_the_gate_keeps_5_percent_over_all_cells():
    """Twelve cells that are all slower by the gate exactly, of runs that differ by 3 %."""
    random, failed = np.random.default_rng(2), 0
    run = load.Run(Path("x"), {"status": "ok"})
    for _ in range(200):
        error, degrees = 0.03 * math.sqrt(2 / 3), 48
        deviation = math.sqrt(random.chisquare(degrees) / degrees)
        ratios = np.exp(math.log(1.05) + error * random.normal(size=12))
        steps = [Ratio(float(ratio), error * deviation, degrees, True) for ratio in ratios]
        cells = [compared_cells.CellComparison((), [run], [run], step, "") for step in steps]
        failed += gate.gated(cells, 0.05)[0] is GateVerdict.failed
        assert gate.gated(cells, 0.25)[0] is GateVerdict.passed
    assert 0.01 <= failed / 200 <= 0.06


def test_the_steps_of_older_records_are_derived_anew(tmp_path: Path):
    columns = records.steps(np.array([[9.0, 8.0], [1.0, 3.0], [4.0, 1.0]]))
    for name, build, key in (
        ("vision", records.vision, "step_s"),
        ("llm", records.llm, "iteration_s"),
    ):
        older = build(gpus=2)
        older[key] = {"mean": 3.5, "count": 2, "warmup_count": 1}
        folder = records.write(tmp_path / name, older, columns)
        (run,) = load.read_runs([folder]).runs
        assert (run["step_s"], run["step_std_s"], run["steps"]) == (
            2.5,
            pytest.approx(math.sqrt(0.5)),
            2,
        )
        assert run.measured_s().tolist() == [2.0, 3.0]  # ends: 9, 11 and 14
        read = run_folder.read_run(folder)
        assert read is not None and read.record.steps is not None and read.record.steps.mean == 2.5
        (folder / "steps.parquet").unlink()
        (run,) = load.read_runs([folder]).runs
        # figures of two definitions are not to be mixed
        assert run["step_s"] is None and run["steps"] == 2
        records.write(folder, older | {"axes": older["axes"] | {"gpus": 1}})
        assert load.read_runs([folder]).runs[0]["step_s"] == 3.5


@pytest.mark.parametrize(
    ("key", "value", "a", "b"), [("layout", "nhwc", "nchw", "nhwc"), ("epochs", 5, "2", "5")]
)
def test_other_axes_are_refused_unless_they_are_compared(
    key: str, value: Any, a: str, b: str, tmp_path: Path, said: Said, refused: Said
):
    sides = sweep(tmp_path / "a"), sweep(tmp_path / "b", **{key: value})
    assert says(refused("compare", *sides), "compare.other-work", key=key, a=a, b=b)
    assert said("compare", *sides, "--by", key)
    with messages.refused("compare.other-work") as caught:
        compared(*sides)
    assert messages.remedies(caught.value) == [f"--by {key}"]


def test_within_one_sweep_the_values_of_a_key_are_compared(tmp_path: Path, said: Said):
    seconds = {"precision=fp32": 0.1, "precision=fp16": 0.05, "precision=bf16": 0.04}
    for precision, gpus in product(seconds, (1, 2)):
        record = records.vision(precision=precision.partition("=")[2], gpus=gpus)
        records.write(
            tmp_path / f"{precision}-{gpus}",
            record,
            records.steps(np.full(50, seconds[precision] / gpus)),
        )
    records.write(
        tmp_path / "refused", records.vision(precision="fp64", status="refused") | {"config": {}}
    )
    by_precision = compared(tmp_path, tmp_path, "precision")
    assert len(by_precision) == 3 * 2  # each pair of values, in each cell
    for one in by_precision:
        assert one.step is not None and one.step.ratio == pytest.approx(
            seconds[one.sides[1]] / seconds[one.sides[0]]
        )
    assert [one.sides for one in compared(tmp_path, tmp_path, "gpus")] == [("gpus=1", "gpus=2")] * 3
    assert said("compare", tmp_path, "--by", "precision").startswith(f"A, B: {tmp_path}")


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["a"], "compare.no-other", {"missing": True}),
        (["a", "a"], "compare.no-other", {"missing": False}),
        ([".", "a"], "compare.overlap", {"runs": 4}),
        (
            ["a", "--by", "layout"],
            "compare.one-value",
            {"key": "--by", "by": ["layout"], "value": "layout=nchw"},
        ),
        (
            ["b", "--by", "precision"],
            "compare.missing-cells",
            {"missing": {"precision=fp16": ["gpus=2"]}},
        ),
        (
            ["a", "b"],
            "compare.missing-cells",
            {"missing": {"B": ["gpus=2 precision=fp16"]}, "common": True},
        ),
        (["a", "refused"], "compare.all-refused", {"side": "B"}),
        (["a", "--by", "epochs,nothing"], "list.no-column", {"column": "nothing"}),
        (
            ["a", "--by", "dataset.root"],
            "compare.by-place",
            {"key": "--by", "name": "dataset.root"},
        ),
        (["a", "--by", "total_s"], "compare.by-figure", {"key": "--by", "name": "total_s"}),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(
    words: list[str],
    code: str,
    facts: dict[str, Any],
    tmp_path: Path,
    refused: Said,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    sweep(tmp_path / "a")
    b = sweep(tmp_path / "b")
    for name in ("result.json", "config.yaml"):
        (b / "fp16-2" / name).unlink()
    records.write(tmp_path / "refused", records.vision(status="refused") | {"config": {}})
    assert says(refused("compare", *words), code, **facts)
    assert (
        len(compared(tmp_path / "a", b, common=True))
        == len(compared(b, tmp_path / "a", common=True))
        == 3
    )


def test_cells_that_failed_are_shown_and_fail_the_gate(tmp_path: Path):
    a, b = sweep(tmp_path / "a"), sweep(tmp_path / "b")
    records.write(b / "fp16-2", records.vision(precision="fp16", gpus=2, status="oom"))
    cells = compared(a, b)
    (ended,) = [one.verdict for one in cells if one.step is None]
    assert says(ended, "compare.ended", a="ok", b="oom")
    assert gate.gated(cells, 0.5)[0] is GateVerdict.failed
    assert (
        gate.gated([one for one in compared(b, a) if one.step is None], 0.5)[0]
        is GateVerdict.passed
    )


def test_seeds_are_repetitions_and_commits_are_not_mixed(tmp_path: Path):
    random = np.random.default_rng(0)
    for side in "ab":
        for seed in range(3):
            steps_s = autocorrelated(random, 50, 0.1, 0.3)
            records.write(
                tmp_path / side / str(seed), records.vision(seed=seed), records.steps(steps_s)
            )
    (one,) = compared(tmp_path / "a", tmp_path / "b")
    assert len(one.a) == len(one.b) == 3 and one.step is not None and one.step.repeated
    assert any("3 and 3" in line for line in compare.output([one]).lines(None))
    records.write(
        tmp_path / "b" / "3",
        records.vision(seed=3, commit="f" * 40),
        records.steps(np.full(50, 0.1)),
    )
    with messages.refused("compare.mixed", key="--mix", side="B") as caught:
        compared(tmp_path / "a", tmp_path / "b")
    assert re.match("8fdd49003 on .*fffffffff", caught.value.facts["mixture"])
    assert len(compared(tmp_path / "a", tmp_path / "b", mix=True)[0].b) == 4


def test_few_or_no_steps_are_said(tmp_path: Path):
    few = records.steps(np.full(5, 0.1))
    for name, steps in {"a": few, "twin": few, "b": None}.items():
        records.write(tmp_path / name, records.vision(), steps)
    (one,), (none,) = (
        compared(tmp_path / "a", tmp_path / "twin"),
        compared(tmp_path / "a", tmp_path / "b"),
    )
    assert (
        one.verdict == compared_cells.FEW_STEPS and one.step is not None and one.step.ratio == 1.0
    )
    passed, line = gate.gated([one], 0.05)
    assert passed is GateVerdict.cannot_tell and says(
        line, "compare.gate-cannot-tell", gate=0.05, cells=1, unclear=1
    )
    assert none.step is None and says(none.verdict, "compare.no-steps")
    (tmp_path / "b" / "steps.parquet").write_bytes(b"PAR1 and no more")
    assert says(compared(tmp_path / "a", tmp_path / "b")[0].verdict, "compare.no-steps")


def test_other_circumstances_are_said(tmp_path: Path):
    records.write(tmp_path / "a", records.vision(dataset__root="/data"))
    other = records.vision(
        dataset__root="/mnt",
        commit="f" * 40,
        hardware="A100",
        gpu=records.gpu(sm_clock_mhz=1500.0, by="solve"),
    )
    other["epochs"][0]["samples_trained"] = 1100
    machine = records.environment(
        packages={"torch": "2.12.0", "torchvision": "0.26.0"},
        gpus=[{"uuid": "GPU-1", "driver": "570"}],
        flags={},
        python="3.12",
    )
    records.write(tmp_path / "b", other, machine=machine)
    ours, theirs = (load.read_runs([tmp_path / side]).runs for side in "ab")
    assert circumstances.differences(ours, ours) == []
    text = "\n".join(circumstances.differences(ours, theirs))
    differing = {
        one.facts["name"]: (one.facts["a"], one.facts["b"])
        for one in told(text)
        if "name" in one.facts
    }
    expected = {
        "commit": ("8fdd49003", "fffffffff"),
        "hardware": ("NVIDIA H200", "A100"),
        "torch": ("2.11.0", "2.12.0"),
        "driver": ("580.1", "570"),
        "cudnn_allow_tf32": ("True", "nothing"),
        "dataset.root": ("/data", "/mnt"),
        circumstances.CLOCK_NAMES["sm_clock_mean_mhz"]: (1900.0, 1500.0),
        Told("limit.disturbed"): ("nothing", "yes"),
    }
    assert {name: differing[name] for name in expected} == expected
    assert says(text, "compare.step-work", a=100.0, b=105.0, unit="images")
    assert "torchvision" not in differing
