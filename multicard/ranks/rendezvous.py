"""Torch's static rendezvous, on one address.

Torch's own store listens on every address of the machine, and its dynamic rendezvous unpickles what anybody put there.
"""

import socket

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

BACKEND = "multicard"


class OneAddress(StaticTCPRendezvous):
    """A rendezvous whose store, which the ranks use too, listens on `master_addr` alone."""

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        if self.rank == 0 and self._store is None:
            listener = socket.create_server((self.master_addr, self.master_port))
            self.master_port = listener.getsockname()[1]  # where it was 0, for any
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                is_master=True,
                timeout=self.timeout,
                master_listen_fd=listener.detach(),
            )
        return super().next_rendezvous()


def create(parameters: RendezvousParameters) -> OneAddress:
    """The rendezvous of torch's parameters: `endpoint` as "address:port", and `rank` and `timeout` (s) in `config`."""
    address, _, port = parameters.endpoint.rpartition(":")
    rank, timeout_s = parameters.config["rank"], parameters.config["timeout"]
    return OneAddress(address, int(port), rank, parameters.max_nodes, parameters.run_id, timeout_s)


rendezvous_handler_registry.register(BACKEND, create)
