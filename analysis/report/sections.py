"""The sections of a report, except the section of the runs: each turns some runs into blocks."""

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
from ..figures.effect_charts import TIME, what_matters
from ..figures.setting_charts import efficiency, losses, phases
from ..figures.trade_off_chart import trade_off_of
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

# ---- For each workload: what to run, how sure that is, what limits it and what to try next

MOST_WORKS = 6  # The most workloads that have a recommendation on the page.


def answers_section(answers: Sequence[Answer], runs: Sequence[Run]) -> Section:
    """Show the recommendation for the newest workload, and fold the others away.

    Without a recommendation, say why there is none.
    """
    recommendations = [
        _recommendation(answer, place) for place, answer in enumerate(answers[:MOST_WORKS])
    ]
    blocks: list[Block] = [*recommendations[:1]] or [Paragraph(_nothing_recommended(runs))]
    if len(answers) > 1:
        other_blocks: list[Block] = [*recommendations[1:]]
        unshown = len(answers) - len(recommendations)
        if unshown > 0:
            other_blocks.append(Paragraph(more_workloads(unshown), quiet=True))
        blocks.append(Fold(count(len(answers) - 1, "other workload"), other_blocks))
    return Section("answers", "What to run", "", blocks)


def more_workloads(unshown: int) -> Message:
    """Say which command shows the workloads that have no answer here."""
    text = f"{count(unshown, 'more workload')}: `{typed('-m analysis')} best`"
    return Message("report.more-workloads", text, workloads=unshown)


def _nothing_recommended(runs: Sequence[Run]) -> Message:
    """Say why nothing is recommended."""
    reason = _why_unranked(runs)
    if any(run["status"] == "ok" for run in runs):
        return Message(
            "report.no-recommendation", f"Nothing can be recommended: {reason}.", reason=reason
        )
    text = f"Nothing can be recommended: {reason}; the causes are below."
    return Message("report.no-recommendation-but-causes", text, reason=reason)


def _why_unranked(runs: Sequence[Run]) -> str:
    """Return the reason why settings cannot be ranked."""
    try:
        rankings(runs)
    except ValueError as error:
        return str(error)
    return Message("report.no-times", "no setting has a time")


def _recommendation(answer: Answer, place: int) -> Recommendation:
    """Return a workload's recommendation with its chart."""
    chart = trade_off_of(answer.ranking, numbered("trade_off", place))
    plots = [Plot(chart)] if chart is not None else []
    command = _command(answer)
    facts = [*_facts(answer)]
    if command and (answer.failings or not answer.is_recommended):
        # A command in large letters would recommend what the sentence does not.
        facts.insert(0, ("To run this setting again", "", command))
        command = ""
    return Recommendation(answer.work, answer.statement, answer.marks, command, facts, plots)


def _command(answer: Answer) -> str:
    """Return the command that runs the setting, or its keys if no command is known."""
    return answer.command or answer.setting


def _facts(answer: Answer) -> Iterator[tuple[str, str, str]]:
    """Yield facts about a recommendation: a name, a sentence and a command, or an empty string."""
    yield "What it takes", f"{answer.takes}.", ""
    if answer.others:
        yield "Other settings", " ".join(answer.others), ""
    if answer.training is not None:
        does = training_command.description(answer.best.runs[0]["kind"])
        yield "The model", capital(f"{does}:"), answer.training.command or ""
    advice_by_name = {
        "What limits it": answer.limit,
        "What to try next": answer.next,
        "On GPUs": answer.elsewhere,
    }
    yield from (
        (name, advice.sentence, advice.command or "")
        for name, advice in advice_by_name.items()
        if advice is not None
    )


# ---- What each setting gains, alone and together with others

MOST_EFFECTS = 4  # The most plots of effects: time, and what was learned, of two workloads.
MOST_PLOTS = 2  # The most plots of a subsection.
MOST_COMMANDS = 20  # The most commands that stand below a figure.
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


def effects_section(rankings: Sequence[Ranking]) -> Section:
    """Show what each setting gains.

    Each workload has a chart of its time and a table. It also has a chart of what it learned, if a
    setting changes that.
    """
    blocks: list[Block] = []
    workload_effects = what_matters(rankings)
    for index, effects in enumerate(workload_effects[:MOST_EFFECTS]):
        if effects.measure in NO_GAINS and not any(
            axis_effects[0].gain.excludes_zero for axis_effects in effects.by_axis
        ):
            blocks.append(Paragraph(NO_GAINS[effects.measure], quiet=True))
            continue
        rows = []
        for axis_effects in effects.by_axis:
            rows.extend(
                [effects.change(effect), effects.gain(effect), str(effect.blocks)]
                for effect in axis_effects
            )
        gains = PlainTable("", ["changed", "gain", "pairs of settings"], rows, wraps=True)
        blocks.append(Plot(effects.figure(numbered("effects", index))))
        for found_together in effects.interactions:
            text = f"It depends: {found_together}."
            blocks.append(Paragraph(Message("report.gain-depends", text, reason=found_together)))
        blocks += [Paragraph(f"{note}.") for note in effects.noise_notes]
        if effects.measure == TIME and effects.doubts:
            text = f"Other causes than the settings: {'; '.join(effects.doubts)}."
            blocks.append(Paragraph(Message("report.effects-doubted", text, doubts=effects.doubts)))
        blocks.append(Fold("Every value as a table", [gains]))
    if len(workload_effects) > MOST_EFFECTS:
        text = f"More, of other workloads: `{typed('-m analysis')} figure effects`"
        blocks.append(Paragraph(Message("report.more-effects", text), quiet=True))
    return Section("matters", "What matters", QUESTION_OF_EFFECTS, blocks)


def efficiency_section(runs: Sequence[DetailedRun]) -> Section:
    """Show scaling, the phases of a step, and learning curves."""
    commands = rerun_commands.of_sweeps(runs)[:MOST_COMMANDS]
    blocks: list[Block] = []
    charts = {"Scaling": efficiency(runs), "A step": phases(runs), "Learning": losses(runs)}
    for title, figures in charts.items():
        plots = [Plot(figure, commands) for figure in figures[:MOST_PLOTS]]
        blocks += [Heading(title), *plots] if plots else []
        if len(figures) > MOST_PLOTS:
            unshown = len(figures) - MOST_PLOTS
            name = figures[MOST_PLOTS].name.partition("-")[0]
            text = (
                f"{unshown} more, of other settings or data sets: `{typed('-m analysis')} figure"
                f" {name}`"
            )
            blocks.append(
                Paragraph(
                    Message("report.more-figures", text, figure=name, figures=unshown),
                    quiet=True,
                )
            )
    return Section("settings", "Efficiency", QUESTION_OF_EFFICIENCY, blocks)


# ---- The papers' tables, figures and claims

QUESTION_OF_PAPERS = Message(
    "report.question-of-papers",
    "Do the papers' tables and figures look alike here, and which of their findings hold?",
)


def papers_section(
    runs: Sequence[Run],
    panels: Sequence[tuple[Experiment, list[Panel]]],
    verdicts: Sequence[ClaimVerdict],
) -> Section:
    """Show the first panel of each experiment with runs, the claims, and commands for the rest.

    If the runs belong to no experiment, the section is folded under one line. If the papers measure
    no such runs, it is empty.
    """
    kinds = {run["kind"] for run in runs}
    if kinds and kinds.isdisjoint(experiment.kind for experiment, _ in panels):
        return Section("papers", "Compared with the papers", QUESTION_OF_PAPERS, [])
    blocks = []
    for experiment, measured_panels in panels:
        if measured_panels:
            blocks.extend(_experiment(experiment, measured_panels))
    tested = [verdict for verdict in verdicts if verdict.figures]
    untested = [verdict for verdict in verdicts if not verdict.figures]
    blocks += [Heading("Claims", sentences(render.summary(verdicts)))]
    blocks += [_claims("claims", tested)] if tested else []
    if untested:
        text = f"{count(len(untested), 'claim')} that no run here tests"
        title = Message("report.untested-claims", text, claims=len(untested))
        blocks.append(Fold(title, [_claims("untested", untested)]))
    unmeasured = [experiment for experiment, measured_panels in panels if not measured_panels]
    if unmeasured:
        text = f"{count(len(unmeasured), 'experiment')} that no run here measures"
        title = Message(
            "report.unmeasured-experiments",
            text,
            experiments=[experiment.name for experiment in unmeasured],
        )
        to_do = [
            (f"{experiment.title.rstrip('.')}. {_full_run_text(experiment)}.", [experiment.command])
            for experiment in unmeasured
        ]
        blocks.append(Fold(title, [Facts(to_do, code=True)]))
    sizes = table.of_datasets(runs)
    blocks.append(Fold(sizes.title, [PlainTable("", sizes.headings, sizes.texts, sizes.notes)]))
    if rerun_commands.experiments_of(runs):
        line = ""
    else:
        measured_text = (
            f"{len(panels) - len(unmeasured)} of {count(len(panels), 'experiment')} measured"
        )
        line = f"{measured_text}, {len(tested)} of {count(len(verdicts), 'claim')} tested"
    return Section("papers", "Compared with the papers", QUESTION_OF_PAPERS, blocks, line)


def _full_run_text(experiment: Experiment) -> Message:
    """Say what a full run of the experiment takes."""
    takes = printed.in_full(experiment.name)
    return Message("report.in-full", f"In full: {takes}", experiment=experiment.name, takes=takes)


def _experiment(experiment: Experiment, measured_panels: Sequence[Panel]) -> list[Block]:
    """Show an experiment's first panel, and how to measure the cells that it lacks."""

    def is_full(panel: Panel) -> bool:
        """Return True if all cells were measured, on GPUs and at full scale."""
        return not panel.missing and all(
            run["device"] != "cpu" and run["scale"] == "full" for run in panel.runs
        )

    panel = measured_panels[0]
    blocks: list[Block] = [Heading(experiment.name, experiment.title)]
    to_do = [] if any(map(is_full, measured_panels)) else [_full_run_text(experiment)]
    to_do += captions.missing_cells(panel.missing)
    if to_do:
        blocks.append(Facts([(f"{'. '.join(to_do)}.", [experiment.command])], code=True))
    blocks += _panel(experiment, panel)
    if len(measured_panels) > 1:
        unshown = len(measured_panels) - 1
        text = (
            f"Also measured in other settings, on other machines or at other commits ({unshown})."
        )
        other_settings = Message(
            "report.measured-otherwise", text, experiment=experiment.name, panels=unshown
        )
        command = f"{typed('-m analysis')} table {experiment.name} --all"
        blocks.append(Facts([(other_settings, [command])], code=True))
    return blocks


def _panel(experiment: Experiment, panel: Panel) -> list[Block]:
    """Show a panel's figures and its table."""
    commands = rerun_commands.of_sweeps(panel.runs) or [experiment.command]
    blocks: list[Block] = [
        Plot(figure, commands) for figure in draw.experiment_figures(experiment, [panel])
    ]
    if not blocks and experiment.view.form == "curves":
        no_curve = Message(
            "report.one-epoch", "One epoch makes no curve: its figures are in the table."
        )
        blocks.append(Paragraph(no_curve, quiet=True))
    (panel_table,) = table.tables(experiment, [panel])
    return [
        *blocks,
        PlainTable(
            panel_table.title, panel_table.headings, panel_table.texts, panel_table.notes, commands
        ),
    ]


def _claims(name: str, verdicts: Sequence[ClaimVerdict]) -> SortableTable:
    """List each claim with its verdict and what was measured, by section of the papers."""
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
    opened_texts = {
        key: ["; ".join(details_of_claim[key]) for details_of_claim in details]
        for key in details[0]
    }
    shown_columns, hidden_columns = (
        [Column(key, key, texts) for key, texts in columns_by_name.items() if any(texts)]
        for columns_by_name in (columns, opened_texts)
    )
    commands = Column(
        "measured by", "measured by", [verdict.command for _, verdict in rows], code=True
    )
    opened_columns = hidden_columns if commands.is_empty else [*hidden_columns, commands]
    marks = render.meanings([verdict for _, verdict in rows])
    return SortableTable(name, "claims", shown_columns, opened_columns, page_rows=100, marks=marks)


# ---- The machine that the runs were measured on, and the marks of the runs

MOST_VALUES = 8  # The most values that a fact lists.
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
    """Say for each limit how many runs it has and what it means, with its sign."""
    lines = []
    for limit in limits.in_order(grouping.limits_of(runs)):
        limited = sum(limit.code in [run_limit.code for run_limit in run.limits] for run in runs)
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
    """Say how many of the runs are marked."""
    if marked < runs:
        return f"{marked:,} of {runs:,} runs"
    return "The run" if runs == 1 else f"All {runs:,} runs"


def machine_section(runs: Sequence[DetailedRun]) -> Section:
    """List the machines and versions that the runs were measured with."""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _about_machine(run):
            if value is not None:
                rows.setdefault(name, {})[clean(str(value))] = None
    facts = []
    for name, values in rows.items():
        shown_values = list(values)[:MOST_VALUES]
        if len(values) > MOST_VALUES:
            shown_values.append(f"and {len(values) - MOST_VALUES} more")
        facts.append((name, shown_values))
    return Section("machine", "Machine and code", QUESTION_OF_MACHINE, [Facts(facts)])


def _about_machine(run: DetailedRun) -> Iterator[tuple[str, str | None]]:
    """Yield facts about the machine and the code of a run; None if a fact is unknown."""
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
    topology_links = (environment.topology or {}).get("links")
    links = [
        link.get("link")
        for link in (topology_links if isinstance(topology_links, list) else ())
        if isinstance(link, dict)
    ]
    # The names are from nvidia-smi, as in "6 pairs by NV18".
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
