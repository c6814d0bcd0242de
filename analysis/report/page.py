"""Write the HTML file: one page that opens from disk and sends no request to any server.

The text in runs may come from strangers. Jinja escapes it in the HTML. Figures and grids are JSON
with `<`, `>` and `&` escaped, in a script element that no browser runs.

A Content-Security-Policy allows only the page's own scripts and styles, by their hashes. So no
request can leave the page, and a script in a run's name would not run. The policy also forbids
`eval`, so Vega's expressions are interpreted, not compiled.
"""

import json
import re
import subprocess
import sys
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from multicard.messages import REMEDY, Message, Refusal
from multicard.records.json_values import readable
from multicard.records.run_folder import write_text
from multicard.records.text_table import alignment, clean

from ..table_columns import Column
from .blocks import Plot, Report, SortableTable

FOLDER = Path(__file__).parent
# They are joined into one script in this order, because each uses names of those before it.
SCRIPTS = ("grid.js", "copy.js", "plots.js")
WATCH = "watch.js"  # Comes last, and only in a page that is served.
VEGA = f"Vega {vl_convert.get_vega_version()}, Vega-Lite {vl_convert.get_vegalite_versions()[-1]}"
LONG_LETTERS = 48  # If a text of a column has more letters, its texts may be broken into lines.
CLAUSE_END = re.compile("(?<=[:,;.]) ")
MAX_DISTINCT_SHARE = 0.5  # Above this share, a column's texts are written one by one.
# The texts of the page's scripts and its template, by the names that these use.
PAGE_TEXTS = {
    "not_copied": Message("page.not-copied", "Not copied: select the text"),
    "no_row": Message("page.no-row", "No row fits."),
    "no_answer": Message(
        "page.no-answer",
        "No answer from the command that serves this page: it shows what was measured before that"
        " command ended.",
    ),
    "looking": Message("page.looking", "Looking for cells that run now."),
    "needs_scripts": Message(
        "page.needs-scripts", "This table needs JavaScript; its rows are in the page's data."
    ),
    "made_by": Message("page.made-by", "Made by `multicard report` from the records of runs."),
    "offline": Message("page.offline", "This file sends no request to any server."),
    "drawn_by": Message(
        "page.drawn-by",
        f"Figures are drawn by {VEGA} "
        "(BSD 3-Clause, © University of Washington Interactive Data Lab and contributors).",
    ),
}


def write(path: Path, report: Report) -> int:
    """Write the report to `path` atomically; return its size in bytes."""
    write_text(path, html(report))
    return path.stat().st_size


def html(report: Report, version: int | None = None) -> str:
    """Return the whole page.

    Args:
        report: the report to write.
        version: the number of a page that is served, and asks its server for news (`watch`).

    Raises:
        ValueError: the data of two grids or two figures have the same name.
    """
    grids = [block for block in report.blocks() if isinstance(block, SortableTable)]
    figures = [block.figure for block in report.blocks() if isinstance(block, Plot)]
    for names in ([grid.name for grid in grids], [figure.name for figure in figures]):
        if len(set(names)) < len(names):
            raise ValueError(f"several blocks of a report are called {max(names, key=names.count)}")
    data = {
        "legend": report.legend,
        "mark_names": report.mark_names,
        "said": {name: PAGE_TEXTS[name] for name in ("not_copied", "no_row", "no_answer")},
        "themes": report.themes,
        "grids": {grid.name: _grid(grid) for grid in grids},
        "plots": {
            figure.name: {
                "spec": figure.chart,
                "rows": figure.data,
                "one_at_a_time": figure.one_at_a_time,
            }
            for figure in figures
        },
    }
    styles = (FOLDER / "page.css").read_text()
    names = SCRIPTS if version is None else (*SCRIPTS, WATCH)
    scripts = [
        *([_vega()] if figures else []),
        "\n".join((FOLDER / name).read_text() for name in names),
    ]
    script_hashes = " ".join(map(_hash, scripts))
    policy = (
        f"default-src 'none'; script-src {script_hashes}; style-src {_hash(styles)};"
        " base-uri 'none'; form-action 'none'"
    )
    policy += "" if version is None else "; connect-src 'self'"
    page = _template().render(
        report=report,
        policy=Markup(policy),
        styles=Markup(styles),
        scripts=list(map(Markup, scripts)),
        data=Markup(in_script(data)),
        said=PAGE_TEXTS,
        has_figures=bool(figures),
        version=version,
    )
    # A folder's name may contain bytes that are not valid text.
    return page.encode(errors="replace").decode()


def in_script(value: Any) -> str:
    """Write JSON that cannot end the script element that contains it."""
    text = json.dumps(readable(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _hash(text: str) -> str:
    """Return the hash of a script or style as a Content-Security-Policy has it."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def bundling() -> subprocess.Popen[str]:
    """Start a process that bundles Vega, Vega-Lite and vega-embed into one script.

    It runs while this process makes the report, because vl_convert holds Python's lock for the two
    seconds that it takes.
    """
    code = 'import vl_convert; print(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))'
    command = [sys.executable, "-I", "-c", code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script. The footer names their license."""
    script, _ = bundling().communicate()
    if bundling().returncode or "</script" in script.lower() or "<!--" in script:
        raise Refusal(
            "page.no-vega",
            "Vega's script cannot be put into a page: it was not made, or contains the end of a"
            " script element",
        )
    return script


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: (
            clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = _sentence
    environment.filters["clauses"] = _clauses
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["alignment"] = lambda table: alignment(table.headings, table.rows)
    return environment.get_template("page.html")


def _sentence(text: str) -> Markup:
    """Return a text as HTML, in which commands in backticks are marked as code."""
    return Markup(REMEDY.sub(r"<code>\1</code>", str(escape(clean(text)))))


def _clauses(statement: str) -> tuple[str, str]:
    """Return the first clause of a statement, with the sign after it, and the rest."""
    end = CLAUSE_END.search(statement)
    if end is None:
        return statement, ""
    return statement[: end.start()], statement[end.end() :]


def _grid(grid: SortableTable) -> dict[str, Any]:
    """Return a table's data for the page's scripts."""
    columns = {name: [*map(_column, getattr(grid, name))] for name in ("columns", "details")}
    options = {name: getattr(grid, name) for name in ("label", "page_rows", "parents")}
    options["curves"] = [[float(f"{value:.4g}") for value in curve] for curve in grid.curves]
    return columns | options | {"rows": len(grid.columns[0].texts) if grid.columns else 0}


def _column(column: Column) -> dict[str, Any]:
    """Return a column's data for the page's scripts."""
    texts = [clean(text) for text in column.texts]
    values = column.numbers
    options = {
        name: getattr(column, name) for name in ("heading", "code", "group", "shown", "telling")
    }
    return options | {
        "key": column.name,
        "texts": _compressed(texts),
        "values": None if values is None else _compressed([_rounded(value) for value in values]),
        "long": values is None and any(len(text) > LONG_LETTERS for text in texts),
        "right": values is not None or alignment([""], [[text] for text in texts]) == "r",
    }


def _rounded(value: float | None) -> float | None:
    """Round measured values to seven digits; leave counts, sizes and seeds unchanged."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _compressed(items: list[Any]) -> dict[str, Any]:
    """Compress a list: if most items repeat, return its distinct items and the index of each item.

    For 10,000 runs, this takes a tenth of the bytes.
    """
    index = {item: number for number, item in enumerate(dict.fromkeys(items))}
    if len(index) == 1:
        return {"each": items[0]}
    if len(index) > MAX_DISTINCT_SHARE * len(items):
        return {"all": items}
    return {"of": list(index), "at": [index[item] for item in items]}
