"""GPUs over time: samples of runs (`figure timelines`)."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.figures import timelines, vega
from analysis.runs import details, load
from multicard.observe import gpu_record, readings
from tests.analysis.conftest import Said
from tests.helpers import grids, records

LOAD_S, TRAIN_S, EVALUATE_S, PAUSE_S, EPOCHS = 35.0, 40.0, 6.0, 8.0, 3  # reading the data, then the parts of epochs


def sampled(folder: Path, pauses: bool = False, **changes: Any) -> None:
    """A run whose GPUs idle while the data is read, and before each epoch where it pauses."""
    gpus = changes.get("gpus", 1)
    pause_s = PAUSE_S if pauses else 0.0
    spans, epochs = [], []
    for epoch in range(EPOCHS):
        start_s = LOAD_S + epoch * (TRAIN_S + EVALUATE_S + pause_s)
        spans.append([start_s, start_s + TRAIN_S + EVALUATE_S + pause_s / 2])
        epochs.append({"epoch": epoch, "train_s": TRAIN_S, "evaluate_s": EVALUATE_S})
    devices = [{"host": "node1", "uuid": f"GPU-{index}", "index": index} for index in range(gpus)]
    part = {"start": 0, "node": 0, "host": "node1", "covers": "training", "spans_s": spans}
    record = records.vision(**changes) | {"gpu": records.gpu() | {"parts": [part], "devices": devices}}
    record["epochs"] = epochs
    records.write(folder, record)
    times_s = np.arange(0.0, spans[-1][1] + 5.0)
    busy = np.zeros(len(times_s))
    for start_s, _ in spans:
        busy[(times_s >= start_s) & (times_s < start_s + TRAIN_S)] = 1.0
        busy[(times_s >= start_s + TRAIN_S) & (times_s < start_s + TRAIN_S + EVALUATE_S)] = 0.6
    rows = []
    for index in range(gpus):
        wave = np.sin(times_s + index)
        columns = {
            "time_s": times_s,
            "power_w": 90 + 330 * busy + 20 * wave * busy,
            "utilisation": busy * (0.93 + 0.05 * wave),
            "memory_bytes": 0.5e9 + 21e9 * (times_s > LOAD_S - 5) + 1e9 * index,
        }
        table = np.full((len(times_s), len(readings.COLUMNS)), math.nan)
        for name, values in columns.items():
            table[:, readings.COLUMNS.index(name)] = values
        rows.append(table)
    by_gpu = {device["uuid"]: own for device, own in zip(devices, rows, strict=True)}
    gpu_record.write_part(folder, part, by_gpu)
    pq.write_table(
        pa.concat_tables([pq.ParquetFile(folder / "gpu" / "s00_n00.parquet").read()]), folder / gpu_record.MERGED
    )


def drawn(folder: Path) -> list[vega.Figure]:
    return timelines.timelines(load.read([folder]).runs)


def test_each_gpu_has_a_line_and_each_epoch_a_mark(tmp_path: Path):
    sampled(tmp_path / "a", pauses=True, gpus=2, loader="torch")
    sampled(tmp_path / "b", gpus=2, loader="dali")
    (figure,) = drawn(tmp_path)
    samples = [row for row in figure.rows if row["of"] == "sample"]
    assert {row["gpu"] for row in samples} == {"GPU 0", "GPU 1"}
    assert {row["measure"] for row in samples} == {"power_w", "memory_bytes", "utilisation"}
    assert min(row["time_s"] for row in figure.rows) == 0  # the first sample: no time is below 0
    assert "From samples of a second; 0: the first of them" in figure.caption
    of_torch = [row for row in figure.rows if "torch" in row["series"]]
    power = [row for row in of_torch if row["measure"] == "power_w"]  # each chart has its marks
    evaluations = [(row["time_s"], row["end_s"]) for row in power if row["of"] == "evaluation"]
    length_s = TRAIN_S + EVALUATE_S + PAUSE_S
    assert evaluations == [
        (start_s + TRAIN_S, start_s + TRAIN_S + EVALUATE_S + PAUSE_S / 2)
        for start_s in (LOAD_S + n * length_s for n in range(EPOCHS))
    ]
    starts = sorted({row["time_s"] for row in of_torch if row["of"] == "epoch"})
    assert starts[:3] == [LOAD_S, LOAD_S + 50, LOAD_S + length_s]
    assert min(row["mean"] for row in power if row["of"] == "sample" and 40 < row["time_s"] < 70) > 390
    text = grids.texts(figure)
    assert all(word in text for word in ("utilisation (%)", "power (W)", "memory (GB)", "loader=torch", "GPU 1"))
    assert grids.svg(figure).count("mark-line") >= 6


def test_windows_tell_gpus_that_take_turns_from_those_that_are_alike():
    """Two epochs of 30 s, in each third of which one of two GPUs works."""
    time_s = np.repeat(np.arange(0.5, 70.0), 2)
    gpu = np.tile(np.array(["GPU 0", "GPU 1"], dtype=object), 70)
    works = (time_s // 10 % 2 == 0) == (gpu == "GPU 0")
    values = np.where(works, 0.8, 0.2)
    values[(time_s > 50) & (gpu == "GPU 1")] = math.nan  # the last window has samples of one GPU alone
    samples = {"time_s": time_s, "gpu": gpu, "utilisation": values}
    timeline = details.Timeline(samples, [(0.0, 30.0, None), (30.0, 60.0, 55.0)])
    turns = [[0.8, 0.2], [0.2, 0.8]]
    assert timeline.by_window("utilisation", 10.0) == pytest.approx(np.array([*turns, *turns, turns[0]]))
    assert timeline.by_window("utilisation", 60.0) == pytest.approx(np.array([[0.6, 0.4], [0.4, 0.5]]))


def test_long_runs_are_thinned_more_runs_more_figures_and_files_show_what_they_have(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(timelines, "MOST_POINTS", 20)
    for seed, lr in enumerate((0.1, 0.2, 0.3, 0.4, 0.5)):
        sampled(tmp_path / str(seed), lr=lr)
    figures = drawn(tmp_path)
    assert [figure.name for figure in figures] == ["timelines", "timelines-2"]
    points = [row for row in figures[1].rows if row["measure"] == "power_w" and row["of"] == "sample"]
    assert 10 < len(points) <= 20
    assert list(timelines._points(np.arange(4.0), np.array([1, math.nan, 3, 5.0]))) == [(0, 1), (2, 3), (3, 5)]
    file = tmp_path / "4" / "gpu.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["memory_bytes"]), file)  # of earlier versions
    assert {row["measure"] for row in drawn(file.parent)[0].rows if row["of"] == "sample"} == {"power_w", "utilisation"}
    file.write_bytes(b"PAR1 cut off")
    assert drawn(file.parent) == []


def test_the_loaders_have_them_beside_their_figure_or_say_what_is_missing(tmp_path: Path, said: Said, refused: Said):
    same = {"dataset": "images", "strategy": "ddp_ds", "dataset__image_size": 300}
    for gpus in (1, 2):
        for loader, layout, cache in (("torch", "nchw", "process"), ("dali", "nhwc", "none")):
            cell = same | {"gpus": gpus, "loader": loader, "layout": layout, "dataset__cache": cache}
            sampled(tmp_path / "gpus" / f"{loader}{gpus}", pauses=loader == "torch" and gpus > 1, **cell)
            records.write(tmp_path / "cpus" / f"{loader}{gpus}", records.vision("cpu", **cell))
    printed = said("figure", "loaders", tmp_path / "gpus", "--out", tmp_path / "out", "--all")
    assert re.search(r"loaders-timelines\.svg: GPUs over time", printed) and "no run has" not in printed
    printed = said("figure", "loaders", tmp_path / "cpus", "--out", tmp_path / "out", "--all")
    assert "loaders-timelines: no run has samples of GPUs (gpu.parquet)" in printed and ".svg: GPUs" not in printed
    why = "timelines: of 4 runs none has samples of GPUs (gpu.parquet), which NVML gives"
    assert why in refused("figure", "timelines", tmp_path / "cpus")
