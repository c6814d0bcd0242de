"""What a run is in W&B: its id, name, group and tags, its configuration, and the code that it exits with."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from multicard.config.prediction import PREDICTION
from multicard.records.run_folder import BAD, ENVIRONMENT, RESULT, read_json
from multicard.tracking import keys
from multicard.tracking.timeline import Timeline

LONGEST = 64  # characters of a name
CELL = re.compile(r"(?P<settings>.*)-(?P<identity>\w{8})(?:-(?P<repetition>r\d+))?(?P<probe>-probe)?")
OF_COMMANDS = (*PREDICTION, "objective", "tracker")  # keys that say nothing of a run


@dataclass(frozen=True)
class About:
    """A run, as W&B shows it in its list.

    started_at: Unix time.
    """

    id: str
    name: str
    group: str
    job_type: str
    tags: tuple[str, ...]
    config: dict[str, Any]
    started_at: float
    host: str | None = None
    commit: str | None = None


def about(folder: Path, record: Mapping[str, Any], name: str | None = None) -> About:
    """What W&B shows of a run.

    Args:
        record: of the run, or what is known of it while it goes on.
        name: of `short_names`, where it is known.
    """
    return About(
        run_id(record),
        name or short_names([folder.name, *siblings(folder)])[folder.name],
        str(record.get("name") or folder.parent.name),
        record["kind"],
        tags(record),
        configuration(folder, record),
        Timeline.of(record).started_at,
        next((host for part in record.get("segments") or () for host in part.get("hosts") or ()), None),
        record.get("commit"),
    )


def run_id(record: Mapping[str, Any]) -> str:
    """The same for one start of a run, whenever and however often it is uploaded; another for every other start."""
    first = next(iter(record.get("segments") or ()), record)
    told = {
        **{name: record.get(name) for name in ("kind", "name", "axes", "repetition")},
        "probe": _is_probe(record),
        "started_at": first.get("started_at"),
        "hosts": first.get("hosts"),
    }
    digits = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
    return f"{record.get('identity') or record['status']}-{digits}"


def _is_probe(record: Mapping[str, Any]) -> bool:
    return bool(((record.get("config") or {}).get("probe") or {}).get("enabled"))


def siblings(folder: Path) -> list[str]:
    """The names of all run folders of its sweep."""
    return sorted(
        path.name for path in folder.parent.glob("[!.]*") if (path / RESULT).exists() or (path / "config.yaml").exists()
    )


def short_names(cells: Iterable[str]) -> dict[str, str]:
    """What tells each cell from the others of its sweep, by the name of its folder: "gpus=2, precision=bf16"; of a
    repetition "gpus=2 r3".

    Args:
        cells: the names of all run folders of a sweep.
    """
    found = {cell: CELL.fullmatch(cell) for cell in cells}
    parsed = [match for match in found.values() if match is not None]
    settings = {match["settings"]: set(match["settings"].split(",")) for match in parsed}
    shared = set.intersection(*settings.values()) if len(parsed) > 1 else set[str]()
    identities: dict[str, set[str]] = {}  # several where cells differ in what their folders do not name
    for match in parsed:
        identities.setdefault(match["settings"], set()).add(match["identity"])
    return {
        cell: cell[:LONGEST] if match is None else _short_name(match, shared, len(identities[match["settings"]]) > 1)
        for cell, match in found.items()
    }


def _short_name(cell: re.Match[str], shared: set[str], has_twins: bool) -> str:
    apart = ", ".join(setting for setting in cell["settings"].split(",") if setting not in shared)
    parts = [
        apart or ("" if cell["repetition"] or has_twins else cell["settings"]),
        cell["identity"] if has_twins else "",
        cell["repetition"] or "",
        "probe" if cell["probe"] else "",
    ]
    whole = " ".join(part for part in parts if part)
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 9]} {cell['identity']}"


def tags(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The user's tags, `probe`, and how the run ended where that was not well."""
    status = record.get("status")
    ended = [status] if status not in ("ok", None) else []
    return tuple(dict.fromkeys([*user_tags(record), *["probe"] * _is_probe(record), *ended]))


def user_tags(record: Mapping[str, Any]) -> list[str]:
    return ((record.get("config") or {}).get("tracker") or {}).get("tags") or []


def exit_code(record: Mapping[str, Any]) -> int:
    """1 where a sweep would fail too; out of memory, divergence and preemption are no failures of a run."""
    return int(record["status"] in BAD)


def configuration(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """The axes as used, which group runs; beside them what else does, the machine and the whole configuration."""
    whole = {key: value for key, value in (record.get("config") or {}).items() if key not in OF_COMMANDS}
    facts = {name: record.get(name) for name in keys.GROUPS} | {"data": (record.get("data") or {}).get("fingerprint")}
    return {
        **{name: value for name, value in facts.items() if value is not None},
        **dict(record.get("axes") or {}),
        keys.MACHINE: _machine(read_json(folder / ENVIRONMENT) or {}),
        keys.CONFIGURATION: whole,
    }


def _machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of environment.json by which runs are compared."""
    cpu, gpus = environment.get("cpu") or {}, environment.get("gpus") or []
    packages = environment.get("packages") or {}
    facts = {
        "host": environment.get("host"),
        "cpu": cpu.get("model"),
        "cores": cpu.get("cores"),
        "memory_bytes": cpu.get("memory_bytes"),
        "gpus": ", ".join(sorted({gpu["name"] for gpu in gpus if gpu.get("name")})) or None,
        "driver": next((gpu.get("driver") for gpu in gpus), None),
        "python": environment.get("python"),
        "torch": packages.get("torch"),
        "torchtune": packages.get("torchtune"),
        "numa": environment.get("numa"),
        "malloc": environment.get("malloc"),
    }
    return {name: value for name, value in facts.items() if value is not None}
