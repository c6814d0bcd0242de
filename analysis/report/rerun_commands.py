"""The command that measures a run again, from the configuration in its record; and the command of its sweep.

A record has every key, but few of them were typed: what an option of `conf/` sets is left out where the option is
named. Hydra composes the defaults, and once more for each option that occurs, which takes a quarter of a second each
and is cached.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
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
EXPANDED = re.compile(r'["$`!]|\\\\')  # what a shell takes otherwise between double quotes
MOST_READ = 200  # records of a folder, for a command that Hydra did not leave
FlatConfig = dict[str, Any]  # "group.key" to value


def rerun(kind: str, config: Mapping[str, Any]) -> str | None:
    """The command that measures the same on the machine at hand, under the same name; None where this version does not
    know a key of it.

    Args:
        config: of a record.
    """
    words, name = _overrides(kind, config), config.get("name")
    if words is None:
        return None
    named = {"name": _override_value(name)} if isinstance(name, str) else {}
    return " ".join(["python", ENTRIES[kind], *(quoted(f"{key}={value}") for key, value in (words | named).items())])


def _overrides(kind: str, config: Mapping[str, Any]) -> dict[str, str] | None:
    """What has to be typed for this configuration, by key; None where this version does not know a key of it."""
    if kind not in ENTRIES:
        return None
    recorded, defaults = flat(config), _composed(kind, "")
    expected, words = dict(defaults), dict[str, str]()
    for group in GROUPS:
        name = group if group == "scale" else f"{group}.name"
        option = recorded.get(name)
        if option == defaults.get(name) or not isinstance(option, str) or option not in _options(group):
            continue
        words[group] = option
        try:
            composed = _composed(kind, f"{group}={option}")
        except ValueError:  # an option of the other entry
            return None
        expected = {key: value for key, value in expected.items() if key in composed or key not in defaults}
        expected |= {key: value for key, value in composed.items() if defaults.get(key, ...) != value}
    shrunk = _smoke_keys(kind) if recorded.get("scale") == "smoke" else ()
    for key, value in recorded.items():
        if key.partition(".")[0] in NOT_IDENTITY or words.get(key.removesuffix(".name")) == value:
            continue
        if key not in expected:
            return None
        if expected[key] != value or key in shrunk:
            words[key] = _override_value(value)
    return words


def quoted(word: str) -> str:
    """A word as a person would type it in a shell: in quotes only where it needs them, double ones around single."""
    if "'" in word and not EXPANDED.search(word):
        return f'"{word}"'
    return shlex.quote(word)


def of_sweeps(runs: Iterable[Run]) -> list[str]:
    """The commands that measured the runs: of each sweep the last one, from Hydra's file beside them, which is that of
    one entry; of the other entry's runs in the same folder one each, from their records."""
    by_folder: dict[Path, list[Run]] = {}
    for run in runs:
        by_folder.setdefault(run.folder.parent, []).append(run)
    commands: list[str | None] = []
    for folder, own in by_folder.items():
        kind, words = _sweep_command(folder) or (None, [])
        if kind is not None and any(run["kind"] == kind for run in own):
            name = own[0]["name"]
            named = any(word.startswith("name=") for word in words) or not isinstance(name, str)
            commands.append(" ".join(map(quoted, [*words, *([] if named else [f"name={_override_value(name)}"])])))
            others = [run for run in own if run["kind"] != kind][:MOST_READ]
            configs = [(run, config) for run in others if (config := _config(run))]
            commands += [rerun(run["kind"], config | {"name": run["name"]}) for run, config in configs]
    return list(dict.fromkeys(command for command in commands if command is not None))


def _config(run: Run) -> dict[str, Any]:
    try:
        return run.record().config
    except (OSError, ValueError):  # removed, or measured again, since it was listed
        return {}


@cache
def _sweep_command(folder: Path) -> tuple[str, list[str]] | None:
    """The kind of runs of a sweep's last command, and its words; None where Hydra left no command of an entry."""
    try:
        sweep = yaml.load((folder / SWEEP).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        overrides, entry = sweep["hydra"]["overrides"]["task"], f"{sweep['hydra']['job']['config_name']}.py"
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return None
    kinds = [kind for kind, of_kind in ENTRIES.items() if of_kind == entry]
    if not kinds or not isinstance(overrides, list):
        return None
    words = [str(word) for word in overrides if not str(word).startswith(("tracker.", "rerun="))]
    sweeps_by_itself = any(re.match(r"(experiment|scale)=", word) for word in words)
    return kinds[0], ["python", entry, *([] if sweeps_by_itself else ["-m"]), *words]


@cache
def _composed(kind: str, override: str) -> FlatConfig:
    """The whole configuration of a command with this override.

    Raises:
        ValueError: the entry does not know it.
    """
    workloads.register()
    entry = ENTRIES[kind].removesuffix(".py")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            composed = compose(entry, [override] if override else [])
        except (HydraException, OmegaConfBaseException) as error:
            raise ValueError(f"{entry}.py {override}: cannot be composed ({error})") from None
    content: Any = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    return flat(content)


@cache
def _smoke_keys(kind: str) -> frozenset[str]:
    """Keys that scale=smoke sets, which are typed whatever their value."""
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
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
