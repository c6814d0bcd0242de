"""The rows of figures of profiles, and what is said below all of these."""

from collections.abc import Callable, Mapping, Sequence

from analysis.experiments import Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import MEASURED, Row
from analysis.runs import grouping, profile_metrics
from multicard.observe.profiles.profile_data import Profile
from multicard.records.text_table import clean

Values = Mapping[tuple[str, str], float]  # by group and metric


def metric_rows(panel: Panel, measure: str, values_of: Callable[[Profile], Values]) -> list[Row]:
    """A row for each cell and metric, the mean over the cell's runs that ended ok with a profile."""
    rows = []
    for cell, runs in panel.cells.items():
        place = {"measure": measure, **{key: grouping.typed(value) for key, value in cell}}
        values: dict[tuple[str, str], list[float]] = {}
        for profile in map(profile_metrics.profile, runs):
            for metric, value in values_of(profile).items() if profile is not None else ():
                values.setdefault(metric, []).append(value)
        for (group, metric), of_runs in values.items():
            labels = {"group": group, "metric": clean(metric), "status": "ok", "of": MEASURED}
            rows.append(place | labels | chart_data.mean(of_runs))
    return rows


def means_note(panel: Panel, rows: Sequence[Row]) -> list[str]:
    """Lines on how many runs a bar is of, and on what was profiled."""
    counts = sorted({row["n"] for row in rows if row["of"] == MEASURED and row["status"] == "ok"})
    ended = [run for run in panel.runs if run["status"] == "ok"]
    profiled = f"Profiled: {captions.listed(list(profile_metrics.windows(ended)))}"
    if not counts:
        return []
    if counts == [1]:
        return [f"Single runs. {profiled}"]
    spread = f" with their {chart_data.T_INTERVAL}" * any(row.get("low") is not None for row in rows)
    return [f"Means of {chart_data.count_range(counts)} runs{spread}. {profiled}"]


def absent_notes(panel: Panel) -> list[str]:
    """What the profiles of these ranks cannot have, and what their profiler leaves out."""
    notes = []
    if all(run["cpu_ranks"] for run in panel.runs):
        notes.append(
            "CPU ranks make no CUDA calls: API calls, copies, NCCL and how busy a GPU is are seen on GPUs alone"
        )
    profiles = [profile for run in panel.runs if (profile := profile_metrics.profile(run)) is not None]
    dropped = sorted({name for profile in profiles for name in profile.not_recorded})
    if dropped:
        sources = captions.listed(sorted({profile.source for profile in profiles}))
        notes.append(f"Not recorded by {sources}: {', '.join(dropped)}")
    return notes
