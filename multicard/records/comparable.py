"""Decides which runs may be compared: runs that differ in one thing, on one machine and commit."""

import json
import re
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
from multicard.records.schema_data import TextRows

DATA = "data"  # The column for the fingerprint of the data.
REPETITION = "repetition"  # The column for the number of the repetition.
# torchtune's recipe, which follows from the method and the number of GPUs unless it is forced.
RECIPE = "recipe"
SCALE = "scale"
PRESET = "preset"  # The column for the preset, which names all that its file sets.
PRESET_KEY = "preset_chosen"  # The key of the configuration that has it.
PRESET_DECIDES = "preset_decides"  # The column for the groups and keys that it decides.
ALL_THREADS = "all_threads"  # The number of threads of all ranks together.
LATER = (DATA, "threads", "beside_others", ALL_THREADS)  # Columns that older records lack.

DOUBTFUL = "?"  # Marks an efficiency that is too high to be true.
DOUBTFUL_MEANING = Message(
    "notes.doubtful",
    f"above {formulas.DOUBTFUL_EFFICIENCY:.0%} of the ideal, which more GPUs alone cannot give: the"
    " run on one GPU was slowed by another cause (fewer cores, other load, clocks); measure it"
    " again",
    above=formulas.DOUBTFUL_EFFICIENCY,
)


def measured_settings(config: dict[str, Any]) -> dict[str, str]:
    """Flatten a configuration to "group.key" and JSON text, without keys that do not change the
    measurement.
    """
    beside = schema.beside()
    return {
        key: json.dumps(value)
        for key, value in flat(config).items()
        if key.partition(".")[0] not in beside
    }


def reference(record: AnyRecord, records: Sequence[AnyRecord], **axes: Any) -> AnyRecord | None:
    """Return the `ok` record that has the given values on `axes` and equals `record` in everything
    else, including data and machine.

    Among several repetitions, the one with the same number is preferred. Probes do not count.
    """
    measured_records = [r for r in records if r.status == "ok" and not r.is_probe]
    candidates = [r for r in measured_records if _all_but(r, [*axes]) == _all_but(record, [*axes])]
    candidates = [
        r
        for r in candidates
        if all(r.axes.get(axis, value) == value for axis, value in axes.items())
    ]
    return min(candidates, key=lambda r: r.repetition != record.repetition, default=None)


def _all_but(record: AnyRecord, axes: list[str]) -> tuple[Any, ...]:
    """Return everything that has to be equal if two records differ only in `axes`."""
    settings = measured_settings(record.config)
    left_out = {*axes, *(following(settings) if "gpus" in axes else ())}
    rest = {key: value for key, value in settings.items() if key.partition(".")[0] not in left_out}
    # With another number of GPUs, another number of ranks shares the cores.
    threads = None if "gpus" in axes else record.threads
    origin = [record.axes.get("device"), record.hardware, record.commit, record.dirty]
    return rest, *origin, content(record), threads


def following(settings: Mapping[str, Any]) -> set[str]:
    """Return the keys and columns that follow from the number of ranks, and so do not change the
    training: with a global batch, the batch per rank or the accumulation.
    """
    if settings.get("global_batch_size") in (None, "null"):
        return set()
    follows = {"batch_size_asked", *schema.keys(Role.follows)}
    if str(settings.get("batch_size_asked")).strip('"') != GLOBAL:
        follows.remove("batch_size")  # The user gave it, so it does not follow.
    return follows


def varied(records: Sequence[AnyRecord], always: tuple[str, ...]) -> list[str]:
    """Return the axes to show, which are those in `always` and those that differ, and then other
    keys that differ.
    """
    axes = dict.fromkeys(chain.from_iterable(record.axes for record in records))
    settings = [measured_settings(record.config) for record in records]
    keys = dict.fromkeys([PRESET, *axes, *chain.from_iterable(settings), DATA, REPETITION])
    rows = []
    for settings_of_record, record in zip(settings, records, strict=True):
        columns = {DATA: content(record), REPETITION: record.repetition or 1}
        columns |= {
            PRESET: record.config.get(PRESET_KEY),
            PRESET_DECIDES: record.config.get(PRESET_DECIDES),
        }
        rows.append(
            settings_of_record | {axis: cell(record, axis) for axis in record.axes} | columns
        )
    differ = apart(rows, keys)
    return [key for key in keys if key in differ or (key in axes and key in always)]


def apart(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Return the `keys` in which the rows differ, in their order. A row that lacks a key does not
    count as different.

    Keys that follow from another key are left out: what an option or axis sets
    (`dataset.mean`, torchtune's recipe), what a preset sets, and what `scale=smoke` sets. A preset
    counts only if all rows have one.
    """
    differ = [key for key in keys if key != PRESET_DECIDES and len(_values(rows, key)) > 1]
    if SCALE in differ:
        # Records from before the key `scale` existed have full scale.
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
    if PRESET in differ:
        unneeded = {PRESET} if any(row.get(PRESET) is None for row in rows) else set()
        unneeded |= following_preset(rows, differ)
        differ = [key for key in differ if key not in unneeded]
    options = {key.removesuffix(".name") for key in differ}
    follows = set[str]().union(*map(following, rows))
    implied = [
        key for key in differ if key in (RECIPE, *LATER, *follows) or _is_implied(key, options)
    ]
    needed = [key for key in differ if key not in implied]
    for key in implied:
        relevant = [
            name
            for name in needed
            if key != DATA or Role.content in schema.of(name.partition(".")[0])
        ]
        if kinds(rows, [*relevant, key]) > kinds(rows, relevant):
            needed.append(key)
    return needed


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> set[Any]:
    """Return the values of a key in the rows that have it."""
    values = {row[key] for row in rows if key in row}
    return values - {None} if key in LATER else values


def following_preset(rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> set[str]:
    """Return the keys in which rows differ only because they have other presets.

    There are none if a row has no preset. In each row, the preset must decide the key: a command
    may set it beside the preset, and runs may differ by chance in what no preset sets.
    """
    presets = dict.fromkeys(row.get(PRESET) for row in rows)
    if len(presets) < 2 or None in presets:
        return set()
    decided_sets = [{*_names(row.get(PRESET_DECIDES))} for row in rows]
    decided = set.intersection(*decided_sets)
    by_preset = [[row for row in rows if row[PRESET] == preset] for preset in presets]
    return {
        key
        for key in keys
        if any(_is_same_key(key, name) for name in decided)
        and kinds(rows, [key]) > 1
        and all(kinds(same, [key]) == 1 for same in by_preset)
    }


def _names(column: Any) -> list[str]:
    """Return the names in a list, or in the text of one, as columns of runs have it."""
    return re.findall(r"[\w.]+", str(column or ""))


def _is_same_key(key: str, name: str) -> bool:
    """Return True if a group or key is the key, its group, or what an axis of that name shows."""
    return key == name or key.startswith(f"{name}.") or name.endswith(f".{key}")


def kinds(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """Count the distinct combinations of values that the rows have under `keys`."""
    return len({tuple(row.get(key) for key in keys) for row in rows})


def _is_implied(key: str, options: set[str]) -> bool:
    group, _, inner = key.partition(".")
    return bool(inner) and (
        inner in options or (group in options and (inner != "name" or group != key))
    )


def content(record: AnyRecord) -> str | None:
    """Return the fingerprint of a run's data; None for older records."""
    return record.data and record.data.fingerprint


def cell(record: AnyRecord, name: str) -> str:
    """Format a run's value of an axis or key as the command line takes it."""
    if name in record.axes:
        value = record.axes[name]
        if value is None:
            return "-"
        return str(value).lower() if isinstance(value, bool) else str(value)
    if name == DATA:
        return content(record) or "-"
    if name == PRESET:
        return record.config.get(PRESET_KEY) or "-"
    if name == REPETITION:
        return str(record.repetition or 1)
    return measured_settings(record.config).get(name, "-").strip('"')


def _commit(record: AnyRecord) -> str:
    commit = str(record.commit)[:9]
    return f"{commit}+changes" if record.dirty else commit


def notes(records: Sequence[AnyRecord]) -> list[str]:
    """Return notes for the table of these records, such as several commits or shared GPUs."""
    lines: list[str] = []
    measured = [record for record in records if record.config]
    commits = set(map(_commit, measured))
    for name, values in (
        ("commits", commits),
        ("machines", {str(record.hardware) for record in measured}),
    ):
        if len(values) > 1:
            line = Message(
                "notes.several",
                f"measured on several {name}, not compared with one another:"
                f" {', '.join(sorted(values))}",
                what=name,
                found=sorted(values),
            )
            lines.append(line)
    inputs = [record.input or {} for record in measured if isinstance(record, VisionRecord)]
    if streamed := sum((read.get("train") or {}).get("mode") == "streamed" for read in inputs):
        line = Message(
            "notes.streamed",
            f"{streamed} of the runs had more images than fit in dataset.device_budget_bytes: they"
            " were copied to the device batch by batch",
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
            f"up to {max(skipped)} broken images were left out: see input in the records",
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
            f"up to {broken} broken rows were left out: see text_rows in the records",
            rows=broken,
        )
        lines.append(line)
    cut = max(rows, key=lambda counts: counts.cut or 0, default=TextRows())
    if cut.cut:
        left_out = f", {cut.left_out} of them left out: no label remained" if cut.left_out else ""
        line = Message(
            "notes.cut-rows",
            f"up to {cut.cut} of {cut.read} rows were cut at max_seq_len{left_out}"
            " (see text_rows in the records)",
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
            f"{limits.DISTURBED.sign} during {len(disturbed)} of the runs, other programs used"
            f" their GPUs ({', '.join(names)}): see gpu.disturbed_by in the records",
            runs=len(disturbed),
            names=names,
        )
        lines.append(line)
    if busy := [record for record in measured if limits.busy_share(record) > limits.BUSY_SHARE]:
        most = max(busy, key=limits.busy_share)
        cores = limits.busy_share(most) * (most.cores or 0)
        line = Message(
            "notes.loaded",
            f"{limits.LOADED.sign} other programs kept up to {cores:.1f} of {most.cores} cores busy"
            f" during {count(len(busy), 'run')}: see load in the records",
            cores=round(cores, 1),
            of=most.cores,
            runs=len(busy),
        )
        lines.append(line)
    return [*lines, *limits.notes(measured)]
