"""How good plans of jobs are: one table with every goal and what was reached.

    python -m benchmarks.plan [--quick]

Made lists of jobs show how far a plan is from a bound that none beats. Published tables (`predict/published.py`)
give jobs of mixed kinds on nodes of 8 GPUs, compared with one job after the other on all GPUs. The papers' Table 2 has
four trainings in fp64 on four GPUs. --quick takes fewer lists, and 2 s for each.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.common import machine, parser
from multicard.decide.plan import durations, planning
from multicard.decide.plan.jobs_file import SLOWDOWN, Goal, Job, JobsFile, Node
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.planning import Plan
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


class Row(NamedTuple):
    what: str
    goal: str
    reached: str
    met: str


class Outcome(NamedTuple):
    plan: Plan
    seconds: float


def exact(seconds: float) -> Interval:
    return Interval(seconds, seconds, seconds)


def planned(jobs: Sequence[Job], gpus: int, limit_s: float, slowdown: Interval = SLOWDOWN) -> Outcome:
    file = JobsFile(tuple(jobs), Node(gpus), Goal.makespan, slowdown)
    began_s = clock_s()
    tasks = durations.tasks(file, PlannedNode(gpus, True))
    plan = planning.make(tasks.tasks, gpus, file.goal, limit_s)
    return Outcome(plan, clock_s() - began_s)


def made_jobs(number: int, seed: int) -> list[Job]:
    """Jobs of a quarter of an hour to eight hours, which scale by Amdahl's law with a serial part of 0 to 30 %, on
    numbers of GPUs of which some are not allowed; one of four waits for one before it."""
    generator = random.Random(seed)
    jobs: list[Job] = []
    for place in range(number):
        single_s = 900 * math.exp(generator.uniform(0, math.log(32)))
        serial = generator.uniform(0, 0.3)
        allowed = sorted(generator.sample(COUNTS, generator.choice((1, 2, 3, 4, 4))))
        seconds = {gpus: exact(single_s * (serial + (1 - serial) / gpus)) for gpus in allowed}
        after = (jobs[generator.randrange(place)].name,) if place and generator.random() < 0.25 else ()
        jobs.append(Job(f"job{place}", seconds=seconds, after=after))
    return jobs


def gap_row(limit_s: float, seeds: int) -> Row:
    outcomes = {(number, seed): planned(made_jobs(number, seed), GPUS, limit_s) for number in (8, 16, 24)
                for seed in range(seeds)}  # fmt: skip
    gaps = [outcome.plan.gap for outcome in outcomes.values()]
    slowest = max(outcome.seconds for outcome in outcomes.values())
    within = sum(gap <= GAP_GOAL for gap in gaps)
    never_worse = all(
        outcome.plan.schedule.makespan_s
        <= min(simple.makespan_s for simple in (outcome.plan.in_turn, outcome.plan.one_gpu_each)) * (1 + 1e-9)
        for outcome in outcomes.values()
    )
    reached = f"worst {max(gaps):.1%}, median {statistics.median(gaps):.1%}, {within} of {len(gaps)} within; "
    reached += f"at most {slowest:.1f} s; {'never worse' if never_worse else 'WORSE'} than the simple plans"
    met = within == len(gaps) and slowest <= LIMIT_S + 1 and never_worse
    return Row("gap to the bound, 8, 16 and 24 jobs on 8 GPUs", "<= 3% within 10 s", reached, "yes" if met else "no")


def printed_rows(family: str, is_sound: bool) -> list[Series]:
    """The workloads of the family's node, all that are printed or those without defects."""
    rows = published.sound() if is_sound else published.table()
    source, node = NODES[family]
    return [row for row in rows if (row.source, row.node) == (source, node) and set(COUNTS) <= row.rates.keys()]


def published_jobs(rows: Sequence[Series], number: int, seed: int) -> list[Job]:
    """Jobs of the node's workloads by turns, of half an hour to four hours on one GPU. Those on more GPUs take as many
    samples, of which the times are printed."""
    generator = random.Random(seed)
    turns = generator.sample([*rows], len(rows))
    jobs = []
    for place in range(number):
        row = turns[place % len(turns)]
        single_s = generator.uniform(1800, 14400)
        seconds = {gpus: exact(single_s * row.rates[1] / row.rates[gpus]) for gpus in COUNTS}
        jobs.append(Job(f"{row.workload}-{place}", seconds=seconds))
    return jobs


def published_row(family: str, number: int, limit_s: float, seeds: int) -> Row:
    """With what is printed, as it is; then with the slowdown that is assumed; then without rows that have defects. Of
    each, the median of the lists and their range."""
    variants = {
        "as printed": (False, NONE),
        f"slowdown {SLOWDOWN.value:g}": (False, SLOWDOWN),
        "rows without defects alone": (True, NONE),
    }
    saved: dict[str, list[float]] = {}
    gaps: list[float] = []
    for name, (is_sound, slowdown) in variants.items():
        rows = printed_rows(family, is_sound)
        plans = [planned(published_jobs(rows, number, seed), GPUS, limit_s, slowdown).plan for seed in range(seeds)]
        saved[name] = [1 - plan.schedule.makespan_s / plan.in_turn.makespan_s for plan in plans]
        gaps += [plan.gap for plan in plans]
    goal = SAVED_GOALS[family]
    reached = ", ".join(
        f"{statistics.median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%}) {name}"
        for name, shares in saved.items()
    )
    what = f"{number} jobs of published tables on 8 x {NODES[family][1]}: less than in turn (median of {seeds} lists)"
    met = "yes" if statistics.median(saved[f"slowdown {SLOWDOWN.value:g}"]) >= goal else "no"  # what a user gets
    return Row(what, f">= {goal:.0%}", f"{reached}; gap at most {max(gaps):.1%}", met)


def table_2(slowdown: Interval, limit_s: float) -> Plan:
    """Four trainings in fp64 on the papers' four GPUs."""
    times: Mapping[int, float] = {
        row.gpus: row.total_s for row in published.paper_totals() if row.series == ("table2", "fp64")
    }
    job = Job("fp64", seconds={gpus: exact(seconds) for gpus, seconds in times.items()}, repeat=4)
    return planned([job], 4, limit_s, slowdown).plan


def papers_row(limit_s: float) -> Row:
    plan, slower = table_2(NONE, limit_s), table_2(SLOWDOWN, limit_s)
    makespan_s, in_turn_s = plan.schedule.makespan_s, plan.in_turn.makespan_s
    on_one = all(placed.option.gpus == 1 for placed in plan.schedule.placed)
    reached = f"{makespan_s:,.0f} s against {in_turn_s:,.0f} s in turn; "
    reached += f"{slower.schedule.makespan_s:,.0f} s with the slowdown of {SLOWDOWN.value:g} that is assumed"
    met = on_one and round(makespan_s) == 6266 and round(in_turn_s) == 7748
    what = "papers' Table 2: four trainings in fp64 on four GPUs"
    return Row(what, "6,266 s side by side, 7,748 s in turn", reached, "yes" if met else "no")


def rows_in_words() -> list[str]:
    """The rows of the published tables that jobs are made of, and of those with defects the reason."""
    lines = []
    for family in SAVED_GOALS:
        for row in printed_rows(family, False):
            scaling = row.rates[GPUS] / row.rates[1] / GPUS
            reason = f"; {row.defect}" if row.defect else ""
            lines.append(f"{family} {row.workload} {row.precision}: {scaling:.0%} of linear on {GPUS}{reason}")
    return lines


def main() -> None:
    commands = parser(__doc__)
    commands.add_argument("--quick", action="store_true", help="fewer lists of jobs, 2 s for each")
    limit_s, seeds = (2.0, 1) if commands.parse_args().quick else (LIMIT_S, 5)
    print(f"{machine()}, {limit_s:g} s for each plan", flush=True)
    rows = [papers_row(limit_s), gap_row(limit_s, seeds)]
    for family in SAVED_GOALS:
        rows += [published_row(family, number, limit_s, seeds) for number in (8, 24)]
    for line in text_table.text(("what", "goal", "reached", "met"), rows, 160, wrap=True):
        print(line)
    print("\n".join(["", "rows of the published tables:", *rows_in_words()]))


if __name__ == "__main__":
    main()
