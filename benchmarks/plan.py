"""How good plans of jobs are: one table with every goal and what was reached.

    python -m benchmarks.plan [--quick]

Made lists of jobs show how far a plan is from a bound that none beats. Published tables (`estimate/published.py`) give
jobs of mixed kinds on nodes of 8 GPUs, compared with one job after the other on all GPUs. --quick takes fewer lists,
and 2 s for each.
"""

import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, parser
from multicard.decide.plan import planning, tasks
from multicard.decide.plan.jobs_file import SLOWDOWN, Job, JobsFile
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.tasks import PlannedNode
from multicard.estimate import published
from multicard.estimate.published import Series
from multicard.measure.timing import clock_s
from multicard.records import text_table
from multicard.records.schema_parts import Interval

GPUS = 8
COUNTS = (1, 2, 4, 8)
LIMIT_S = 10.0
GAP_GOAL, SAVED_GOALS = 0.03, {"A100": 0.20, "H100": 0.10}
NODES = {"A100": ("lambda", "A100 80GB SXM4"), "H100": ("lambda", "H100 80GB SXM5")}  # source and node of the tables
NONE = Interval(1.0, 1.0, 1.0)
Row = tuple[str, str, str, str]  # what, goal, reached, met


def planned(jobs: Sequence[Job], gpus: int, limit_s: float, slowdown: Interval = SLOWDOWN) -> Plan:
    file, node = JobsFile(tuple(jobs), slowdown=slowdown), PlannedNode(gpus)
    return planning.make(tasks.tasks(file, node, tasks.runs(file, node, Path())), gpus, limit_s)


def made_jobs(number: int, seed: int) -> list[Job]:
    """Jobs of 15 minutes to 8 hours on some numbers of GPUs, which scale by Amdahl's law with a serial part of 0 to
    30 %; one of four waits for one before it."""
    generator = random.Random(seed)
    jobs: list[Job] = []
    for place in range(number):
        single_s = 900 * math.exp(generator.uniform(0, math.log(32)))
        serial = generator.uniform(0, 0.3)
        allowed = sorted(generator.sample(COUNTS, generator.choice((1, 2, 3, 4, 4))))
        seconds = {gpus: single_s * (serial + (1 - serial) / gpus) for gpus in allowed}
        after = jobs[generator.randrange(place)].name if place and generator.random() < 0.25 else None
        jobs.append(Job(f"job{place}", seconds=seconds, after=after))
    return jobs


def gap_row(limit_s: float, seeds: int) -> Row:
    plans, slowest_s = list[Plan](), 0.0
    for number, seed in ((number, seed) for number in (8, 16, 24) for seed in range(seeds)):
        began_s = clock_s()
        plans.append(planned(made_jobs(number, seed), GPUS, limit_s))
        slowest_s = max(slowest_s, clock_s() - began_s)
    gaps = [plan.gap for plan in plans]
    simple_s = [min(plan.in_turn.makespan_s, plan.one_gpu_each.makespan_s) for plan in plans]
    never_worse = all(plan.schedule.makespan_s <= s * (1 + 1e-9) for plan, s in zip(plans, simple_s, strict=True))
    within = sum(gap <= GAP_GOAL for gap in gaps)
    reached = f"worst {max(gaps):.1%}, median {statistics.median(gaps):.1%}, {within} of {len(gaps)} within; "
    reached += f"at most {slowest_s:.1f} s; {'never worse' if never_worse else 'WORSE'} than the simple plans"
    met = within == len(gaps) and slowest_s <= LIMIT_S + 1 and never_worse
    return "gap to the bound, 8, 16 and 24 jobs on 8 GPUs", "<= 3% within 10 s", reached, "yes" if met else "no"


def printed_rows(family: str, is_sound: bool) -> list[Series]:
    """The workloads of the family's node, all that are printed or those without defects."""
    rows = published.sound() if is_sound else published.table()
    return [row for row in rows if (row.source, row.node) == NODES[family] and set(COUNTS) <= row.rates.keys()]


def published_jobs(rows: Sequence[Series], number: int, seed: int) -> list[Job]:
    """Jobs of the node's workloads by turns, of half an hour to four hours on one GPU; on more GPUs as many samples."""
    generator = random.Random(seed)
    turns = generator.sample([*rows], len(rows))
    jobs = []
    for place in range(number):
        row = turns[place % len(turns)]
        single_s = generator.uniform(1800, 14400)
        seconds = {gpus: single_s * row.rates[1] / row.rates[gpus] for gpus in COUNTS}
        jobs.append(Job(f"{row.workload}-{place}", seconds=seconds))
    return jobs


def published_row(family: str, number: int, limit_s: float, seeds: int) -> Row:
    """The time saved (median of the lists and range): as printed, with the assumed slowdown, without defective rows."""
    users = f"slowdown {SLOWDOWN.value:g}"
    variants = {"as printed": (False, NONE), users: (False, SLOWDOWN), "rows without defects alone": (True, NONE)}
    medians, parts, gaps = dict[str, float](), list[str](), list[float]()
    for name, (is_sound, slowdown) in variants.items():
        lists = [published_jobs(printed_rows(family, is_sound), number, seed) for seed in range(seeds)]
        plans = [planned(jobs, GPUS, limit_s, slowdown) for jobs in lists]
        saved = [1 - plan.schedule.makespan_s / plan.in_turn.makespan_s for plan in plans]
        medians[name] = statistics.median(saved)
        parts.append(f"{medians[name]:.0%} ({min(saved):.0%} to {max(saved):.0%}) {name}")
        gaps += [plan.gap for plan in plans]
    what = f"{number} jobs of published tables on 8 x {NODES[family][1]}: less than in turn (median of {seeds} lists)"
    goal = SAVED_GOALS[family]
    reached = f"{', '.join(parts)}; gap at most {max(gaps):.1%}"
    return what, f">= {goal:.0%}", reached, "yes" if medians[users] >= goal else "no"


def main() -> None:
    commands = parser(__doc__)
    commands.add_argument("--quick", action="store_true", help="fewer lists of jobs, 2 s for each")
    options = commands.parse_args()
    limit_s, seeds = (2.0, 1) if options.quick else (LIMIT_S, 5)
    print(machine(), flush=True)
    rows = [gap_row(limit_s, seeds)]
    rows += [published_row(family, number, limit_s, seeds) for family in SAVED_GOALS for number in (8, 24)]
    for line in text_table.text(("what", "goal", "reached", "met"), rows, 160, wrap=True):
        print(line)


if __name__ == "__main__":
    main()
