"""Build wheels and source archives with the repository's top level and the commit.

pyproject.toml cannot describe these. `conf/`, `analysis/` and the entries are copied to
`multicard/checkout/` (multicard/repository.py). So the top of site-packages has only `multicard/`
and Hydra's `hydra_plugins/`. An editable install uses the checkout itself.
"""

import json
import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
ENTRIES = ("train_vision.py", "tune_llm.py", "measure_script.py")
TOP_LEVEL = ("conf", "analysis", *ENTRIES)
# Users with a GPU can run these tests: `python -m pytest -m gpu`.
TESTS_OF_GPUS = ("tests/__init__.py", "tests/conftest.py", "tests/gpu", "tests/helpers")
PYTEST = ("pyproject.toml",)  # It has the options and marks of pytest.
# Messages refer to these pages, and tests on GPUs repeat these measurements.
PATTERNS = ("docs/*.md", "docs/*/*.md", "benchmarks/*.py")
REPOSITORY = runpy.run_path(str(HERE / "multicard" / "repository.py"))
NO_SOURCE = shutil.ignore_patterns("__pycache__", ".*")


def write_commit(package: Path) -> None:
    """Write the commit, if it is known, beside `repository.py` in a copy of the package."""
    commit: dict[str, Any] | None = REPOSITORY["commit"](HERE)
    if commit is not None:
        (package / REPOSITORY["COMMIT"]).write_text(json.dumps(commit) + "\n")


class BuildPackage(build_py):
    """Build the package with the repository's top level in a folder of it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "multicard"
        write_commit(package)
        sources = [HERE / name for name in TOP_LEVEL + TESTS_OF_GPUS + PYTEST]
        for pattern in PATTERNS:
            sources += HERE.glob(pattern)
        for source in sources:
            target = package / REPOSITORY["IN_WHEEL"].name / source.relative_to(HERE)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=NO_SOURCE, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)


class SourceArchive(sdist):
    """Make a source archive with the commit, because the archive has no .git."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / "multicard")


# The build folder is temporary. Otherwise, files deleted since would get into the next wheel.
build_folder = tempfile.TemporaryDirectory(prefix="multicard-build-")
setup(
    cmdclass={"build_py": BuildPackage, "sdist": SourceArchive},
    options={"build": {"build_base": build_folder.name}},
)
