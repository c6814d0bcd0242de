"""Plans a list of jobs: which GPUs each gets, and when, so that all end soonest.

    python -m multicard plan JOBS.yaml [--probe] [--seconds S] [--json FILE] [--run [--name NAME]]

JOBS.yaml names the node and the jobs, each a command of either entry or times that are known (docs/plan.md).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from multicard.config.base import check_name
from multicard.config.job import count
from multicard.config.keys import require
from multicard.decide.plan import jobs_file, node, places, planning, show, tasks
from multicard.decide.plan.carry_out import CarryingOut
from multicard.decide.plan.journal import FOLDER, PlanJournal
from multicard.decide.plan.places import Slurm, ThisMachine
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import Task
from multicard.measure.timing import in_hours
from multicard.messages import say
from multicard.records import run_folder


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
    """One command, from its options to its exit code."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.file = options, jobs_file.read(options.jobs)
        self.name = options.name or options.jobs.stem
        if options.run or options.probe:
            check_name(self.name)
        self.sweep = tasks.SWEEPS / self.name
        self.node = node.resolve(self.file, options.run)
        own = [self.sweep / FOLDER / "plan.json"] if options.run else []  # where the report looks for it
        self.json_files = own if options.json is None else [*own, options.json]

    def run(self) -> int:
        """Plan, and carry out where that is asked for.

        Raises:
            ValueError: there is no such plan, with the key and the remedy.
        """
        cells = tasks.cells(self.file, self.node, self.sweep) if self.options.run else {}  # refuses before it predicts
        wanted, notes = self._tasks()
        if not wanted:
            return 1
        if not self.options.run:
            self._show(self._plan(wanted), notes)
            return 0
        journal = PlanJournal(self.sweep)
        try:
            others = [*journal.planned()]
            some = ", ".join(others[:3]) + (" ..." if len(others) > 3 else "")
            is_same = not others or not {*others}.isdisjoint(task.name for task in wanted)
            require(is_same, f"--name {self.name}: is a plan of other jobs ({some}); choose another name")
            place = Slurm() if self.node.on_slurm else ThisMachine(self.sweep, self.node.gpus)
            carried = CarryingOut(wanted, self.node.gpus, cells, place, journal, noun=self.node.noun)
            if carried.left() and not self._carry_out(carried, notes, is_new=not others):
                return 1
        finally:
            journal.close()
        result = carried.result()
        say("\n".join(["", *show.result_lines(result)]))
        content = (run_folder.read_json(self.json_files[0]) or {}) | {"carried_out": result}
        for path in self.json_files:
            run_folder.write_json(path, content)
        for line in carried.failures():
            print(line, file=sys.stderr)
        return 1 if carried.failures() else 0

    def _tasks(self) -> tuple[list[Task], list[str]]:
        """The tasks, with notes on them; none, after the reasons, where no time of a job is known."""
        runs = tasks.runs(self.file, self.node, self.sweep)
        probes = tasks.probes(runs, self.node, self.sweep)
        if probes and self.options.probe:
            say(f"probing: {', '.join(probes)}")
            places.probe([*probes.values()], self.node.on_slurm)
            runs = tasks.runs(self.file, self.node, self.sweep)
            probes = tasks.probes(runs, self.node, self.sweep)
        notes, unknown = tasks.notes(self.file, runs)
        if unknown:
            problem = f"refused: no time is known of {count(len(unknown), 'job')}:"
            print("\n  ".join([problem, *unknown]), file=sys.stderr)
        if probes:
            where = f"on {self.node.name}" if self.file.node.gpu else "here"
            say(f"to know all times, run this command with --probe {where}; it probes {', '.join(probes)}")
        return [] if unknown else tasks.tasks(self.file, self.node, runs), notes

    def _plan(self, wanted: Sequence[Task]) -> Plan:
        return planning.make(wanted, self.node.gpus, self.options.seconds)

    def _show(self, plan: Plan, notes: Sequence[str], is_new: bool = True) -> None:
        """Print the plan, and write the files that the command asks for.

        Args:
            is_new: False where the plan of the first command stays in the files.
        """
        description = self.node.name, self.file.slowdown, self.node.noun
        for path in self.json_files if is_new else ():
            run_folder.write_json(path, show.as_dict(plan, *description))
        say("\n".join([*show.plan_lines(plan, *description), *notes]))

    def _carry_out(self, carried: CarryingOut, notes: Sequence[str], is_new: bool) -> bool:
        """Plan what is left, show it and carry it out. Returns True if it came to its end."""
        plan = self._plan(carried.rest())
        self._show(plan, notes, is_new)
        if carried.journal.began is not None and any(task.deadline_s for task in carried.tasks):
            begun = in_hours(carried.journal.now_s())
            say(f"deadlines count from the first command's start, {begun} ago; --name of another plan begins anew")
        say("")
        try:
            carried.run(plan.schedule)
        except KeyboardInterrupt:
            say("To resume: the same command again", error=True)
            return False
        return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m multicard plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", metavar="JOBS.yaml", type=Path)
    parser.add_argument("--probe", action="store_true", help="run the probes that unknown times need")
    parser.add_argument("--seconds", metavar="S", type=_seconds, default=planning.LIMIT_S, help="to search (10)")
    parser.add_argument("--run", action="store_true", help="carry the plan out; the same command again resumes")
    parser.add_argument("--name", help="of the plan's folder under multirun/ (the file's name)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the plan there")
    return parser


def _seconds(word: str) -> float:
    if not 1 <= (seconds := float(word)) <= 3600:
        raise argparse.ArgumentTypeError(f"{word} is not from 1 to 3600")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
