"""Worlds in which a claim of the papers holds, does not hold, and is undecided, as run folders.

A world is a function of a cell and a number: what the cell measures. Three numbers give the three verdicts.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.papers import experiments
from tests import records

Cell = dict[str, Any]
World = Callable[[Cell, Any], dict[str, Any]]  # what a cell measures for a number


@dataclass(frozen=True)
class Case:
    """A world, and the numbers for which the claim holds, does not hold, and is on its bound."""

    world: World
    holds: Any
    fails: Any
    undecided: Any


def only(column: str, *wanted: Any, **figure: Callable[[Any], Any]) -> World:
    """Figures by the number in the cells that have one of these values; the defaults of the records elsewhere."""
    return lambda cell, x: {key: of(x) for key, of in figure.items()} if cell[column] in wanted else {}


def slower(column: str, *wanted: Any) -> World:
    """Those cells take x times as long."""
    return only(column, *wanted, s=lambda x: x)


def scattered(x: Any) -> Any:
    """Two seeds that differ by a quarter, for a figure that has no scatter within a run."""
    return [0.9 * x, 1.1 * x]


def numbers(cell: Cell, x: Any) -> dict[str, Any]:
    """An image set's volume by precision, x at a time."""
    at = {"fp16": 1, "fp32": 2, "fp64": x if isinstance(x, list) else 2 * x}[cell["precision"]]
    return {"h2d": [1e6 * one for one in at] if isinstance(at, list) else 1e6 * at}


def gain(cell: Cell, x: float) -> dict[str, Any]:
    return {} if cell["pin_memory"] else {"s": {1: 1.5, 4: x}.get(cell["gpus"], 1.3)}


def scaling(strategy: str) -> World:
    return lambda cell, x: {"s": 1 / x} if cell["strategy"] == strategy and cell["gpus"] > 1 else {}


def large(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": x ** (1 - cell["gpus"])} if cell["dataset.image_size"] >= 300 else {}


def small(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": 1 / x} if cell["dataset.image_size"] < 300 and cell["gpus"] == 4 else {}


def pauses(cell: Cell, x: tuple[float, float]) -> dict[str, Any]:
    base, pause = x
    return {"s": base + pause, "first_batch": pause} if cell["loader"] == "torch" else {"first_batch": 0.0}


def nhwc(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": x} if (cell["loader"], cell["layout"]) == ("torch", "nhwc") else {}


def iterations(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": {1: 1.0, 2: 1.5}.get(cell["gpus"], 1.5 * x)}


def rows(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": {"grammar": 1.0, "instruct": x, "summarize": x * x}[cell["template"]]}


def doubling(cell: Cell, x: Any) -> dict[str, Any]:
    return {"memory": x} if (cell["method"], cell["gpus"]) == ("dpo", 2) else {}


def ending(cell: Cell, x: dict[int, str]) -> dict[str, Any]:
    return {"status": x[cell["gpus"]]} if cell["method"] == "qat" else {}


def traffic(cell: Cell, x: Any) -> dict[str, Any]:
    at = [1.0] if cell["method"] == "lora" else x if isinstance(x, list) else [x]
    return {"received": [1e6 * one for one in at]}


OTHERS = ("qlora", "dpo", "qat")
CASES = {
    "fp16-over-fp64": Case(slower("precision", "fp64"), 2.5, 1.5, 2.1),
    "fp32-over-fp64": Case(slower("precision", "fp64"), 1.5, 0.8, 1.0),
    "fp16-over-fp32": Case(slower("precision", "fp32"), 1.5, 0.8, 1.0),
    "fp16-accuracy": Case(only("precision", "fp16", accuracy=float), 0.98, 0.95, 0.97),
    "gpus-accuracy": Case(only("gpus", 2, 3, 4, accuracy=float), 0.98, 0.95, 0.97),
    "precision-volume": Case(numbers, 2, 1, [3.0, 4.6]),
    "pinned-gain": Case(slower("pin_memory", False), 1.5, 1.05, 1 / 0.84),
    "pinned-gain-by-gpus": Case(gain, 1.1, 2.0, 1.5),
    "ddp-ds-scales": Case(scaling("ddp_ds"), 1.5, 0.8, 1.0),
    "ddp-rr-does-not": Case(scaling("ddp_rr"), 1.0, 1.5, 1.1),
    "ddp-does-not": Case(scaling("ddp"), 1.0, 1.5, 1.1),
    "large-images-pay": Case(large, 1.3, 0.8, 1.0),
    "small-images-do-not": Case(small, 0.9, 1.5, 1.05),
    "pinned-copies": Case(only("pin_memory", False, copy_s=float), 5.0, 0.2, 1.0),
    "pinned-synchronises": Case(only("pin_memory", True, sync_s=float), 10.0, 0.1, 0.5),
    "nccl-by-gpus": Case(only("gpus", 4, comm_s=float), 9.0, 0.1, 1.0),
    "dali-over-dataloader": Case(slower("loader", "torch"), 1.5, 0.8, 1.0),
    "dataloader-pauses": Case(pauses, (1.0, 0.5), (1.5, 0.1), (1.05, 0.5)),
    "nhwc-level-with-dali": Case(nhwc, 0.9, 1.5, 1.05),
    "nhwc-over-nchw": Case(slower("layout", "nchw"), 1.5, 0.8, 1.0),
    "loss-alike": Case(only("precision", "fp16", loss=float), 1.0, 1.5, 1.1),
    "iteration-by-gpus": Case(iterations, 1.0, 1.5, 1.1),
    "iteration-by-rows": Case(rows, 1.5, 0.8, 1.0),
    "pinned-tuning": Case(slower("pin_memory", False), 1.0, 1.2, 1.05),
    "lora-over-dpo": Case(slower("method", "dpo"), 1.5, 1.1, 1.3),
    "dpo-memory-doubles": Case(doubling, 2.0, 1.2, scattered(1.8)),
    "qat-needs-4-gpus": Case(
        ending, {1: "oom", 2: "oom", 4: "ok"}, {1: "oom", 2: "ok", 4: "ok"}, {1: "oom", 2: "failed", 4: "ok"}
    ),
    "grammar-fastest": Case(slower("template", "instruct", "summarize"), 1.5, 0.8, 1.0),
    "bytes-over-lora": Case(only("method", "qat", "dpo", h2d=lambda x: x), 6e6, 2e6, scattered(4e6)),
    "lora-memory": Case(only("method", "dpo", memory=lambda x: x), 1.5, 0.8, scattered(1.0)),
    "qlora-memory": Case(only("method", "lora", "dpo", "qat", memory=lambda x: x), 1.5, 0.8, scattered(1.0)),
    "qat-slowest": Case(slower("method", "qat"), 1.5, 0.8, 1.0),
    "qat-memory": Case(only("method", "qat", memory=lambda x: x), 1.5, 0.8, scattered(1.0)),
    "launches-not-copies": Case(only("gpus", 1, 4, waiting=float), 0.8, 0.2, 0.5),
    "up-to-47-percent-time": Case(slower("method", *OTHERS), 3.0, 1.2, 1 / 0.53),
    "up-to-39-percent-memory": Case(only("method", *OTHERS, memory=lambda x: x), 2.0, 1.2, scattered(1 / 0.61)),
    "up-to-52-percent-traffic": Case(traffic, 4.0, 1.1, scattered(1 / 0.48)),
}
REDUCED = {
    "templates": {"template": ("instruct", "grammar")},
    "datasets": {},
    "loaders": {"dataset.image_size": (300,)},
}


def grid(name: str) -> list[Cell]:
    """The cells of an experiment, all or enough of them, with what it chooses for them."""
    experiment = experiments.load(name)
    swept = {**experiment.swept, **REDUCED.get(name, {})}
    cells = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
    return [{**experiment.chosen, **cell} for cell in cells]


def write(folder: Path, name: str, world: Callable[[Cell], dict[str, Any]], seeds: int = 10, **changes: Any) -> None:
    """Run folders of an experiment's cells; a figure that is a list is of as many seeds.

    Args:
        seeds: repetitions of one more setting, which show that runs of the machine differ by 0.3 %; no claim reads it.
    """
    kind = experiments.load(name).kind
    write_repeated(folder, name, seeds, **changes)
    for index, cell in enumerate(grid(name)):
        figures = world(cell)
        seeds = max((len(value) for value in figures.values() if isinstance(value, list)), default=1)
        for seed in range(seeds):
            of_seed = {key: value[seed] if isinstance(value, list) else value for key, value in figures.items()}
            record, step_s = run(kind, cell, of_seed, seed, changes)
            steps = None if step_s is None else records.steps(step_s)
            records.write(folder / f"{name}-{index}-{seed}", record, steps)


def write_repeated(folder: Path, name: str, seeds: int = 10, **changes: Any) -> None:
    for seed, off in enumerate(np.linspace(-0.005, 0.005, seeds).tolist()):
        cell = {**grid(name)[0], "lr": 0.077}
        record, step_s = run(experiments.load(name).kind, cell, repeated(1 + off), seed, changes)
        records.write(folder / f"{name}-repeated-{seed}", record, None if step_s is None else records.steps(step_s))


def repeated(factor: float) -> dict[str, Any]:
    """The figures of a run that is so many times as slow as others of its setting."""
    relative = dict.fromkeys(("s", "memory", "loss", "copy_s", "sync_s", "comm_s"), factor)
    return relative | {"accuracy": 0.98 * factor**0.1, "waiting": 0.5 * factor}


def run(kind: str, cell: Cell, figures: dict[str, Any], seed: int, changes: dict[str, Any]) -> tuple[Any, Any]:
    """A run's record, and its steps. Its samples lie alternately 10 % above and below their mean."""
    settings = {key.replace(".", "__"): value for key, value in cell.items()}
    own: dict[str, Any] = {"status": figures.get("status", "ok")}
    if "memory" in figures:
        own["peak_memory_bytes"] = {"max": round(5e9 * figures["memory"]), "per_rank": [], "kind": "cuda_allocated"}
    record = getattr(records, kind)(**{"seed": seed, **settings, **own, **changes})
    record["transfer_bytes"]["h2d"] = int(figures.get("h2d", 1e6))
    record["communication_bytes"]["all_reduce"] = int(figures.get("received", 0))
    if "profile" in cell:
        record["profile"] = profiled(cell["gpus"], figures)
    step_s = figures.get("s", 1.0) * waves(40)
    if kind == "llm":
        record["iteration_s"] |= {"mean": float(step_s[1:].mean()), "count": 39, "warmup_count": 1}
        return record, step_s
    epochs_s = figures.get("s", 1.0) + 0.1 * waves(21, 0.0)
    ended = np.cumsum(epochs_s)
    loss = 0.9 ** np.arange(21) * figures.get("loss", 1.0) * (waves(21) if "loss" in figures else 1.0)
    first_epoch = record["epochs"][0] | {"test_accuracy": figures.get("accuracy", 0.98), "test_samples": 10_000}
    record["epochs"] = [
        first_epoch
        | records.epoch_waits(index, figures.get("first_batch", 0.1))
        | {"epoch": index, "ended_s": end, "train_loss": fell}
        for index, (end, fell) in enumerate(zip(ended.tolist(), loss.tolist(), strict=True))
    ]
    return record | {"test_accuracy": first_epoch["test_accuracy"], "total_s": float(ended[-1])}, None


def waves(count: int, mean: float = 1.0, depth: float = 0.1) -> np.ndarray:
    """The mean, alternately more and less (count,), after a first value at it."""
    return mean + np.concatenate([[0.0], depth * (-1.0) ** np.arange(count - 1)])


def profiled(gpus: int, figures: dict[str, Any]) -> dict[str, Any]:
    """A profile of so many ranks, which differ by 5 % either way."""
    off = [1 + 0.05 * (-1) ** rank for rank in range(gpus)]
    waiting = [figures.get("waiting", 0.5) + 0.01 * (-1) ** rank for rank in range(gpus)]
    rows = [
        {
            ("copy", "memcpy Host-to-Device"): figures.get("copy_s", 1.0) * off[rank],
            ("api", "cudaStreamSynchronize"): figures.get("sync_s", waiting[rank]) * off[rank],
            ("api", "cudaLaunchKernel"): 0.0,
            ("api", "cudaMemcpyAsync"): (1 - waiting[rank]) * off[rank],
        }
        for rank in range(gpus)
    ]
    return records.profile(rows, [figures.get("comm_s", 1.0) * one for one in off])
