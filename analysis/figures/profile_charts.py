"""Figures of profiles: the papers' metrics in seconds, percent and bytes, as bars with their figures.

Seconds and bytes are of all ranks and the whole window where it is the papers', the run from its start. Of a few steps
they are of a step and rank. CPU ranks make no CUDA calls: their phases are drawn, and a note says what they lack.
"""

from collections.abc import Sequence
from typing import Literal

from analysis.experiments import Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import Row
from analysis.figures.charts import PART, drawn
from analysis.figures.experiment_charts import Layout, unended_note
from analysis.figures.vega import Figure
from analysis.runs import profile_metrics
from analysis.runs.load import Run
from multicard.observe.profiles.metrics import Profile
from multicard.records.text_table import clean
from papers.printed import METRIC

SHARE, WINDOW, STEP, COPIED, COPIED_IN_A_STEP = "share", "window_s", "step_s", "copied", "copied_in_a_step"  # measures
TITLES = {
    SHARE: "Share of the profiled time ({})",
    WINDOW: "Time in the window, all ranks together ({})",
    STEP: "Time of a step and rank ({})",
    COPIED: "In the window, all ranks together ({})",
    COPIED_IN_A_STEP: "In a step, all ranks together ({})",
}
# What of a metric's rows a measure sums
SUMMED: dict[str, Literal["total_s", "share", "bytes"]]
SUMMED = {SHARE: "share", WINDOW: "total_s", STEP: "total_s", COPIED: "bytes", COPIED_IN_A_STEP: "bytes"}
OVERLAP = "Metrics overlap: host and devices work at once, and NCCL's kernels wait for other ranks"
NOT_NCCL = "Copies that the driver makes; what NCCL moves between GPUs is no copy"
NO_CALLS = "CPU ranks make no CUDA calls: API calls, copies, NCCL and how busy a GPU is are seen on GPUs alone"


def metrics(panel: Panel, name: str) -> Figure | None:
    """The metrics of the view in time and in percent, of CPU ranks the phases of a step."""
    time = WINDOW if profile_metrics.from_start(panel.runs) else STEP
    measures = (SHARE,) if panel.experiment.view.form == "shares" else (time, SHARE)
    names = panel.experiment.view.shown_metrics
    figure = _bars(panel, name, measures, names, "Metrics of profiles", [OVERLAP])
    return figure or _bars(
        panel, name, (STEP, SHARE), None, "Phases of a step", [NO_CALLS] * all(run["cpu_ranks"] for run in panel.runs)
    )


def copies(panel: Panel, name: str) -> Figure | None:
    """The bytes of each kind of copy; None without a profile of GPUs."""
    measure = COPIED if profile_metrics.from_start(panel.runs) else COPIED_IN_A_STEP
    return _bars(panel, name, (measure,), profile_metrics.COPIED, "Bytes copied", [NOT_NCCL])


def _bars(
    panel: Panel, name: str, measures: Sequence[str], names: Sequence[str] | None, what: str, about: Sequence[str]
) -> Figure | None:
    """A chart for each measure and each metric (`names`; None: phases) that is somewhere above 0; None without any."""
    layout = Layout.of(panel)
    rows: list[Row] = []
    for measure in measures:
        rows += chart_data.averaged(panel, measure, "metric", lambda run, of=measure: _amounts(run, names, of))
    seen = list(dict.fromkeys(row["metric"] for row in rows))
    shown = [metric for metric in names or seen if any(row["mean"] for row in rows if row["metric"] == metric)]
    if not shown:
        return None
    for metric in shown if WINDOW in measures else ():
        rows += chart_data.paper(panel, WINDOW, f"{METRIC}{metric}", metric=metric)
    told = [row | {PART: profile_metrics.name(row["metric"])} for row in layout.with_places(rows)]
    told = sorted((row for row in told if row["metric"] in shown), key=lambda row: shown.index(row["metric"]))
    rows = drawn(told, are_bars=True, titles=TITLES)
    rows.sort(key=lambda row: shown.index(row["metric"]))  # the measures of a metric beside each other
    absent = {
        "In none of these profiles": [metric for metric in names or () if metric in seen and metric not in shown],
        "Not recorded by this profiler": [metric for metric in names or () if metric not in seen],
    }
    notes = [f"{line}: {', '.join(map(profile_metrics.name, metrics))}" for line, metrics in absent.items() if metrics]
    windows = profile_metrics.windows([run for run in panel.runs if run["status"] == "ok"])
    profiled = f"Profiled: {captions.listed(list(windows))}"
    notes = [*chart_data.means_notes(rows), profiled, *notes, *unended_note(panel), *about]
    return layout.bars(name, rows, notes, 2 if len(measures) == 2 else 3, what, measures[0].startswith(COPIED))


def _amounts(run: Run, names: Sequence[str] | None, measure: str) -> list[tuple[str, float]]:
    """The metrics or phases of a run's profile, in a measure, as far as it could see them."""
    profile = profile_metrics.profile(run)
    if profile is None:
        return []
    if names is None:
        rows, steps = [row for row in profile.rank_rows(None) if row.group == "phase"], profile.steps or 1
        return [(clean(row.metric), row.total_s / steps if measure == STEP else row.share) for row in rows]
    known = [(metric, _amount(profile, metric, measure)) for metric in names]
    return [(metric, amount) for metric, amount in known if amount is not None]


def _amount(profile: Profile, metric: str, measure: str) -> float | None:
    amount = profile_metrics.summed(profile, metric, SUMMED[measure])
    if amount is None or measure not in (STEP, COPIED_IN_A_STEP):
        return amount
    ranks = len(profile.ranks) if measure == COPIED_IN_A_STEP else 1  # bytes are of all ranks, seconds of one
    return amount * ranks / profile.steps if profile.steps else None
