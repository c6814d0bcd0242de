"""Tables of images as text: .csv, .tsv, .jsonl and .json, as columns."""

from collections import Counter
from pathlib import Path
from typing import Any

from multicard.messages import Refusal
from multicard.records.separated_cells import OpenQuoteError, separated_cells
from multicard.records.separated_text import SeparatedText, separated_text
from multicard.vision.data import json_lists, table_headers
from multicard.vision.data.image_columns import require_no_pixels

JSON_LINES = ".jsonl"


def text_table(path: Path, to_train: bool = True) -> Any:
    """The table of a .csv or .tsv, all of whose cells are texts, or of a .jsonl
    or .json.

    Args:
        to_train: refuse what would lose rows, as a table without a header. One that is only looked
            at beside folders is read as it is.
    """
    import pyarrow as pa
    from pyarrow import csv
    from pyarrow import json as json_lines

    if path.suffix.lower() in (JSON_LINES, json_lists.LIST):
        lines = json_lists.as_lines(path, path.read_bytes())
        table = json_lines.read_json(pa.BufferReader(lines))
        times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        if not times:
            return table
        # a class may be called 2021-01-01
        as_texts = pa.schema([(name, pa.string()) for name in times])
        return json_lines.read_json(
            pa.BufferReader(lines), parse_options=json_lines.ParseOptions(explicit_schema=as_texts)
        )
    found = separated_text(path.read_bytes())
    convert = csv.ConvertOptions(
        default_column_type=pa.string(), null_values=[""], strings_can_be_null=True
    )
    parse = csv.ParseOptions(
        delimiter=found.delimiter,
        newlines_in_values=True,
        quote_char=False if to_train and _are_quotes_letters(path, found) else '"',
    )
    table = csv.read_csv(
        pa.BufferReader(found.text.encode()), parse_options=parse, convert_options=convert
    )
    if to_train:
        table_headers.require_header(path, found, table.column_names)
    counted = Counter(name.strip().lower() for name in table.column_names if name.strip())
    twice = [name for name, count in counted.items() if count > 1]
    if twice:
        require_no_pixels(table.column_names, f"dataset.root={path}")
        raise Refusal(
            "photographs.column-twice",
            f"dataset.root={path}: has the column {twice[0]} twice; name each once",
            key="dataset.root",
            file=str(path),
            column=twice[0],
        )
    return table


def _are_quotes_letters(path: Path, found: SeparatedText) -> bool:
    """True where quotes begin no cell. Refuses a quote that would swallow rows, which Arrow reads
    as a long cell.
    """
    if '"' not in found.text:
        return False
    try:
        return separated_cells(found).are_quotes_letters
    except OpenQuoteError as error:
        raise Refusal(
            "photographs.table-quotes",
            f"dataset.root={path}: the row of line {error.line} has a quote that does not end its"
            f" cell ({error.reason}); quote the cell and double its own quotes",
            key="dataset.root",
            file=str(path),
            line=error.line,
            reason=error.reason,
        ) from None
