"""What pyproject.toml cannot say of a wheel: the place of the repository's top level,
and the commit.

`conf/`, `analysis/` and the entries go to `multicard/checkout/` (multicard/repository.py). So the
top of site-packages has only `multicard/` and Hydra's `hydra_plugins/`. An editable install uses
the checkout as it is.
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
# Tests that need a GPU, for whoever has one (`python -m pytest -m gpu`)
TESTS_OF_GPUS = ("tests/__init__.py", "tests/conftest.py", "tests/gpu", "tests/helpers")
PYTEST = ("pyproject.toml",)  # its options and marks
# Pages that messages name, and measurements that tests of GPUs repeat
PATTERNS = ("docs/*.md", "docs/*/*.md", "benchmarks/*.py")
REPOSITORY = runpy.run_path(str(HERE / "multicard" / "repository.py"))
NO_SOURCE = shutil.ignore_patterns("__pycache__", ".*")


def write_commit(package: Path) -> None:
    """Write the commit beside `repository.py` in a copy of the package, if it is known."""
    commit: dict[str, Any] | None = REPOSITORY["commit"](HERE)
    if commit is not None:
        (package / REPOSITORY["COMMIT"]).write_text(json.dumps(commit) + "\n")


class BuildPackage(build_py):
    """Builds the package with the repository's top level in a folder of it."""

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
    """A source archive with the commit, as it has no .git."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / "multicard")


# One that stays in the checkout would put files that are gone into the next wheel
build_folder = tempfile.TemporaryDirectory(prefix="multicard-build-")
setup(
    cmdclass={"build_py": BuildPackage, "sdist": SourceArchive},
    options={"build": {"build_base": build_folder.name}},
)
