"""Say, within a recommendation, how well two settings learned and how well that was measured.

Settings are compared by their accuracy, by their loss on held-out rows, or by their training loss
(`analysis.runs.quality`). If settings trained on different amounts, their losses are not compared,
and the sentence says so.
"""

from collections.abc import Iterator
from typing import Any

from multicard.config.job import count
from multicard.messages import Message
from multicard.records import figures
from multicard.records.schema import LlmRecord, ScriptRecord

from .commands.ranking import RankedSetting, Ranking
from .runs import by_int4, details, grouping, quality, works
from .runs.grouping import ACCURACY, HELD_OUT, LOSS
from .runs.quality import is_less
from .stats.between_runs import is_one_loss
from .stats.held_out import FEW_ROWS

# Accuracies that runs cannot distinguish count as the same if they differ by fewer points.
SAME_ACCURACY_POINTS = 1.0
LOSS_NAMES = {HELD_OUT: "held-out loss", LOSS: "training loss"}


def describe_learning(setting: RankedSetting) -> Iterator[Message]:
    """Say how well a setting learned, without comparing it."""
    if setting.accuracy is not None:
        text = f"{figures.text(ACCURACY, setting.accuracy)} accuracy"
        yield Message("answer.accuracy", text, accuracy=setting.accuracy)
    elif setting.held_out_loss is not None:
        text = f"held-out loss {setting.held_out_loss:.3f}"
        yield Message("answer.held-out-loss", text, loss=setting.held_out_loss)
    elif setting.loss is not None:
        yield Message("answer.loss", f"training loss {setting.loss:.3f}", loss=setting.loss)


def compare_learning(
    ranking: Ranking, best: RankedSetting, other: RankedSetting
) -> Iterator[Message]:
    """Say how well a setting learned in comparison with another one."""
    column = quality.shared(best.learned, other.learned)
    if column == ACCURACY:
        yield _compare_accuracy(ranking, best, other)
    if not works.did_as_much(best.runs, other.runs):
        own_amount, other_amount = (works.trained(setting.runs[0]) for setting in (best, other))
        unequal = works.unequal_amounts(best.runs, other.runs)
        if unequal is not None:
            unit, best_amount, compared_amount = unequal
            own_amount = f"{best_amount:,.0f} {unit}"
            other_amount = f"{compared_amount:,.0f}"
        reason = f"{LOSS_NAMES[column]} not compared: " if column in LOSS_NAMES else ""
        text = f"{reason}trained on {own_amount}, not {other_amount}"
        yield Message("answer.other-amounts", text, trained=own_amount, other=other_amount)
    elif is_one_loss(best.runs[0], other.runs[0]):  # DPO's loss depends on its beta.
        if column == HELD_OUT:
            yield _compare_held_out_loss(ranking, best, other)
            yield from _compare_int4_loss(best, other)
        if column == LOSS:
            yield _compare_training_loss(ranking, best, other)


def passed_over(setting: RankedSetting, best: RankedSetting) -> Message:
    """Say why a faster setting that learned is not recommended."""
    column = quality.shared(setting.learned, best.learned) or LOSS
    figure = setting.learned.get(column)
    best_figure = best.learned.get(column)
    if column == ACCURACY and figure is not None and best_figure is not None:
        points = 100 * (best_figure - figure)
        return Message("answer.fewer-points", f"{points:.1f} points less accurate", points=points)
    if column == HELD_OUT:
        text = f"a held-out loss of {figure:.3f} instead of {best_figure:.3f}"
        return Message("answer.greater-held-out-loss", text, loss=figure, other=best_figure)
    text = f"a training loss of {figure:.3f} instead of {best_figure:.3f}"
    return Message("answer.greater-loss", text, loss=figure, other=best_figure)


def _compare_accuracy(ranking: Ranking, best: RankedSetting, against: RankedSetting) -> Message:
    accuracy = best.learned[ACCURACY]
    other = against.learned[ACCURACY]
    points = 100 * abs(accuracy - other)
    facts: dict[str, Any] = {"accuracy": accuracy, "other": other}
    if ranking.more_accurate(best, against):
        return Message(
            "answer.more-accurate", f"{points:.1f} points more accurate ({accuracy:.1%})", **facts
        )
    if ranking.more_accurate(against, best):
        return Message(
            "answer.less-accurate", f"{points:.1f} points less accurate ({accuracy:.1%})", **facts
        )
    if points < SAME_ACCURACY_POINTS:
        return Message("answer.same-accuracy", f"same accuracy ({accuracy:.1%})", **facts)
    text = f"accuracy within noise ({accuracy:.1%}, not {other:.1%})"
    return Message("answer.accuracy-within-noise", text, **facts)


def _compare_held_out_loss(
    ranking: Ranking, best: RankedSetting, against: RankedSetting
) -> Message:
    """Compare the losses on held-out rows, or say that the rows differ."""
    loss = best.learned[HELD_OUT]
    other = against.learned[HELD_OUT]
    losses = f"{loss:.3f}, not {other:.3f}"
    facts: dict[str, Any] = {"loss": loss, "other": other}
    if not ranking.repeated.have_same_rows(best.runs, against.runs):
        text = "held-out loss not compared: the held-out rows differ"
        return Message("answer.other-held-out-rows", text, **facts)
    if ranking.more_accurate(best, against):
        return Message("answer.lower-held-out-loss", f"a lower held-out loss ({losses})", **facts)
    if ranking.more_accurate(against, best):
        return Message("answer.higher-held-out-loss", f"a higher held-out loss ({losses})", **facts)
    if is_less(loss, other) or is_less(other, loss):
        return Message(
            "answer.held-out-within-noise", f"held-out loss within noise ({losses})", **facts
        )
    return Message("answer.same-held-out-loss", f"the same held-out loss ({loss:.3f})", **facts)


def _compare_int4_loss(best: RankedSetting, against: RankedSetting) -> Iterator[Message]:
    """Compare the losses with int4 weights, if one setting simulated quantisation in training."""
    runs = (*best.runs, *against.runs)
    if any(map(by_int4.is_judged_by_int4, runs)):
        return  # The compared held-out losses are already losses in int4.
    groups = {details.int4_groupsize(run) for run in runs}
    if not any(map(details.simulated_int4, runs)) or len(groups) > 1 or None in groups:
        return
    loss, other = (grouping.of_setting(setting.runs, "int4_loss") for setting in (best, against))
    if loss is not None and other is not None:
        text = f"in int4 a held-out loss of {loss:.3f}, not {other:.3f}"
        yield Message("answer.in-int4", text, loss=loss, other=other)


def _compare_training_loss(
    ranking: Ranking, best: RankedSetting, against: RankedSetting
) -> Message:
    loss = best.learned[LOSS]
    other = against.learned[LOSS]
    facts: dict[str, Any] = {"loss": loss, "other": other}
    if ranking.more_accurate(best, against):
        return Message("answer.lower-loss", f"a lower training loss ({loss:.3f})", **facts)
    if ranking.more_accurate(against, best):
        return Message("answer.higher-loss", f"a higher training loss ({loss:.3f})", **facts)
    if is_less(loss, other) or is_less(other, loss):
        text = f"training loss within noise ({loss:.3f}, not {other:.3f})"
        return Message("answer.loss-within-noise", text, **facts)
    return Message("answer.same-loss", f"the same training loss ({loss:.3f})", **facts)


def quality_caveats(*settings: RankedSetting) -> Iterator[Message]:
    """Say if quality was not measured, or hardly, on rows that were not trained on."""
    kind = settings[0].runs[0]["kind"]
    runs = []
    for setting in settings:
        runs.extend(setting.runs)
    if (
        kind == ScriptRecord.kind
        and settings[0].accuracy is None
        and settings[0].loss is None
        and len(settings) > 1
    ):
        text = "how well it learns is not known (`multicard.log(loss=...)` records it)"
        yield Message("answer.learning-unknown", text)
    amounts = works.script_amounts(runs)
    if amounts is not None and not amounts.are_known and len(settings) > 1:
        text = (
            "but how many samples it trains on is not known: `multicard.step(samples=...)` records"
            " it"
        )
        yield Message("answer.samples-uncounted", text)
    if kind != LlmRecord.kind:
        return
    if any(run[HELD_OUT] is None for run in runs):
        text = "but quality was not measured (no held-out rows: `dataset.split=0.1` holds some out)"
        yield Message("answer.quality-not-measured", text, key="dataset.split")
        return
    rows = min(run["held_out_rows"] or 0 for run in runs)
    if rows < FEW_ROWS:
        text = f"but quality was hardly measured ({count(rows, 'held-out row')})"
        yield Message("answer.quality-hardly-measured", text, rows=rows, least=FEW_ROWS)
