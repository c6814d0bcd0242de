"""Short runs beside a run, in the same processes and after it: each takes the same steps with one cost taken away.

| twin | its steps |
|---|---|
| whole | as in the run |
| host | on a batch that is there already, on the host |
| device | on a batch that is on the device already |
| alone | as in the run, without exchanging gradients |
| core | as device, without exchanging gradients |
| half | as core, on half of the batch |
| input | fetch and move their batches and do nothing with them |

What they say together is worked out in `diagnosis`.
"""

from collections.abc import Callable

from multicard.measure import memory, timing
from multicard.profiling.capture import agreed
from multicard.ranks.process import Rank

ROUNDS = 5
BLOCK_S = 0.3  # that a twin should take a round
MOST_STEPS = 20

Twin = Callable[[int], float]  # takes that many steps; returns their seconds, the device's work included


def timed(rank: Rank, take: Callable[[int], None]) -> Twin:
    """The twin that takes its steps by `take`."""

    def twin(count: int) -> float:
        memory.synchronize(rank.device)
        started_s = timing.clock_s()
        take(count)
        memory.synchronize(rank.device)
        return timing.clock_s() - started_s

    return twin


def interleaved(
    twins: dict[str, Twin],
    refill: dict[str, Callable[[int], None]],
    rank: Rank,
    step_s: float,
    ahead: int,
    asked_to_stop: Callable[[], bool],
) -> dict[str, list[float]] | None:
    """Measure all twins in turn, `ROUNDS` times over, on all ranks alike.

    Args:
        refill: by twin, how to take steps untimed before each block. Those that read the loader find what it has
            prepared during the twin before, which no step of a run does.
        step_s: what a step of the run takes.
        ahead: how many steps' batches the loader prepares in advance.

    Returns:
        Seconds a step, a round. None where a rank was asked to stop: the run itself is measured.
    """
    steps = agreed(rank, min(MOST_STEPS, max(1, round(BLOCK_S / step_s))))
    seconds: dict[str, list[float]] = {name: [] for name in twins}
    for number in range(ROUNDS + 1):
        for name, twin in twins.items():
            if name in refill:
                refill[name](ahead)
            if agreed(rank, int(asked_to_stop())):  # all ranks alike; they begin together too
                return None
            taken = steps if number else 1
            seconds[name].append(twin(taken) / taken)
    return {name: rounds[1:] for name, rounds in seconds.items()}  # the first warms up
