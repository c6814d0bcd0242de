"""`list`: show the runs under some folders, in one table for each kind of run."""

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
# A line above the tables says these once if they are the same for all runs.
ABOUT = ("name", "kind", "commit", "hardware", "hosts")
# If lines are too long, these columns are dropped in this order.
DROPPED = ("hosts", "hardware", "commit", *reversed(FIGURES[1:]))
MAX_NAMED = 5  # The most causes of failures that are printed one by one.


def output(
    found: FoundRuns,
    selected_runs: Sequence[Run],
    chosen: Sequence[str] | None,
    refused: bool = False,
) -> Output:
    """Return what `list` prints about some of the runs that were found.

    CSV and JSON have all columns of these runs, or the chosen ones, as they are in the records. The
    units are in the columns' names.

    Args:
        found: all runs under the folders.
        selected_runs: the runs to show.
        chosen: the columns to print. By default, these are the columns that distinguish the runs,
            and their main figures.
        refused: also print refused runs. By default, they are only counted if there are others.
    """
    runs = [run for run in selected_runs if refused or run["status"] != "refused"] or selected_runs
    hidden_count = len(selected_runs) - len(runs)
    hidden_notes = []
    if hidden_count:
        text = (
            f"{count(hidden_count, 'refused cell')} left out: `--where \"status='refused'\"`"
            " shows them"
        )
        hidden_notes.append(Message("list.refused-cells", text, n=hidden_count))
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
        has_several_kinds = chosen is None and len({run["kind"] for run in runs}) > 1
        return [
            *(printed if has_several_kinds else printed[:-1]),
            _count_line(runs, found),
            *hidden_notes,
            *_causes(runs, limit),
            *marks,
        ]

    def with_legend() -> list[TextTable]:
        return [table._replace(below=[*table.below, *marks]) for table in shown_tables()]

    rows = ({name: run[name] for name in names} for run in selected_runs)
    return Output(lines, with_legend, rows, names, lambda rows: {"runs": rows})


def _count_line(runs: Sequence[Run], found: FoundRuns) -> Message:
    shown_part = f"{len(runs)} of " if len(runs) < len(found.runs) else ""
    text = f"{shown_part}{count(len(found.runs), 'run')}"
    counts = Counter(run["status"] for run in runs if run["status"] != "ok")
    if counts:
        failed_counts = ", ".join(f"{number} {clean(status)}" for status, number in counts.items())
        text += f", of which {failed_counts}; their figures are not shown"
    return Message("list.runs", text, shown=len(runs), found=len(found.runs), not_ok=dict(counts))


def _causes(runs: Sequence[Run], limit: int | None) -> list[str]:
    """List why runs did not end ok, the most frequent causes first."""
    causes = Counter((run["status"], run["cause"]) for run in runs if run["status"] != "ok")
    cause_lines = [
        f"{status}{f' ({number} runs)' if number > 1 else ''}: {cause or 'no cause recorded'}"
        for (status, cause), number in causes.most_common(MAX_NAMED)
    ]
    lines = [text_table.cut(clean(line), limit) for line in cause_lines]
    unnamed = len(causes) - MAX_NAMED
    if unnamed > 0:
        lines.append(
            Message(
                "list.more-causes",
                f"{count(unnamed, 'more cause')} (`--columns folder,cause`)",
                n=unnamed,
            )
        )
    return lines


def tables(runs: Sequence[Run], limit: int | None = None) -> list[TextTable]:
    """Return a table for each kind of run, in lines of at most `limit` characters.

    A line above the first table states what all runs have in common.
    """
    shared_columns = {
        name for name in ABOUT if len(runs) > 1 and len({run[name] for run in runs}) == 1
    }
    common = [
        f"{name} {_value(name, runs[0])}"
        for name in ABOUT
        if name in shared_columns and runs[0][name] is not None
    ]
    lines_above = [f"all: {', '.join(common)}"] if common else []
    by_kind = grouping.group(runs, ["kind"])
    if len(by_kind) < 2:
        return [
            _table(kind_runs, shared_columns, limit, lines_above) for kind_runs in by_kind.values()
        ]
    headings = [[f"{clean(kind_runs[0]['kind'])}:"] for kind_runs in by_kind.values()]
    headings[0] = [*lines_above, *headings[0]]
    return [
        _table(kind_runs, shared_columns | {"kind"}, limit, lines_above)
        for kind_runs, lines_above in zip(by_kind.values(), headings, strict=True)
    ]


def _table(
    runs: Sequence[Run], shared_columns: set[str], limit: int | None, above: Sequence[str]
) -> TextTable:
    """Return the table of runs of one kind.

    It lacks `shared_columns`, empty columns, and columns that lines have no room for.
    """
    axes = differing(runs)
    order = ["name", "kind", *axes, "status", *FIGURES, "commit", "hardware", "hosts", "marks"]
    cells = {
        name: [_value(name, run) for run in runs] for name in order if name not in shared_columns
    }
    names = [name for name in cells if set(cells[name]) - {"-", ""}]
    constant = [name for name in axes if name in names and len({*cells[name]}) == 1]
    varied = [name for name in axes if name not in constant]
    widths = dict(zip(names, text_table.least_widths(names, _rows(names, cells)), strict=True))
    dropped_columns = []
    for name in (*constant, *DROPPED, *reversed(varied)):
        if (
            limit is None
            or sum(widths[column] + text_table.GAP for column in names) - text_table.GAP <= limit
        ):
            break
        if name in names:
            names.remove(name)
            dropped_columns.append(name)
    notes = []
    if dropped_columns:
        text = f"no room for: {', '.join(reversed(dropped_columns))} (`--columns A,B` chooses)"
        notes.append(Message("list.no-room", text, columns=dropped_columns[::-1]))
    return TextTable(names, _rows(names, cells), above, notes)


def _rows(names: Sequence[str], cells: dict[str, list[str]]) -> list[tuple[str, ...]]:
    return list(zip(*(cells[name] for name in names), strict=True))


def _value(name: str, run: Run) -> str:
    """Write a value of a run as text. A figure of a run that did not end ok is "-"."""
    if name in FIGURES and run["status"] != "ok":
        return "-"
    if name == "commit":
        return grouping.commit(run, absent="-")
    return figures.text(name if name in FIGURES else "", run[name])


def main_columns(runs: Sequence[Run]) -> list[str]:
    """Return the columns to look at first.

    They are the columns that distinguish the runs, status, main figures and marks. Figures that no
    run has are left out.
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
    """Return the columns that this kind of run always shows, and columns that distinguish runs."""
    keys = [*grouping.settings(runs), *grouping.CORES, grouping.REPEATED]
    always_shown = [
        name
        for name in figures.RECORDS[runs[0]["kind"]].always
        if any(run[name] is not None for run in runs)
    ]
    distinguishing_columns = grouping.apart([run.columns for run in runs], keys)
    return [*always_shown, *(name for name in distinguishing_columns if name not in always_shown)]
