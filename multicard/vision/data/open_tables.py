"""Open tables of images of any kind, and refuse those that cannot be read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multicard.messages import Refusal
from multicard.vision.data.image_columns import ColumnNames, require_same_columns
from multicard.vision.data.stored_images import ARROW_SUFFIX, open_dataset
from multicard.vision.data.text_tables import text_table

PARQUET_SUFFIX = ".parquet"


@contextmanager
def unreadable_refused(path: Path) -> Iterator[None]:
    """Turn the errors of an unreadable table into a refusal that names it."""
    import pyarrow as pa

    try:
        yield
    except Refusal as refusal:
        if refusal.code not in ("table.encoding", "table.nul"):
            raise
        raise Refusal(
            "photographs.table-encoding",
            f"dataset.root={path}: {refusal.message}",
            key="dataset.root",
            file=str(path),
            reason=refusal.message,
        ) from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # A truncated file gives no errno.
            raise
        why = re.split("Invalid: |source '.*?': ", str(error).splitlines()[0])[-1]
        raise Refusal(
            "photographs.unreadable-table",
            f"dataset.root={path}: cannot be read ({why}); save it completely, and in UTF-8",
            key="dataset.root",
            file=str(path),
            why=why,
        ) from None


def open_table(paths: list[Path], column_names: ColumnNames) -> Any:
    """Open a table in one or more files as a pyarrow `Dataset`."""
    from pyarrow import dataset

    form: Any = "parquet"
    if paths[0].suffix.lower() not in (PARQUET_SUFFIX, ARROW_SUFFIX):
        return dataset.dataset(text_table(paths[0]))
    if paths[1:]:
        require_same_columns(paths, form, column_names)
    return open_dataset(paths, form)
