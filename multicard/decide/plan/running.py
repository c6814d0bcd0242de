"""`--run`: a plan that is shown and carried out, and at its end what became of it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from multicard.config.base import check_name
from multicard.config.keys import require
from multicard.decide.plan import compared, durations, gantt, planning, predicted_runs, show, starts
from multicard.decide.plan.carry_out import CarryingOut
from multicard.decide.plan.durations import Tasks
from multicard.decide.plan.jobs_file import JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.places import Slurm, ThisMachine
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import Option, Schedule, Task
from multicard.decide.plan.state import FOLDER, State
from multicard.measure.timing import in_hours
from multicard.records import run_folder
from multicard.run.session import say

JSON = "plan.json"  # in FOLDER


def run(options: argparse.Namespace, file: JobsFile, where: PlannedNode, tasks: Tasks) -> int:
    """Carry out what is left of a plan. Returns 1 where a task did not end well, or the command was interrupted.

    Raises:
        ValueError: it cannot be carried out, or another command does so.
    """
    name = sweep_of(options).name
    commands = starts.of_jobs(file, where, name)
    place = Slurm() if where.on_slurm else ThisMachine(where.gpus)
    state = State(starts.SWEEPS / name)
    try:
        _refuse_another(state, tasks, name)
        carried = CarryingOut(
            tasks.tasks, where.gpus, file.goal, commands, place, state,
            lambda: _learned(file, where), seed=options.seed, noun=where.noun,
        )  # fmt: skip
        if not _carry_out(options, file, where, tasks, carried):
            return 1
        say("\n".join(["", *compared.lines(carried)]))
        first, *others = json_files(options)
        content = (run_folder.read_json(first) or {}) | {"carried_out": compared.as_dict(carried)}
        for path in (first, *others):
            run_folder.write_json(path, content)
    finally:
        state.close()
    failed = compared.failures(carried)
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


def _refuse_another(state: State, tasks: Tasks, name: str) -> None:
    """Refuse the name of a plan that had none of these tasks: its deadlines, and its table, count from its own start.

    Raises:
        ValueError: with the remedy.
    """
    others = state.planned()
    is_another = bool(others) and not any(task.name in others for task in tasks.tasks)
    jobs = ", ".join([*others][:3]) + (" ..." if len(others) > 3 else "")
    require(not is_another, f"--name {name}: is a plan of other jobs ({jobs}); choose another name")


def write(options: argparse.Namespace, file: JobsFile, where: PlannedNode, plan: Plan) -> None:
    """Write the files that the command asks for."""
    content = show.as_dict(plan, where.name, file.slowdown, where.noun)
    for path in json_files(options):
        run_folder.write_json(path, content)
    draw(options, where, plan.tasks, plan.schedule)


def draw(options: argparse.Namespace, where: PlannedNode, tasks: Sequence[Task], schedule: Schedule) -> None:
    """Write the chart, where the command asks for it."""
    if options.svg is not None:
        title = f"{options.jobs.name} on {where.name}"
        run_folder.write_text(options.svg, gantt.svg(tasks, schedule, where.gpus, title, where.noun))


def json_files(options: argparse.Namespace) -> list[Path]:
    """Where the plan is written for other programs: one that is carried out in its folder too, for the report."""
    own = [sweep_of(options) / FOLDER / JSON] if options.run else []
    return own if options.json is None else [*own, options.json]


def sweep_of(options: argparse.Namespace) -> Path:
    """The folder of a plan's runs.

    Raises:
        ValueError: its name is not that of a folder, and something is to be written there.
    """
    name = options.name or options.jobs.stem
    if options.run or options.probe:
        check_name(name)
    return starts.SWEEPS / name


def _carry_out(
    options: argparse.Namespace,
    file: JobsFile,
    where: PlannedNode,
    tasks: Tasks,
    carried: CarryingOut,
) -> bool:
    """Plan what is left, show it and carry it out. Returns whether it came to its end."""
    rest = carried.rest()
    if not rest:
        return True
    plan = planning.make(rest, where.gpus, file.goal, options.seconds, options.seed)
    if not carried.state.planned():
        write(options, file, where, plan)
    else:  # the plan of all that the first command wrote stays
        draw(options, where, *carried.whole(plan.schedule))
    say("\n".join([*show.lines(plan, where.name, file.slowdown, where.noun), *tasks.notes, ""]))
    if carried.state.began is not None and any(task.deadline_s for task in tasks.tasks):
        begun = in_hours(carried.state.now_s())
        say(f"deadlines count from the first command's start, {begun} ago; --name of another plan begins anew")
    try:
        carried.run(plan.schedule)
    except KeyboardInterrupt:
        say("To go on: the same command again", error=True)
        return False
    return True


def _learned(file: JobsFile, where: PlannedNode) -> Mapping[str, tuple[Option, ...]]:
    """Options of the tasks that are predicted, by the records that there are now."""
    predicted = {job.name for job in file.jobs if job.is_predicted}
    runs = predicted_runs.predict([job for job in file.jobs if job.is_predicted], where)
    known = durations.tasks(file, where, runs).tasks
    return {task.name: task.options for task in known if task.job in predicted}
