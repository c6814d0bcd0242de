"""Find the repository's top level (`conf/`, `analysis/`, the entries), and its commit.

In a checkout, the top level is the folder that holds this package. In a wheel it is `checkout/`
inside this package, where `setup.py` puts it. At the top of site-packages, names such as `conf` and
`analysis` may belong to another project.

In both places, modules of the top level are imported as submodules of this one, such as
`multicard.repository.analysis`. So they find each other, whatever else Python finds under their
names.

Only the standard library is imported here, because `setup.py` runs this file by itself.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = Path(__file__).parents[1]  # Python finds multicard if this folder is on its path.
IN_WHEEL = Path(__file__).with_name("checkout")
IS_INSTALLED = IN_WHEEL.is_dir()  # True for a wheel. An editable install is a checkout.
# The folder of `conf/`, `analysis/` and the entries.
ROOT = (IN_WHEEL if IS_INSTALLED else PACKAGES).resolve()
COMMIT = "commit.json"  # What `commit` returns; in wheels and source archives, next to this file.
__path__ = [str(ROOT)]


def module(name: str) -> ModuleType:
    """Import a module of the top level, such as "analysis.notebook" or "train_vision".

    If it was already imported under its own name, as by `python -m analysis` in a checkout, return
    that module. A module of the same name that does not belong to multicard is ignored.
    """
    top = sys.modules.get(name.partition(".")[0])
    place = getattr(top, "__file__", None)
    is_own = place is not None and Path(place).resolve().is_relative_to(ROOT)
    return import_module(name if is_own else f"{__name__}.{name}")


def commit(folder: Path = PACKAGES) -> dict[str, Any] | None:
    """Return the commit of multicard's code, or None if it is not known.

    It is the commit of the checkout that tracks files of `folder`, or the one that a wheel was
    built from. `changes` are 8 hex digits of the changes since the commit, or None if there are
    none.
    """
    if not IS_INSTALLED:
        git_commit = _commit_from_git(folder)
        if git_commit is not None:
            return git_commit
    with suppress(OSError, ValueError):
        return json.loads(Path(__file__).with_name(COMMIT).read_bytes())
    return None


def in_words(code: dict[str, Any] | None) -> str:
    """Describe what `commit` returned, as part of a sentence."""
    if code is None:
        return "no checkout"
    changes = f" with changes {code['changes']}" if code["changes"] else ""
    return f"commit {code['commit'][:9]}{changes}"


def _commit_from_git(folder: Path) -> dict[str, Any] | None:
    """Ask git for the commit of a folder.

    Variables of git, which a hook has, are removed: they might name another repository.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def ask(*words: str) -> bytes:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(
            command, capture_output=True, check=True, timeout=10, env=variables
        ).stdout.strip()

    try:
        if not ask("ls-files", "."):
            return None  # The folder is inside a repository of somebody else.
        changes = ask("diff", "HEAD", "--no-ext-diff", "--binary")
        digest = sha256(changes).hexdigest()[:8] if changes else None
        return {
            "commit": ask("rev-parse", "HEAD").decode(),
            "dirty": bool(changes),
            "changes": digest,
        }
    except (OSError, subprocess.SubprocessError):
        return None
