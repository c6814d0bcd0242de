"""What bounds a run, as one place says it: measured by ablations,
else by the GPU's published rates.

The line at a run's end, the page, `best` and Python all ask here,
so that no two of them contradict.
"""

from dataclasses import dataclass

from multicard.records.schema import AnyRecord, LlmRecord

# before it, in the sentences of records that have no advice by itself
OLD_ADVICE = ". To try next: "


@dataclass(frozen=True)
class Bound:
    """What bounds a run.

    Fields:
        sentence: the finding with what to try next.
        finding: the largest cost, in words.
        tries: what to try next, the best first: overrides as they are typed, or words.
        is_measured: by ablations of `diagnose=true`.
    """

    sentence: str
    finding: str
    tries: tuple[str, ...]
    is_measured: bool


def of(record: AnyRecord) -> Bound | None:
    """What bounds a run; None where nobody knows. What was measured by ablations comes first."""
    told = record.diagnosis
    if told is not None and told.sentence is not None:
        finding = told.finding
        advice = told.advice
        if finding is None:
            before, _, after = told.sentence.partition(OLD_ADVICE)
            finding = before.partition(": ")[2] or before
            advice = after or None
        return Bound(told.sentence, finding, () if advice is None else (advice,), is_measured=True)
    found = record.arithmetic if isinstance(record, LlmRecord) else None
    if found is None or found.sentence is None or found.finding is None:
        return None
    return Bound(found.sentence, found.finding, tuple(found.tries), is_measured=False)
