"""Figures of any runs; specifications, files and the command; samples of GPUs over time."""

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vl_convert

from analysis import experiments
from analysis.figures import captions, chart_data, setting_charts, setting_groups, timelines, vega
from analysis.figures import draw as figures
from analysis.figures.experiment_charts import COPIED_IN_A_STEP, SHARE, STEP, TITLES
from analysis.figures.vega import Chart
from analysis.runs import details, load
from multicard.config import schema
from multicard.observe import gpu_record, readings
from multicard.records import limits
from multicard.records.figures import Scale
from tests.analysis.conftest import Said
from tests.helpers import grids, messages, records
from tests.helpers.grids import drawn, svg, texts
from tests.helpers.messages import codes, find, says, told

WRITTEN = {  # in figures whose measures are no axes
    "calls": (TITLES[STEP].format("ms"), TITLES[SHARE].format("%"), "memcpy Host-to-Device"),
    "curves": ("training loss", "test accuracy (%)", "epoch"),
    "shares": (TITLES[SHARE].format("%"), "cudaLaunchKernel"),
    "copies": (TITLES[COPIED_IN_A_STEP].format("bytes"), "memcpy Device-to-Device"),
}


@cache
def vega_lite() -> jsonschema.Draft7Validator:
    """Of the version that is drawn."""
    return jsonschema.Draft7Validator(alt.load_schema())


# Figures of any runs


def write(folder: Path, *run_records: dict[str, Any]) -> list[load.Run]:
    return load.read_runs([records.write_all(folder, *run_records)]).runs


def test_efficiency_is_against_one_gpu(tmp_path: Path):
    cells = (("fp32", 1, 80), ("fp32", 4, 40), ("bf16", 2, 9))
    trained = [
        records.vision(precision=precision, gpus=gpus, total_s=total_s)
        for precision, gpus, total_s in cells
    ]
    tuned = [
        records.llm(gpus=n, tokens_per_s={"non_padding": r}) for n, r in ((1, 100.0), (2, 150.0))
    ]
    vision, llm = figures.efficiency(write(tmp_path, *trained, *tuned))
    for figure, several, speedup, share in ((vision, 4, 2.0, 0.5), (llm, 2, 1.5, 0.75)):
        means = {
            (r["measure"], r["ranks"]): r["mean"]
            for r in figure.rows
            if r["of"] == chart_data.MEASURED
        }
        assert [means["speedup", ranks] for ranks in (1, several)] == [1, speedup]
        assert [means["efficiency", ranks] for ranks in (1, several)] == [1, share]
    assert says(vision.caption, "figure.settings-without-speedup", settings=1)
    assert "parallel efficiency (%)" in texts(vision)


def test_phases_add_up_to_the_step(tmp_path: Path):
    known = {"data": 0.01, "h2d": 0.0, "forward": 0.03, "backward": 0.05, "optimizer": 0.005}
    runs = write(
        tmp_path,
        records.vision(phases_s=known),
        records.llm(data_s=0.02),
        records.vision(gpus=2, status="oom"),
    )
    vision, llm = figures.phases(runs)
    assert {row["phase"]: row["mean"] for row in vision.rows} == pytest.approx(
        known | {"rest of the step": 0.005}
    )
    assert {row["phase"]: row["mean"] for row in llm.rows} == pytest.approx(
        {"data": 0.02, "rest of the step": 0.08}
    )
    assert says(vision.caption, "figure.unended", runs=1) and vision.title.endswith(
        ": training on digits"
    )


def test_no_figure_mixes_two_data_sets_or_draws_a_lone_dot(tmp_path: Path):
    several = [
        records.vision(dataset__name=name, lr=lr)
        for name in ("digits", "mnist")
        for lr in (0.1, 0.2)
    ]
    single = records.vision(dataset__name="mnist", epochs=1)
    runs = write(tmp_path, *several, single)
    digits, mnist = figures.losses(runs)
    assert digits.title.endswith(": training on digits") and mnist.title.endswith(
        ": training on mnist"
    )
    assert (
        {row["series"] for row in digits.rows}
        == {row["series"] for row in mnist.rows}
        == {"lr=0.1", "lr=0.2"}
    )
    assert says(mnist.caption, "figure.settings-without-curve", settings=1, along="epoch")
    assert [figure.title.rpartition(" ")[2] for figure in figures.phases(runs)] == [
        "digits",
        "mnist",
    ]
    assert [figure.name for figure in figures.trade_off(runs)] == ["trade_off", "trade_off-2"]
    assert figures.losses(write(tmp_path / "one", single)) == []


def test_losses_of_tuning_are_by_step_and_many_settings_are_several_figures(tmp_path: Path):
    steps = records.steps([0.1] * 100, per_epoch=100) | {
        "loss": [float(step) for step in range(100)]
    }
    for number in (1, 2):  # of one seed
        records.write(tmp_path / "tuned" / str(number), records.llm(repetition=number), steps)
    (figure,) = figures.losses(load.read_runs([tmp_path / "tuned"]).runs)
    assert len(figure.rows) == setting_charts.WINDOWS
    assert [(r["step"], r["mean"], r["low"]) for r in figure.rows[:2]] == [
        (2, 0.5, None),
        (4, 2.5, None),
    ]
    run_records = [records.vision(lr=0.01 * (n + 1)) for n in range(setting_groups.MAX_SERIES + 1)]
    many = figures.losses(write(tmp_path / "many", *run_records))
    assert [figure.name for figure in many] == ["losses", "losses-2"]
    assert [len({row["series"] for row in figure.rows}) for figure in many] == [
        setting_groups.MAX_SERIES,
        1,
    ]


# Specifications and files


@pytest.mark.parametrize(
    ("name", "device"),
    [*((name, "cuda") for name in experiments.names()), ("table2", "cpu"), ("llm_metrics", "cpu")],
)
def test_every_experiment_has_a_figure_that_can_be_opened(tmp_path: Path, name: str, device: str):
    def change(cell: dict[str, Any]) -> dict[str, Any]:
        return grids.oom() if cell.get("gpus") == 2 and cell["seed"] == 1 else {}

    grids.fill(tmp_path, name, (0, 1), device, change)
    figure, *counted = drawn(tmp_path, name)
    experiment = experiments.load_experiment(name)
    form = experiment.view.form
    assert len(counted) == (form == "copies" and device == "cuda")
    assert device == "cpu" or vega_lite().is_valid(figure.spec)
    # a theme's alone
    assert not re.search(r"#[0-9a-fA-F]{6}\b|black|white", json.dumps(figure.spec))
    words = texts(figure)
    assert figure.title in words and f"{name}: " in words and "commit 8fdd49003" in words
    assert all(code in words for code in codes(figure.caption))
    ranks = "CPU ranks" if device == "cpu" else "GPUs"
    if device == "cuda":
        axes = [captions.axis(measure, Scale("")) for measure in experiment.view.measures]
        assert all(title in words for title in WRITTEN.get(experiment.view.form, axes))
    elif "gpus" in experiment.swept:
        assert ranks in words
    if any(row["status"] != "ok" for row in figure.rows):
        assert "oom" in words


def test_general_figures_are_valid(tmp_path: Path):
    grids.fill(tmp_path, "table2", (0, 1))
    runs = load.read_runs([tmp_path]).runs
    for draws in (
        figures.effects_alone,
        figures.losses,
        figures.phases,
        figures.efficiency,
        figures.trade_off,
    ):
        (figure, *_) = draws(runs)
        assert vega_lite().is_valid(figure.spec)
        assert figure.title in texts(figure) and not re.search(
            r"#[0-9a-fA-F]{6}\b", json.dumps(figure.spec)
        )


def test_text_of_runs_cannot_break_a_figure(tmp_path: Path):
    bad = "\x1b[31m<script>alert(1)</script>' + datum.n \u202e{signal}"
    grids.fill(tmp_path, "table2", change=lambda _: {"hardware": bad})
    grids.fill(tmp_path / "named", "table2", change=lambda _: {"status": bad, "hardware": "x"})
    for figure in drawn(tmp_path, "table2"):
        content = svg(figure)
        assert "<script" not in content and "\x1b" not in content and "\u202e" not in content
        assert "\x1b" not in json.dumps(figure.spec, ensure_ascii=False)


def test_all_lines_around_a_chart_are_written(tmp_path: Path):
    above, below = ["one line", "another " * 40], ["0123456789 " * 20, "with --a-flag " * 30]
    figure = Chart("some", "A title", {"mark": "bar", "encoding": {}}, [{"value": 1}], above, below)
    words = texts(figure)
    assert all(line.strip() in words for line in ("A title", *above, *below))
    assert all(line.strip().rstrip(".") in figure.caption for line in (*above, *below))


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    grids.fill(tmp_path / "runs", "table3")
    (figure,) = drawn(tmp_path / "runs", "table3")
    starts = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}
    for kind, start in starts.items():
        vega.save(figure, tmp_path / "out" / f"a.{kind}")
        assert (tmp_path / "out" / f"a.{kind}").read_bytes().startswith(start)
    assert 'fill="white"' in (tmp_path / "out" / "a.svg").read_text()[:600]
    # marks and words; the data is once
    assert len(json.dumps(figure.spec)) - len(json.dumps(figure.rows)) < 15_000
    before = sorted((tmp_path / "out").iterdir())
    with messages.refused("figure.format", key="--out", formats=list(vega.FORMATS)):
        vega.save(figure, tmp_path / "out" / "a.gif")
    monkeypatch.setattr(vl_convert, "vegalite_to_svg", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        vega.save(figure, tmp_path / "out" / "b.svg")
    assert sorted((tmp_path / "out").iterdir()) == before


# The command


def test_all_draws_what_there_is_and_lists_the_rest(tmp_path: Path, said: Said):
    grids.fill(tmp_path / "runs", "table3", device="cpu")
    out = tmp_path / "out"
    (figure,) = drawn(tmp_path / "runs", "table3")
    printed = said("figure", "all", tmp_path / "runs", "--out", out)
    (written,) = [one for one in told(printed) if one.code == "figure.written"]
    assert written.facts == {"file": f"{out}/table3.svg", "title": figure.title, "marks": "c"}
    assert captions.listed(["CPU ranks", schema.title("pin_memory")]) in figure.title
    assert sorted(path.name for path in out.iterdir()) == ["table3.svg"]
    missing = [one.facts for one in told(printed) if one.code == "figure.experiment-not-measured"]
    commands = {one["experiment"]: one["command"] for one in missing}
    assert commands["table2"] == "python train_vision.py experiment=table2 name=table2"
    assert commands["table5"] == "python tune_llm.py experiment=table5 name=table5"
    assert len(missing) == len(commands) == len(experiments.names()) - 1
    assert printed.splitlines()[-1] == limits.legend([limits.ON_CPU.limit()])[0]


# reading the data, then the parts of epochs
LOAD_S, TRAIN_S, EVALUATE_S, PAUSE_S, EPOCHS = 35.0, 40.0, 6.0, 8.0, 3


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
    record = records.vision(**changes) | {
        "gpu": records.gpu() | {"parts": [part], "devices": devices}
    }
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
        pa.concat_tables([pq.ParquetFile(folder / "gpu" / "s00_n00.parquet").read()]),
        folder / gpu_record.MERGED,
    )


def timelines_of(folder: Path) -> list[vega.Chart]:
    return timelines.timelines(load.read_runs([folder]).runs)


def test_each_gpu_has_a_line_and_each_epoch_a_mark(tmp_path: Path):
    sampled(tmp_path / "a", pauses=True, gpus=2, loader="torch")
    sampled(tmp_path / "b", gpus=2, loader="dali")
    (figure,) = timelines_of(tmp_path)
    samples = [row for row in figure.rows if row["of"] == "sample"]
    assert {row["gpu"] for row in samples} == {"GPU 0", "GPU 1"}
    assert {row["measure"] for row in samples} == {"power_w", "memory_bytes", "utilisation"}
    assert min(row["time_s"] for row in figure.rows) == 0  # the first sample: no time is below 0
    assert {"figure.samples", "figure.evaluations-shaded"} <= {*codes(figure.caption)}
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
    assert (
        min(row["mean"] for row in power if row["of"] == "sample" and 40 < row["time_s"] < 70) > 390
    )
    text = grids.texts(figure)
    assert all(
        word in text
        for word in ("utilisation (%)", "power (W)", "memory (GB)", "loader=torch", "GPU 1")
    )
    assert grids.svg(figure).count("mark-line") >= 6


def test_windows_tell_gpus_that_take_turns_from_those_that_are_alike():
    """Two epochs of 30 s, in each third of which one of two GPUs works."""
    time_s = np.repeat(np.arange(0.5, 70.0), 2)
    gpu = np.tile(np.array(["GPU 0", "GPU 1"], dtype=object), 70)
    works = (time_s // 10 % 2 == 0) == (gpu == "GPU 0")
    values = np.where(works, 0.8, 0.2)
    # the last window has samples of one GPU alone
    values[(time_s > 50) & (gpu == "GPU 1")] = math.nan
    samples = {"time_s": time_s, "gpu": gpu, "utilisation": values}
    timeline = details.SampleTimeline(samples, [(0.0, 30.0, None), (30.0, 60.0, 55.0)])
    turns = [[0.8, 0.2], [0.2, 0.8]]
    assert timeline.by_window("utilisation", 10.0) == pytest.approx(
        np.array([*turns, *turns, turns[0]])
    )
    assert timeline.by_window("utilisation", 60.0) == pytest.approx(
        np.array([[0.6, 0.4], [0.4, 0.5]])
    )


def test_long_runs_are_thinned_more_runs_more_figures_and_files_show_what_they_have(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(timelines, "MAX_POINTS", 20)
    for seed, lr in enumerate((0.1, 0.2, 0.3, 0.4, 0.5)):
        sampled(tmp_path / str(seed), lr=lr)
    figures = timelines_of(tmp_path)
    assert [figure.name for figure in figures] == ["timelines", "timelines-2"]
    points = [
        row for row in figures[1].rows if row["measure"] == "power_w" and row["of"] == "sample"
    ]
    assert 10 < len(points) <= 20
    assert list(timelines._thinned_points(np.arange(4.0), np.array([1, math.nan, 3, 5.0]))) == [
        (0, 1),
        (2, 3),
        (3, 5),
    ]
    file = tmp_path / "4" / "gpu.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["memory_bytes"]), file)  # of earlier versions
    (figure,) = timelines_of(file.parent)
    assert {row["measure"] for row in figure.rows if row["of"] == "sample"} == {
        "power_w",
        "utilisation",
    }
    assert (
        "utilisation" in figure.title and "power" in figure.title and "memory" not in figure.title
    )
    file.write_bytes(b"PAR1 cut off")
    assert timelines_of(file.parent) == []


def test_the_loaders_have_them_beside_their_figure_or_say_what_is_missing(
    tmp_path: Path, said: Said, refused: Said
):
    same = {"dataset": "images", "strategy": "ddp_ds", "dataset__image_size": 300}
    for gpus in (1, 2):
        for loader, layout, kept in (("torch", "nchw", "process"), ("dali", "nhwc", "none")):
            cell = same | {"gpus": gpus, "loader": loader, "layout": layout, "dataset__cache": kept}
            sampled(
                tmp_path / "gpus" / f"{loader}{gpus}", pauses=loader == "torch" and gpus > 1, **cell
            )
            records.write(tmp_path / "cpus" / f"{loader}{gpus}", records.vision("cpu", **cell))
    printed = said("figure", "loaders", tmp_path / "gpus", "--out", tmp_path / "out", "--all")
    files = [one.facts["file"] for one in told(printed) if one.code == "figure.written"]
    assert files[-1].endswith("loaders-timelines.svg") and not says(printed, "figure.no-timelines")
    printed = said("figure", "loaders", tmp_path / "cpus", "--out", tmp_path / "out", "--all")
    needs = find(printed, "figure.no-timelines", experiment="loaders").facts["needs"]
    assert (
        needs.code == "figure.needs-samples"
        and "timelines" not in find(printed, "figure.written").facts["file"]
    )
    why = refused("figure", "timelines", tmp_path / "cpus")
    assert find(why, "figure.nothing-to-show", figure="timelines", runs=4).facts["needs"] == needs
