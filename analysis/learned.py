"""What a recommendation says of how well two settings learned, and how well that was measured.

Accuracies are compared, or losses on held-out rows, or training losses (`analysis.runs.quality`).
Where settings trained on other amounts, losses are not compared, and the sentence says so.
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

SAME_POINTS = 1.0  # of accuracy, below which settings that runs do not tell apart have the same
LOSSES = {HELD_OUT: "held-out loss", LOSS: "training loss"}


def alone(setting: RankedSetting) -> Iterator[Message]:
    """How well a setting learned that is compared with no other."""
    if setting.accuracy is not None:
        said = f"{figures.text(ACCURACY, setting.accuracy)} accuracy"
        yield Message("answer.accuracy", said, accuracy=setting.accuracy)
    elif setting.held_out_loss is not None:
        said = f"held-out loss {setting.held_out_loss:.3f}"
        yield Message("answer.held-out-loss", said, loss=setting.held_out_loss)
    elif setting.loss is not None:
        yield Message("answer.loss", f"training loss {setting.loss:.3f}", loss=setting.loss)


def beside(ranking: Ranking, best: RankedSetting, other: RankedSetting) -> Iterator[Message]:
    """How well a setting learned, beside another."""
    column = quality.shared(best.learned, other.learned)
    if column == ACCURACY:
        yield _accuracy_beside(ranking, best, other)
    if not works.did_as_much(best.runs, other.runs):
        own, others = (works.trained(one.runs[0]) for one in (best, other))
        unequal = works.unequal_amounts(best.runs, other.runs)
        if unequal is not None:
            unit, of_best, of_other = unequal
            own = f"{of_best:,.0f} {unit}"
            others = f"{of_other:,.0f}"
        reason = f"{LOSSES[column]} not compared: " if column in LOSSES else ""
        said = f"{reason}trained on {own}, not {others}"
        yield Message("answer.other-amounts", said, trained=own, other=others)
    elif is_one_loss(best.runs[0], other.runs[0]):  # not DPO's with another beta
        if column == HELD_OUT:
            yield _held_out_beside(ranking, best, other)
            yield from _in_int4_beside(best, other)
        if column == LOSS:
            yield _loss_beside(ranking, best, other)


def passed_over(setting: RankedSetting, best: RankedSetting) -> Message:
    """Why a faster setting that learned is not the recommended one."""
    column = quality.shared(setting.learned, best.learned) or LOSS
    loss = setting.learned.get(column)
    other = best.learned.get(column)
    if column == ACCURACY and loss is not None and other is not None:
        points = 100 * (other - loss)
        return Message("answer.fewer-points", f"{points:.1f} points less accurate", points=points)
    if column == HELD_OUT:
        said = f"a held-out loss of {loss:.3f} instead of {other:.3f}"
        return Message("answer.greater-held-out-loss", said, loss=loss, other=other)
    said = f"a training loss of {loss:.3f} instead of {other:.3f}"
    return Message("answer.greater-loss", said, loss=loss, other=other)


def _accuracy_beside(ranking: Ranking, best: RankedSetting, against: RankedSetting) -> Message:
    accuracy = best.learned[ACCURACY]
    other = against.learned[ACCURACY]
    points = 100 * abs(accuracy - other)
    about: dict[str, Any] = {"accuracy": accuracy, "other": other}
    if ranking.more_accurate(best, against):
        return Message(
            "answer.more-accurate", f"{points:.1f} points more accurate ({accuracy:.1%})", **about
        )
    if ranking.more_accurate(against, best):
        return Message(
            "answer.less-accurate", f"{points:.1f} points less accurate ({accuracy:.1%})", **about
        )
    if points < SAME_POINTS:
        return Message("answer.same-accuracy", f"same accuracy ({accuracy:.1%})", **about)
    said = f"accuracy within noise ({accuracy:.1%}, not {other:.1%})"
    return Message("answer.accuracy-within-noise", said, **about)


def _held_out_beside(ranking: Ranking, best: RankedSetting, against: RankedSetting) -> Message:
    """The loss on held-out rows, which settings share or do not."""
    loss = best.learned[HELD_OUT]
    other = against.learned[HELD_OUT]
    both = f"{loss:.3f}, not {other:.3f}"
    about: dict[str, Any] = {"loss": loss, "other": other}
    if not ranking.repeated.have_same_rows(best.runs, against.runs):
        said = "held-out loss not compared: other held-out rows"
        return Message("answer.other-held-out-rows", said, **about)
    if ranking.more_accurate(best, against):
        return Message("answer.lower-held-out-loss", f"a lower held-out loss ({both})", **about)
    if ranking.more_accurate(against, best):
        return Message("answer.higher-held-out-loss", f"a higher held-out loss ({both})", **about)
    if is_less(loss, other) or is_less(other, loss):
        return Message(
            "answer.held-out-within-noise", f"held-out loss within noise ({both})", **about
        )
    return Message("answer.same-held-out-loss", f"the same held-out loss ({loss:.3f})", **about)


def _in_int4_beside(best: RankedSetting, against: RankedSetting) -> Iterator[Message]:
    """The loss of both settings with int4 weights, for which one of
    them simulated the quantisation in training.
    """
    runs = (*best.runs, *against.runs)
    if any(map(by_int4.is_judged_so, runs)):
        return  # said already
    groups = {details.int4_groupsize(run) for run in runs}
    if not any(map(details.simulated_int4, runs)) or len(groups) > 1 or None in groups:
        return
    loss, other = (grouping.of_setting(one.runs, "int4_loss") for one in (best, against))
    if loss is not None and other is not None:
        said = f"in int4 a held-out loss of {loss:.3f}, not {other:.3f}"
        yield Message("answer.in-int4", said, loss=loss, other=other)


def _loss_beside(ranking: Ranking, best: RankedSetting, against: RankedSetting) -> Message:
    loss = best.learned[LOSS]
    other = against.learned[LOSS]
    about: dict[str, Any] = {"loss": loss, "other": other}
    if ranking.more_accurate(best, against):
        return Message("answer.lower-loss", f"a lower training loss ({loss:.3f})", **about)
    if ranking.more_accurate(against, best):
        return Message("answer.higher-loss", f"a higher training loss ({loss:.3f})", **about)
    if is_less(loss, other) or is_less(other, loss):
        said = f"training loss within noise ({loss:.3f}, not {other:.3f})"
        return Message("answer.loss-within-noise", said, **about)
    return Message("answer.same-loss", f"the same training loss ({loss:.3f})", **about)


def how_well_measured(*settings: RankedSetting) -> Iterator[Message]:
    """That nothing, or next to nothing, says how well settings
    do on rows that they were not trained on.
    """
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
        said = "how well it learns is not known: `multicard.log(loss=...)` tells"
        yield Message("answer.learning-unknown", said)
    counted = works.script_amounts(runs)
    if counted is not None and not counted.are_known and len(settings) > 1:
        said = "but how many samples it trains on is not known: `multicard.step(samples=...)` tells"
        yield Message("answer.samples-uncounted", said)
    if kind != LlmRecord.kind:
        return
    if any(run[HELD_OUT] is None for run in runs):
        said = "but quality was not measured (no held-out rows: `dataset.split=0.1` holds some out)"
        yield Message("answer.quality-not-measured", said, key="dataset.split")
        return
    rows = min(run["held_out_rows"] or 0 for run in runs)
    if rows < FEW_ROWS:
        said = f"but quality was hardly measured ({count(rows, 'held-out row')})"
        yield Message("answer.quality-hardly-measured", said, rows=rows, least=FEW_ROWS)
