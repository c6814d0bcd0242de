"""What predictions say of the cells of a race before it starts."""

import math
from collections.abc import Sequence

from multicard.config.vision import VisionConfig
from multicard.decide.race.state import State
from multicard.estimate import before_run, lengths
from multicard.sweep.cells import Cell

KNOWN = ("measured", "probed", "scaled")  # bases that rest on this machine
NORMAL_90 = 1.645  # half of a 90 % interval in standard deviations
MANY = 10**7  # images, by which the last batch of an epoch does not count

HOPELESS = 4.0  # standard deviations by which a prediction is behind the best one

Prior = tuple[float, float] | None


def hopeless(priors: Sequence[Prior]) -> dict[int, str]:
    """The cells that cannot win by their predicted interval, each with the reason."""
    known = {place: prior for place, prior in enumerate(priors) if prior is not None}
    if not known:
        return {}
    best = max(known.values(), key=lambda prior: prior[0])
    behind = {place: best[0] - prior[0] for place, prior in known.items()}
    apart = {place: HOPELESS * math.hypot(prior[1], best[1]) for place, prior in known.items()}
    figures = {place: " to ".join(f"{math.exp(end):,.4g}" for end in _interval(known[place])) for place in known}
    against = " to ".join(f"{math.exp(end):,.4g}" for end in _interval(best))
    return {
        place: f"cannot win: {figures[place]} images/s by its prediction, where another has {against}"
        for place in known
        if behind[place] > apart[place]
    }


def _interval(prior: tuple[float, float]) -> tuple[float, float]:
    return prior[0] - NORMAL_90 * prior[1], prior[0] + NORMAL_90 * prior[1]


def of_race(cells: Sequence[Cell], state: State) -> list[Prior]:
    """What predictions said of the cells when the race first started: since then they rest on its own blocks."""
    names = [cell.config.identity() for cell in cells if cell.config is not None]
    known = next((line["priors"] for line in state.lines if "priors" in line), None)
    if known is None:
        known = dict(zip(names, of(cells), strict=True))
        state.add(priors=known)
    saved = [known.get(name) for name in names]
    return [None if prior is None else (prior[0], prior[1]) for prior in saved]


def of(cells: Sequence[Cell]) -> list[Prior]:
    """The mean and standard deviation of the logarithm of each cell's images/s; None where nothing is known of it, for
    other figures, and for tuning, of which the tokens of a step are not known before."""
    priors: list[Prior] = [None] * len(cells)
    if cells[0].cfg.race.figure not in ("images_per_s", "total_s") or not all(
        isinstance(cell.config, VisionConfig) for cell in cells
    ):
        return priors
    with before_run.no_reason_to_stop():
        from multicard.estimate.run import this_machine
        from multicard.sweep import predictions

        targets = [this_machine(cell.config) for cell in cells if cell.config is not None]
        for place, each in enumerate(predictions.of(cells, targets, memory=False)):
            step_s, config = each.prediction.step_s, each.cell.config
            if each.prediction.basis not in KNOWN or step_s is None or step_s.low <= 0:
                continue
            assert isinstance(config, VisionConfig)
            images = MANY / lengths.of_images(config, MANY, 0).steps
            sd = math.log(step_s.high / step_s.low) / (2 * NORMAL_90)
            priors[place] = math.log(images / step_s.value), sd
    return priors
