"""Derive the command that trains a recommended setting in full and keeps the model.

`multicard best FOLDER --train` finds and runs that command. The end of a sweep, `best` and the page
offer it wherever a setting is recommended, and all of them take it from here.
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

MAX_FOLDERS = 3  # The most folders that a command names.
# The roles of keys that concern the measurement: how it was driven, how long it tried a setting,
# and what it observed.
MEASUREMENT_ROLES = (Role.trial, Role.observes, Role.sweeps, Role.once, Role.forecast)
TRACKER_GROUP = "tracker."  # These keys say where records go, including those of the training.
SMOKE_WORD = "scale=smoke"
TRAINED_SUFFIX = "trained"  # The training's sweep, and the folder of its model, have this suffix.


def train_command(runs: Iterable[Run]) -> str:
    """Return the command that trains what these runs recommend, with their sweeps' folders."""
    folders = list(dict.fromkeys(run.folder.parent for run in runs))
    if len(folders) > MAX_FOLDERS:
        folders = [Path(os.path.commonpath(folders))]
    folder_names = [shlex.quote(link(folder).plain) for folder in folders]
    return f"{typed('-m analysis')} best {' '.join(folder_names)} --train"


def description(kind: str) -> str:
    """Say what that command does, for a comment behind it."""
    if kind == ScriptRecord.kind:
        return "prints the script's own command under this setting"
    return "trains it in full and keeps the model"


def in_full(command: str, sweep: str) -> tuple[list[str], list[str]]:
    """Return the words that train a setting in full, and the words that shortened its measurement.

    Args:
        command: the command that measures the setting, including the entry.
        sweep: the name of the sweep that measured it.
    """
    words = [word for word in shlex.split(command) if "=" in word]
    shortening = [word for word in words if _shortens(word)]
    kept_words = [word for word in words if word not in shortening and not _only_measures(word)]
    # no roles: these keys are set anew.
    kept_words = [word for word in kept_words if word.partition("=")[0] not in ("name", "save")]
    return [*kept_words, f"name={sweep}-{TRAINED_SUFFIX}"], shortening


def _roles(word: str) -> Role:
    """Return the roles of a word's key, and of the group that contains the key."""
    key = word.lstrip("+").partition("=")[0]
    group = key.partition("/")[0].partition(".")[0]
    return (
        schema.of(key)
        if group == key
        else schema.of(key) | (schema.of(group) & (Role.observes | Role.once))
    )


def _only_measures(word: str) -> bool:
    return not word.startswith(TRACKER_GROUP) and any(
        role in _roles(word) for role in MEASUREMENT_ROLES
    )


def _shortens(word: str) -> bool:
    """Return True if a word limits the work to some steps, rows or images.

    A share of the data to test on, such as `dataset.split=0.2`, does not shorten the work.
    """
    is_amount = word.partition("=")[2].isdigit()
    return (
        word == SMOKE_WORD
        or Role.trial in _roles(word)
        or (Role.part in _roles(word) and is_amount)
    )
