"""`compare`: two sweeps cell by cell, by the time of a step.

A cell holds the runs of one configuration. Its repetitions (seeds) are averaged with the same
weight. The time is the mean of the measured steps, which, unlike a median, adds up to the time of
the work. Its interval holds how runs of the machine differ from one another, and the scatter of the
steps (`analysis.stats.between_runs`). Differences of the environments of both are named below.

Tuning runs with held-out rows have their losses on these beside it, compared row by row.

Within one sweep, `--by KEY` compares each value of that key with each other.
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
from ..table_columns import Column, rows, table
from .compared_cells import FASTER, SAME, SLOWER, UNDECIDED, CellComparison
from .compared_losses import ComparedLosses


def differing_circumstances(compared: Sequence[CellComparison]) -> list[str]:
    """Differences of the environments of A's runs and B's,
    for each pair of values that is compared.
    """
    lines = list[str]()
    pairs = grouping.grouped(compared, lambda cell: cell.sides)
    for sides, cells in pairs.items():
        a = list(chain.from_iterable(cell.a for cell in cells))
        b = list(chain.from_iterable(cell.b for cell in cells))
        for line in circumstances.differences(a, b):
            if len(pairs) > 1:
                said = f"A {sides[0]}, B {sides[1]}: {line}"
                lines.append(Message("compare.of-pair", said, a=sides[0], b=sides[1], line=line))
            else:
                lines.append(line)
    return lines


def output(
    compared: Sequence[CellComparison], margin: float = MARGIN, about: Sequence[str] = ()
) -> Output:
    """A row for each cell; below, the verdicts counted, what figures mean,
    and what differs beside the settings.
    """
    columns = _columns(compared)
    sides = {cell.sides for cell in compared}
    above = [f"{b} (B) against {a} (A)" for a, b in sides if a] if len(sides) == 1 else []
    once = ("A", "B") if len(sides) == 1 else ()  # said above the table
    below = ["", _counts(compared), *_explanations(compared, margin)]
    below += [f"warning: {line}" for line in differing_circumstances(compared)]
    runs = []
    for cell in compared:
        runs.extend((*cell.a, *cell.b))
    below += grouping.legend(runs)
    shown = table(
        [column for column in columns if column.heading not in once], [*about, *above], below
    )
    return Output(shown.lines, lambda: [shown], rows(columns))


def _counts(compared: Sequence[CellComparison]) -> Message:
    """How many cells have each verdict."""
    verdicts = Counter(cell.verdict for cell in compared)
    faster, slower, same = (verdicts[verdict] for verdict in (FASTER, SLOWER, SAME))
    others = len(compared) - faster - slower - same
    counts = [f"{faster} {FASTER}", f"{slower} {SLOWER}", f"{same} {SAME}"]
    if others:
        counts.append(f"{others} without a verdict")
    said = f"B against A, by cell: {', '.join(counts)}"
    return Message("compare.counts", said, faster=faster, slower=slower, same=same, others=others)


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
            Column(side, side.lower(), [cell.sides[at] for cell in compared])
            for at, side in enumerate("AB")
        ),
        Column("A step s", "a_step_s", [cell.step_s[0] for cell in compared], seconds),
        Column("B step s", "b_step_s", [cell.step_s[1] for cell in compared], seconds),
        Column("B / A", "ratio", [step and step.ratio for step in steps], "{:.3f}".format),
        *(
            Column("", f"ratio_{end}", [one and one[at] for one in bounds])
            for at, end in enumerate(("low", "high"))
        ),
        Column("interval", "", bounds, "{0[0]:.3f} to {0[1]:.3f}".format),
        *(
            Column("", f"{side}_runs", [number[at] for number in counts])
            for at, side in enumerate("ab")
        ),
        Column(
            "runs",
            "",
            counts,
            lambda number: "" if number == (1, 1) else f"{number[0]} and {number[1]}",
        ),
        Column("verdict", "verdict", [cell.verdict for cell in compared]),
        *_of_losses([cell.held_out for cell in compared]),
        Column(
            "could see", "", [step and step.least_difference() for step in steps], "{:.1%}".format
        ),
        Column("marks", "", marks),
    ]


def _of_losses(losses: Sequence[ComparedLosses | None]) -> list[Column]:
    """Held-out losses of both sides and their verdict; no column where no cell has any."""
    if not any(losses):
        return []
    bounds = [one and one.bounds for one in losses]
    return [
        Column(
            "A held-out loss", "a_held_out_loss", [one and one.a for one in losses], "{:.3f}".format
        ),
        Column(
            "B held-out loss", "b_held_out_loss", [one and one.b for one in losses], "{:.3f}".format
        ),
        Column("", "held_out_ratio_low", [one and one[0] for one in bounds]),
        Column("", "held_out_ratio_high", [one and one[1] for one in bounds]),
        Column("held-out verdict", "held_out_verdict", [one and one.verdict for one in losses]),
    ]


def _explanations(compared: Sequence[CellComparison], margin: float) -> list[str]:
    judged = [cell.judged for cell in compared]
    with_step = [cell for cell in compared if cell.step is not None]
    steps = [cell.step for cell in compared if cell.step is not None]
    said = (
        f"B / A: the ratio of mean step times, with its {CONFIDENCE:.0%} interval; below 1, B is"
        " faster"
    )
    explained: list[str] = [Message("compare.ratio", said)]
    if any(cell.verdict in (SAME, UNDECIDED) for cell in compared):
        said = (
            f"{SAME}: the whole interval lies within {margin:.0%} (--margin); {UNDECIDED}: it"
            " does not"
        )
        explained.append(Message("compare.margin", said, margin=margin))
    if any(cell.held_out for cell in compared):
        said = (
            "held-out verdict: B against A, by differences row by row; no difference: within"
            f" {LOSS_APART:.0%}"
        )
        explained.append(Message("compare.held-out", said, margin=LOSS_APART))
    if any(judged):
        said = "could see: a difference that such runs would show 4 times of 5"
        explained.append(Message("compare.could-see", said))
    if sum(judged) > 1:
        said = (
            "1 of 20 cells without a difference is expected to be called faster or slower by chance"
        )
        explained.append(Message("compare.by-chance", said))
    if any(not step.repeated for step in steps):
        said = "intervals over the steps of single runs do not show how runs differ"
        explained.append(Message("compare.single-runs", said))
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
    for side, runs in sides.items():  # runs of compared cells that are in no mean
        unended = Counter(clean(run["status"]) for run in runs if run["status"] != "ok")
        for status, number in unended.items():
            said = f"left out of {side}: {number} {status}"
            explained.append(Message("compare.left-out", said, side=side, status=status, n=number))
        disturbed: Counter[str] = Counter()
        for cell in with_step:
            grouping.undisturbed(ok_runs(cell.a if side == "A" else cell.b), disturbed)
        for says, number in disturbed.items():
            said = f"left out of the means of {side}: {count(number, 'run')} ({says})"
            explained.append(Message("compare.disturbed", said, side=side, says=says, n=number))
    return explained
