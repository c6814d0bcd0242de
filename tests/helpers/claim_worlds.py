"""Worlds in which a claim of the papers holds, does not hold, and is undecided, as run folders.

A world is a function of a cell and a number: what the cell measures. Three numbers give the three verdicts.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import experiments
from tests.helpers import records

Cell = dict[str, Any]
World = Callable[[Cell, Any], dict[str, Any]]  # what a cell measures for a number


@dataclass(frozen=True)
class Case:
    """A world, and the numbers for which the claim holds, does not hold, and is on its bound."""

    world: World
    holds: Any
    fails: Any
    undecided: Any


def where(conditions: Cell, **figures: Callable[[Any], Any]) -> World:
    """Figures by the number in the cells that meet all conditions; the defaults of the records elsewhere.

    Args:
        conditions: by column, a value, a tuple of values or a test of them.
    """

    def meets(value: Any, wanted: Any) -> bool:
        if callable(wanted):
            return bool(wanted(value))
        return value in (wanted if isinstance(wanted, tuple) else (wanted,))

    def world(cell: Cell, x: Any) -> dict[str, Any]:
        chosen = all(meets(cell[column], wanted) for column, wanted in conditions.items())
        return {name: figure(x) for name, figure in figures.items()} if chosen else {}

    return world


def only(column: str, *wanted: Any, **figures: Callable[[Any], Any]) -> World:
    return where({column: wanted}, **figures)


def same(x: Any) -> Any:
    return x


def inverse(x: float) -> float:
    return 1 / x


def several(gpus: int) -> bool:
    return gpus > 1


def beyond_2(gpus: int) -> bool:
    return gpus > 2


def slower(column: str, *wanted: Any) -> World:
    """Those cells take x times as long."""
    return where({column: wanted}, s=same)


def scattered(x: Any) -> Any:
    """Two seeds that differ by a quarter, for a figure that has no scatter within a run."""
    return [0.9 * x, 1.1 * x]


def numbers(cell: Cell, x: Any) -> dict[str, Any]:
    """An image set's volume by precision, x at a time."""
    at = {"fp16": 1, "fp32": 2, "fp64": x if isinstance(x, list) else 2 * x}[cell["precision"]]
    return {"h2d": [1e6 * one for one in at] if isinstance(at, list) else 1e6 * at}


def by_precision(cell: Cell, x: Any) -> dict[str, Any]:
    """Memory that grows x times with each doubling of the precision; 2 times, where x is of two seeds, from fp16."""
    if cell["precision"] == "fp64":
        return {"memory": [2 * one for one in x] if isinstance(x, list) else x * x}
    return {"memory": 1.0 if cell["precision"] == "fp16" else 2.0 if isinstance(x, list) else x}


def gain(cell: Cell, x: float) -> dict[str, Any]:
    return {} if cell["pin_memory"] else {"s": {1: 1.5, 4: x}.get(cell["gpus"], 1.3)}


def large(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": x ** (1 - cell["gpus"])} if cell["dataset.image_size"] >= 300 else {}


def pauses(cell: Cell, x: float) -> dict[str, Any]:
    return {"first_batch": 0.1 * x if cell["loader"] == "torch" and cell["gpus"] > 2 else 0.1}


def layout_alone(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": {"nchw": 1.5, "nhwc": x}[cell["layout"]]} if cell["loader"] == "torch" else {}


def multiplied(strategy: str, figure: str, base: float) -> World:
    def world(cell: Cell, x: Callable[[int], Any]) -> dict[str, Any]:
        times = x(cell["gpus"]) if cell["strategy"] == strategy else 1
        return {figure: [base * one for one in times] if isinstance(times, list) else base * times}

    return world


def shares_of_four(cell: Cell, x: float) -> dict[str, Any]:
    small = cell["dataset.image_size"] == 100
    return {"launch_s": x if small else 1.0, "comm_s": x if small else 1.0, "copy_s": 5.0}


def tensors(cell: Cell, x: Any) -> dict[str, Any]:
    """So many times the bytes of the images as tensors, by 21 epochs."""
    whole = 21 * 60_000 * 3 * cell["dataset.image_size"] ** 2 * 4
    return {"h2d": [whole * one for one in x] if isinstance(x, list) else whole * x}


def calls(x: float) -> float:
    """Seconds of AllGather, with which the calls of Fig. 15 take x times as long: 2.5 s, of which 1 s is AllGather."""
    return 2.5 * x - 1.5


def calls_by_both(cell: Cell, x: float) -> dict[str, Any]:
    """Methods differ x times, templates by a fifth."""
    return {
        "gather_s": calls((x if cell["method"] == "qat" else 1.0) * (1.2 if cell["template"] == "instruct" else 1.0))
    }


def falling_calls(figure: str) -> World:
    """A metric of a profile that falls x times from fp64 to fp32, and 4 times to fp16."""
    return lambda cell, x: {"profiled": True, figure: {"fp64": 4.0, "fp32": 4.0 / x, "fp16": 1.0}[cell["precision"]]}


def destroying(cell: Cell, x: float) -> dict[str, Any]:
    return {"profiled": True, "destroy_s": {"fp64": 4.0 * x, "fp32": 4.0, "fp16": 1.0}[cell["precision"]]}


def copies_of_fp64(cell: Cell, x: float) -> dict[str, Any]:
    at = x if cell["precision"] == "fp64" else 1.0
    return {"profiled": True, "copy_s": at, "memcpy_s": at}


def launches_of_instruct(cell: Cell, x: float) -> dict[str, Any]:
    instruct = cell["template"] == "instruct"
    return {"profiled": True, "launch_s": x if instruct else 1.0, "sync_s": 1.2 if instruct else 1.0}


def without_memory(cell: Cell, x: dict[tuple[str, int], str]) -> dict[str, Any]:
    large = cell["dataset.image_size"] == 500
    return {"status": x.get((cell["loader"], cell["gpus"]), "ok")} if large else {}


def qlora_then_qat(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": x} if cell["method"] == {1: "qlora", 4: "qat"}[cell["gpus"]] else {}


def sizes(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": {"grammar": 1.0, "instruct": 374 / 135 * x, "summarize": 341 / 135 * x}[cell["template"]]}


def stays(cell: Cell, x: Any) -> dict[str, Any]:
    """LoRA's memory, after a slight fall on 2 GPUs."""
    return {"memory": {1: 1.1, 2: 1.0, 3: 1.0, 4: x}[cell["gpus"]]} if cell["method"] == "lora" else {}


def instruct_memory(cell: Cell, x: Any) -> dict[str, Any]:
    """DPO takes more with summarize, LoRA less."""
    lists = x if isinstance(x, list) else [x]
    at = [one if cell["method"] == "dpo" else 1 / one for one in lists]
    differs = cell["template"] == "summarize" and cell["method"] in ("dpo", "lora")
    return {"memory": at if len(at) > 1 else at[0]} if differs else {}


def iterations(cell: Cell, x: float) -> dict[str, Any]:
    return {"s": {1: 1.0, 2: 1.5}.get(cell["gpus"], 1.5 * x)}


def ending(cell: Cell, x: dict[int, str]) -> dict[str, Any]:
    return {"status": x[cell["gpus"]]} if cell["method"] == "qat" else {}


def traffic(cell: Cell, x: Any) -> dict[str, Any]:
    at = [1.0] if cell["method"] == "lora" else x if isinstance(x, list) else [x]
    return {"received": [1e6 * one for one in at]}


OTHERS = ("qlora", "dpo", "qat")
CASES = {
    "fp16-over-fp64": Case(slower("precision", "fp64"), 2.5, 1.5, 1.94),
    "fp32-over-fp64": Case(slower("precision", "fp64"), 1.7, 1.2, 1.42),
    "fp16-over-fp32": Case(slower("precision", "fp32"), 1.5, 0.8, 1.0),
    "precision-accuracy": Case(only("precision", "fp16", accuracy=float), 0.98, 0.95, 0.97),
    "precision-memory": Case(by_precision, 2.0, 0.8, scattered(1.0)),
    "precision-volume": Case(numbers, 2, 1, [3.0, 4.6]),
    "precision-copies": Case(falling_calls("copy_s"), 2.0, 1.2, 1.6),
    "precision-memcpy": Case(falling_calls("memcpy_s"), 2.0, 1.2, 1.6),
    "precision-broadcast": Case(falling_calls("broadcast_s"), 2.0, 1.2, 1.6),
    "precision-event-destroy": Case(destroying, 4.0, 2.0, 3.0),
    "precision-copies-most": Case(copies_of_fp64, 4.0, 0.3, 1.0),
    "accuracy-within-20-epochs": Case(where({}, accuracy=same), 0.99, 0.95, 0.98),
    "accuracy-within-3-epochs": Case(where({}, accuracy=same), 0.99, 0.95, 0.98),
    "pinned-gain": Case(slower("pin_memory", False), 1.5, 1.02, 1.07),
    "pinned-gain-by-gpus": Case(gain, 1.1, 2.0, 1.5),
    "ddp-ds-scales": Case(where({"strategy": "ddp_ds", "gpus": several}, s=inverse), 1.5, 0.8, 1.0),
    "ddp-rr-does-not": Case(where({"strategy": "ddp_rr", "gpus": several}, s=inverse), 1.0, 1.5, 1.1),
    "ddp-does-not": Case(where({"strategy": "ddp", "gpus": several}, s=inverse), 1.0, 1.5, 1.1),
    "ddp-multiplies-work": Case(
        multiplied("ddp", "trained", 1000), lambda n: n, lambda _: 1, lambda n: scattered(1.0 + 0.99 * (n - 1))
    ),
    "ddp-rr-copies-everything": Case(
        multiplied("ddp_rr", "h2d", 1e6), lambda n: n, lambda _: 1, lambda n: scattered(1.0 + 0.99 * (n - 1))
    ),
    "ddp-ds-copies-less": Case(only("strategy", "ddp", "ddp_rr", h2d=same), 4e6, 0.8e6, scattered(1e6)),
    "large-images-pay": Case(large, 1.3, 0.8, 1.0),
    "small-images-do-not": Case(where({"dataset.image_size": (100, 200), "gpus": 4}, s=inverse), 0.9, 1.5, 1.05),
    "large-images-take-longer": Case(where({"dataset.image_size": lambda size: size > 100}, s=same), 2.0, 0.8, 1.0),
    "large-images-are-more-accurate": Case(
        only("dataset.image_size", 200, 300, 400, 500, accuracy=float), 0.995, 0.96, 0.98
    ),
    "small-images-launch-and-gather": Case(shares_of_four, 4.0, 0.3, 1.0),
    "pinned-copies": Case(only("pin_memory", False, copy_s=float), 5.0, 0.2, 1.0),
    "pinned-synchronises": Case(only("pin_memory", True, sync_s=float), 10.0, 0.1, 0.5),
    "nccl-by-gpus": Case(only("gpus", 4, comm_s=float), 9.0, 0.1, 1.0),
    "pinned-nccl": Case(only("pin_memory", True, comm_s=float), 1.6, 0.5, 1.0),
    "nsys-costs-little": Case(where({}, nsys=same), 1.01, 1.3, 1.05),
    "fp64-converges-slower": Case(only("precision", "fp64", loss=float), 1.5, 0.6, 1.0),
    "loss-alike": Case(only("precision", "fp16", loss=float), 1.0, 1.5, 1.1),
    "dali-over-dataloader": Case(slower("loader", "torch"), 1.5, 0.8, 1.0),
    "dataloader-loses-beyond-2-gpus": Case(
        where({"loader": "torch", "layout": "nchw", "gpus": beyond_2}, s=same), 1.5, 0.8, 1.0
    ),
    "dali-does-not-lose": Case(where({"gpus": beyond_2}, s=same), 0.8, 1.5, 1.05),
    "dataloader-pauses": Case(pauses, 5.0, 0.2, 1.0),
    "dali-does-not-pause": Case(where({"loader": "dali"}, first_batch=same), 0.01, 0.5, 0.05),
    "reading-takes-long": Case(where({}, read_s=same), 10.0, 0.1, 0.05 * 21.9),
    "dataloader-needs-memory": Case(
        without_memory,
        {("torch", 2): "oom", ("torch", 4): "oom"},
        {("torch", 2): "oom"},
        {("torch", 2): "oom", ("torch", 4): "oom", ("dali", 2): "failed"},
    ),
    "dataloader-copies-alike": Case(tensors, 1.0, 0.5, scattered(0.99)),
    "nhwc-level-with-dali": Case(where({"loader": "torch", "layout": "nhwc"}, s=same), 0.9, 1.5, 1.05),
    "nhwc-explains-dali": Case(layout_alone, 1.0, 1.4, 1.05),
    "nhwc-loses-beyond-2-gpus": Case(
        where({"loader": "torch", "layout": "nhwc", "gpus": beyond_2}, s=same), 1.5, 0.8, 1.0
    ),
    "nhwc-over-nchw": Case(slower("layout", "nchw"), 1.5, 0.8, 1.0),
    "iteration-by-gpus": Case(iterations, 1.0, 1.5, 1.1),
    "total-by-gpus": Case(where({"gpus": several}, s=inverse), 1.5, 0.8, 1.0),
    "alpaca-longest": Case(only("template", "instruct", s=same), 1.5, 0.8, 1.0),
    "slimorca-longest": Case(slower("dataset", "slimorca"), 1.5, 0.8, 1.0),
    "pinned-tuning": Case(slower("pin_memory", False), 1.0, 1.2, 1.05),
    "launches-follow-iterations": Case(launches_of_instruct, 2.0, 0.5, 1.0),
    "synchronising-varies-less": Case(launches_of_instruct, 3.0, 1.05, 1.2),
    "pinned-tuning-copies": Case(only("pin_memory", True, copy_s=float), 1.2, 0.5, 1.0),
    "lora-fastest": Case(slower("method", *OTHERS), 1.5, 0.8, 1.0),
    "qlora-and-qat-slowest": Case(qlora_then_qat, 1.5, 0.8, 1.0),
    "qat-slower-than-dpo": Case(slower("method", "qat"), 1.5, 0.8, 1.0),
    "qlora-pays-with-time": Case(slower("method", "qlora"), 1.5, 0.8, 1.0),
    "grammar-fastest": Case(slower("template", "instruct", "summarize"), 1.5, 0.8, 1.0),
    "summarize-like-instruct": Case(slower("template", "summarize"), 1.0, 1.5, 1.25),
    "time-by-file-size": Case(sizes, 1.0, 0.5, 0.8),
    "time-falls-with-gpus": Case(where({"gpus": several}, s=inverse), 1.5, 0.8, 1.0),
    "lora-over-dpo": Case(slower("method", "dpo"), 1.5, 1.1, 1.2),
    "launches-not-copies": Case(only("method", "lora", "qlora", "dpo", "qat", waiting=float), 0.8, 0.2, 0.5),
    "copies-insignificant": Case(only("method", "lora", "qlora", "dpo", "qat", copy_s=float), 0.01, 0.5, 0.05),
    "calls-largest-for-qat": Case(only("method", "qat", gather_s=calls), 1.5, 0.8, 1.0),
    "lora-instruct-calls": Case(where({"method": "lora", "template": "instruct"}, gather_s=calls), 1.1, 1.5, 1.25),
    "first-calls": Case(where({}, event_s=same, launch_s=same, copy_s=lambda _: 0.1), 3.0, 0.5, 1.0),
    "methods-differ-more": Case(calls_by_both, 3.0, 1.05, 1.2),
    "dpo-and-qat-synchronise": Case(only("method", "dpo", "qat", sync_s=float), 9.0, 0.1, 0.5),
    "dpo-memory-doubles": Case(where({"method": "dpo", "gpus": 2}, memory=same), 2.0, 1.2, scattered(1.8)),
    "dpo-memory-falls": Case(where({"method": "dpo", "gpus": 2}, memory=same), 2.0, 1.2, scattered(1.6)),
    "lora-memory-stays": Case(stays, 1.0, 0.5, scattered(0.95)),
    "qat-needs-4-gpus": Case(
        ending,
        {1: "oom", 2: "oom", 3: "oom", 4: "ok"},
        {1: "oom", 2: "ok", 3: "ok", 4: "ok"},
        {1: "oom", 2: "failed", 3: "oom", 4: "ok"},
    ),
    "lora-memory": Case(only("method", "dpo", memory=same), 1.5, 0.8, scattered(1.0)),
    "qlora-memory": Case(only("method", "lora", "dpo", "qat", memory=same), 1.5, 0.8, scattered(1.0)),
    "qat-memory": Case(only("method", "qat", memory=same), 1.5, 0.8, scattered(1.0)),
    "grammar-memory": Case(only("template", "instruct", "summarize", memory=same), 1.5, 0.8, scattered(1.0)),
    "instruct-memory": Case(instruct_memory, 1.5, 0.8, scattered(1.0)),
    "bytes-over-lora": Case(only("method", "qat", "dpo", h2d=same), 6e6, 2e6, scattered(4e6)),
    "qat-bytes-like-dpo": Case(only("method", "qat", h2d=same), 1e6, 3e6, scattered(1.25e6)),
    "grammar-bytes": Case(only("template", "instruct", "summarize", h2d=same), 2e6, 0.5e6, scattered(1e6)),
    "up-to-47-percent-time": Case(slower("method", *OTHERS), 3.0, 1.2, 1 / 0.53),
    "up-to-39-percent-memory": Case(only("method", *OTHERS, memory=same), 2.0, 1.2, scattered(1 / 0.61)),
    "up-to-52-percent-traffic": Case(traffic, 4.0, 1.1, scattered(1 / 0.48)),
}
FIXED = {"llm_api_share": {"gpus": 4}, "transfer_volume": {"gpus": 4}, "dataset_metrics": {"gpus": 1}}  # set, not swept


def grid(name: str) -> list[Cell]:
    """The cells of an experiment, with what it chooses for them."""
    experiment = experiments.load(name)
    cells = [
        tuple(zip(experiment.swept, values, strict=True)) for values in itertools.product(*experiment.swept.values())
    ]
    return [{**experiment.chosen, **FIXED.get(name, {}), **dict(cell)} for cell in cells if experiment.has(cell)]


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


def write_repeated(folder: Path, name: str, seeds: int = 10, apart: float = 0.01, **changes: Any) -> None:
    """Repetitions of a setting that no claim reads, the fastest and the slowest so far apart."""
    for seed, off in enumerate(np.linspace(-apart / 2, apart / 2, seeds).tolist()):
        cell = {**grid(name)[0], "lr": 0.077}
        figures = repeated(1 + off) | {"profiled": False}
        record, step_s = run(experiments.load(name).kind, cell, figures, seed, changes)
        records.write(folder / f"{name}-repeated-{seed}", record, None if step_s is None else records.steps(step_s))


def repeated(factor: float) -> dict[str, Any]:
    """The figures of a run that is so many times as slow as others of its setting."""
    relative = dict.fromkeys(("s", "memory", "loss", "copy_s", "sync_s", "comm_s"), factor)
    calls_s = {"launch_s": factor**2, "gather_s": factor**3, "event_s": factor**4, "nsys": factor}
    calls_s |= {"memcpy_s": factor, "broadcast_s": factor, "destroy_s": factor, "read_s": factor**2}
    return relative | calls_s | {"accuracy": 0.98 * factor**0.1, "waiting": 0.5 * factor}


def run(kind: str, cell: Cell, figures: dict[str, Any], seed: int, changes: dict[str, Any]) -> tuple[Any, Any]:
    """A run's record, and its steps. Its samples lie alternately 10 % above and below their mean."""
    settings = {key.replace(".", "__"): value for key, value in cell.items()}
    own: dict[str, Any] = {"status": figures.get("status", "ok")}
    if "memory" in figures:
        own["peak_memory_bytes"] = {"max": round(5e9 * figures["memory"]), "per_rank": [], "kind": "cuda_allocated"}
    record = getattr(records, kind)(**{"seed": seed, **settings, **own, **changes})
    h2d_bytes = int(figures.get("h2d", 1e6))
    record["transfer_bytes"] |= {"h2d": h2d_bytes, "h2d_images": {"train": h2d_bytes, "evaluate": 0}}
    record["communication_bytes"]["all_reduce"] = int(figures.get("received", 0))
    if "profile" in cell or figures.get("profiled"):
        record["profile"] = profiled(cell["gpus"], figures)
    step_s = figures.get("s", 1.0) * waves(40)
    if kind == "llm":
        record["transfer_bytes"] |= {"d2d": 0, "d2h": 0}
        record["total_s"] = 40 * figures.get("s", 1.0)
        record["iteration_s"] |= {"mean": float(step_s[1:].mean()), "count": 39, "warmup_count": 1}
        return record, step_s
    record["input"] |= {"read_s": figures["read_s"]} if "read_s" in figures else {}
    epochs_s = figures.get("s", 1.0) + 0.1 * waves(21, 0.0)
    ended = np.cumsum(epochs_s)
    loss = 0.9 ** np.arange(21) * figures.get("loss", 1.0) * (waves(21) if "loss" in figures else 1.0)
    answers = {"test_accuracy": figures.get("accuracy", 0.98), "test_samples": 10_000}
    first_epoch = record["epochs"][0] | answers | {"samples_trained": int(figures.get("trained", 60_000))}
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
            ("api", "cudaLaunchKernel"): figures.get("launch_s", 0.0) * off[rank],
            ("api", "cudaEventSynchronize"): figures.get("event_s", 0.0) * off[rank],
            ("collective", "nccl AllGather"): figures.get("gather_s", 1.0) * off[rank],
            ("collective", "nccl Broadcast"): figures.get("broadcast_s", 1.0) * off[rank],
            ("api", "cudaEventDestroy"): figures.get("destroy_s", 0.0) * off[rank],
            ("api", "cudaMemcpyAsync"): figures.get("memcpy_s", 1 - waiting[rank]) * off[rank],
        }
        for rank in range(gpus)
    ]
    profile = records.profile(rows, [figures.get("comm_s", 1.0) * one for one in off])
    if "nsys" in figures:
        profile |= {"source": "nsys", "step_s": profile["step_s"] | {"ratio": figures["nsys"]}}
    return profile
