"""The HTML file: one page that opens from disk and asks nothing of any server.

What runs contain is text of strangers. Jinja escapes it in the HTML; figures and long tables are JSON, in a script
element that no browser runs, with `<`, `>` and `&` as escapes of JSON. A Content-Security-Policy allows the page's own
scripts and styles, by their hashes, and nothing else: no request can leave the page, and no script that came in by a
run's name would run. Vega's expressions are interpreted, not compiled, since that policy forbids `eval`.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.report.blocks import Claim, Column, Grid, Plot, Report, Table
from multicard.records import text_table
from multicard.records.run_folder import finite, write_text
from multicard.records.text_table import clean

FOLDER = Path(__file__).parent
VEGA = f"Vega {vl_convert.get_vega_version()}, Vega-Lite {vl_convert.get_vegalite_versions()[-1]}"
SNIPPET = "window.vegaEmbed = vegaEmbed;"
LONG = 48  # letters of a text from which on its column's texts may be broken
REPEATED = 0.5  # of a column's texts that are different, above which they are written as they are


def write(path: Path, report: Report) -> int:
    """Write the report to `path`, all of it or nothing; the number of its bytes."""
    text = html(report)
    write_text(path, text)
    return path.stat().st_size


def counted(report: Report) -> str:
    """How many sections, figures, tables and claims."""
    kinds = {"figure": Plot, "table": Table | Grid, "claim": Claim}
    parts = list(report.parts)
    counts = {name: sum(isinstance(part, kind) for part in parts) for name, kind in kinds.items()}
    counts = {"section": len(report.sections)} | counts
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count)


def html(report: Report) -> str:
    """The whole page.

    Raises:
        ValueError: two parts with the same name for their data.
    """
    parts = list(report.parts)
    grids = [part for part in parts if isinstance(part, Grid)]
    plots = [part for part in parts if isinstance(part, Plot)]
    for names in ([grid.name for grid in grids], [plot.name for plot in plots]):
        if len(set(names)) < len(names):
            raise ValueError(f"several parts of a report are called {max(names, key=names.count)}")
    data = {
        "legend": dict(report.legend),
        "themes": {name: dict(config) for name, config in report.themes.items()},
        "grids": {grid.name: _grid(grid) for grid in grids},
        "plots": {plot.name: {"spec": plot.spec, "rows": list(plot.rows)} for plot in plots},
    }
    styles = _text("page.css")
    scripts = [*([_vega()] if plots else []), "\n".join(_text(name) for name in ("grid.js", "plots.js", "page.js"))]
    page = (
        _templates()
        .get_template("page.html")
        .render(
            report=report,
            policy=_policy(scripts, styles),
            styles=styles,
            scripts=scripts,
            data=in_script(data),
            vega=VEGA if plots else "",
        )
    )
    return page.encode(errors="replace").decode()  # a folder's name need not be text


def in_script(value: Any) -> str:
    """JSON that stands in a script element and cannot end it."""
    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def is_figures(texts: Sequence[str]) -> bool:
    """Whether a column holds figures and so stands to the right."""
    return any(text != "-" for text in texts) and all(
        text == "-" or text_table.FIGURE.fullmatch(text) for text in texts
    )


def _policy(scripts: Sequence[str], styles: str) -> str:
    allowed = " ".join(_hash(script) for script in scripts)
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(styles)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _text(name: str) -> str:
    return (FOLDER / name).read_text()


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script: BSD licences, named at the end of the page."""
    script = vl_convert.javascript_bundle(SNIPPET)
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("Vega's script cannot stand in a page: it holds the end of a script element")
    return script


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(FOLDER)
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters["kind"] = lambda part: type(part).__name__.lower()
    found.filters["clean"] = clean
    found.filters["right"] = lambda table: (
        [is_figures(texts) for texts in zip(*table.rows, strict=True)] or [False for _ in table.headings]
    )
    return found


def _grid(grid: Grid) -> dict[str, Any]:
    return {
        "columns": [_column(column) for column in grid.columns],
        "details": [_column(column) | {"wide": column.key in grid.wide} for column in grid.details],
        "rows": len(grid.columns[0].texts) if grid.columns else 0,
        "page_rows": grid.page_rows,
        "printed_rows": grid.printed_rows,
    }


def _column(column: Column) -> dict[str, Any]:
    values = column.values
    return {
        "heading": column.heading,
        "key": column.key,
        "texts": _packed([clean(text) for text in column.texts]),
        "values": None if values is None else _packed([None if v is None else float(f"{v:.7g}") for v in values]),
        "typed": column.typed,
        "long": values is None and any(len(text) > LONG for text in column.texts),
        "right": values is not None or is_figures(column.texts),
    }


def _packed(items: list[Any]) -> dict[str, Any]:
    """A list, by its different items and where they stand where most repeat: of 10,000 runs that is a tenth."""
    index = {item: number for number, item in enumerate(dict.fromkeys(items))}
    if len(index) > REPEATED * len(items):
        return {"all": items}
    return {"of": list(index), "at": [index[item] for item in items]}
