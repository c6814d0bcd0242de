"""What W&B has of a folder, which a hidden file in it says: `.wandb.json`."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from multicard.measure.timing import timestamp
from multicard.records import run_folder
from multicard.tracking.wandb_run import Target, server

NOTE = ".wandb.json"


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


def is_uploaded(folder: Path, run_id: str, target: Target, content: str) -> bool:
    """Whether W&B has the run, in this project of this server, as it is now.

    Args:
        content: the digest of what it was made of.
    """
    key = _key(run_id, target) | {"content": content}
    return any(key.items() <= upload.items() for upload in _read(folder))


def latest_run(folder: Path, target: Target, prefix: str) -> str | None:
    """The id, with this prefix, of the run of a folder that was uploaded last to this project of this server."""
    place = _place(target)
    runs = [upload["run"] for upload in _read(folder) if place.items() <= upload.items()]
    return next((run for run in reversed(runs) if run.startswith(prefix)), None)


def note(folder: Path, run_id: str, target: Target, content: str, url: str | None) -> None:
    """Note an upload; another of the same run in the same place is replaced."""
    key = _key(run_id, target)
    others = [upload for upload in _read(folder) if any(upload.get(name) != value for name, value in key.items())]
    upload = key | {"content": content, "url": url, "uploaded_at": timestamp()}
    run_folder.write_json(folder / NOTE, {"uploads": [*others, upload]})


def _key(run_id: str, target: Target) -> dict[str, Any]:
    return _place(target) | {"run": run_id}


def _place(target: Target) -> dict[str, Any]:
    return {"server": server(), "entity": target.entity, "project": target.project}


def _read(folder: Path) -> list[dict[str, Any]]:
    return (run_folder.read_json(folder / NOTE) or {}).get("uploads", [])
