"""Measure how good plans of jobs are: how far are they from a bound that no plan can beat?

    python -m benchmarks.plan [--quick]

The lists of jobs are made at random. `--quick` plans fewer lists, with 2 s for each.
"""

import math
import random
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks import machine, parser
from multicard.decide.plan import planning, tasks
from multicard.decide.plan.jobs_file import JobsFile, PlannedJob
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.tasks import PlannedNode
from multicard.measure.timing import clock_s

GPUS = 8
COUNTS = (1, 2, 4, 8)
LIMIT_S = 10.0
GAP_GOAL = 0.03


def plan_jobs(jobs: Sequence[PlannedJob], limit_s: float) -> Plan:
    file = JobsFile(tuple(jobs))
    node = PlannedNode(GPUS)
    return planning.make(tasks.tasks(file, node, tasks.runs(file, node, Path())), GPUS, limit_s)


def random_jobs(number: int, seed: int) -> list[PlannedJob]:
    """Make jobs that take 15 minutes to 8 hours on one GPU.

    They scale by Amdahl's law with a serial part of 0 to 30 %, on some numbers of GPUs. A quarter
    of the jobs wait for an earlier one.
    """
    generator = random.Random(seed)
    jobs: list[PlannedJob] = []
    for place in range(number):
        single_s = 900 * math.exp(generator.uniform(0, math.log(32)))
        serial = generator.uniform(0, 0.3)
        allowed = sorted(generator.sample(COUNTS, generator.choice((1, 2, 3, 4, 4))))
        seconds = {gpus: single_s * (serial + (1 - serial) / gpus) for gpus in allowed}
        after = (
            jobs[generator.randrange(place)].name if place and generator.random() < 0.25 else None
        )
        jobs.append(PlannedJob(f"job{place}", seconds=seconds, after=after))
    return jobs


def measure_gaps(limit_s: float, seeds: int) -> list[str]:
    """Plan lists of 8, 16 and 24 jobs.

    Returns:
        Lines with the gaps to the bound, the longest time of planning, and whether the goal is met.
    """
    plans = list[Plan]()
    slowest_s = 0.0
    for number, seed in product((8, 16, 24), range(seeds)):
        began_s = clock_s()
        plans.append(plan_jobs(random_jobs(number, seed), limit_s))
        slowest_s = max(slowest_s, clock_s() - began_s)
    gaps = [plan.gap for plan in plans]
    simple_s = [min(plan.in_turn.makespan_s, plan.one_gpu_each.makespan_s) for plan in plans]
    never_worse = all(
        plan.schedule.makespan_s <= s * (1 + 1e-9) for plan, s in zip(plans, simple_s, strict=True)
    )
    within = sum(gap <= GAP_GOAL for gap in gaps)
    met = within == len(gaps) and slowest_s <= LIMIT_S + 1 and never_worse
    return [
        (
            f"gap to the bound, 8 to 24 jobs on {GPUS} GPUs; at most {GAP_GOAL:.0%} within"
            f" {LIMIT_S:.0f} s is the goal"
        ),
        (
            f"worst {max(gaps):.1%}, median {statistics.median(gaps):.1%}, {within} of"
            f" {len(gaps)} within"
        ),
        (
            f"at most {slowest_s:.1f} s; {'never worse' if never_worse else 'WORSE'} than the"
            " simple plans"
        ),
        f"goal {'met' if met else 'not met'}",
    ]


def main() -> None:
    commands = parser(__doc__)
    commands.add_argument("--quick", action="store_true", help="fewer lists of jobs, 2 s for each")
    print(machine(), flush=True)
    print(
        "\n".join(measure_gaps(2.0, 1) if commands.parse_args().quick else measure_gaps(LIMIT_S, 5))
    )


if __name__ == "__main__":
    main()
