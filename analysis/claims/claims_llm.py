"""What arXiv 2505.22905 says of tuning Llama3-8B."""

from collections.abc import Mapping
from typing import Any

from analysis.claims import measures as m
from analysis.claims.claim import HARDLY, LEVEL, NO_PLACE, Claim
from analysis.claims.rules import (
    FASTER,
    SHARE,
    TIMES,
    Bound,
    all_with,
    best_of,
    both,
    contrast,
    each,
    ends,
)

PAPER = "2505.22905"
THIRD_PARTY = "from a summary of the paper by others; not found in the paper itself"
LONGER = [("instruct", "grammar"), ("summarize", "instruct")]  # in tokens of 500 rows
BEST = "the best method against the worst of those measured, since the base line is defined nowhere; "


def _several(cell: Mapping[str, Any]) -> bool:
    return cell["gpus"] > 1


CLAIMS = (
    Claim(
        "iteration-by-gpus",
        "The time of an iteration grows up to 2 GPUs, then hardly",
        PAPER,
        "Fig. 10",
        "",
        "iteration on 2 GPUs / on 1 is above 1, and on 3 and 4 / on 2 is below 1.1, in each template",
        "datasets",
        both(
            contrast("gpus", [(2, 1)], m.iteration, TIMES, Bound(over=1.0)),
            contrast("gpus", [(3, 2), (4, 2)], m.iteration, TIMES, Bound(under=1 + HARDLY / 100)),
        ),
    ),
    Claim(
        "iteration-by-rows",
        "Longer rows take longer",
        PAPER,
        "Fig. 10",
        "500 rows have 28,683 tokens (grammar), 59,330 (instruct), 83,544 (summarize)",
        "iteration with instruct / with grammar, and with summarize / with instruct, is above 1 at each number of GPUs",
        "datasets",
        contrast("template", LONGER, m.iteration, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "pinned-tuning",
        "Pinned memory is negligible in tuning",
        PAPER,
        "Table 5",
        "",
        "iteration without pinned memory / with it is between 0.95 and 1.05 at each number of GPUs",
        "table5",
        contrast("pin_memory", [(False, True)], m.iteration, TIMES, Bound(1 - LEVEL / 100, 1 + LEVEL / 100)),
    ),
    Claim(
        "lora-over-dpo",
        "LoRA is 30 to 40 % faster than DPO",
        PAPER,
        NO_PLACE,
        "30 to 40 %",
        "iteration with DPO / with LoRA - 1 is above 30 %, their least, in each template and number of GPUs; more is "
        "no contradiction",
        "template_scaling",
        contrast("method", [("dpo", "lora")], m.iteration, FASTER, Bound(over=30.0)),
    ),
    Claim(
        "dpo-memory-doubles",
        "DPO's memory doubles on 2 GPUs",
        PAPER,
        "Fig. 16",
        "",
        "peak memory of a GPU with DPO on 2 GPUs / on 1 is between 1.8 and 2.2",
        "peak_memory",
        contrast("gpus", [(2, 1)], m.memory, TIMES, Bound(1.8, 2.2), lambda cell: cell["method"] == "dpo"),
    ),
    Claim(
        "qat-needs-4-gpus",
        "QAT needs 4 GPUs",
        PAPER,
        NO_PLACE,
        "",
        "QAT runs out of memory on 1 and 2 GPUs, and ends well on 4; without all three it is undecided",
        "peak_memory",
        ends("qat", {1: "oom", 2: "oom", 4: "ok"}),
        whole=True,
    ),
    Claim(
        "grammar-fastest",
        "Error correction (grammar) is the fastest template",
        PAPER,
        "Fig. 13",
        "",
        "iteration with another template / with grammar is above 1, in each method and number of GPUs",
        "templates",
        contrast("template", all_with("grammar", on_top=False), m.iteration, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "bytes-over-lora",
        "QAT and DPO move over 4 times LoRA's bytes",
        PAPER,
        "Fig. 17",
        "over 4 times",
        "bytes to the devices plus those that all ranks receive in collectives, of QAT and of DPO / of LoRA, are above "
        "4 on each number of several GPUs (on one, nothing moves between them)",
        "transfer_volume",
        contrast("method", [("qat", "lora"), ("dpo", "lora")], m.moved, TIMES, Bound(over=4.0), _several),
    ),
    Claim(
        "lora-memory",
        "LoRA takes less memory than DPO",
        PAPER,
        NO_PLACE,
        "",
        "peak memory of a GPU with DPO / with LoRA is above 1 at each number of GPUs",
        "peak_memory",
        contrast("method", [("dpo", "lora")], m.memory, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "qlora-memory",
        "QLoRA takes least memory",
        PAPER,
        NO_PLACE,
        "",
        "peak memory of a GPU with each other method / with QLoRA is above 1 at each number of GPUs",
        "peak_memory",
        contrast("method", all_with("qlora", on_top=False), m.memory, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "qat-slowest",
        "QAT is the slowest",
        PAPER,
        NO_PLACE,
        "",
        "iteration with QAT / with each other method is above 1, in each template and number of GPUs",
        "templates",
        contrast("method", all_with("qat", on_top=True), m.iteration, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "qat-memory",
        "QAT takes most memory",
        PAPER,
        NO_PLACE,
        "",
        "peak memory of a GPU with QAT / with each other method is above 1 at each number of GPUs",
        "peak_memory",
        contrast("method", all_with("qat", on_top=True), m.memory, TIMES, Bound(over=1.0)),
    ),
    Claim(
        "launches-not-copies",
        "Kernel launches and synchronisation, not copies, take most of the time in CUDA calls",
        PAPER,
        "Figs. 11, 12, 15",
        "",
        "launching kernels and synchronising take above 50 % of a rank's time in CUDA calls, in each method and number "
        "of GPUs; a single rank has no interval, and is left out where there are others",
        "llm_api_share",
        each("launching and synchronising", m.calling, SHARE, Bound(over=50.0)),
    ),
    Claim(
        "up-to-47-percent-time",
        "Up to 47 % less time of an iteration",
        PAPER,
        "not in it",
        "up to 47 %",
        BEST + "1 - best / worst reaches 47 % in a template and number of GPUs",
        "templates",
        best_of("method", "step_s", m.iteration, Bound(over=47.0)),
        reached=True,
        note=THIRD_PARTY,
    ),
    Claim(
        "up-to-39-percent-memory",
        "Up to 39 % less peak memory",
        PAPER,
        "not in it",
        "up to 39 %",
        BEST + "1 - best / worst reaches 39 % at a number of GPUs",
        "peak_memory",
        best_of("method", "peak_memory_bytes", m.memory, Bound(over=39.0)),
        reached=True,
        note=THIRD_PARTY,
    ),
    Claim(
        "up-to-52-percent-traffic",
        "Up to 52 % less traffic between GPUs",
        PAPER,
        "not in it",
        "up to 52 %",
        BEST + "1 - best / worst, of the bytes that a rank receives in collectives, reaches 52 % at a number of GPUs",
        "transfer_volume",
        best_of("method", "received_bytes", m.between_ranks, Bound(over=52.0), _several),
        reached=True,
        note=THIRD_PARTY,
    ),
)
