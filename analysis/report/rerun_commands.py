"""The command that measures a run again, from the configuration in its record; and the command of its sweep.

A record has every key, but few of them were typed: what an option of `conf/` sets is left out where the option is
named. Hydra composes the options of a run together, which takes a quarter of a second and is cached.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.experiments import ENTRIES
from analysis.runs.load import Run
from multicard import workloads
from multicard.config import CONF
from multicard.config.base import NOT_IDENTITY
from multicard.config.keys import flat

GROUPS = ("scale", *sorted(path.name for path in CONF.iterdir() if path.is_dir()))
BARE = re.compile(r"[\w/][\w./-]*", re.ASCII)  # a text that Hydra takes without quotes, unless it is a number
KEYWORDS = ("null", "true", "false", "nan", "inf")
SWEEP = "multirun.yaml"  # Hydra's, in a sweep's folder: the overrides of its last command
MOST_READ = 200  # records of a folder, for a command that Hydra did not leave


def rerun(kind: str, config: Mapping[str, Any]) -> str | None:
    """The command that measures the same on the machine at hand, under the same name; None where this version does not
    know a key of it.

    Args:
        config: of a record.
    """
    words, name = _overrides(kind, config) if kind in ENTRIES else None, config.get("name")
    if words is None:
        return None
    named = {"name": _override_value(name)} if isinstance(name, str) else {}
    return shlex.join(["python", ENTRIES[kind], *(f"{key}={value}" for key, value in (words | named).items())])


def _overrides(kind: str, config: Mapping[str, Any]) -> dict[str, str] | None:
    """Overrides that give this configuration, by key; None where this version does not know one of its keys."""
    recorded, defaults = flat(config), _composed(kind)
    names = {group: group if group == "scale" else f"{group}.name" for group in GROUPS}
    words = {
        group: str(recorded[name])
        for group, name in names.items()
        if recorded.get(name) != defaults.get(name) and str(recorded.get(name)) in _options(group)
    }
    try:
        expected = _composed(kind, *(f"{group}={option}" for group, option in words.items()))
    except ValueError:  # an option of the other entry
        return None
    shrunk = _smoke_keys(kind) if recorded.get("scale") == "smoke" else ()
    for key, value in recorded.items():
        if key.partition(".")[0] in NOT_IDENTITY or words.get(key.removesuffix(".name")) == value:
            continue
        if key not in expected:
            return None
        if expected[key] != value or key in shrunk:
            words[key] = _override_value(value)
    return words


def of_sweeps(runs: Iterable[Run]) -> list[str]:
    """The commands that measured the runs: of each sweep the last one, from Hydra's file beside them, which is that of
    one entry; of the other entry's runs in the same folder one each, from their records."""
    by_folder: dict[Path, list[Run]] = {}
    for run in runs:
        by_folder.setdefault(run.folder.parent, []).append(run)
    commands: dict[str | None, None] = {}
    for folder, own in by_folder.items():
        kind, words = _sweep_command(folder) or (None, [])
        if any(run["kind"] == kind for run in own):
            name = own[0]["name"]
            named = any(word.startswith("name=") for word in words) or not isinstance(name, str)
            commands[shlex.join([*words, *([] if named else [f"name={_override_value(name)}"])])] = None
            for run in [run for run in own if run["kind"] != kind][:MOST_READ]:
                with suppress(OSError, ValueError):  # removed, or measured again, since it was listed
                    commands[rerun(run["kind"], run.record().config | {"name": run["name"]})] = None
    return [command for command in commands if command is not None]


@cache
def _sweep_command(folder: Path) -> tuple[str, list[str]] | None:
    """The kind of runs of a sweep's last command, and its words; None where Hydra left no command of an entry."""
    try:
        sweep = yaml.load((folder / SWEEP).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        words, entry = [*map(str, sweep["hydra"]["overrides"]["task"])], f"{sweep['hydra']['job']['config_name']}.py"
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return None
    words = [word for word in words if not word.startswith(("tracker.", "rerun="))]
    sweeps_by_itself = any(word.startswith(("experiment=", "scale=")) for word in words)
    kind = next((kind for kind, own in ENTRIES.items() if own == entry), None)
    return None if kind is None else (kind, ["python", entry, *([] if sweeps_by_itself else ["-m"]), *words])


@cache
def _composed(kind: str, *overrides: str) -> dict[str, Any]:
    """The whole configuration of a command with these overrides, by "group.key".

    Raises:
        ValueError: the entry does not know one.
    """
    workloads.register()
    entry = ENTRIES[kind].removesuffix(".py")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            composed = compose(entry, [*overrides])
        except (HydraException, OmegaConfBaseException) as error:
            raise ValueError(f"{entry}.py {' '.join(overrides)}: cannot be composed ({error})") from None
    content: Any = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    return flat(content)


@cache
def _smoke_keys(kind: str) -> frozenset[str]:
    """Keys that scale=smoke sets, which are always typed."""
    entry: Any = OmegaConf.load(CONF / f"{ENTRIES[kind].removesuffix('.py')}.yaml")
    return frozenset(str(key) for key in entry.hydra.experiment.smoke)


@cache
def _options(group: str) -> frozenset[str]:
    return frozenset(path.stem for path in (CONF / group).glob("*.yaml"))


def _override_value(value: Any) -> str:
    """A value as Hydra's command line takes it."""
    if isinstance(value, list):
        return f"[{','.join(map(_override_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if BARE.fullmatch(value) and value.lower() not in KEYWORDS and not _is_number(value):
        return value
    return '"' + re.sub(r'(\\*)"', r'\1\1\\"', value) + '"'


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
