"""Reads the defaults of a site from one file, so that users need not type account or partition.

The file is a YAML mapping of keys to values:

    hydra.launcher.account: project42
    hydra.launcher.partition: gpu
    time_min: 120

It may set keys of Hydra's launcher, and keys that do not change what is measured. Words of the
command take precedence.
"""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from multicard import workloads
from multicard.cli.launcher_words import (
    LAUNCHER_GROUP,
    LAUNCHER_PREFIX,
    LAUNCHERS,
    SLURM_LAUNCHER,
    launcher_keys,
)
from multicard.cli.vocabulary import Vocabulary
from multicard.config import schema, strict_yaml
from multicard.config.roles import Role
from multicard.messages import Message, Refusal
from multicard.run.workload import Workload

VARIABLE = "MULTICARD_SITE"
FILES = (Path("~/.config/multicard/site.yaml"), Path("/etc/multicard/site.yaml"))


def file_of_site() -> Path | None:
    """Return the site's file: the one that the variable names, the user's, or the machine's."""
    variable = os.environ.get(VARIABLE)
    if variable is not None:
        return Path(variable) if variable else None
    for file in FILES:
        path = file.expanduser()
        if path.is_file():
            return path
    return None


def words_of_site(typed: Sequence[str], workload: Workload) -> list[str]:
    """Return the words of the site's file for keys that this command does not set.

    Args:
        typed: the words of the command, as Hydra will read them.

    Raises:
        Refusal: the file cannot be read, or sets a key that it may not set.
    """
    file = file_of_site()
    if file is None:
        return []
    values = _read_values(file)
    typed_keys = {word.lstrip("+").partition("=")[0] for word in typed}
    launcher = values.get(LAUNCHER_GROUP)
    for word in typed:
        if word.startswith(f"{LAUNCHER_GROUP}="):
            launcher = word.partition("=")[2]
    known = workloads.known_keys(workload)
    words = []
    for key, value in values.items():
        _check_key(key, file, workload)
        if key in typed_keys:
            continue
        if key == LAUNCHER_GROUP and str(value) not in LAUNCHERS:
            raise Refusal(
                "site.launcher",
                f"{file}: {LAUNCHER_GROUP}: {value} is no launcher of multicard; choose one of"
                f" {', '.join(LAUNCHERS)}",
                key=LAUNCHER_GROUP,
                file=str(file),
                value=str(value),
                choices=[*LAUNCHERS],
            )
        applies = launcher == SLURM_LAUNCHER if key.startswith(LAUNCHER_PREFIX) else key in known
        if applies or key == LAUNCHER_GROUP:
            words.append(f"{key}={_as_word(value)}")
    return words


def notice(words: Sequence[str]) -> Message:
    """Return the notice that says what the site's file sets for a command."""
    return Message(
        "site.defaults",
        f"defaults of this site ({file_of_site()}): {' '.join(words)}",
        file=str(file_of_site()),
        words=[*words],
    )


def _read_values(file: Path) -> dict[str, Any]:
    try:
        content = strict_yaml.read_yaml(file)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise Refusal(
            "site.unread",
            f"{file}: the defaults of this site cannot be read ({reason}); correct the file, or set"
            f" {VARIABLE} to nothing, which disables them",
            file=str(file),
            reason=reason,
        ) from None
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise Refusal(
            "site.no-mapping",
            f"{file}: does not consist of keys and values, as time_min: 120; correct the file, or"
            f" set {VARIABLE} to nothing, which disables it",
            file=str(file),
        )
    return dict(_flat(content, ""))


def _flat(content: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield keys with dots for nested mappings. A mapping that is the value of a key stays one."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        is_value = key.startswith(LAUNCHER_PREFIX) or not isinstance(value, Mapping)
        if is_value:
            yield key, value
        else:
            yield from _flat(value, f"{key}.")


def _may_set(key: str) -> bool:
    is_of_launcher = key == LAUNCHER_GROUP or key.startswith(LAUNCHER_PREFIX)
    return is_of_launcher or key in schema.keys(Role.site)


def _check_key(key: str, file: Path, workload: Workload) -> None:
    """Refuse a key that the file may not set, or that has another name here."""
    if _may_set(key):
        return
    meant_key = Vocabulary(workload).key_of(key)
    if meant_key is not None and meant_key != key and _may_set(meant_key):
        raise Refusal(
            "site.key-called-otherwise",
            f"{file}: {key} is called {meant_key} here; write {meant_key} in its place",
            key=key,
            file=str(file),
            near=meant_key,
        )
    if not any(key in workloads.known_keys(each) for each in workloads.WORKLOADS):
        may_set = [*schema.keys(Role.site), *launcher_keys()]
        near = difflib.get_close_matches(key, may_set, n=1)
        meant = f"the file may set {', '.join(may_set)}"
        if near:
            meant = f"write {near[0]} in its place"
        raise Refusal(
            "site.unknown-key",
            f"{file}: {key} is no key; {meant}",
            key=key,
            file=str(file),
            near=near,
        )
    raise Refusal(
        "site.key",
        f"{file}: {key} cannot be set for a whole site; name it in the command. The file may set"
        f" {LAUNCHER_GROUP}, {LAUNCHER_PREFIX}account and the like, and"
        f" {', '.join(schema.keys(Role.site))}",
        key=key,
        file=str(file),
    )


def _as_word(value: Any) -> str:
    """Format a value so that Hydra reads it in a command."""
    if isinstance(value, Mapping):
        parts = [f"{name}: {_as_word(element)}" for name, element in value.items()]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_as_word, value))}]"
    if isinstance(value, str):
        return QuotedString(value, Quote.double).with_quotes()
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
