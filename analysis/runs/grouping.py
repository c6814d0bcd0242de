"""Cells: the runs that measured one and the same thing, so that a mean over them means something."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.runs.caveats import MARKS
from analysis.runs.columns import ALL_THREADS, RESERVED
from analysis.runs.load import Run
from multicard.config.base import NOT_IDENTITY, Scale
from multicard.records import figures
from multicard.records.comparable import DATA, HAVE_DATA
from multicard.records.text_table import clean

REPEATED = "seed"  # runs that differ in it alone are repetitions
RECIPE = "recipe"  # torchtune's, which follows from the method and the number of GPUs unless it is forced
# Where data lie; what they are is their fingerprint
PLACES = (
    "dataset.root",
    "dataset.cache_dir",
    "dataset.download",
    "dataset.data_files",
    "tokenizer.path",
    "tokenizer.merges_file",
)
# What a run had of its machine: as many threads a rank, or in all, alone or beside other runs
CORES, ALL_CORES = ("threads", "beside_others"), (ALL_THREADS, "beside_others")
RANKS = ("gpus", "nodes")
SCALE = "scale"
PROFILER, TRACED = "profile.name", "profiled"
# They look at a run once it is over, by steps of their own; but nsys is around the processes from their start, and
# profile.window=start looks at the training itself
AFTER, AROUND = ("profile", "diagnose"), "nsys"
COMMIT = 9  # digits
ORIGIN = ("commit", "dirty", "hardware")  # runs that differ here are averaged and compared only on request
Cell = tuple[tuple[str, Any], ...]  # key and value, in the order of the keys


def settings(runs: Sequence[Run]) -> list[str]:
    """The axes and keys of the configuration that say what was measured, of runs with a configuration.

    Not the seed, nor where files are, nor what a job asked for; the fingerprint of the data is one of them.
    """
    shapes = dict.fromkeys(tuple(run.columns) for run in runs)
    names = dict.fromkeys(name for shape in shapes for name in shape)
    apart = {REPEATED, *RESERVED, *PLACES, *(f"{name}.name" for name in names)}  # an axis says what was in force
    keys = [name for name in names if name not in apart and name.partition(".")[0] not in {*NOT_IDENTITY, *AFTER}]
    profiled, known = any(run[PROFILER] == AROUND for run in runs), any(run[DATA] is not None for run in runs)
    traced = any(run[TRACED] for run in runs)
    return [*keys, *[PROFILER] * profiled, *[TRACED] * traced, *[DATA] * known]


def group(runs: Sequence[Run], keys: Sequence[str]) -> dict[Cell, list[Run]]:
    """The runs by what they have under `keys`."""
    cells: dict[Cell, list[Run]] = {}
    for run in runs:
        cells.setdefault(tuple((key, run[key]) for key in keys), []).append(run)
    return cells


def split(groups: Mapping[Cell, list[Run]], cell: Sequence[str], mixed: Sequence[str] = ()) -> dict[Cell, list[Run]]:
    """The groups, those apart in which runs that are alike in the columns `cell` too had other cores, or data.

    Runs on more ranks have more cores, or fewer threads a rank, and are no reason. A group comes apart by threads, a
    rank or in all, whichever leaves more runs together.

    Args:
        mixed: further columns that come apart in the same way.
    """
    parts: dict[Cell, list[Run]] = {}
    for key, runs in groups.items():
        alike = group(runs, cell).values()
        by = [name for name in mixed if any(len({run[name] for run in same}) > 1 for same in alike)]
        if any(len({tuple(run[name] for name in CORES) for run in same}) > 1 for same in alike):
            by = min(([*by, *CORES], [*by, *ALL_CORES]), key=lambda names: len(group(runs, names)))
        parts |= {key + own: part for own, part in group(runs, by).items()}
    return parts


def keys_of(cells: Iterable[Cell]) -> list[str]:
    """The columns of cells, which may have some of their own (see `split`)."""
    return list(dict.fromkeys(name for cell in cells for name, _ in cell))


def have_data(keys: Iterable[str]) -> bool:
    """Whether other values of these keys may come with other data."""
    return any(key in (*HAVE_DATA, *PLACES, "model.weights") for key in keys)


def by_setting(runs: Sequence[Run], without: Sequence[str] = (), mix: bool = False) -> dict[Cell, list[Run]]:
    """The runs by kind, configuration (apart from the seed), data, commit, machine, and what they had of it.

    Args:
        without: columns that do not make another setting.
        mix: let runs of several commits and machines be one setting.
    """
    keys = [name for name in settings(runs) if name not in (*without, RECIPE)]
    if mix:
        return group(runs, ["kind", *keys])
    own = () if {*RANKS} & {*without} else CORES
    groups = group(runs, ["kind", *keys, *ORIGIN, *own])
    return groups if own else split(groups, without)


def ranks(run: Run) -> int:
    """Ranks on all nodes."""
    return (run["gpus"] or 1) * (run["nodes"] or 1)


def marks(runs: Sequence[Run]) -> str:
    """The signs of the marks that some of the runs have."""
    return "".join(mark.sign for mark in MARKS if any(mark.sign in run["marks"] for run in runs))


def origin(run: Run) -> tuple[Any, ...]:
    """Commit, changes and machine: runs that differ here are not averaged, nor compared, unless that was asked for."""
    return run["commit"], bool(run["dirty"]), run["hardware"]  # not the host: the nodes of a cluster are alike


def mixture(runs: Sequence[Run]) -> str | None:
    """The commits and machines of a cell, where there are several; None for one."""
    if len({origin(run) for run in runs}) == 1:
        return None
    return ", ".join(dict.fromkeys(f"{commit(run)} on {machine(run)}" for run in runs))


def unlike(runs: Sequence[Run]) -> str | None:
    """In what runs of one configuration differ so that they are no repetitions: their data, or what they had of the
    machine; None where they do not."""
    differ = [name for name in (DATA, *CORES) if len({run[name] for run in runs}) > 1]
    phrases = [f"{name}={' or '.join(sorted({typed(run[name]) for run in runs}))}" for name in differ]
    return ", ".join(phrases) or None


def nearest(run: Run, bases: Sequence[Run]) -> int:
    """The index of the base whose share of its machine is most like the run's: beside others or not, then as many
    threads in all or a rank."""

    def distance(base: Run) -> tuple[bool, bool]:
        threads = base["threads"] == run["threads"] or base[ALL_THREADS] == run[ALL_THREADS]
        return base["beside_others"] != run["beside_others"], not threads

    return min(range(len(bases)), key=lambda index: distance(bases[index]))


def meant(key: str, names: Sequence[str]) -> list[str]:
    """All columns of a key: `precision` is `precision.name` too, `image_size` is `dataset.image_size`."""
    last = key.rpartition(".")[2]
    return [name for name in names if name in (key, last) or name.startswith(f"{key}.") or name.endswith(f".{last}")]


def label(cell: Cell, keys: Iterable[str]) -> str:
    """A cell as a person would type it, by the given keys; a commit by its first digits."""
    keys = set(keys)
    return " ".join(
        f"{key}={typed(value)[:COMMIT] if key == 'commit' else typed(value)}" for key, value in cell if key in keys
    )


def typed(value: Any) -> str:
    """A value as the command line takes it."""
    return "null" if value is None else figures.text("", value)


def apart(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Those of `keys` in which rows differ, in their order; where a row lacks a key, it does not differ there.

    What an option or axis brings with it (`dataset.mean`, torchtune's recipe) goes unsaid where they tell it already;
    so does what `scale=smoke` does.
    """
    known = (DATA, *CORES, *ALL_CORES)  # as far as records have them
    differ = [
        key
        for key in keys
        if len({row[key] for row in rows if key in row and not (key in known and row[key] is None)}) > 1
    ]
    if SCALE in differ:
        differ = [key for key in differ if key == SCALE or _within_scale(rows, key)]
    options = {key.removesuffix(".name") for key in differ}
    brought = [key for key in differ if key in (RECIPE, *known) or _brought(key, options)]
    needed = [key for key in differ if key not in brought]
    for key in brought:
        telling = [name for name in needed if key != DATA or name.partition(".")[0] in HAVE_DATA]
        if _kinds(rows, [*telling, key]) > _kinds(rows, telling):
            needed.append(key)
    return needed


def _within_scale(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether a key differs among rows of one scale; records older than scales are of full."""
    by_scale: dict[Any, set[Any]] = {}
    for row in rows:
        by_scale.setdefault(row.get(SCALE) or Scale.full.value, set()).add(row.get(key))
    return any(len(values) > 1 for values in by_scale.values())


def telling(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Keys enough to tell rows apart, the earlier ones first."""
    needed: list[str] = []
    for key in apart(rows, keys):
        if _kinds(rows, [*needed, key]) > _kinds(rows, needed):
            needed.append(key)
    return needed


def _kinds(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(row.get(key) for key in keys) for row in rows})


def _brought(key: str, options: set[str]) -> bool:
    group, _, inner = key.partition(".")
    return bool(inner) and (inner in options or (group in options and (inner != "name" or group != key)))


def commit(run: Run, absent: str = "no commit") -> str:
    """The commit's first digits, with + where the code had changes; `absent` outside of a checkout."""
    if run["commit"] is None:
        return absent
    return clean(run["commit"])[:COMMIT] + "+" * bool(run["dirty"])


def machine(run: Run) -> str:
    """What it computed on, and where."""
    parts = [clean(str(part)) for part in (run["hardware"], run["hosts"]) if part is not None]
    return " on ".join(parts) or "-"
