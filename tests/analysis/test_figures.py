"""Figures of the experiments: the rows that are drawn, and what is said around them."""

import json
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from analysis import experiments
from analysis.figures import captions, chart_data, experiment_charts, vega
from analysis.figures.draw import experiment_figures
from analysis.figures.effect_charts import effects_alone
from analysis.figures.trade_off_chart import trade_off
from analysis.figures.vega import Chart
from analysis.runs import load, profile_metrics
from analysis.stats import intervals
from tests.helpers import grids, records
from tests.helpers.grids import drawn, svg, texts
from tests.helpers.messages import find, says


def measured(figure: Chart, measure: str, **where: Any) -> list[dict[str, Any]]:
    wanted = {"measure": measure, "of": chart_data.MEASURED, **where}
    return [
        row for row in figure.rows if all(row.get(key) == value for key, value in wanted.items())
    ]


# Rows


def test_points_are_means_over_seeds_with_their_interval(tmp_path: Path):
    grids.fill(
        tmp_path,
        "table2",
        (0, 1, 2),
        change=lambda cell: {"total_s": 100.0 / cell["gpus"] + cell["seed"]},
    )
    (figure,) = drawn(tmp_path, "table2")
    (row,) = measured(figure, "total_s", precision="fp32", gpus=4)
    assert (row["mean"], row["n"], row["bar"]) == (26.0, 3, chart_data.T_INTERVAL) and row[
        "low"
    ] < 26 < row["high"]
    assert len(measured(figure, "total_s")) == len(measured(figure, "test_accuracy")) == 12
    assert says(figure.caption, "figure.means", runs=[3])
    assert says(figure.caption, "figure.bars", bars=[chart_data.T_INTERVAL])
    assert figure.spec["datasets"]["rows"] == figure.rows  # what is downloaded is what is shown


def test_wide_intervals_do_not_dwarf_the_means(tmp_path: Path):
    wide = {("fp32", 0): 1.0, ("fp32", 1): 400.0}
    grids.fill(
        tmp_path,
        "table2",
        (0, 1),
        change=lambda cell: {"total_s": wide.get((cell["precision"], cell["seed"]), 150.0)},
    )
    (figure,) = drawn(tmp_path, "table2")
    (row,) = measured(figure, "total_s", precision="fp32", gpus=4)
    assert row["high"] > 2000 and row["shown_high"] == row["most"] < 450
    assert says(figure.caption, "figure.intervals-cut")


def test_what_did_not_end_is_a_labelled_cross_and_in_no_mean(tmp_path: Path):
    def boom(cell: dict[str, Any]) -> dict[str, Any]:
        failed = {"status": "failed", "cause": {"message": "boom"}, "total_s": 1.0}
        return failed if cell["seed"] == 2 and cell["gpus"] == 1 else {"total_s": 9.0}

    grids.fill(
        tmp_path / "bars",
        "peak_memory",
        (0, 1),
        change=lambda c: grids.oom() if c["method"] == "qat" else {},
    )
    grids.fill(tmp_path / "lines", "image_size", (0, 1, 2), change=boom)
    (bars,), (lines,) = (
        drawn(tmp_path / "bars", "peak_memory"),
        drawn(tmp_path / "lines", "image_size"),
    )
    crossed = measured(bars, "peak_memory_bytes", method="qat")
    assert [(row["status"], row["n"], row.get("mean")) for row in crossed] == [
        ("oom", 2, None)
    ] * 12
    assert texts(bars).count("oom x2") == 12 and says(
        bars.caption, "figure.crosses", statuses=["oom"]
    )
    assert all(row["status"] == "ok" for row in measured(bars, "peak_memory_bytes", method="lora"))
    at = measured(lines, "total_s", gpus="1", **{"dataset.image_size": 500})
    assert [(row["status"], row.get("mean"), row["n"]) for row in at] == [
        ("ok", 9.0, 2),
        ("failed", None, 1),
    ]
    assert texts(lines).count("1 GPU failed") == 5


def test_a_cell_that_cannot_be_is_told_from_one_that_is_missing(tmp_path: Path):
    grids.fill(
        tmp_path,
        "peak_memory",
        where=lambda cell: cell["template"] != "grammar" or cell["gpus"] < 4,
    )
    (figure,) = drawn(tmp_path, "peak_memory")
    assert not measured(figure, "peak_memory_bytes", method="qlora", gpus=3)
    excluded = find(figure.caption, "figure.excluded").facts["cells"]
    assert "method=qlora gpus=3" in excluded
    missing = find(figure.caption, "figure.not-measured").facts["cells"]
    assert len(missing) == 4 and all("template=grammar gpus=4" in cell for cell in missing)


def test_marks_stand_below_where_all_have_them_and_else_at_the_points(tmp_path: Path):
    def change(cell: dict[str, Any]) -> dict[str, Any]:
        return {"oversubscribed": cell["gpus"] == 4}

    grids.fill(tmp_path, "table2", device="cpu", change=change)
    (figure,) = drawn(tmp_path, "table2")
    signs = {row["gpus"]: row["signs"] for row in measured(figure, "total_s")}
    assert signs == {1: "", 2: "", 3: "", 4: "*"} and set(figure.marks) == {"*", "c"}
    assert says(figure.caption, "figure.marks-of-all", signs="c")
    assert says(figure.caption, "figure.marks-at-points", signs="*")
    assert svg(figure).count(">*</text>") == 6  # three precisions, two charts
    assert "CPU ranks" in figure.title and "GPUs" not in figure.title


def test_efficiency_is_against_one_gpu(tmp_path: Path):
    times_s = {1: 80.0, 2: 50.0, 3: 40.0, 4: 20.0}
    grids.fill(tmp_path, "image_size", change=lambda cell: {"total_s": times_s[cell["gpus"]]})
    (figure,) = drawn(tmp_path, "image_size")
    shares = {
        row["gpus"]: row["mean"]
        for row in measured(figure, "efficiency", **{"dataset.image_size": 300})
    }
    assert shares == pytest.approx({"1": 1.0, "2": 0.8, "3": 2 / 3, "4": 1.0})
    assert says(figure.caption, "figure.efficiency-formula")


def test_runs_of_two_commits_are_two_figures_but_where_they_are_mixed(tmp_path: Path):
    grids.fill(tmp_path / "a", "table3", change=lambda _: {"total_s": 10.0})
    grids.fill(tmp_path / "b", "table3", change=lambda _: {"total_s": 30.0, "commit": "f" * 40})
    apart = drawn(tmp_path, "table3")
    assert [figure.name for figure in apart] == ["table3", "table3-2"]
    assert [{row["mean"] for row in measured(figure, "total_s")} for figure in apart] == [
        {10.0},
        {30.0},
    ]
    assert "commit=8fdd49003" in apart[0].title and "commit=fffffffff" in apart[1].title
    (mixed,) = drawn(tmp_path, "table3", mix=True)
    assert {row["mean"] for row in measured(mixed, "total_s")} == {20.0}
    assert says(mixed.caption, "figure.averaged", what="commits", names=["8fdd49003", "fffffffff"])


def test_columns_beside_the_subject_are_charts_but_those_of_few_combinations_one_series(
    tmp_path: Path,
):
    experiment = grids.fill(tmp_path / "loaders", "loaders")
    grids.fill(tmp_path / "layout", "layout")
    free = replace(experiment, excluded=())
    (figure,) = experiment_figures(
        free, experiments.panels(free, load.read_runs([tmp_path / "loaders"]).runs)
    )
    assert {row["series"] for row in figure.rows} == {"torch", "dali"}
    parts = {
        f"{rest}, {size} px"
        for rest in ("nchw, cache process", "nhwc, cache none")
        for size in (300, 500)
    }
    assert (
        {row["part"] for row in figure.rows}
        == parts
        == {row["chart"].partition(" | ")[2] for row in figure.rows}
    )
    charts = figure.spec["vconcat"][0]["facet"]["sort"]
    assert len(charts) == 2 * len(parts) and figure.spec["vconcat"][0]["columns"] == len(parts)

    (layout,) = drawn(tmp_path / "layout", "layout")
    combinations = [
        "torch, nchw, cache process",
        "torch, nhwc, cache process",
        "dali, nhwc, cache none",
    ]
    assert [row["series"] for row in measured(layout, "total_s", gpus=4)] == combinations
    swept = [
        captions.column(name, [])
        for name in ("loader", "layout", "dataset.cache", "dataset.image_size")
    ]
    assert captions.listed(swept) in figure.title


# The papers' figures


def test_the_papers_seconds_of_copies_are_beside_profiles_from_the_start(tmp_path: Path):
    found = {}
    for window in ("start", "after"):
        setting = grids.papers_setting("vision_metrics") | {"profile__window": window}
        for size, gpus, pin in ((500, 2, True), (500, 4, True), (500, 2, False), (100, 2, True)):
            cell = {"dataset__image_size": size, "gpus": gpus, "pin_memory": pin}
            record = records.vision(**setting | cell) | {"profile": grids.profile(gpus, 1.0)}
            records.write(tmp_path / window / f"{size}-{gpus}-{pin}", record)
        (figure,) = drawn(tmp_path / window, "vision_metrics")
        rows = [row for row in figure.rows if row["of"] == chart_data.PAPER]
        assert all(row["part"] == row["metric"] == "memcpy Host-to-Device" for row in rows)
        places = ("dataset.image_size", "gpus", "pin_memory", "low", "high")
        found[window] = {tuple(row[place] for place in places) for row in rows}
        own = measured(
            figure,
            "window_s" if window == "start" else "step_s",
            metric="memcpy Host-to-Device",
            gpus=4,
        )
        assert [row["mean"] for row in own] == pytest.approx(
            [4 * 10 * 3.0e-3 if window == "start" else 3.0e-3]
        )
    printed = {
        ("500", 2, "true", 16, 16),
        ("500", 4, "true", 16, 16),
        ("100", 2, "true", 0.66, 0.66),
    }
    printed |= {("500", 2, "false", 85, 101)}  # printed as the range of 2 and 4 GPUs
    assert found == {"start": printed, "after": set()}


def test_a_figure_stands_beyond_the_papers_mark_that_would_cover_it(tmp_path: Path):
    setting = grids.papers_setting("vision_metrics")
    for size, pin in product((100, 500), (True, False)):
        record = records.vision(**setting, dataset__image_size=size, gpus=2, pin_memory=pin)
        records.write(tmp_path / f"{size}-{pin}", record | {"profile": grids.profile(2, 1.0)})
    (figure,) = drawn(tmp_path, "vision_metrics")
    at = [
        float(x)
        for x in re.findall(r'translate\(([\d.]+),[\d.]+\)"[^>]*>0\.06</text>', svg(figure))
    ]
    # of 100 px, 0.66 s and 3.1 to 3.6 s begin there
    assert len(at) == 4 and max(at[:2]) > min(at[2:]) + 10


def test_bars_of_one_series_a_place_stand_at_its_label(tmp_path: Path):
    for name in ("dataset_metrics", "llm_metrics"):
        grids.fill(tmp_path / name, name)
    alone, abreast = (
        drawn(tmp_path / name, name)[0] for name in ("dataset_metrics", "llm_metrics")
    )
    assert "yOffset" in json.dumps(abreast.spec) and "yOffset" not in json.dumps(alone.spec)


# Profiles and curves


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [32, 64])
def test_a_mark_of_the_papers_is_seen_on_a_longer_bar(batch_size: int, tmp_path: Path):
    """By pixels: the bars of 500 px are broken by the page's colour around 16 s;
    without printed figures, nowhere.
    """
    setting = grids.papers_setting("vision_metrics") | {"batch_size": batch_size}
    for gpus, pin in product((2, 4), (True, False)):
        record = records.vision(**setting, dataset__image_size=500, gpus=gpus, pin_memory=pin)
        records.write(
            tmp_path / "runs" / f"{gpus}-{pin}", record | {"profile": grids.profile(gpus, 3e3)}
        )
    (figure,) = drawn(tmp_path / "runs", "vision_metrics")
    vega.save(figure, tmp_path / "figure.png")
    pixels = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB")).astype(int)
    blue = np.abs(pixels - [0x00, 0x72, 0xB2]).max(axis=2) < 8
    broken = [
        6 < gap < 36 for row in blue if row.sum() > 100 for gap in np.diff(np.flatnonzero(row))
    ]
    assert broken and any(broken) == (batch_size == 32)


def test_metrics_of_profiles_are_in_time_and_in_percent(tmp_path: Path):
    experiment = grids.fill(
        tmp_path / "steps",
        "llm_metrics",
        change=lambda c: {"profile": grids.profile(c["gpus"], 2.0)},
    )
    (figure,) = drawn(tmp_path / "steps", "llm_metrics")
    cells = len(list(grids.cells(experiment)))
    for measure, expected in (("step_s", 2 * 3.0e-3), ("share", 3.0 / 40)):
        copied = measured(figure, measure, metric="memcpy Host-to-Device")
        assert [row["mean"] for row in copied] == pytest.approx([expected] * cells)
    nccl = measured(figure, "step_s", metric="nccl", pin_memory="true", gpus=2)
    # AllReduce, AllGather and Broadcast
    assert [row["mean"] for row in nccl] == pytest.approx([2 * 8.5e-3])
    words = texts(figure)
    titles = {experiment_charts.STEP: "ms", experiment_charts.SHARE: "%"}
    assert all(
        experiment_charts.TITLES[measure].format(unit) in words for measure, unit in titles.items()
    )
    assert words.count(profile_metrics.DISPLAY_NAMES[profile_metrics.NCCL]) == 2
    profiled = find(figure.caption, "figure.profiled").facts["windows"]
    assert len(profiled) == 1 and profiled[0].startswith("10 steps")


def test_metrics_that_no_profile_has_are_named(tmp_path: Path):
    profile = grids.profile(2, 1.0)
    profile["rows"] = [row for row in profile["rows"] if row["metric"] != "nccl AllGather"]
    grids.fill(tmp_path, "llm_metrics", change=lambda _: {"profile": profile})
    grids.fill(tmp_path / "dropped", "precision_metrics")
    (figure,), (dropped,) = (
        drawn(tmp_path, "llm_metrics"),
        drawn(tmp_path / "dropped", "precision_metrics"),
    )
    assert says(figure.caption, "figure.metrics-zero", metrics=["NCCL AllGather"])
    assert "NCCL AllGather" not in {row["part"] for row in figure.rows}
    assert "cudaEventDestroy" in find(dropped.caption, "figure.metrics-unrecorded").facts["metrics"]


def test_shares_are_of_the_profiled_time(tmp_path: Path):
    def failed(cell: dict[str, Any]) -> bool:
        return (cell["method"], cell["template"]) == ("qat", "summarize") or (
            cell["seed"],
            cell["method"],
        ) == (
            1,
            "lora",
        )

    grids.fill(
        tmp_path, "llm_api_share", (0, 1), change=lambda cell: grids.oom() if failed(cell) else {}
    )
    (figure,) = drawn(tmp_path, "llm_api_share")
    mine = [row for row in figure.rows if row["method"] == "lora" and row["template"] == "grammar"]
    assert {row["metric"]: (row["mean"], row["n"]) for row in mine} == {
        # of a step of 40 ms; the failed seed is in no mean
        "cudaLaunchKernel": (pytest.approx(9.1 / 40), 1),
        "cudaStreamSynchronize": (pytest.approx(20.5 / 40), 1),
        "cudaEventSynchronize": (pytest.approx(0.4 / 40), 1),
        "memcpy Host-to-Device": (pytest.approx(3.0 / 40), 1),
        "nccl AllGather": (pytest.approx(2.0 / 40), 1),
    }
    unended = find(figure.caption, "figure.unended-cells").facts["cells"]
    assert "method=qat template=summarize (oom x2)" in unended and texts(figure).count("51.2") == 11
    for name in ("llm_api_share", "llm_metrics"):
        grids.fill(tmp_path / "cpu", name, device="cpu")
        (figure,) = drawn(tmp_path / "cpu", name)
        assert {row["metric"] for row in figure.rows} == {*grids.OTHERS["phase"]}
        assert says(figure.caption, "figure.no-cuda-calls")


def test_copies_are_by_kind_and_in_bytes(tmp_path: Path):
    grids.fill(tmp_path, "transfer_volume")
    figure, counted = drawn(tmp_path, "transfer_volume")
    rows = measured(figure, "copied_in_a_step", method="qat", template="grammar")
    # 10 steps were profiled on 4 ranks
    expected = {name: size * 4 / 10 for name, size in grids.COPIED.items()}
    expected["all three kinds"] = sum(expected.values())
    assert {row["part"]: row["mean"] for row in rows} == pytest.approx(expected)
    words = texts(figure)
    axis = experiment_charts.TITLES[experiment_charts.COPIED_IN_A_STEP].format("bytes")
    assert axis in words and "4.8G" in words and "320" in words
    assert (
        counted.name == "transfer_volume_counted" and len(measured(counted, "received_bytes")) == 12
    )
    grids.fill(tmp_path, "transfer_volume", change=lambda _: {"profile": None})
    assert [figure.name for figure in drawn(tmp_path, "transfer_volume")] == [
        "transfer_volume_counted"
    ]


def test_curves_are_means_by_epoch(tmp_path: Path):
    grids.fill(tmp_path, "loss_curves", (0, 1))
    (figure,) = drawn(tmp_path, "loss_curves")
    runs = [
        r for r in load.read_runs([tmp_path]).runs if r["precision"] == "fp16" and r["pin_memory"]
    ]
    losses = [run.record().epochs[4].train_loss for run in runs]
    (row,) = measured(figure, "train_loss", precision="fp16", pin_memory="true", epoch=5)
    expected = intervals.mean(losses)
    assert (row["mean"], row["low"]) == (
        pytest.approx(expected.estimate),
        pytest.approx(expected.low),
    )
    assert len(measured(figure, "test_accuracy")) == 6 * 20
    path = next(tmp_path.rglob("result.json"))
    record = json.loads(path.read_text())
    records.write(tmp_path / "twin", record | {"repetition": 2})
    record["epochs"][3]["train_loss"] = None  # as a record has NaN
    path.write_text(json.dumps(record))
    (figure,) = drawn(tmp_path, "loss_curves")
    # of two seeds, one of which was repeated
    assert {row["n"] for row in measured(figure, "test_accuracy")} == {2}
    assert says(figure.caption, "figure.loss-gaps", gaps=1, epochs=260)
    one_epoch = [{"epoch": 0, "train_s": 9.0, "train_loss": 2.0}]
    grids.fill(tmp_path, "loss_curves", (0, 1), change=lambda _: {"epochs": one_epoch})
    assert drawn(tmp_path, "loss_curves") == []


@pytest.mark.parametrize(
    ("accuracies", "answers", "most_share"),
    [
        ((0.962, 0.964), 360, 0.05),  # a fifth of what chance explains
        ((0.950, 0.965), 360, 0.20),
        ((0.990, 0.991), 10_000, 0.06),
        ((0.9999, 1.0), None, 0.02),
        ((0.0, 0.0), 100, 0.0),
    ],
)
def test_accuracies_that_chance_explains_look_equal(
    accuracies: tuple[float, ...], answers: int | None, most_share: float
):
    rows = [
        {"mean": share, "low": None, "high": None, "test_samples": answers} for share in accuracies
    ]
    low, high = chart_data.axis_limits(rows, "test_accuracy")
    assert 0.0 <= low <= min(accuracies) and max(accuracies) <= high <= 1.0
    assert max(accuracies) - min(accuracies) <= most_share * (high - low)


def test_accuracies_that_differ_fill_their_axis():
    rows = [{"mean": share, "test_samples": 10_000} for share in (0.80, 0.97)]
    low, high = chart_data.axis_limits(rows, "test_accuracy")
    assert 0.17 >= 0.8 * (high - low)


def test_settings_with_equal_accuracies_lie_on_a_line(tmp_path: Path):
    """Of 300 images one more or less: the chart against time says that accuracies are alike."""
    for gpus, right in ((1, 289), (2, 290), (4, 288)):
        record = records.vision(gpus=gpus, total_s=100.0 / gpus)
        records.write(tmp_path / str(gpus), record | records.accurate(right / 300, images=300))
    (figure,) = trade_off(load.read_runs([tmp_path]).runs)
    rows = [row for row in figure.rows if row["measure"] == "test_accuracy"]
    shown = [row["shown"] for row in rows]
    assert max(shown) - min(shown) < 0.07 * (rows[0]["most"] - rows[0]["least"])


def test_effects_of_next_to_nothing_are_short_bars(tmp_path: Path):
    for gpus in (1, 2):
        for seed in range(4):
            record = records.vision(
                gpus=gpus, seed=seed, total_s=100.0 + 0.001 * gpus + 0.0001 * seed
            )
            records.write(tmp_path / f"{gpus}{seed}", record | records.accurate(0.99))
    (figure, *_) = effects_alone(load.read_runs([tmp_path]).runs)
    low, high = figure.chart["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert math.log(high / low) > 2 * math.log(1.05) > 100 * abs(math.log(figure.rows[0]["mean"]))
