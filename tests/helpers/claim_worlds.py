"""Worlds in which a claim of the papers holds, does not hold, and is undecided,
for `claim_runs` to write.

A world is a function of a cell and a number: what the cell measures.
Three numbers give the three verdicts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Cell = dict[str, Any]
Figures = dict[str, Any]  # of a cell, as `run` takes them
World = Callable[[Cell, Any], Figures]


@dataclass(frozen=True)
class Case:
    """A world, and the numbers for which the claim holds, does not hold, and is on its bound;
    a list is one a seed.
    """

    world: World
    holds: Any
    fails: Any
    undecided: Any

    def at(self, x: Any) -> list[Callable[[Cell], Figures]]:
        """The world at a number, or for each seed at its own."""
        return [
            lambda cell, one=one: self.world(cell, one)
            for one in (x if isinstance(x, list) else [x])
        ]


def where(conditions: Cell, **figures: Callable[[Any], Any]) -> World:
    """Figures by the number in the cells that meet all conditions;
    the defaults of the records elsewhere.

    Args:
        conditions: by column, a value, a tuple of values or a test of them.
    """

    def meets(value: Any, wanted: Any) -> bool:
        return (
            bool(wanted(value))
            if callable(wanted)
            else value in (wanted if isinstance(wanted, tuple) else (wanted,))
        )

    def world(cell: Cell, x: Any) -> Figures:
        chosen = all(meets(cell[column], wanted) for column, wanted in conditions.items())
        return {name: figure(x) for name, figure in figures.items()} if chosen else {}

    return world


def only(column: str, *wanted: Any, **figures: Callable[[Any], Any]) -> World:
    return where({column: wanted}, **figures)


def by(column: str, **figures: Callable[[Any], dict[Any, Any]]) -> World:
    """Figures by the number and the value of a column;
    the defaults where it is not among the values.
    """

    def world(cell: Cell, x: Any) -> Figures:
        tables = {name: figure(x) for name, figure in figures.items()}
        return {
            name: table[cell[column]] for name, table in tables.items() if cell[column] in table
        }

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
    return lambda cell, x: (
        {"s": x ** (1 - cell["gpus"])} if conditions.items() <= cell.items() else {}
    )


def large(cell: Cell, x: float) -> Figures:
    return scaling()(cell, x) if cell["dataset.image_size"] >= 300 else {}


def shares_of_four(cell: Cell, x: float) -> Figures:
    small = cell["dataset.image_size"] == 100
    return {"launch_s": x if small else 1.0, "comm_s": x if small else 1.0, "copy_s": 5.0}


def tensors(cell: Cell, x: float) -> Figures:
    """x times the bytes of the images as tensors, over 21 epochs."""
    return {"h2d": 21 * 60_000 * 3 * cell["dataset.image_size"] ** 2 * 4 * x}


def calls(x: float) -> float:
    """Seconds of AllGather with which the calls of Fig. 15 take x times as long as 2.5 s,
    of which 1 s is AllGather.
    """
    return 2.5 * x - 1.5


def calls_by_both(cell: Cell, x: float) -> Figures:
    """Methods differ x times, templates by a fifth."""
    by_method, by_template = (
        x if cell["method"] == "qat" else 1.0,
        (1.2 if cell["template"] == "instruct" else 1.0),
    )
    return {"gather_s": calls(by_method * by_template)}


def falling(figure: str) -> World:
    """A metric of a profile that falls x times from fp64 to fp32, and 4 times to fp16."""
    return profiled_by(
        "precision", **{figure: lambda x: {"fp64": 4.0, "fp32": 4.0 / x, "fp16": 1.0}}
    )


def without_memory(cell: Cell, x: dict[tuple[str, int], str]) -> Figures:
    return (
        {"status": x.get((cell["loader"], cell["gpus"]), "ok")}
        if cell["dataset.image_size"] == 500
        else {}
    )


def qlora_then_qat(cell: Cell, x: float) -> Figures:
    return {"s": x} if cell["method"] == {1: "qlora", 4: "qat"}[cell["gpus"]] else {}


def instruct_memory(cell: Cell, x: float) -> Figures:
    """DPO takes x times as much with summarize, LoRA as much less."""
    differs = cell["template"] == "summarize" and cell["method"] in ("dpo", "lora")
    return {"memory": x if cell["method"] == "dpo" else 1 / x} if differs else {}


def by_layout(cell: Cell, x: float) -> Figures:
    """The DataLoader takes half as long again in NCHW, and x times as long as DALI in NHWC."""
    return {"s": {"nchw": 1.5, "nhwc": x}[cell["layout"]]} if cell["loader"] == "torch" else {}


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
    return {
        "profiled": True,
        "launch_s": x if instruct else 1.0,
        "sync_s": 1.2 if instruct else 1.0,
    }


METHODS = ("lora", "qlora", "dpo", "qat")
OTHERS = METHODS[1:]
NCHW, NHWC = {"loader": "torch", "layout": "nchw"}, {"loader": "torch", "layout": "nhwc"}
CASES = {
    "fp16-over-fp64": Case(slower("precision", "fp64"), 2.5, 1.5, 1.94),
    "fp32-over-fp64": Case(slower("precision", "fp64"), 1.7, 1.2, 1.42),
    "fp16-over-fp32": Case(slower("precision", "fp32"), 1.5, 0.8, 1.05),
    "precision-accuracy": Case(only("precision", "fp16", accuracy=float), 0.98, 0.95, 0.97),
    "precision-memory": Case(
        by("precision", memory=lambda x: {"fp16": 1.0, "fp32": x, "fp64": x * x}),
        2.0,
        0.8,
        scattered(1.05),
    ),
    "precision-volume": Case(
        by("precision", h2d=lambda x: {"fp16": 1e6, "fp32": 2e6, "fp64": 2e6 * x}), 2, 1, [1.5, 2.3]
    ),
    "precision-traffic": Case(
        by("precision", received=lambda x: {"fp16": 1e6, "fp32": 1e6 * x, "fp64": 1e6 * x * x}),
        2.0,
        0.8,
        scattered(1.05),
    ),
    "precision-copies": Case(falling("copy_s"), 2.0, 1.2, 1.6),
    "precision-memcpy": Case(falling("memcpy_s"), 2.0, 1.2, 1.6),
    "precision-broadcast": Case(falling("broadcast_s"), 2.0, 1.2, 1.6),
    "precision-event-destroy": Case(
        profiled_by("precision", destroy_s=lambda x: {"fp64": 4.0 * x, "fp32": 4.0, "fp16": 1.0}),
        4.0,
        2.0,
        3.0,
    ),
    "precision-copies-most": Case(
        profiled_by(
            "precision",
            **dict.fromkeys(("copy_s", "memcpy_s"), lambda x: {"fp64": x}),
            **dict.fromkeys(
                ("launch_s", "destroy_s"), lambda _: {"fp64": 2.0, "fp32": 1.0, "fp16": 1.0}
            ),
        ),
        *(8.0, 0.6, 2.0),
    ),
    "accuracy-within-20-epochs": Case(where({}, accuracy=same), 0.99, 0.95, 0.98),
    "accuracy-within-3-epochs": Case(where({}, accuracy=same), 0.99, 0.95, 0.98),
    "pinned-gain": Case(slower("pin_memory", False), 1.25, 1.02, 1.07),
    "pinned-gain-by-gpus": Case(gain, 1.1, 2.0, 1.2),
    "ddp-ds-scales": Case(scaling(strategy="ddp_ds"), 1.3, 0.8, 1.1),
    "ddp-rr-does-not": Case(
        where({"strategy": "ddp_rr", "gpus": several}, s=inverse), 1.0, 1.5, 1.1
    ),
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
    "ddp-ds-copies-less": Case(
        only("strategy", "ddp", "ddp_rr", h2d=same), 4e6, 0.8e6, scattered(1e6)
    ),
    "ddp-ds-copies-quicker": Case(only("strategy", "ddp", "ddp_rr", h2d_s=same), 0.08, 0.01, 0.02),
    "large-images-pay": Case(large, 1.3, 0.8, 1.05),
    "small-images-do-not": Case(
        where({"dataset.image_size": (100, 200), "gpus": 4}, s=inverse), 0.9, 1.5, 1.05
    ),
    "large-images-take-longer": Case(
        lambda cell, x: {"s": x ** (cell["dataset.image_size"] / 100)}, 1.5, 0.8, 1.0
    ),
    "large-images-are-more-accurate": Case(
        lambda cell, x: {"accuracy": 0.9 + x * (cell["dataset.image_size"] / 100 - 3)},
        0.02,
        -0.02,
        0.0,
    ),
    "inference-scales": Case(
        lambda cell, x: (
            {"evaluate_s": x ** (1 - cell["gpus"])} if cell["dataset.image_size"] >= 300 else {}
        ),
        *(1.3, 0.8, 1.1),
    ),
    "epochs-matter-most": Case(where({}, first_accuracy=same), 0.9, 1.0, 0.98),
    "small-images-launch-and-gather": Case(shares_of_four, 4.0, 0.3, 1.0),
    "pinned-copies": Case(only("pin_memory", False, copy_s=float), 5.0, 0.2, 1.1),
    "pinned-synchronises": Case(only("pin_memory", True, sync_s=float), 10.0, 0.1, 0.5),
    "nccl-by-gpus": Case(only("gpus", 4, comm_s=float), 9.0, 0.1, 1.1),
    "pinned-nccl": Case(only("pin_memory", True, comm_s=float), 1.6, 0.5, 1.0),
    "nsys-costs-little": Case(slower("profiled", True), 1.0, 1.2, 1.05),
    "fp64-converges-slower": Case(only("precision", "fp64", decay=same), 0.95, 0.85, 0.9),
    "least-loss-sooner": Case(slower("precision", "fp64"), 1.5, 0.8, 1.0),
    "loss-alike": Case(only("precision", "fp16", loss=float), 1.0, 1.5, 1.1),
    "dali-over-dataloader": Case(slower("loader", "torch"), 1.5, 0.8, 1.0),
    "dataloader-loses-beyond-2-gpus": Case(where(NCHW | {"gpus": beyond_2}, s=same), 1.5, 0.8, 1.1),
    "dali-does-not-lose": Case(where({"gpus": beyond_2}, s=same), 0.8, 1.5, 1.05),
    "dataloader-pauses": Case(
        by("gpus", first_batch=lambda x: {1: 0.01, 2: 0.01, 3: x, 4: x}), 0.5, 0.01, 0.05
    ),
    "numa-explains-pauses": Case(only("numa", "none", first_batch=same), 0.5, 0.02, 0.2),
    "dali-balances-gpus": Case(where({"loader": "dali"}, uneven=same), 1.02, 1.5, 1.1),
    "dali-copies-less": Case(only("loader", "torch", h2d=same), 4e6, 0.8e6, scattered(1e6)),
    "dali-does-not-pause": Case(where({"loader": "dali"}, first_batch=same), 0.01, 0.5, 0.025),
    "reading-takes-long": Case(where({}, read_s=same), 10.0, 0.1, 0.05 * 21.9),
    "dataloader-needs-memory": Case(
        without_memory,
        {("torch", 2): "oom", ("torch", 4): "oom"},
        {("torch", 2): "oom"},
        {("torch", 2): "oom", ("torch", 4): "oom", ("dali", 2): "failed"},
    ),
    "dataloader-copies-alike": Case(tensors, 1.0, 0.5, scattered(0.99)),
    "nhwc-level-with-dali": Case(by_layout, 1.0, 0.3, 1.05),
    "nhwc-explains-dali": Case(
        *(by_layout, 1.0, 1.4, 1.05),
    ),
    "nhwc-loses-beyond-2-gpus": Case(where(NHWC | {"gpus": beyond_2}, s=same), 1.5, 0.8, 1.05),
    "nhwc-over-nchw": Case(slower("layout", "nchw"), 1.5, 0.8, 1.1),
    "iteration-by-gpus": Case(iterations, 1.0, 1.5, 1.1),
    "total-by-gpus": Case(scaling(), 1.2, 0.8, 1.0),
    "alpaca-longest": Case(only("template", "instruct", s=same), 1.5, 0.8, 1.0),
    "slimorca-longest": Case(slower("dataset", "slimorca"), 1.5, 0.8, 1.0),
    "pinned-tuning": Case(slower("pin_memory", False), 1.0, 1.2, 1.05),
    "launches-follow-iterations": Case(launches_by_iteration, 1.5, 0.8, 1.0),
    "synchronising-varies-less": Case(launches_of_instruct, 3.0, 1.2, 1.44),
    "pinned-tuning-copies": Case(only("pin_memory", True, copy_s=float), 1.1, 50.0, 1.25),
    "lora-fastest": Case(slower("method", *OTHERS), 1.5, 0.8, 1.0),
    "qlora-and-qat-slowest": Case(qlora_then_qat, 1.5, 0.8, 1.0),
    "qat-slower-than-dpo": Case(slower("method", "qat"), 1.5, 0.8, 1.0),
    "qlora-pays-with-time": Case(
        only("method", "qlora", s=same, memory=lambda _: 0.5), 1.5, 0.8, 1.0
    ),
    "grammar-fastest": Case(slower("template", "instruct", "summarize"), 1.5, 0.8, 1.0),
    "summarize-like-instruct": Case(slower("template", "summarize"), 1.0, 1.5, 1.25),
    "time-by-file-size": Case(
        by("template", s=lambda x: {"instruct": 374 / 135 * x, "summarize": 341 / 135 * x}),
        1.0,
        0.5,
        0.8,
    ),
    "templates-alike-by-gpus": Case(slower("template", "instruct", "summarize"), 1.5, 0.8, 1.0),
    "time-falls-with-gpus": Case(scaling(), 1.2, 0.8, 1.0),
    "lora-over-dpo": Case(slower("method", "dpo"), 1.35, 1.1, 1.2),
    **dict.fromkeys(
        ("launches-not-copies", "launches-not-copies-pinned"),
        Case(
            where({}, waiting=float, copy_s=lambda _: 0.01, launch_s=lambda _: 0.1), 0.8, 0.2, 0.45
        ),
    ),
    **dict.fromkeys(
        ("copies-insignificant", "copies-insignificant-pinned", "copies-insignificant-by-method"),
        Case(where({}, copy_s=float), 0.01, 0.5, 0.05),
    ),
    "calls-largest-for-qat": Case(only("method", "qat", gather_s=calls), 1.5, 0.8, 1.1),
    "lora-instruct-calls": Case(
        where({"method": "lora", "template": "instruct"}, gather_s=calls), 1.1, 1.5, 1.25
    ),
    "calls-alike-but-for-qat": Case(only("method", "dpo", gather_s=calls), 1.0, 1.5, 1.25),
    "first-calls": Case(
        where({}, event_s=same, launch_s=same, copy_s=lambda _: 0.1, sync_s=lambda _: 0.1),
        3.0,
        0.5,
        1.0,
    ),
    "methods-differ-more": Case(calls_by_both, 3.0, 1.05, 1.2),
    "dpo-and-qat-synchronise": Case(
        by("method", sync_s=lambda x: {"lora": 0.01, "dpo": x, "qat": x}), 0.5, 0.01, 0.05
    ),
    "dpo-memory-doubles": Case(
        where({"method": "dpo", "gpus": 2}, memory=same), 2.0, 1.2, scattered(1.8)
    ),
    "dpo-memory-falls": Case(
        by("gpus", memory=lambda x: {2: 2.0, 3: 2 / x, 4: 1.0}), 1.5, 0.5, scattered(1.2)
    ),
    "lora-memory-stays": Case(
        by("gpus", memory=lambda x: {1: 1.1, 3: x}), 1.0, 3.0, scattered(0.95)
    ),
    "qat-needs-4-gpus": Case(
        ending,
        {1: "oom", 2: "oom", 3: "oom", 4: "ok"},
        {1: "oom", 2: "ok", 3: "ok", 4: "ok"},
        {1: "oom", 2: "failed", 3: "oom", 4: "ok"},
    ),
    "lora-memory": Case(only("method", "dpo", memory=same), 1.5, 0.8, scattered(1.0)),
    "qlora-memory": Case(
        only("method", "lora", "dpo", "qat", memory=same), 1.5, 0.8, scattered(1.0)
    ),
    "qat-memory": Case(only("method", "qat", memory=same), 3.0, 0.8, scattered(2.0)),
    "grammar-memory": Case(
        only("template", "instruct", "summarize", memory=same), 1.5, 0.8, scattered(1.0)
    ),
    "summarize-memory-like-instruct": Case(
        only("template", "summarize", memory=same), 1.0, 1.5, scattered(1.25)
    ),
    "instruct-memory": Case(instruct_memory, 1.5, 0.8, scattered(1.0)),
    "bytes-over-lora": Case(only("method", "qat", "dpo", h2d=same), 6e6, 2e6, scattered(4e6)),
    "qat-bytes-like-dpo": Case(only("method", "qat", h2d=same), 1e6, 3e6, scattered(1.25e6)),
    "grammar-bytes": Case(
        only("template", "instruct", "summarize", h2d=same), 2e6, 0.5e6, scattered(1e6)
    ),
    "engines-train-alike": Case(
        only("engine", "trl", step_loss=float), 1.005, 1.02, [1.005, 1.02, 1.005]
    ),
    "up-to-47-percent-time": Case(slower("method", *OTHERS), 1 / 0.53, 1.2, 1 / 0.57),
    "up-to-39-percent-memory": Case(
        only("method", *OTHERS, memory=same), 1 / 0.61, 1.2, scattered(1 / 0.61)
    ),
    "up-to-52-percent-traffic": Case(
        lambda cell, x: {"received": 1e6 * (1.0 if cell["method"] == "lora" else x)},
        2.08,
        1.1,
        scattered(1 / 0.48),
    ),
}
