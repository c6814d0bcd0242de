"""How a script on one GPU is started, and what is said of one that fails so."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from multicard.config.script import Launch, ScriptConfig
from multicard.messages import Message, Refusal
from multicard.ranks.failures import in_a_line, is_oom
from multicard.ranks.process import Rank
from multicard.script import words

# Variables of torchrun, by which scripts and libraries take a process for one of several
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
AGENT = "TORCHELASTIC_"  # begins the names of the agent's own
OWN = ("script.relative-import", "script.own-ranks", "script.replaced", "script.no-step")  # whatever starts the script


@contextmanager
def variables(config: ScriptConfig, rank: Rank) -> Iterator[None]:
    """Have the environment be as `launch` says, while the script runs."""
    gone = dict[str, str]()
    if rank.world_size == 1 and config.launch is Launch.python:
        names = [name for name in os.environ if name in VARIABLES or name.startswith(AGENT)]
        gone = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(gone)


def failed_at_start(config: ScriptConfig, rank: Rank, error: BaseException) -> Refusal | None:
    """What is said of a script on one GPU that failed before its first step: how else it can be started. None where
    that would not help."""
    if rank.world_size > 1 or not isinstance(error, Exception) or is_oom(error):
        return None
    if getattr(error, "code", None) in OWN or getattr(error, "facts", {}).get("exit_code") == 2:
        return None
    reason = str(error) if isinstance(error, Message | Refusal) else in_a_line(error)
    other = Launch.python if config.launch is Launch.torchrun else Launch.torchrun
    command = shlex.join(["multicard", "script", *words.overrides(config), f"launch={other}"])
    return Refusal(
        "script.failed-at-start",
        f"{reason}; started by {config.launch} it failed before its first step: if it starts by {other} alone, "
        f"use `{command}`",
        key="launch",
        value=str(config.launch),
        reason=reason,
        command=command,
    )
