"""`report`: one HTML file about some runs, for a person who must
decide how to run a training on several GPUs.

Each section's module turns runs into `blocks`; `page` writes these as one file that opens offline.
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
from ..answers import answers, recommended_runs
from ..figures import vega
from ..runs import details, grouping, load
from ..runs.load import FoundRuns
from ..stats.between_runs import RepeatedRuns
from . import page, sections
from .blocks import Report, Section
from .runs_section import of_runs
from .watch import Watch

NAME = "report.html"
MOST_NAMES = 3  # of folders, in the title


def write(
    folders: Sequence[Path],
    out: Path | None,
    title: str | None,
    mix: bool,
    found: FoundRuns | None = None,
) -> str:
    """Write the report on the runs (`found`) under `folders`, to `out`, else into the only folder
    or the working directory; return what was found, in a sentence, and on a last line what the page
    holds. Raises ValueError if `out` is a folder.
    """
    path = out or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    if path.is_dir():
        is_folder = (
            f"--out {path}: is a folder; name a file, as `--out {shlex.quote(str(path / NAME))}`"
        )
        raise Refusal("report.out-is-folder", is_folder, key="--out", value=str(path))
    report = build(found or load.read(folders), title or _title(folders), mix)
    size_bytes = page.write(path, report)
    holds = f"{path}: {report.summary}; {size_bytes / 1e6:.1f} MB"
    written = Message(
        "report.written", holds, file=str(path), summary=report.summary, size_bytes=size_bytes
    )
    return "\n".join(filter(None, [report.answer, written]))


def watched(
    folders: Sequence[Path], title: str | None, mix: bool, price: float | None = None
) -> Watch:
    """The report on all runs under `folders`, which need not exist yet, for `watch.serve`."""
    name = title or _title(folders)

    def made() -> Report:
        return build(load.read(folders, price=price), name, mix)

    return Watch(folders, made, lambda reason: Report(name, timestamp(), reason, [], {}, []))


def _title(folders: Sequence[Path]) -> str:
    return f"Runs of {first_few([folder.resolve().name for folder in folders], MOST_NAMES)}"


def build(found: FoundRuns, title: str, mix: bool, first: Sequence[Section] = ()) -> Report:
    """The whole report, without the sections that have nothing to say.

    Args:
        first: sections that come before its own.
    """
    page.bundling()
    runs = details.read(found.runs)
    loaded = [experiments.load(name) for name in experiments.names()]
    repeated = RepeatedRuns(runs)
    panels = [
        (experiment, experiments.panels(experiment, runs, mix, repeated)) for experiment in loaded
    ]
    found_out = answers(runs, mix)
    made = [
        *first,
        sections.of_answers(found_out, runs),
        sections.of_effects([answer.ranking for answer in found_out]),
        of_runs(runs, found.skipped, repeated, mix, recommended_runs(found_out)),
        sections.of_efficiency(runs),
        sections.of_papers(runs, panels, claims.judge(runs, mix)),
        sections.of_machine(runs),
    ]
    return Report(
        title,
        timestamp(),
        _summary(found),
        sections.warnings(runs),
        {
            limits.sign(limit.code): limit.says
            for limit in limits.in_order(grouping.limits_of(runs))
        },
        [section for section in made if section.blocks],
        {name: vega.theme(name) for name in ("light", "dark")},
        found_out[0].sentence if found_out else "",
    )


def bare(title: str, summary: str, own: Sequence[Section]) -> Report:
    """A report of some sections alone, where there are no runs."""
    return Report(title, timestamp(), summary, [], {}, own)


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
