"""The sections of a report but that of the runs: what each has of some runs, as blocks."""

from collections import Counter
from collections.abc import Iterator, Sequence

from analysis import rerun_commands
from analysis.answers import Answer
from analysis.claims import Verdict, render
from analysis.commands import table
from analysis.commands.best import Ranking, rankings
from analysis.experiments import Experiment, Panel
from analysis.figures import captions, draw
from analysis.figures.effect_charts import UNREPEATED, what_matters
from analysis.figures.setting_charts import efficiency, losses, phases, trade_off_of
from analysis.figures.vega import numbered
from analysis.report.blocks import (
    Block,
    Facts,
    Fold,
    Grid,
    Heading,
    Paragraph,
    PlainTable,
    Plot,
    Recommendation,
    Section,
    sentences,
)
from analysis.runs import grouping
from analysis.runs.details import DetailedRun
from analysis.runs.grouping import ACCURACY
from analysis.runs.load import Run
from analysis.table_columns import Column
from multicard.config.job import count
from multicard.messages import typed
from multicard.records import limits
from multicard.records.schema_environment import Cpu
from multicard.records.text_table import clean, in_bytes
from papers import printed

# ---- What to run, how sure that is, what limits it and what to try next, for each workload

MOST_WORKS = 6  # whose recommendation the page has


def of_answers(answers: Sequence[Answer], runs: Sequence[Run]) -> Section:
    """The recommendation for the newest workload, and the others folded away; without any, why there is none."""
    known = [_recommendation(answer, place) for place, answer in enumerate(answers[:MOST_WORKS])]
    blocks: list[Block] = [*known[:1]] or [Paragraph(f"Nothing can be recommended: {_reason(runs)}.")]
    rest = len(answers) - len(known)
    more = [Paragraph(f"{rest} more: {typed('-m analysis')} best", quiet=True)] * (rest > 0)
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
    command = answer.command or answer.setting
    return Recommendation(answer.work, answer.statement, answer.marks, command, [*_facts(answer)], plots)


def _facts(answer: Answer) -> Iterator[tuple[str, str, str]]:
    yield "What it takes", f"{answer.takes}.", ""
    yield from (("Other settings", line, "") for line in answer.others)
    known = {"What limits it": answer.limit, "What to try next": answer.next, "On GPUs": answer.elsewhere}
    yield from ((name, advice.sentence, advice.command or "") for name, advice in known.items() if advice is not None)


# ---- What each setting gains, alone and together

MOST_EFFECTS = 4  # plots: time and accuracy of two workloads
MOST_PLOTS = 2  # of a subsection
MOST_COMMANDS = 20  # that a figure names
NO_GAIN = "Accuracy: no setting changes it by more than these runs tell from chance."


def of_effects(rankings: Sequence[Ranking]) -> Section:
    """A chart of each workload's time, and one of its accuracy where something changes that; all gains as a table."""
    blocks: list[Block] = []
    found = what_matters(rankings)
    for index, one in enumerate(found[:MOST_EFFECTS]):
        if one.measure == ACCURACY and not any(effects[0].gain.is_told for effects in one.by_axis):
            blocks.append(Paragraph(NO_GAIN, quiet=True))
            continue
        rows = [[one.change(each), one.gain(each), str(each.blocks)] for own in one.by_axis for each in own]
        gains = PlainTable("", ["changed", "gain", "pairs of settings"], rows, wraps=True)
        depends = [Paragraph(f"It depends: {sentence}.") for sentence in one.interactions]
        depends += [Paragraph(f"{UNREPEATED}.")] * (not one.is_repeated)
        blocks += [Plot(one.figure(numbered("effects", index))), *depends, Fold("Every value as a table", [gains])]
    if len(found) > MOST_EFFECTS:
        blocks.append(Paragraph(f"More, of other workloads: {typed('-m analysis')} figure effects", quiet=True))
    return Section("matters", "What matters", "What does each setting gain alone, everything else equal?", blocks)


def of_efficiency(runs: Sequence[DetailedRun]) -> Section:
    commands = rerun_commands.of_sweeps(runs)[:MOST_COMMANDS]
    blocks: list[Block] = []
    charts = {"Scaling": efficiency(runs), "A step": phases(runs), "Learning": losses(runs)}
    for title, drawn in charts.items():
        plots = [Plot(figure, commands) for figure in drawn[:MOST_PLOTS]]
        blocks += [Heading(title), *plots] if plots else []
        if len(drawn) > MOST_PLOTS:
            rest = f"{len(drawn) - MOST_PLOTS} more, of other settings or data sets: {typed('-m analysis')} figure"
            blocks.append(Paragraph(f"{rest} {drawn[MOST_PLOTS].name.partition('-')[0]}", quiet=True))
    question = "What does each setting gain, where does its time go, and what does it take?"
    return Section("settings", "Efficiency", question, blocks)


# ---- The papers' tables, figures and claims


def of_papers(
    runs: Sequence[Run], panels: Sequence[tuple[Experiment, list[Panel]]], verdicts: Sequence[Verdict]
) -> Section:
    """Of each experiment with runs its first panel, the claims, then the commands of what no run measured; under one
    line where the runs are of no experiment."""
    blocks = [block for experiment, filled in panels if filled for block in _experiment(experiment, filled)]
    tested = [verdict for verdict in verdicts if verdict.figures]
    untested = [verdict for verdict in verdicts if not verdict.figures]
    blocks += [Heading("Claims", sentences(render.summary(verdicts)))]
    blocks += [_claims("claims", tested)] if tested else []
    if untested:
        blocks.append(Fold(f"{count(len(untested), 'claim')} that no run here tests", [_claims("untested", untested)]))
    missing = [
        (f"{one.title.rstrip('.')}. In full: {printed.in_full(one.name)}.", [one.command])
        for one, filled in panels
        if not filled
    ]
    if missing:
        title = f"{count(len(missing), 'experiment')} that no run here measures"
        blocks.append(Fold(title, [Facts(missing, code=True)]))
    known = f"{len(panels) - len(missing)} of {count(len(panels), 'experiment')} measured"
    line = f"{known}, {len(tested)} of {count(len(verdicts), 'claim')} tested"
    question = "Do the papers' tables and figures look alike here, and which of their findings hold?"
    sizes = table.of_datasets(runs)
    blocks.append(Fold(sizes.title, [PlainTable("", sizes.headings, sizes.texts, sizes.notes)]))
    shown = rerun_commands.experiments_of(runs)
    return Section("papers", "Compared with the papers", question, blocks, "" if shown else line)


def _experiment(experiment: Experiment, filled: Sequence[Panel]) -> list[Block]:
    def is_full(panel: Panel) -> bool:  # on GPUs and at full scale
        return not panel.missing and all(run["device"] != "cpu" and run["scale"] == "full" for run in panel.runs)

    panel = filled[0]
    blocks: list[Block] = [Heading(experiment.name, experiment.title)]
    todo = [f"In full: {printed.in_full(experiment.name)}"] if not any(map(is_full, filled)) else []
    todo += captions.missing_cells(panel.missing)
    blocks += [Facts([(f"{'. '.join(todo)}.", [experiment.command])], code=True)] if todo else []
    blocks += _panel(experiment, panel)
    if len(filled) > 1:
        others = "Also measured in other settings, on other machines or at other commits"
        command = f"{typed('-m analysis')} table {experiment.name} --all"
        blocks.append(Facts([(f"{others} ({len(filled) - 1}).", [command])], code=True))
    return blocks


def _panel(experiment: Experiment, panel: Panel) -> list[Block]:
    commands = rerun_commands.of_sweeps(panel.runs) or [experiment.command]
    blocks: list[Block] = [Plot(figure, commands) for figure in draw.experiment_figures(experiment, [panel])]
    if not blocks and experiment.view.form == "curves":
        blocks.append(Paragraph("One epoch makes no curve: its figures are in the table.", quiet=True))
    (own,) = table.tables(experiment, [panel])
    return [*blocks, PlainTable(own.title, own.headings, own.texts, own.notes, commands)]


def _claims(name: str, verdicts: Sequence[Verdict]) -> Grid:
    """Each claim with its verdict and what was measured, by section of the papers."""
    rows = [(title, verdict) for title, part in render.sections(verdicts) for verdict in part]
    details = [{"section": [title], **render.fields(verdict)} for title, verdict in rows]
    columns = {
        "claim": [verdict.claim.says for _, verdict in rows],
        "verdict": [render.marked(verdict) for _, verdict in rows],
        "measured": ["; ".join(render.listed(verdict)) for _, verdict in rows],
        "printed": [verdict.claim.printed for _, verdict in rows],
    }
    opened = {key: ["; ".join(each[key]) for each in details] for key in details[0]}
    shown, hidden = ([Column(key, key, own) for key, own in both.items() if any(own)] for both in (columns, opened))
    commands = Column("measured by", "measured by", [verdict.command for _, verdict in rows], code=True)
    return Grid(name, "claims", shown, [*hidden, *[commands] * (not commands.is_empty)], page_rows=100)


# ---- What the runs were measured on, and the marks that they carry

MOST_VALUES = 8  # of a fact
PACKAGES = ("torch", "torchvision", "timm", "torchtune", "torchao", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")


def warnings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Each limit of the runs by its sign, with how many have it and what it says."""
    lines = []
    for limit in limits.in_order(grouping.limits_of(runs)):
        count = sum(limit.code in [one.code for one in run.limits] for run in runs)
        every = "The run" if len(runs) == 1 else f"All {len(runs):,} runs"
        share = every if count == len(runs) else f"{count:,} of {len(runs):,} runs"
        lines.append((limits.sign(limit.code), f"{share}: {limit.says}"))
    return lines


def of_machine(runs: Sequence[DetailedRun]) -> Section:
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _about_machine(run):
            if value is not None:
                rows.setdefault(name, {})[clean(str(value))] = None
    facts = []
    for name, values in rows.items():
        rest = [f"and {len(values) - MOST_VALUES} more"] * (len(values) > MOST_VALUES)
        facts.append((name, [*list(values)[:MOST_VALUES], *rest]))
    question = "What were the figures measured on? They hold for this hardware, these versions and this code."
    return Section("machine", "Machine and code", question, [Facts(facts)])


def _about_machine(run: DetailedRun) -> Iterator[tuple[str, str | None]]:
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
