"""How good plans of jobs are: one table with every goal and what was reached.

    python -m benchmarks.plan [--quick]
    python -m benchmarks.plan --live FOLDER

Made lists of jobs show how far a plan is from a bound that none beats. Published tables (`estimate/published.py`) give
jobs of mixed kinds on nodes of 8 GPUs, compared with one job after the other on all GPUs. The papers' Table 2 has
four trainings in fp64 on four GPUs. --quick takes fewer lists, and 2 s for each.

--live carries a plan of eight real jobs out, training and tuning mixed, on two CPU ranks where there is no GPU, and
compares the makespan with the plan's, and with that of the same jobs in turn. Their times come from probes: use a quiet
machine. Half an hour on two cores; the same FOLDER again goes on.
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, machine, parser
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
LIVE_GPUS, LIVE_WITHIN = 2, 0.10
VISION, TUNING = "train_vision.py dataset=digits tracker.mode=disabled", "tune_llm.py method=lora tracker.mode=disabled"
LIVE_JOBS = [f"{VISION} epochs={epochs} seed={seed}" for seed, epochs in enumerate((8, 10, 12, 14), 1)]
LIVE_JOBS += [f"{TUNING} epochs={epochs} seed={seed}" for seed, epochs in enumerate((4, 6, 6, 8), 1)]
Row = tuple[str, str, str, str]  # what, goal, reached, met


def exact(seconds: float) -> Interval:
    return Interval(seconds, seconds, seconds)


def planned(jobs: Sequence[Job], gpus: int, limit_s: float, slowdown: Interval = SLOWDOWN) -> Plan:
    file = JobsFile(tuple(jobs), Node(gpus), Goal.makespan, slowdown)
    return planning.make(durations.tasks(file, PlannedNode(gpus, True)).tasks, gpus, file.goal, limit_s)


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
    """With what is printed, as it is; then with the slowdown that is assumed, as users get it; then without rows that
    have defects: the median of the lists and their range."""
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


def papers_row(limit_s: float) -> Row:
    """Four trainings in fp64 on the papers' four GPUs."""
    rows = [row for row in published.paper_totals() if row.series == ("table2", "fp64")]
    job = Job("fp64", seconds={row.gpus: exact(row.total_s) for row in rows}, repeat=4)
    plan, slower = (planned([job], 4, limit_s, slowdown) for slowdown in (NONE, SLOWDOWN))
    makespan_s, in_turn_s = plan.schedule.makespan_s, plan.in_turn.makespan_s
    on_one = all(placed.option.gpus == 1 for placed in plan.schedule.placed)
    reached = f"{makespan_s:,.0f} s against {in_turn_s:,.0f} s in turn; "
    reached += f"{slower.schedule.makespan_s:,.0f} s with the slowdown of {SLOWDOWN.value:g} that is assumed"
    met = on_one and round(makespan_s) == 6266 and round(in_turn_s) == 7748
    what = "papers' Table 2: four trainings in fp64 on four GPUs"
    return what, "6,266 s side by side, 7,748 s in turn", reached, "yes" if met else "no"


def live(folder: Path) -> list[Row]:
    """Carry a plan of real jobs out, then run them one after the other, each alone on all GPUs as a user would."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = {f"job{number}": {"run": words, "gpus": [1, LIVE_GPUS]} for number, words in enumerate(LIVE_JOBS, 1)}
    (folder / "jobs.yaml").write_text(json.dumps({"node": {"gpus": LIVE_GPUS}, "jobs": jobs}))
    lines = [["-m", "multicard", "plan", "jobs.yaml", "--json", "plan.json", last] for last in ("--probe", "--run")]
    for number, words in enumerate(LIVE_JOBS, 1):
        entry, *overrides = words.split()
        lines.append([str(ROOT / entry), *overrides, f"gpus={LIVE_GPUS}", f"name=in-turn-{number}", "rerun=true"])
    times_s = []
    for line in lines:
        began_s = clock_s()
        subprocess.run([sys.executable, *line], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
        times_s.append(clock_s() - began_s)
    return live_rows(json.loads((folder / "plan.json").read_text()), sum(times_s[2:]))


def live_rows(plan: dict[str, Any], in_turn_s: float) -> list[Row]:
    """The table of a plan that was carried out, from its JSON, and of what its jobs took in turn."""
    real_s, planned_s = plan["carried_out"]["makespan_s"], plan["carried_out"]["planned_makespan_s"]
    rows = []
    for what, other_s in (("planned", planned_s), ("likely", plan["expected_makespan_s"]["value"])):
        off = real_s / other_s - 1
        reached, met = f"{real_s:.0f} s, {what} {other_s:.0f} s: {off:+.1%}", abs(off) <= LIVE_WITHIN
        rows.append((f"by the {what} one", f"within {LIVE_WITHIN:.0%}", reached, "yes" if met else "no"))
    reached = f"{real_s:.0f} s, in turn {in_turn_s:.0f} s: {real_s / in_turn_s - 1:+.1%}"
    return [*rows, ("by that in turn, measured", "shorter", reached, "yes" if real_s < in_turn_s else "no")]


def main() -> None:
    commands = parser(__doc__)
    commands.add_argument("--quick", action="store_true", help="fewer lists of jobs, 2 s for each")
    commands.add_argument("--live", type=Path, metavar="FOLDER", help="carry a plan of real jobs out there")
    options = commands.parse_args()
    limit_s, seeds = (2.0, 1) if options.quick else (LIMIT_S, 5)
    print(machine(), flush=True)
    if options.live is not None:
        rows = live(options.live.absolute())
    else:
        rows = [papers_row(limit_s), gap_row(limit_s, seeds)]
        rows += [published_row(family, number, limit_s, seeds) for family in SAVED_GOALS for number in (8, 24)]
    for line in text_table.text(("what", "goal", "reached", "met"), rows, 160, wrap=True):
        print(line)


if __name__ == "__main__":
    main()
