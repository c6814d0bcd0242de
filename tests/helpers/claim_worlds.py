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
Figures = dict[str, Any]  # of a cell, as `run` takes them
World = Callable[[Cell, Any], Figures]


@dataclass(frozen=True)
class Case:
    """A world, and the numbers for which the claim holds, does not hold, and is on its bound; a list is one a seed."""

    world: World
    holds: Any
    fails: Any
    undecided: Any

    def at(self, x: Any) -> list[Callable[[Cell], Figures]]:
        """The world at a number, or for each seed at its own."""
        return [lambda cell, one=one: self.world(cell, one) for one in (x if isinstance(x, list) else [x])]


def where(conditions: Cell, **figures: Callable[[Any], Any]) -> World:
    """Figures by the number in the cells that meet all conditions; the defaults of the records elsewhere.

    Args:
        conditions: by column, a value, a tuple of values or a test of them.
    """

    def meets(value: Any, wanted: Any) -> bool:
        return (
            bool(wanted(value)) if callable(wanted) else value in (wanted if isinstance(wanted, tuple) else (wanted,))
        )

    def world(cell: Cell, x: Any) -> Figures:
        chosen = all(meets(cell[column], wanted) for column, wanted in conditions.items())
        return {name: figure(x) for name, figure in figures.items()} if chosen else {}

    return world


def only(column: str, *wanted: Any, **figures: Callable[[Any], Any]) -> World:
    return where({column: wanted}, **figures)


def by(column: str, **figures: Callable[[Any], dict[Any, Any]]) -> World:
    """Figures by the number and the value of a column; the defaults where it is not among the values."""

    def world(cell: Cell, x: Any) -> Figures:
        tables = {name: figure(x) for name, figure in figures.items()}
        return {name: table[cell[column]] for name, table in tables.items() if cell[column] in table}

    return world


def profiled_by(column: str, **figures: Callable[[Any], dict[Any, Any]]) -> World:
    return lambda cell, x: {"profiled": True} | by(column, **figures)(cell, x)


def slower(column: str, *wanted: Any) -> World:
    """Those cells take x times as long."""
    return where({column: wanted}, s=same)


def same(x: Any) -> Any:
    return x


def inverse(x: float) -> float:
    return 1 / x


def several(gpus: int) -> bool:
    return gpus > 1


def beyond_2(gpus: int) -> bool:
    return gpus > 2


def scattered(x: float) -> list[float]:
    """Two seeds that differ by a fifth, for a figure that has no scatter within a run."""
    return [0.9 * x, 1.1 * x]


def multiplied(strategy: str, figure: str, base: float) -> World:
    """x is a function of the number of GPUs."""
    return lambda cell, x: {figure: base * (x(cell["gpus"]) if cell["strategy"] == strategy else 1)}


def gain(cell: Cell, x: float) -> Figures:
    return {} if cell["pin_memory"] else {"s": {1: 1.5, 2: 1.4, 3: 1.2, 4: x}[cell["gpus"]]}


def scaling(**conditions: Any) -> World:
    """Each GPU more makes those cells x times as fast."""
    return lambda cell, x: {"s": x ** (1 - cell["gpus"])} if conditions.items() <= cell.items() else {}


def large(cell: Cell, x: float) -> Figures:
    return scaling()(cell, x) if cell["dataset.image_size"] >= 300 else {}


def shares_of_four(cell: Cell, x: float) -> Figures:
    small = cell["dataset.image_size"] == 100
    return {"launch_s": x if small else 1.0, "comm_s": x if small else 1.0, "copy_s": 5.0}


def tensors(cell: Cell, x: float) -> Figures:
    """x times the bytes of the images as tensors, over 21 epochs."""
    return {"h2d": 21 * 60_000 * 3 * cell["dataset.image_size"] ** 2 * 4 * x}


def calls(x: float) -> float:
    """Seconds of AllGather with which the calls of Fig. 15 take x times as long as 2.5 s, of which 1 s is AllGather."""
    return 2.5 * x - 1.5


def calls_by_both(cell: Cell, x: float) -> Figures:
    """Methods differ x times, templates by a fifth."""
    by_method, by_template = x if cell["method"] == "qat" else 1.0, 1.2 if cell["template"] == "instruct" else 1.0
    return {"gather_s": calls(by_method * by_template)}


def falling(figure: str) -> World:
    """A metric of a profile that falls x times from fp64 to fp32, and 4 times to fp16."""
    return profiled_by("precision", **{figure: lambda x: {"fp64": 4.0, "fp32": 4.0 / x, "fp16": 1.0}})


def without_memory(cell: Cell, x: dict[tuple[str, int], str]) -> Figures:
    return {"status": x.get((cell["loader"], cell["gpus"]), "ok")} if cell["dataset.image_size"] == 500 else {}


def qlora_then_qat(cell: Cell, x: float) -> Figures:
    return {"s": x} if cell["method"] == {1: "qlora", 4: "qat"}[cell["gpus"]] else {}


def instruct_memory(cell: Cell, x: float) -> Figures:
    """DPO takes x times as much with summarize, LoRA as much less."""
    differs = cell["template"] == "summarize" and cell["method"] in ("dpo", "lora")
    return {"memory": x if cell["method"] == "dpo" else 1 / x} if differs else {}


def iterations(cell: Cell, x: float) -> Figures:
    return {"s": {1: 1.0, 2: 1.2}.get(cell["gpus"], 1.2 * x)}


def ending(cell: Cell, x: dict[int, str]) -> Figures:
    return {"status": x[cell["gpus"]]} if cell["method"] == "qat" else {}


def launches_by_iteration(cell: Cell, x: float) -> Figures:
    """Data sets take 1 to 4 times as long, and each launches x times as much as the one before."""
    order = ("samsum", "grammar", "alpaca_cleaned", "slimorca").index(cell["dataset"])
    return {"s": order + 1.0, "launch_s": 0.1 * x**order}


def launches_of_instruct(cell: Cell, x: float) -> Figures:
    instruct = cell["template"] == "instruct"
    return {"profiled": True, "launch_s": x if instruct else 1.0, "sync_s": 1.2 if instruct else 1.0}


METHODS = ("lora", "qlora", "dpo", "qat")
OTHERS = METHODS[1:]
NCHW, NHWC = {"loader": "torch", "layout": "nchw"}, {"loader": "torch", "layout": "nhwc"}
CASES = {
    "fp16-over-fp64": Case(slower("precision", "fp64"), 2.5, 1.5, 1.94),
    "fp32-over-fp64": Case(slower("precision", "fp64"), 1.7, 1.2, 1.42),
    "fp16-over-fp32": Case(slower("precision", "fp32"), 1.5, 0.8, 1.0),
    "precision-accuracy": Case(only("precision", "fp16", accuracy=float), 0.98, 0.95, 0.97),
    "precision-memory": Case(
        by("precision", memory=lambda x: {"fp16": 1.0, "fp32": x, "fp64": x * x}), 2.0, 0.8, scattered(1.0)
    ),
    "precision-volume": Case(
        by("precision", h2d=lambda x: {"fp16": 1e6, "fp32": 2e6, "fp64": 2e6 * x}), 2, 1, [1.5, 2.3]
    ),
    "precision-copies": Case(falling("copy_s"), 2.0, 1.2, 1.6),
    "precision-memcpy": Case(falling("memcpy_s"), 2.0, 1.2, 1.6),
    "precision-broadcast": Case(falling("broadcast_s"), 2.0, 1.2, 1.6),
    "precision-event-destroy": Case(
        profiled_by("precision", destroy_s=lambda x: {"fp64": 4.0 * x, "fp32": 4.0, "fp16": 1.0}), 4.0, 2.0, 3.0
    ),
    "precision-copies-most": Case(
        profiled_by(
            "precision",
            **dict.fromkeys(("copy_s", "memcpy_s"), lambda x: {"fp64": x}),
            **dict.fromkeys(("launch_s", "destroy_s"), lambda _: {"fp64": 2.0, "fp32": 1.0, "fp16": 1.0}),
        ),
        *(8.0, 0.6, 2.0),
    ),
    "accuracy-within-20-epochs": Case(where({}, accuracy=same), 0.99, 0.95, 0.98),
    "accuracy-within-3-epochs": Case(where({}, accuracy=same), 0.99, 0.95, 0.98),
    "pinned-gain": Case(slower("pin_memory", False), 1.5, 1.02, 1.07),
    "pinned-gain-by-gpus": Case(gain, 1.1, 2.0, 1.2),
    "ddp-ds-scales": Case(scaling(strategy="ddp_ds"), 1.5, 0.8, 1.0),
    "ddp-rr-does-not": Case(where({"strategy": "ddp_rr", "gpus": several}, s=inverse), 1.0, 1.5, 1.1),
    "ddp-does-not": Case(where({"strategy": "ddp", "gpus": several}, s=inverse), 1.0, 1.5, 1.1),
    **{
        name: Case(
            multiplied(strategy, figure, base),
            lambda n: n,
            lambda _: 1,
            [lambda n, seed=seed: seed * n * (1 if n == 1 else 0.95) for seed in scattered(1.0)],
        )
        for name, strategy, figure, base in (
            ("ddp-multiplies-work", "ddp", "trained", 1000),
            ("ddp-rr-copies-everything", "ddp_rr", "h2d", 1e6),
        )
    },
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
    "nsys-costs-little": Case(where({}, nsys=same), 1.01, 1.3, 1.1),
    "fp64-converges-slower": Case(only("precision", "fp64", loss=float), 1.5, 0.6, 1.0),
    "loss-alike": Case(only("precision", "fp16", loss=float), 1.0, 1.5, 1.1),
    "dali-over-dataloader": Case(slower("loader", "torch"), 1.5, 0.8, 1.0),
    "dataloader-loses-beyond-2-gpus": Case(where(NCHW | {"gpus": beyond_2}, s=same), 1.5, 0.8, 1.0),
    "dali-does-not-lose": Case(where({"gpus": beyond_2}, s=same), 0.8, 1.5, 1.05),
    "dataloader-pauses": Case(by("gpus", first_batch=lambda x: {1: 0.01, 2: 0.01, 3: x, 4: x}), 0.5, 0.01, 0.05),
    "dali-does-not-pause": Case(where({"loader": "dali"}, first_batch=same), 0.01, 0.5, 0.05),
    "reading-takes-long": Case(where({}, read_s=same), 10.0, 0.1, 0.05 * 21.9),
    "dataloader-needs-memory": Case(
        without_memory,
        {("torch", 2): "oom", ("torch", 4): "oom"},
        {("torch", 2): "oom"},
        {("torch", 2): "oom", ("torch", 4): "oom", ("dali", 2): "failed"},
    ),
    "dataloader-copies-alike": Case(tensors, 1.0, 0.5, scattered(0.99)),
    "nhwc-level-with-dali": Case(where(NHWC, s=same), 1.0, 0.3, 1.05),
    "nhwc-explains-dali": Case(
        lambda cell, x: {"s": {"nchw": 1.5, "nhwc": x}[cell["layout"]]} if cell["loader"] == "torch" else {},
        *(1.0, 1.4, 1.05),
    ),
    "nhwc-loses-beyond-2-gpus": Case(where(NHWC | {"gpus": beyond_2}, s=same), 1.5, 0.8, 1.0),
    "nhwc-over-nchw": Case(slower("layout", "nchw"), 1.5, 0.8, 1.0),
    "iteration-by-gpus": Case(iterations, 1.0, 1.5, 1.1),
    "total-by-gpus": Case(scaling(), 1.5, 0.8, 1.0),
    "alpaca-longest": Case(only("template", "instruct", s=same), 1.5, 0.8, 1.0),
    "slimorca-longest": Case(slower("dataset", "slimorca"), 1.5, 0.8, 1.0),
    "pinned-tuning": Case(slower("pin_memory", False), 1.0, 1.2, 1.05),
    "launches-follow-iterations": Case(launches_by_iteration, 1.5, 0.8, 1.0),
    "synchronising-varies-less": Case(launches_of_instruct, 3.0, 1.2, 1.44),
    "pinned-tuning-copies": Case(only("pin_memory", True, copy_s=float), 1.1, 50.0, 1.25),
    "lora-fastest": Case(slower("method", *OTHERS), 1.5, 0.8, 1.0),
    "qlora-and-qat-slowest": Case(qlora_then_qat, 1.5, 0.8, 1.0),
    "qat-slower-than-dpo": Case(slower("method", "qat"), 1.5, 0.8, 1.0),
    "qlora-pays-with-time": Case(slower("method", "qlora"), 1.5, 0.8, 1.0),
    "grammar-fastest": Case(slower("template", "instruct", "summarize"), 1.5, 0.8, 1.0),
    "summarize-like-instruct": Case(slower("template", "summarize"), 1.0, 1.5, 1.25),
    "time-by-file-size": Case(
        by("template", s=lambda x: {"instruct": 374 / 135 * x, "summarize": 341 / 135 * x}), 1.0, 0.5, 0.8
    ),
    "time-falls-with-gpus": Case(scaling(), 1.5, 0.8, 1.0),
    "lora-over-dpo": Case(slower("method", "dpo"), 1.5, 1.1, 1.2),
    **dict.fromkeys(
        ("launches-not-copies", "launches-not-copies-pinned"),
        Case(where({}, waiting=float, copy_s=lambda _: 0.01), 0.8, 0.2, 0.5),
    ),
    **dict.fromkeys(
        ("copies-insignificant", "copies-insignificant-pinned", "copies-insignificant-by-method"),
        Case(where({}, copy_s=float), 0.01, 0.5, 0.05),
    ),
    "calls-largest-for-qat": Case(only("method", "qat", gather_s=calls), 1.5, 0.8, 1.0),
    "lora-instruct-calls": Case(where({"method": "lora", "template": "instruct"}, gather_s=calls), 1.1, 1.5, 1.25),
    "first-calls": Case(
        where({}, event_s=same, launch_s=same, copy_s=lambda _: 0.1, sync_s=lambda _: 0.1), 3.0, 0.5, 1.0
    ),
    "methods-differ-more": Case(calls_by_both, 3.0, 1.05, 1.2),
    "dpo-and-qat-synchronise": Case(by("method", sync_s=lambda x: {"lora": 0.01, "dpo": x, "qat": x}), 0.5, 0.01, 0.05),
    "dpo-memory-doubles": Case(where({"method": "dpo", "gpus": 2}, memory=same), 2.0, 1.2, scattered(1.8)),
    "dpo-memory-falls": Case(by("gpus", memory=lambda x: {2: 2.0, 3: 2 / x, 4: 1.0}), 1.5, 0.5, scattered(1.2)),
    "lora-memory-stays": Case(by("gpus", memory=lambda x: {1: 1.1, 3: x}), 1.0, 3.0, scattered(0.95)),
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
    "up-to-52-percent-traffic": Case(
        lambda cell, x: {"received": 1e6 * (1.0 if cell["method"] == "lora" else x)}, 4.0, 1.1, scattered(1 / 0.48)
    ),
}


REPEATED_LR = 0.077  # of the repetitions that show how runs of the machine differ
MACHINE = records.environment(
    cpu={"memory_bytes": 755 * 2**30}, gpus=[{"uuid": "GPU-1", "name": "NVIDIA H100", "memory_bytes": 94 * 2**30}]
)


def grid(name: str) -> list[Cell]:
    """The cells of an experiment, in the papers' setting."""
    experiment = experiments.load(name)
    cells = [
        tuple(zip(experiment.swept, values, strict=True)) for values in itertools.product(*experiment.swept.values())
    ]
    setting = {column: value for column, value in experiment.papers.all.items() if not isinstance(value, list)}
    return [{**setting, **dict(cell)} for cell in cells if experiment.has(cell)]


def write(folder: Path, name: str, *worlds: Callable[[Cell], Figures], repetitions: int = 10, **changes: Any) -> None:
    """Run folders of an experiment's cells, by the world of each seed.

    Args:
        repetitions: of one more setting, which show that runs of the machine differ by 0.3 %; no claim reads it.
    """
    write_repeated(folder, name, repetitions, **changes)
    for (index, cell), (seed, world) in itertools.product(enumerate(grid(name)), enumerate(worlds)):
        write_run(folder / f"{name}-{index}-{seed}", name, cell, world(cell), **{"seed": seed, **changes})


def write_repeated(folder: Path, name: str, repetitions: int = 10, apart: float = 0.01, **changes: Any) -> None:
    """Repetitions of a setting that no claim reads; the fastest and the slowest differ by `apart`, relatively."""
    for seed, off in enumerate(np.linspace(-apart / 2, apart / 2, repetitions).tolist()):
        cell = {**grid(name)[0], "lr": REPEATED_LR}
        write_run(folder / f"{name}-repeated-{seed}", name, cell, repeated(1 + off), **{"seed": seed, **changes})


def repeated(factor: float) -> Figures:
    """The figures of a run that is `factor` times as slow as others of its setting."""
    relative = dict.fromkeys(
        ("s", "memory", "loss", "copy_s", "sync_s", "comm_s", "nsys", "memcpy_s", "broadcast_s", "destroy_s"), factor
    )
    powers = {"launch_s": factor**2, "gather_s": factor**3, "event_s": factor**4, "read_s": factor**2}
    return relative | powers | {"accuracy": 0.98 * factor**0.1, "waiting": 0.5 * factor}


def write_run(folder: Path, experiment: str, cell: Cell, figures: Figures, **changes: Any) -> None:
    """A run of a cell. Its samples lie alternately 10 % above and below their mean."""
    kind = experiments.load(experiment).kind
    settings = {key.removesuffix(".name").replace(".", "__"): value for key, value in cell.items()}
    own: dict[str, Any] = {"status": figures.get("status", "ok")}
    if "memory" in figures:
        own["peak_memory_bytes"] = {"max": round(5e9 * figures["memory"]), "per_rank": [], "kind": "cuda_allocated"}
    record = getattr(records, kind)(**settings | own | changes)
    h2d_bytes = int(figures.get("h2d", 1e6))
    record["transfer_bytes"] |= {"h2d": h2d_bytes, "h2d_images": {"train": h2d_bytes, "evaluate": 0}}
    record["communication_bytes"]["all_reduce"] = int(figures.get("received", 0))
    if "profile.name" in cell or figures.get("profiled"):
        record["profile"] = profiled(cell["gpus"], figures)
    (tune if kind == "llm" else train)(record, figures)
    record["total_s"] = figures.get("total_s", record["total_s"])
    steps = records.steps(figures.get("s", 1.0) * waves(40)) if kind == "llm" else None
    records.write(folder, record, steps, MACHINE)


def tune(record: dict[str, Any], figures: Figures) -> None:
    step_s = figures.get("s", 1.0) * waves(40)
    record["transfer_bytes"] |= {"d2d": 0, "d2h": 0}
    record["total_s"] = 40 * figures.get("s", 1.0)
    record["iteration_s"] |= {"mean": float(step_s[1:].mean()), "count": 39, "warmup_count": 1}


def train(record: dict[str, Any], figures: Figures) -> None:
    record["input"] |= {"read_s": figures["read_s"]} if "read_s" in figures else {}
    ended_s = np.cumsum(figures.get("s", 1.0) + 0.1 * waves(21, 0.0)).tolist()
    losses = 0.9 ** np.arange(21) * figures.get("loss", 1.0) * (waves(21) if "loss" in figures else 1.0)
    own = {"test_accuracy": figures.get("accuracy", 0.98), "test_samples": 10_000}
    first_epoch = record["epochs"][0] | own | {"samples_trained": int(figures.get("trained", 60_000))}
    record["epochs"] = [
        first_epoch
        | records.epoch_waits(index, figures.get("first_batch", 0.1))
        | {"epoch": index, "ended_s": end_s, "train_loss": loss}
        for index, (end_s, loss) in enumerate(zip(ended_s, losses.tolist(), strict=True))
    ]
    record |= {"test_accuracy": own["test_accuracy"], "total_s": ended_s[-1]}


def waves(count: int, mean: float = 1.0, depth: float = 0.1) -> np.ndarray:
    """The mean, alternately more and less (count,), after a first value at it."""
    return mean + np.concatenate([[0.0], depth * (-1.0) ** np.arange(count - 1)])


def profiled(gpus: int, figures: Figures) -> dict[str, Any]:
    """A profile of `gpus` ranks, which differ by 5 % either way."""
    off = [1 + 0.05 * (-1) ** rank for rank in range(gpus)]
    waiting = [figures.get("waiting", 0.5) + 0.01 * (-1) ** rank for rank in range(gpus)]
    rows = []
    for rank_off, waited_s in zip(off, waiting, strict=True):
        metrics = {
            ("copy", "memcpy Host-to-Device"): ("copy_s", 1.0),
            ("api", "cudaStreamSynchronize"): ("sync_s", waited_s),
            ("api", "cudaLaunchKernel"): ("launch_s", 0.0),
            ("api", "cudaEventSynchronize"): ("event_s", 0.0),
            ("collective", "nccl AllGather"): ("gather_s", 1.0),
            ("collective", "nccl Broadcast"): ("broadcast_s", 1.0),
            ("api", "cudaEventDestroy"): ("destroy_s", 0.0),
            ("api", "cudaMemcpyAsync"): ("memcpy_s", 1 - waited_s),
        }
        rows.append({metric: figures.get(*known) * rank_off for metric, known in metrics.items()})
    profile = records.profile(rows, [figures.get("comm_s", 1.0) * one for one in off])
    if "nsys" in figures:
        profile |= {"source": "nsys", "step_s": profile["step_s"] | {"ratio": figures["nsys"]}}
    return profile
