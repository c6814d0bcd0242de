"""The papers' tables and figures as these runs have them, and the papers' claims with their verdicts."""

from collections.abc import Sequence

from analysis.claims import Verdict, render
from analysis.claims.verdicts import labels
from analysis.commands import table
from analysis.figures import draw
from analysis.papers.experiments import Experiment, Panel
from analysis.report import rerun_commands
from analysis.report.blocks import Block, ClaimRow, ClaimTable, Fold, Heading, Paragraph, PlainTable, Plot, Section
from analysis.report.overview_section import sentences

TONES = {"holds": "good", "does not hold": "bad"}


def section(panels: Sequence[tuple[Experiment, list[Panel]]]) -> Section:
    """The first panel of each experiment in sight, its other panels folded away.

    Args:
        panels: every experiment with the panels that runs fill.
    """
    blocks: list[Block] = []
    for experiment, filled in panels:
        first, *others = [_panel(experiment, panel, number) for number, panel in enumerate(filled, 1)] or [[]]
        if not first and not any(others):
            continue
        blocks += [Heading(experiment.name, experiment.title), *first]
        folded = [block for other in others for block in other]
        if folded:
            title = "Also measured in another setting, machine or commit"
            if len(others) > 1:
                title = f"{len(others)} more: other settings, machines or commits"
            blocks.append(Fold(title, folded))
    question = "Do the papers' tables and figures look alike here?"
    return Section("papers", "Beside the papers", question, blocks)


def _panel(experiment: Experiment, panel: Panel, number: int) -> list[Block]:
    """The figure and the table of an experiment's panel."""
    commands = rerun_commands.of_sweeps(panel.runs) or [experiment.command]
    figures = draw.experiment_figures(experiment, [panel])
    blocks: list[Block] = [
        Plot.of(figure, commands, f"{figure.name}_{number}" if number > 1 else figure.name) for figure in figures
    ]
    for panel_table in table.tables(experiment, [panel]):
        texts = panel_table.texts
        blocks.append(PlainTable(panel_table.title, panel_table.headings, texts, panel_table.notes, commands))
    return blocks


def claims_section(verdicts: Sequence[Verdict]) -> Section:
    """The claims that these runs test, by section of the papers, and the others folded away."""
    tested = [verdict for verdict in verdicts if verdict.figures]
    untested = [verdict for verdict in verdicts if not verdict.figures]
    blocks: list[Block] = [Paragraph(sentences(render.summary(verdicts)), quiet=True), *_claim_tables(tested)]
    if untested:
        blocks.append(Fold(f"{len(untested)} claims that no run here tests", _claim_tables(untested)))
    return Section("claims", "Claims", "Which of the papers' findings hold on this machine?", blocks)


def _claim_tables(verdicts: Sequence[Verdict]) -> list[ClaimTable]:
    return [ClaimTable(title, list(map(_claim_row, part))) for title, part in render.sections(verdicts)]


def _claim_row(verdict: Verdict) -> ClaimRow:
    """A verdict, without a colour where the runs are not of GPUs as the papers', so that it says nothing of theirs."""
    claim, figures = verdict.claim, verdict.figures
    tone = "none" if not figures else TONES.get(verdict.verdict, "open") if verdict.decides else "open"
    names = labels(figures)
    if figures and figures[0].where and len({figure.what for figure in figures}) == 1:
        names = [f"{figures[0].what}, {name}" for name in names]
    labelled = list(zip(names, figures, strict=True))
    extremes = render.extremes(labelled) if len(labelled) > render.MAX_LISTED else []
    return ClaimRow(
        claim.says,
        verdict.verdict,
        tone,
        [(name, figure.text) for name, figure in labelled],
        render.measured(verdict) if figures else verdict.why,
        claim.printed or "-",
        [f"{paper}, {place}" for paper, place in claim.places.items()],
        claim.note,
        verdict.marks,
        [(name, figure.text) for name, figure in extremes],
        verdict.command,
    )
