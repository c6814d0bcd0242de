"""The papers' tables and figures as these runs have them, their claims with verdicts, and what is missing."""

from collections.abc import Sequence

from analysis import rerun_commands
from analysis.claims import Verdict, render
from analysis.commands import table
from analysis.experiments import Experiment, Panel
from analysis.figures import captions, draw
from analysis.report.blocks import Block, Facts, Fold, Grid, Heading, Paragraph, PlainTable, Plot, Section, sentences
from analysis.runs.load import Run
from analysis.table_columns import Column
from multicard.config.job import count
from multicard.messages import typed
from papers import printed


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
