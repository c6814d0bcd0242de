"""Shares of this machine: GPUs and cores for a cell, which no other cell has, nor any other command."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from multicard.config.base import RunConfig
from multicard.config.job import Device, count
from multicard.machine import devices, leases
from multicard.machine.leases import Lease, Request
from multicard.measure.timing import clock_s
from multicard.messages import say

LEASES_POLL_S = 1.0
CHOOSE_WITHIN_S = 60.0  # a single run with gpus=auto waits so long for others that choose
Demand = tuple[int | None, int]  # GPUs, None on CPU ranks; cores
Wish = tuple[Demand, tuple[int, ...] | None]  # a demand, and numbers of the caller for certain GPUs; None: any


@dataclass
class Pool:
    """GPUs, as CUDA_VISIBLE_DEVICES names them, and cores."""

    gpus: list[str]
    cpus: list[int]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of their leases."""
        return (*map(leases.gpu, self.gpus), *map(leases.core, self.cpus))

    def where(self, holds: Callable[[str], bool]) -> "Pool":
        """The subset whose leases satisfy `holds`, which takes a lease's name."""
        gpus = [gpu for gpu in self.gpus if holds(leases.gpu(gpu))]
        return Pool(gpus, [cpu for cpu in self.cpus if holds(leases.core(cpu))])

    def without(self, other: "Pool") -> "Pool":
        names = {*other.names}
        return self.where(lambda name: name not in names)

    def first(self, gpus: int, cores: int) -> "Pool":
        return Pool(self.gpus[:gpus], self.cpus[:cores])


@dataclass(frozen=True)
class MachineShare:
    """The part of the machine that a cell has to itself. `gpus` is None on CPU ranks."""

    gpus: tuple[str, ...] | None
    cpus: tuple[int, ...]
    lease: Lease = field(default_factory=Lease, compare=False)

    @property
    def pool(self) -> Pool:
        return Pool([*(self.gpus or ())], [*self.cpus])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its leases."""
        return self.pool.names


def machine() -> Pool:
    """All GPUs and cores that this process may use."""
    return Pool(devices.named_gpus(), sorted(os.sched_getaffinity(0)))


@contextmanager
def kept_to_unleased(on_gpus: bool) -> Iterator[None]:
    """Bind this process, and those that it starts, to what no other command has leased, where that is enough for a run.

    No other command chooses meanwhile. Within it the caller leases what its run will use.

    Args:
        on_gpus: the run uses GPUs, where there are any.
    """
    whole = machine()
    with ExitStack() as held:
        with suppress(OSError):
            choice = held.enter_context(leases.choosing(CHOOSE_WITHIN_S))
            free = whole.where(choice.is_free) if choice is not None else whole
            if choice is not None:
                held.callback(choice.take(free.names).close)
            if free.cpus and (free.gpus or not whole.gpus or not on_gpus):
                if free.gpus != whole.gpus and on_gpus:
                    os.environ[devices.VISIBLE] = ",".join(free.gpus)
                if free.cpus != whole.cpus:
                    os.sched_setaffinity(0, free.cpus)
        yield


def demand(config: RunConfig, whole: Pool) -> Demand:
    """The numbers of GPUs and cores that a cell gets.

    CPU ranks take `cpus_per_gpu` cores each; a GPU comes with its part of the machine's cores. A cell that wants more
    than there is gets the whole machine: its own checks say whether it can run so.
    """
    on_gpus = whole.gpus and config.device is not Device.cpu
    if config.exclusive is not False:
        return len(whole.gpus) if on_gpus else None, len(whole.cpus)
    cores_each = len(whole.cpus) // len(whole.gpus) if on_gpus else config.cpus_per_gpu
    cpus = min(config.gpus * max(cores_each, 1), len(whole.cpus))
    return min(config.gpus, len(whole.gpus)) if on_gpus else None, cpus


def allocate(wanted: Demand, free: Pool) -> MachineShare | None:
    """The first GPUs and cores of `free`; None where there are fewer than wanted."""
    gpus, cpus = wanted
    if (gpus or 0) > len(free.gpus) or cpus > len(free.cpus):
        return None
    return MachineShare(None if gpus is None else tuple(free.gpus[:gpus]), tuple(free.cpus[:cpus]))


@contextmanager
def announced(configs: Iterable[RunConfig]) -> Iterator[None]:
    """Lease what runs of this process use, which wait for nobody: packed cells of other commands keep off it."""
    whole = machine()
    shares = [allocate(demand(config, whole), whole) for config in configs]
    lease = leases.share({name for share in shares if share is not None for name in share.names})
    try:
        yield
    finally:
        lease.close()


class Machine:
    """The GPUs and cores that are left for further cells of this command."""

    def __init__(self) -> None:
        self.whole, self.free = machine(), machine()
        self.said = set[str]()  # holders, and problems
        self.looked_s: dict[Wish, float] = {}  # when others had leased too much, by what was wanted
        self.queued: tuple[Wish, Lease] | None = None  # the first that waits for others

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
        self.free = self.free.without(share.pool)
        return share

    def give_back(self, share: MachineShare) -> None:
        share.lease.close()
        self.free.gpus[:0] = share.gpus or ()
        self.free.cpus[:0] = share.cpus

    def wait_no_more(self) -> None:
        """Leave the queue."""
        if self.queued is not None:
            self.queued[1].close()
            self.queued = None

    def _leased(self, wish: Wish, among: Pool) -> MachineShare | None:
        wanted, _ = wish
        own = self.queued[1] if self.queued is not None and self.queued[0] == wish else None
        with leases.choosing() as choice:
            if choice is None:
                return None
            unleased = left = among.where(choice.is_free)
            names = {*among.names}
            ahead = {name: each for name, each in choice.ahead(own).items() if each.names & names}
            for each in ahead.values():  # the first that another command waits for are kept for it
                left = left.without(left.where(each.names.__contains__).first(each.gpus, each.cores))
            share = allocate(wanted, left)
            if share is not None:
                if own is not None:
                    self.wait_no_more()
                return replace(share, lease=choice.take(share.names))
            if self.queued is None:
                self.queued = wish, choice.queue(Request(wanted[0] or 0, wanted[1], frozenset(names)))
        self._say_waiting(among.without(left), (*among.without(unleased).names, *ahead))
        return None

    def _say_waiting(self, missing: Pool, names: Iterable[str]) -> None:
        """Say which commands this one waits for, when there are new ones.

        Args:
            names: leases and tickets of other commands.
        """
        own = {} if self.queued is None else self.queued[1].files
        holders = leases.holders({*names} - {*own})
        parts = [count(len(part), noun) for part, noun in ((missing.gpus, "GPU"), (missing.cpus, "core")) if part]
        what = f"waiting for {' and '.join(parts)}: leased or waited for by"
        self._say_once(holders or [what], f"{what} {' and '.join(holders) or 'another command'}")

    def _say_once(self, about: Iterable[str], line: str, error: bool = False) -> None:
        if not self.said.issuperset(about):
            self.said.update(about)
            say(line, error)
