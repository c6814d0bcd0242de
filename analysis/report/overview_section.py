"""The first two sections, answers in words and what the runs ran on; and the marks of the runs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from analysis.commands.best import Limits, Ranking, rankings
from analysis.report.blocks import Answer, Block, Facts, Line, Paragraph, Section
from analysis.runs import grouping
from analysis.runs.columns import MARKS
from analysis.runs.details import DetailedRun
from analysis.runs.grouping import of_setting
from analysis.runs.load import Run
from multicard.config.job import count
from multicard.measure.timing import in_hours
from multicard.records import figures
from multicard.records.schema import Cpu
from multicard.records.text_table import clean, in_bytes, in_joules

MOST_WORKS = 4  # whose best settings are named
MOST_OTHERS = 3  # settings beside the best
MOST_VALUES = 8  # of a fact
PACKAGES = ("torch", "torchvision", "torchtune", "torchao", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")
GOALS = {"time": "Fastest", "memory": "Least memory", "energy": "Least energy"}
TO_TRY = ". To try next: "  # between what limits a run and what to try, in a diagnosis
LIMITS, NEXT = "What limits it", "What to try next"
AGAIN = "The rounds of the diagnosis differ too much: repeat it on a quiet machine."
PHASES = {
    "data": "Waiting for data",
    "h2d": "Copying to the device",
    "forward": "The forward pass",
    "backward": "The backward pass",
    "optimizer": "The optimiser",
}
Ranked = Mapping[str, Sequence[Ranking] | str]  # by goal; why nothing can be ranked


def ranked(runs: Sequence[Run], mix: bool) -> Ranked:
    """The rankings by each goal, or why there is none."""
    found: dict[str, Sequence[Ranking] | str] = {}
    for goal in GOALS:
        try:
            found[goal] = rankings(runs, goal, Limits(), mix)
        except ValueError as error:  # no run has the figure, say
            found[goal] = str(error)
    return found


def warnings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Each mark of the runs, with how many have it and its meaning."""
    lines = []
    for mark in MARKS:
        count = sum(bool(run[mark.column]) for run in runs)
        if count:
            every = "The run" if len(runs) == 1 else f"All {len(runs):,} runs"
            share = every if count == len(runs) else f"{count:,} of {len(runs):,} runs"
            lines.append((mark.sign, f"{share}: {mark.meaning}"))
    return lines


def answers(runs: Sequence[DetailedRun], mix: bool, claim_summary: Sequence[str]) -> Section:
    """In short: the headlines, the best settings, and how many claims hold.

    Args:
        claim_summary: how many claims hold, as lines.
    """
    by_goal = ranked(runs, mix)
    top = headlines(runs, by_goal)
    blocks: list[Block] = [top] if top is not None else []
    blocks += _best_settings(runs, by_goal)
    if claim_summary:
        blocks.append(Answer("The papers' claims", [Line("Verdicts", note=sentences(claim_summary))]))
    question = "Which setting should I choose, and what holds it back?"
    return Section("answers", "In short", question, blocks)


def headlines(runs: Sequence[DetailedRun], by_goal: Ranked) -> Answer | None:
    """The fastest setting of the work with most settings, what it cost, what limits it, and what to try next; None
    where no run has a time that can be ranked."""
    by_time = by_goal["time"]
    if isinstance(by_time, str):
        return None
    ranking = max(by_time, key=lambda ranking: len(ranking.settings))
    folders = {run.folder for run in ranking.best.runs}
    best = [run for run in runs if run.folder in folders]
    title = f"The fastest of {count(len(ranking.settings), 'setting')}" + f" of {ranking.work}" * bool(ranking.work)
    return Answer(title, [_fastest(ranking), _cost(best), *_limit_and_next(best)], headline=True)


def finding(top: Answer) -> str:
    """The first headline as a sentence."""
    fastest = top.lines[0]
    setting = f" with {fastest.setting}" if fastest.setting else ""
    marks = f" [{fastest.marks}]" if fastest.marks else ""
    return f"{top.title}: {fastest.figure}{setting}{marks}" + f" ({fastest.note})" * bool(fastest.note) + "."


def _fastest(ranking: Ranking) -> Line:
    accuracy, loss = (of_setting(ranking.best.runs, column) for column in ("test_accuracy", "loss_last_tenth"))
    reached = "" if loss is None else f"a loss of {loss:.3f}"
    reached = f"{accuracy:.1%} accuracy" if accuracy is not None else reached
    several = f"the mean of {count(len(ranking.best.runs), 'run')}" if len(ranking.best.runs) > 1 else ""
    label = "" if len(ranking.settings) == 1 else ranking.label(ranking.best)
    duration = _duration(of_setting(ranking.best.runs, "total_s") or 0.0)
    return Line("Fastest", duration, label, _joined(reached, several), ranking.best.marks)


def _cost(runs: Sequence[DetailedRun]) -> Line:
    """Ranks times hours, energy, and memory."""
    ranks, total_s = grouping.ranks(runs[0]), of_setting(runs, "total_s") or 0.0
    unit = "CPU rank" if runs[0]["cpu_ranks"] else "GPU"
    energy_joules, memory_bytes = (of_setting(runs, column) for column in ("energy_joules", "peak_memory_bytes"))
    energy = in_joules(energy_joules) if energy_joules is not None else ""
    memory = f"{figures.text('_bytes', memory_bytes)} of memory" + " on the fullest" * (ranks > 1)
    note = _joined(f"{_duration(ranks * total_s)} of {unit} time", energy, memory if memory_bytes is not None else "")
    return Line("What it cost", count(ranks, unit), note=note)


def _limit_and_next(best: Sequence[DetailedRun]) -> list[Line]:
    """What limits it and what to try, as it was diagnosed; else where its steps' time goes, and how to diagnose it."""
    diagnosed = next((run for run in best if run.diagnosis), None)
    if diagnosed is not None:
        found, _, advice = (diagnosed.diagnosis or "").partition(TO_TRY)
        _, _, sentence = found.partition(": ")
        limit = Line(LIMITS, _capital(diagnosed.bound or "no clear bound"), note=f"{_capital(sentence or found)}.")
        if not advice:
            return [limit, Line(NEXT, "Diagnose again", note=AGAIN)]
        is_key = not advice.split()[0].isalpha()
        return [limit, Line(NEXT, advice if is_key else _capital(advice))]
    first = best[0]
    step_s = sum(first.phases_s.values())
    how = Line(NEXT, "Diagnose it", "diagnose=true", "Steps with one cost removed at a time tell what limits it.")
    if not step_s:
        return [Line(LIMITS, "Unknown", note="It was not diagnosed."), how]
    phase = max(first.phases_s, key=lambda phase: first.phases_s[phase])
    share = f"{first.phases_s[phase] / step_s:.0%} of a step's time. It was not diagnosed."
    return [Line(LIMITS, PHASES.get(phase, phase), note=share), how]


def _best_settings(runs: Sequence[Run], by_goal: Ranked) -> list[Block]:
    """The best settings of each work, the work with most settings first."""
    lines: dict[str, list[Line]] = {}
    settings: Counter[str] = Counter()
    for goal, found in by_goal.items():
        for ranking in found if not isinstance(found, str) else ():
            title = ranking.work or _work(ranking.runs[0])
            more = f"And {len(ranking.others) - MOST_OTHERS} more: python -m analysis best --goal {goal}."
            others = [*ranking.others[:MOST_OTHERS], *[more] * (len(ranking.others) > MOST_OTHERS)]
            best = ranking.best
            line = Line(GOALS[goal], ranking.figures(best), ranking.label(best), " ".join(others), best.marks)
            lines.setdefault(title, []).append(line)
            settings[title] = max(settings[title], len(ranking.settings))
    if not lines:
        causes = "" if any(run["status"] == "ok" for run in runs) else " The causes are below."
        return [Paragraph(f"Nothing can be ranked: {by_goal['time']}.{causes}")]
    works = [Answer(_capital(title), lines[title]) for title in sorted(lines, key=lambda title: -settings[title])]
    others = count(len(works) - MOST_WORKS, "other workload")
    rest = f"{others}, with fewer settings: python -m analysis best --goal time"
    return [*works[:MOST_WORKS], *[Paragraph(rest, quiet=True)] * (len(works) > MOST_WORKS)]


def _work(run: Run) -> str:
    """The work of a run, for a report of a single one."""
    size = f" at {run['image_size']} px" if run["image_size"] is not None else ""
    model, dataset = (figures.text("", run[name]) for name in ("model", "dataset"))
    return f"{grouping.kind(run['kind'])}: {model} on {dataset}{size}"


def machines(runs: Sequence[DetailedRun]) -> Section:
    """Hardware, versions and commits."""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _facts(run):
            if value is not None:
                rows.setdefault(name, {})[clean(str(value))] = None
    facts = []
    for name, values in rows.items():
        rest = [f"and {len(values) - MOST_VALUES} more"] * (len(values) > MOST_VALUES)
        facts.append((name, [*list(values)[:MOST_VALUES], *rest]))
    question = "What were the figures measured on? They hold for this hardware, these versions and this code."
    return Section("machine", "Machine and code", question, [Facts(facts)])


def _facts(run: DetailedRun) -> Iterator[tuple[str, str | None]]:
    environment, cpu = run.surroundings, run.surroundings.cpu or Cpu()
    gpus, packages = environment.gpus, environment.packages
    yield "Computed on", "CPU ranks" if run["device"] == "cpu" else None
    if gpus:
        sizes = sorted({in_bytes(gpu.memory_bytes) for gpu in gpus if gpu.memory_bytes is not None})
        names = sorted({str(gpu.name) for gpu in gpus})
        yield "GPUs", f"{len(gpus)} x {', '.join(names)}" + (f", {', '.join(sizes)} each" if sizes else "")
    yield from (("Driver", gpu.driver) for gpu in gpus)
    known = (environment.topology or {}).get("links")
    links = [link.get("link") for link in (known if isinstance(known, list) else ()) if isinstance(link, dict)]
    counts = Counter(str(link or "an unknown path") for link in links)  # as nvidia-smi names them: "6 pairs by NV18"
    yield "Links", ", ".join(f"{count(pairs, 'pair')} by {link}" for link, pairs in counts.items()) or None
    yield "CPU", f"{cpu.model}, {cpu.cores_online or '?'} cores" if cpu.model is not None else None
    yield "Memory", in_bytes(cpu.memory_bytes) if cpu.memory_bytes is not None else None
    yield "Host", run["hosts"]
    yield "Commit", grouping.commit(run)
    versions = [f"{name} {packages[name]}" for name in PACKAGES if packages.get(name) is not None]
    yield "Versions", ", ".join([*versions, f"Python {environment.python or '?'}"]) if versions else None


def sentences(lines: Iterable[str]) -> str:
    """Lines for a terminal as sentences."""
    return " ".join(f"{_capital(line).rstrip('.')}." for line in lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _duration(seconds: float) -> str:
    """ "9.6 s", "0:03:12"."""
    return f"{figures.seconds(seconds)} s" if seconds < 120 else in_hours(seconds)
