"""What bounds a run, from the times of its twins (see `twins`): what each cost would save if it were free."""

from collections.abc import Callable
from statistics import median
from typing import Any

# What bounds a run, in words
WORDS = {
    "input": "waiting for batches",
    "copy": "copying batches to the device",
    "communication": "exchanging gradients",
    "launch": "what does not shrink with the batch (launching kernels, Python, the optimiser)",
    "compute": "computing",
}


def slowest(ranks: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Of the seconds a step of each twin and round: the slowest rank's."""
    return {name: [max(rank[name][i] for rank in ranks) for i in range(len(ranks[0][name]))] for name in ranks[0]}


def saved_s(twins: dict[str, float]) -> dict[str, float | None]:
    """Seconds a step that would be saved if a cost were free; None where no twin tells.

    A twin without the cost gives input (whole - host, and no more than the input takes), copy (host - device) and
    communication (whole - alone). Of the core's time on a batch and on half of it, t = launch + batch x compute:
    launch = 2 half - core, compute = core - launch. These two save at most whole - input: no step is shorter than the
    making of its batches.
    """
    whole, device, core = twins["whole"], twins["device"], twins.get("core", twins["device"])
    host, alone, half = twins.get("host"), twins.get("alone"), twins.get("half")
    launch = None if half is None else min(max(2 * half - core, 0.0), core)
    most = max(whole - twins["input"], 0.0)
    return {
        "input": min(max(whole - (device if host is None else host), 0.0), twins["input"]),
        "copy": None if host is None else max(host - device, 0.0),
        "communication": None if alone is None else max(whole - alone, 0.0),
        "launch": None if launch is None else min(launch, most),
        "compute": min(core - (launch or 0.0), most),
    }


def diagnose(ranks: list[dict[str, list[float]]], advise: Callable[[str], str]) -> dict[str, Any]:
    """The record's `diagnosis`.

    Args:
        ranks: seconds a step by twin and round, of each rank.
        advise: the option to try next, for what bounds the run.
    """
    rounds = slowest(ranks)
    step_s = {name: median(values) for name, values in rounds.items()}
    saves_s = saved_s(step_s)
    bound = max(saves_s, key=lambda cost: saves_s[cost] or 0.0)
    whole = step_s["whole"]
    spread = (max(rounds["whole"]) - min(rounds["whole"])) / whole
    share = (saves_s[bound] or 0.0) / whole
    told = f"{WORDS[bound]} is {share:.0%} of a step of {1e3 * whole:.1f} ms"
    return {
        "bound": bound,
        "sentence": f"bound by {bound}: {told}. To try next: {advise(bound)}",
        "saves_s": saves_s,
        "step_s": step_s,
        "spread": spread,  # of the whole step's rounds, largest less smallest over the median
        "rounds_s": rounds,
    }
