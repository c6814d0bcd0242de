"""Diagnosis of what limits a run, by ablations.

An ablation takes short blocks of steps after the run, in the same processes, without one cost.

| ablation | its steps |
|---|---|
| whole | as in the run |
| host | on a batch already on the host |
| device | on a batch already on the device |
| alone | as in the run, without exchanging gradients (and FSDP's weights) |
| core | as device, without exchanging gradients (and FSDP's weights) |
| half | as core, on half of the batch |
| input | fetch and move their batches, without training on them |
"""

from collections.abc import Callable
from statistics import median

from multicard.measure import timing
from multicard.messages import Message
from multicard.ranks.process import Rank, max_over_ranks
from multicard.records.schema_parts import Diagnosis

ROUNDS = 5
BLOCK_S = 0.3  # Intended duration of an ablation's block of steps in a round.
MOST_STEPS = 20  # In a block.
WHOLE_BATCHES = ("whole", "host", "device", "alone", "core")  # Ablations on whole batches.
DESCRIPTIONS = {
    "input": "waiting for batches",
    "copy": "copying batches to the device",
    "communication": "exchanging gradients or weights",
    "launch": "what does not shrink with the batch (launching kernels, Python, the optimiser)",
    "compute": "computing",
}

# Takes the given number of steps and returns their seconds, including the device's work.
Ablation = Callable[[int], float]


def timed(rank: Rank, take_steps: Callable[[int], None]) -> Ablation:
    """Return an ablation that takes its steps with `take_steps`."""

    def ablation(count: int) -> float:
        timing.synchronize(rank.device)
        started_s = timing.clock_s()
        take_steps(count)
        timing.synchronize(rank.device)
        return timing.clock_s() - started_s

    return ablation


def measure_interleaved(
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
        refill: by ablation, a function that takes untimed steps before each block. Otherwise the
            block would start with batches that the loader prepared during the previous one.
        step_s: duration of a step of the run.
        ahead: number of steps whose batches the loader prepares in advance.
        warm_up: number of untimed steps per ablation in an additional first round. Some ablations
            have their own code and CUDA graphs.

    Returns:
        Seconds per step by ablation and round, or None if any rank was asked to stop.
    """
    steps = max_over_ranks(rank, min(MOST_STEPS, max(1, round(BLOCK_S / step_s))))
    step_times_s: dict[str, list[float]] = {name: [] for name in ablations}
    for round_number in range(ROUNDS + 1):
        count = steps if round_number else warm_up
        for name, ablation in ablations.items():
            if name in refill:
                refill[name](ahead)
            # This exchange also lets the ranks begin together.
            if max_over_ranks(rank, int(asked_to_stop())):
                return None
            step_times_s[name].append(ablation(count) / count)
    return {name: rounds[1:] for name, rounds in step_times_s.items()}


def slowest(ranks: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the slowest rank's seconds per step, by ablation and round."""
    return {
        name: [max(times) for times in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in ranks[0]
    }


def saved_s(step_s: dict[str, float]) -> dict[str, float | None]:
    """Return the seconds per step saved if a cost were free, or None if no ablation measures it.

    - Input saves whole - host, at most the input's own time.
    - Copy saves host - device, and communication saves whole - alone.
    - The core takes t = launch + batch x compute. A whole and a half batch give
      launch = 2 half - core and compute = core - launch. The core does the least work, so it takes
      at most the time of any other step on whole batches.
    - Launch and compute each save at most whole - input: no step is shorter than preparing its
      batches.
    """
    whole = step_s["whole"]
    device = step_s["device"]
    host = step_s.get("host")
    alone = step_s.get("alone")
    half = step_s.get("half")
    core = min(step_s[name] for name in WHOLE_BATCHES if name in step_s)
    launch = None if half is None else min(max(2 * half - core, 0.0), core)
    most_s = max(whole - step_s["input"], 0.0)
    return {
        "input": min(max(whole - (device if host is None else host), 0.0), step_s["input"]),
        "copy": None if host is None else max(host - device, 0.0),
        "communication": None if alone is None else max(whole - alone, 0.0),
        "launch": None if launch is None else min(launch, most_s),
        "compute": min(core - (launch or 0.0), most_s),
    }


def _unclear_message(
    finding: str, cost: str, share: float, step_s: float, spread_s: float
) -> Message:
    """Return the sentence for rounds that differ by more than the largest cost takes."""
    return Message(
        "diagnosis.unclear",
        f"no bound is clear: {finding}, but rounds differ by {1e3 * spread_s:.1f} ms. Diagnose"
        " again",
        cost=cost,
        share=share,
        step_s=step_s,
        spread_s=spread_s,
    )


def _bound_message(finding: str, cost: str, share: float, step_s: float, advice: str) -> Message:
    return Message(
        "diagnosis.bound",
        f"bound by {cost}: {finding}. To try next: {advice}",
        bound=cost,
        share=share,
        step_s=step_s,
        advice=advice,
    )


def diagnose(ranks: list[dict[str, list[float]]], advise: Callable[[str], str]) -> Diagnosis:
    """Return the record's `diagnosis`.

    Args:
        ranks: each rank's seconds per step, by ablation and round.
        advise: returns the option to try next for a bound.
    """
    rounds_s = slowest(ranks)
    step_s = {name: median(values) for name, values in rounds_s.items()}
    saves_s = saved_s(step_s)
    # The spread is over differences within a round, so that drifts of the machine cancel.
    saved_by_round = [
        saved_s(dict(zip(rounds_s, times, strict=True)))
        for times in zip(*rounds_s.values(), strict=True)
    ]
    by_cost = {
        cost: [round_saved_s[cost] or 0.0 for round_saved_s in saved_by_round]
        for cost in DESCRIPTIONS
    }
    spread_s = {cost: max(values) - min(values) for cost, values in by_cost.items()}
    largest = max(saves_s, key=lambda cost: saves_s[cost] or 0.0)
    largest_s = saves_s[largest] or 0.0
    whole = step_s["whole"]
    is_clear = largest_s > spread_s[largest]
    share = largest_s / whole
    finding = f"{DESCRIPTIONS[largest]} is {share:.0%} of a step of {1e3 * whole:.1f} ms"
    advice = advise(largest) if is_clear else None
    if advice is None:
        sentence = _unclear_message(finding, largest, share, whole, spread_s[largest])
    else:
        sentence = _bound_message(finding, largest, share, whole, advice)
    return Diagnosis(
        bound=largest if is_clear else None,
        sentence=str(sentence),
        finding=finding,
        advice=advice,
        saves_s=saves_s,
        saves_spread_s=spread_s,
        step_s=step_s,
        spread=(max(rounds_s["whole"]) - min(rounds_s["whole"])) / whole,  # Range over median.
        rounds_s=rounds_s,
    )
