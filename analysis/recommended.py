"""Which setting is recommended, and what it is compared with.

Recommended is the fastest setting that learned and whose accuracy runs do not tell from the best
one reached. Of tuning it is the loss on held-out rows, or, where none were held out, the training
loss. It is compared with the setting nearest to the defaults: what would have been run without
measuring.
"""

import math
from collections.abc import Iterator, Sequence

from multicard.config.job import count
from multicard.measure.repeated_runs import Ratio, student_quantile
from multicard.messages import Message
from multicard.records import amounts, figures

from .commands.ranking import RankedSetting, Ranking
from .runs import details, grouping, works
from .runs.grouping import MEMORY, of_setting
from .runs.quality import is_less

LEAST_STEPS = 5  # measured steps, below which a run is too short to tell
NOTABLE = 0.05  # relative difference of memory and energy that is said, and share of compilation
REPETITIONS = (3, 5, 10)  # that are advised, the fewest that would tell
MOST_REPETITIONS = REPETITIONS[-1]


def of_ranking(ranking: Ranking) -> tuple[RankedSetting, RankedSetting | None, bool]:
    """The recommended setting, the one it is compared with,
    and whether that has the defaults throughout.

    Compared with is the best itself where nothing is faster than the defaults;
    None where no other setting learned.
    """
    learned = [one for one in ranking.settings if not any(failings(ranking, one))]
    good = _learned_best(ranking, learned)
    best = _smallest(ranking, next(iter(good), ranking.settings[0]), good)
    against, is_default = _nearest_to_defaults(ranking, learned or ranking.settings)
    if against is best and not is_default:
        against = next((one for one in learned if one is not best), None)
    return best, against, is_default


def _learned_best(ranking: Ranking, learned: Sequence[RankedSetting]) -> Sequence[RankedSetting]:
    """Of the settings that learned those that are not told to be less accurate than the most
    accurate one; the fastest first.
    """
    scored = [one for one in learned if one.held_out_loss is not None]
    if ranking.runs[0]["stop_at_target"]:
        return learned  # the target says what is enough
    if ranking.runs[0]["random_weights"] and not scored:
        return learned  # such a training loss is no model's
    reached = scored or [one for one in learned if one.learned]
    groups = [reached] if reached else []
    # settings with other rows or other amounts of work are not compared: each group has a best one
    if scored:
        groups = grouping.grouped(scored, ranking.comparable).values()
    top = [min(own, key=lambda one: one.error or 0.0) for own in groups]
    return [one for one in learned if not any(ranking.more_accurate(best, one) for best in top)]


def _smallest(
    ranking: Ranking, best: RankedSetting, learned: Sequence[RankedSetting]
) -> RankedSetting:
    """Of the settings that are shown to be as good as the best: the one with the fewest ranks, then
    with less memory, then nearer to the defaults.
    """
    near, _ = _nearest_to_defaults(ranking, [best, *learned])
    for other in learned:
        if (
            other is best
            or not ranking.equivalent(best, other)
            or ranking.more_accurate(best, other)
        ):
            continue
        own, others = (of_setting(one.runs, MEMORY) or 0.0 for one in (best, other))
        needs_less = others < (1 - NOTABLE) * own
        needs_as_much = others <= (1 + NOTABLE) * own
        if other.gpus < best.gpus or (
            other.gpus == best.gpus and (needs_less or (needs_as_much and other is near))
        ):
            best = other
    return best


def repetitions_to_tell(ratio: Ratio | None, confidence: float, *counts: int) -> int | None:
    """The repetitions of two settings with which a difference as that between their means would be
    told; None where it takes more than MOST_REPETITIONS.

    Args:
        ratio: of the two means, over so many runs each (`counts`).
    """
    if ratio is None or not ratio.error:
        return None
    variance = ratio.error**2 / sum(1 / n for n in counts)  # of one run
    for repetitions in REPETITIONS:
        degrees = max(ratio.degrees, 2.0 * (repetitions - 1))
        half = student_quantile(confidence, degrees) * math.sqrt(2 * variance / repetitions)
        if repetitions > max(counts) and half < abs(math.log(ratio.ratio)):
            return repetitions
    return None


def failings(ranking: Ranking, setting: RankedSetting) -> Iterator[Message]:
    """What makes a setting's figures worth nothing: it did not learn,
    or it is too short to tell.
    """
    if ranking.repeated.at_chance(setting.runs):
        said = f"its accuracy of {setting.accuracy:.1%} is at chance level"
        yield Message("answer.at-chance", said, accuracy=setting.accuracy)
    first = of_setting(setting.runs, "loss_first")
    is_lower = first is None or setting.loss is None or is_less(setting.loss, first)
    if not is_lower and not all(map(details.held_out_loss_fell, setting.runs)):
        said = f"its loss did not fall ({first:.3f} to {setting.loss:.3f})"
        yield Message("answer.loss-did-not-fall", said, first=first, last=setting.loss)
    if setting.runs[0]["stop_at_target"] and of_setting(setting.runs, "time_to_target_s") is None:
        run = setting.runs[0]
        target = run["target_accuracy"]
        if target is None:
            said = f"it missed the target loss of {figures.text('target_loss', run['target_loss'])}"
            yield Message("answer.missed-target-loss", said, target=run["target_loss"])
        else:
            said = f"it missed the target accuracy of {figures.text('target_accuracy', target)}"
            yield Message("answer.missed-target", said, target=target)
    yield from _of_amounts(ranking, setting)
    steps = min(int(run["steps"] or 0) for run in setting.runs)
    if steps < LEAST_STEPS:
        said = f"it is too short to tell ({count(steps, 'measured step')})"
        yield Message("answer.too-short", said, steps=steps)


def _of_amounts(ranking: Ranking, setting: RankedSetting) -> Iterator[Message]:
    """That the repetitions of a script's setting trained other amounts, or that nobody knows how
    much its settings trained.
    """
    own = works.script_amounts(setting.runs)
    if own is not None and not own.are_equal:
        yield amounts.unequal_repetitions(own)
        return
    every = works.unknown_amounts(ranking.runs)
    if every is not None:
        said = (
            f"whether settings trained as much is not known ({every.range}):"
            " `multicard.step(samples=...)` tells"
        )
        yield Message("answer.unknown-amounts", said, least=every.least, most=every.most)


def _nearest_to_defaults(
    ranking: Ranking, settings: Sequence[RankedSetting]
) -> tuple[RankedSetting, bool]:
    """Of some settings of a ranking the one with the most axes at their defaults, on the fewest
    GPUs; and whether all axes are.
    """
    from multicard import workloads  # hydra, which most commands do without

    defaults = workloads.defaults(ranking.runs[0]["kind"])
    keys = [key for key in ranking.keys if key in defaults]

    def at_defaults(setting: RankedSetting) -> int:
        cell = dict(setting.cell)
        return sum(grouping.typed(cell[key]) == grouping.typed(defaults[key]) for key in keys)

    nearest = max(settings, key=lambda setting: (at_defaults(setting), -setting.gpus))
    return nearest, 0 < at_defaults(nearest) == len(ranking.keys)
