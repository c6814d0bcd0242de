"""The variant of a specification for a narrow window: one chart to a row, titles that are broken into lines, and the
names of bars above them instead of beside them. Nothing is made smaller: letters keep their size."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, cast

from analysis.figures.vega import Spec

MOST_WIDTH = 260  # points, of a chart without its axes
TITLE_LETTERS = 34  # in a line of a title
LONGEST_WORD = 6  # letters by which lines of a title may differ
MOST_LETTERS = 12  # of a name that stands beside its bar
NAME_HEIGHT = 17  # points, of a name above its bar


def narrow(spec: Mapping[str, Any]) -> Spec:
    """The specification with the same data and scales, about 320 points wide."""
    return _narrowed(dict(spec))


def _narrowed(value: Any) -> Any:
    if isinstance(value, list):
        return [_narrowed(part) for part in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    part = {key: _narrowed(inner) for key, inner in cast(Spec, value).items()}
    if "hconcat" in part:
        part["vconcat"] = part.pop("hconcat")
    if "facet" in part and "columns" in part:
        part["columns"] = 1
    if isinstance(part.get("title"), str):
        part["title"] = _lines(part["title"])
    elif isinstance(part.get("title"), dict) and isinstance(part["title"].get("text"), str):
        part["title"] = part["title"] | {"text": _lines(part["title"]["text"])}
    return _narrowed_chart(part) if "layer" in part and "width" in part else part


def _lines(title: str) -> str | list[str]:
    """A title in lines of about the same length, where it is too long for one."""
    count = -(-len(title) // TITLE_LETTERS)
    return textwrap.wrap(title, len(title) // count + LONGEST_WORD) if count > 1 else title


def _narrowed_chart(chart: Spec) -> Spec:
    chart = chart | {"width": min(chart["width"], MOST_WIDTH)}
    rows = [layer["encoding"]["y"] for layer in chart["layer"] if "y" in layer.get("encoding", {})]
    named = [row for row in rows if row.get("type") in ("nominal", "ordinal")]
    names = _names(named)
    if not names or max(map(len, names)) <= MOST_LETTERS:
        return chart
    bar = max(chart["height"] / len(names) - 4, 8)  # points, of what a name stands for
    step = bar + NAME_HEIGHT
    padding = NAME_HEIGHT / step
    axis = {
        "labelAlign": "left",
        "labelBaseline": "bottom",
        "labelPadding": -1,
        "labelOffset": -(bar / 2 + 1),
        "labelLimit": chart["width"],
        "ticks": False,
        "domain": False,
    }
    for row in named:
        row["axis"] = (row.get("axis") or {}) | axis
        row["scale"] = row.get("scale", {}) | {"paddingInner": padding, "paddingOuter": padding}
    return chart | {"height": round(step * len(names))}


def _names(rows: Sequence[Spec]) -> list[str]:
    """The names along an axis, where its order tells them."""
    orders = [row["sort"] for row in rows if isinstance(row.get("sort"), list)]
    return [str(name) for name in orders[0]] if orders else []
