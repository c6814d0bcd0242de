"""The nodes of a run, seen from one of them."""

import socket
from dataclasses import dataclass, field
from ipaddress import ip_address

from multicard.machine.environment import host

LOOPBACK = "127.0.0.1"


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

    def head_address(self) -> str:
        """The IPv4 address at which node 0 listens for the others, and for its own ranks; seen from this node.

        Raises:
            OSError: the name of a node cannot be resolved.
        """
        if self.nodes == 1:
            return LOOPBACK
        address = socket.gethostbyname(self.hosts[0])
        if self.node > 0 or not ip_address(address).is_loopback:
            return address
        # many a machine has its own name at a loopback address: the one that faces the next node is what others see
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(self.hosts[1]), self.port))  # sends nothing
            return probe.getsockname()[0]
