"""What a sweep would do: the checks of each cell, and what `dry_run=true` prints."""

from collections.abc import Sequence

from multicard.config.job import Device, count
from multicard.config.placement import place
from multicard.machine.allocation import Allocation
from multicard.records import text_table
from multicard.run import prepare
from multicard.run.session import SESSION, say
from multicard.sweep.plan import Cell


def check(left: list[Cell], on_slurm: bool = False) -> list[Cell]:
    """Make the checks that a run makes before it starts. Returns the cells that pass.

    Args:
        on_slurm: leave out what only the job's own nodes can answer, as whether they hold the data; they are taken
            to have the GPUs that the job asks for.
    """
    assert SESSION.workload is not None
    for cell in left:
        config = cell.config
        assert config is not None
        try:
            if on_slurm:
                devices = 0 if config.device is Device.cpu else config.gpus
                placement = place(config, devices, config.nodes, SESSION.workload.processes(config))
                SESSION.workload.fits(config, placement)
            else:
                prepare.check(SESSION.workload, config, Allocation())
        except ValueError as error:
            cell.problem = str(error)
    return [cell for cell in left if not cell.problem]


def show(cells: list[Cell], groups: Sequence[tuple[str, list[Cell]]], how: str, queued: int = 0) -> None:
    """Print what would be measured, and what would not.

    Args:
        groups: cells to measure, each group with what its jobs ask for.
        how: they would be measured, in words.
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
    measured, refused = sum(cell.result is not None for cell in cells), sum(bool(cell.problem) for cell in cells)
    say(f"measured before: {measured}; in the queue: {queued}; refused: {refused}")
    say_refused(cells)


def say_refused(cells: Sequence[Cell]) -> None:
    """Say why cells would be refused, once for those of the same reason; the command then exits with 1, as the sweep
    would."""
    refused = [cell for cell in cells if cell.problem]
    for problem in dict.fromkeys(cell.problem for cell in refused):
        members = [cell for cell in refused if cell.problem == problem]
        more = f"and {len(members) - 1} more " if len(members) > 1 else ""
        say(f"{members[0].label}{more}refused: {problem}", error=True)
    SESSION.would_refuse |= bool(refused)
