"""Which runs may be compared: those that differ in one thing, on the same machine and commit."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from multicard.config import schema
from multicard.config.base import GLOBAL, Scale
from multicard.config.job import count
from multicard.config.keys import flat
from multicard.config.roles import Role
from multicard.measure import formulas
from multicard.messages import Message
from multicard.records import limits
from multicard.records.schema import AnyRecord, LlmRecord, VisionRecord
from multicard.records.schema_parts import TextRows

DATA = "data"  # the fingerprint of the data, as a column of tables
REPETITION = "repetition"  # the number of the repetition, also a column
# torchtune's, which follows from the method and the number of GPUs unless it is forced
RECIPE = "recipe"
SCALE = "scale"
ALL_THREADS = "all_threads"  # of all ranks
LATER = (DATA, "threads", "beside_others", ALL_THREADS)  # columns that only newer records have

DOUBTFUL = "?"  # marks an efficiency above the possible
DOUBTFUL_MEANING = Message(
    "notes.doubtful",
    f"above {formulas.DOUBTFUL_EFFICIENCY:.0%} of the ideal, which more GPUs alone cannot give: the"
    " run on one was slower for another cause (fewer cores, load of others, clocks); measure it"
    " again",
    above=formulas.DOUBTFUL_EFFICIENCY,
)


def measured_settings(config: dict[str, Any]) -> dict[str, str]:
    """A configuration as "group.key" to JSON text,
    without keys that do not change the measurement.
    """
    beside = schema.beside()
    return {
        key: json.dumps(value)
        for key, value in flat(config).items()
        if key.partition(".")[0] not in beside
    }


def reference(record: AnyRecord, records: Sequence[AnyRecord], **axes: Any) -> AnyRecord | None:
    """The `ok` record that has these values on `axes` and equals `record` in all else, data and
    machine too; among several repetitions, the one with the same number. Probes do not count.
    """
    measured = [r for r in records if r.status == "ok" and not r.is_probe]
    alike = [r for r in measured if _all_but(r, [*axes]) == _all_but(record, [*axes])]
    alike = [
        r for r in alike if all(r.axes.get(axis, value) == value for axis, value in axes.items())
    ]
    return min(alike, key=lambda r: r.repetition != record.repetition, default=None)


def _all_but(record: AnyRecord, axes: list[str]) -> tuple[Any, ...]:
    """All that has to be equal for two records to differ in `axes` alone."""
    settings = measured_settings(record.config)
    left_out = {*axes, *(following(settings) if "gpus" in axes else ())}
    rest = {key: value for key, value in settings.items() if key.partition(".")[0] not in left_out}
    # the cores are shared by another number of ranks
    threads = None if "gpus" in axes else record.threads
    origin = [record.axes.get("device"), record.hardware, record.commit, record.dirty]
    return rest, *origin, content(record), threads


def following(settings: Mapping[str, Any]) -> set[str]:
    """Keys of a run's settings, or columns, that follow from its number of ranks, which so changes
    no training: a rank's batch or the accumulation, of a global batch.
    """
    if settings.get("global_batch_size") in (None, "null"):
        return set()
    follows = {"batch_size_asked", *schema.keys(Role.follows)}
    if str(settings.get("batch_size_asked")).strip('"') != GLOBAL:
        follows.remove("batch_size")  # it was given
    return follows


def varied(records: Sequence[AnyRecord], always: tuple[str, ...]) -> list[str]:
    """The axes to show, those in `always` and those that differ,
    and then the keys that differ beside them.
    """
    axes = dict.fromkeys(chain.from_iterable(record.axes for record in records))
    settings = [measured_settings(record.config) for record in records]
    keys = dict.fromkeys([*axes, *chain.from_iterable(settings), DATA, REPETITION])
    rows = []
    for own, record in zip(settings, records, strict=True):
        about = {DATA: content(record), REPETITION: record.repetition or 1}
        rows.append(own | {axis: cell(record, axis) for axis in record.axes} | about)
    differ = apart(rows, keys)
    return [key for key in keys if key in differ or (key in axes and key in always)]


def apart(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Those of `keys` in which rows differ, in their order;
    a row that lacks a key does not differ there.

    Left out is what follows from another key: what an option or axis brings with it
    (`dataset.mean`, torchtune's recipe) and what `scale=smoke` sets.
    """
    differ = [
        key
        for key in keys
        if len({row[key] for row in rows if key in row and not (key in LATER and row[key] is None)})
        > 1
    ]
    if SCALE in differ:
        # records older than scales are of full
        scales = {row.get(SCALE) or Scale.full.value for row in rows}
        by_scale = [
            [row for row in rows if (row.get(SCALE) or Scale.full.value) == scale]
            for scale in scales
        ]
        differ = [
            key
            for key in differ
            if key == SCALE or any(kinds(same, [key]) > 1 for same in by_scale)
        ]
    options = {key.removesuffix(".name") for key in differ}
    follows = set[str]().union(*map(following, rows))
    brought = [key for key in differ if key in (RECIPE, *LATER, *follows) or _brought(key, options)]
    needed = [key for key in differ if key not in brought]
    for key in brought:
        telling = [
            name
            for name in needed
            if key != DATA or Role.content in schema.of(name.partition(".")[0])
        ]
        if kinds(rows, [*telling, key]) > kinds(rows, telling):
            needed.append(key)
    return needed


def kinds(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """How many different values the rows have under `keys` together."""
    return len({tuple(row.get(key) for key in keys) for row in rows})


def _brought(key: str, options: set[str]) -> bool:
    group, _, inner = key.partition(".")
    return bool(inner) and (
        inner in options or (group in options and (inner != "name" or group != key))
    )


def content(record: AnyRecord) -> str | None:
    """The fingerprint of a run's data; None of older records."""
    return record.data and record.data.fingerprint


def cell(record: AnyRecord, name: str) -> str:
    """A run's value of an axis or key, as the command line takes it."""
    if name in record.axes:
        value = record.axes[name]
        if value is None:
            return "-"
        return str(value).lower() if isinstance(value, bool) else str(value)
    if name == DATA:
        return content(record) or "-"
    if name == REPETITION:
        return str(record.repetition or 1)
    return measured_settings(record.config).get(name, "-").strip('"')


def _commit(record: AnyRecord) -> str:
    commit = str(record.commit)[:9]
    return f"{commit}+changes" if record.dirty else commit


def notes(records: Sequence[AnyRecord]) -> list[str]:
    """Notes below a table of these records: several commits or machines, shared GPUs, restarts."""
    lines: list[str] = []
    measured = [record for record in records if record.config]
    commits = set(map(_commit, measured))
    for name, found in (
        ("commits", commits),
        ("machines", {str(record.hardware) for record in measured}),
    ):
        if len(found) > 1:
            line = Message(
                "notes.several",
                f"measured on several {name}, not compared with one another:"
                f" {', '.join(sorted(found))}",
                what=name,
                found=sorted(found),
            )
            lines.append(line)
    inputs = [record.input or {} for record in measured if isinstance(record, VisionRecord)]
    if streamed := sum((read.get("train") or {}).get("mode") == "streamed" for read in inputs):
        line = Message(
            "notes.streamed",
            f"{streamed} with more images than dataset.device_budget_bytes: they crossed batch by"
            " batch",
            key="dataset.device_budget_bytes",
            runs=streamed,
        )
        lines.append(line)
    skipped = [
        sum(part["skipped"] for part in (read.get("decoded") or {}).values()) for read in inputs
    ]
    if any(skipped):
        line = Message(
            "notes.broken-images",
            f"up to {max(skipped)} broken images left out: see input in the records",
            images=max(skipped),
        )
        lines.append(line)
    rows = [
        record.text_rows
        for record in measured
        if isinstance(record, LlmRecord) and record.text_rows
    ]
    if broken := max((counts.broken or 0 for counts in rows), default=0):
        line = Message(
            "notes.broken-rows",
            f"up to {broken} broken rows left out: see text_rows in the records",
            rows=broken,
        )
        lines.append(line)
    cut = max(rows, key=lambda counts: counts.cut or 0, default=TextRows())
    if cut.cut:
        left_out = f", {cut.left_out} of them left out: no label remained" if cut.left_out else ""
        line = Message(
            "notes.cut-rows",
            f"up to {cut.cut} of {cut.read} rows cut at max_seq_len{left_out} (see text_rows in the"
            " records)",
            key="max_seq_len",
            cut=cut.cut,
            read=cut.read,
            left_out=cut.left_out,
        )
        lines.append(line)
    if disturbed := [
        record.gpu.disturbed_by for record in measured if record.gpu and record.gpu.disturbed_by
    ]:
        every_other = chain.from_iterable(disturbed)
        names = sorted({str(other.name or other.pid) for other in every_other})
        line = Message(
            "notes.disturbed",
            f"{limits.DISTURBED.sign} others used the GPUs of {len(disturbed)} while they were"
            f" measured ({', '.join(names)}): see gpu.disturbed_by in the records",
            runs=len(disturbed),
            names=names,
        )
        lines.append(line)
    if busy := [record for record in measured if limits.busy_share(record) > limits.BUSY_SHARE]:
        most = max(busy, key=limits.busy_share)
        cores = limits.busy_share(most) * (most.cores or 0)
        line = Message(
            "notes.loaded",
            f"{limits.LOADED.sign} others kept up to {cores:.1f} of {most.cores} cores busy during "
            f"{count(len(busy), 'run')}: see load in the records",
            cores=round(cores, 1),
            of=most.cores,
            runs=len(busy),
        )
        lines.append(line)
    return [*lines, *limits.notes(measured)]
