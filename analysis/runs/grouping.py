"""Group runs into settings, and compute the figures of a setting.

Runs that differ only in the seed repeat one setting, if they used the same data, commit, machine
and share of the machine. `works.py` decides which settings did the same work.

Functions that take `mix` count runs of several commits and machines as one setting, work or cell.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import multicard.llm.methods  # noqa: F401 (it registers the keys of the methods)
from multicard.config import schema
from multicard.config.roles import Role
from multicard.messages import Message
from multicard.records import figures, limits
from multicard.records.comparable import (
    ALL_THREADS,
    DATA,
    PRESET,
    PRESET_DECIDES,
    RECIPE,
    apart,
    following,
    kinds,
)
from multicard.records.limits import Forbids
from multicard.records.schema_parts import Limit
from multicard.records.text_table import clean

from .columns import RESERVED
from .load import Run

ACCURACY = "test_accuracy"
HELD_OUT = "held_out_loss"
LOSS = "loss_last_tenth"
MEMORY = "peak_memory_bytes"
PACE = "pace_s"
REPEATED = "seed"
# A run's share of its machine: the threads of a rank, or of all ranks, and if other runs shared it.
CORES = ("threads", "beside_others")
ALL_CORES = (ALL_THREADS, "beside_others")
PROFILER = "profile.name"
TRACED = "profiled"
# nsys observes the training itself. Other profilers do so only with profile.window=start.
AROUND = "nsys"
COMMIT = 9  # The digits of a commit that are shown.
# Runs that differ in these columns are averaged and compared only on request.
ORIGIN = ("commit", "dirty", "hardware")
Cell = tuple[tuple[str, Any], ...]  # Pairs of key and value, in the order of the keys.
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def settings(runs: Sequence[Run]) -> list[str]:
    """Return the axes and configuration keys that define what was measured.

    The fingerprint of the data is one of them, the seed is not.
    """
    column_sets = dict.fromkeys(tuple(run.columns) for run in runs)
    names = dict.fromkeys(chain.from_iterable(column_sets))
    # An axis has the value in force, so the name of its option is no setting.
    no_settings = {*RESERVED, *(f"{name}.name" for name in names)}
    keys = [name for name in names if name not in no_settings and _is_setting(name)]
    if any(run[PROFILER] == AROUND for run in runs):
        keys.append(PROFILER)
    if any(run[TRACED] for run in runs):
        keys.append(TRACED)
    if any(run[DATA] is not None for run in runs):
        keys.append(DATA)
    if _presets_name_settings(runs, keys):
        keys = [PRESET, PRESET_DECIDES, *keys]
    return keys


def _presets_name_settings(runs: Sequence[Run], keys: Sequence[str]) -> bool:
    """Return True if the runs have several presets, and the runs of a setting share theirs.

    Otherwise one setting goes by several names: two presets set the same, or one was typed out.
    """
    presets = {run[PRESET] for run in runs}
    if len(presets) < 2 or None in presets:
        return False
    presets_of_setting = grouped(runs, lambda run: tuple(run[key] for key in keys)).values()
    return all(
        len({(run[PRESET], run[PRESET_DECIDES]) for run in same}) == 1
        for same in presets_of_setting
    )


def _is_setting(name: str) -> bool:
    """Return True if a column is a key that changes what is measured.

    The seed and the places of data do not.
    """
    group = schema.of(name.partition(".")[0])
    return not group & (Role.beside | Role.observes) and not schema.of(name) & (
        Role.repetition | Role.place
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key; the groups come in the order of their first items."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def group(runs: Sequence[Run], keys: Sequence[str]) -> dict[Cell, list[Run]]:
    return grouped(runs, lambda run: tuple((key, run[key]) for key in keys))


def split(
    groups: Mapping[Cell, list[Run]], cell: Sequence[str], mixed: Sequence[str] = ()
) -> dict[Cell, list[Run]]:
    """Split groups by cores or `mixed` columns, if runs of a cell differ in these.

    Runs of a cell agree in the columns `cell`. Runs on more ranks have more cores, or fewer threads
    per rank, which is no reason to split. A group is split by the threads of a rank or of all
    ranks, whichever keeps more runs together.
    """
    parts: dict[Cell, list[Run]] = {}
    for key, runs in groups.items():
        cell_runs = group(runs, cell).values()
        split_keys = [
            name
            for name in mixed
            if any(len({run[name] for run in runs_of_cell}) > 1 for runs_of_cell in cell_runs)
        ]
        if any(
            len({tuple(run[name] for name in CORES) for run in runs_of_cell}) > 1
            for runs_of_cell in cell_runs
        ):
            split_keys = min(
                ([*split_keys, *CORES], [*split_keys, *ALL_CORES]),
                key=lambda names: len(group(runs, names)),
            )
        parts |= {key + split_cell: part for split_cell, part in group(runs, split_keys).items()}
    return parts


def split_options(
    groups: Mapping[Cell, list[Run]], option: str, keys: Iterable[str]
) -> dict[Cell, list[Run]]:
    """Split groups by an option's own keys, such as `method.lora_rank`.

    A group is split by a key if runs of the same option differ in it. Runs of options that do not
    have the key go into each part.
    """
    parts = dict(groups)
    for key in keys:
        options_with_key = {
            run[option] for run in chain.from_iterable(groups.values()) if key in run.columns
        }
        for cell, runs in [*parts.items()]:
            runs_with_key = [run for run in runs if run[option] in options_with_key]
            if len(group(runs_with_key, [option, key])) > len(group(runs_with_key, [option])):
                del parts[cell]
                for value in dict.fromkeys(run[key] for run in runs_with_key):
                    part_runs = [
                        run
                        for run in runs
                        if run[option] not in options_with_key or run[key] == value
                    ]
                    parts[*cell, (key, value)] = part_runs
    return parts


def keys_of(cells: Iterable[Cell]) -> list[str]:
    """Return the columns of cells. Cells may have different columns (see `split`)."""
    names = []
    for cell in cells:
        names.extend(name for name, _ in cell)
    return list(dict.fromkeys(names))


def have_data(keys: Iterable[str]) -> bool:
    """Return True if other values of these keys may come with other data."""
    return any(Role.content in schema.of(key) for key in keys)


def by_setting(
    runs: Sequence[Run], without: Sequence[str] = (), mix: bool = False
) -> dict[Cell, list[Run]]:
    """Group runs by setting.

    The runs of a setting agree in their kind, their configuration, data, commit, machine and share
    of the machine. They may differ in the seed and in the keys `without`.
    """
    # The recipe follows from the GPUs and the method. One that was asked for is a setting.
    derived_keys = (RECIPE,) if without else ()
    keys = [name for name in settings(runs) if name not in (*without, *derived_keys)]
    if mix:
        return group(runs, ["kind", *keys])
    core_keys = () if any(Role.ranks in schema.of(name) for name in without) else CORES

    def cell(run: Run) -> Cell:
        following_keys = set[str]() if core_keys else following(run.columns)
        return tuple(
            (key, run[key])
            for key in ("kind", *keys, *ORIGIN, *core_keys)
            if key not in following_keys
        )

    groups = grouped(runs, cell)
    return groups if core_keys else split(groups, without)


def of_setting(runs: Sequence[Run], column: str) -> float | None:
    """Return a column's figure for a setting: the mean or maximum, as its figure declares.

    Only the repetitions that count are used (`counting`). The result is None if one of these lacks
    the figure: a mean of the others might be too favorable.
    """
    values = [run[column] for run in counting(runs, column)]
    if not values or None in values:
        return None
    return (
        float(max(values))
        if figures.of_column(column).summed == "max"
        else math.fsum(values) / len(values)
    )


def by_seed(runs: Sequence[Run], of_seeds: bool = True) -> list[list[Run]]:
    """Group the runs by seed. Without `of_seeds`, each run is a group of its own.

    Runs of one seed show how times differ, but hardly how accuracies and losses do.
    """
    return list(group(runs, [REPEATED]).values()) if of_seeds else [[run] for run in runs]


def is_exact(runs: Sequence[Run], column: str) -> bool:
    """Return True if a column is counted, not timed.

    Bytes are counted, except the resident memory of CPU ranks.
    """
    is_resident = column == MEMORY and any(run["cpu_ranks"] for run in runs)
    return figures.of_column(column).counted and not is_resident


def ranks(run: Run) -> int:
    """Return the world size: the number of ranks on all nodes."""
    return (run["gpus"] or 1) * (run["nodes"] or 1)


def ok_runs(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["status"] == "ok"]


def limits_of(runs: Iterable[Run]) -> list[Limit]:
    """Return each limit that some run has, once, in the order of the registry."""
    return limits.in_order(chain.from_iterable(run.limits for run in runs))


def marks(runs: Iterable[Run]) -> str:
    """Return the signs of the limits that some run has."""
    return limits.signs(limits_of(runs))


def legend(runs: Iterable[Run]) -> list[str]:
    """Return a line for each limit that some run has, with its sign."""
    return limits.legend(limits_of(runs))


def meanings(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Return the sign of each limit that some run has, and its meaning."""
    return limits.meanings(limits_of(runs))


def shows_speed_up(runs: Iterable[Run]) -> bool:
    """Return True if these runs may be compared with runs on another number of ranks."""
    return not any(limits.forbidding(run.limits, Forbids.speed_up, Forbids.verdict) for run in runs)


def undisturbed(runs: Sequence[Run], left_out: Counter[str] | None = None) -> list[Run]:
    """Return the runs whose times nothing disturbed, or all runs if each was disturbed.

    Args:
        left_out: counts the runs that are left out, by what disturbed them.
    """
    trusted_runs = limits.unlimited_or_all(runs, Forbids.rate)
    if left_out is not None and len(trusted_runs) < len(runs):
        for run in runs:
            left_out.update(
                limits.general_sentence(limit)
                for limit in limits.forbidding(run.limits, Forbids.rate)[:1]
            )
    return trusted_runs


def counting(runs: Sequence[Run], column: str) -> list[Run]:
    """Return the runs of a setting that a column's figure is computed from.

    Disturbed runs do not count for a figure that can be disturbed.
    """
    return undisturbed(runs) if figures.of_column(column).can_be_disturbed else [*runs]


def disturbed_notes(settings: Iterable[Sequence[Run]]) -> list[Message]:
    """Return a line for each reason why runs count for no time, with their number."""
    return limits.left_out_notes([run.limits for run in runs] for runs in settings)


def mixture(runs: Sequence[Run]) -> str | None:
    """Return the commits and machines of a cell, or None if it has only one of each."""
    # Hosts may differ: the nodes of a cluster have the same hardware.
    if len({(run["commit"], bool(run["dirty"]), run["hardware"]) for run in runs}) == 1:
        return None
    return ", ".join(dict.fromkeys(f"{commit(run)} on {machine(run)}" for run in runs))


def mixed_data_or_cores(runs: Sequence[Run]) -> str | None:
    """Return the data or cores in which runs of one configuration differ.

    Such runs do not repeat the configuration. The result is None if they agree.
    """
    differing_columns = [name for name in (DATA, *CORES) if len({run[name] for run in runs}) > 1]
    phrases = [
        f"{name}={' or '.join(sorted({typed(run[name]) for run in runs}))}"
        for name in differing_columns
    ]
    return ", ".join(phrases) or None


def meant(key: str, names: Sequence[str]) -> list[str]:
    """Return all columns of a key.

    `precision` is also `precision.name`, and `image_size` is also `dataset.image_size`.
    """
    last = key.rpartition(".")[2]
    return [
        name
        for name in names
        if name in (key, last) or name.startswith(f"{key}.") or name.endswith(f".{last}")
    ]


def label(cell: Cell, keys: Iterable[str]) -> str:
    """Write a cell as a person would type it, with the given keys. A commit is shortened."""
    keys = set(keys)
    return " ".join(
        f"{key}={typed(value)[:COMMIT] if key == 'commit' else typed(value)}"
        for key, value in cell
        if key in keys
    )


def short_label(cell: Iterable[tuple[str, Any]]) -> str:
    """Write a cell without the groups of its keys: "image_size=300 gpus=2"."""
    return " ".join(f"{key.rpartition('.')[2]}={typed(value)}" for key, value in cell)


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the names of keys in headings, axes and legends.

    A name is the last part of the key (`width`), or the whole key if two keys share that part.
    """
    full_names = {key: key.removesuffix(".name") for key in keys}
    uses = Counter(name.rpartition(".")[2] for name in {*full_names.values()})
    return {
        key: name if uses[last_part := name.rpartition(".")[2]] > 1 else last_part
        for key, name in full_names.items()
    }


def typed(value: Any) -> str:
    """Write a value as the command line takes it."""
    return "null" if value is None else figures.text("", value)


def is_numeric(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def ordered(values: Sequence[Any]) -> list[Any]:
    """Return numbers by size, and other values in their order."""
    return sorted(values) if is_numeric(values) else list(values)


def telling(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Return as many keys as distinguish the rows, preferring earlier ones."""
    distinguishing_keys: list[str] = []
    for key in apart(rows, keys):
        if kinds(rows, [*distinguishing_keys, key]) > kinds(rows, distinguishing_keys):
            distinguishing_keys.append(key)
    return distinguishing_keys


def commit(run: Run, absent: str = "no commit") -> str:
    """Return the commit's first digits, with + if the code had changes.

    The result is `absent` if the run was not started in a checkout.
    """
    if run["commit"] is None:
        return absent
    digits = clean(run["commit"])[:COMMIT]
    return f"{digits}+" if run["dirty"] else digits


def machine(run: Run) -> str:
    """Return the hardware and the hosts of a run."""
    parts = [clean(str(part)) for part in (run["hardware"], run["hosts"]) if part is not None]
    return " on ".join(parts) or "-"
