"""Shares of this machine: GPUs and cores for a cell, which no other cell has, nor any other command."""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce

from multicard.config.base import RunConfig
from multicard.config.job import Device, count
from multicard.machine import devices, leases, tickets
from multicard.machine.leases import Lease
from multicard.machine.tickets import Request, Ticket
from multicard.measure.timing import clock_s, pause
from multicard.messages import say

LEASES_POLL_S = 1.0
CHOOSING_ALONE = "choosing-alone"  # the turn of single runs that choose what they run on
Demand = tuple[int | None, int]  # GPUs, None on CPU ranks; cores
Wish = tuple[Demand, tuple[int, ...] | None]  # and which of them, by numbers of the caller; None: any


@dataclass
class Pool:
    """GPUs, as CUDA_VISIBLE_DEVICES names them, and cores that no cell uses."""

    gpus: list[str]
    cpus: list[int]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the leases."""
        return (*map(leases.gpu, self.gpus), *map(leases.core, self.cpus))

    def without(self, request: Request) -> "Pool":
        """What is left when the first GPUs and cores that another command waits for are kept for it."""
        gpus = [gpu for gpu in self.gpus if leases.gpu(gpu) in request.names][: max(request.gpus, 0)]
        cpus = [cpu for cpu in self.cpus if leases.core(cpu) in request.names][: max(request.cores, 0)]
        return Pool([gpu for gpu in self.gpus if gpu not in gpus], [cpu for cpu in self.cpus if cpu not in cpus])


@dataclass(frozen=True)
class MachineShare:
    """The part of the machine that a cell has to itself. `gpus` is None on CPU ranks."""

    gpus: tuple[str, ...] | None
    cpus: tuple[int, ...]
    lease: Lease = field(default_factory=Lease, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the leases."""
        return Pool([*(self.gpus or ())], [*self.cpus]).names


def machine() -> Pool:
    """All GPUs and cores that this process may use."""
    return Pool(devices.named_gpus(), sorted(os.sched_getaffinity(0)))


@contextmanager
def kept_to_unleased(on_gpus: bool) -> Iterator[None]:
    """Have this process, and those that it starts, use what no other command has leased, where that is something.

    Within it this command has leased all of that, and no other is within it: one that begins meanwhile waits, and then
    keeps off what this one has leased before it leaves.

    Args:
        on_gpus: whether it uses GPUs, where there are any.
    """
    whole, free = machine(), None
    with ExitStack() as held:
        with suppress(OSError):
            directory = held.enter_context(leases.opened())
            held.enter_context(leases.turn(directory, CHOOSING_ALONE))
            free = _leased_unleased(directory, whole, held)
        if free is not None and free.cpus and not (on_gpus and whole.gpus and not free.gpus):
            if free.gpus != whole.gpus and on_gpus:
                os.environ[devices.VISIBLE] = ",".join(free.gpus)
            if free.cpus != whole.cpus:
                os.sched_setaffinity(0, free.cpus)
        yield


def _leased_unleased(directory: int, whole: Pool, held: ExitStack) -> Pool | None:
    """Lease, until `held` is left, what nobody has leased; None where others choose all the time."""
    ends_s = clock_s() + leases.CHOSEN_WITHIN_S
    while clock_s() < ends_s:
        with leases.choice(directory) as choice:
            if choice is not None:
                gpus = [gpu for gpu in whole.gpus if choice.is_free(leases.gpu(gpu))]
                free = Pool(gpus, [cpu for cpu in whole.cpus if choice.is_free(leases.core(cpu))])
                held.callback(choice.take(free.names).close)
                return free
        pause(0.01)  # a choice takes milliseconds
    return None


def demand(config: RunConfig, whole: Pool) -> Demand:
    """How many GPUs and cores a cell gets; no number of GPUs on CPU ranks.

    CPU ranks take `cpus_per_gpu` cores each; a GPU comes with its part of the machine's cores. A cell that wants more
    than there is gets all of it once nothing else runs: whether it can run so is for its own checks to say.
    """
    on_gpus = whole.gpus and config.device is not Device.cpu
    if config.exclusive is not False:
        return len(whole.gpus) if on_gpus else None, len(whole.cpus)
    cores_each = len(whole.cpus) // len(whole.gpus) if on_gpus else config.cpus_per_gpu
    cpus = min(config.gpus * max(cores_each, 1), len(whole.cpus))
    return min(config.gpus, len(whole.gpus)) if on_gpus else None, cpus


def allocate(wanted: Demand, free: Pool) -> MachineShare | None:
    """The first GPUs and cores of `free`, as many as are wanted; None where there are fewer."""
    gpus, cpus = wanted
    if (gpus or 0) > len(free.gpus) or cpus > len(free.cpus):
        return None
    return MachineShare(None if gpus is None else tuple(free.gpus[:gpus]), tuple(free.cpus[:cpus]))


@contextmanager
def announced(configs: Iterable[RunConfig]) -> Iterator[None]:
    """Within it this command's own processes run: commands that pack cells keep off what runs use, which wait for
    nobody."""
    whole = machine()
    shares = [allocate(demand(config, whole), whole) for config in configs]
    lease = leases.share({name for share in shares if share is not None for name in share.names})
    try:
        yield
    finally:
        lease.close()


class Machine:
    """What is left of this machine for further cells of this command."""

    def __init__(self) -> None:
        self.whole, self.free = machine(), machine()
        self.said = set[str]()  # holders, and problems
        self.looked_s: dict[Wish, float] = {}  # when others had leased too much, by what was wanted
        self.queued: tuple[Wish, Ticket] | None = None  # the first that waits for others

    def take(self, config: RunConfig) -> MachineShare | None:
        """A cell's share, with its lease; None while it has to wait."""
        return self.lease((demand(config, self.whole), None), self.free)

    def lease(self, wish: Wish, among: Pool) -> MachineShare | None:
        """The first GPUs and cores of `among`, which this command has not given to others, with their lease; None
        while it has to wait."""
        wanted, _ = wish
        if allocate(wanted, among) is None or clock_s() - self.looked_s.get(wish, -math.inf) < LEASES_POLL_S:
            return None
        try:
            share = self._leased(wish, among)
        except OSError as error:
            problem = f"no leases in {leases.folder()} ({error.strerror})"
            self._say_once([problem], f"{problem}: other commands may take the same GPUs and cores", error=True)
            share = allocate(wanted, among)
        if share is None:
            self.looked_s[wish] = clock_s()
            return None
        self.free.gpus = [gpu for gpu in self.free.gpus if gpu not in (share.gpus or ())]
        self.free.cpus = [cpu for cpu in self.free.cpus if cpu not in share.cpus]
        return share

    def give_back(self, share: MachineShare) -> None:
        share.lease.close()
        self.free.gpus[:0] = share.gpus or ()
        self.free.cpus[:0] = share.cpus

    def wait_no_more(self) -> None:
        """Let those pass that wait behind this command."""
        if self.queued is not None:
            self.queued[1].close()
            self.queued = None

    def _leased(self, wish: Wish, among: Pool) -> MachineShare | None:
        wanted, _ = wish
        own = self.queued[1] if self.queued is not None and self.queued[0] == wish else None
        if own is not None:
            own.keep()
        with leases.opened() as directory, leases.choice(directory) as choice:
            if choice is None:
                return None
            gpus = [gpu for gpu in among.gpus if choice.is_free(leases.gpu(gpu))]
            unleased = Pool(gpus, [cpu for cpu in among.cpus if choice.is_free(leases.core(cpu))])
            ahead = [each for each in tickets.ahead(directory, own) if each.request.names & {*among.names}]
            share = allocate(wanted, reduce(Pool.without, (each.request for each in ahead), unleased))
            if share is not None:
                if own is not None:
                    self.wait_no_more()
                return replace(share, lease=choice.take(share.names))
            if self.queued is None:
                ticket = tickets.place(directory, Request(wanted[0] or 0, wanted[1], frozenset(among.names)))
                self.queued = None if ticket is None else (wish, ticket)
        self._say_waiting(among, unleased, [each.name for each in ahead])
        return None

    def _say_waiting(self, among: Pool, unleased: Pool, ahead: list[str]) -> None:
        """Say for whom this command waits, when somebody has come to them."""
        gpus = [gpu for gpu in among.gpus if gpu not in unleased.gpus]
        cpus = [cpu for cpu in among.cpus if cpu not in unleased.cpus]
        own = None if self.queued is None else self.queued[1].name
        holders = leases.holders(Pool(gpus, cpus).names)
        first = [each for each in leases.holders({*ahead} - {own}) if each not in holders]
        what = " and ".join(count(len(part), noun) for part, noun in ((gpus, "GPU"), (cpus, "core")) if part)
        parts = [f" for {what}: leased by {' and '.join(holders) or 'another command'}"] if what else []
        parts += [f" behind {' and '.join(first)}"] if first else []
        if parts:
            self._say_once(holders + first or parts, f"waiting{','.join(parts)}")

    def _say_once(self, about: Iterable[str], line: str, error: bool = False) -> None:
        if not self.said.issuperset(about):
            self.said.update(about)
            say(line, error)
