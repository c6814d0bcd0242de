"""Names that memory prediction takes from torch, torchao and torchtune without a promise that they stay."""

import ast
import pkgutil
import re
from importlib.metadata import version
from pathlib import Path

import multicard.llm.before_torchtune  # noqa: F401  torchtune's parts import each other in a circle without it

FILES = Path(__file__).parents[2] / "multicard" / "estimate" / "memory"


def names(source: str) -> set[str]:
    """Full names of the libraries' objects in a file: imported, as attributes, or in strings to patch."""
    found, imported = set(), {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            found.add(f"{imported.get(root, root)}.{rest}")
        elif isinstance(node, ast.Constant):
            found.add(str(node.value))
    return {name for name in found | {*imported.values()} if re.fullmatch(r"torch\w*(\.\w+)+", name)}


def test_releases_still_have_the_names_that_predictions_take():
    lost = []
    assert "torchao.dtypes.nf4tensor.NF4Tensor" in names((FILES / "torch_internals.py").read_text())
    for name in sorted(set.union(*(names(path.read_text()) for path in FILES.glob("*.py")))):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as problem:
            library = name.split(".")[0]
            lost.append(f"{library} {version(library)} has no {name}: {problem}")
    assert not lost
