"""Ablations: short blocks of steps after a run, in the same processes, each kind without one cost.

| ablation | its steps |
|---|---|
| whole | as in the run |
| host | on a batch already on the host |
| device | on a batch already on the device |
| alone | as in the run, without exchanging gradients (and FSDP's weights) |
| core | as device, without exchanging gradients (and FSDP's weights) |
| half | as core, on half of the batch |
| input | fetch and move their batches, without training on them |

`diagnosis` derives from their times what bounds the run.
"""

from collections.abc import Callable

from multicard.measure import timing
from multicard.ranks.meeting import max_over_ranks
from multicard.ranks.process import Rank

ROUNDS = 5
BLOCK_S = 0.3  # intended duration of an ablation's block of steps in a round
MOST_STEPS = 20  # in a block

Ablation = Callable[[int], float]  # takes that many steps; returns their seconds, the device's work included


def timed(rank: Rank, take_steps: Callable[[int], None]) -> Ablation:
    """The ablation that takes its steps with `take_steps`."""

    def ablation(count: int) -> float:
        timing.synchronize(rank.device)
        started_s = timing.clock_s()
        take_steps(count)
        timing.synchronize(rank.device)
        return timing.clock_s() - started_s

    return ablation


def interleaved(
    ablations: dict[str, Ablation],
    refill: dict[str, Callable[[int], None]],
    rank: Rank,
    step_s: float,
    ahead: int,
    asked_to_stop: Callable[[], bool],
    warm_up: int = 1,
) -> dict[str, list[float]] | None:
    """Measure all ablations in turn, `ROUNDS` times, on all ranks together.

    Args:
        refill: by ablation, what takes untimed steps before each block, so that the block does not start with batches
            that the loader prepared during the previous one.
        step_s: duration of a step of the run.
        ahead: steps whose batches the loader prepares in advance.
        warm_up: untimed steps of each ablation, in a round before: some have code, and CUDA graphs, of their own.

    Returns:
        Seconds per step by ablation and round; None if any rank was asked to stop.
    """
    steps = max_over_ranks(rank, min(MOST_STEPS, max(1, round(BLOCK_S / step_s))))
    step_times_s: dict[str, list[float]] = {name: [] for name in ablations}
    for round_number in range(ROUNDS + 1):
        count = steps if round_number else warm_up
        for name, ablation in ablations.items():
            if name in refill:
                refill[name](ahead)
            if max_over_ranks(rank, int(asked_to_stop())):  # also lets the ranks begin together
                return None
            step_times_s[name].append(ablation(count) / count)
    return {name: rounds[1:] for name, rounds in step_times_s.items()}
