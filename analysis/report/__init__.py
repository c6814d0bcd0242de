"""`report`: write one HTML file about some runs.

Its readers must decide how to run a training on several GPUs. The modules of the sections turn runs
into `blocks`. `page` writes the blocks as one file that opens offline.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from multicard.config.job import count
from multicard.measure.timing import timestamp
from multicard.messages import Message, Refusal
from multicard.records import limits
from multicard.records.text_table import first_few

from .. import claims, experiments
from ..answers import MAX_ANSWERS, Answer, answers, recommended_runs, sentences_of
from ..figures import vega
from ..runs import details, grouping, load
from ..runs.load import FoundRuns
from ..stats.between_runs import RepeatedRuns
from . import page, sections
from .blocks import Report, Section
from .runs_section import build_runs_section
from .watch import Watch

NAME = "report.html"
MOST_NAMES = 3  # The most folders that the title names.


def write(
    folders: Sequence[Path],
    out: Path | None,
    title: str | None,
    mix: bool,
    found: FoundRuns | None = None,
) -> str:
    """Write the report on the runs under `folders`, and return lines about it.

    The lines have the answer to what to run, if there is one, and what the page holds.

    Args:
        folders: the folders of the runs.
        out: the file to write. By default, it is in the only folder, or in the working directory.
        title: the title of the page. By default, it names the folders.
        mix: treat runs of different commits and machines as the same setting.
        found: the runs, if they have been read already.

    Raises:
        ValueError: `out` is a folder.
    """
    path = out or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    if path.is_dir():
        text = f"--out {path}: is a folder; name a file, as `--out {shlex.quote(str(path / NAME))}`"
        raise Refusal("report.out-is-folder", text, key="--out", value=str(path))
    report = build(found or load.read_runs(folders), title or _title(folders), mix)
    size_bytes = page.write(path, report)
    text = f"{path}: {report.summary}; {size_bytes / 1e6:.1f} MB"
    written = Message(
        "report.written", text, file=str(path), summary=report.summary, size_bytes=size_bytes
    )
    return "\n".join([*report.answer, written])


def watched_report(
    folders: Sequence[Path], title: str | None, mix: bool, price: float | None = None
) -> Watch:
    """Return the page for `watch.serve` about all runs under `folders`, which may not exist yet."""
    name = title or _title(folders)

    def build_report() -> Report:
        return build(load.read_runs(folders, price=price), name, mix)

    return Watch(
        folders, build_report, lambda reason: Report(name, timestamp(), reason, [], {}, {}, [])
    )


def _title(folders: Sequence[Path]) -> str:
    return f"Runs of {first_few([folder.resolve().name for folder in folders], MOST_NAMES)}"


def build(found: FoundRuns, title: str, mix: bool, first: Sequence[Section] = ()) -> Report:
    """Build the whole report, without the sections that have nothing to say.

    Args:
        found: the runs.
        title: the title of the page.
        mix: treat runs of different commits and machines as the same setting.
        first: further sections, which come before the report's own.
    """
    page.bundling()
    runs = details.read_details(found.runs)
    all_experiments = [experiments.load_experiment(name) for name in experiments.names()]
    repeated = RepeatedRuns(runs)
    panels = [
        (experiment, experiments.panels(experiment, runs, mix, repeated))
        for experiment in all_experiments
    ]
    all_answers = answers(runs, mix)
    all_limits = limits.in_order(grouping.limits_of(runs))
    all_sections = [
        *first,
        sections.answers_section(all_answers, runs),
        sections.effects_section([answer.ranking for answer in all_answers]),
        build_runs_section(runs, found.skipped, repeated, mix, recommended_runs(all_answers)),
        sections.efficiency_section(runs),
        sections.papers_section(runs, panels, claims.judge(runs, mix)),
        sections.machine_section(runs),
    ]
    return Report(
        title,
        timestamp(),
        _summary(found),
        sections.warnings(runs),
        {limits.sign(limit.code): limit.says for limit in all_limits},
        {limits.sign(limit.code): _mark_name(limit.code) for limit in all_limits},
        [section for section in all_sections if section.blocks],
        {name: vega.theme(name) for name in ("light", "dark")},
        _answer_lines(all_answers),
    )


def _answer_lines(all_answers: Sequence[Answer]) -> list[str]:
    """Return what to run for the last workloads, and how many others there are."""
    lines = sentences_of(all_answers)[:MAX_ANSWERS]
    unshown = len(all_answers) - len(lines)
    return [*lines, sections.more_workloads(unshown)] if unshown else lines


def report_without_runs(title: str, summary: str, report_sections: Sequence[Section]) -> Report:
    """Return a report that consists of these sections only, without runs."""
    return Report(title, timestamp(), summary, [], {}, {}, report_sections)


def _summary(found: FoundRuns) -> Message:
    runs = found.runs
    parts = [count(len(runs), "run")]
    failed = sum(run["status"] != "ok" for run in runs)
    if failed:
        parts.append(f"{failed:,} of them did not end ok")
    days = sorted({run["started_at"][:10] for run in runs if run["started_at"]})
    if days:
        parts.append(f"measured {days[0]}")
    if len(days) > 1:
        parts[-1] += f" to {days[-1]}"
    return Message("report.summary", ", ".join(parts), runs=len(runs), failed=failed, days=days)


def _mark_name(code: str) -> str:
    """Return the words that the page shows as a run's mark, such as "CPU ranks"."""
    return code.replace("-", " ").replace("cpu", "CPU")
