"""The first section: what to run, how sure that is, what limits it and what to try next, for each workload."""

from collections.abc import Iterator, Sequence

from analysis.answers import Answer
from analysis.commands.best import rankings
from analysis.figures.setting_charts import trade_off_of
from analysis.figures.vega import numbered
from analysis.report.blocks import Block, Fold, Paragraph, Plot, Recommendation, Section
from analysis.runs.load import Run
from multicard.config.job import count

MOST_WORKS = 6  # whose recommendation the page has


def of_answers(answers: Sequence[Answer], runs: Sequence[Run]) -> Section:
    """The recommendation for the newest workload, and the others folded away; without any, why there is none."""
    known = [_recommendation(answer, place) for place, answer in enumerate(answers[:MOST_WORKS])]
    blocks: list[Block] = [*known[:1]] or [Paragraph(f"Nothing can be recommended: {_reason(runs)}.")]
    rest = len(answers) - len(known)
    more = [Paragraph(f"{rest} more: python -m analysis best", quiet=True)] * (rest > 0)
    blocks += [Fold(count(len(answers) - 1, "other workload"), [*known[1:], *more])] if len(answers) > 1 else []
    return Section("answers", "What to run", "", blocks)


def _reason(runs: Sequence[Run]) -> str:
    try:
        rankings(runs)
    except ValueError as error:
        return str(error) if any(run["status"] == "ok" for run in runs) else f"{error}; the causes are below"
    return "no setting has a time"


def _recommendation(answer: Answer, place: int) -> Recommendation:
    chart = trade_off_of(answer.ranking, numbered("trade_off", place))
    plots = [Plot(chart)] if chart is not None else []
    typed = answer.command or answer.setting
    return Recommendation(answer.work, answer.statement, answer.marks, typed, [*_facts(answer)], plots)


def _facts(answer: Answer) -> Iterator[tuple[str, str, str]]:
    yield "What it takes", f"{answer.takes}.", ""
    yield from (("Other settings", line, "") for line in answer.others)
    known = {"What limits it": answer.limit, "What to try next": answer.next, "On GPUs": answer.elsewhere}
    yield from ((name, advice.sentence, advice.command or "") for name, advice in known.items() if advice is not None)
