"""The nodes that a run was given, seen from one of them."""

from dataclasses import dataclass, field

from multicard.machine.environment import host


@dataclass(frozen=True)
class Allocation:
    """`hosts` in SLURM's order; `node` is this one's number among them, and node 0 records.

    Args:
        job: SLURM's name of the job ("12_3"); None outside of one.
        port: on node 0, where the ranks meet; the controllers meet at the next one.
        key: what the controllers of this run alone know.
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
