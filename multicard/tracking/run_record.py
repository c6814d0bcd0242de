"""Describe a record as W&B shows it.

That is the run's id, name, tags and configuration, its summary, its artifacts and its exit code.
"""

import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import UNSET

from multicard.config import schema, strict_yaml
from multicard.config.roles import Role
from multicard.observe.gpu_record import MERGED
from multicard.records import held_out, limits
from multicard.records.comparable import content
from multicard.records.figures import FIGURES
from multicard.records.json_values import builtins
from multicard.records.run_folder import ENVIRONMENT, RESULT, read_environment
from multicard.records.schema import AnyRecord
from multicard.records.schema_environment import Cpu, Environment
from multicard.records.schema_parts import Segment
from multicard.records.steps import STEPS
from multicard.tracking import keys
from multicard.tracking.history import RunClock

MAX_NAME_CHARACTERS = 64  # The most characters of a name.
CELL_NAME = re.compile(
    r"(?P<settings>.*)-(?P<identity>\w{8})(?:-(?P<repetition>r\d+))?(?P<probe>-probe)?"
)
# A summary leaves out keys that are in the configuration, the history or a table, and lists that
# result.json holds.
KEYS_ELSEWHERE = ("schema_version", "axes", "config", "epochs", "folder")
LISTS_LEFT_OUT = (
    *("cause.facts", "profile.rows", "profile.files", "diagnosis.rounds_s", "gpu.parts"),
    "held_out.evaluations",  # The summary has the last loss among them.
)
LIMITS = "limits"  # The key for the codes of the run's limits.
RECORD = "run-record"  # The type of the artifact.
FILES = (RESULT, "config.yaml", ENVIRONMENT, STEPS, MERGED, held_out.FILE, "torchtune.yaml")
PROFILE_COLUMNS = (
    "rank",
    "group",
    "metric",
    "calls",
    "total_s",
    "mean_s",
    "share",
    "bytes",
    "detail",
)


@dataclass(frozen=True)
class WandbRunInfo:
    """A run as W&B lists it. `started_at` is a Unix time."""

    id: str
    name: str
    group: str
    job_type: str
    tags: tuple[str, ...]
    config: dict[str, Any]
    started_at: float
    host: str | None = None
    commit: str | None = None


def run_info(folder: Path, record: AnyRecord) -> WandbRunInfo:
    """Describe the run of a record, or of the part that is known while the run goes on."""
    names = (
        run_id(record),
        short_name(folder.name, varied_keys(folder.parent)),
        record.name or folder.parent.name,
        record.kind,
        tags(record),
    )
    hosts = chain.from_iterable(part.hosts or () for part in record.segments)
    host = next(hosts, None)
    return WandbRunInfo(
        *names, configuration(folder, record), RunClock.of(record).started_at, host, record.commit
    )


def run_id(record: AnyRecord) -> str:
    """Return the id of a run in W&B.

    All uploads of one start have the same id. Every other start has a different one.
    """
    first = record.segments[0] if record.segments else Segment(record.started_at)
    facts = {
        **{name: getattr(record, name) for name in ("kind", "name", "axes", "repetition")},
        "probe": record.is_probe,
        "started_at": first.started_at,
        "hosts": first.hosts,
    }
    digits = sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{record.identity or record.status}-{digits}"


def varied_keys(sweep: Path) -> set[str]:
    """Return the keys, without their group, that have several values in a sweep's last command.

    The set is empty if the command is unknown.
    """
    try:
        hydra = strict_yaml.read_yaml(sweep / "multirun.yaml")["hydra"]
        words = hydra["overrides"]["task"]
        params = hydra["sweeper"].get("params") or {}
        values = {str(key): str(value) for key, value in params.items()}
        for word in words:
            key, _, value = str(word).partition("=")
            values[key] = value
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    varied = {
        key
        for key, value in values.items()
        if re.search("[,(]", value) and not value.startswith("[")
    }
    return {key.lstrip("+").rpartition(".")[2] for key in varied}


def short_name(cell: str, varied_keys: Container[str] = ()) -> str:
    """Return the name of a run, from the name of its folder.

    Examples: "gpus=2, precision=bf16", and "gpus=2 r3" for a repetition. If a name is too long, the
    keys that its sweep varies come first, and its end is cut off.
    """
    match = CELL_NAME.fullmatch(cell)
    if match is None:
        return cell[:MAX_NAME_CHARACTERS]
    repetition = " ".join(filter(None, (match["repetition"], "probe" if match["probe"] else None)))
    settings = re.split(r",(?=[\w.+~-]+=)", match["settings"])
    name = " ".join(filter(None, (", ".join(settings), repetition)))
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    settings.sort(key=lambda word: word.partition("=")[0].rpartition(".")[2] not in varied_keys)
    end = f" {repetition} {match['identity']}" if repetition else f" {match['identity']}"
    return f"{', '.join(settings)[: MAX_NAME_CHARACTERS - len(end)]}{end}"


def tags(record: AnyRecord) -> tuple[str, ...]:
    """Return the user's tags, `probe`, the status if it is not ok, and codes of limits.

    Only limits that forbid a statement about the run are tags.
    """
    possible_tags = {"probe": record.is_probe, record.status: record.status != "ok"}
    own_tags = [tag for tag, applies in possible_tags.items() if applies]
    limit_codes = [limit.code for limit in limits.of(record) if limit.forbids]
    return tuple(dict.fromkeys([*user_tags(record), *own_tags, *limit_codes]))


def user_tags(record: AnyRecord) -> list[str]:
    return (record.config.get("tracker") or {}).get("tags") or []


def configuration(folder: Path, record: AnyRecord) -> dict[str, Any]:
    """Return the values by which W&B groups runs, the machine, and the whole configuration."""
    groups = {
        name: getattr(record, name) for name in ("hardware", "commit", "identity", "repetition")
    }
    groups["data"] = content(record)
    left_out = {*schema.keys(Role.forecast), "tracker"}
    own_configuration = {key: value for key, value in record.config.items() if key not in left_out}
    known_groups = {name: value for name, value in groups.items() if value is not None}
    return (
        known_groups
        | record.axes
        | {"machine": _machine(read_environment(folder)), "configuration": own_configuration}
    )


def _machine(environment: Environment) -> dict[str, Any]:
    """Return the facts by which machines are compared, as far as they are known."""
    cpu = environment.cpu or Cpu()
    facts = {
        "host": environment.host,
        "cpu": cpu.model,
        "cores": cpu.cores,
        "memory_bytes": cpu.memory_bytes,
        "python": environment.python,
        "torch": environment.packages.get("torch"),
        "torchtune": environment.packages.get("torchtune"),
        "numa": environment.numa or None,
        "malloc": environment.malloc or None,
        "gpus": ", ".join(sorted({gpu.name for gpu in environment.gpus if gpu.name})) or None,
        "driver": next((gpu.driver for gpu in environment.gpus), None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def summary(record: AnyRecord) -> dict[str, Any]:
    """Return every figure in a flat form, without null values.

    Keys are "outer.inner", or "outer.0.inner" within a list. The lines of a log are one text, and a
    list of texts is one line.
    """
    figures = {key: value for key, value in builtins(record).items() if key not in KEYS_ELSEWHERE}
    figures[LIMITS] = [limit.code for limit in limits.of(record)]
    figures |= {
        figure.in_summary: figure.value(record) for figure in FIGURES.values() if figure.in_summary
    }
    return ({keys.ATTEMPTS: len(record.segments)} if record.segments else {}) | dict(
        flatten(figures)
    )


def flatten(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if key in LISTS_LEFT_OUT or value is None:
        return
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        yield key, ("\n" if key.endswith("log_tail") else ", ").join(value)
    elif isinstance(value, Mapping | list | tuple):
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flatten(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def profile_rows(record: AnyRecord) -> list[list[Any]]:
    """Return the metrics of a profile as rows of `PROFILE_COLUMNS`. "all" is the sum over ranks."""
    rows = record.profile.rows if record.profile is not None else UNSET
    values = [
        [getattr(row, name) for name in PROFILE_COLUMNS] for row in ([] if rows is UNSET else rows)
    ]
    return [["all" if rank is None else str(rank), *rest] for rank, *rest in values]
