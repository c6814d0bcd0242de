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

from analysis.papers.experiments import ENTRIES
from analysis.runs.load import Run
from multicard import workloads
from multicard.config.base import NOT_IDENTITY
from multicard.config.keys import flat

CONF = Path(__file__).parents[2] / "conf"
GROUPS = ("scale", *sorted(path.name for path in CONF.iterdir() if path.is_dir()))
BARE = re.compile(r"[A-Za-z_/][\w./-]*")  # a text that Hydra takes without quotes
KEYWORDS = ("null", "true", "false", "nan", "inf")
SWEEP = "multirun.yaml"  # Hydra's, in a sweep's folder: the overrides of its last command
FlatConfig = dict[str, Any]  # "group.key" to value


def rerun(kind: str, config: Mapping[str, Any]) -> str | None:
    """The command that measures the same on the machine at hand; None where this version does not know a key of it.

    Args:
        config: of a record.
    """
    if kind not in ENTRIES:
        return None
    recorded, defaults = flat(config), _composed(kind, "")
    expected, overrides = dict(defaults), []
    for group in GROUPS:
        name = group if group == "scale" else f"{group}.name"
        option = recorded.get(name)
        if option == defaults.get(name) or not isinstance(option, str) or option not in _options(group):
            continue
        overrides.append(f"{group}={option}")
        try:
            composed = _composed(kind, overrides[-1])
        except ValueError:  # an option of the other entry
            return None
        expected = {key: value for key, value in expected.items() if key in composed or key not in defaults}
        expected |= {key: value for key, value in composed.items() if defaults.get(key, ...) != value}
    shrunk = _smoke_keys(kind) if recorded.get("scale") == "smoke" else ()
    for key, value in recorded.items():
        if key.partition(".")[0] in NOT_IDENTITY or f"{key.removesuffix('.name')}={value}" in overrides:
            continue
        if key not in expected:
            return None
        if expected[key] != value or key in shrunk:
            overrides.append(f"{key}={_override_value(value)}")
    return shlex.join(["python", ENTRIES[kind], *overrides])


def of_sweeps(runs: Iterable[Run]) -> list[str]:
    """The last command of each sweep of the runs, from Hydra's file beside them."""
    commands = map(_sweep_command, dict.fromkeys(run.folder.parent for run in runs))
    return list(dict.fromkeys(command for command in commands if command is not None))


@cache
def _sweep_command(folder: Path) -> str | None:
    try:
        sweep = yaml.load((folder / SWEEP).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        overrides, entry = sweep["hydra"]["overrides"]["task"], f"{sweep['hydra']['job']['config_name']}.py"
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return None
    if entry not in ENTRIES.values() or not isinstance(overrides, list):
        return None
    words = [str(word) for word in overrides if not str(word).startswith(("tracker.", "rerun="))]
    sweeps_by_itself = any(re.match(r"(experiment|scale)=", word) for word in words)
    return shlex.join(["python", entry, *([] if sweeps_by_itself else ["-m"]), *words])


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
    if BARE.fullmatch(value) and value.lower() not in KEYWORDS:
        return value
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
