"""A report for each experiment of the papers: its question, what is printed, and its runs, from the experiment's view.

wandb-workspaces has no reference lines: what the papers print stands as a table above the panels.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from wandb_workspaces.reports.v2 import interface as wr
from wandb_workspaces.reports.v2.interface import PanelTypes as Panel

from analysis.dashboard import lookup, panels
from analysis.dashboard.workspace import MOST_GPUS, PROBE
from analysis.experiments import DEFINING, EFFICIENCY, Experiment
from analysis.figures import captions
from multicard.tracking import keys
from papers import printed
from papers.printed import PrintedFigure

OF_PROFILES = ("calls", "shares", "copies")  # forms that show what a profiler saw
MOST_LETTERS = 128  # of a report's title


def build(entity: str, project: str, experiment: Experiment) -> wr.Report:
    """The report of an experiment, over the runs of a project."""
    own = [
        wr.MarkdownBlock(text=_about(experiment)),
        wr.H2(text="What the papers print"),
        wr.MarkdownBlock(text=_printed(experiment)),
        wr.H2(text="Your runs"),
        wr.MarkdownBlock(text=_note(experiment)),
        *_grids(experiment),
        wr.H2(text="Your shrunk runs (scale=smoke)", collapsed_blocks=[_shrunk_grid(experiment)]),
    ]
    return wr.Report(
        entity=entity,
        project=project,
        title=experiment.title.rstrip(".")[:MOST_LETTERS],
        description=f"experiment={experiment.name}, by python -m analysis dashboard",
        blocks=own,
        width="fluid",
    )


def _about(experiment: Experiment) -> str:
    paragraphs = [experiment.about] if experiment.about else []
    command = f"```\n{experiment.command}\n```"
    return "\n\n".join([*paragraphs, "This measures it:", command])


def _printed(experiment: Experiment) -> str:
    """The printed figures as a table, a row for each cell; below it what to know of them."""
    figures = printed.figures(experiment.name)
    notes = [f"- {note}" for note in printed.footnotes(experiment.name)]
    others = [line for line in printed.elsewhere(experiment.name, figures) if line.startswith("not the paper")]
    if not figures:
        return "\n".join(
            ["The papers plot this, and print no figures of it.", "", *notes, *(f"- {line}" for line in others)]
        )
    columns = list(dict.fromkeys((figure.name, figure.unit) for figure in figures))
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for figure in figures:
        rows.setdefault(_cell(figure.cell), {})[figure.name, figure.unit] = _value(figure)
    headings = ["setting", *(_heading(*column) for column in columns)]
    lines = [_row(headings), _row(["---", *["---:"] * len(columns)])]
    lines += [_row([cell, *(values.get(column, "") for column in columns)]) for cell, values in rows.items()]
    sources = "; ".join(dict.fromkeys(figure.source for figure in figures))
    return "\n".join(
        [f"{sources}, on {figures[0].hardware}.", "", *lines, "", *notes, *(f"- {line}" for line in others)]
    )


def _heading(name: str, unit: str) -> str:
    """A printed measure with its unit, where its words do not have it."""
    shown = "%" if unit == "share" else unit
    return f"{name} ({shown})" if shown and shown not in name.split() else name


def _cell(cell: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={str(value).lower()}" for key, value in cell.items()) or "all"


def _value(figure: PrintedFigure) -> str:
    """A printed number or range; a share in percent."""
    factor = 100 if figure.unit == "share" else 1
    return " to ".join(dict.fromkeys(f"{factor * end:,.10g}" for end in (figure.low, figure.high)))


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _note(experiment: Experiment) -> str:
    """Which runs are shown, and what is not."""
    settings = as_measured(experiment).items()
    kept = [f"`{_cell({key: value})}`" for key, value in settings if lookup.config_key(key, experiment.kind)]
    runs = f"Runs that ended ok, with {', '.join(kept)}. Bars are means, with the range of repeated runs."
    efficiency = (
        " Parallel efficiency compares two runs, which a panel cannot: "
        f"`python -m analysis figure {experiment.name}` draws it, and intervals."
    )
    return runs + efficiency * (EFFICIENCY in experiment.view.measures)


def _grids(experiment: Experiment) -> Iterator[wr.H3 | wr.PanelGrid]:
    """A grid of panels for each value of what is neither along x nor a run set."""
    axis = run_set_axis(experiment)
    rest = [
        column
        for column in experiment.series
        if column not in (axis, experiment.view.x) and not experiment.follows(column, axis)
    ]
    for values in product(*(experiment.swept[column] for column in rest)):
        cell = dict(zip(rest, values, strict=True))
        settings = as_measured(experiment) | cell
        run_sets = [
            _run_set(experiment, _cell({axis: value}), settings | {axis: value})
            for value in experiment.swept[axis]
            if experiment.has((*cell.items(), (axis, value)))
        ]
        if run_sets:
            yield from [wr.H3(text=_cell(cell))] if cell else []
            yield _grid(f"{experiment.name}/{_cell(cell)}", experiment, run_sets)


def _shrunk_grid(experiment: Experiment) -> wr.PanelGrid:
    """The same panels over all runs with scale=smoke that have the options which define the experiment."""
    defining = {group: option for group, option in experiment.chosen.items() if group in DEFINING}
    run_set = _run_set(experiment, "scale=smoke", {**defining, "scale": "smoke"})
    axis = lookup.config_key(run_set_axis(experiment), experiment.kind)
    run_set.groupby = [f"config.{axis}"] if axis is not None else []
    return _grid(f"{experiment.name}/smoke", experiment, [run_set])


def run_set_axis(experiment: Experiment) -> str:
    """The swept column with a run set for each value: the view's subject, or one that is finer than it, as the data set
    of a template; where the subject is along x, the first of the others."""
    view, series = experiment.view, experiment.series
    if view.form == "curves" or not series:
        return view.subject
    axis = view.subject if view.subject in series else series[0]
    others = [column for column in series if column != axis]
    finer = (name for name in others if experiment.follows(axis, name) and not experiment.follows(name, axis))
    return next(finer, axis)


def as_measured(experiment: Experiment) -> dict[str, Any]:
    """The settings that the experiment sets for all cells at full scale."""
    return {"scale": "full", **experiment.chosen, **experiment.fixed}


def _run_set(experiment: Experiment, name: str, settings: Mapping[str, Any]) -> wr.Runset:
    """The runs that ended ok with these settings, as far as W&B has their keys."""
    run_set = wr.Runset(name=name, filters=" and ".join(_filters(experiment, settings)))
    run_set._id = panels.identifier(f"{experiment.name}/{name}/{run_set.filters}")
    return run_set


def _filters(experiment: Experiment, settings: Mapping[str, Any]) -> Iterator[str]:
    yield f"Metric('JobType') == '{experiment.kind}'"
    yield "SummaryMetric('status') == 'ok'"
    yield f"Tags() not in ['{PROBE}']"
    for column, value in settings.items():
        key = lookup.config_key(column, experiment.kind)
        if key is not None:
            yield f"Config('{key}') == {value!r}"
    if experiment.view.form in OF_PROFILES:  # a training that is traced from its start takes longer than others
        window = experiment.fixed.get("profile.window", "after")
        yield f"Config('{lookup.of_configuration('profile.window')}') == '{window}'"
    else:
        yield f"Config('{lookup.of_configuration('profile.name')}') == 'none'"


def _grid(place: str, experiment: Experiment, run_sets: Sequence[wr.Runset]) -> wr.PanelGrid:
    shown = panels.arranged(panels.identified(place, list(_panels(experiment))))
    return wr.PanelGrid(runsets=list(run_sets), panels=shown)


def _panels(experiment: Experiment) -> Iterator[Panel]:
    """The view's measures along its x; curves over epochs, and the metrics of profiles, where the view shows them."""
    view, kind = experiment.view, experiment.kind
    x = lookup.config_key(view.x, kind)
    if view.form == "curves":
        yield panels.over_epochs("Training loss and test loss by epoch", ["train_loss", "test_loss"])
        yield panels.over_epochs("Test accuracy by epoch (share)", ["test_accuracy"])
    for column in view.measures:
        if column == EFFICIENCY:
            continue
        yield panels.measure(column, [kind], by=x)
        found = lookup.summary_keys(column, [kind])
        if x is not None and view.form == "lines" and captions.is_numeric(experiment.swept[view.x]):
            titled = f"{lookup.title(column, kind)} against {lookup.setting(view.x)}"
            yield from (panels.points(titled, wr.Config(x), key) for key in found)
    if view.timelines:
        yield panels.over_time("GPU utilisation (%)", lookup.of_gpus("utilisation", MOST_GPUS))
    if view.form in OF_PROFILES:
        yield panels.table(keys.PROFILE_TABLE)
