"""`compare`: compare two sweeps cell by cell, by the time of a step.

A cell holds the runs of one configuration. Its repetitions (seeds) have equal weight. The step time
is the mean over the measured steps, because means add up to the time of the work and medians do
not. Its interval includes how runs on the machine differ and how steps scatter
(`analysis.stats.between_runs`). Notes below the table name differences of the environments.

Tuning runs with held-out rows also have their losses on these rows, compared row by row.

Within one sweep, `--by KEY` compares each value of that key with each other value.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

from multicard.config.job import count
from multicard.measure.repeated_runs import CONFIDENCE, MARGIN
from multicard.messages import Message
from multicard.records import figures
from multicard.records.output import Output
from multicard.records.text_table import clean

from ..runs import circumstances, grouping
from ..runs.grouping import ok_runs
from ..runs.load import Run
from ..runs.quality import LOSS_APART
from ..table_columns import Column, rows, sortable_table
from .compared_cells import FASTER, SAME, SLOWER, UNDECIDED, CellComparison
from .compared_losses import ComparedLosses


def differing_circumstances(compared: Sequence[CellComparison]) -> list[str]:
    """Return lines about differences between the environments of A's runs and of B's runs.

    Each pair of values that is compared has its own lines.
    """
    lines = list[str]()
    pairs = grouping.grouped(compared, lambda cell: cell.sides)
    for sides, cells in pairs.items():
        a = list(chain.from_iterable(cell.a for cell in cells))
        b = list(chain.from_iterable(cell.b for cell in cells))
        for line in circumstances.differences(a, b):
            if len(pairs) > 1:
                text = f"A {sides[0]}, B {sides[1]}: {line}"
                lines.append(Message("compare.of-pair", text, a=sides[0], b=sides[1], line=line))
            else:
                lines.append(line)
    return lines


def output(
    compared: Sequence[CellComparison], margin: float = MARGIN, about: Sequence[str] = ()
) -> Output:
    """Return a table with a row for each cell.

    Below it stand the number of cells by verdict, what the figures mean, and what differs between
    the sides apart from their settings.
    """
    columns = _columns(compared)
    sides = {cell.sides for cell in compared}
    above = [f"{b} (B) against {a} (A)" for a, b in sides if a] if len(sides) == 1 else []
    # If all cells compare the same two sides, a line above the table names them once.
    named_above = ("A", "B") if len(sides) == 1 else ()
    below = ["", _counts(compared), *_explanations(compared, margin)]
    below += [f"warning: {line}" for line in differing_circumstances(compared)]
    runs = []
    for cell in compared:
        runs.extend((*cell.a, *cell.b))
    below += grouping.legend(runs)
    shown_table = sortable_table(
        [column for column in columns if column.heading not in named_above], [*about, *above], below
    )
    return Output(shown_table.lines, lambda: [shown_table], rows(columns))


def _counts(compared: Sequence[CellComparison]) -> Message:
    """Count the cells by verdict."""
    verdicts = Counter(cell.verdict for cell in compared)
    faster, slower, same_speed = (verdicts[verdict] for verdict in (FASTER, SLOWER, SAME))
    without_verdict = len(compared) - faster - slower - same_speed
    counts = [f"{faster} {FASTER}", f"{slower} {SLOWER}", f"{same_speed} {SAME}"]
    if without_verdict:
        counts.append(f"{without_verdict} without a verdict")
    text = f"B against A, by cell: {', '.join(counts)}"
    return Message(
        "compare.counts",
        text,
        faster=faster,
        slower=slower,
        same=same_speed,
        others=without_verdict,
    )


def _columns(compared: Sequence[CellComparison]) -> list[Column]:
    keys = grouping.apart(
        [dict(cell.cell) for cell in compared], [key for key, _ in compared[0].cell]
    )
    steps = [cell.step for cell in compared]
    marks = [grouping.marks([*cell.a, *cell.b]) for cell in compared]
    bounds = [step and step.bounds() for step in steps]
    sides = [
        [grouping.undisturbed(ok_runs(side)) for side in (cell.a, cell.b)] for cell in compared
    ]
    counts = [(len(a), len(b)) for a, b in sides]
    seconds = partial(figures.text, "step_s")
    return [
        *(
            Column(key, key, [dict(cell.cell)[key] for cell in compared], is_setting=True)
            for key in keys
        ),
        *(
            Column(side, side.lower(), [cell.sides[side_index] for cell in compared])
            for side_index, side in enumerate("AB")
        ),
        Column("A step s", "a_step_s", [cell.step_s[0] for cell in compared], seconds),
        Column("B step s", "b_step_s", [cell.step_s[1] for cell in compared], seconds),
        Column("B / A", "ratio", [step and step.ratio for step in steps], "{:.3f}".format),
        *(
            Column("", f"ratio_{end}", [interval and interval[index] for interval in bounds])
            for index, end in enumerate(("low", "high"))
        ),
        Column("interval", "", bounds, "{0[0]:.3f} to {0[1]:.3f}".format),
        *(
            Column("", f"{side}_runs", [number[side_index] for number in counts])
            for side_index, side in enumerate("ab")
        ),
        Column(
            "runs",
            "",
            counts,
            lambda number: "" if number == (1, 1) else f"{number[0]} and {number[1]}",
        ),
        Column("verdict", "verdict", [cell.verdict for cell in compared]),
        *_loss_columns([cell.held_out for cell in compared]),
        Column(
            "could see", "", [step and step.least_difference() for step in steps], "{:.1%}".format
        ),
        Column("marks", "", marks),
    ]


def _loss_columns(losses: Sequence[ComparedLosses | None]) -> list[Column]:
    """Return columns of held-out losses and their verdict; none if no cell has such losses."""
    if not any(losses):
        return []
    bounds = [loss and loss.bounds for loss in losses]
    return [
        Column(
            "A held-out loss",
            "a_held_out_loss",
            [loss and loss.a for loss in losses],
            "{:.3f}".format,
        ),
        Column(
            "B held-out loss",
            "b_held_out_loss",
            [loss and loss.b for loss in losses],
            "{:.3f}".format,
        ),
        Column("", "held_out_ratio_low", [interval and interval[0] for interval in bounds]),
        Column("", "held_out_ratio_high", [interval and interval[1] for interval in bounds]),
        Column("held-out verdict", "held_out_verdict", [loss and loss.verdict for loss in losses]),
    ]


def _explanations(compared: Sequence[CellComparison], margin: float) -> list[str]:
    """Explain the columns and verdicts that occur, and name the runs that are left out of means."""
    are_judged = [cell.judged for cell in compared]
    with_step = [cell for cell in compared if cell.step is not None]
    steps = [cell.step for cell in compared if cell.step is not None]
    text = (
        f"B / A: the ratio of mean step times, with its {CONFIDENCE:.0%} interval; if it is below"
        " 1, B is faster"
    )
    explained: list[str] = [Message("compare.ratio", text)]
    if any(cell.verdict in (SAME, UNDECIDED) for cell in compared):
        text = (
            f"{SAME}: the whole interval lies within {margin:.0%} (--margin); {UNDECIDED}: it"
            " does not"
        )
        explained.append(Message("compare.margin", text, margin=margin))
    if any(cell.held_out for cell in compared):
        text = (
            "held-out verdict: B against A, by differences row by row; no difference: they differ"
            f" by at most {LOSS_APART:.0%}"
        )
        explained.append(Message("compare.held-out", text, margin=LOSS_APART))
    if any(are_judged):
        text = "could see: the smallest difference that such runs would detect 4 times of 5"
        explained.append(Message("compare.could-see", text))
    if sum(are_judged) > 1:
        text = (
            "1 of 20 cells without a difference is expected to be called faster or slower by chance"
        )
        explained.append(Message("compare.by-chance", text))
    if any(not step.repeated for step in steps):
        text = "intervals over the steps of single runs do not include how runs differ"
        explained.append(Message("compare.single-runs", text))
    machines = next((cell.machines for cell in with_step if cell.machines is not None), None)
    if machines is not None:
        firsts = list[Run]()
        for cell in with_step:
            firsts.extend((cell.a[0], cell.b[0]))
        explained += machines.described(firsts)
    sides = {
        "A": list(chain.from_iterable(cell.a for cell in with_step)),
        "B": list(chain.from_iterable(cell.b for cell in with_step)),
    }
    # Runs of compared cells may be in no mean, because they failed or were disturbed.
    for side, runs in sides.items():
        not_ok = Counter(clean(run["status"]) for run in runs if run["status"] != "ok")
        for status, number in not_ok.items():
            text = f"left out of {side}: {number} {status}"
            explained.append(Message("compare.left-out", text, side=side, status=status, n=number))
        disturbed: Counter[str] = Counter()
        for cell in with_step:
            grouping.undisturbed(ok_runs(cell.a if side == "A" else cell.b), disturbed)
        for says, number in disturbed.items():
            text = f"left out of the means of {side}: {count(number, 'run')} ({says})"
            explained.append(Message("compare.disturbed", text, side=side, says=says, n=number))
    return explained
