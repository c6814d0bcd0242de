"""Determines the bottleneck of a run, from ablations or else from the GPU's published rates.

The line at a run's end, the page, `best` and Python all use this module, so that they agree.
"""

from dataclasses import dataclass

from multicard.records.schema import AnyRecord, LlmRecord

# Separates finding and advice in sentences of records that have no key for the advice.
OLD_ADVICE = ". To try next: "


@dataclass(frozen=True)
class Bound:
    """The bottleneck of a run.

    Fields:
        sentence: the finding with what to try next.
        finding: the largest cost, in words.
        tries: what to try next, the most promising first, as overrides or in words.
        is_measured: whether it was measured by the ablations of `diagnose=true`.
    """

    sentence: str
    finding: str
    tries: tuple[str, ...]
    is_measured: bool


def of(record: AnyRecord) -> Bound | None:
    """Return the bottleneck of a run; None if it is unknown. Ablations take precedence."""
    diagnosis = record.diagnosis
    if diagnosis is not None and diagnosis.sentence is not None:
        finding = diagnosis.finding
        advice = diagnosis.advice
        if finding is None:
            before, _, after = diagnosis.sentence.partition(OLD_ADVICE)
            finding = before.partition(": ")[2] or before
            advice = after or None
        return Bound(
            diagnosis.sentence, finding, () if advice is None else (advice,), is_measured=True
        )
    arithmetic = record.arithmetic if isinstance(record, LlmRecord) else None
    if arithmetic is None or arithmetic.sentence is None or arithmetic.finding is None:
        return None
    return Bound(
        arithmetic.sentence, arithmetic.finding, tuple(arithmetic.tries), is_measured=False
    )
