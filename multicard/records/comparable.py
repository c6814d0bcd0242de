"""Which runs may be compared: those that differ in one thing, on the same machine and commit."""

import json
from typing import Any

from multicard.config.base import NOT_IDENTITY, ProfileWindow
from multicard.config.job import count
from multicard.config.keys import flat
from multicard.config.placement import CROWDED
from multicard.measure import formulas
from multicard.records.probes import is_probe

DATA = "data"  # the fingerprint of the data, as a column of tables
REPETITION = "repetition"  # too
HAVE_DATA = ("dataset", "tokenizer", "model", "weights")  # groups and axes that bring other data with them
APART = 0.02  # share by which counted and profiled bytes may differ without a note

# The marks of runs, in tables and in `notes`: shared its GPUs with others; others kept its cores busy; more CPU ranks
# than cores; of an efficiency that cannot be; traced by a profiler while it trained
DISTURBED, LOADED, CROWD, DOUBTFUL, PROFILED = "!", "&", ">", "?", "t"
PROFILED_MEANING = "traced by a profiler while it trained: its times are longer than without"
BUSY_SHARE = 0.1  # of a run's cores, for others or stolen from it, above which it is marked
DOUBTFUL_MEANING = (
    f"above {formulas.DOUBTFUL_EFFICIENCY:.0%} of the ideal, which more GPUs alone cannot give: the run on one was "
    "slower for another cause (fewer cores, load of others, clocks); measure it again"
)


def measured_settings(config: dict[str, Any]) -> dict[str, str]:
    """A configuration as "group.key" to JSON text, without keys that do not change the measurement."""
    return {key: json.dumps(value) for key, value in flat(config).items() if key.partition(".")[0] not in NOT_IDENTITY}


def reference(result: dict[str, Any], records: list[dict[str, Any]], **axes: Any) -> dict[str, Any] | None:
    """The `ok` record that has these values on `axes` and is like `result` in all else, data and machine too; of
    several repetitions the same one. A probe is none."""
    measured = [r for r in records if r["status"] == "ok" and not is_probe(r.get("config", {}), r.get("folder", ""))]
    alike = [r for r in measured if _all_but(r, [*axes]) == _all_but(result, [*axes])]
    alike = [r for r in alike if all(r["axes"].get(axis, value) == value for axis, value in axes.items())]
    return min(alike, key=lambda r: r.get(REPETITION) != result.get(REPETITION), default=None)


def _all_but(result: dict[str, Any], axes: list[str]) -> dict[str, Any]:
    rest = {
        key: value
        for key, value in measured_settings(result.get("config", {})).items()
        if key.partition(".")[0] not in axes
    }
    threads = None if "gpus" in axes else result.get("threads")  # the cores are shared by another number of ranks
    origin = [result["axes"].get("device"), *(result.get(key) for key in ("hardware", "commit", "dirty"))]
    return rest | {"": [*origin, content(result), threads]}


def varied(records: list[dict[str, Any]], always: tuple[str, ...]) -> list[str]:
    """The axes to show, those in `always` and those that differ, and then the keys that differ beside them.

    An axis that was not chosen is not shown where its key was left alone: torchtune's recipe, which follows from the
    number of GPUs, or the device.
    """
    configs = {id(result): measured_settings(result["config"]) for result in records if "config" in result}
    keys = list(dict.fromkeys(key for config in configs.values() for key in config))
    differ = [key for key in keys if len({config.get(key) for config in configs.values()}) > 1]
    names = list(dict.fromkeys(name for result in records for name in result["axes"]))
    chosen_for_us = {
        name
        for result in records
        for name, value in result["axes"].items()
        if id(result) in configs and name in keys and configs[id(result)].get(name) != json.dumps(value)
    }
    hidden = chosen_for_us - set(differ)
    apart = {name for name in names if len({str(result["axes"].get(name)) for result in records}) > 1}
    axes = [name for name in names if name in always or name in apart - hidden]
    groups = {key.partition(".")[0] for key in differ if key.endswith(".name")}  # another option has other keys
    keys = [key for key in differ if key not in names and key.partition(".")[2] not in names]
    shown = axes + [key for key in keys if key.partition(".")[0] not in groups]
    bringing = [name for name in shown if name.partition(".")[0] in HAVE_DATA]
    with_content = [result for result in records if content(result) is not None]  # refused runs have none
    rows, with_data = (
        {tuple(cell(result, name) for name in names) for result in with_content}
        for names in (bringing, [*bringing, DATA])
    )
    repeated = len({result.get(REPETITION) or 1 for result in records}) > 1
    return shown + [DATA] * (len(with_data) > len(rows)) + [REPETITION] * repeated


def content(result: dict[str, Any]) -> str | None:
    """The fingerprint of a run's data; None of older records."""
    return (result.get("data") or {}).get("fingerprint")


def busy_share(others_cores: float | None, stolen_cores: float | None, cores: int | None) -> float:
    """The share of the run's cores that others had while it was measured, by the record's `load` and `cores`."""
    return ((others_cores or 0.0) + (stolen_cores or 0.0)) / cores if cores else 0.0


def crowded(device: Any, ranks: int, cores: int | None) -> bool:
    """Whether `ranks` on a node were more CPU ranks than it had cores."""
    return device == "cpu" and cores is not None and ranks > cores


def marks(result: dict[str, Any]) -> str:
    """What the status of a run is marked with."""
    signs = {
        DISTURBED: bool(disturbers(result)),
        LOADED: _busy_share(result) > BUSY_SHARE,
        CROWD: crowded(result["axes"].get("device"), result["axes"]["gpus"], result.get("cores")),
        PROFILED: _traced(result),
    }
    return "".join(sign for sign, applies in signs.items() if applies)


def _traced(result: dict[str, Any]) -> bool:
    return (result.get("config", {}).get("profile") or {}).get("window") == ProfileWindow.start


def _busy_share(result: dict[str, Any]) -> float:
    load = result.get("load") or {}
    return busy_share(load.get("others_cores"), load.get("stolen_cores"), result.get("cores"))


def disturbers(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Foreign processes that were seen on the run's GPUs."""
    return (result.get("gpu") or {}).get("disturbed_by", [])


def cell(result: dict[str, Any], name: str) -> str:
    """A run's value of an axis or key, as the command line takes it."""
    if name in result["axes"]:
        value = result["axes"][name]
        if value is None:
            return "-"
        return str(value).lower() if isinstance(value, bool) else str(value)
    if name == DATA:
        return content(result) or "-"
    if name == REPETITION:
        return str(result.get(REPETITION) or 1)
    return measured_settings(result.get("config", {})).get(name, "-").strip('"')


def notes(records: list[dict[str, Any]]) -> list[str]:
    """Notes below a table of these records: several commits or machines, shared GPUs, restarts."""
    lines = []
    measured = [result for result in records if "config" in result]
    commits = sorted({str(r.get("commit"))[:9] + ("+changes" if r.get("dirty") else "") for r in measured})
    if len(commits) > 1:
        lines.append(f"measured on several commits, not compared with one another: {', '.join(commits)}")
    hardware = sorted({str(result.get("hardware")) for result in measured})
    if len(hardware) > 1:
        lines.append(f"measured on several machines, not compared with one another: {', '.join(hardware)}")
    inputs = [result.get("input") or {} for result in measured]
    streamed = sum((read.get("train") or {}).get("mode") == "streamed" for read in inputs)
    if streamed:
        lines.append(f"{streamed} with more images than dataset.device_budget_bytes: they crossed batch by batch")
    skipped = [sum(part["skipped"] for part in (read.get("decoded") or {}).values()) for read in inputs]
    if any(skipped):
        lines.append(f"up to {max(skipped)} broken images left out: see input in the records")
    rows = [result.get("text_rows") or {} for result in measured]
    most = max(rows, key=lambda counts: counts.get("cut") or 0, default={})
    if most.get("cut"):
        left_out = f", {most['left_out']} of them left out: no label remained" if most["left_out"] else ""
        about = f"up to {most['cut']} of {most['read']} rows cut at max_seq_len{left_out}"
        lines.append(f"{about} (see text_rows in the records)")
    disturbed = [result for result in measured if disturbers(result)]
    if disturbed:
        who = sorted({str(other["name"] or other["pid"]) for result in disturbed for other in disturbers(result)})
        shared = f"{DISTURBED} others used the GPUs of {len(disturbed)} while they were measured ({', '.join(who)})"
        lines.append(f"{shared}: see gpu.disturbed_by in the records")
    lines += _load_notes(measured)
    traced = sum(map(_traced, measured))
    if traced:
        lines.append(f"{PROFILED} {PROFILED_MEANING}, in {count(traced, 'run')} (profile.window=start)")
    off = max((profiled_off(result) for result in measured), key=abs, default=0.0)
    if abs(off) > APART:
        lines.append(f"profiled bytes to the device are {off:+.0%} off those counted: see profile.h2d in the records")
    stopped = [result for result in measured if len(result.get("segments", [])) > 1]
    if stopped:
        moved = sum(len({segment.get("commit") for segment in result["segments"]}) > 1 for result in stopped)
        anew = sum(not any(segment.get("steps") for segment in result["segments"][:-1]) for result in stopped)
        parts = [f"{anew} of them from the start"] * (anew > 0) + [f"{moved} of them on another commit"] * (moved > 0)
        lines.append(", ".join([f"{len(stopped)} stopped and started again", *parts]) + ": see segments in the records")
    return lines


def _load_notes(records: list[dict[str, Any]]) -> list[str]:
    """Others on the machine, other runs of the sweep, and ranks that took turns."""
    lines = []
    busy = [result for result in records if _busy_share(result) > BUSY_SHARE]
    if busy:
        most = max(busy, key=_busy_share)
        cores = f"up to {_busy_share(most) * most['cores']:.1f} of {most['cores']} cores"
        lines.append(f"{LOADED} others kept {cores} busy during {count(len(busy), 'run')}: see load in the records")
    crowd = sum(CROWD in marks(result) for result in records)
    if crowd:
        lines.append(f"{CROWD} {CROWDED}, in {count(crowd, 'run')}")
    packed = sum(bool(result.get("beside")) for result in records)
    if packed:
        were = f"{count(packed, 'run')} {'was' if packed == 1 else 'were'}"
        lines.append(f"{were} measured beside other runs of the sweep, on the same machine")
    return lines


def profiled_off(result: dict[str, Any]) -> float:
    """By what share the bytes to the device that a profiler saw differ from those counted; 0 where it saw none."""
    return ((result.get("profile") or {}).get("h2d") or {}).get("disagreement") or 0.0
