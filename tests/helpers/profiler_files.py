"""Small files as Kineto and Nsight Systems write them, of the same events."""

import json
import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
# torch 2.11 writes microseconds of this size: more digits than a float64 has with its fraction
BASE_US = 4392593071980


class Event(NamedTuple):
    kind: str  # api, kernel, copy, memset, range
    name: str  # of an API call with CUPTI's version, of a copy as Kineto writes it
    start_us: float
    us: float
    lane: int  # thread on the host, stream on the device
    bytes: int | None = None
    device: int = 0
    launch: int | None = None  # of a call, and of what it launched: correlation


CATEGORIES = {
    "api": "cuda_runtime",
    "kernel": "kernel",
    "copy": "gpu_memcpy",
    "memset": "gpu_memset",
}
CATEGORIES |= {"range": "user_annotation"}
WAYS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}


def kineto_events(events: Sequence[Event], pid: int = 77) -> list[dict[str, Any]]:
    events_json = []
    for event in events:
        on_host = event.kind in ("api", "range")
        args: dict[str, Any] = {"External id": 1}
        args |= {} if on_host else {"device": event.device, "stream": event.lane}
        args |= {} if event.launch is None else {"correlation": event.launch}
        args |= {} if event.bytes is None else {"bytes": event.bytes}
        name = re.sub(r"_v\d+$", "", event.name) if event.kind == "api" else event.name
        driver = event.kind == "api" and name.startswith("cu") and not name.startswith("cuda")
        category = "cuda_driver" if driver else CATEGORIES[event.kind]
        times = {"ts": BASE_US + event.start_us, "dur": event.us}
        who = {"pid": pid if on_host else event.device, "tid": event.lane}
        events_json.append(
            {"ph": "X", "cat": category, "name": name} | who | times | {"args": args}
        )
    return events_json


def raw(category: str, name: str, at_us: float, us: float, **more: Any) -> dict[str, Any]:
    """An event as Kineto writes it, with fields of its own."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 7,
        "tid": 1,
        "ts": BASE_US + at_us,
        "dur": us,
    } | more


def write_kineto(path: Path, events: Sequence[Event | dict[str, Any]], **top: Any) -> Path:
    """A trace with Kineto's layout; what is no Event is written as it is."""
    ready = [
        one
        for event in events
        for one in (kineto_events([event]) if isinstance(event, Event) else [event])
    ]
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0}, {"id": 1}]} | top
    tail = {
        "traceName": "/tmp/a.json",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1790857026000000000,
    }
    path.write_text(json.dumps(head | {"traceEvents": ready} | tail, indent=2))
    return path


def write_nsys(path: Path, processes: dict[int, Sequence[Event]]) -> Path:
    """An export with the columns that ours has in common with schema 3.25, of processes by id."""
    strings: dict[str, int] = {}
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, "end" INTEGER, globalTid INTEGER, nameId INTEGER,
                correlationId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER,
                globalPid INTEGER, demangledName INTEGER, shortName INTEGER, correlationId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER,
                globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER,
                correlationId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER,
                globalPid INTEGER, bytes INTEGER, correlationId INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER, "end" INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT,
                textId INTEGER);
        """
        )
        for pid, events in processes.items():
            for event in events:
                _insert(database, event, pid, strings)
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(i, text) for text, i in strings.items()]
        )
        database.commit()
    return path


def nsys_program(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell script in the place of the program `nsys`, first on PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / "nsys"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def _insert(database: sqlite3.Connection, event: Event, pid: int, strings: dict[str, int]) -> None:
    process = (1 << 48) | (pid << 24)
    start = round((event.start_us + 500) * 1000)  # nsys counts from the start of the session
    times = (start, start + round(event.us * 1000))
    where = (*times, event.device, event.lane, process)
    name = strings.setdefault(event.name, len(strings))
    if event.kind == "api":
        _into(
            database,
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            (*times, process + event.lane, name, event.launch),
        )
    elif event.kind == "kernel":
        _into(database, "CUPTI_ACTIVITY_KIND_KERNEL", (*where, name, name, event.launch))
    elif event.kind == "memset":
        _into(database, "CUPTI_ACTIVITY_KIND_MEMSET", (*where, event.bytes, event.launch))
    elif event.kind == "range":  # some have their text at once, some in StringIds
        text, text_id = (None, name) if event.lane % 2 else (event.name, None)
        _into(database, "NVTX_EVENTS", (*times, 59, process + event.lane, text, text_id))
    else:
        # Memcpy HtoD (Pinned -> Device)
        words = event.name.replace("(", "").replace(")", "").split()
        kinds = (WAYS[words[1]], MEMORY[words[2]], MEMORY[words[4]])
        _into(database, "CUPTI_ACTIVITY_KIND_MEMCPY", (*where, event.bytes, *kinds, event.launch))


def _into(database: sqlite3.Connection, table: str, values: Sequence[Any]) -> None:
    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
