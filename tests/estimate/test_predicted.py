"""Predictions on the command line: `predict=true` and `fit=`."""

from pathlib import Path
from typing import Any

import pytest

from multicard.config.base import RunConfig
from multicard.estimate import peaks
from multicard.estimate.estimates import Estimate, Predictor
from multicard.estimate.target import Target
from multicard.machine import devices, environment
from multicard.records import run_folder
from multicard.records.run_folder import Run
from multicard.records.schema_parts import Interval, Prediction
from multicard.run import controller as run
from multicard.sweep import prediction_table, slurm_submit
from multicard.sweep.prediction_table import Row
from tests.conftest import Called, typed
from tests.helpers import records

PROBE = "to know times that are unknown or published: probe=true in place of predict=true, on such a node"
H100 = {"name": "NVIDIA H100 NVL", "memory_bytes": 95830 << 20}


def within(value: float, share: float) -> Interval:
    return Interval(value, value * (1 - share), value * (1 + share))


def rows() -> list[Row]:
    """Cells of precisions and GPUs: measured, scaled, published, and unknown."""
    made = [
        ("fp64", 1, "no", 180e9, Prediction("measured", 3, "3 runs", within(1.0, 0.01), within(7200, 0.02))),
        ("fp64", 2, "tight", 90e9, Prediction("scaled", 4, "T(1)", within(0.5, 0.08), within(3600, 0.1), marks="&")),
        ("fp32", 1, "tight", 90e9, Prediction("published", 0, "T2", Interval(0.2, 0.1, 0.5), Interval(720, 360, 1800))),
        ("fp32", 2, "yes", 45e9, Prediction("unknown", about="no run of this machine")),
    ]
    target, shown = Target("h100-nvl", None, "cuda"), list[Row]()
    for precision, gpus, fits, size, told in made:
        told.fits, told.memory_bytes, told.allocated_bytes = fits, within(size, 0.05), within(size - 1e10, 0.02)
        axes = {"precision": precision, "gpus": str(gpus)}
        shown.append(Row(axes, Estimate(typed(f"gpus={gpus}"), target, told), left=int(told.basis != "measured")))
    return shown


def test_the_table_has_a_row_a_cell_and_says_what_it_rests_on():
    assert prediction_table.table(rows(), 120) == [
        "precision  gpus  fits   peak memory  needed memory          step       total  basis",
        "fp64       1     no      170 GB ±2%     180 GB ±5%  1,000 ms ±1%     2 h ±2%  measured (3)",
        "fp64       2     tight    80 GB ±2%      90 GB ±5%    500 ms ±8%    1 h ±10%  scaled& (4)",
        "fp32       1     tight    80 GB ±2%      90 GB ±5%   100..500 ms  0.1..0.5 h  published",
        "fp32       2     yes      35 GB ±2%      45 GB ±5%             -           -  unknown",
    ]
    notes = "\n".join(prediction_table.notes(rows()))
    for line in (
        "&: others kept its cores busy",
        "published: T2\n",
        f"unknown: no run of this machine\n{PROBE}\n",
        "likely to run out of memory: 1 cell: precision=fp64 gpus=1\n",
        "may run out of memory: 2 cells: precision=fp64 gpus=2; precision=fp32 gpus=1",
    ):
        assert line in notes
    assert max(map(len, prediction_table.table(rows(), 60))) <= 90  # figures are never cut


def test_the_sum_is_of_what_is_left():
    measured, scaled, published, unknown = every = rows()
    sums = prediction_table.sums
    both = "2 runs to measure, 1 measured before: 1.2 h (1 to 1.6) one after the other, 2.2 h (1.9 to 2.7) of GPUs"
    assert sums([measured, scaled, published], on_gpus=True) == both
    assert sums([scaled, published, unknown], on_gpus=True) == (  # no interval, as part of it is unknown
        "3 runs to measure: at least 1 h one after the other, 1.9 h of GPUs, and 1 run whose time is unknown"
    )
    scaled.estimate.prediction.fits = unknown.estimate.prediction.fits = "no"
    assert sums(every, on_gpus=True) == (
        "1 run to measure, 1 measured before: 12 min (6 to 30) one after the other, 12 min (6 to 30) of GPUs; "
        "without 2 runs that will not fit"
    )
    assert sums([unknown], True) == "nothing to measure; without 1 run that will not fit"
    assert sums(rows()[3:], on_gpus=True) == "1 run to measure; its time is unknown"


def test_the_sum_has_the_price_of_its_gpu_hours():
    _, scaled, published, unknown = rows()
    for row in (scaled, published):
        row.estimate.config.price.gpu_hour = 2.0
    sums = prediction_table.sums
    assert sums([scaled, published], on_gpus=True).endswith(" of GPUs, costs 4.4 (3.8 to 5.4)")
    assert ", costs at least 3.8, and 1 run" in sums([scaled, published, unknown], on_gpus=True)
    assert "costs" not in sums([scaled, rows()[2]], on_gpus=True)  # one has no price


class Node:
    """A node with GPUs, and predictions by batch size: 64 does not fit, 32 may not, 8 ran out of memory before. `asked`
    and `started` are the batch sizes that were predicted, and the runs that were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.started = list[int](), list[int]()
        monkeypatch.setattr(devices, "visible_gpus", lambda: [f"GPU-{number}" for number in range(8)])
        monkeypatch.setattr(environment, "gpus", lambda: [H100] * 8)
        monkeypatch.setattr(Predictor, "predict_all", lambda _, configs, *__: [*map(self.predict, configs)])
        monkeypatch.setattr(run, "measure", self.measure)

    def predict(self, config: RunConfig) -> Prediction:
        self.asked.append(config.batch_size)
        fits = {64: "no", 32: "tight"}.get(config.batch_size, "yes")
        memory = within(config.batch_size * 2e9, 0.1)
        if config.batch_size == 8:
            return Prediction("unknown", fits="no", memory_basis=peaks.RAN_OUT)
        return Prediction("unknown", memory_bytes=memory, fits=fits, gpu_memory_bytes=99_900_000_000)

    def measure(self, _: Any, cfg: Any, folder: Path, *__: Any, **___: Any) -> Run:
        self.started.append(cfg.batch_size)
        return records.as_run(records.vision(batch_size=cfg.batch_size) | {"folder": str(folder)})


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def swept(folder: Path) -> list[str]:
    return ["-m", "batch_size=16,32,64", f"hydra.sweep.dir={folder}"]


NEEDS = "needs 128 GB (115 GB to 141 GB) of memory, and NVIDIA H100 NVL has 99.9 GB"


def test_a_sweep_names_the_cells_that_will_not_fit(node: Node, called: Called, tmp_path: Path):
    _, printed = called("-m", "batch_size=8,16,32,64", f"hydra.sweep.dir={tmp_path}")
    assert node.started == [8, 16, 32, 64]
    (line,) = [line for line in printed.splitlines() if "will not fit" in line]
    assert line.startswith("2 cells will not fit: [1/4] batch_size=8-") and "[3/4]" not in line
    assert "ran out of memory on NVIDIA H100 NVL before; [4/4] batch_size=64-" in line
    assert f"{NEEDS}; use a smaller batch_size or dataset.image_size, or fit=off" in line
    assert "1 cell may not fit: [3/4] batch_size=32-" in printed


def test_cells_that_will_not_fit_are_refused_before_the_first_starts(node: Node, called: Called, tmp_path: Path):
    """This GPU counts, not the one that predict.gpu names."""
    words = ["fit=refuse", "predict.gpu=t4", "predict.memory=1GB"]
    code, printed = called(*swept(tmp_path / "s"), *words)
    assert code == 1 and node.started == [16, 32]
    assert f"[3/3] batch_size=64   refused: fit=refuse: {NEEDS}" in printed
    (folder,) = (tmp_path / "s").glob("batch_size=64-*")
    record = run_folder.read_json(folder / "result.json") or {}
    assert record["status"] == "refused" and record["cause"]["message"].startswith("fit=refuse: needs 128 GB")
    code, printed = called(*swept(tmp_path / "dry"), *words, "dry_run=true")
    assert code == 1 and "[3/3] refused: fit=refuse" in printed and not (tmp_path / "dry").exists()


@pytest.mark.usefixtures("processes")
def test_a_race_leaves_out_what_will_not_fit(node: Node, called: Called, tmp_path: Path, monkeypatch):
    raced: list[int] = []
    monkeypatch.setattr(
        "multicard.decide.race.command.run", lambda sweep, _: raced.extend(cell.cfg.batch_size for cell in sweep.left)
    )
    code, printed = called(*swept(tmp_path), "race=images_per_s")
    assert code == 0 and raced == [16, 32] and node.started == []
    assert f"[3/3] out: {NEEDS}; fit=off" in printed


@pytest.mark.parametrize(
    "words", [["fit=off"], ["scale=smoke"], ["device=cpu"], ["hydra/launcher=submitit_slurm", "dry_run=true"]]
)
def test_nothing_is_predicted_where_nobody_asks_for_it(node: Node, called: Called, tmp_path: Path, words: list[str]):
    called("-m", "batch_size=64", f"hydra.sweep.dir={tmp_path / 's'}", *words)
    assert node.asked == [] and node.started == [64] * ("dry_run=true" not in words)


def test_a_single_run_is_checked_too(node: Node, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["batch_size=64", f"hydra.run.dir={tmp_path / 's'}"]
    assert "1 cell will not fit: batch_size=64-" in called(*words)[1] and node.started == [64]
    code, printed = called(*words, "fit=refuse")
    assert code == 1 and printed.startswith("refused: fit=refuse: needs 128 GB") and node.started == [64]
    assert not (tmp_path / "s").exists()
    monkeypatch.delenv("MULTICARD_STRICT")
    monkeypatch.setattr(node, "predict", lambda config: 1 // 0)
    assert called(*words, "fit=refuse")[0] == 0 and node.started == [64, 64]  # a prediction that fails stops no run


SLURM = ("hydra/launcher=submitit_slurm", "dry_run=true")


def test_cells_whose_jobs_are_in_the_queue_are_not_refused(node: Node, called: Called, tmp_path: Path, monkeypatch):
    words, queued = (*swept(tmp_path), *SLURM, "predict.gpu=h100-94gb", "fit=refuse"), list[int]()
    monkeypatch.setattr(
        slurm_submit, "queued_jobs", lambda left: {each.number: "7" for each in left if each.cfg.batch_size in queued}
    )
    code, printed = called(*words)
    assert code == 1 and "in the queue: 0; refused: 1\n" in printed
    queued.append(64)
    code, printed = called(*words)
    assert code == 0 and "in the queue: 1; refused: 0\n" in printed and node.asked == [16, 32, 64, 16, 32]


def test_nodes_of_slurm_are_not_taken_for_this_machine(node: Node, called: Called, tmp_path: Path, monkeypatch):
    words = ("-m", "gpus=1,2", "predict=true", SLURM[0], f"hydra.sweep.dir={tmp_path / 's'}")
    code, printed = called(*words)
    first, second, *_ = printed.splitlines()
    assert code == 0 and first.startswith("SLURM's nodes are not known here: name their GPU with predict.gpu")
    assert second.startswith("predict=true: nothing is started. Predicted for a GPU, ") and "probe" not in printed
    code, printed = called(*words, "predict.gpu=h100-94gb")
    assert code == 0 and "not known here" not in printed and PROBE in printed
    monkeypatch.setattr(environment, "cpu_model", lambda: "AMD EPYC")
    first, second, *_ = called(*words, "device=cpu")[1].splitlines()
    assert first.startswith("SLURM's nodes are taken to have") and "Predicted for CPU ranks on AMD EPYC" in second


def test_a_sweep_is_predicted_and_leaves_nothing(node: Node, called: Called, tmp_path: Path):
    words = ["-m", "batch_size=16,64,0", "gpus=1,2", "predict=true", "predict.gpu=h100-94gb", "repeat=2"]
    code, printed = called(*words, f"hydra.sweep.dir={tmp_path / 's'}")
    assert code == 1 and "[5/12] and 3 more refused: batch_size=0: must be 1 or more" in printed
    lines = [line.rstrip() for line in printed.splitlines()]
    assert lines[0].startswith("predict=true: nothing is started. Predicted for NVIDIA H100 of 99.9 GB, with 90% ")
    table = [line.split() for line in lines if line.startswith(("fp32 ", "precision "))]
    assert table[0] == ["precision", "gpus", "batch_size", "runs", "fits", "needed", "memory", "basis"]
    assert table[1] == ["fp32", "1", "16", "2", "yes", "32", "GB", "±10%", "unknown"]
    assert [row[:5] for row in table[2:]] == [
        ["fp32", "2", "16", "2", "yes"],
        ["fp32", "1", "64", "2", "no"],
        ["fp32", "2", "64", "2", "no"],
    ]
    assert PROBE in lines
    assert "4 runs to measure; their times are unknown; without 4 runs that will not fit" in lines
    assert node.started == [] and not list(tmp_path.iterdir())


def test_a_prediction_leaves_a_sweep_of_the_same_name_as_it_is(node: Node, called: Called, tmp_path: Path):
    called(*swept(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "multirun.yaml" for path in before)
    code, printed = called(*swept(tmp_path), "lr=0.1", "predict=true", "dry_run=true")
    assert code == 0 and "predict=true" in printed and len(node.started) == 3
    called(*swept(tmp_path), "lr=0.2", "probe=true")  # the command of the results stays that of the sweep
    assert len(node.started) == 6
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_single_run_is_predicted(node: Node, called: Called, tmp_path: Path):
    words = [f"hydra.run.dir={tmp_path / 's'}", "predict=true"]
    code, printed = called(*words, "batch_size=32")
    assert code == 0 and "\nfp32       1     tight     64 GB ±10%  unknown\n" in printed
    assert f"\n{PROBE}\n" in printed
    assert called(*words, "batch_size=0") == (1, "refused: batch_size=0: must be 1 or more\n")
    assert node.started == [] and not list(tmp_path.iterdir())


def test_more_cpu_ranks_than_cores_are_refused_in_a_line(called: Called, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(Predictor, "predict_all", lambda _, configs, *__: [Prediction("unknown") for _ in configs])
    line = "refused: gpus=8: 8 CPU ranks would take turns on 2 cores, whose time no run tells"
    words = ["predict=true", "device=cpu", f"hydra.sweep.dir={tmp_path / 's'}", "gpus=2,8"]
    code, printed = called("-m", *words)
    assert code == 1 and f"[2/2] {line}; use gpus=2 or fewer\n" in printed and "1 run to measure" in printed
