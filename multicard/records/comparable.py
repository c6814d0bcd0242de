"""Which runs may be compared: those that differ in one thing, on the same machine and commit."""

import json
from typing import Any

from multicard.config.base import NOT_IDENTITY

APART = 0.02  # share by which counted and profiled bytes may differ without a note

DISTURBED = "!"  # the mark of a run that shared its GPUs with others, in tables and in `notes`


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration as "group.key" to JSON text, without keys that do not change the measurement."""
    values: dict[str, str] = {}
    for key, value in config.items():
        if not prefix and key in NOT_IDENTITY:
            continue
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": json.dumps(value)}
    return values


def reference(result: dict[str, Any], records: list[dict[str, Any]], axis: str, value: Any) -> dict[str, Any] | None:
    """The `ok` record that has `value` on `axis` and is like `result` in all else: configuration, device, commit."""
    wanted = _all_but(result, axis)
    return next(
        (r for r in records if r["status"] == "ok" and r["axes"].get(axis) == value and _all_but(r, axis) == wanted),
        None,
    )


def _all_but(result: dict[str, Any], axis: str) -> dict[str, Any]:
    rest = {k: v for k, v in flat(result.get("config", {})).items() if k != axis and not k.startswith(f"{axis}.")}
    return rest | {"": [result["axes"].get("device"), *(result.get(key) for key in ("hardware", "commit", "dirty"))]}


def varied(records: list[dict[str, Any]], always: tuple[str, ...]) -> list[str]:
    """The axes to show, those in `always` and those that differ, and then the keys that differ beside them.

    An axis that was not chosen is not shown where its key was left alone: torchtune's recipe, which follows from the
    number of GPUs, or the device.
    """
    configs = {id(result): flat(result["config"]) for result in records if "config" in result}
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
    return axes + [key for key in keys if key.partition(".")[0] not in groups]


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
    return flat(result.get("config", {})).get(name, "-").strip('"')


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
    disturbed = [result for result in measured if disturbers(result)]
    if disturbed:
        who = sorted({str(other["name"] or other["pid"]) for result in disturbed for other in disturbers(result)})
        shared = f"{DISTURBED} others used the GPUs of {len(disturbed)} while they were measured ({', '.join(who)})"
        lines.append(f"{shared}: see gpu.disturbed_by in the records")
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


def profiled_off(result: dict[str, Any]) -> float:
    """By what share the bytes to the device that a profiler saw differ from those counted; 0 where it saw none."""
    return ((result.get("profile") or {}).get("h2d") or {}).get("disagreement") or 0.0
