"""Derive the commands that measure runs again.

They derive from the last command of a sweep, which Hydra writes into the sweep's folder.
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

SWEEP_FILE = "multirun.yaml"  # Hydra writes the overrides of a sweep's last command to this file.
UNKNOWN_VALUE = "?"  # The value of an axis that neither a record nor a command names.
DERIVED_COLUMNS = (grouping.DATA, grouping.TRACED)  # Columns that follow from others.


def of_sweeps(runs: Iterable[Run]) -> list[str]:
    commands = dict.fromkeys(_command(run["kind"], _overrides(run)) for run in runs)
    return [command for command in commands if command is not None]


def with_word(command: str, word: str, sweeps: bool) -> str:
    """Add a word to a command, in place of a word that sets the same key.

    Args:
        sweeps: the word sweeps several values, so the command needs -m.
    """
    program, *words = [
        command_word
        for command_word in shlex.split(command)
        if command_word.partition("=")[0] != word.partition("=")[0]
    ]
    # The first override stands behind the entry.
    position = next(
        (index for index, command_word in enumerate(words) if "=" in command_word), len(words)
    )
    flags = ["-m"] if sweeps and "-m" not in words else []
    return shlex.join([program, *words[:position], *flags, *words[position:], word])


def experiments_of(runs: Iterable[Run]) -> set[str]:
    names = {(_overrides(run) or {}).get("experiment", "=").removeprefix("=") for run in runs}
    return names - {"", "null"}


def of_cells(runs: Sequence[Run]) -> list[str | None]:
    """Return, for each run, the command that measures its cell again.

    It is None if Hydra left no command, or if the command does not say which cell it was. Earlier
    commands may have left runs in a folder too. So each command has the keys that distinguish the
    folder's runs.
    """
    by_sweep = grouping.grouped(runs, lambda run: run.folder.parent)
    varied_by_sweep = {
        sweep: grouping.apart([run.columns for run in sweep_runs], grouping.settings(sweep_runs))
        for sweep, sweep_runs in by_sweep.items()
    }
    return [_cell_command(run, varied_by_sweep[run.folder.parent]) for run in runs]


def _cell_command(run: Run, varied: Sequence[str]) -> str | None:
    overrides = _overrides(run)
    axes = _swept_keys(overrides) if overrides is not None else None
    if overrides is None or axes is None:
        return None
    axes += [
        _key_of_column(run, name)
        for name in varied
        if name in run.columns and name not in (*DERIVED_COLUMNS, *axes)
    ]
    values = {axis: _axis_value(run, axis, overrides) for axis in axes}
    if UNKNOWN_VALUE in values.values():
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
    kept_overrides = {
        key: value for key, value in overrides.items() if Role.sweeps not in schema.of(key)
    }
    return _command(
        run["kind"], kept_overrides | {axis: f"={word}" for axis, word in words.items()}
    )


def _axis_value(run: Run, axis: str, overrides: dict[str, str]) -> Any:
    """Return the value of an axis in a run's cell, or UNKNOWN_VALUE if nothing says it."""
    for name in (f"config.{axis}", axis, f"{axis}.name"):
        if name in run.columns:
            return run[name]
    return _chosen_option(run, axis, overrides)


def _chosen_option(run: Run, group: str, overrides: dict[str, str]) -> str:
    """Return the option of a group, such as a preset, that only sets other keys.

    No record names it. So the sweep's command is composed with each option, and the option that
    gives most of the run's keys is chosen. The result is UNKNOWN_VALUE if several
    options do.
    """
    entry = KINDS[run["kind"]].entry
    fixed_words = [
        key + value for key, value in overrides.items() if key != group and not _is_swept(value)
    ]
    all_options = workloads.groups(workloads.of_entry(entry)).get(group, [])
    named_options = {word.strip() for word in overrides.get(group, "").removeprefix("=").split(",")}
    # A glob or an experiment does not list its options, so all of them are tried.
    options = [option for option in all_options if option in named_options] or all_options
    configs = {
        option: _composed_keys(entry, (*fixed_words, f"{group}={option}")) for option in options
    }
    run_keys = flat(run.record().config)
    agreement = {
        option: sum(
            key in run_keys and run_keys[key] == value and _differs(key, configs)
            for key, value in config.items()
        )
        for option, config in configs.items()
    }
    # Some keys may disagree: they were swept too, or the run resolved them, as `half` to fp16.
    best_options = sorted(agreement, key=lambda option: -agreement[option])[:2]
    if len(best_options) == 2 and agreement[best_options[0]] > agreement[best_options[1]]:
        return best_options[0]
    return UNKNOWN_VALUE


def _differs(key: str, configs: dict[str, dict[str, Any]]) -> bool:
    """Return True if the configurations differ in a key."""
    return len({str(config.get(key)) for config in configs.values()}) > 1


@cache
def _composed_keys(entry: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of an entry with some words, or nothing if Hydra no longer takes them."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    workloads.register()
    try:
        task = task_of(workloads.composed(entry, words))
        return flat(OmegaConf.to_container(task, resolve=True, enum_to_str=True))  # pyright: ignore
    except (HydraException, OmegaConfBaseException):
        return {}


def _key_of_column(run: Run, name: str) -> str:
    """Return the key of an axis or column: `image_size` is dataset.image_size."""
    return next(
        (key for key in (f"dataset.{name}", f"model.{name}") if key in run.columns),
        name.removesuffix(".name").removeprefix("config."),
    )


def _swept_keys(overrides: dict[str, str]) -> list[str] | None:
    """Return the keys with several values, and the axes of the experiment.

    The result is None if the command names several experiments.
    """
    name = overrides.get("experiment", "=").removeprefix("=")
    if name and name not in experiments.names():
        return None
    experiment_axes = experiments.load_experiment(name).swept if name else ()
    return list(
        dict.fromkeys(
            [*(key for key, value in overrides.items() if _is_swept(value)), *experiment_axes]
        )
    )


def _is_swept(value: str) -> bool:
    # "range(1,5)" and "glob(*)" sweep, a list does not.
    return ("," in value or "(" in value) and not value.startswith("=[")


def _command(kind: str, overrides: dict[str, str] | None) -> str | None:
    if overrides is None:
        return None
    needs_sweep = (
        any(map(_is_swept, overrides.values())) and not {"experiment", "scale"} & overrides.keys()
    )
    words = [key + value for key, value in overrides.items()]
    flags = ["-m"] if needs_sweep else []
    return shlex.join([*shlex.split(typed(KINDS[kind].entry)), *flags, *words])


def set_once(sweep: Path) -> set[str]:
    """Return the keys, without their group, that a sweep's last command sets for all cells."""
    _, overrides = _last_command(sweep) or (None, {})
    return {key.rpartition(".")[2] for key, value in overrides.items() if not _is_swept(value)}


def _overrides(run: Run) -> dict[str, str] | None:
    """Return each key and "=value" of the last command of a run's sweep, including its name.

    The result is None if Hydra left no command, or one for another kind of run.
    """
    kind, overrides = _last_command(run.folder.parent) or (None, {})
    return (
        {**overrides, "name": overrides.get("name", f"={run['name']}")}
        if kind == run["kind"]
        else None
    )


def _last_command(folder: Path) -> tuple[str, dict[str, str]] | None:
    """Return the kind of runs and the overrides of a sweep's last command.

    The result is None if Hydra left no command of an entry.
    """
    try:
        return _read_last_command(folder / SWEEP_FILE, (folder / SWEEP_FILE).stat().st_mtime_ns)
    except OSError:
        return None


@cache
def _read_last_command(path: Path, _: int) -> tuple[str, dict[str, str]] | None:
    """Read the last command from a file; the time when it was written keys the cache."""
    try:
        sweep = strict_yaml.read_yaml(path)
        words = map(str, sweep["hydra"]["overrides"]["task"])
        entry = f"{sweep['hydra']['job']['config_name']}.py"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    overrides = {key: sign + value for key, sign, value in (word.partition("=") for word in words)}
    kept_overrides = {
        key: value for key, value in overrides.items() if Role.once not in schema.of(key)
    }
    return next(
        ((name, kept_overrides) for name, kind in KINDS.items() if kind.entry == entry), None
    )
