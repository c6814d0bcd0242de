"""Choose the setting to recommend and the setting to compare it with.

The recommended setting is the fastest one that learned and whose accuracy is within noise of the
best accuracy. Tuning is judged by the loss on held-out rows, or by the training
loss if no rows were held out. The other setting is the one nearest to the defaults: a user who
measures nothing would run it.
"""

import math
from collections.abc import Iterator, Sequence

from multicard.config.job import count
from multicard.measure.repeated_runs import LEAST_MEASURED, Ratio, student_quantile
from multicard.messages import Message
from multicard.records import amounts, figures

from .commands.ranking import RankedSetting, Ranking
from .runs import details, grouping, works
from .runs.grouping import MEMORY, of_setting
from .runs.quality import is_less

# A smaller relative difference in memory or energy is not mentioned, nor a smaller share of
# compilation.
NOTABLE_SHARE = 0.05
ADVISED_REPETITIONS = (3, 5, 10)  # The smallest of these that would show a difference is advised.
MAX_REPETITIONS = ADVISED_REPETITIONS[-1]


def recommendation(ranking: Ranking) -> tuple[RankedSetting, RankedSetting | None, bool]:
    """Return the recommended setting, the setting to compare it with, and if that is the default.

    The second is the recommended setting itself if nothing is faster than the defaults. It is None
    if no other setting learned. The third is True if every axis of the second is at its default.
    """
    learned_settings = [
        setting for setting in ranking.settings if not any(failings(ranking, setting))
    ]
    accurate_settings = _most_accurate(ranking, learned_settings)
    fastest = accurate_settings[0] if accurate_settings else ranking.settings[0]
    best = _smallest(ranking, fastest, accurate_settings)
    against, is_default = _nearest_to_defaults(ranking, learned_settings or ranking.settings)
    if against is best and not is_default:
        against = next((setting for setting in learned_settings if setting is not best), None)
    return best, against, is_default


def _most_accurate(
    ranking: Ranking, learned_settings: Sequence[RankedSetting]
) -> Sequence[RankedSetting]:
    """Return the settings that may be as accurate as the most accurate one, the fastest first.

    Settings that runs show to be less accurate are left out.
    """
    scored_settings = [setting for setting in learned_settings if setting.held_out_loss is not None]
    if ranking.runs[0]["stop_at_target"]:
        return learned_settings  # The runs reached the target, which says how accurate is enough.
    if ranking.runs[0]["random_weights"] and not scored_settings:
        return (
            learned_settings  # With random weights, the training loss says nothing about a model.
        )
    judged_settings = scored_settings or [
        setting for setting in learned_settings if setting.learned
    ]
    groups = [judged_settings] if judged_settings else []
    # Settings with other held-out rows or amounts of work cannot be compared. So each group of
    # comparable settings has a best one.
    if scored_settings:
        groups = grouping.grouped(scored_settings, ranking.comparable).values()
    best_of_groups = [min(group, key=lambda setting: setting.error or 0.0) for group in groups]
    return [
        setting
        for setting in learned_settings
        if not any(ranking.more_accurate(best, setting) for best in best_of_groups)
    ]


def _smallest(
    ranking: Ranking, best: RankedSetting, candidates: Sequence[RankedSetting]
) -> RankedSetting:
    """Return the smallest setting that is shown to be as good as the best one.

    Fewer ranks count first, then less memory, then a setting nearer to the defaults.
    """
    nearest, _ = _nearest_to_defaults(ranking, [best, *candidates])
    for other in candidates:
        if (
            other is best
            or not ranking.equivalent(best, other)
            or ranking.more_accurate(best, other)
        ):
            continue
        own_memory, other_memory = (
            of_setting(setting.runs, MEMORY) or 0.0 for setting in (best, other)
        )
        needs_less = other_memory < (1 - NOTABLE_SHARE) * own_memory
        needs_as_much = other_memory <= (1 + NOTABLE_SHARE) * own_memory
        if other.gpus < best.gpus or (
            other.gpus == best.gpus and (needs_less or (needs_as_much and other is nearest))
        ):
            best = other
    return best


def repetitions_to_tell(ratio: Ratio | None, confidence: float, *counts: int) -> int | None:
    """Return how many repetitions of two settings would show that their means differ.

    It is None if that takes more than MAX_REPETITIONS.

    Args:
        ratio: the ratio of the two means.
        counts: the number of runs behind each mean.
    """
    if ratio is None or not ratio.error:
        return None
    variance = ratio.error**2 / sum(1 / n for n in counts)  # The variance of a single run.
    for repetitions in ADVISED_REPETITIONS:
        degrees = max(ratio.degrees, 2.0 * (repetitions - 1))
        half = student_quantile(confidence, degrees) * math.sqrt(2 * variance / repetitions)
        if repetitions > max(counts) and half < abs(math.log(ratio.ratio)):
            return repetitions
    return None


def failings(ranking: Ranking, setting: RankedSetting) -> Iterator[Message]:
    """Say why a setting's figures are worthless: it did not learn, or it is too short to judge."""
    if ranking.repeated.at_chance(setting.runs):
        text = f"its accuracy of {setting.accuracy:.1%} is at chance level"
        yield Message("answer.at-chance", text, accuracy=setting.accuracy)
    first_loss = of_setting(setting.runs, "loss_first")
    last_loss = setting.loss
    if (
        first_loss is not None
        and last_loss is not None
        and not is_less(last_loss, first_loss)
        and not all(map(details.held_out_loss_fell, setting.runs))
    ):
        fell = "hardly fell" if last_loss < first_loss else "did not fall"
        text = f"its loss {fell} ({first_loss:.3f} to {last_loss:.3f})"
        yield Message("answer.loss-did-not-fall", text, first=first_loss, last=last_loss)
    if setting.runs[0]["stop_at_target"] and of_setting(setting.runs, "time_to_target_s") is None:
        run = setting.runs[0]
        target = run["target_accuracy"]
        if target is None:
            text = f"it missed the target loss of {figures.text('target_loss', run['target_loss'])}"
            yield Message("answer.missed-target-loss", text, target=run["target_loss"])
        else:
            text = f"it missed the target accuracy of {figures.text('target_accuracy', target)}"
            yield Message("answer.missed-target", text, target=target)
    yield from _amount_failings(ranking, setting)
    steps = min(int(run["steps"] or 0) for run in setting.runs)
    if steps < LEAST_MEASURED:
        text = f"it is too short to tell ({count(steps, 'measured step')})"
        yield Message("answer.too-short", text, steps=steps)


def _amount_failings(ranking: Ranking, setting: RankedSetting) -> Iterator[Message]:
    """Say that the amounts that a script trained differ between repetitions, or are unknown."""
    setting_amounts = works.script_amounts(setting.runs)
    if setting_amounts is not None and not setting_amounts.are_equal:
        yield amounts.unequal_repetitions(setting_amounts)
        return
    all_amounts = works.unknown_amounts(ranking.runs)
    if all_amounts is not None:
        text = (
            f"it is not known whether settings trained equal amounts ({all_amounts.range}):"
            " `multicard.step(samples=...)` records it"
        )
        yield Message(
            "answer.unknown-amounts", text, least=all_amounts.least, most=all_amounts.most
        )


def _nearest_to_defaults(
    ranking: Ranking, settings: Sequence[RankedSetting]
) -> tuple[RankedSetting, bool]:
    """Return the setting with the most axes at their defaults, and if all axes are.

    Among several, the one on the fewest GPUs is nearest.
    """
    from multicard import workloads  # It imports Hydra, which most commands do without.

    defaults = workloads.defaults(ranking.runs[0]["kind"])
    keys = [key for key in ranking.keys if key in defaults]

    def at_defaults(setting: RankedSetting) -> int:
        cell = dict(setting.cell)
        return sum(grouping.typed(cell[key]) == grouping.typed(defaults[key]) for key in keys)

    nearest = max(settings, key=lambda setting: (at_defaults(setting), -setting.gpus))
    return nearest, 0 < at_defaults(nearest) == len(ranking.keys)
