"""Every claim that the two papers make is tested, or cannot be; and the papers' own figures refute none but those that
their notes name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis import experiments
from analysis.claims import CLAIMS, judge, named
from analysis.runs import load
from tests.helpers import claim_worlds, records
from tests.helpers.claim_worlds import Cell

# What the two papers claim, numbered in the order of 2503.15252 and then of 2505.22905: the claims that test it
TESTED = {
    1: "ddp-ds-scales",
    2: "ddp-rr-does-not",
    3: "ddp-does-not",
    4: "large-images-pay",
    5: "small-images-do-not",
    6: "large-images-take-longer",
    7: "large-images-are-more-accurate",
    8: "accuracy-within-20-epochs",
    9: "accuracy-within-3-epochs",
    10: "fp32-over-fp64",
    11: "fp16-over-fp64",
    12: "fp16-over-fp32",
    13: "precision-accuracy",
    15: "precision-copies precision-volume",
    16: "precision-memcpy",
    17: "precision-copies-most",
    18: "precision-broadcast",
    19: "precision-event-destroy",
    20: "pinned-gain",
    21: "pinned-gain-by-gpus",
    22: "pinned-nccl",
    23: "nccl-by-gpus",
    24: "small-images-launch-and-gather",
    25: "pinned-copies",
    26: "pinned-synchronises",
    27: "fp64-converges-slower",
    28: "loss-alike",
    29: "loss-alike",
    30: "ddp-ds-copies-less",
    31: "ddp-multiplies-work",
    32: "ddp-rr-copies-everything",
    33: "precision-memory",
    34: "nsys-costs-little",
    35: "dali-over-dataloader",
    36: "dataloader-loses-beyond-2-gpus",
    37: "dali-does-not-lose",
    38: "dataloader-pauses",
    39: "dali-does-not-pause",
    40: "reading-takes-long",
    41: "dataloader-needs-memory",
    42: "dataloader-copies-alike",
    43: "nhwc-level-with-dali",
    44: "nhwc-loses-beyond-2-gpus",
    45: "nhwc-over-nchw",
    46: "nhwc-explains-dali",
    47: "iteration-by-gpus",
    48: "iteration-by-gpus",
    49: "total-by-gpus",
    50: "alpaca-longest slimorca-longest",
    51: "pinned-tuning",
    52: "launches-not-copies",
    53: "launches-follow-iterations",
    54: "synchronising-varies-less",
    55: "copies-insignificant",
    56: "pinned-tuning-copies",
    57: "lora-fastest",
    58: "qlora-and-qat-slowest",
    59: "qat-slower-than-dpo",
    60: "grammar-fastest",
    61: "summarize-like-instruct",
    62: "time-by-file-size",
    63: "time-falls-with-gpus",
    64: "lora-over-dpo",
    65: "calls-largest-for-qat",
    66: "lora-instruct-calls",
    67: "first-calls",
    68: "dpo-and-qat-synchronise",
    69: "methods-differ-more",
    70: "dpo-memory-doubles",
    71: "dpo-memory-falls",
    72: "lora-memory-stays",
    73: "qlora-memory",
    74: "qat-needs-4-gpus",
    75: "grammar-memory",
    76: "instruct-memory",
    77: "bytes-over-lora",
    78: "qat-bytes-like-dpo",
    79: "grammar-bytes",
    80: "lora-memory",
    81: "qlora-pays-with-time",
    82: "qat-memory",
    83: "up-to-47-percent-time",
    84: "up-to-39-percent-memory",
    85: "up-to-52-percent-traffic",
}
NOT_TESTED = {14: "that more GPUs leave the accuracy is in neither paper"}

PRECISIONS = ("fp64", "fp32", "fp16")
TABLE_2_S = {"fp64": [6266, 3339, 2318, 1937], "fp32": [3721, 2094, 1483, 1256], "fp16": [2477, 1445, 1049, 919]}
TABLE_2_PERCENT = {
    "fp64": [99.43, 99.20, 98.70, 99.32],
    "fp32": [99.32, 99.24, 99.03, 98.88],
    "fp16": [99.57, 97.94, 99.21, 99.20],
}
TABLE_3_S = {False: [3792, 2205, 1579, 1358], True: [2921, 1733, 1283, 1165]}
TABLE_5_ITERATION_S = {False: [0.77, 0.93, 0.90, 0.94], True: [0.77, 0.92, 0.90, 0.91]}
TABLE_5_S = {False: [19912, 12030, 7795, 6092], True: [19904, 11841, 7797, 5878]}
METRICS_S = {  # of the text under Table 2
    "copy_s": [226, 104, 50],
    "memcpy_s": [1334, 724, 478],
    "broadcast_s": [40, 27, 15],
    "destroy_s": [205, 84, 16],
}
FIGURE_4_S = {  # pinned memory, GPUs: of 500 px, as far as they are printed
    (False, 2): {"copy_s": 101, "sync_s": 1.3, "comm_s": 7},
    (False, 4): {"copy_s": 85, "sync_s": 1.3, "comm_s": 39},
    (True, 2): {"copy_s": 16, "sync_s": 18},
    (True, 4): {"copy_s": 16, "sync_s": 18, "comm_s": 63},
}
SMALL_COPY_S = {(False, 2): 3.6, (False, 4): 3.1, (True, 2): 0.66, (True, 4): 0.66}  # of 100 px


def table_2(cell: Cell) -> dict[str, Any]:
    at, number = cell["precision"], cell["gpus"] - 1
    return {"s": TABLE_2_S[at][number] / 21, "accuracy": TABLE_2_PERCENT[at][number] / 100}


def metrics(cell: Cell) -> dict[str, Any]:
    return {name: float(values[PRECISIONS.index(cell["precision"])]) for name, values in METRICS_S.items()}


def table_3(cell: Cell) -> dict[str, Any]:
    return {"s": TABLE_3_S[cell["pin_memory"]][cell["gpus"] - 1] / 21}


def table_5(cell: Cell) -> dict[str, Any]:
    number = cell["gpus"] - 1
    return {"s": TABLE_5_ITERATION_S[cell["pin_memory"]][number], "total_s": TABLE_5_S[cell["pin_memory"]][number]}


def data_sets(cell: Cell) -> dict[str, Any]:
    """Of alpaca-cleaned those of Table 5 without pinned memory; of SlimOrca more and of others less, as printed."""
    factor = {"alpaca_cleaned": 1.0, "slimorca": 1.2}.get(cell["dataset"], 0.7)
    return {name: factor * value for name, value in table_5(cell | {"pin_memory": False}).items()}


def figure_4(cell: Cell) -> dict[str, Any]:
    at = cell["pin_memory"], cell["gpus"]
    return FIGURE_4_S[at] if cell["dataset.image_size"] == 500 else {"copy_s": SMALL_COPY_S[at]}


def collectives(cell: Cell) -> dict[str, Any] | None:
    figures = figure_4(cell)
    return figures if "comm_s" in figures else None


HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
Printed = Callable[[Cell], dict[str, Any] | None]
WORLDS: dict[str, tuple[Printed, dict[str, str]]] = {
    "table2": (
        table_2,
        {
            "fp16-over-fp64": HOLDS,
            "fp32-over-fp64": HOLDS,
            "fp16-over-fp32": HOLDS,
            "accuracy-within-20-epochs": UNDECIDED,  # 97.94 % of 10,000 answers
            "precision-accuracy": UNDECIDED,  # 1.26 points less, of the same answers
        },
    ),
    "precision_metrics": (
        metrics,
        {
            "precision-copies": HOLDS,
            "precision-memcpy": FAILS,
            "precision-broadcast": FAILS,
            "precision-event-destroy": FAILS,
        },
    ),
    "table3": (table_3, {"pinned-gain": HOLDS, "pinned-gain-by-gpus": HOLDS}),
    "table5": (table_5, {"pinned-tuning": UNDECIDED}),  # 0.94 s to 0.91 s is too near to 5 % for single runs
    "datasets": (
        data_sets,
        {"iteration-by-gpus": HOLDS, "total-by-gpus": HOLDS, "alpaca-longest": HOLDS, "slimorca-longest": HOLDS},
    ),
    "vision_metrics": (figure_4, {"pinned-copies": HOLDS}),
    "vision_metrics of 500 px": (
        lambda cell: figure_4(cell) if cell["dataset.image_size"] == 500 else None,
        {"pinned-synchronises": HOLDS},
    ),
    "vision_metrics of collectives": (collectives, {"nccl-by-gpus": HOLDS, "pinned-nccl": HOLDS}),
}


def test_each_claim_of_the_papers_has_a_test_or_a_reason():
    names = {name for tested in TESTED.values() for name in tested.split()}
    assert sorted({*TESTED, *NOT_TESTED}) == list(range(1, 86)) and not {*TESTED} & {*NOT_TESTED}
    assert names == {claim.name for claim in CLAIMS}


@pytest.mark.parametrize("name", WORLDS)
def test_the_papers_own_figures_refute_no_claim_but_those_whose_note_says_so(name: str, tmp_path: Path):
    printed, expected = WORLDS[name]
    experiment = name.split(maxsplit=1)[0]
    claim_worlds.write_repeated(tmp_path, experiment, apart=0.001)
    for index, cell in enumerate(claim_worlds.grid(experiment)):
        figures = printed(cell)
        if figures is None:
            continue
        record, step_s = claim_worlds.run(experiments.load(experiment).kind, cell, figures, 0, {})
        record["total_s"] = figures.get("total_s", record["total_s"])
        if "destroy_s" in figures:
            record["profile"] |= {"source": "nsys"}  # which alone records cudaEventDestroy
        records.write(tmp_path / str(index), record, None if step_s is None else records.steps(step_s))
    verdicts = judge(load.read([tmp_path]).runs, claims=named(list(expected)))
    assert {verdict.claim.name: verdict.verdict for verdict in verdicts} == expected
    for verdict in verdicts:
        assert verdict.verdict != FAILS or "papers' own figures" in verdict.claim.note


def test_bounds_of_printed_figures_leave_the_papers_own_repeatability():
    """Tables 2 and 3 have the times of one setting: fp32 without pinned memory."""
    ratios = [after / before for before, after in zip(TABLE_2_S["fp32"], TABLE_3_S[False], strict=True)]
    assert [round(100 * (ratio - 1), 1) for ratio in ratios] == [1.9, 5.3, 6.5, 8.1]
    least_percent = {"fp16-over-fp64": 110, "fp32-over-fp64": 54, "pinned-gain": 16, "lora-over-dpo": 30}
    for claim in named(list(least_percent)):
        (rule,) = claim.rules
        margin = 100 * ((1 + least_percent[claim.name] / 100) / max(ratios) - 1)
        assert rule.over == round(margin) and f"above {rule.over:.0f} %" in claim.test
