"""Print which cells of a sweep would be measured, and how."""

from collections.abc import Sequence

from multicard.config.job import count
from multicard.messages import Message, say
from multicard.records import text_table
from multicard.sweep.cell_checks import say_refused
from multicard.sweep.cells import Cell, Sweep


def show(
    sweep: Sweep,
    groups: Sequence[tuple[str, list[Cell]]],
    how: str,
    queued: int = 0,
    on_slurm: bool = False,
) -> None:
    """Print which cells would be measured and how, and the number of the others.

    Args:
        groups: cells with a text that says what their jobs ask for.
        how: how they would be measured.
        queued: the number of cells whose jobs are in the queue already.
        on_slurm: they would be measured on other nodes, whose cores are not known.
    """
    number = sum(len(members) for _, members in groups)
    refused = sum(cell.is_mistake for cell in sweep.refused)
    if number:
        plan = f"{count(number, 'cell')}, to be measured as {how}:"
    elif refused:
        every = len(sweep.every)
        plan = (
            f"No cell is left to measure: {refused} of {every} would be refused; see the reasons"
            " below."
        )
    else:
        plan = "No cell is left to measure."
    message = Message(
        "sweep.dry-run",
        f"dry_run=true: nothing is started. {plan}",
        key="dry_run",
        cells=number,
        how=how,
        refused=refused,
    )
    say(message)
    sweep.say_notices()
    if not on_slurm:
        sweep.say_crowds()
    sweep.say_order()
    rows = [
        (str(len(members)), request_text, "\n".join(map(_dry_run_line, members)))
        for request_text, members in groups
        if members
    ]
    if rows:
        width = text_table.terminal_width()
        for line in text_table.text(("cells", "each", "which"), rows, width):
            say(line)
    measured = len(sweep.cells) - len(sweep.left)
    message = Message(
        "sweep.counts",
        f"measured before: {measured}; in the queue: {queued}; refused: {refused}",
        measured=measured,
        queued=queued,
        refused=refused,
    )
    say(message)
    say_refused(sweep)


def _dry_run_line(cell: Cell) -> str:
    """Return the line of a cell: its setting, or what it does, and the identity in its folder."""
    setting = cell.setting.lstrip() or ", ".join(cell.workload.describe(cell.config))
    return f"{setting}  {cell.config.identity()}"
