"""Where the repository's top level is (`conf/`, `analysis/`, the entries), and its commit.

In a checkout it is the folder that holds this package. In a wheel it is `checkout/` within this
package, where `setup.py` puts it: names such as `conf` and `analysis` may belong to another
project at the top of site-packages.

Modules of the top level are imported as parts of this one (`multicard.repository.analysis`) in
either place. So each finds itself, whatever else Python finds under its name.

Only the standard library is imported here, as `setup.py` runs this file by itself.
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

PACKAGES = Path(__file__).parents[1]  # what Python's path has to name for multicard to be found
IN_WHEEL = Path(__file__).with_name("checkout")
IS_INSTALLED = IN_WHEEL.is_dir()  # from a wheel; an editable install is a checkout
# the folder of `conf/`, `analysis/` and the entries
ROOT = (IN_WHEEL if IS_INSTALLED else PACKAGES).resolve()
COMMIT = "commit.json"  # what `commit` says, beside this file in wheels and source archives
__path__ = [str(ROOT)]


def module(name: str) -> ModuleType:
    """Import a module of the top level: "analysis.notebook", "train_vision".

    Where it was imported under its own name before, as by `python -m analysis` in a checkout, it
    is that module. A module of the same name that is not multicard's is passed over.
    """
    top = sys.modules.get(name.partition(".")[0])
    place = getattr(top, "__file__", None)
    is_own = place is not None and Path(place).resolve().is_relative_to(ROOT)
    return import_module(name if is_own else f"{__name__}.{name}")


def commit(folder: Path = PACKAGES) -> dict[str, Any] | None:
    """The commit of multicard's code, or None where it is not known.

    It is that of the checkout that tracks files of `folder`, or the one that a wheel was built
    from. `changes` are 8 hex digits of what was changed beside the commit, and None if nothing was.
    """
    if not IS_INSTALLED:
        found = _of_git(folder)
        if found is not None:
            return found
    with suppress(OSError, ValueError):
        return json.loads(Path(__file__).with_name(COMMIT).read_bytes())
    return None


def in_words(code: dict[str, Any] | None) -> str:
    """What `commit` returns, as a part of a sentence."""
    if code is None:
        return "no checkout"
    changes = f" with changes {code['changes']}" if code["changes"] else ""
    return f"commit {code['commit'][:9]}{changes}"


def _of_git(folder: Path) -> dict[str, Any] | None:
    """What git says of a folder. Variables of git, as a hook has them, name no other repository."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def ask(*words: str) -> bytes:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(
            command, capture_output=True, check=True, timeout=10, env=variables
        ).stdout.strip()

    try:
        if not ask("ls-files", "."):
            return None  # below somebody's own repository
        changes = ask("diff", "HEAD", "--no-ext-diff", "--binary")
        digest = sha256(changes).hexdigest()[:8] if changes else None
        return {
            "commit": ask("rev-parse", "HEAD").decode(),
            "dirty": bool(changes),
            "changes": digest,
        }
    except (OSError, subprocess.SubprocessError):
        return None
