"""The command line that measures a run again, from the configuration in its record; and the one that its sweep had.

A record has every key, and few of them were typed: what an option of `conf/` brings goes unsaid where the option is
named. Hydra composes the defaults, and once more for each option that occurs, which takes a quarter of a second each;
all runs with the option share it.
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

CONF = Path(__file__).parent.parent.parent / "conf"
GROUPS = ("scale", *sorted(path.name for path in CONF.iterdir() if path.is_dir()))
BARE = re.compile(r"[A-Za-z_/][\w./-]*")  # a text that Hydra takes as it is
READ_AS_ELSE = ("null", "true", "false", "nan", "inf")
SWEEP = "multirun.yaml"  # Hydra's, in a sweep's folder: the words of its last command
Flat = dict[str, Any]


def again(kind: str, recorded: Mapping[str, Any]) -> str | None:
    """What measures the same on the machine at hand; None where this version does not know a key of it.

    Args:
        recorded: `config` of a record.
    """
    if kind not in ENTRIES:
        return None
    given, base = _flat(recorded), _composed(kind, "")
    expected, words = dict(base), []
    for group in GROUPS:
        name = group if group == "scale" else f"{group}.name"
        if given.get(name) in _options(group) and given[name] != base.get(name):
            words.append(f"{group}={given[name]}")
            try:
                composed = _composed(kind, words[-1])
            except ValueError:  # the other entry's
                return None
            expected = {key: value for key, value in expected.items() if key in composed or key not in base}
            expected |= {key: value for key, value in composed.items() if base.get(key, ...) != value}
    shrunk = _shrunk(kind) if given.get("scale") == "smoke" else ()
    for key, value in given.items():
        if key.partition(".")[0] in NOT_IDENTITY or f"{key.removesuffix('.name')}={value}" in words:
            continue
        if key not in expected:
            return None
        if expected[key] != value or key in shrunk:
            words.append(f"{key}={_typed(value)}")
    return shlex.join(["python", ENTRIES[kind], *words])


def of_sweeps(runs: Iterable[Run]) -> list[str]:
    """The last command of each sweep that some runs are of, as Hydra noted it beside them."""
    found = (_of_sweep(folder) for folder in dict.fromkeys(run.folder.parent for run in runs))
    return list(dict.fromkeys(command for command in found if command is not None))


@cache
def _of_sweep(folder: Path) -> str | None:
    try:
        noted = yaml.load((folder / SWEEP).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        overrides, entry = noted["hydra"]["overrides"]["task"], f"{noted['hydra']['job']['config_name']}.py"
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return None
    if entry not in ENTRIES.values() or not isinstance(overrides, list):
        return None
    kept = [str(word) for word in overrides if not str(word).startswith(("tracker.", "rerun="))]
    swept = any(re.match(r"(experiment|scale)=", word) for word in kept)  # these sweep by themselves
    return shlex.join(["python", entry, *([] if swept else ["-m"]), *kept])


@cache
def _composed(kind: str, word: str) -> Flat:
    """The whole configuration that a command with this word has.

    Raises:
        ValueError: the entry does not know the word.
    """
    workloads.register()
    entry = ENTRIES[kind].removesuffix(".py")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            composed = compose(entry, [word] if word else [])
        except (HydraException, OmegaConfBaseException) as error:
            raise ValueError(f"{entry}.py {word}: cannot be composed ({error})") from None
    content: Any = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
    return _flat(content)


@cache
def _shrunk(kind: str) -> frozenset[str]:
    """Keys for which scale=smoke brings values of its own, so that they are said whatever they are."""
    entry: Any = OmegaConf.load(CONF / f"{ENTRIES[kind].removesuffix('.py')}.yaml")
    return frozenset(str(key) for key in entry.hydra.sweeper.smoke)


@cache
def _options(group: str) -> frozenset[str]:
    return frozenset(path.stem for path in (CONF / group).glob("*.yaml"))


def _flat(found: Mapping[str, Any], prefix: str = "") -> Flat:
    flat: Flat = {}
    for key, value in found.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _typed(value: Any) -> str:
    """A value as Hydra's command line takes it."""
    if isinstance(value, list):
        return f"[{','.join(map(_typed, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if BARE.fullmatch(value) and value.lower() not in READ_AS_ELSE:
        return value
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
