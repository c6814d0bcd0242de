"""Worlds that have fooled rules of claims: of other settings, of few pairs, of one bound, beyond the papers' cells."""

from collections.abc import Callable
from typing import Any

from tests.helpers.claim_worlds import Cell, Figures

# By kind of world, columns of runs that are not the papers': of trainings, and of tunings
SMOKE, CPU = {"scale": "smoke", "smoke": True}, {"device": "cpu", "cpu_ranks": True}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other batch": ({"batch_size": 1024}, {"batch_size": 16}),
    "other loader": ({"loader": "device"}, {"packed": True}),
    "other epochs": ({"epochs": 1}, {"epochs": 7}),
    "compiled": ({"compile": True}, {"compile": True}),
    "other optimiser": ({"optimizer.name": "adamw", "lr": 0.5}, {"lr": 0.5}),
    "other data": ({"dataset.train_limit": 96}, {"max_seq_len": 64}),
    "smoke": (SMOKE, SMOKE),
    "CPU ranks": (CPU, CPU),
    "shared GPUs": ({"oversubscribed": True}, {"oversubscribed": True}),
}


def along(column: str, values: dict[Any, float], figure: str = "s", **conditions: Any) -> Callable[[Cell], Figures]:
    """A figure by the value of a column, in the cells that meet the conditions."""
    return lambda cell: (
        {figure: values[cell[column]]}
        if {column: cell[column], **conditions}.items() <= cell.items() and cell[column] in values
        else {}
    )


def everywhere(**figures: float) -> Callable[[Cell], Figures]:
    return lambda _: figures


def falling(**factors: float) -> Callable[[Cell], Figures]:
    """Metrics that fall by a factor from fp64 to fp16; launches and cudaEventDestroy do not."""
    base = {"launch_s": 1.0, "destroy_s": 1.0}
    return lambda cell: base | factors if cell["precision"] == "fp64" else base


def beyond(figure: str, value: float, **conditions: Any) -> Callable[[Cell], Figures]:
    """QLoRA as it is on one GPU, which confirms a claim; LoRA takes less time and more memory."""
    own = {"s": {"lora": 1.0}, "memory": {"qlora": 0.5}}[figure]

    def world(cell: Cell) -> Figures:
        if conditions.items() <= cell.items():
            return {figure: value}
        return {figure: own.get(cell["method"], 1.5 if figure == "s" else 1.0)}

    return world


def launches(cell: Cell) -> Figures:
    """The shorter an iteration, the more it launches."""
    order = ("samsum", "grammar", "alpaca_cleaned", "slimorca").index(cell["dataset"])
    return {"s": order + 1.0, "launch_s": 0.4 - 0.1 * order}


def synchronising(cell: Cell) -> Figures:
    """Launches spread 1.3 times, synchronisation 1.2 times."""
    return {"launch_s": 1.3, "sync_s": 1.2} if cell["dataset"] == "grammar" else {"launch_s": 1.0, "sync_s": 1.0}


def dpo_calls(cell: Cell) -> Figures:
    """LoRA with instruct is above the rest of LoRA, and below DPO."""
    is_first = (cell["method"], cell["template"]) == ("lora", "instruct")
    return {"gather_s": 9.0 if cell["method"] == "dpo" else 1.2 if is_first else 1.0}


def photographs(cell: Cell) -> Figures:
    """At 300 px the DataLoader loses beyond 2 GPUs; at 500 px, which the paper could not run, it gains."""
    loses = cell["loader"] == "torch" and cell["gpus"] > 2
    return {"s": 1.0 if not loses else 1.5 if cell["dataset.image_size"] == 300 else 0.5}


FAILS = "does not hold"
QLORA = {"method": "qlora", "gpus": 4}
FOOLING: list[tuple[str, Callable[[Cell], Figures], str]] = [
    ("ddp-ds-scales", along("gpus", {1: 1.0, 2: 0.6, 3: 0.9, 4: 0.9}, strategy="ddp_ds"), FAILS),
    ("large-images-pay", along("gpus", {1: 1.0, 2: 0.5, 3: 0.6, 4: 0.4}), FAILS),
    ("pinned-gain-by-gpus", along("gpus", {1: 1.3, 2: 1.05, 3: 2.0, 4: 1.2}, pin_memory=False), FAILS),
    ("precision-copies-most", falling(copy_s=4.0, memcpy_s=4.0, comm_s=100.0), FAILS),
    ("precision-copies-most", falling(copy_s=4.0, memcpy_s=4.0, destroy_s=12.8), FAILS),
    ("precision-copies-most", falling(copy_s=4.0, memcpy_s=1.0, broadcast_s=3.0), FAILS),
    ("dataloader-pauses", along("gpus", {1: 0.5, 2: 0.5, 3: 0.55, 4: 0.55}, "first_batch"), FAILS),
    ("dataloader-pauses", along("gpus", {1: 0.001, 2: 0.001, 3: 0.002, 4: 0.002}, "first_batch"), FAILS),
    ("dataloader-loses-beyond-2-gpus", photographs, "holds"),
    ("nhwc-explains-dali", along("layout", {"nchw": 1.5, "nhwc": 0.3}, loader="torch"), FAILS),
    ("iteration-by-gpus", along("gpus", {1: 1.0, 2: 5.0, 3: 2.5, 4: 2.5}), FAILS),
    ("iteration-by-gpus", along("gpus", {1: 1.0, 2: 1.2, 3: 0.5, 4: 1.2}), FAILS),
    ("total-by-gpus", along("gpus", {1: 1.0, 2: 0.6, 3: 0.9, 4: 0.5}), FAILS),
    ("time-falls-with-gpus", along("gpus", {1: 1.0, 2: 0.6, 3: 0.9, 4: 0.5}, method="dpo"), FAILS),
    ("launches-follow-iterations", launches, FAILS),
    ("synchronising-varies-less", synchronising, FAILS),
    ("launches-not-copies", everywhere(waiting=0.8, copy_s=5.0), FAILS),
    ("copies-insignificant", along("dataset", {"samsum": 0.2}, "copy_s"), FAILS),
    ("lora-fastest", beyond("s", 0.9, **QLORA), "holds"),
    ("lora-fastest", beyond("s", 0.9, method="qlora", gpus=1), FAILS),
    ("qlora-pays-with-time", beyond("s", 0.9, **QLORA), "holds"),
    ("qlora-memory", beyond("memory", 1.1, **QLORA), "holds"),
    ("qlora-memory", beyond("memory", 1.1, method="qlora", gpus=1), FAILS),
    ("lora-instruct-calls", dpo_calls, FAILS),
    ("first-calls", everywhere(event_s=3.0, launch_s=3.0, copy_s=0.1, sync_s=30.0), FAILS),
    ("dpo-and-qat-synchronise", along("method", {"lora": 0.5, "dpo": 0.55, "qat": 0.55}, "sync_s"), FAILS),
    ("dpo-memory-falls", along("gpus", {1: 1.0, 2: 2.0, 3: 5.0, 4: 1.0}, "memory"), FAILS),
    ("lora-memory-stays", along("gpus", {1: 1.1, 2: 1.0, 3: 3.0, 4: 1.0}, "memory"), FAILS),
]
