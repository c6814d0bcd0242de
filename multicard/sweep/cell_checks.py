"""Check cells as runs do before they start, and say why cells are refused."""

from collections.abc import Sequence

from multicard.config.job import Device
from multicard.config.placement import place
from multicard.machine.slurm import Allocation
from multicard.messages import say
from multicard.run import prepare
from multicard.sweep.cells import Cell, Sweep


def check_cells(sweep: Sweep, left: Sequence[Cell], on_slurm: bool = False) -> None:
    """Refuse cells that do not pass the checks that a run makes before it starts.

    For SLURM, checks that only the job's nodes can make, such as of the data, are left out. The
    nodes are assumed to have the GPUs that the job asks for.
    """
    for cell in [*left]:
        config = cell.config
        try:
            if on_slurm:
                devices = 0 if config.device is Device.cpu else config.gpus
                cell.workload.fits(config, place(config, devices, config.nodes))
            else:
                prepare.check_run(cell.workload, config, Allocation())
        except ValueError as error:
            sweep.refuse(cell, str(error))


def say_refused(sweep: Sweep) -> None:
    """Print why cells would be refused, each reason once.

    The command then exits with 1, as the sweep would.
    """
    refused = sorted(
        (cell for cell in sweep.refused if cell.is_mistake), key=lambda cell: cell.number
    )
    for reason in dict.fromkeys(cell.reason for cell in refused):
        members = [cell for cell in refused if cell.reason == reason]
        more = f"and {len(members) - 1} more " if len(members) > 1 else ""
        say(f"{members[0].label}{more}refused: {reason}", error=True)
    sweep.command.would_refuse |= bool(refused)
