"""Plan a list of jobs: which GPUs each gets, and when, so that all end soonest.

    multicard plan JOBS.yaml [--seconds S] [--json FILE] [--csv FILE] ... [--run [--name NAME]]

JOBS.yaml names the node and the jobs. Each job is a command of an entry, or has known times
(docs/reference/plans.md).
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from multicard.config.base import check_name
from multicard.config.job import count
from multicard.decide.plan import jobs_file, outcome, plan_text, planning, tasks
from multicard.decide.plan.carry_out import FOLDER, CarriedPlan
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import PlanTask
from multicard.measure.timing import in_hours
from multicard.messages import Message, Parser, Refusal, say, usage
from multicard.records import run_folder
from multicard.records.journal import Journal
from multicard.records.output import STDOUT, add_formats
from multicard.sweep.executor import Executor
from multicard.sweep.streak import SameFailureError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. If there is no plan, print one line with the reason and return 1."""
    parser = Parser(
        "multicard plan",
        description=usage(__doc__, __file__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("jobs", metavar="JOBS.yaml", type=Path)
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=planning.LIMIT_S, help="to search (10)"
    )
    parser.add_argument(
        "--run", action="store_true", help="carry the plan out; the same command again resumes"
    )
    parser.add_argument("--name", help="of the plan's folder under multirun/ (the file's name)")
    add_formats(parser)
    options = parser.parse_args(arguments)
    try:
        command = _Command(options)
        return command.carry_out() if options.run else command.plan()
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(Message("plan.interrupted", "interrupted: nothing more was started"), file=sys.stderr)
    return 1


class _Command:
    """One command, from its options to its exit code. A Refusal names the key and the remedy."""

    def __init__(self, options: argparse.Namespace) -> None:
        if not 1 <= options.seconds <= 3600:
            sentence = f"--seconds {options.seconds:g}: must be from 1 to 3600"
            raise Refusal("plan.search-range", sentence, key="--seconds", value=options.seconds)
        self.options = options
        self.file = jobs_file.read_jobs_file(options.jobs)
        self.name = options.name or options.jobs.stem
        if options.run:
            check_name(self.name)
            if STDOUT in vars(options).values():
                raise Refusal(
                    "plan.stdout",
                    "-: --run prints to stdout what it starts; name a file instead of -",
                )
        self.sweep = tasks.SWEEPS / self.name
        self.node = tasks.resolve(self.file, options.run)
        # The plan that is carried out, in the folder of its events.
        self.plan_file = self.sweep / FOLDER / "plan.json"

    def plan(self) -> int:
        """Plan the jobs, and print the plan."""
        if plan_tasks := self._tasks():
            self._show(plan_tasks)
        return 0 if plan_tasks else 1

    def carry_out(self) -> int:
        """Plan the remaining jobs and run them. Return 1 unless all end well."""
        cells = tasks.cells(self.file, self.node, self.sweep)  # This refuses before predicting.
        if not (plan_tasks := self._tasks()):
            return 1
        with closing(
            Journal(self.sweep / FOLDER / "events.jsonl", f"--name {self.name}")
        ) as journal:
            carried_plan = CarriedPlan(
                plan_tasks, self.node.gpus, cells, journal, noun=self.node.noun
            )
            if carried_plan.left():
                plan = self._show(carried_plan.rest(), is_new=not carried_plan.first)
                if carried_plan.began is not None and any(task.deadline_s for task in plan_tasks):
                    now_s = carried_plan.now_s()
                    since = f"the first command's start, {in_hours(now_s)} ago"
                    sentence = (
                        f"deadlines count from {since}; use `--name NAME` with a new name to begin"
                        " anew"
                    )
                    say(Message("plan.deadlines-since", sentence, key="--name", seconds=now_s))
                say("")
                executor = Executor(self.sweep, signal.SIGTERM, reports=False)
                try:
                    carried_plan.run(plan.schedule, executor)
                except SameFailureError:
                    pass  # The lines about the tasks that did not run say so.
                except KeyboardInterrupt:
                    say(
                        Message("plan.resume", "to resume, type the same command again"), error=True
                    )
                    return 1
        result = outcome.result(carried_plan)
        say("\n".join(["", *outcome.lines(result)]))
        content = (run_folder.read_json(self.plan_file) or {}) | {"carried_out": result}
        for path in filter(None, (self.plan_file, self.options.json)):
            run_folder.write_json(path, content)
        for line in outcome.failures(carried_plan):
            print(line, file=sys.stderr)
        return 1 if outcome.failures(carried_plan) else 0

    def _tasks(self) -> list[PlanTask]:
        """Return the tasks, or none, after printing why, if a job's time is not known at all."""
        runs = tasks.runs(self.file, self.node, self.sweep)
        self.notes, unknown = tasks.notes(self.file, runs)
        if unknown:
            sentence = f"refused: no time is known for {count(len(unknown), 'job')}:"
            problem = Message("plan.times-unknown", sentence, jobs=len(unknown))
            print("\n  ".join([problem, *unknown]), file=sys.stderr)
        if probes := tasks.probes(runs, self.node, self.sweep):
            where = f" on {self.node.name}" if self.file.node.gpu else ""
            sentence = f"to know all times, run these probes{where} first, one after the other:"
            say(
                "\n  ".join(
                    [Message("plan.probe-first", sentence, node=self.file.node.gpu), *probes]
                )
            )
        return [] if unknown else tasks.tasks(self.file, self.node, runs)

    def _show(self, plan_tasks: Sequence[PlanTask], is_new: bool = True) -> Plan:
        """Make a plan, print it, and write the files that the command asks for.

        If the plan is not new, the files keep the first command's plan.
        """
        plan = planning.make(plan_tasks, self.node.gpus, self.options.seconds)
        content = plan_text.as_dict(plan, self.node.name, self.file.slowdown, self.node.noun)
        lines = [*plan_text.plan_lines(plan, self.file.slowdown, content), *self.notes]
        if not is_new:
            say("\n".join(lines))
            return plan
        if self.options.run:
            run_folder.write_json(self.plan_file, content)
        plan_text.output(plan, content, lines).emit(self.options)
        return plan
