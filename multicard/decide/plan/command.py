"""Plans a list of jobs: which GPUs each gets, and when, so that all end soonest.

    python -m multicard plan JOBS.yaml [--seconds S] [--json FILE] [--run [--name NAME]]

JOBS.yaml names the node and the jobs, each a command of either entry or times that are known (docs/plan.md).
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from multicard.config.base import check_name
from multicard.config.job import count
from multicard.decide.plan import jobs_file, planning, show, tasks
from multicard.decide.plan.carry_out import FOLDER, CarryingOut
from multicard.decide.plan.schedule import Task
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.records import run_folder
from multicard.records.journal import Journal
from multicard.sweep.executor import Executor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1, after one line with the reason, where there is no plan."""
    parser = argparse.ArgumentParser(
        "python -m multicard plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", metavar="JOBS.yaml", type=Path)
    parser.add_argument("--seconds", metavar="S", type=_seconds, default=planning.LIMIT_S, help="to search (10)")
    parser.add_argument("--run", action="store_true", help="carry the plan out; the same command again resumes")
    parser.add_argument("--name", help="of the plan's folder under multirun/ (the file's name)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the plan there")
    options = parser.parse_args(arguments)
    try:
        command = _Command(options)
        return command.carry_out() if options.run else command.plan()
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: nothing more was started", file=sys.stderr)
    return 1


def _seconds(word: str) -> float:
    if not 1 <= (seconds := float(word)) <= 3600:
        raise argparse.ArgumentTypeError(f"{word} is not from 1 to 3600")
    return seconds


class _Command:
    """One command, from its options to its exit code.

    Raises:
        ValueError: there is no such plan, with the key and the remedy.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.file = options, jobs_file.read(options.jobs)
        self.name = options.name or options.jobs.stem
        if options.run:
            check_name(self.name)
        self.sweep = tasks.SWEEPS / self.name
        self.node = tasks.resolve(self.file, options.run)
        own = [self.sweep / FOLDER / "plan.json"] if options.run else []  # where the report looks for it
        self.json_files = own if options.json is None else [*own, options.json]

    def plan(self) -> int:
        """Plan, and show the plan."""
        if wanted := self._tasks():
            self._show(wanted)
        return 0 if wanted else 1

    def carry_out(self) -> int:
        """Plan what is left, and carry it out; 1 where not all ends well."""
        cells = tasks.cells(self.file, self.node, self.sweep)  # refuses before it predicts
        if not (wanted := self._tasks()):
            return 1
        with closing(Journal(self.sweep / FOLDER / "events.jsonl", f"--name {self.name}")) as journal:
            executor = Executor(self.sweep, signal.SIGTERM, reports=False)
            carried = CarryingOut(wanted, self.node.gpus, cells, executor, journal, noun=self.node.noun)
            if carried.left():
                plan = self._show(carried.rest(), is_new=not carried.first)
                if carried.began is not None and any(task.deadline_s for task in wanted):
                    since = f"the first command's start, {in_hours(carried.now_s())} ago"
                    say(f"deadlines count from {since}; --name of another plan begins anew")
                say("")
                try:
                    carried.run(plan.schedule)
                except KeyboardInterrupt:
                    say("To resume: the same command again", error=True)
                    return 1
        result = carried.result()
        say("\n".join(["", *show.result_lines(result)]))
        content = (run_folder.read_json(self.json_files[0]) or {}) | {"carried_out": result}
        for path in self.json_files:
            run_folder.write_json(path, content)
        for line in carried.failures():
            print(line, file=sys.stderr)
        return 1 if carried.failures() else 0

    def _tasks(self) -> list[Task]:
        """The tasks; none, after the reasons, where no time of a job is known."""
        runs = tasks.runs(self.file, self.node, self.sweep)
        self.notes, unknown = tasks.notes(self.file, runs)
        if unknown:
            problem = f"refused: no time is known of {count(len(unknown), 'job')}:"
            print("\n  ".join([problem, *unknown]), file=sys.stderr)
        if probes := tasks.probes(runs, self.node, self.sweep):
            where = f" on {self.node.name}" if self.file.node.gpu else ""
            say("\n  ".join([f"to know all times, probe{where} first, one after the other:", *probes]))
        return [] if unknown else tasks.tasks(self.file, self.node, runs)

    def _show(self, wanted: Sequence[Task], is_new: bool = True) -> planning.Plan:
        """Make a plan, print it, and write the files that the command asks for.

        Args:
            is_new: False where the plan of the first command stays in the files.
        """
        plan = planning.make(wanted, self.node.gpus, self.options.seconds)
        content = show.as_dict(plan, self.node.name, self.file.slowdown, self.node.noun)
        for path in self.json_files if is_new else ():
            run_folder.write_json(path, content)
        say("\n".join([*show.plan_lines(plan, self.file.slowdown, content), *self.notes]))
        return plan


if __name__ == "__main__":
    sys.exit(main())
