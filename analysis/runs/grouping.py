"""Settings: which runs measured the same thing, and the figures of a setting.

Runs that differ in the seed alone repeat one setting, on the same data, commit and machine and with
the same share of it. `works.py` says which settings did the same work.

`mix`, wherever a function takes it, lets runs of several commits
and machines count as one setting, work or cell.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import multicard.llm.methods  # noqa: F401 (its options have keys of their own)
from multicard.config import schema
from multicard.config.roles import Role
from multicard.messages import Message
from multicard.records import figures, limits
from multicard.records.comparable import ALL_THREADS, DATA, RECIPE, apart, following, kinds
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
# A run's share of its machine: threads of a rank, or of all ranks, and whether other runs shared it
CORES = ("threads", "beside_others")
ALL_CORES = (ALL_THREADS, "beside_others")
PROFILER = "profile.name"
TRACED = "profiled"
# observes the training itself; other profilers do so with profile.window=start alone
AROUND = "nsys"
COMMIT = 9  # digits
# runs that differ here are averaged and compared only on request
ORIGIN = ("commit", "dirty", "hardware")
Cell = tuple[tuple[str, Any], ...]  # key and value, in the order of the keys
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def settings(runs: Sequence[Run]) -> list[str]:
    """Axes and configuration keys that say what was measured,
    with the data's fingerprint and without the seed.
    """
    shapes = dict.fromkeys(tuple(run.columns) for run in runs)
    names = dict.fromkeys(chain.from_iterable(shapes))
    no_settings = {*RESERVED, *(f"{name}.name" for name in names)}  # an axis says what was in force
    keys = [name for name in names if name not in no_settings and _is_setting(name)]
    profiled = any(run[PROFILER] == AROUND for run in runs)
    known = any(run[DATA] is not None for run in runs)
    traced = any(run[TRACED] for run in runs)
    return [*keys, *[PROFILER] * profiled, *[TRACED] * traced, *[DATA] * known]


def _is_setting(name: str) -> bool:
    """True for the column of a key that changes what is measured,
    the seed and the places of data left out.
    """
    group = schema.of(name.partition(".")[0])
    return not group & (Role.beside | Role.observes) and not schema.of(name) & (
        Role.repetition | Role.place
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by a key, in the order of the first of each."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def group(runs: Sequence[Run], keys: Sequence[str]) -> dict[Cell, list[Run]]:
    return grouped(runs, lambda run: tuple((key, run[key]) for key in keys))


def split(
    groups: Mapping[Cell, list[Run]], cell: Sequence[str], mixed: Sequence[str] = ()
) -> dict[Cell, list[Run]]:
    """The groups, split by cores (or `mixed` columns) where runs that
    agree in the columns `cell` too differ in these.

    Runs on more ranks have more cores, or fewer threads a rank, and are no reason to split. A group
    is split by threads of a rank or of all ranks, whichever leaves more runs together.
    """
    parts: dict[Cell, list[Run]] = {}
    for key, runs in groups.items():
        alike = group(runs, cell).values()
        by = [name for name in mixed if any(len({run[name] for run in same}) > 1 for same in alike)]
        if any(len({tuple(run[name] for name in CORES) for run in same}) > 1 for same in alike):
            by = min(([*by, *CORES], [*by, *ALL_CORES]), key=lambda names: len(group(runs, names)))
        parts |= {key + own: part for own, part in group(runs, by).items()}
    return parts


def split_options(
    groups: Mapping[Cell, list[Run]], option: str, keys: Iterable[str]
) -> dict[Cell, list[Run]]:
    """The groups, split by those of an option's own keys in which
    runs of the same option differ (`method.lora_rank`).

    Runs of options that do not have the key are in each part.
    """
    parts = dict(groups)
    for key in keys:
        having = {run[option] for run in chain.from_iterable(groups.values()) if key in run.columns}
        for cell, runs in [*parts.items()]:
            own = [run for run in runs if run[option] in having]
            if len(group(own, [option, key])) > len(group(own, [option])):
                del parts[cell]
                for value in dict.fromkeys(run[key] for run in own):
                    alike = [run for run in runs if run[option] not in having or run[key] == value]
                    parts[*cell, (key, value)] = alike
    return parts


def keys_of(cells: Iterable[Cell]) -> list[str]:
    """The columns of cells, which may differ between them (see `split`)."""
    names = []
    for cell in cells:
        names.extend(name for name, _ in cell)
    return list(dict.fromkeys(names))


def have_data(keys: Iterable[str]) -> bool:
    """True if other values of these keys may come with other data."""
    return any(Role.content in schema.of(key) for key in keys)


def by_setting(
    runs: Sequence[Run], without: Sequence[str] = (), mix: bool = False
) -> dict[Cell, list[Run]]:
    """The runs by kind, configuration but for the seed and `without`, data, commit,
    machine and share of it.
    """
    # follows from the GPUs and the method; one that was asked for is a setting
    brought = (RECIPE,) if without else ()
    keys = [name for name in settings(runs) if name not in (*without, *brought)]
    if mix:
        return group(runs, ["kind", *keys])
    own = () if any(Role.ranks in schema.of(name) for name in without) else CORES

    def cell(run: Run) -> Cell:
        follows = set[str]() if own else following(run.columns)
        return tuple(
            (key, run[key]) for key in ("kind", *keys, *ORIGIN, *own) if key not in follows
        )

    groups = grouped(runs, cell)
    return groups if own else split(groups, without)


def of_setting(runs: Sequence[Run], column: str) -> float | None:
    """A column over the repetitions of a setting that count for it (`counting`), summed up as its
    figure declares: the mean, or the maximum.

    None where one of these lacks the figure: a mean over
    the others might be that of the lucky ones.
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
    """Runs of each seed, or, without `of_seeds`, each run by itself: those of one seed show how
    times differ, but hardly how accuracies and losses do.
    """
    return list(group(runs, [REPEATED]).values()) if of_seeds else [[run] for run in runs]


def is_exact(runs: Sequence[Run], column: str) -> bool:
    """True if a column is counted and not timed: bytes, except the resident memory of CPU ranks."""
    is_resident = column == MEMORY and any(run["cpu_ranks"] for run in runs)
    return figures.of_column(column).counted and not is_resident


def ranks(run: Run) -> int:
    """Ranks on all nodes."""
    return (run["gpus"] or 1) * (run["nodes"] or 1)


def ok_runs(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run["status"] == "ok"]


def limits_of(runs: Iterable[Run]) -> list[Limit]:
    """The limits that some of the runs have, each once, in the order of the registry."""
    return limits.in_order(chain.from_iterable(run.limits for run in runs))


def marks(runs: Iterable[Run]) -> str:
    """The signs of the limits that some of the runs have."""
    return limits.signs(limits_of(runs))


def legend(runs: Iterable[Run]) -> list[str]:
    """A line for each of these limits, with its sign."""
    return limits.legend(limits_of(runs))


def meanings(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """The sign of each of these limits, and what it says."""
    return limits.meanings(limits_of(runs))


def shows_speed_up(runs: Iterable[Run]) -> bool:
    """True where nothing forbids to compare these runs with others by their number of ranks."""
    return not any(limits.forbidding(run.limits, Forbids.speed_up, Forbids.verdict) for run in runs)


def undisturbed(runs: Sequence[Run], left_out: Counter[str] | None = None) -> list[Run]:
    """The runs of a setting whose times nothing disturbed; all of them where each was disturbed.

    Args:
        left_out: counts those that are left out, by what disturbed them.
    """
    kept = limits.unlimited_or_all(runs, Forbids.rate)
    if left_out is not None and len(kept) < len(runs):
        for run in runs:
            left_out.update(
                limits.general_sentence(limit)
                for limit in limits.forbidding(run.limits, Forbids.rate)[:1]
            )
    return kept


def counting(runs: Sequence[Run], column: str) -> list[Run]:
    """The runs of a setting that a figure of it is made of: the undisturbed ones,
    of what can be disturbed.
    """
    return undisturbed(runs) if figures.of_column(column).can_be_disturbed else [*runs]


def disturbed_notes(settings: Iterable[Sequence[Run]]) -> list[Message]:
    """A line for each reason why runs of these settings count for no time, with their number."""
    return limits.left_out_notes([run.limits for run in runs] for runs in settings)


def mixture(runs: Sequence[Run]) -> str | None:
    """The commits and machines of a cell, where there are several; None for one."""
    # not the host: the nodes of a cluster are alike
    if len({(run["commit"], bool(run["dirty"]), run["hardware"]) for run in runs}) == 1:
        return None
    return ", ".join(dict.fromkeys(f"{commit(run)} on {machine(run)}" for run in runs))


def mixed_data_or_cores(runs: Sequence[Run]) -> str | None:
    """The data or cores in which runs of one configuration differ, so that they do not repeat it;
    None if equal.
    """
    differ = [name for name in (DATA, *CORES) if len({run[name] for run in runs}) > 1]
    phrases = [
        f"{name}={' or '.join(sorted({typed(run[name]) for run in runs}))}" for name in differ
    ]
    return ", ".join(phrases) or None


def meant(key: str, names: Sequence[str]) -> list[str]:
    """All columns of a key: `precision` is `precision.name` too,
    `image_size` is `dataset.image_size`.
    """
    last = key.rpartition(".")[2]
    return [
        name
        for name in names
        if name in (key, last) or name.startswith(f"{key}.") or name.endswith(f".{last}")
    ]


def label(cell: Cell, keys: Iterable[str]) -> str:
    """A cell as a person would type it, by the given keys; a commit by its first digits."""
    keys = set(keys)
    return " ".join(
        f"{key}={typed(value)[:COMMIT] if key == 'commit' else typed(value)}"
        for key, value in cell
        if key in keys
    )


def short_label(cell: Iterable[tuple[str, Any]]) -> str:
    """A cell without the groups of its keys: "image_size=300 gpus=2"."""
    return " ".join(f"{key.rpartition('.')[2]}={typed(value)}" for key, value in cell)


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """What headings, axes and legends call keys: the last part (`width`),
    the whole key where two share that.
    """
    full = {key: key.removesuffix(".name") for key in keys}
    shared = Counter(name.rpartition(".")[2] for name in {*full.values()})
    return {
        key: name if shared[short := name.rpartition(".")[2]] > 1 else short
        for key, name in full.items()
    }


def typed(value: Any) -> str:
    """A value as the command line takes it."""
    return "null" if value is None else figures.text("", value)


def is_numeric(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def ordered(values: Sequence[Any]) -> list[Any]:
    """Numbers by size, all else as it is."""
    return sorted(values) if is_numeric(values) else list(values)


def telling(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Enough keys to tell rows apart, the earlier ones first."""
    needed: list[str] = []
    for key in apart(rows, keys):
        if kinds(rows, [*needed, key]) > kinds(rows, needed):
            needed.append(key)
    return needed


def commit(run: Run, absent: str = "no commit") -> str:
    """The commit's first digits, with + where the code had changes;
    `absent` outside of a checkout.
    """
    if run["commit"] is None:
        return absent
    digits = clean(run["commit"])[:COMMIT]
    return f"{digits}+" if run["dirty"] else digits


def machine(run: Run) -> str:
    """The hardware and the hosts of a run."""
    parts = [clean(str(part)) for part in (run["hardware"], run["hosts"]) if part is not None]
    return " on ".join(parts) or "-"
