"""The commands that measured runs, from the last command of their sweep,
which Hydra left beside them.
"""

import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from multicard import workloads
from multicard.config import schema, strict_yaml
from multicard.config.keys import flat
from multicard.config.roles import Role
from multicard.messages import typed
from multicard.sweep.compositions import task_of

from . import experiments
from .runs import grouping
from .runs.columns import KINDS
from .runs.load import Run

SWEEP = "multirun.yaml"  # Hydra's, in a sweep's folder: the overrides of its last command
UNKNOWN = "?"  # the value of an axis that no record and no command says
NO_KEYS = (grouping.DATA, grouping.TRACED)  # columns that follow from others


def of_sweeps(runs: Iterable[Run]) -> list[str]:
    commands = dict.fromkeys(_command(run["kind"], _overrides(run)) for run in runs)
    return [command for command in commands if command is not None]


def with_word(command: str, word: str, sweeps: bool) -> str:
    """A command with another word, in place of one that sets the same key; as a sweep,
    where the word `sweeps`.
    """
    start, *words = [
        one for one in shlex.split(command) if one.partition("=")[0] != word.partition("=")[0]
    ]
    place = next((at for at, one in enumerate(words) if "=" in one), len(words))  # behind the entry
    flags = ["-m"] if sweeps and "-m" not in words else []
    return shlex.join([start, *words[:place], *flags, *words[place:], word])


def experiments_of(runs: Iterable[Run]) -> set[str]:
    names = {(_overrides(run) or {}).get("experiment", "=").removeprefix("=") for run in runs}
    return names - {"", "null"}


def of_cells(runs: Sequence[Run]) -> list[str | None]:
    """The command that measures the cell of each run again; None where Hydra left none,
    or it does not say which cell.

    Earlier commands may have left runs in a folder too: what
    tells its runs apart is part of each command.
    """
    by_sweep = grouping.grouped(runs, lambda run: run.folder.parent)
    apart = {
        sweep: grouping.apart([run.columns for run in own], grouping.settings(own))
        for sweep, own in by_sweep.items()
    }
    return [_of_cell(run, apart[run.folder.parent]) for run in runs]


def _of_cell(run: Run, apart: Sequence[str]) -> str | None:
    overrides = _overrides(run)
    axes = _swept(overrides) if overrides is not None else None
    if overrides is None or axes is None:
        return None
    axes += [
        _key(run, name) for name in apart if name in run.columns and name not in (*NO_KEYS, *axes)
    ]
    values = {axis: _value(run, axis, overrides) for axis in axes}
    if UNKNOWN in values.values():
        return None
    words = {
        axis: repr(value) if isinstance(value, float) else grouping.typed(value)
        for axis, value in values.items()
    }
    if grouping.TRACED in words:
        words["profile"] = next(
            name for name, traced in experiments.TRACING.items() if traced is run[grouping.TRACED]
        )
        del words[grouping.TRACED]
    kept = {key: value for key, value in overrides.items() if Role.sweeps not in schema.of(key)}
    return _command(run["kind"], kept | {axis: f"={word}" for axis, word in words.items()})


def _value(run: Run, axis: str, overrides: dict[str, str]) -> Any:
    """The value of an axis in a run's cell; UNKNOWN where nothing says it."""
    for name in (f"config.{axis}", axis, f"{axis}.name"):
        if name in run.columns:
            return run[name]
    return _option(run, axis, overrides)


def _option(run: Run, group: str, overrides: dict[str, str]) -> str:
    """The option of a group that sets other keys and has none of its own, as a preset: the one with
    which the sweep's command gives most of the keys that the run had; UNKNOWN where several do.
    """
    entry = KINDS[run["kind"]].entry
    fixed = [
        key + value for key, value in overrides.items() if key != group and not _is_swept(value)
    ]
    offered = workloads.groups(workloads.of_entry(entry)).get(group, [])
    named = {word.strip() for word in overrides.get(group, "").removeprefix("=").split(",")}
    # A glob, or an experiment, names its options otherwise
    options = [option for option in offered if option in named] or offered
    configs = {option: _composed(entry, (*fixed, f"{group}={option}")) for option in options}
    had = flat(run.record().config)
    agreeing = {
        option: sum(
            key in had and had[key] == value and _tells(key, configs)
            for key, value in config.items()
        )
        for option, config in configs.items()
    }
    # Not all keys need agree: some are swept beside it, and what a run had is resolved,
    # as `half` to fp16
    best = sorted(agreeing, key=lambda option: -agreeing[option])[:2]
    if len(best) == 2 and agreeing[best[0]] > agreeing[best[1]]:
        return best[0]
    return UNKNOWN


def _tells(key: str, configs: dict[str, dict[str, Any]]) -> bool:
    """True for a key in which some of the configurations differ."""
    return len({str(config.get(key)) for config in configs.values()}) > 1


@cache
def _composed(entry: str, words: tuple[str, ...]) -> dict[str, Any]:
    """The keys of an entry with some words; none where Hydra does not take them any more."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    workloads.register()
    try:
        task = task_of(workloads.composed(entry, words))
        return flat(OmegaConf.to_container(task, resolve=True, enum_to_str=True))  # pyright: ignore
    except (HydraException, OmegaConfBaseException):
        return {}


def _key(run: Run, name: str) -> str:
    """The key of an axis or column: `image_size` is dataset.image_size."""
    return next(
        (key for key in (f"dataset.{name}", f"model.{name}") if key in run.columns),
        name.removesuffix(".name").removeprefix("config."),
    )


def _swept(overrides: dict[str, str]) -> list[str] | None:
    """The keys with several values, and the axes of the experiment;
    None where there are several experiments.
    """
    name = overrides.get("experiment", "=").removeprefix("=")
    if name and name not in experiments.names():
        return None
    of_experiment = experiments.load(name).swept if name else ()
    return list(
        dict.fromkeys(
            [*(key for key, value in overrides.items() if _is_swept(value)), *of_experiment]
        )
    )


def _is_swept(value: str) -> bool:
    return ("," in value or "(" in value) and not value.startswith("=[")  # "range(1,5)", "glob(*)"


def _command(kind: str, overrides: dict[str, str] | None) -> str | None:
    if overrides is None:
        return None
    sweeps = (
        any(map(_is_swept, overrides.values())) and not {"experiment", "scale"} & overrides.keys()
    )
    words = [key + value for key, value in overrides.items()]
    return shlex.join([*shlex.split(typed(KINDS[kind].entry)), *["-m"] * sweeps, *words])


def set_once(sweep: Path) -> set[str]:
    """The keys, without their group, that a sweep's last command sets for all its cells."""
    _, overrides = _last_command(sweep) or (None, {})
    return {key.rpartition(".")[2] for key, value in overrides.items() if not _is_swept(value)}


def _overrides(run: Run) -> dict[str, str] | None:
    """Keys and "=value" of the last command of the run's sweep, with its name; None where Hydra
    left none of the run's entry.
    """
    kind, overrides = _last_command(run.folder.parent) or (None, {})
    return (
        {**overrides, "name": overrides.get("name", f"={run['name']}")}
        if kind == run["kind"]
        else None
    )


def _last_command(folder: Path) -> tuple[str, dict[str, str]] | None:
    """The kind of runs of a sweep's last command, and its overrides;
    None where Hydra left no command of an entry.
    """
    try:
        return _command_in(folder / SWEEP, (folder / SWEEP).stat().st_mtime_ns)
    except OSError:
        return None


@cache
def _command_in(path: Path, _: int) -> tuple[str, dict[str, str]] | None:
    """The same of a file that was written at some time."""
    try:
        sweep = strict_yaml.read(path)
        words = map(str, sweep["hydra"]["overrides"]["task"])
        entry = f"{sweep['hydra']['job']['config_name']}.py"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    overrides = {key: sign + value for key, sign, value in (word.partition("=") for word in words)}
    own = {key: value for key, value in overrides.items() if Role.once not in schema.of(key)}
    return next(((name, own) for name, kind in KINDS.items() if kind.entry == entry), None)
