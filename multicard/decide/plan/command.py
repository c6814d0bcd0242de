"""Plans a list of jobs: which GPUs each gets, and when, so that all end soonest.

    python -m multicard plan JOBS.yaml [--goal GOAL] [--probe] [--seconds S] [--svg FILE] [--json FILE]
                             [--run [--name NAME]]

JOBS.yaml names the node and the jobs, each a command of either entry or times that are known (docs/plan.md).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from multicard.config.job import count
from multicard.decide.plan import (
    durations,
    job_process,
    jobs_file,
    node,
    planning,
    predicted_runs,
    running,
    show,
    solver,
    starts,
)
from multicard.decide.plan.durations import Tasks
from multicard.decide.plan.jobs_file import Goal, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.machine import private
from multicard.run.session import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1, after one line with the reason, where there is no plan."""
    options = _parser().parse_args(arguments)
    try:
        file = jobs_file.read(options.jobs)
        if options.goal:
            file = jobs_file.with_goal(file, options.goal)
        if options.run:
            starts.refuse(file)
        where = node.resolve(file, options.run)
        running.sweep_of(options)
        tasks = _tasks(file, where, options.probe)
        if tasks.unknown:
            return 1
        if options.run:
            return running.run(options, file, where, tasks)
        plan = planning.make(tasks.tasks, where.gpus, file.goal, options.seconds, options.seed)
        running.write(options, file, where, plan)
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing more was started", file=sys.stderr)
        return 1
    say("\n".join([*show.lines(plan, where.name, file.slowdown, where.noun), *tasks.notes]))
    return 0


def _tasks(file: JobsFile, where: PlannedNode, probe: bool) -> Tasks:
    """The tasks of a file; what is not known of them is said, and probed where that is asked for."""
    jobs = [job for job in file.jobs if job.is_predicted]
    for job in file.jobs:
        if job.run and not job.is_predicted:
            predicted_runs.configured(job, where)  # refuses words that the entry would refuse
    runs = predicted_runs.predict(jobs, where)
    commands = predicted_runs.probes(runs, where)
    if commands and probe:
        for command in commands:
            say(f"probing: {predicted_runs.in_words(command)}")
            words = [str(private.ROOT / command[0]), *command[1:]]
            subprocess.run(job_process.words(os.getpid(), (), (), words), check=False)  # which ends when this one does
        runs = predicted_runs.predict(jobs, where)
        commands = predicted_runs.probes(runs, where)
    tasks = durations.tasks(file, where, runs)
    if tasks.unknown:
        print(f"refused: no time is known of {count(len(tasks.unknown), 'job')}:", file=sys.stderr)
        for line in tasks.unknown:
            print(f"  {line}", file=sys.stderr)
    if commands:
        elsewhere = " on such a node" if file.node.gpu else ""
        say(f"to know all times, probe{elsewhere} (--probe does so here):")
        for command in commands:
            say(f"  {predicted_runs.in_words(command)}")
    return tasks


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m multicard plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", metavar="JOBS.yaml", type=Path)
    parser.add_argument("--goal", choices=[*Goal], help="instead of the file's: what is made least")
    parser.add_argument("--probe", action="store_true", help="run the probes that unknown times need")
    parser.add_argument("--seconds", metavar="S", type=_seconds, default=solver.LIMIT_S, help="to search (10)")
    parser.add_argument("--seed", metavar="N", type=_seed, default=0, help="of the search (0)")
    parser.add_argument("--run", action="store_true", help="carry the plan out; the same command again goes on")
    parser.add_argument("--name", help="of the plan's folder under multirun/ (the file's name)")
    parser.add_argument("--svg", metavar="FILE", type=_file, help="write the chart there")
    parser.add_argument("--json", metavar="FILE", type=_file, help="write the plan there")
    return parser


def _file(text: str) -> Path:
    path = Path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    return path


def _seed(text: str) -> int:
    seed = int(text)
    if not 0 <= seed < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {2**31 - 1}")
    return seed


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 3600")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
