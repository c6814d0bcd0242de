"""Every claim that the two papers make is tested, or cannot be; and the papers' own figures refute none but those that
their notes name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.claims import CLAIMS, judge, named
from analysis.runs import load
from tests.helpers import claim_worlds
from tests.helpers.claim_worlds import Cell, Figures

# What the two papers claim, in the order of 2503.15252 and then of 2505.22905: the claims that test it
TESTED = """
ddp-ds-scales, ddp-rr-does-not, ddp-does-not, large-images-pay, small-images-do-not, large-images-take-longer,
large-images-are-more-accurate, accuracy-within-20-epochs, accuracy-within-3-epochs, fp32-over-fp64, fp16-over-fp64,
fp16-over-fp32, precision-accuracy, -, precision-copies + precision-volume, precision-memcpy, precision-copies-most,
precision-broadcast, precision-event-destroy, pinned-gain, pinned-gain-by-gpus, pinned-nccl, nccl-by-gpus,
small-images-launch-and-gather, pinned-copies, pinned-synchronises, fp64-converges-slower, loss-alike, loss-alike,
ddp-ds-copies-less, ddp-multiplies-work, ddp-rr-copies-everything, precision-memory, nsys-costs-little,
dali-over-dataloader, dataloader-loses-beyond-2-gpus, dali-does-not-lose, dataloader-pauses, dali-does-not-pause,
reading-takes-long, dataloader-needs-memory, dataloader-copies-alike, nhwc-level-with-dali,
nhwc-loses-beyond-2-gpus, nhwc-over-nchw, nhwc-explains-dali, iteration-by-gpus, iteration-by-gpus, total-by-gpus,
alpaca-longest + slimorca-longest, pinned-tuning, launches-not-copies, launches-follow-iterations,
synchronising-varies-less, copies-insignificant, pinned-tuning-copies, lora-fastest, qlora-and-qat-slowest,
qat-slower-than-dpo, grammar-fastest, summarize-like-instruct, time-by-file-size, time-falls-with-gpus,
lora-over-dpo, calls-largest-for-qat, lora-instruct-calls, first-calls, dpo-and-qat-synchronise,
methods-differ-more, dpo-memory-doubles, dpo-memory-falls, lora-memory-stays, qlora-memory, qat-needs-4-gpus,
grammar-memory, instruct-memory, bytes-over-lora, qat-bytes-like-dpo, grammar-bytes, lora-memory,
qlora-pays-with-time, qat-memory, up-to-47-percent-time, up-to-39-percent-memory, up-to-52-percent-traffic
"""
NOT_TESTED = {14: "that more GPUs leave the accuracy is in neither paper"}  # by its place in the list

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


def table_2(cell: Cell) -> Figures:
    at, number = cell["precision"], cell["gpus"] - 1
    return {"s": TABLE_2_S[at][number] / 21, "accuracy": TABLE_2_PERCENT[at][number] / 100}


def metrics(cell: Cell) -> Figures:
    number = PRECISIONS.index(cell["precision"])
    return {"nsys": 1.0} | {name: float(values[number]) for name, values in METRICS_S.items()}


def table_3(cell: Cell) -> Figures:
    return {"s": TABLE_3_S[cell["pin_memory"]][cell["gpus"] - 1] / 21}


def table_5(cell: Cell) -> Figures:
    number = cell["gpus"] - 1
    return {"s": TABLE_5_ITERATION_S[cell["pin_memory"]][number], "total_s": TABLE_5_S[cell["pin_memory"]][number]}


def data_sets(cell: Cell) -> Figures:
    """alpaca-cleaned as in Table 5 without pinned memory; SlimOrca takes more and others less, as printed."""
    factor = {"alpaca_cleaned": 1.0, "slimorca": 1.2}.get(cell["dataset"], 0.7)
    return {name: factor * value for name, value in table_5(cell | {"pin_memory": False}).items()}


def figure_4(cell: Cell) -> Figures:
    at = cell["pin_memory"], cell["gpus"]
    return FIGURE_4_S[at] if cell["dataset.image_size"] == 500 else {"copy_s": SMALL_COPY_S[at]}


def of_500_px(cell: Cell) -> Figures | None:
    return figure_4(cell) if cell["dataset.image_size"] == 500 else None


def collectives(cell: Cell) -> Figures | None:
    figures = figure_4(cell)
    return figures if "comm_s" in figures else None


# By experiment, what the papers print of its cells, and the verdicts on the claims that do not hold
PRINTED: list[tuple[str, Callable[[Cell], Figures | None], str, dict[str, str]]] = [
    (
        "table2",
        table_2,
        "fp16-over-fp64 fp32-over-fp64 fp16-over-fp32",
        dict.fromkeys(("accuracy-within-20-epochs", "precision-accuracy"), "undecided"),  # 97.94 % of 10,000 answers
    ),
    (
        "precision_metrics",
        metrics,
        "precision-copies",
        dict.fromkeys(("precision-memcpy", "precision-broadcast", "precision-event-destroy"), "does not hold"),
    ),
    ("table3", table_3, "pinned-gain pinned-gain-by-gpus", {}),
    ("table5", table_5, "", {"pinned-tuning": "undecided"}),  # 0.94 s to 0.91 s is too near to 5 % for single runs
    ("datasets", data_sets, "iteration-by-gpus total-by-gpus alpaca-longest slimorca-longest", {}),
    ("vision_metrics", figure_4, "pinned-copies", {}),
    ("vision_metrics", of_500_px, "pinned-synchronises", {}),
    ("vision_metrics", collectives, "nccl-by-gpus pinned-nccl", {}),
]


def test_each_claim_of_the_papers_has_a_test_or_a_reason():
    tested = [entry.strip() for entry in TESTED.split(",")]
    assert len(tested) == 85 and {number for number, entry in enumerate(tested, 1) if entry == "-"} == {*NOT_TESTED}
    names = {name for entry in tested if entry != "-" for name in entry.split(" + ")}
    assert names == {claim.name for claim in CLAIMS}


@pytest.mark.parametrize(("experiment", "printed", "hold", "others"), PRINTED)
def test_the_papers_own_figures_refute_no_claim_but_those_whose_note_says_so(
    experiment: str, printed: Callable[[Cell], Figures | None], hold: str, others: dict[str, str], tmp_path: Path
):
    claim_worlds.write_repeated(tmp_path, experiment, apart=0.001)
    for index, cell in enumerate(claim_worlds.grid(experiment)):
        figures = printed(cell)
        if figures is not None:
            claim_worlds.write_run(tmp_path / str(index), experiment, cell, figures)
    expected = dict.fromkeys(hold.split(), "holds") | others
    verdicts = judge(load.read([tmp_path]).runs, claims=named(list(expected)))
    assert {verdict.claim.name: verdict.verdict for verdict in verdicts} == expected
    for verdict in verdicts:
        assert verdict.verdict != "does not hold" or "papers' own figures" in verdict.claim.note


def test_bounds_of_printed_figures_leave_the_papers_own_repeatability():
    """Tables 2 and 3 have the times of one setting: fp32 without pinned memory."""
    ratios = [after / before for before, after in zip(TABLE_2_S["fp32"], TABLE_3_S[False], strict=True)]
    assert [round(100 * (ratio - 1), 1) for ratio in ratios] == [1.9, 5.3, 6.5, 8.1]
    least_percent = {"fp16-over-fp64": 110, "fp32-over-fp64": 54, "pinned-gain": 16, "lora-over-dpo": 30}
    for claim in named(list(least_percent)):
        (rule,) = claim.rules
        margin = 100 * ((1 + least_percent[claim.name] / 100) / max(ratios) - 1)
        assert rule.over == round(margin)
