"""The table at the end of a command: one row per setting, with the mean of its runs and their
standard deviation.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.text import Text

from multicard.config import schema
from multicard.config.roles import Role
from multicard.measure import formulas
from multicard.messages import Message, link, say
from multicard.records import amounts, comparable, figures, limits, text_table
from multicard.records.amounts import Amounts
from multicard.records.figures import FIGURES, RECORDS, SHARE, Figure
from multicard.records.limits import Forbids
from multicard.records.run_folder import RecordedRun
from multicard.records.schema import AnyRecord, ScriptRecord

AGAINST_ONE = "x 1 GPU"
USE = "use"
OPTIONAL = [
    figure.heading()
    for figure in FIGURES.values()
    if figure.at_end and (figure.better is None or figure.if_room)
]
# What the table says for each `ended_by` of a probe.
PROBE_ENDS = {"error": "known", "seconds": "probe.seconds", "run": "last epoch", "race": "race"}
NOTE_ON_PROBES = Message(
    "table.probes",
    "Probes do not count as results: they feed predictions (`predict=true`), and appear in no other"
    " table.",
)


def show(
    runs: Sequence[RecordedRun], probes: bool = False, recommended: Sequence[Path] = ()
) -> None:
    """Print the table of these runs, or probes, which are all of one kind.

    Args:
        recommended: the folders of runs whose setting is marked as recommended.
    """
    width = text_table.terminal_width()
    heading, *rest = probe_lines(runs, width) if probes else lines(runs, width, recommended)
    for line in ("", Text(heading, "bold"), *rest):
        say(line)
    folder = runs[0].folder if len(runs) == 1 else runs[0].folder.parent
    say(Text("Records: ").append(link(folder)))


def lines(
    runs: Sequence[RecordedRun], width: int | None = None, recommended: Sequence[Path] = ()
) -> list[str]:
    """Return a row for each setting in the order of the sweep, and notes. A row has the axes that
    differ, the status and the figures.

    Args:
        width: the width of the table in cells; None for any width.
        recommended: the folders of runs whose setting is marked as recommended.
    """
    records = [run.record for run in runs]
    kind = records[0].kind
    axes = [
        axis
        for axis in comparable.varied(records, RECORDS[kind].always)
        if Role.repetition not in schema.of(axis)
    ]
    settings_of_sweep = _settings(records, axes)
    settings = [*chain.from_iterable(map(_by_amount, settings_of_sweep))]
    recommended_ids = {id(run.record) for run in runs if run.folder in {*recommended}}
    rows = [
        _setting(group, axes, any(id(record) in recommended_ids for record in group))
        | _figures(group, settings)
        for group in settings
    ]
    notes = list[str]()
    notes += limits.left_out_notes([limits.of(record) for record in group] for group in settings)
    if any(len(group) > 1 for group in settings):
        notes.append(Message("table.deviation", "±: standard deviation of the n runs"))
    notes += [
        str(amounts.unequal_repetitions(unequal))
        for setting in settings_of_sweep
        if (unequal := _amounts(setting)) is not None and not unequal.are_equal
    ]
    rate = RECORDS[kind].rate
    skipped = RECORDS[kind].skips
    unmeasured = [
        record
        for record in records
        if record.status == "ok" and FIGURES[rate].value(record) is None
    ]
    if any(record.steps is None or not record.steps.count for record in unmeasured):
        heading = FIGURES[rate].heading()
        note = Message(
            "table.no-rate",
            f"{heading} is missing if a run has no more steps than {skipped} leaves out: "
            f"train longer, or set a smaller {skipped}",
            key=skipped,
            figure=heading,
        )
        notes.append(note)
    if any(row[AGAINST_ONE].endswith(comparable.DOUBTFUL) for row in rows):
        notes.append(f"{comparable.DOUBTFUL} {comparable.DOUBTFUL_MEANING}")
    return _table(rows, [*notes, *comparable.notes(records)], width)


def figures_in_brief(record: AnyRecord) -> str:
    """Format a run's figures for the line that reports its end: "5.2 s   61 images/s   534 MB".

    For tuning with held-out rows, their loss is among the figures.
    """
    rate = FIGURES[record.rate]
    memory = FIGURES["peak_memory_bytes"]
    line = (
        f"{record.total_s or 0.0:>5.1f} s   {rate.text(record):>5} {rate.heading()}  "
        f" {memory.text(record):>7}"
    )
    held_out_loss = getattr(record, "held_out_loss", None)
    return line if held_out_loss is None else f"{line}   held-out loss {held_out_loss:.4g}"


def probe_lines(runs: Sequence[RecordedRun], width: int | None = None) -> list[str]:
    """Return a row for each probe: the axes that differ, the status and the figures."""
    records = [run.record for run in runs]
    axes = comparable.varied(records, records[0].always)
    rows = [_setting([record], axes) | _probe(record) for record in records]
    return _table(rows, [*comparable.notes(records), NOTE_ON_PROBES], width)


def _probe(record: AnyRecord) -> dict[str, str]:
    probe = record.probe
    costs = [FIGURES[name].text(record) for name in ("total_s", "peak_memory_bytes")]
    texts = ["-"] * 7
    if probe is not None:
        half_width = "-" if probe.half_width is None else f"{probe.half_width:.1%}"
        ended_by = PROBE_ENDS[probe.ended_by]
        texts = [
            f"{probe.step_s:.4g}",
            half_width,
            str(probe.steps),
            str(probe.warmup_steps),
            ended_by,
            *costs,
        ]
    headings = ("s/step", "±", "steps", "warm-up", "ended", "total s", "peak memory")
    return dict(zip(headings, texts, strict=True))


def _table(rows: Sequence[dict[str, str]], notes: Sequence[str], width: int | None) -> list[str]:
    """Format the columns in which rows differ, and below them the common values and the notes.

    If the table is too wide, optional figures are left out: figures that are neither better nor
    worse, for example.
    """
    shown = [heading for heading in rows[0] if any(row[heading] not in ("-", "") for row in rows)]
    common = [
        heading for heading in shown if len(rows) > 1 and len({row[heading] for row in rows}) == 1
    ]
    shown = [heading for heading in shown if heading not in common] or common
    sizes = text_table.least_widths(shown, [[row[heading] for heading in shown] for row in rows])
    fits = width is None or sum(sizes) + text_table.GAP * (len(sizes) - 1) <= width
    shown = [heading for heading in shown if fits or heading not in OPTIONAL]
    common_line = []
    if common:
        named = ", ".join(f"{name} {rows[0][name]}" for name in common)
        values = {name: rows[0][name] for name in common}
        common_line.append(Message("table.alike", f"the same in all rows: {named}", values=values))
    cells = [[row[heading] for heading in shown] for row in rows]
    return text_table.TextTable(shown, cells, below=[*common_line, *notes]).lines(width)


def _settings(records: Sequence[AnyRecord], axes: Sequence[str]) -> list[list[AnyRecord]]:
    """Group the runs that ended ok by setting, machine and commit. Each other run is a group of its
    own, because each has its own cause.
    """
    groups: dict[tuple[Any, ...], list[AnyRecord]] = {}
    for record in records:
        ended = None if record.status == "ok" else id(record)
        origin = (ended, record.hardware, record.commit, record.dirty)
        groups.setdefault((*(comparable.cell(record, axis) for axis in axes), *origin), []).append(
            record
        )
    return [*groups.values()]


def _amounts(group: Sequence[AnyRecord]) -> Amounts | None:
    """Return how much each run of a script's setting trained; None if it is not a script."""
    if not all(isinstance(record, ScriptRecord) for record in group):
        return None
    return amounts.of_runs([partial(_figure_of, record) for record in group])


def _figure_of(record: AnyRecord, name: str) -> Any:
    return FIGURES[name].value(record)


def _by_amount(group: list[AnyRecord]) -> list[list[AnyRecord]]:
    """Split the runs of a setting by how much they trained. A mean over the times of different
    amounts would describe no run.
    """
    amounts_of_runs = _amounts(group)
    if amounts_of_runs is None or amounts_of_runs.are_equal:
        return [group]
    by_class: dict[float, list[AnyRecord]] = {}
    for record, amount in zip(group, amounts_of_runs.classes(), strict=True):
        by_class.setdefault(amount, []).append(record)
    return [*by_class.values()]


def _setting(
    group: Sequence[AnyRecord], axes: Sequence[str], is_recommended: bool = False
) -> dict[str, str]:
    undisturbed = limits.undisturbed_or_all(group)
    marks = "".join(dict.fromkeys("".join(map(limits.brief_signs, undisturbed))))
    row = {axis: comparable.cell(group[0], axis) for axis in axes}
    n = text_table.part_of(len(undisturbed), len(group)) if len(group) > 1 else "-"
    return row | {USE: "yes" if is_recommended else "", "n": n, "status": group[0].status + marks}


def _figures(group: Sequence[AnyRecord], settings: Sequence[Sequence[AnyRecord]]) -> dict[str, str]:
    """Return the figures of a setting by heading; behind the rate, its speed-up. If the runs did
    not end ok, all are "-".
    """
    first = group[0]
    row = dict[str, str]()
    for figure in FIGURES.values():
        if first.kind in figure.at_end:
            row[figure.heading()] = _summed(figure, group)
        if figure.name == first.rate:
            row[AGAINST_ONE] = _against_one(group, settings)
    return row if first.status == "ok" else dict.fromkeys(row, "-")


def _summed(figure: Figure, group: Sequence[AnyRecord]) -> str:
    """Format the figure of a setting: the mean of its runs and their standard deviation, or the
    maximum. Times of disturbed runs are left out.
    """
    summed_records = limits.undisturbed_or_all(group) if figure.can_be_disturbed else group
    values = [figure.value(record) for record in summed_records]
    # If some runs lack the figure, a mean over the others would be biased.
    if len(values) < 2 or None in values:
        return figures.text(figure.name, values[0] if len(values) == 1 else None)
    text = figures.text(figure.name, max(values) if figure.summed == "max" else fmean(values))
    digits = len(text.rstrip("%").partition(".")[2])
    spread = f"{stdev(values) * (100 if figure.unit is SHARE else 1):.{digits}f}"
    return (
        text
        if figure.summed == "max" or figure.counted or not float(spread)
        else f"{text} ± {spread}"
    )


def _against_one(group: Sequence[AnyRecord], settings: Sequence[Sequence[AnyRecord]]) -> str:
    """Format the speed-up of the mean times over one GPU, and its share of the ideal speed-up.

    Tuning compares tokens/s: with max_steps, n GPUs take as many steps as one, on n times the rows.
    """
    base = _setting_on_one_gpu(group, settings)
    sides = [
        [_taken_s(record) for record in limits.undisturbed_or_all(side)] if side else []
        for side in (base, group)
    ]
    forbidden = any(
        limits.forbidding(limits.of(record), Forbids.speed_up, Forbids.verdict) for record in group
    )
    if forbidden or not all(side and all(side) for side in sides):
        return "-"
    one_s, setting_s = (fmean(filter(None, side)) for side in sides)
    share = formulas.parallel_efficiency(one_s, setting_s, group[0].ranks)
    doubtful = comparable.DOUBTFUL * (share > formulas.DOUBTFUL_EFFICIENCY)
    return f"{formulas.speedup(one_s, setting_s):.2f} ({share:.0%}){doubtful}"


def _setting_on_one_gpu(
    group: Sequence[AnyRecord], settings: Sequence[Sequence[AnyRecord]]
) -> Sequence[AnyRecord]:
    """Return the setting that only differs in running on one GPU; empty if there is none."""
    records = list(chain.from_iterable(settings))
    if all(record.ranks == 1 for record in records):
        return []
    references = [comparable.reference(record, records, gpus=1, nodes=1) for record in group]
    reference_ids = {id(record) for record in references if record is not None}
    for setting in settings:
        if any(id(record) in reference_ids for record in setting):
            return setting
    return []


def _taken_s(record: AnyRecord) -> float | None:
    """Return the seconds per unit of work by which runs are compared: the whole run, or a token."""
    return figures.taken_s(record.kind, lambda name: FIGURES[name].value(record))
