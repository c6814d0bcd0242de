"""The variant of a figure for a narrow window."""

import json
import re
from pathlib import Path

import pytest
import vl_convert
from analysis.figures.narrow import MOST_WIDTH, narrow

from analysis.figures import draw, vega
from analysis.report.blocks import Plot
from analysis.runs import load
from tests.analysis.test_figure_files import vega_lite
from tests.helpers import grids, records
from tests.helpers.grids import drawn

ROOM = 420  # points: axis, chart and the room that letters may take


def svg_of(figure: vega.Figure) -> str:
    """The narrow variant as the page draws it, with its legends below."""
    plot = Plot.of(figure, [])
    config = vega.theme("light")
    config["legend"] = config["legend"] | {"orient": "bottom", "columns": 1, "direction": "vertical", "labelLimit": 300}
    return vl_convert.vegalite_to_svg({**narrow(plot.spec), "datasets": {vega.DATA: plot.rows}}, config=config)


@pytest.mark.parametrize("name", ["table2", "image_size", "peak_memory", "vision_metrics", "precision_metrics"])
def test_charts_of_experiments_stand_below_each_other(tmp_path: Path, name: str):
    grids.fill(tmp_path, name)
    figure = drawn(tmp_path, name)[0]
    spec = narrow(figure.spec)
    vega_lite().validate(spec)
    assert "hconcat" not in json.dumps(spec) and spec["datasets"] == figure.spec["datasets"]
    (width,) = re.findall(r'^<svg[^>]* width="([\d.]+)"', svg_of(figure))
    assert float(width) <= ROOM


def test_names_of_bars_stand_above_them(tmp_path: Path):
    for lr in (0.1, 0.2):
        records.write(tmp_path / str(lr), records.vision(lr=lr, optimizer__weight_decay=lr))
    (figure,) = draw.phases(load.read([tmp_path]).runs)
    (chart,) = narrow(figure.spec)["vconcat"]
    (wide,) = figure.spec["vconcat"]
    axis = chart["layer"][0]["encoding"]["y"]["axis"]
    assert axis["labelAlign"] == "left" and axis["labelLimit"] == chart["width"] == MOST_WIDTH < wide["width"]
    assert chart["height"] > wide["height"] and "labelAlign" not in wide["layer"][0]["encoding"]["y"]["axis"]


def test_long_titles_are_broken_and_short_ones_are_not():
    spec = {"title": "time of training and evaluation, of all epochs (s)", "of": [{"title": "GPUs"}, {"title": None}]}
    assert narrow(spec) == {
        "title": ["time of training and", "evaluation, of all epochs (s)"],
        "of": [{"title": "GPUs"}, {"title": None}],
    }
