"""`table table4`: the sizes of the text data sets, as runs read them and as the papers print them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from analysis.commands.table import PAPER, Table
from analysis.runs.load import Run
from multicard.config import CONF
from multicard.config.llm import DATASETS
from multicard.records.schema import LlmRecord
from papers import printed, settings

TITLE = "The papers' Table 4: the sizes of the text data sets"
FOLDER = CONF / "dataset"
HEADINGS = ["dataset", "source", "template", PAPER, "rows", PAPER, "MB", PAPER]
NOTES = [
    "rows, MB: of a run that read the whole set; MB of its files, which may be of another format than the papers'",
    "-: no run here read the whole set; dataset=NAME dataset.rows=null does, of any model and method",
]


def table(runs: Sequence[Run]) -> Table:
    """A row for each data set that the papers print, whether or not a run read it."""
    figures = printed.figures(printed.DATASETS)
    names = dict.fromkeys(figure.cell["dataset"] for figure in figures)
    rows = [_row(name, runs) for name in names]
    texts = [[_text(value) for value in row.values()] for row in rows]
    sources = ", ".join(dict.fromkeys(figure.source for figure in figures))
    return Table(TITLE, HEADINGS, texts, rows, [f"paper: {sources}", *NOTES])


def _row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    whole = [run for run in runs if run["dataset"] == name and run["dataset.rows"] is None and run["status"] == "ok"]
    record, facts = whole[0].record() if whole else None, DATASETS[name]
    data, rows = record and record.data, record.text_rows if isinstance(record, LlmRecord) else None
    has_rows_alone = data is not None and [*data.parts] == ["dataset"]  # no weights, nor a tokenizer of files
    papers = {
        figure.measure: figure.value for figure in printed.figures(printed.DATASETS) if figure.cell == {"dataset": name}
    }
    return {
        "dataset": name,
        "source": msgspec.yaml.decode((FOLDER / f"{name}.yaml").read_bytes())["source"],
        "template": "instruct" if facts.conversations else facts.template,  # as the experiments read it
        "paper template": settings.read().templates[name],
        "rows": rows and rows.read,
        "paper rows": int(papers["rows"]),
        "size_mb": data.bytes / 1e6 if data is not None and has_rows_alone else None,
        "paper size_mb": papers["size_mb"],
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
