"""Torch's static rendezvous, restricted to one address.

Torch's own store listens on every address of the machine. Its dynamic rendezvous unpickles whatever
anybody put into that store. Its static one waits for the other nodes within C++, where neither
Ctrl-C nor the loss of a node ends the wait.
"""

import socket

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from multicard.measure.timing import clock_s, pause
from multicard.messages import Message

BACKEND = "multicard"
RETRY_S = 0.1


class OneAddress(StaticTCPRendezvous):
    """A rendezvous whose store listens on `master_addr` alone. The ranks use the same store."""

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        deadline_s = clock_s() + self.timeout.total_seconds()
        if self._store is None:
            listener = self._listen() if self.rank == 0 else None
            while listener is None and not self._listens() and clock_s() < deadline_s:
                pause(RETRY_S)
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                is_master=self.rank == 0,
                timeout=self.timeout,
                wait_for_workers=False,
                master_listen_fd=None if listener is None else listener.detach(),
            )
        store: Store = PrefixStore(self.run_id, self._store)
        store.set(f"node {self.rank}", "here")
        while not store.check([f"node {rank}" for rank in range(self.world_size)]):
            if clock_s() > deadline_s:
                message = Message(
                    "rank.nodes-absent",
                    f"not all {self.world_size} nodes came up within {self.timeout}",
                    nodes=self.world_size,
                    seconds=self.timeout.total_seconds(),
                )
                raise TimeoutError(message)
            pause(RETRY_S)
        address = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(store, self.rank, self.world_size, address)

    def _listen(self) -> socket.socket:
        listener = socket.create_server((self.master_addr, self.master_port))
        self.master_port = listener.getsockname()[1]  # It was 0 if any free port would do.
        return listener

    def _listens(self) -> bool:
        """Return True once node 0 listens. Torch's own retries would print a warning each."""
        try:
            socket.create_connection((self.master_addr, self.master_port), timeout=1).close()
        except OSError:
            return False
        return True


def create(parameters: RendezvousParameters) -> OneAddress:
    """Create the rendezvous from torch's parameters.

    Args:
        parameters: `endpoint` is "address:port". `config` has `rank`, and `timeout` in seconds.
    """
    address, _, port = parameters.endpoint.rpartition(":")
    rank = parameters.config["rank"]
    timeout_s = parameters.config["timeout"]
    return OneAddress(address, int(port), rank, parameters.max_nodes, parameters.run_id, timeout_s)


rendezvous_handler_registry.register(BACKEND, create)
