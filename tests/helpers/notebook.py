"""docs/notebook.ipynb, carried out without Jupyter on records that are made here.

    python -m tests.helpers.notebook

Write its outputs anew.
"""

import ast
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

# before tests.conftest, which has messages printed as codes: readers want sentences
from multicard import messages
from tests.conftest import ROOT
from tests.goldens import freeze

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def carried_out(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs that its code gives now,
    in one namespace and an empty folder with the records.
    """
    namespace: dict[str, Any] = {}
    cells = [dict(cell) for cell in notebook["cells"]]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        freeze.make_records(Path("multirun"))
        for number, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), 1):
            cell |= {
                "execution_count": number,
                "outputs": _outputs("".join(cell["source"]), namespace, number),
            }
    return notebook | {"cells": cells}


def _outputs(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    *statements, last = ast.parse(source).body
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(statements, []), "notebook", "exec"), namespace)
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), namespace)
        else:
            exec(source, namespace)
    lines = printed.getvalue().splitlines(keepends=True)
    streams = [{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []
    if value is None:
        return streams
    data = {"text/plain": repr(value)} | (
        {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}
    )
    data |= value._repr_mimebundle_() if hasattr(value, "_repr_mimebundle_") else {}
    shown = {kind: text.splitlines(keepends=True) for kind, text in data.items()}
    return [
        *streams,
        {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown},
    ]


if __name__ == "__main__":
    assert not messages.BY_CODE
    NOTEBOOK.write_text(
        json.dumps(carried_out(json.loads(NOTEBOOK.read_text())), indent=1, ensure_ascii=False)
        + "\n"
    )
