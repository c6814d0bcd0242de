"""Predictions on the command line: `predict=true` and `fit=`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multicard import messages
from multicard.config.base import RunConfig
from multicard.estimate import peaks
from multicard.estimate.estimates import Estimate, Predictor
from multicard.estimate.target import TargetMachine
from multicard.machine import devices, environment
from multicard.records import run_folder
from multicard.records.run_folder import RecordedRun
from multicard.records.schema_parts import AsBusy, PredictedInterval, Prediction
from multicard.run import controller as run
from multicard.sweep import prediction_table, slurm_submit
from multicard.sweep.prediction_table import PredictionRow
from tests.conftest import Called, typed
from tests.helpers import records
from tests.helpers.messages import Told, codes, find, says, told

UNKNOWN = "nobody knows"
H100 = {"name": "NVIDIA H100 NVL", "memory_bytes": 95830 << 20}


def within(value: float, share: float) -> PredictedInterval:
    return PredictedInterval(value, value * (1 - share), value * (1 + share))


def rows() -> list[PredictionRow]:
    """Cells of precisions and GPUs: measured, scaled, published, and unknown."""
    made = [
        (
            "fp64",
            1,
            "no",
            180e9,
            Prediction("measured", 3, "3 runs", within(1.0, 0.01), within(7200, 0.02)),
        ),
        (
            "fp64",
            2,
            "tight",
            90e9,
            Prediction("scaled", 4, "T(1)", within(0.5, 0.08), within(3600, 0.1), marks="&"),
        ),
        (
            "fp32",
            1,
            "tight",
            90e9,
            Prediction(
                "published",
                0,
                "T2",
                PredictedInterval(0.2, 0.1, 0.5),
                PredictedInterval(720, 360, 1800),
            ),
        ),
        ("fp32", 2, "yes", 45e9, Prediction("unknown", about=UNKNOWN)),
    ]
    target, shown = TargetMachine("h100-nvl", None, "cuda"), list[PredictionRow]()
    for precision, gpus, fits, size, known in made:
        known.fits, known.memory_bytes, known.allocated_bytes = (
            fits,
            within(size, 0.05),
            within(size - 1e10, 0.02),
        )
        axes = {"precision": precision, "gpus": str(gpus)}
        shown.append(
            PredictionRow(
                axes,
                Estimate(typed(f"gpus={gpus}"), target, known),
                left=int(known.basis != "measured"),
            )
        )
    return shown


def test_the_table_has_a_row_a_cell_and_says_what_it_rests_on():
    head, *cells = [re.split(r" {2,}", line) for line in prediction_table.table_lines(rows(), 120)]
    assert head == [
        "precision",
        "gpus",
        "fits",
        "peak memory",
        "needed memory",
        "step",
        "total",
        "basis",
    ]
    assert cells == [
        ["fp64", "1", "no", "170 GB ±2%", "180 GB ±5%", "1,000 ms ±1%", "2 h ±2%", "measured (3)"],
        ["fp64", "2", "tight", "80 GB ±2%", "90 GB ±5%", "500 ms ±8%", "1 h ±10%", "scaled& (4)"],
        [
            "fp32",
            "1",
            "tight",
            "80 GB ±2%",
            "90 GB ±5%",
            "200 ms (100..500)",
            "0.2 h (0.1..0.5)",
            "published",
        ],
        ["fp32", "2", "yes", "35 GB ±2%", "45 GB ±5%", "-", "-", "unknown"],
    ]
    notes = "\n".join(prediction_table.note_lines(rows()))
    assert "published: T2\n" in notes and f"unknown: {UNKNOWN}\n" in notes
    assert codes(notes) == [
        "predict.fits",
        "predict.probe",
        "predict.loaded",
        "predict.no-fit",
        "predict.tight-fit",
    ]
    assert says(notes, "predict.no-fit", cells=1, named="precision=fp64 gpus=1")
    assert says(
        notes, "predict.tight-fit", cells=2, named="precision=fp64 gpus=2; precision=fp32 gpus=1"
    )
    assert max(map(len, prediction_table.table_lines(rows(), 60))) <= 101  # figures are never cut


def test_times_if_others_stay_as_busy_stand_beside_the_wide_ones():
    measured, scaled, *_ = of = rows()
    assert "predict.as-busy" not in codes("\n".join(prediction_table.note_lines(of)))
    scaled.estimate.prediction.as_busy = AsBusy(0.5, within(0.5, 0.3), within(3600, 0.25))
    assert columns(of)["if others stay as busy"] == ["-", "0.75 to 1.25 h", "-", "-"]
    assert "predict.as-busy" in codes("\n".join(prediction_table.note_lines(of)))
    both = summed([measured, scaled])
    assert hours(both, "seconds") == [1.0, 0.9, 1.1] and hours(both, "seconds_as_busy") == [
        1.0,
        0.75,
        1.25,
    ]
    scaled.estimate.prediction.total_s = None
    scaled.estimate.prediction.as_busy = AsBusy(0.5, within(0.5, 0.3))
    assert columns(of)["if others stay as busy"] == ["-", "350 to 650 ms a step", "-", "-"]


def test_the_memory_of_tensors_is_not_called_that_of_a_process_on_cpu_ranks():
    on_cpu = [
        replace(row, estimate=replace(row.estimate, target=TargetMachine(device_type="cpu")))
        for row in rows()
    ]
    assert "memory of tensors" in columns(on_cpu) and "needed memory" not in columns(on_cpu)
    assert "needed memory" in columns(rows()) and "memory of tensors" not in columns(rows())


def columns(of: Sequence[PredictionRow]) -> dict[str, list[str]]:
    """The cells of each column of the table."""
    head, *cells = [re.split(r" {2,}", line) for line in prediction_table.table_lines(of, 200)]
    return dict(zip(head, map(list, zip(*cells, strict=True)), strict=True))


def summed(of: Sequence[PredictionRow]) -> Told:
    """The line on the sum of these cells."""
    (message,) = told(prediction_table.sums_line(of, on_gpus=True))
    return message


def hours(sums: Told, name: str) -> list[float]:
    """A sum with its ends, in hours."""
    return [round(seconds / 3600, 3) for seconds in sums.facts[name]]


def test_the_sum_is_of_what_is_left():
    measured, scaled, published, unknown = every = rows()
    both = summed([measured, scaled, published])
    assert both.has({"runs": 2, "measured": 1, "unknown": 0, "unfit": 0})
    assert hours(both, "seconds") == [1.2, 1.0, 1.6] and hours(both, "gpu_seconds") == [
        2.2,
        1.9,
        2.7,
    ]
    part = summed([scaled, published, unknown])  # no interval, as part of it is unknown
    assert part.has({"runs": 3, "measured": 0, "unknown": 1, "unfit": 0})
    assert hours(part, "seconds") == [1.0] and hours(part, "gpu_seconds") == [1.9]
    scaled.estimate.prediction.fits = unknown.estimate.prediction.fits = "no"
    without = summed(every)
    assert without.has({"runs": 1, "measured": 1, "unknown": 0, "unfit": 2})
    assert hours(without, "seconds") == hours(without, "gpu_seconds") == [0.2, 0.1, 0.5]
    assert summed([unknown]).facts == {"runs": 0, "measured": 0, "unknown": 0, "unfit": 1}
    assert summed(rows()[3:]).facts == {"runs": 1, "measured": 0, "unknown": 1, "unfit": 0}


def test_a_sum_is_said_in_figures_of_few_digits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(messages, "BY_CODE", False)
    _, scaled, published, unknown = rows()
    whole, part = (
        prediction_table.sums_line(of, on_gpus=True)
        for of in (rows()[:3], [scaled, published, unknown])
    )
    assert re.findall(r"[\d.]+ h \(.*?\)", whole) == ["1.2 h (1 to 1.6)", "2.2 h (1.9 to 2.7)"]
    assert re.findall(r"[\d.]+ h", part) == ["1 h", "1.9 h"]


def test_the_sum_has_the_price_of_its_gpu_hours():
    _, scaled, published, unknown = rows()
    for row in (scaled, published):
        row.estimate.config.price.gpu_hour = 2.0
    assert summed([scaled, published]).facts["cost"] == pytest.approx([4.4, 3.8, 5.4])
    assert summed([scaled, published, unknown]).facts["cost"] == pytest.approx([3.8])
    assert "cost" not in summed([scaled, rows()[2]]).facts  # one has no price


class Node:
    """A node with GPUs, and predictions by batch size: 64 does not fit, 32 may not, 8 ran out of
    memory before. `asked` and `started` are the batch sizes that were predicted,
    and the runs that were started.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.started = list[int](), list[int]()
        monkeypatch.setattr(
            devices, "visible_gpus", lambda: [f"GPU-{number}" for number in range(8)]
        )
        monkeypatch.setattr(environment, "gpus", lambda: [H100] * 8)
        monkeypatch.setattr(
            Predictor, "predict_all", lambda _, configs, *__: [*map(self.predict, configs)]
        )
        monkeypatch.setattr(run, "measure", self.measure)

    def predict(self, config: RunConfig) -> Prediction:
        self.asked.append(config.batch_size)
        fits = {64: "no", 32: "tight"}.get(config.batch_size, "yes")
        memory = within(config.batch_size * 2e9, 0.1)
        if config.batch_size == 8:
            return Prediction("unknown", fits="no", memory_basis=peaks.RAN_OUT)
        return Prediction(
            "unknown", memory_bytes=memory, fits=fits, gpu_memory_bytes=99_900_000_000
        )

    def measure(self, _: Any, cfg: Any, folder: Path, *__: Any, **___: Any) -> RecordedRun:
        self.started.append(cfg.batch_size)
        return records.as_run(records.vision(batch_size=cfg.batch_size) | {"folder": str(folder)})


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def swept(folder: Path) -> list[str]:
    return ["-m", "batch_size=16,32,64", "order=typed", f"hydra.sweep.dir={folder}"]


# Of a batch of 64
NEEDS = Told(
    "fit.needs",
    None,
    {
        "gpu": "NVIDIA H100 NVL",
        "bytes": [128e9, pytest.approx(115.2e9), pytest.approx(140.8e9)],
        "has_bytes": 99.9e9,
    },
)


def test_a_sweep_names_the_cells_that_will_not_fit(node: Node, called: Called, tmp_path: Path):
    _, printed = called("-m", "batch_size=8,16,32,64", "order=typed", f"hydra.sweep.dir={tmp_path}")
    assert node.started == [8, 16, 32, 64]
    unfit = find(printed, "fit.will-not", cells=2)
    first, last = told(unfit.facts["named"])
    assert first.facts["folder"].startswith("batch_size=8-") and last.facts["folder"].startswith(
        "batch_size=64-"
    )
    assert first.has(
        {"cell": "[1/4]", "needs": Told("fit.ran-out", None, {"gpu": "NVIDIA H100 NVL"})}
    )
    assert last.has({"cell": "[4/4]", "needs": NEEDS})
    (tight,) = told(find(printed, "fit.may-not", cells=1).facts["named"])
    assert tight.facts["cell"] == "[3/4]" and tight.facts["folder"].startswith("batch_size=32-")


def test_cells_that_will_not_fit_are_refused_before_the_first_starts(
    node: Node, called: Called, tmp_path: Path
):
    """This GPU counts, not the one that predict.gpu names."""
    words = ["fit=refuse", "predict.gpu=t4", "predict.memory=1GB"]
    code, printed = called(*swept(tmp_path / "s"), *words)
    assert code == 1 and node.started == [16, 32]
    assert says(printed, "fit.refused", key="fit", needs=NEEDS)
    assert "[3/3]" in printed
    (folder,) = (tmp_path / "s").glob("batch_size=64-*")
    record = run_folder.read_json(folder / "result.json") or {}
    assert record["status"] == "refused" and says(
        record["cause"]["message"], "fit.refused", needs=NEEDS
    )
    code, printed = called(*swept(tmp_path / "dry"), *words, "dry_run=true")
    assert (
        code == 1 and says(printed, "fit.refused", needs=NEEDS) and not (tmp_path / "dry").exists()
    )


@pytest.mark.usefixtures("processes")
def test_a_race_leaves_out_what_will_not_fit(
    node: Node, called: Called, tmp_path: Path, monkeypatch
):
    raced: list[int] = []
    monkeypatch.setattr(
        "multicard.decide.race.command.run",
        lambda sweep, _: raced.extend(cell.cfg.batch_size for cell in sweep.left),
    )
    words = [word for word in swept(tmp_path) if word != "order=typed"]  # a race has its own
    code, printed = called(*words, "race=images_per_s")
    assert code == 0 and raced == [16, 32] and node.started == []
    assert says(printed, "fit.not-raced", key="fit", needs=NEEDS)
    assert says(printed, "launch.out-of-race", cell="[3/3]")


@pytest.mark.parametrize(
    "words",
    [
        ["fit=off"],
        ["scale=smoke"],
        ["device=cpu"],
        ["hydra/launcher=submitit_slurm", "dry_run=true"],
    ],
)
def test_nothing_is_predicted_where_nobody_asks_for_it(
    node: Node, called: Called, tmp_path: Path, words: list[str]
):
    called("-m", "batch_size=64", f"hydra.sweep.dir={tmp_path / 's'}", *words)
    assert node.asked == [] and node.started == [64] * ("dry_run=true" not in words)


def test_a_single_run_is_checked_too(
    node: Node, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ["batch_size=64", f"hydra.run.dir={tmp_path / 's'}"]
    assert says(called(*words)[1], "fit.will-not", cells=1) and node.started == [64]
    code, printed = called(*words, "fit=refuse")
    assert code == 1 and says(printed, "fit.refused", needs=NEEDS) and node.started == [64]
    assert not (tmp_path / "s").exists()
    monkeypatch.delenv("MULTICARD_STRICT")
    monkeypatch.setattr(node, "predict", lambda config: 1 // 0)
    # a prediction that fails stops no run
    assert called(*words, "fit=refuse")[0] == 0 and node.started == [64, 64]


SLURM = ("hydra/launcher=submitit_slurm", "dry_run=true")


def test_cells_whose_jobs_are_in_the_queue_are_not_refused(
    node: Node, called: Called, tmp_path: Path, monkeypatch
):
    words, queued = (*swept(tmp_path), *SLURM, "predict.gpu=h100-94gb", "fit=refuse"), list[int]()
    monkeypatch.setattr(
        slurm_submit,
        "queued_jobs",
        lambda left: {each.number: "7" for each in left if each.cfg.batch_size in queued},
    )
    code, printed = called(*words)
    assert code == 1 and says(printed, "fit.refused") and node.asked == [16, 32, 64]
    queued.append(64)
    code, printed = called(*words)
    assert code == 0 and not says(printed, "fit.refused") and node.asked == [16, 32, 64, 16, 32]


def test_nodes_of_slurm_are_not_taken_for_this_machine(
    node: Node, called: Called, tmp_path: Path, monkeypatch
):
    words = ("-m", "gpus=1,2", "predict=true", SLURM[0], f"hydra.sweep.dir={tmp_path / 's'}")
    code, printed = called(*words)
    assert code == 0 and codes(printed)[:2] == ["predict.slurm-gpus", "predict.title"]
    assert find(printed, "predict.title").facts["where"] == TargetMachine().in_words and not says(
        printed, "predict.probe"
    )
    code, printed = called(*words, "predict.gpu=h100-94gb")
    assert code == 0 and not says(printed, "predict.slurm-gpus") and says(printed, "predict.probe")
    monkeypatch.setattr(environment, "cpu_model", lambda: "AMD EPYC")
    printed = called(*words, "device=cpu")[1]
    assert codes(printed)[:2] == ["predict.slurm-cpus", "predict.title"]
    assert "AMD EPYC" in find(printed, "predict.title").facts["where"]


def test_a_sweep_is_predicted_and_leaves_nothing(node: Node, called: Called, tmp_path: Path):
    words = [
        "-m",
        "batch_size=16,64,0",
        "gpus=1,2",
        "predict=true",
        "predict.gpu=h100-94gb",
        "repeat=2",
    ]
    code, printed = called(*words, f"hydra.sweep.dir={tmp_path / 's'}")
    assert code == 1 and "[5/12]" in printed
    lines = [line.rstrip() for line in printed.splitlines()]
    assert find(lines[0], "predict.title").facts["where"] == "NVIDIA H100 of 99.9 GB"
    table = [line.split() for line in lines if line.startswith(("fp32 ", "precision "))]
    assert table[0] == [
        "precision",
        "gpus",
        "batch_size",
        "runs",
        "fits",
        "needed",
        "memory",
        "basis",
    ]
    assert table[1] == ["fp32", "1", "16", "2", "yes", "32", "GB", "±10%", "unknown"]
    assert [row[:5] for row in table[2:]] == [
        ["fp32", "2", "16", "2", "yes"],
        ["fp32", "1", "64", "2", "no"],
        ["fp32", "2", "64", "2", "no"],
    ]
    assert says(printed, "predict.probe", key="probe")
    assert says(printed, "predict.sums", runs=4, measured=0, unknown=4, unfit=4)
    assert node.started == [] and not list(tmp_path.iterdir())


def test_a_prediction_leaves_a_sweep_of_the_same_name_as_it_is(
    node: Node, called: Called, tmp_path: Path
):
    called(*swept(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "multirun.yaml" for path in before)
    code, printed = called(*swept(tmp_path), "lr=0.1", "predict=true", "dry_run=true")
    assert code == 0 and says(printed, "predict.title") and len(node.started) == 3
    # the command of the results stays that of the sweep
    called(*swept(tmp_path), "lr=0.2", "probe=true")
    assert len(node.started) == 6
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_single_run_is_predicted(node: Node, called: Called, tmp_path: Path):
    words = [f"hydra.run.dir={tmp_path / 's'}", "predict=true"]
    code, printed = called(*words, "batch_size=32")
    assert code == 0 and ["fp32", "1", "tight", "64 GB ±10%", "unknown"] in [
        re.split(r" {2,}", line) for line in printed.splitlines()
    ]
    assert says(printed, "predict.probe")
    code, printed = called(*words, "batch_size=0")
    assert code == 1 and "batch_size" in printed and printed.count("\n") == 1
    assert node.started == [] and not list(tmp_path.iterdir())


def test_more_cpu_ranks_than_cores_are_refused_in_a_line(
    called: Called, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(
        Predictor, "predict_all", lambda _, configs, *__: [Prediction("unknown") for _ in configs]
    )
    words = ["predict=true", "device=cpu", f"hydra.sweep.dir={tmp_path / 's'}", "gpus=2,8"]
    code, printed = called("-m", *words)
    assert (
        code == 1
        and says(printed, "predict.crowd", key="gpus", value=8, cores=2)
        and "[2/2]" in printed
    )
    assert says(printed, "predict.sums", runs=1)
