"""`experiment=all dry_run=true`: what all experiments take at full scale on the papers' node. Nothing is started, and
this machine is not asked."""

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from multicard import workloads
from multicard.config.base import NOT_IDENTITY
from multicard.config.repetition import count
from multicard.records import text_table
from multicard.records.text_table import in_bytes
from multicard.run.workload import Workload
from multicard.sweep import printed_costs
from multicard.sweep.axes import Axes
from multicard.workloads import ALL, CONF, WORKLOADS

PLACE = re.compile(r"(Tables?|Figs?\.) \d+((,| and| to) \d+)*")  # in the papers, in an experiment's first comment
COMPOSED = ("dataset", "model", "preset", "optimizer")  # groups whose options set what `printed_costs` reads


@dataclass(frozen=True)
class Cost:
    """What one experiment takes, or several.

    place: in the papers. cells: of which so many `again` measure what an earlier experiment has measured.
    gpus: the least and the most of a cell. time_s: one cell after the other, of those whose time is `known`.
    limit_gpu_s: what `time_min` lets the others take. data: bytes of each data set.
    host_bytes: the most of a cell.
    """

    name: str
    place: str
    cells: int = 0
    again: int = 0
    known: int = 0
    gpus: tuple[int, int] = (0, 0)
    time_s: float = 0.0
    gpu_s: float = 0.0
    limit_gpu_s: float = 0.0
    record_bytes: float = 0.0
    host_bytes: float = 0.0
    data: dict[str, float | None] = field(default_factory=dict)

    @property
    def unknown(self) -> int:
        return self.cells - self.again - self.known

    @property
    def disk_bytes(self) -> float:
        return self.record_bytes + sum(size or 0 for size in self.data.values())

    @property
    def gpus_in_words(self) -> str:
        low, high = self.gpus
        return str(low) if low == high else f"{low} to {high}"


def of_experiment(workload: Workload, name: str, words: Sequence[str] = (), seen: set[str] | None = None) -> Cost:
    """The cost of one experiment.

    Args:
        words: of the command beside the experiment's name.
        seen: settings that are measured already; those of this experiment are added.

    Raises:
        HydraException: the words cannot be composed.
    """
    seen = set() if seen is None else seen
    cost = Cost(name, place(name))
    for config in configurations(workload, name, words):
        cost = _added(cost, config, seen)
    return cost


@cache
def place(name: str) -> str:
    """The tables and figures of an experiment, from its file's first comment; empty where that names none."""
    comment = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()[1]
    match = PLACE.search(comment)
    return match[0] if match else ""


def of_all(workload: Workload, words: Sequence[str]) -> list[Cost]:
    """The cost of each experiment of an entry, those of tables first, and then by their numbers."""

    def order(name: str) -> tuple[bool, int, str]:
        number = re.search(r"\d+", place(name))
        return not place(name).startswith("Table"), int(number[0]) if number else 1000, name

    seen = set[str]()
    return [of_experiment(workload, name, words, seen) for name in sorted(workloads.experiments(workload), key=order)]


def text(workload: Workload, words: Sequence[str]) -> list[str]:
    """The plan of all experiments of both entries, as lines.

    Args:
        words: of the command of `workload`; the other entry's experiments are taken as they are.
    """
    own = [word for word in words if not word.startswith(("-", "experiment=", "dry_run="))]
    costs = [cost for each in WORKLOADS for cost in of_all(each, own if each is workload else ())]
    total = Cost("sum", "")
    for cost in costs:
        total = _sum(total, cost)
    others = [each.entry for each in WORKLOADS if each is not workload and own]
    commands = [
        f"python {each.entry} experiment={ALL} {' '.join(own) if each is workload else ''}".strip()
        for each in WORKLOADS
    ]
    return [
        "dry_run=true: nothing is started, and this machine is not asked. All experiments on the papers' node,",
        f"{printed_costs.GPUS} x H100 94 GB and {in_bytes(printed_costs.HOST_BYTES)} of memory:",
        *text_table.text(HEADINGS, [*map(_row, costs), _row(total)], text_table.terminal_width()),
        *(line for note in _notes(total) for line in textwrap.wrap(note, WIDTH)),
        *(f"{' '.join(own)}: not of {entry}, whose experiments are taken as they are" for entry in others),
        *(f"to measure all: {command}" for command in commands),
        "experiment=NAME dry_run=true checks one of them on this machine",
    ]


WIDTH = 120  # of the notes
HEADINGS = ("experiment", "in the papers", "cells", "shared", "GPUs", "hours", "GPU hours", "unknown", "disk", "memory")


def _row(cost: Cost) -> list[str]:
    known = [f"{time_s / 3600:,.1f}" if cost.known else "-" for time_s in (cost.time_s, cost.gpu_s)]
    counts = [str(number) if number else "-" for number in (cost.cells, cost.again)]
    sizes = [in_bytes(size) if size else "-" for size in (cost.disk_bytes, cost.host_bytes)]
    return [cost.name, cost.place, *counts, cost.gpus_in_words, *known, str(cost.unknown or "-"), *sizes]


def _notes(total: Cost) -> list[str]:
    known = {name: "of unknown size" if size is None else in_bytes(size) for name, size in total.data.items()}
    sizes = [f"{name} {size}" for name, size in known.items() if total.data[name] != 0]
    scaled = "scaled by epochs, rows and GPUs; without starts"
    notes = [
        f"hours: one cell after the other, by the times of Tables 2, 3 and 5, {scaled}",
        "shared: cells that an experiment above measures, and that are not measured again",
        f"disk: {', '.join([*sizes, f'records {in_bytes(total.record_bytes)}'])}",
    ]
    if total.unknown:
        limit = f"{total.limit_gpu_s / 3600:,.0f} GPU hours"
        notes.append(f"unknown: cells of which the papers tell no time; on SLURM time_min ends them within {limit}")
    if total.host_bytes:
        notes.append("memory: of the node, for the images that each process keeps (dataset.cache=process)")
    return notes


def _added(cost: Cost, config: dict[str, Any], seen: set[str]) -> Cost:
    """The cost with one more cell."""
    measured = {key: value for key, value in config.items() if key not in NOT_IDENTITY or key == "repetition"}
    setting, gpus = json.dumps(measured, sort_keys=True), config["gpus"]
    time_s, again = printed_costs.seconds(config), setting in seen
    seen.add(setting)
    cell = Cost(
        cost.name,
        cost.place,
        cells=1,
        again=int(again),
        known=int(time_s is not None and not again),
        gpus=(gpus, gpus),
        data=dict([printed_costs.data_bytes(config)]),
        host_bytes=printed_costs.host_bytes(config),
    )
    if not again:
        cell = replace(
            cell,
            time_s=time_s or 0.0,
            gpu_s=gpus * (time_s or 0.0),
            limit_gpu_s=0.0 if time_s is not None else 60.0 * gpus * config["time_min"],
            record_bytes=printed_costs.record_bytes(config),
        )
    return _sum(cost, cell)


def _sum(a: Cost, b: Cost) -> Cost:
    least = [low for low, _ in (a.gpus, b.gpus) if low]
    added = ("cells", "again", "known", "time_s", "gpu_s", "limit_gpu_s", "record_bytes")
    return replace(
        a,
        **{name: getattr(a, name) + getattr(b, name) for name in added},
        gpus=(min(least, default=0), max(a.gpus[1], b.gpus[1])),
        host_bytes=max(a.host_bytes, b.host_bytes),
        data={**a.data, **b.data},
    )


def configurations(workload: Workload, name: str, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The configuration of each cell of an experiment. Hydra composes the first alone, which takes a tenth of a second,
    and the options of COMPOSED: of other groups it takes the option's name."""
    times = next((count(word.removeprefix("repeat=")) for word in words if word.startswith("repeat=")), 1)
    smoke = OmegaConf.load(CONF / f"{workload.entry.removesuffix('.py')}.yaml").hydra.experiment.smoke
    axes, shrunk = Axes.of_experiment(name, smoke), "scale=smoke" in words
    cells = axes.cells([f"experiment={name}", *words], shrunk, times, tell=lambda _: None)
    swept = {key for key, values in _values(cells).items() if len(values) > 1}
    groups = workloads.groups(workload)

    def taken_by_name(word: str) -> bool:
        key, _, value = word.partition("=")
        return key in swept and key not in COMPOSED and (key not in groups or value in groups[key])

    for overrides in cells:
        config = deepcopy(_composed(workload.entry, tuple(word for word in overrides if not taken_by_name(word))))
        for word in filter(taken_by_name, overrides):
            key, _, value = word.partition("=")
            _set(config, [*key.split("."), *(["name"] if key in groups else [])], yaml.safe_load(value))
        yield config


def _values(cells: Sequence[Sequence[str]]) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for overrides in cells:
        for word in overrides:
            key, _, value = word.partition("=")
            values.setdefault(key, set()).add(value)
    return values


def _set(config: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, last = path
    for name in parents:
        if not isinstance(config.get(name), dict):
            config[name] = {}
        config = config[name]
    config[last] = value


@cache
def _composed(entry: str, words: tuple[str, ...]) -> dict[str, Any]:
    workloads.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(entry.removesuffix(".py"), list(words))
    content: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    return content
