"""Reads an offline `.wandb` file: LevelDB's log framing around
wandb's own protobufs (0.31 has no Python reader).
"""

import json
import struct
from pathlib import Path
from typing import Any

from tests.conftest import awaited

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def messages(path: Path) -> list[bytes]:
    """The payloads: each chunk has a header of crc32 (4 bytes),
    length (2) and type (1) and stays in its block.
    """
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    payloads, partial, at = [], b"", HEADER
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK  # the rest of a block that no header fits in
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if at + HEADER + length > len(content):
            break  # it is being written
        chunk = content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        partial = chunk if kind in (FULL, FIRST) else partial + chunk
        if kind in (FULL, LAST):
            payloads.append(partial)
    return payloads


def read(folder: Path) -> dict[str, Any]:
    """`config`, `summary`, `history` (a list of rows), `system` (of Unix times and samples),
    `artifacts` (by type), `axes` (of each metric),
    `run` and `exit_code` of the one run under `folder`.

    W&B's own process writes the file, and may still be at its
    last record when the run's `finish` has returned.
    """
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return awaited(lambda: (content := _parse(path))["exit_code"] is not None and content)


def _parse(path: Path) -> dict[str, Any]:
    from wandb.proto import wandb_internal_pb2 as pb

    content: dict[str, Any] = {"exit_code": None, "history": [], "system": []}
    content |= {name: {} for name in ("config", "summary", "artifacts", "axes")}
    for message in messages(path):
        record = pb.Record()  # pyright: ignore[reportAttributeAccessIssue]
        record.ParseFromString(message)
        match record.WhichOneof("record_type"):
            case "run":
                content["run"] = record.run
                content["config"] |= _values(record.run.config.update)
            case "config":
                content["config"] |= _values(record.config.update)
            case "summary":
                content["summary"] |= _values(record.summary.update)
            case "history":
                content["history"].append(_values(record.history.item))
            case "stats":
                content["system"].append(
                    (record.stats.timestamp.ToMicroseconds() / 1e6, _values(record.stats.item))
                )
            case "artifact":
                content["artifacts"][record.artifact.type] = record.artifact
            case "metric":
                content["axes"][record.metric.name] = record.metric.step_metric
            case "exit":
                content["exit_code"] = record.exit.exit_code
    return content


def _values(items: Any) -> dict[str, Any]:
    return {
        item.key or ".".join(getattr(item, "nested_key", ())): json.loads(item.value_json)
        for item in items
    }
