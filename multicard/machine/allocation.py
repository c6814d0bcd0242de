"""The nodes of a run, seen from one of them."""

from dataclasses import dataclass, field

from multicard.machine.environment import host


@dataclass(frozen=True)
class Allocation:
    """The nodes of a run.

    Args:
        hosts: in SLURM's order.
        node: the number of this one among them; node 0 records.
        job: SLURM's name of the job ("12_3"); None outside of one.
        port: on node 0, for the ranks' rendezvous; the controllers connect to the next one.
        key: a secret of this run's controllers.
        grace_s: between SLURM's warning and its kill.
    """

    hosts: tuple[str, ...] = field(default_factory=lambda: (host(),))
    node: int = 0
    job: str | None = None
    port: int = 0
    key: bytes = b""
    grace_s: float = 0.0

    @property
    def nodes(self) -> int:
        return len(self.hosts)
