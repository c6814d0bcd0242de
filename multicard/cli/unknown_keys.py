"""Refuses keys that do not exist here, with the keys or options that may be meant."""

import difflib
import shlex

from multicard import workloads
from multicard.cli.launcher_words import LAUNCHER_PREFIX, launcher_keys
from multicard.cli.word_reader import PATH_OF_OPTION
from multicard.config import schema
from multicard.messages import Refusal
from multicard.run.workload import Workload

MOST_OPTIONS = 3  # A refusal names at most this many options that have a key.


def unknown_key(key: str, workload: Workload, value: str = "VALUE") -> Refusal:
    """Return the refusal of a key that does not exist here, with keys that may be meant."""
    keys_of_entry = {*workloads.known_keys(workload)}
    known = keys_of_entry
    if key in known:
        return _of_another_option(key, value, workload)
    for other in workloads.WORKLOADS:
        if key in workloads.known_keys(other):
            return Refusal(
                "words.key-of-another-entry",
                f"{key}: belongs to {other.entry}",
                key=key,
                entry=other.entry,
            )
    if key.startswith(LAUNCHER_PREFIX):
        known = {*launcher_keys()}
    if key in known:
        return Refusal(
            "words.key-of-another-launcher",
            f"{key}: belongs to another launcher; use `hydra/launcher=submitit_slurm`",
            key=key,
        )
    if key in schema.OLDER:
        sentence = (
            f"{key}: only earlier versions had this key; leave it out, and see CHANGELOG.md for its"
            " replacement"
        )
        return Refusal("words.key-of-earlier-version", sentence, key=key)
    last_part = key.rpartition(".")[2]
    elsewhere = schema.called_elsewhere(workload.schema)
    close_names = difflib.get_close_matches(key, [*known, *elsewhere], n=3)
    suggestions = [*dict.fromkeys(elsewhere.get(name, name) for name in close_names)]
    if last_part in known or last_part in keys_of_entry:
        suggestions = [last_part]
    elif key.startswith(LAUNCHER_PREFIX) and key not in elsewhere and last_part in elsewhere:
        suggestions = [elsewhere[last_part]]
    remedy = f"nearest: {', '.join(suggestions)}" if suggestions else "`--help` shows all keys"
    return Refusal(
        "words.no-such-key", f"{key}: no such key here; {remedy}", key=key, near=suggestions
    )


def _of_another_option(key: str, value: str, workload: Workload) -> Refusal:
    """Return the refusal of a key that only other options of its group have."""
    group, _, name = key.partition(".")
    options = [
        str(option)
        for option, its_schema in workload.options.get(group, {}).items()
        if name in its_schema.__dataclass_fields__
    ]
    needing = [option for option in options if PATH_OF_OPTION.get(option, "").startswith(f"{key}=")]
    options = needing or options
    if not options or len(options) > MOST_OPTIONS:
        remedy = "`--help` shows its keys"
    else:
        words = [shlex.join([f"{group}={option}", f"{key}={value}"]) for option in options]
        remedy = f"use {' or '.join(f'`{word}`' for word in words)}"
    return Refusal(
        "words.key-of-another-option",
        f"{key}: is not a key of the option chosen for {group}; {remedy}",
        key=key,
        group=group,
        options=options,
    )
