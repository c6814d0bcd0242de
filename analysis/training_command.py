"""The command that trains a recommended setting in full and keeps the model,
and the one that finds and runs it.

`multicard best FOLDER --train` is offered wherever a setting is recommended: at the end of a sweep,
by `best` and on the page. All of them take it from here.
"""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from multicard.config import schema
from multicard.config.roles import Role
from multicard.messages import link, typed
from multicard.records.schema import ScriptRecord

from .runs.load import Run

MOST_FOLDERS = 3  # that a command names
# Keys of a measurement, which say how it was driven, how long it tried a setting,
# and what it observed
MEASURING = (Role.trial, Role.observes, Role.sweeps, Role.once, Role.forecast)
TRACKER = "tracker."  # keys of where records go, those of the training too
SMOKE = "scale=smoke"
TRAINED = "trained"  # ends the name of the sweep, as that of the folder that the model is in


def offered(runs: Iterable[Run]) -> str:
    """The command that trains what is recommended of these runs, by their sweeps' folders."""
    folders = list(dict.fromkeys(run.folder.parent for run in runs))
    if len(folders) > MOST_FOLDERS:
        folders = [Path(os.path.commonpath(folders))]
    named = [shlex.quote(link(folder).plain) for folder in folders]
    return f"{typed('-m analysis')} best {' '.join(named)} --train"


def keeps(kind: str) -> str:
    """What that command does, in words behind it."""
    if kind == ScriptRecord.kind:
        return "prints the script's own command under this setting"
    return "trains it in full and keeps the model"


def in_full(command: str, sweep: str) -> tuple[list[str], list[str]]:
    """The words of a setting's command that trains it in full,
    and those that shortened the measurement.

    Args:
        command: that measures the setting, with the entry.
        sweep: the name of the sweep that found it.
    """
    words = [word for word in shlex.split(command) if "=" in word]
    shortening = [word for word in words if _shortens(word)]
    kept = [word for word in words if word not in shortening and not _is_of_the_measurement(word)]
    # no roles: set anew
    kept = [word for word in kept if word.partition("=")[0] not in ("name", "save")]
    return [*kept, f"name={sweep}-{TRAINED}"], shortening


def _roles(word: str) -> Role:
    """The roles of a word's key, and of the group that it is in."""
    key = word.lstrip("+").partition("=")[0]
    group = key.partition("/")[0].partition(".")[0]
    return (
        schema.of(key)
        if group == key
        else schema.of(key) | (schema.of(group) & (Role.observes | Role.once))
    )


def _is_of_the_measurement(word: str) -> bool:
    return not word.startswith(TRACKER) and any(role in _roles(word) for role in MEASURING)


def _shortens(word: str) -> bool:
    """True for a word that takes a part of the work: so many steps, rows or images. A share of the
    data that is tested on, as `dataset.split=0.2`, shortens nothing.
    """
    is_amount = word.partition("=")[2].isdigit()
    return word == SMOKE or Role.trial in _roles(word) or (Role.part in _roles(word) and is_amount)
