"""The sections of a report but that of the runs: what each has of some runs, as blocks."""

from collections import Counter
from collections.abc import Iterator, Sequence

from multicard.config.job import count
from multicard.messages import Message, typed
from multicard.papers import printed
from multicard.records import limits
from multicard.records.schema_environment import Cpu
from multicard.records.text_table import capital, clean, in_bytes

from .. import rerun_commands, training_command
from ..answers import Answer
from ..claims import ClaimVerdict, render
from ..commands import table
from ..commands.best import rankings
from ..commands.ranking import Ranking
from ..experiments import Experiment, Panel
from ..figures import captions, draw
from ..figures.effect_charts import TIME, UNREPEATED, what_matters
from ..figures.setting_charts import efficiency, losses, phases, trade_off_of
from ..figures.vega import numbered
from ..runs import grouping
from ..runs.details import DetailedRun
from ..runs.grouping import ACCURACY, HELD_OUT
from ..runs.load import Run
from ..table_columns import Column
from .blocks import (
    Block,
    Facts,
    Fold,
    Heading,
    Paragraph,
    PlainTable,
    Plot,
    Recommendation,
    Section,
    SortableTable,
    sentences,
)

# ---- What to run, how sure that is, what limits it and what to try next, for each workload

MOST_WORKS = 6  # whose recommendation the page has


def of_answers(answers: Sequence[Answer], runs: Sequence[Run]) -> Section:
    """The recommendation for the newest workload, and the others folded away; without any,
    why there is none.
    """
    known = [_recommendation(answer, place) for place, answer in enumerate(answers[:MOST_WORKS])]
    blocks: list[Block] = [*known[:1]] or [Paragraph(_nothing_recommended(runs))]
    if len(answers) > 1:
        others: list[Block] = [*known[1:]]
        rest = len(answers) - len(known)
        if rest > 0:
            by_command = f"{rest} more: `{typed('-m analysis')} best`"
            others.append(
                Paragraph(Message("report.more-workloads", by_command, workloads=rest), quiet=True)
            )
        blocks.append(Fold(count(len(answers) - 1, "other workload"), others))
    return Section("answers", "What to run", "", blocks)


def _nothing_recommended(runs: Sequence[Run]) -> Message:
    reason = _why_unranked(runs)
    if any(run["status"] == "ok" for run in runs):
        return Message(
            "report.no-recommendation", f"Nothing can be recommended: {reason}.", reason=reason
        )
    causes = f"Nothing can be recommended: {reason}; the causes are below."
    return Message("report.no-recommendation-but-causes", causes, reason=reason)


def _why_unranked(runs: Sequence[Run]) -> str:
    try:
        rankings(runs)
    except ValueError as error:
        return str(error)
    return Message("report.no-times", "no setting has a time")


def _recommendation(answer: Answer, place: int) -> Recommendation:
    chart = trade_off_of(answer.ranking, numbered("trade_off", place))
    plots = [Plot(chart)] if chart is not None else []
    command = answer.command or answer.setting
    return Recommendation(
        answer.work, answer.statement, answer.marks, command, [*_facts(answer)], plots
    )


def _facts(answer: Answer) -> Iterator[tuple[str, str, str]]:
    yield "What it takes", f"{answer.takes}.", ""
    yield from (("Other settings", line, "") for line in answer.others)
    if answer.training is not None:
        does = training_command.keeps(answer.best.runs[0]["kind"])
        yield "The model", capital(f"{does}:"), answer.training.command or ""
    known = {
        "What limits it": answer.limit,
        "What to try next": answer.next,
        "On GPUs": answer.elsewhere,
    }
    yield from (
        (name, advice.sentence, advice.command or "")
        for name, advice in known.items()
        if advice is not None
    )


# ---- What each setting gains, alone and together

MOST_EFFECTS = 4  # plots: time, and what was learned, of two workloads
MOST_PLOTS = 2  # of a subsection
MOST_COMMANDS = 20  # that a figure names
NO_GAIN = Message(
    "report.no-gain-in-accuracy", "Accuracy: no setting changes it by more than chance explains."
)
NO_LOWER_LOSS = Message(
    "report.no-gain-in-held-out-loss",
    "Held-out loss: no setting changes it by more than rows and seeds explain.",
)
NO_GAINS = {ACCURACY: NO_GAIN, HELD_OUT: NO_LOWER_LOSS}
QUESTION_OF_EFFECTS = Message(
    "report.question-of-effects", "What does each setting gain alone, everything else equal?"
)
QUESTION_OF_EFFICIENCY = Message(
    "report.question-of-efficiency",
    "What does each setting gain, where does its time go, and what does it take?",
)


def of_effects(rankings: Sequence[Ranking]) -> Section:
    """A chart of each workload's time, and one of what it learned where something changes that,
    and a table.
    """
    blocks: list[Block] = []
    found = what_matters(rankings)
    for index, one in enumerate(found[:MOST_EFFECTS]):
        if one.measure in NO_GAINS and not any(effects[0].gain.is_told for effects in one.by_axis):
            blocks.append(Paragraph(NO_GAINS[one.measure], quiet=True))
            continue
        rows = []
        for own in one.by_axis:
            rows.extend([one.change(each), one.gain(each), str(each.blocks)] for each in own)
        gains = PlainTable("", ["changed", "gain", "pairs of settings"], rows, wraps=True)
        blocks.append(Plot(one.figure(numbered("effects", index))))
        for found_together in one.interactions:
            depends = f"It depends: {found_together}."
            blocks.append(Paragraph(Message("report.gain-depends", depends, reason=found_together)))
        if not one.is_repeated:
            blocks.append(Paragraph(f"{UNREPEATED}."))
        if one.measure == TIME and one.doubts:
            doubted = f"Not by the settings alone: {'; '.join(one.doubts)}."
            blocks.append(Paragraph(Message("report.effects-doubted", doubted, doubts=one.doubts)))
        blocks.append(Fold("Every value as a table", [gains]))
    if len(found) > MOST_EFFECTS:
        by_command = f"More, of other workloads: `{typed('-m analysis')} figure effects`"
        blocks.append(Paragraph(Message("report.more-effects", by_command), quiet=True))
    return Section("matters", "What matters", QUESTION_OF_EFFECTS, blocks)


def of_efficiency(runs: Sequence[DetailedRun]) -> Section:
    commands = rerun_commands.of_sweeps(runs)[:MOST_COMMANDS]
    blocks: list[Block] = []
    charts = {"Scaling": efficiency(runs), "A step": phases(runs), "Learning": losses(runs)}
    for title, drawn in charts.items():
        plots = [Plot(figure, commands) for figure in drawn[:MOST_PLOTS]]
        blocks += [Heading(title), *plots] if plots else []
        if len(drawn) > MOST_PLOTS:
            rest = len(drawn) - MOST_PLOTS
            name = drawn[MOST_PLOTS].name.partition("-")[0]
            by_command = (
                f"{rest} more, of other settings or data sets: `{typed('-m analysis')} figure"
                f" {name}`"
            )
            blocks.append(
                Paragraph(
                    Message("report.more-figures", by_command, figure=name, figures=rest),
                    quiet=True,
                )
            )
    return Section("settings", "Efficiency", QUESTION_OF_EFFICIENCY, blocks)


# ---- The papers' tables, figures and claims

QUESTION_OF_PAPERS = Message(
    "report.question-of-papers",
    "Do the papers' tables and figures look alike here, and which of their findings hold?",
)


def of_papers(
    runs: Sequence[Run],
    panels: Sequence[tuple[Experiment, list[Panel]]],
    verdicts: Sequence[ClaimVerdict],
) -> Section:
    """Of each experiment with runs its first panel, the claims, then the commands of what no run
    measured; under one line where the runs are of no experiment.
    """
    blocks = []
    for experiment, filled in panels:
        if filled:
            blocks.extend(_experiment(experiment, filled))
    tested = [verdict for verdict in verdicts if verdict.figures]
    untested = [verdict for verdict in verdicts if not verdict.figures]
    blocks += [Heading("Claims", sentences(render.summary(verdicts)))]
    blocks += [_claims("claims", tested)] if tested else []
    if untested:
        tests_none = f"{count(len(untested), 'claim')} that no run here tests"
        title = Message("report.untested-claims", tests_none, claims=len(untested))
        blocks.append(Fold(title, [_claims("untested", untested)]))
    missing = [experiment for experiment, filled in panels if not filled]
    if missing:
        measures_none = f"{count(len(missing), 'experiment')} that no run here measures"
        title = Message(
            "report.unmeasured-experiments",
            measures_none,
            experiments=[one.name for one in missing],
        )
        to_do = [(f"{one.title.rstrip('.')}. {_in_full(one)}.", [one.command]) for one in missing]
        blocks.append(Fold(title, [Facts(to_do, code=True)]))
    sizes = table.of_datasets(runs)
    blocks.append(Fold(sizes.title, [PlainTable("", sizes.headings, sizes.texts, sizes.notes)]))
    if rerun_commands.experiments_of(runs):
        line = ""
    else:
        measured = f"{len(panels) - len(missing)} of {count(len(panels), 'experiment')} measured"
        line = f"{measured}, {len(tested)} of {count(len(verdicts), 'claim')} tested"
    return Section("papers", "Compared with the papers", QUESTION_OF_PAPERS, blocks, line)


def _in_full(experiment: Experiment) -> Message:
    takes = printed.in_full(experiment.name)
    return Message("report.in-full", f"In full: {takes}", experiment=experiment.name, takes=takes)


def _experiment(experiment: Experiment, filled: Sequence[Panel]) -> list[Block]:
    def is_full(panel: Panel) -> bool:  # on GPUs and at full scale
        return not panel.missing and all(
            run["device"] != "cpu" and run["scale"] == "full" for run in panel.runs
        )

    panel = filled[0]
    blocks: list[Block] = [Heading(experiment.name, experiment.title)]
    to_do = [] if any(map(is_full, filled)) else [_in_full(experiment)]
    to_do += captions.missing_cells(panel.missing)
    if to_do:
        blocks.append(Facts([(f"{'. '.join(to_do)}.", [experiment.command])], code=True))
    blocks += _panel(experiment, panel)
    if len(filled) > 1:
        rest = len(filled) - 1
        elsewhere = (
            f"Also measured in other settings, on other machines or at other commits ({rest})."
        )
        others = Message(
            "report.measured-otherwise", elsewhere, experiment=experiment.name, panels=rest
        )
        command = f"{typed('-m analysis')} table {experiment.name} --all"
        blocks.append(Facts([(others, [command])], code=True))
    return blocks


def _panel(experiment: Experiment, panel: Panel) -> list[Block]:
    commands = rerun_commands.of_sweeps(panel.runs) or [experiment.command]
    blocks: list[Block] = [
        Plot(figure, commands) for figure in draw.experiment_figures(experiment, [panel])
    ]
    if not blocks and experiment.view.form == "curves":
        no_curve = Message(
            "report.one-epoch", "One epoch makes no curve: its figures are in the table."
        )
        blocks.append(Paragraph(no_curve, quiet=True))
    (own,) = table.tables(experiment, [panel])
    return [*blocks, PlainTable(own.title, own.headings, own.texts, own.notes, commands)]


def _claims(name: str, verdicts: Sequence[ClaimVerdict]) -> SortableTable:
    """Each claim with its verdict and what was measured, by section of the papers."""
    rows = []
    for title, part in render.sections(verdicts):
        rows.extend((title, verdict) for verdict in part)
    details = [{"section": [title], **render.fields(verdict)} for title, verdict in rows]
    columns = {
        "claim": [verdict.claim.says for _, verdict in rows],
        "verdict": [render.marked(verdict) for _, verdict in rows],
        "measured": ["; ".join(render.listed(verdict)) for _, verdict in rows],
        "printed": [verdict.claim.printed for _, verdict in rows],
    }
    opened = {key: ["; ".join(each[key]) for each in details] for key in details[0]}
    shown, hidden = (
        [Column(key, key, own) for key, own in both.items() if any(own)]
        for both in (columns, opened)
    )
    commands = Column(
        "measured by", "measured by", [verdict.command for _, verdict in rows], code=True
    )
    opened_too = hidden if commands.is_empty else [*hidden, commands]
    marks = render.meanings([verdict for _, verdict in rows])
    return SortableTable(name, "claims", shown, opened_too, page_rows=100, marks=marks)


# ---- What the runs were measured on, and the marks that they carry

MOST_VALUES = 8  # of a fact
QUESTION_OF_MACHINE = Message(
    "report.question-of-machine",
    "What were the figures measured on? They hold for this hardware, these versions and this code.",
)
PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "torchtune",
    "torchao",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu13",
)


def warnings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Each limit of the runs by its sign, with how many have it and what it says."""
    lines = []
    for limit in limits.in_order(grouping.limits_of(runs)):
        limited = sum(limit.code in [one.code for one in run.limits] for run in runs)
        sign = limits.sign(limit.code)
        text = f"{_share(limited, len(runs))}: {limit.says}"
        lines.append(
            (
                sign,
                Message(
                    "report.mark", text, sign=sign, runs=limited, of=len(runs), limit=limit.code
                ),
            )
        )
    return lines


def _share(marked: int, runs: int) -> str:
    if marked < runs:
        return f"{marked:,} of {runs:,} runs"
    return "The run" if runs == 1 else f"All {runs:,} runs"


def of_machine(runs: Sequence[DetailedRun]) -> Section:
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _about_machine(run):
            if value is not None:
                rows.setdefault(name, {})[clean(str(value))] = None
    facts = []
    for name, values in rows.items():
        shown = list(values)[:MOST_VALUES]
        if len(values) > MOST_VALUES:
            shown.append(f"and {len(values) - MOST_VALUES} more")
        facts.append((name, shown))
    return Section("machine", "Machine and code", QUESTION_OF_MACHINE, [Facts(facts)])


def _about_machine(run: DetailedRun) -> Iterator[tuple[str, str | None]]:
    environment = run.surroundings
    cpu = run.surroundings.cpu or Cpu()
    gpus = environment.gpus
    packages = environment.packages
    yield "Computed on", "CPU ranks" if run["device"] == "cpu" else None
    if gpus:
        sizes = sorted({in_bytes(gpu.memory_bytes) for gpu in gpus if gpu.memory_bytes is not None})
        names = sorted({str(gpu.name) for gpu in gpus})
        yield (
            "GPUs",
            f"{len(gpus)} x {', '.join(names)}" + (f", {', '.join(sizes)} each" if sizes else ""),
        )
    yield from (("Driver", gpu.driver) for gpu in gpus)
    known = (environment.topology or {}).get("links")
    links = [
        link.get("link")
        for link in (known if isinstance(known, list) else ())
        if isinstance(link, dict)
    ]
    # as nvidia-smi names them: "6 pairs by NV18"
    counts = Counter(str(link or "an unknown path") for link in links)
    yield (
        "Links",
        ", ".join(f"{count(pairs, 'pair')} by {link}" for link, pairs in counts.items()) or None,
    )
    yield "CPU", f"{cpu.model}, {cpu.cores_online or '?'} cores" if cpu.model is not None else None
    yield "Memory", in_bytes(cpu.memory_bytes) if cpu.memory_bytes is not None else None
    yield "Host", run["hosts"]
    yield "Commit", grouping.commit(run)
    versions = [f"{name} {packages[name]}" for name in PACKAGES if packages.get(name) is not None]
    yield (
        "Versions",
        (", ".join([*versions, f"Python {environment.python or '?'}"]) if versions else None),
    )
