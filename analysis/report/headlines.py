"""The headlines of a report, as one would tell them a colleague: the fastest setting, what it cost, what bounds it, and
what to try next."""

from collections.abc import Sequence

from analysis.commands.best import Limits, Ranking, rankings
from analysis.formatting import counted
from analysis.report.blocks import Headlines, Line
from analysis.runs import grouping
from analysis.runs.details import DetailedRun
from analysis.runs.setting_figure import of_setting
from multicard.records import figures
from multicard.records.text_table import in_joules

TO_TRY = ". To try next: "  # between what bounds a run and what to try, in a diagnosis
AGAIN = "The rounds of the diagnosis differ too much: on a quiet machine they would not."
PHASES = {
    "data": "Waiting for data",
    "h2d": "Copying to the device",
    "forward": "The forward pass",
    "backward": "The backward pass",
    "optimizer": "The optimiser",
}


def headlines(runs: Sequence[DetailedRun], mix: bool) -> Headlines | None:
    """Those of the work that was done in most settings; None where no run has a time that can be ranked."""
    try:
        ranked = rankings(runs, "time", Limits(), mix)
    except ValueError:
        return None
    ranking = max(ranked, key=lambda ranking: len(ranking.rows))
    folders = {run.folder for run in ranking.best}
    best = [run for run in runs if run.folder in folders]
    work = ", ".join(text for text in (ranking.work, ranking.amount) if text)
    about = f"The fastest of {counted(len(ranking.rows), 'setting')}" + f" of {work}" * bool(work)
    return Headlines(about, [_fastest(ranking), _cost(best), *_bound_and_next(best)])


def finding(top: Headlines) -> str:
    """The first headline as a sentence."""
    fastest = top.lines[0]
    setting = f" with {fastest.setting}" if fastest.setting else ""
    marks = f" [{fastest.marks}]" if fastest.marks else ""
    return f"{top.about}: {fastest.figure}{setting}{marks}" + f" ({fastest.note})" * bool(fastest.note) + "."


def _fastest(ranking: Ranking) -> Line:
    """The time, what was reached in it, and what the next on the front would save."""
    accuracy, loss = (of_setting(ranking.best, column) for column in ("test_accuracy", "loss_last_tenth"))
    reached = "" if loss is None else f"a loss of {loss:.3f}"
    reached = f"{accuracy:.1%} accuracy" if accuracy is not None else reached
    several = f"the mean of {counted(len(ranking.best), 'run')}" if len(ranking.best) > 1 else ""
    text = ", ".join(part for part in (reached, several) if part)
    label = "" if len(ranking.rows) == 1 else ranking.label
    return Line("Fastest", _duration(of_setting(ranking.best, "total_s") or 0.0), label, text, ranking.marks)


def _cost(runs: Sequence[DetailedRun]) -> Line:
    """Ranks times hours, energy, and memory."""
    ranks, total_s = grouping.ranks(runs[0]), of_setting(runs, "total_s") or 0.0
    unit = "CPU rank" if runs[0]["cpu_ranks"] else "GPU"
    energy_joules, memory_bytes = (of_setting(runs, column) for column in ("energy_joules", "peak_memory_bytes"))
    energy = [in_joules(energy_joules)] if energy_joules is not None else []
    each = " on the fullest" if ranks > 1 else ""
    memory = [f"{figures.text('_bytes', memory_bytes)} of memory{each}"] if memory_bytes is not None else []
    return Line(
        "What it cost", counted(ranks, unit), note=", ".join([_times_ranks(ranks * total_s, unit), *energy, *memory])
    )


def _bound_and_next(best: Sequence[DetailedRun]) -> list[Line]:
    """What bounds it and what to try, as it was diagnosed; else where its steps' time goes, and how to diagnose it."""
    bounds, to_try = "What bounds it", "What to try next"
    diagnosed = next((run for run in best if run.diagnosis), None)
    if diagnosed is not None:
        found, _, advice = (diagnosed.diagnosis or "").partition(TO_TRY)
        _, _, finding = found.partition(": ")
        finding = finding or found
        bound = Line(
            bounds, (diagnosed.bound or "no clear bound").capitalize(), note=f"{finding[:1].upper()}{finding[1:]}."
        )
        if not advice:
            return [bound, Line(to_try, "Diagnose again", note=AGAIN)]
        is_key = not advice.split()[0].isalpha()
        return [bound, Line(to_try, advice if is_key else f"{advice[:1].upper()}{advice[1:]}")]
    first = best[0]
    step_s = sum(first.phases_s.values())
    how = Line(to_try, "Diagnose it", "diagnose=true", "Steps with one cost removed at a time tell what bounds it.")
    if not step_s:
        return [Line(bounds, "Unknown", note="It was not diagnosed."), how]
    phase = max(first.phases_s, key=lambda phase: first.phases_s[phase])
    share = f"{first.phases_s[phase] / step_s:.0%} of a step's time. It was not diagnosed."
    return [Line(bounds, PHASES.get(phase, phase), note=share), how]


def _times_ranks(seconds: float, unit: str) -> str:
    """ "46 CPU rank seconds", "4.3 GPU minutes", "12.4 GPU hours"."""
    if seconds < 120:
        return f"{seconds:.0f} {unit} seconds"
    return f"{seconds / 60:.3g} {unit} minutes" if seconds < 7200 else f"{seconds / 3600:.3g} {unit} hours"


def _duration(seconds: float) -> str:
    """ "9.6 s", "3 min 12 s", "2 h 5 min"."""
    if seconds < 120:
        return f"{figures.seconds(seconds)} s"
    minutes, rest_s = divmod(round(seconds), 60)
    return f"{minutes} min {rest_s} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
