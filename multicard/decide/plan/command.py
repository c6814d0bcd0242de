"""Plans a list of jobs: which GPUs each gets, and when, so that all end soonest.

    python -m multicard plan JOBS.yaml [--goal GOAL] [--probe] [--seconds S] [--svg FILE] [--json FILE]
                             [--run [--name NAME]]

JOBS.yaml names the node and the jobs, each a command of either entry or times that are known (docs/plan.md).
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from multicard.config.base import check_name
from multicard.config.job import count
from multicard.config.keys import require
from multicard.decide.plan import compared, durations, gantt, jobs_file, node, planning, runs, show, solver
from multicard.decide.plan.carry_out import CarryingOut
from multicard.decide.plan.durations import Tasks
from multicard.decide.plan.jobs_file import Goal, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.places import Slurm, ThisMachine
from multicard.decide.plan.schedule import Option, Schedule, Task
from multicard.decide.plan.state import FOLDER, State
from multicard.machine import private
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.ranks import os_calls
from multicard.records import run_folder

JSON = "plan.json"  # in FOLDER


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1, after one line with the reason, where there is no plan."""
    options = _parser().parse_args(arguments)
    try:
        return _Command(options).run()
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: nothing more was started", file=sys.stderr)
    return 1


class _Command:
    """One command, from its options to its exit code.

    Raises:
        ValueError: there is no such plan, with the key and the remedy.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.file = options, jobs_file.read(options.jobs)
        if options.goal:
            self.file = jobs_file.with_goal(self.file, options.goal)
        self.name = options.name or options.jobs.stem
        if options.run or options.probe:
            check_name(self.name)
        self.sweep = runs.SWEEPS / self.name
        self.node = node.resolve(self.file, options.run)

    def run(self) -> int:
        """Plan, and carry out where that is asked for."""
        cells = runs.cells(self.file, self.node, self.sweep) if self.options.run else {}  # refuses before it predicts
        tasks = _tasks(self.file, self.node, self.sweep, self.options.probe)
        if tasks.unknown:
            return 1
        if not self.options.run:
            self._show(self._plan(tasks.tasks), tasks.notes)
            return 0
        state = State(self.sweep)
        try:
            others, names = state.planned(), [task.name for task in tasks.tasks]
            some = ", ".join([*others][:3]) + (" ..." if len(others) > 3 else "")
            is_another = bool(others) and not {*others} & {*names}
            require(not is_another, f"--name {self.name}: is a plan of other jobs ({some}); choose another name")
            place = Slurm() if self.node.on_slurm else ThisMachine(self.sweep, self.node.gpus)
            carried = CarryingOut(
                tasks.tasks, self.node.gpus, self.file.goal, cells, place, state, self._learned,
                seed=self.options.seed, noun=self.node.noun,
            )  # fmt: skip
            if carried.rest() and not self._carry_out(carried, tasks.notes):
                return 1
            say("\n".join(["", *compared.lines(carried)]))
            first, *more = self._json_files()
            content = (run_folder.read_json(first) or {}) | {"carried_out": compared.as_dict(carried)}
            for path in (first, *more):
                run_folder.write_json(path, content)
        finally:
            state.close()
        failed = compared.failures(carried)
        for line in failed:
            print(line, file=sys.stderr)
        return 1 if failed else 0

    def _plan(self, tasks: Sequence[Task]) -> planning.Plan:
        return planning.make(tasks, self.node.gpus, self.file.goal, self.options.seconds, self.options.seed)

    def _show(self, plan: planning.Plan, notes: Sequence[str], carried: CarryingOut | None = None) -> None:
        """Print the plan, and write the files that the command asks for."""
        where, slowdown = self.node, self.file.slowdown
        if carried is None or not carried.state.planned():  # else the plan of all that the first command wrote stays
            for path in self._json_files():
                run_folder.write_json(path, show.as_dict(plan, where.name, slowdown, where.noun))
        self._draw(*((plan.tasks, plan.schedule) if carried is None else carried.whole(plan.schedule)))
        say(
            "\n".join([*show.lines(plan, where.name, slowdown, where.noun), *notes, *([] if carried is None else [""])])
        )

    def _draw(self, tasks: Sequence[Task], schedule: Schedule) -> None:
        if self.options.svg is not None:
            title = f"{self.options.jobs.name} on {self.node.name}"
            chart = gantt.svg(tasks, schedule, self.node.gpus, title, self.node.noun)
            run_folder.write_text(self.options.svg, chart)

    def _json_files(self) -> list[Path]:
        """Where the plan is written for other programs: one that is carried out in its folder too, for the report."""
        own = [self.sweep / FOLDER / JSON] if self.options.run else []
        return own if self.options.json is None else [*own, self.options.json]

    def _carry_out(self, carried: CarryingOut, notes: Sequence[str]) -> bool:
        """Plan what is left, show it and carry it out. Returns whether it came to its end."""
        plan = self._plan(carried.rest())
        self._show(plan, notes, carried)
        if carried.state.began is not None and any(task.deadline_s for task in carried.tasks):
            begun = in_hours(carried.state.now_s())
            say(f"deadlines count from the first command's start, {begun} ago; --name of another plan begins anew")
        try:
            carried.run(plan.schedule)
        except KeyboardInterrupt:
            say("To go on: the same command again", error=True)
            return False
        return True

    def _learned(self) -> Mapping[str, tuple[Option, ...]]:
        """Options of the tasks that are predicted, by the records that there are now."""
        jobs = [job for job in self.file.jobs if job.is_predicted]
        known = durations.tasks(self.file, self.node, runs.estimated(jobs, self.node, self.sweep)).tasks
        return {task.name: task.options for task in known if task.job in {job.name for job in jobs}}


def _tasks(file: JobsFile, where: PlannedNode, sweep: Path, probe: bool) -> Tasks:
    """The tasks of a file; what is not known of them is said, and probed where that is asked for."""
    jobs = [job for job in file.jobs if job.is_predicted]
    for job in file.jobs:
        if job.run and not job.is_predicted:
            runs.composed(job, where, sweep)  # refuses words that the entry would refuse
    estimated = runs.estimated(jobs, where, sweep)
    commands = runs.probes(estimated, where)
    if commands and probe:
        for command in commands:
            say(f"probing: {runs.in_words(command)}")
            words = [sys.executable, str(private.ROOT / command[0]), *command[1:]]
            ends_with_this = partial(os_calls.die_with_parent, None, signal.SIGTERM)
            subprocess.run(words, check=False, preexec_fn=ends_with_this)
        estimated = runs.estimated(jobs, where, sweep)
        commands = runs.probes(estimated, where)
    tasks = durations.tasks(file, where, estimated)
    if tasks.unknown:
        print(f"refused: no time is known of {count(len(tasks.unknown), 'job')}:", file=sys.stderr)
        for line in tasks.unknown:
            print(f"  {line}", file=sys.stderr)
    if commands:
        elsewhere = " on such a node" if file.node.gpu else ""
        say(f"to know all times, probe{elsewhere} (--probe does so here):")
        for command in commands:
            say(f"  {runs.in_words(command)}")
    return tasks


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m multicard plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", metavar="JOBS.yaml", type=Path)
    parser.add_argument("--goal", choices=[*Goal], help="instead of the file's: what is made least")
    parser.add_argument("--probe", action="store_true", help="run the probes that unknown times need")
    parser.add_argument(
        "--seconds", metavar="S", type=_within(float, 1, 3600), default=solver.LIMIT_S, help="to search (10)"
    )
    parser.add_argument("--seed", metavar="N", type=_within(int, 0, 2**31 - 1), default=0, help="of the search (0)")
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


def _within(kind: type[int] | type[float], low: int, high: int) -> Callable[[str], float]:
    def number(text: str) -> float:
        if not low <= (value := kind(text)) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low} to {high}")
        return value

    return number


if __name__ == "__main__":
    sys.exit(main())
