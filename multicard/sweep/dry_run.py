"""The checks of each cell before a sweep, and the output of `dry_run=true`."""

from collections.abc import Sequence

from multicard.config.job import Device, count
from multicard.config.placement import place
from multicard.machine.allocation import Allocation
from multicard.messages import say
from multicard.records import text_table
from multicard.run import prepare
from multicard.sweep.cells import Cell, Sweep


def check(sweep: Sweep, left: Sequence[Cell], on_slurm: bool = False) -> None:
    """Refuse the cells that do not pass the checks that a run makes before it starts.

    Args:
        left: the cells of the sweep that are to be checked.
        on_slurm: leave out checks that only the job's own nodes can make, for example of the data, and assume that
            they have the GPUs that the job asks for.
    """
    for cell in [*left]:
        config = cell.config
        try:
            if on_slurm:
                devices = 0 if config.device is Device.cpu else config.gpus
                placement = place(config, devices, config.nodes, cell.workload.processes(config))
                cell.workload.fits(config, placement)
            else:
                prepare.check(cell.workload, config, Allocation())
        except ValueError as error:
            sweep.refuse(cell, str(error))


def show(sweep: Sweep, groups: Sequence[tuple[str, list[Cell]]], how: str, queued: int = 0) -> None:
    """Print the cells that would be measured, and the number of the others.

    Args:
        groups: cells to measure, each group with what its jobs ask for.
        how: a description of how they would be measured.
        queued: cells whose jobs are in the queue already.
    """
    number = sum(len(members) for _, members in groups)
    say(f"dry_run=true: nothing is started. {count(number, 'cell')}, to be measured as {how}:")
    rows = [
        (str(len(members)), each, "\n".join(cell.folder.name for cell in members))
        for each, members in groups
        if members
    ]
    for line in text_table.text(("cells", "each", "which"), rows, text_table.terminal_width()):
        say(line)
    measured = len(sweep.cells) - len(sweep.left)
    refused = sum(cell.is_mistake for cell in sweep.refused)
    say(f"measured before: {measured}; in the queue: {queued}; refused: {refused}")
    say_refused(sweep)


def say_refused(sweep: Sweep) -> None:
    """Say why cells would be refused, once for those of the same reason; the command then exits with 1, as the sweep
    would."""
    refused = sorted((cell for cell in sweep.refused if cell.is_mistake), key=lambda cell: cell.number)
    for reason in dict.fromkeys(cell.reason for cell in refused):
        members = [cell for cell in refused if cell.reason == reason]
        more = f"and {len(members) - 1} more " if len(members) > 1 else ""
        say(f"{members[0].label}{more}refused: {reason}", error=True)
    sweep.command.would_refuse |= bool(refused)
