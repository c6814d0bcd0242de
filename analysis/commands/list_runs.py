"""`list`: the runs under some folders, as a table for each kind."""

from collections import Counter
from collections.abc import Sequence

from multicard.config.job import count
from multicard.messages import Message
from multicard.records import figures, text_table
from multicard.records.output import Output
from multicard.records.text_table import TextTable, clean

from ..runs import grouping
from ..runs.load import FoundRuns, Run
from ..runs.sql import column_names, known

FIGURES = tuple(figure.name for figure in figures.FIGURES.values() if figure.listed)
# said once, above the tables, where it is the same for all
ABOUT = ("name", "kind", "commit", "hardware", "hosts")
# in this order, where lines are too long
DROPPED = ("hosts", "hardware", "commit", *reversed(FIGURES[1:]))
NAMED = 5  # causes of failures that are named one by one


def output(
    found: FoundRuns, every: Sequence[Run], chosen: Sequence[str] | None, refused: bool = False
) -> Output:
    """What `list` says of runs, some of those `found`; CSV and JSON have all of their columns, or
    those chosen, as they are in the records: units are in the names.

    Args:
        chosen: the columns to print instead of those that tell the runs apart, and their main
            figures.
        refused: show refused runs too, beside others; they are counted alone otherwise.
    """
    runs = [run for run in every if refused or run["status"] != "refused"] or every
    left = len(every) - len(runs)
    hidden = []
    if left:
        said = f"{count(left, 'refused cell')} left out: `--where \"status='refused'\"` shows them"
        hidden.append(Message("list.refused-cells", said, n=left))
    names = column_names(found.runs)
    marks = grouping.legend(runs)
    if chosen is not None:
        names = [known(name, names, "--columns") for name in chosen]

    def shown_tables(limit: int | None = None) -> list[TextTable]:
        if chosen is None:
            return tables(runs, limit)
        return [
            TextTable(names, [[figures.text(name, run[name]) for name in names] for run in runs])
        ]

    def lines(limit: int | None) -> list[str]:
        printed = []
        for table in shown_tables(limit):
            printed.extend((*table.lines(limit), ""))
        several = chosen is None and len({run["kind"] for run in runs}) > 1
        return [
            *(printed if several else printed[:-1]),
            _counted(runs, found),
            *hidden,
            *_causes(runs, limit),
            *marks,
        ]

    def with_legend() -> list[TextTable]:
        return [table._replace(below=[*table.below, *marks]) for table in shown_tables()]

    rows = ({name: run[name] for name in names} for run in every)
    return Output(lines, with_legend, rows, names, lambda rows: {"runs": rows})


def _counted(runs: Sequence[Run], found: FoundRuns) -> Message:
    some = f"{len(runs)} of " if len(runs) < len(found.runs) else ""
    said = f"{some}{count(len(found.runs), 'run')}"
    counts = Counter(run["status"] for run in runs if run["status"] != "ok")
    if counts:
        others = ", ".join(f"{number} {clean(status)}" for status, number in counts.items())
        said += f", of these {others}: their figures are left out"
    return Message("list.runs", said, shown=len(runs), found=len(found.runs), not_ok=dict(counts))


def _causes(runs: Sequence[Run], limit: int | None) -> list[str]:
    causes = Counter((run["status"], run["cause"]) for run in runs if run["status"] != "ok")
    named = [
        f"{status}{f' ({number} runs)' if number > 1 else ''}: {cause or 'no cause recorded'}"
        for (status, cause), number in causes.most_common(NAMED)
    ]
    lines = [text_table.cut(clean(line), limit) for line in named]
    more = len(causes) - NAMED
    if more > 0:
        lines.append(
            Message(
                "list.more-causes",
                f"{count(more, 'more cause')} (`--columns folder,cause`)",
                n=more,
            )
        )
    return lines


def tables(runs: Sequence[Run], limit: int | None = None) -> list[TextTable]:
    """A table for each kind of run, below what all of them have in common,
    in lines of at most `limit` cells.
    """
    same = {name for name in ABOUT if len(runs) > 1 and len({run[name] for run in runs}) == 1}
    common = [
        f"{name} {_value(name, runs[0])}"
        for name in ABOUT
        if name in same and runs[0][name] is not None
    ]
    above = [f"all: {', '.join(common)}"] if common else []
    by_kind = grouping.group(runs, ["kind"])
    if len(by_kind) < 2:
        return [_table(own, same, limit, above) for own in by_kind.values()]
    headings = [[f"{clean(own[0]['kind'])}:"] for own in by_kind.values()]
    headings[0] = [*above, *headings[0]]
    return [
        _table(own, same | {"kind"}, limit, above)
        for own, above in zip(by_kind.values(), headings, strict=True)
    ]


def _table(
    runs: Sequence[Run], same: set[str], limit: int | None, above: Sequence[str]
) -> TextTable:
    """The table of runs of one kind, without columns in `same`, empty ones,
    and those that lines have no room for.
    """
    axes = differing(runs)
    order = ["name", "kind", *axes, "status", *FIGURES, "commit", "hardware", "hosts", "marks"]
    cells = {name: [_value(name, run) for run in runs] for name in order if name not in same}
    names = [name for name in cells if name in axes or set(cells[name]) - {"-", ""}]
    widths = dict(zip(names, text_table.least_widths(names, _rows(names, cells)), strict=True))
    dropped = []
    for name in (*DROPPED, *reversed(axes)):
        if (
            limit is None
            or sum(widths[column] + text_table.GAP for column in names) - text_table.GAP <= limit
        ):
            break
        if name in names:
            names.remove(name)
            dropped.append(name)
    note = []
    if dropped:
        said = f"no room for: {', '.join(reversed(dropped))} (`--columns A,B` chooses)"
        note.append(Message("list.no-room", said, columns=dropped[::-1]))
    return TextTable(names, _rows(names, cells), above, note)


def _rows(names: Sequence[str], cells: dict[str, list[str]]) -> list[tuple[str, ...]]:
    return list(zip(*(cells[name] for name in names), strict=True))


def _value(name: str, run: Run) -> str:
    if name in FIGURES and run["status"] != "ok":
        return "-"
    if name == "commit":
        return grouping.commit(run, absent="-")
    return figures.text(name if name in FIGURES else "", run[name])


def main_columns(runs: Sequence[Run]) -> list[str]:
    """The columns to look at first: what tells the runs apart, status, main figures and marks.

    Figures that no run has are left out.
    """
    names = ["name"]
    by_kind = grouping.group(runs, ["kind"]).values()
    if len(by_kind) > 1:
        names.append("kind")
    for runs_of_kind in by_kind:
        names += [name for name in differing(runs_of_kind) if name not in names]
    names.append("status")
    names += [name for name in FIGURES if any(run[name] is not None for run in runs)]
    return [*names, "marks"]


def differing(runs: Sequence[Run]) -> list[str]:
    """The axes and keys that tell runs of one kind apart, and those that are always shown of it."""
    keys = [*grouping.settings(runs), *grouping.CORES, grouping.REPEATED]
    always = [
        name
        for name in figures.RECORDS[runs[0]["kind"]].always
        if any(run[name] is not None for run in runs)
    ]
    apart = grouping.apart([run.columns for run in runs], keys)
    return [*always, *(name for name in apart if name not in always)]
