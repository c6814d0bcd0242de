"""Describes the workload of `measure_script.py`. Does not import torch."""

import ast
import shlex
from pathlib import Path

from multicard.config.base import ProfileConfig, ProfileName, WindowConfig
from multicard.config.job import count
from multicard.config.script import ScriptConfig
from multicard.messages import Refusal
from multicard.records.content import MOST_FILES, Parts
from multicard.records.schema import ScriptRecord
from multicard.run.workload import Workload
from multicard.script import summary, words


def check_script(config: ScriptConfig) -> None:
    """Refuse a script that cannot be started, by a ValueError."""
    path = words.file(config)
    named = f"script={config.script}"
    if not path.exists():
        raise absent(config)
    if path.suffix == ".ipynb":
        raise Refusal(
            "script.notebook",
            f"{named}: is a notebook; export it by `jupyter nbconvert --to script"
            f" {shlex.quote(config.script)}`",
            key="script",
            value=config.script,
        )
    if not path.is_file():
        raise Refusal(
            "script.no-file",
            f"{named}: is not a file; give the script that torchrun would start",
            key="script",
            value=config.script,
        )
    try:
        ast.parse(path.read_bytes())
    except OSError as error:
        raise Refusal(
            "script.unread",
            f"{named}: cannot be read ({error.strerror})",
            key="script",
            value=config.script,
            reason=error.strerror,
        ) from None
    except (SyntaxError, ValueError) as error:
        number = error.lineno if isinstance(error, SyntaxError) else None
        line = f", line {number}" if number else ""
        raise Refusal(
            "script.no-python",
            f"{named}: is not Python that this interpreter reads ({error.args[0]}{line})",
            key="script",
            value=config.script,
            line=number,
            reason=error.args[0],
        ) from None
    words.variables(config)


def absent(config: ScriptConfig) -> Refusal:
    """Return the refusal of a script that does not exist."""
    return Refusal(
        "script.absent",
        f"script={config.script}: there is no such file; "
        f"the path is relative to {Path.cwd()}, and `'script=-m NAME'` starts a module",
        key="script",
        value=config.script,
    )


def code(config: ScriptConfig) -> Parts:
    """Return the script, and the Python files of its folder and of packages in it.

    For a module, the folder is that of its outermost package.
    """
    path = words.file(config)
    if not path.is_file():
        raise absent(config)
    root = path.parents[max(0, words.module(config).count(".") - (path.stem != "__main__"))]
    files = [path]
    folders = [root]
    while folders and len(files) < MOST_FILES:
        folder = folders.pop()
        files += sorted(
            file for file in folder.glob("*.py") if file.is_file() and not file.samefile(path)
        )
        folders += sorted((each.parent for each in folder.glob("*/__init__.py")), reverse=True)
    return {"script": [(str(file.relative_to(root)), file) for file in files[:MOST_FILES]]}


def describe(config: ScriptConfig) -> list[str]:
    """Describe the run, in parts of a line."""
    steps = [] if config.steps is None else [count(config.steps, "step")]
    name = words.module(config)
    return [
        shlex.join([*(["-m", name] if name else [config.script]), *words.words(config)]),
        *steps,
    ]


PRELOAD = ("multicard.script.run", "pyarrow.parquet", "hydra.main")
WORKLOAD = Workload(
    name="script",
    entry="measure_script.py",
    schema=ScriptConfig,
    options={"profile": {ProfileName.none: ProfileConfig, ProfileName.kineto: WindowConfig}},
    work="multicard.script.run:run",
    preload=PRELOAD,
    cuda_preload=PRELOAD,
    refuse=lambda config: None,
    fits=lambda config, placement: None,
    check=check_script,
    data=code,
    # Scripts may change their working folder.
    arguments=lambda config, placement, folder: (config, folder.absolute()),
    axes=summary.axes,
    describe=describe,
    record=ScriptRecord,
    summarise=summary.summarise,
    advise=lambda config, placement, bound: "",  # diagnose=true is refused.
    unit="samples",
    joins=False,
    free=("args",),
)
