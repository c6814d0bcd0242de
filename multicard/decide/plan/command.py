"""Plan a list of jobs: which GPUs each gets, and when, so that all end soonest.

    multicard plan JOBS.yaml [--seconds S] [--json FILE] [--csv FILE] ... [--run [--name NAME]]

JOBS.yaml names the node and the jobs. Each job is a command of an entry, or has known times
(docs/reference/plans.md).
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from multicard.config.base import check_name
from multicard.config.job import count
from multicard.decide.plan import jobs_file, planning, tasks
from multicard.decide.plan.carry_out import FOLDER, CarriedPlan
from multicard.decide.plan.jobs_file import SLOWDOWN
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import GpusOption, PlanTask, Schedule
from multicard.estimate.observations import explain_marks
from multicard.machine.environment import spans
from multicard.measure.timing import in_hours
from multicard.messages import Message, Parser, Refusal, say, usage
from multicard.records import run_folder, text_table
from multicard.records.journal import Journal
from multicard.records.output import STDOUT, Output, add_formats
from multicard.records.schema_parts import PredictedInterval
from multicard.records.text_table import TextTable, cut
from multicard.sweep.executor import Executor
from multicard.sweep.streak import SameFailureError

WIDTH = 120
LEAST_COLUMNS = 20  # The chart has at least this many columns.
HEADINGS = (
    "job",
    "GPUs",
    "on",
    "start",
    "end",
    "planned",
    "likely (90%)",
    "efficiency",
    "basis",
    "deadline",
    "late",
)
RESULT_HEADINGS = (
    "job",
    "GPUs",
    "on",
    "planned start",
    "planned end",
    "start",
    "end",
    "took by plan",
    "status",
)


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
        result = carried_plan.result()
        say("\n".join(["", *result_lines(result)]))
        content = (run_folder.read_json(self.plan_file) or {}) | {"carried_out": result}
        for path in filter(None, (self.plan_file, self.options.json)):
            run_folder.write_json(path, content)
        for line in carried_plan.failures():
            print(line, file=sys.stderr)
        return 1 if carried_plan.failures() else 0

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
        content = as_dict(plan, self.node.name, self.file.slowdown, self.node.noun)
        lines = [*plan_lines(plan, self.file.slowdown, content), *self.notes]
        if not is_new:
            say("\n".join(lines))
            return plan
        if self.options.run:
            run_folder.write_json(self.plan_file, content)
        output(plan, content, lines).emit(self.options)
        return plan


# ---- the plan as text, and as JSON


def plan_lines(plan: Plan, slowdown: PredictedInterval, content: Mapping[str, Any]) -> list[str]:
    """Return the plan as lines for a terminal; `content` is the result of `as_dict`."""
    width = _width()
    noun = content["noun"]
    marks = explain_marks(job["basis"].partition(" ")[2] for job in content["jobs"])
    notes = text_table.folded([*marks, *_comparisons(plan), _slowdown_line(slowdown, noun)], width)
    bars = chart(plan.tasks, plan.schedule, plan.gpus, width, noun)
    return [*_table(content).lines(width), "", *bars, "", *notes]


def _slowdown_line(slowdown: PredictedInterval, noun: str) -> Message:
    """Return the line on the slowdown of jobs that run beside others."""
    ends = [slowdown.low, slowdown.high]
    runs = f"slowdown: {slowdown.value:.3g} for runs that leave {noun}s for others"
    if slowdown != SLOWDOWN:
        return Message("plan.slowdown", runs, key="slowdown", value=slowdown.value, ends=ends)
    why = "because they share cores, memory bandwidth and PCIe"
    sentence = (
        f"{runs} is assumed ({slowdown.low:g} to {slowdown.high:g}) {why}; set slowdown in the file"
    )
    return Message(
        "plan.slowdown-assumed", sentence, key="slowdown", value=slowdown.value, ends=ends
    )


def _width() -> int:
    return min(text_table.terminal_width() or WIDTH, WIDTH)


def output(plan: Plan, content: dict[str, Any], lines: Sequence[str]) -> Output:
    """Return the plan for `emit`. For programs, each job is a row."""
    rows = []
    for job in content["jobs"]:
        seconds = {
            "seconds": job["seconds"]["value"],
            "seconds_low": job["seconds"]["low"],
            "seconds_high": job["seconds"]["high"],
        }
        as_busy = job["seconds_as_busy"] or {}
        seconds |= {f"seconds_as_busy_{end}": as_busy.get(end) for end in ("low", "high")}
        seconds["seconds_as_busy"] = as_busy.get("value")
        rows.append(
            job | seconds | {"gpu_ids": spans(job["gpu_ids"]), "after": ",".join(job["after"])}
        )
    table = _table(content)._replace(below=_comparisons(plan))
    return Output(lambda width: lines, lambda: [table], rows, content=lambda _: content)


def _table(content: Mapping[str, Any]) -> TextTable:
    columns = [
        column
        for column in zip(HEADINGS, *map(_row, content["jobs"]), strict=True)
        if any(column[1:])
    ]
    headings, *rows = zip(*columns, strict=True)
    sentence = f"plan of {count(len(rows), 'run')} on {content['node']}:"
    return TextTable(
        headings, rows, [Message("plan.title", sentence, runs=len(rows), node=content["node"])]
    )


def _row(job: Mapping[str, Any]) -> list[str]:
    """Return a row of the table, from a job of `as_dict`."""
    low, high = (in_hours(job["seconds"][end]) for end in ("low", "high"))
    likely_text = low if low == high else f"{low} to {high}"
    start_s = job["start_s"]
    end_s = job["end_s"]
    job_efficiency = job["efficiency"]
    deadline_s = job["deadline_s"]
    times = [in_hours(seconds) for seconds in (start_s, end_s, end_s - start_s)]
    deadline = "" if deadline_s is None else in_hours(abs(deadline_s))
    if deadline_s is not None and deadline_s < 0:
        deadline += " ago"
    late_text = in_hours(job["late_s"]) if job["late_s"] else ""
    share = "" if job_efficiency is None else f"{job_efficiency:.0%}"
    return [
        job["name"],
        str(job["gpus"]),
        spans(job["gpu_ids"]),
        *times,
        likely_text,
        share,
        job["basis"],
        deadline,
        late_text,
    ]


def efficiency(task: PlanTask, option: GpusOption) -> float | None:
    """Return the speed of each GPU relative to the task's fewest GPUs, or None for one option."""
    fewest = min(task.options, key=lambda other: other.gpus)
    return (
        None
        if len(task.options) == 1
        else fewest.gpus * fewest.alone.value / (option.gpus * option.alone.value)
    )


def _comparisons(plan: Plan) -> list[str]:
    """Return lines on makespan, bound, simple plans, and delays."""
    notes: list[str] = [_makespan_line(plan), _bound_line(plan)]
    simple = (
        ("in turn", "one after the other on all", plan.in_turn),
        ("fewest GPUs each", "each on as few as it may have", plan.one_gpu_each),
    )
    notes += [_simple_plan_line(plan, name, words, other) for name, words, other in simple]
    delay_of_place = plan.schedule.late_s(plan.tasks)
    if delay_of_place:
        names = [plan.tasks[place].name for place in delay_of_place]
        delays = ", ".join(
            f"{plan.tasks[place].name} by {in_hours(delay)}"
            for place, delay in delay_of_place.items()
        )
        sentence = f"missed deadlines: {delays}; {in_hours(sum(delay_of_place.values()))} in all"
        notes.append(
            Message(
                "plan.late",
                sentence,
                tasks=names,
                seconds=[*delay_of_place.values()],
                total_s=sum(delay_of_place.values()),
            )
        )
    return notes


def _makespan_line(plan: Plan) -> Message:
    likely = plan.likely
    makespan_s = plan.schedule.makespan_s
    sentence = f"makespan: {in_hours(makespan_s)} planned"
    if likely.low < likely.high:
        sentence += (
            f"; likely {in_hours(likely.value)} ({in_hours(likely.low)} to {in_hours(likely.high)})"
        )
    facts: dict[str, Any] = {"likely": [likely.value, likely.low, likely.high]}
    likely_as_busy = plan.likely_as_busy
    if likely_as_busy is not None:
        sentence += (
            f"; if others stay as busy, {in_hours(likely_as_busy.low)} to"
            f" {in_hours(likely_as_busy.high)}"
        )
        facts["as_busy"] = [likely_as_busy.value, likely_as_busy.low, likely_as_busy.high]
    return Message("plan.makespan", sentence, seconds=makespan_s, **facts)


def _bound_line(plan: Plan) -> Message:
    has_deadlines = any(task.deadline_s is not None for task in plan.tasks)
    keeps = has_deadlines and not plan.schedule.late_s(plan.tasks)
    limit = "no plan that keeps the deadlines" if keeps else "no plan"
    sentence = f"bound: {limit} ends before {in_hours(plan.bound_s)}: gap {plan.gap:.1%}"
    return Message(
        "plan.bound", sentence, keeps_deadlines=keeps, seconds=plan.bound_s, gap=plan.gap
    )


def _simple_plan_line(plan: Plan, name: str, words: str, other: Schedule) -> Message:
    """Return the line that compares the plan with a simple one."""
    saved = 1 - plan.schedule.makespan_s / other.makespan_s if other.makespan_s else 0.0
    if abs(saved) < 0.005:
        compared = "as the plan"
    else:
        compared = f"the plan takes {abs(saved):.0%} {'less' if saved > 0 else 'more'}"
    sentence = f"{words}: {in_hours(other.makespan_s)}; {compared}"
    return Message(
        "plan.against-simple", sentence, simple=name, seconds=other.makespan_s, saved=saved
    )


def chart(
    tasks: Sequence[PlanTask], schedule: Schedule, gpus: int, width: int, noun: str = "GPU"
) -> list[str]:
    """Return a Gantt chart with at most `width` characters a line.

    Each GPU is a row, each column a time, and "[name==]" a task.
    """
    labels = [f"{noun} {gpu} " for gpu in range(gpus)]
    indent = max(map(len, labels))
    columns = max(width - indent, LEAST_COLUMNS)
    scale = columns / (schedule.makespan_s or 1.0)
    rows = []
    for gpu, label in enumerate(labels):
        row = [" "] * columns
        for task, placed in zip(tasks, schedule.placed, strict=True):
            if gpu in placed.gpu_ids:
                first = round(placed.start_s * scale)
                last = round(placed.end_s * scale)
                name = cut(task.name, last - first - 2) if last - first > 2 else ""
                row[first:last] = (
                    f"[{name.ljust(last - first - 2, '=')}]"
                    if last - first > 1
                    else "|" * (last - first)
                )
        rows.append((label.ljust(indent) + "".join(row)).rstrip())
    begin, middle, end = (in_hours(schedule.makespan_s * share) for share in (0, 0.5, 1))
    axis = begin + middle.rjust(columns // 2 + len(middle) // 2 - len(begin))
    return [*rows, " " * indent + axis + end.rjust(columns - len(axis))]


def as_dict(
    plan: Plan, node: str, slowdown: PredictedInterval, noun: str = "GPU"
) -> dict[str, Any]:
    """Return the plan as a dictionary for other programs, and for `plan_lines`."""
    late = plan.schedule.late_s(plan.tasks)
    jobs = []
    for place in plan.schedule.order():
        task = plan.tasks[place]
        placed = plan.schedule.placed[place]
        jobs.append({
            "name": task.name,
            "job": task.job,
            "gpus": placed.option.gpus,
            "gpu_ids": list(placed.gpu_ids),
            "start_s": placed.start_s,
            "end_s": placed.end_s,
            "seconds": msgspec.to_builtins(placed.option.interval),
            "seconds_as_busy": msgspec.to_builtins(placed.option.as_busy),
            "basis": placed.option.basis,
            "efficiency": efficiency(task, placed.option),
            "after": [plan.tasks[other].name for other in task.after],
            "deadline_s": task.deadline_s,
            "late_s": late.get(place, 0.0),
        })  # fmt: skip
    return {
        "node": node,
        "noun": noun,
        "gpus": plan.gpus,
        "slowdown": msgspec.to_builtins(slowdown),
        "makespan_s": plan.schedule.makespan_s,
        "bound_s": plan.bound_s,
        "expected_makespan_s": msgspec.to_builtins(plan.likely),
        "expected_makespan_as_busy_s": msgspec.to_builtins(plan.likely_as_busy),
        "in_turn_s": plan.in_turn.makespan_s,
        "fewest_gpus_each_s": plan.one_gpu_each.makespan_s,
        "late_s": sum(late.values()),
        "jobs": jobs,
    }


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the table of a plan and its outcome (`CarriedPlan.result`), as lines."""
    rows = []
    for job in result["jobs"]:
        seconds = [job[key] for key in ("planned_start_s", "planned_end_s", "start_s", "end_s")]
        times = ["" if time_s is None else in_hours(time_s) for time_s in seconds]
        ratio = "" if job["ratio"] is None else f"{job['ratio']:.0%}"
        rows.append(
            [
                job["name"],
                str(job["gpus"] or ""),
                spans(job["gpu_ids"]),
                *times,
                ratio,
                job["status"],
            ]
        )
    title = Message("plan.carried-out", "the plan and its outcome:")
    lines = [title, *text_table.text(RESULT_HEADINGS, rows, _width())]
    makespan_s = result["makespan_s"]
    planned_s = result["planned_makespan_s"]
    if makespan_s is not None and planned_s:
        difference = f"{makespan_s / planned_s - 1:+.1%}"
        sentence = f"makespan: {in_hours(makespan_s)}, planned {in_hours(planned_s)} ({difference})"
        lines += [
            "",
            Message("plan.took-in-all", sentence, seconds=makespan_s, planned_s=planned_s),
        ]
    return lines
