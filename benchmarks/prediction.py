"""Accuracy of predictions: one table with every goal, the value to beat, and the value reached.

    python -m benchmarks.prediction [--full]

Published tables are replayed: the model never sees the family of GPUs that it predicts. Rows with defects are left out;
`multicard/estimate/published.csv` has the reasons. Peaks of memory are computed anew, of a few cells or, with --full,
of all. Totals are those of `prediction_runs.csv`, whose runs on CPU ranks were predicted from their probes alone.
"""

import csv
import re
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import prediction_replays as replays
from benchmarks.common import configuration, machine, parser, python
from multicard.estimate import published
from multicard.estimate.memory import answers
from multicard.estimate.memory.answers import Request
from multicard.estimate.memory.facts import TextFacts
from multicard.estimate.published import Series
from multicard.measure.timing import clock_s
from multicard.records import text_table

RUNS = Path(__file__).with_name("prediction_runs.csv")
QUICK_CELLS = "width=0.25 dataset.image_size=64 precision=fp32 strategy=ddp_ds"
LLAMA = ("model=llama3_8b", "tokenizer=embedded", "dataset=synthetic", "device=cpu")


class Row(NamedTuple):
    what: str
    to_beat: str
    goal: str
    reached: str
    verdict: str


def verdict(*reached: bool) -> str:
    return "yes" if all(reached) else "no"


def scaling_row(outcomes: Sequence[replays.Outcome]) -> Row:
    median, mean = replays.errors(outcomes)
    width, covered = replays.half_width(outcomes), replays.covered(outcomes)
    reached = f"{median:.2%}, {mean:.2%}; ±{width:.1%}, {covered:.0%} covered ({len(outcomes)} cases)"
    met = verdict(median <= 0.015, mean <= 0.03, width <= 0.08, 0.88 <= covered <= 0.95)
    goal = "<= 1.5%, <= 3%; <= ±8%, 88-95% covered"
    return Row("T(8) from T(1), T(2), Lambda fp16: median, mean; interval", "1.8%, 3.6%; ±12%", goal, reached, met)


def papers_row() -> Row:
    outcomes = replays.papers_totals()
    median, covered = replays.errors(outcomes)[0], replays.covered(outcomes)
    reached = f"{median:.1%}, {covered:.0%} inside ({len(outcomes)} times)"
    met = verdict(median <= 0.02, covered == 1.0)
    return Row("papers' Tables 2, 3: T(3), T(4) from T(1), T(2)", "1.1-3.2%", "<= 2% median, all inside", reached, met)


def precision_row(probed: bool) -> Row:
    what, to_beat, goal = "a precision that was not probed", "9.8%", 0.09
    if probed:
        what, to_beat, goal = "a precision with a probe on one GPU", "-", 0.04
    by_source = replays.precisions(probed)
    pooled = [outcome for outcomes in by_source.values() for outcome in outcomes]
    median = replays.errors(pooled)[0]
    parts = [f"{source} {replays.errors(own)[0]:.1%} of {len(own)}" for source, own in by_source.items()]
    reached = f"{median:.1%}, {replays.covered(pooled):.0%} covered ({', '.join(parts)})"
    return Row(f"{what}: median", to_beat, f"<= {goal:.0%}", reached, verdict(median <= goal))


def totals_row() -> Row:
    with RUNS.open(newline="") as lines:
        ran = [row for row in csv.DictReader(lines) if row["total_s"]]
    measured = [row for row in ran if row["predicted_s"]]
    figures = ("predicted_s", "low_s", "high_s", "total_s")
    outcomes = [replays.Outcome(*(float(row[name]) for name in figures)) for row in measured]
    median = replays.errors(outcomes)[0]
    covered = replays.covered(outcomes)
    entries = Counter(f"{row['entry']} on {row['gpus']}" for row in measured)
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(entries.items()))
    unknown = f"; {len(ran) - len(measured)} not predicted" * (len(ran) > len(measured))
    reached = f"{median:.1%}, {covered:.0%} covered ({len(outcomes)} runs: {kinds}{unknown})"
    what, goal = "total time of a run from its probe, CPU ranks: median; interval", "<= 4%, 85-95% covered"
    return Row(what, "-", goal, reached, verdict(len(outcomes) >= 30, median <= 0.04, 0.85 <= covered <= 0.95))


def active_bytes_row(full: bool) -> Row:
    """By `benchmarks.prediction_memory`, which prints a line of JSON a cell, the last but one its error."""
    words = ["--gpus", "1", "--match", QUICK_CELLS] * (not full)
    printed = python("-m", "benchmarks.prediction_memory", *words)
    errors = [abs(float(percent)) / 100 for percent in re.findall(r'"([-+][\d.]+) %", "[\d.]+"\]', printed)]
    within = sum(error <= 0.02 for error in errors)
    reached = f"worst {max(errors):.2%}, {within} of {len(errors)} cells" + " (all with --full)" * (not full)
    what = "peak of active bytes against torch's tracker on the real run, CPU"
    return Row(what, "10%", "<= 2%", reached, verdict(within == len(errors)))


def llama_row(full: bool) -> Row:
    """Duration and memory of the process that computes a prediction, from start to end."""
    methods = ("lora", "qlora", "dpo", "qat", "full") if full else ("lora", "qat")
    cells = [(method, gpus) for method in methods for gpus in ((1, 2, 4, 8) if full else (1, 4))]
    seconds: list[float] = []
    failed: list[str] = []
    for method, gpus in cells:
        config = configuration("tune_llm", *LLAMA, f"method={method}", f"gpus={gpus}")
        started_s = clock_s()
        (peak,) = answers.computed([Request(config, TextFacts(128_256, 512))])
        seconds.append(clock_s() - started_s)
        failed += [f"{method} on {gpus}: {peak}"] * isinstance(peak, str)
    # The largest of the children that have ended, which are those of the row above too
    most_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    reached = f"at most {max(seconds):.0f} s, {most_bytes / 1e9:.1f} GB ({len(cells)} cells)"
    reached += f"; {len(failed)} failed: {failed[0]}" if failed else ""
    met = verdict(not failed, max(seconds) <= 20, most_bytes <= 3e9)
    return Row("a prediction for Llama3-8B, any method, 1 to 8 GPUs", "-", "<= 20 s, <= 3 GB", reached, met)


def lambda_fp16(table: Iterable[Series]) -> list[Series]:
    return [row for row in table if (row.source, row.precision) == ("lambda", "fp16")]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--full", action="store_true", help="all cells of memory, which takes half an hour")
    options.add_argument("--times", action="store_true", help="no row of memory")
    arguments = options.parse_args()
    rows = [scaling_row(replays.scaling_far(lambda_fp16(published.sound()))), papers_row()]
    rows += [precision_row(False), precision_row(True), totals_row()]
    if not arguments.times:
        rows += [active_bytes_row(arguments.full), llama_row(arguments.full)]
        needs = "needs a GPU: docs/measuring.md has what was measured on one"
        rows.append(Row("peak reserved on a GPU", "3%, ±10%", "<= 5%, <= 2% with a probe", needs, "-"))
    for line in text_table.text(("", "to beat", "goal", "reached", "met"), rows, 200, "lllll", wrap=True):
        print(line)
    count, sound = len(published.table()), len(published.sound())
    print(f"{count - sound} of {count} published rows left out for their defects; {machine()}")


if __name__ == "__main__":
    main()
