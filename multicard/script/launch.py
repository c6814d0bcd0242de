"""Starts a script on one GPU, and explains a failure at its start."""

import os
import re
import shlex
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb

from multicard.config.script import ScriptConfig, ScriptLaunch
from multicard.messages import Message, Refusal, typed
from multicard.ranks.failures import in_a_line, is_oom
from multicard.ranks.process import Rank
from multicard.repository import PACKAGES
from multicard.script import words

# torchrun's variables. By them scripts and libraries take a process for one of several.
VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
AGENT = "TORCHELASTIC_"  # The names of the agent's variables begin so.
OF_VARIABLES = re.compile(
    rf"\b({'|'.join(VARIABLES)}|{AGENT}\w+)\b|init_process_group|init_device_mesh"
)
OF_GROUP = (
    r"process[ _]group|local[ _-]?rank|world[ _]size|\bnccl|\bgloo\b|\bc10d\b|TCPStore|rendezvous"
)
OF_GPU = r"No CUDA GPUs|device ordinal|not compiled with CUDA|NVIDIA driver"
OF_START = re.compile(f"{OF_VARIABLES.pattern}|(?i:{OF_GROUP}|{OF_GPU})")
OF_FILES = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
)
LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")} | {
    str(PACKAGES / "multicard")
}
# Another way to start the script would not help.
OWN = (
    "script.option-stays-on",
    "script.relative-import",
    "script.own-ranks",
    "script.replaced",
    "script.no-step",
    "script.nothing-left",
)


@contextmanager
def variables(config: ScriptConfig, rank: Rank) -> Iterator[None]:
    """Set the environment as `launch` says while the script runs."""
    gone = dict[str, str]()
    if rank.world_size == 1 and config.launch is ScriptLaunch.python:
        names = [name for name in os.environ if name in VARIABLES or name.startswith(AGENT)]
        gone = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(gone)


def failed_at_start(config: ScriptConfig, rank: Rank, error: BaseException) -> Refusal | None:
    """Return a refusal that says how else to start a script on one GPU that failed before its first
    step.

    None if nothing shows that the failure has to do with the start.
    """
    if rank.world_size > 1 or not isinstance(error, Exception) or is_oom(error):
        return None
    if getattr(error, "code", None) in OWN or not any(map(_is_of_start, _chain(error))):
        return None
    reason = str(error) if isinstance(error, Message | Refusal) else in_a_line(error)
    other = ScriptLaunch.python if config.launch is ScriptLaunch.torchrun else ScriptLaunch.torchrun
    overrides = [word for word in words.overrides(config) if not word.startswith("launch=")]
    command = f"{typed('measure_script.py')} {shlex.join([*overrides, f'launch={other}'])}"
    return Refusal(
        "script.failed-at-start",
        f"{reason}; it was started by {config.launch} and failed before its first step: if it"
        f" starts by {other} alone, use `{command}`",
        key="launch",
        value=str(config.launch),
        reason=reason,
        command=command,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and those from which it was raised."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _is_of_start(error: BaseException) -> bool:
    """Return True for an error of torchrun's variables, the process group, or the GPU.

    The text of the error shows it, or the line of the script that failed. The name of a missing
    file shows nothing.
    """
    if isinstance(error, OF_FILES):
        return False
    if OF_START.search(str(error)):
        return True
    lines = [
        frame.line or ""
        for frame in extract_tb(error.__traceback__)
        if not _is_of_library(frame.filename)
    ]
    return bool(lines and OF_VARIABLES.search(lines[-1]))


def _is_of_library(file: str) -> bool:
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in LIBRARIES)
