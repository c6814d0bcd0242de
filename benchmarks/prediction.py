"""Measure the accuracy of predicted steps, and compare it with the goals and with earlier models.

    python -m benchmarks.prediction [--json]

Published tables are replayed. The model never sees the family of GPUs that it predicts. Defective
rows are left out; `multicard/estimate/published.csv` gives the reasons. The function `fitted` makes
the constants `estimate.scaling.PUBLISHED` from the sound rows. To check predictions of your runs,
use `python -m analysis predictions`.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from typing import NamedTuple

import numpy as np

from benchmarks import machine, parser
from multicard.estimate import published, scaling, steps
from multicard.estimate.observations import StepObservation
from multicard.estimate.published import PaperTotal, Series
from multicard.estimate.scaling import (
    CONFIDENCE,
    FASTER_LIMIT,
    NOISE,
    NOISE_SLOPE,
    REFERENCE_GPUS,
    Growth,
)
from multicard.records import text_table

HERE = "here"  # The name of the machine to which the replayed row belongs.
NODE = "node"  # The setting that distinguishes the cells of another node from cells of this one.
HALF = ("fp16", "amp")
WITH_HBM = ("V100", "A100", "H100", "H200", "B200")
WITHOUT_TF32 = ("V100", "RTX 8000", "RTX 2080")
# NVIDIA's tables are missing here. They have one kind of GPU for each precision, so the gain of a
# precision cannot be learned from other GPUs.
WITHOUT_PROBE = ("lambda", "lambda-2021")
THRESHOLDS = (0, 0.02, 0.05, 0.1, 0.15, 0.2)
SLOPES = (0.25, 0.5, 0.75, 1, 1.25, 1.5)
CONSTANTS = (0, 0.005, 0.01, 0.015)
FIT_NOISE = 0.01  # The fit uses it instead of NOISE, so that the many cases with a small d count.
LINES = (((1, 2, 4), 8), ((1, 4), 8), ((1, 8), 4))  # Known numbers of GPUs, and the wanted number.
LINES_SHARE = 0.93  # The share of times on other nodes that a line's fitted interval contains.
HEADINGS = ("", "to beat", "goal", "reached", "met")
Row = tuple[str, str, str, str, str]


class Outcome(NamedTuple):
    predicted: float
    low: float
    high: float
    printed: float


def errors(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the median and the mean of |predicted / printed - 1|."""
    relative_errors = [abs(outcome.predicted / outcome.printed - 1) for outcome in outcomes]
    return float(np.median(relative_errors)), float(np.mean(relative_errors))


def covered(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([outcome.low <= outcome.printed <= outcome.high for outcome in outcomes]))


def lambda_fp16() -> list[Series]:
    return [
        row for row in published.sound_series() if (row.source, row.precision) == ("lambda", "fp16")
    ]


def scaling_far(rows: Sequence[Series]) -> list[Outcome]:
    """Predict T(8) of each row with a model fitted to all families except the row's."""
    known = cases(published.sound_series())
    models = {
        family: fitted([case for case in known if case.family != family])
        for family in sorted({row.family for row in rows})
    }
    outcomes: list[Outcome] = []
    for row in rows:
        if {1, 2, 8} <= row.rates.keys():
            times = _here(row, row.sample_s)
            outcomes += _predicted([times[1], times[2]], times[8], models[row.family])
    return outcomes


def papers_totals() -> list[Outcome]:
    """Predict T(3) and T(4) of each series of Tables 2 and 3 from its T(1) and T(2)."""
    series: dict[tuple[str, ...], dict[int, StepObservation]] = defaultdict(dict)
    for row in published.paper_totals():
        series[row.series][row.gpus] = _of_papers(row)
    outcomes = []
    for times, gpus in product(series.values(), (3, 4)):
        outcomes.extend(_predicted([times[1], times[2]], times[gpus]))
    return outcomes


def _of_papers(row: PaperTotal) -> StepObservation:
    """Convert a total of the papers to the time of a step.

    The steps of a run are divided among its GPUs. If runs on 1 and on n GPUs take the same total,
    a step on n GPUs takes n times as long.
    """
    setting = {"precision.name": row.series[1], "gpus": str(row.gpus)}
    return StepObservation(setting, row.gpus * row.total_s, published.PRINTED_ERROR, HERE)


def precisions(probed: bool) -> dict[str, list[Outcome]]:
    """Predict half precision from single precision on the same node and number of GPUs.

    Args:
        probed: half precision is known on one GPU of the node, and nothing is known of other nodes.
            Otherwise, only the gain of the same workload is known, on GPUs of the same kind but of
            another family.

    Returns:
        The outcomes by source.
    """
    rows = published.sound_series()
    halves = {(row.source, row.node, row.workload): row for row in rows if row.precision in HALF}
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for row in rows:
        half = halves.get((row.source, row.node, row.workload))
        if row.precision in HALF or half is None:
            continue
        counts = sorted(row.rates.keys() & half.rates.keys())
        if probed:  # per step: the exchange adds the same seconds in both precisions
            single = _here(row, row.step_s)
            probe = _here(half, half.step_s)
            for gpus in counts[1:] if counts[0] == 1 else ():
                outcomes[row.source] += _predicted([single[1], single[gpus], probe[1]], probe[gpus])
        # This is per sample, because the sources give half precision a larger batch.
        elif row.source in WITHOUT_PROBE:
            single = _here(row, row.sample_s)
            probe = _here(half, half.sample_s)
            others = _of_the_same_kind(row, rows)
            for gpus in counts:
                outcomes[row.source] += _predicted([single[gpus], *others], probe[gpus])
    if probed:
        outcomes["papers"] = _papers_with_probe()
    return dict(outcomes)


def _kind(row: Series) -> tuple[bool, bool]:
    """Return whether the GPU has HBM, and whether it has TF32. A precision's gain needs both."""
    return row.family.split()[0] in WITH_HBM, not row.family.startswith(WITHOUT_TF32)


def _of_the_same_kind(row: Series, rows: Sequence[Series]) -> list[StepObservation]:
    """Return the times of other families that agree about TF32.

    If possible, they also have the same kind of memory.
    """
    chip = row.family.split()[0]
    (has_hbm, has_tf32) = _kind(row)
    others = [
        other
        for other in rows
        if other.family.split()[0] != chip and other.workload == row.workload
    ]
    same_tf32 = [
        other for other in others if other.source == row.source and _kind(other)[1] == has_tf32
    ]
    same_kind = [other for other in same_tf32 if _kind(other)[0] == has_hbm]
    if not any(other.precision in HALF for other in same_kind):
        same_kind = same_tf32
    times = (published.row_observations(other, other.sample_s) for other in same_kind)
    return list(chain.from_iterable(times))


def _here(row: Series, times_s: Mapping[int, float]) -> dict[int, StepObservation]:
    """Return a row's times, by number of GPUs, as if they had been measured on this machine."""
    printed = published.row_observations(row, times_s)
    settings = [
        {key: value for key, value in time.setting.items() if key != NODE} for time in printed
    ]
    return {
        int(setting["gpus"]): StepObservation(setting, time.step_s, time.error, HERE)
        for setting, time in zip(settings, printed, strict=True)
    }


def _predicted(
    known: Sequence[StepObservation],
    wanted: StepObservation,
    model: scaling.Growth = scaling.PUBLISHED,
) -> list[Outcome]:
    """Predict a step and pair it with its printed time, or return [] if there is no prediction."""
    predicted = steps.step({**wanted.setting, "device": '"cuda"'}, HERE, None, known, model)
    if predicted is None:
        return []
    interval = predicted.interval
    return [Outcome(interval.value, interval.low, interval.high, wanted.step_s)]


def _papers_with_probe() -> list[Outcome]:
    """Predict fp32 and fp16 of Table 2 on 2 to 4 GPUs.

    Known are fp64 on the same number of GPUs, and the predicted precision on one GPU.
    """
    rows = [row for row in published.paper_totals() if row.series[0] == "table2"]
    times = {(row.series[1], row.gpus): _of_papers(row) for row in rows}
    outcomes = []
    for precision, gpus in product(("fp32", "fp16"), (2, 3, 4)):
        known = [times["fp64", 1], times["fp64", gpus], times[precision, 1]]
        outcomes.extend(_predicted(known, times[precision, gpus]))
    return outcomes


# ---- the fit of growth with GPUs


@dataclass(frozen=True)
class Case:
    """A row of a table: T(2) / T(1) - 1 and T(8) / T(1) - 1 of a workload on a family of GPUs."""

    family: str
    workload: str
    growth_2: float
    growth_8: float


def cases(rows: Sequence[Series]) -> list[Case]:
    """Return the cases of all rows with 1, 2 and 8 GPUs."""
    growth = ((row, row.sample_s) for row in rows if {1, 2, 8} <= row.rates.keys())
    return [Case(row.family, row.workload, t[2] / t[1] - 1, t[8] / t[1] - 1) for row, t in growth]


def fit(rows: Sequence[Case]) -> Growth:
    """Fit the growth model to the cases, without its interval.

    The result is the mean of the three constants over a grid. Each point is weighted by its
    likelihood under Laplace's distribution with the scale FIT_NOISE + NOISE_SLOPE |d|. A family
    counts once for each workload, even if several of its nodes were measured.
    """
    growth_2 = np.array([case.growth_2 for case in rows])
    target = np.log1p([case.growth_8 for case in rows])
    groups = [(case.family, case.workload) for case in rows]
    weights = np.array([1 / groups.count(group) for group in groups]) / (
        FIT_NOISE + NOISE_SLOPE * np.abs(growth_2)
    )
    points = np.array([*product(THRESHOLDS, SLOPES, CONSTANTS)])
    limit, gain, base = points.T[:, :, None]
    predicted = np.log1p(
        np.maximum(growth_2, FASTER_LIMIT) + gain * np.maximum(growth_2 - limit, 0.0) + base
    )
    log_likelihood = -(np.abs(predicted - target) * weights).sum(axis=1)
    likelihood = np.exp(log_likelihood - log_likelihood.max())
    return Growth(*(likelihood @ points / likelihood.sum()).tolist())


def fitted(rows: Sequence[Case]) -> Growth:
    """Fit the growth model, with an interval by split conformal prediction over families.

    Each family is scored by a fit without it (Vovk et al. 2005; for groups, Dunn et al. 2023,
    J. Am. Stat. Assoc. 118:2491).
    """
    scores: dict[str, list[float]] = {}
    for family in sorted({case.family for case in rows}):
        others = fit([case for case in rows if case.family != family])
        scores[family] = [score(others, case) for case in rows if case.family == family]
    low, high = quantiles(scores, CONFIDENCE)
    return replace(fit(rows), low=low, high=high)


def score(growth: Growth, case: Case) -> float:
    """Return log T(8) / (predicted T(8)), in units of the scale that grows with d."""
    error = math.log1p(case.growth_8) - growth.log_ratio(case.growth_2, REFERENCE_GPUS)
    return error / (NOISE + NOISE_SLOPE * abs(case.growth_2))


def quantiles(scores: Mapping[str, Sequence[float]], confidence: float) -> tuple[float, float]:
    """Return the lower and the upper quantile of signed scores.

    Each group has a weight of 1, regardless of its size. Otherwise, a group of near duplicates
    would outweigh all others.
    """
    values = np.concatenate([np.asarray(group, float) for group in scores.values()])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in scores.values()])
    level = (1 + confidence) / 2
    minus_low = np.quantile(-values, level, weights=weights, method="inverted_cdf")
    high = np.quantile(values, level, weights=weights, method="inverted_cdf")
    return -float(minus_low), float(high)


# ---- the interval of a line through two numbers of GPUs


class LineCase(NamedTuple):
    """A published row whose step on `wanted` GPUs lies on a line through the `known` numbers."""

    known: tuple[int, ...]
    wanted: int
    row: Series

    def outcome(self, extended: float) -> Outcome:
        times = _here(self.row, self.row.sample_s)
        model = replace(scaling.PUBLISHED, extended=extended)
        (outcome,) = _predicted([times[gpus] for gpus in self.known], times[self.wanted], model)
        return outcome


def line_cases(rows: Sequence[Series]) -> list[LineCase]:
    cases = []
    for (known, wanted), row in product(LINES, rows):
        if {*known, wanted} <= row.rates.keys():
            cases.append(LineCase(known, wanted, row))
    return cases


def needed_extension(case: LineCase) -> float:
    """Return the least `extended` for which the interval contains the printed time.

    The square of the interval's half-width, on a logarithmic scale, is linear in the square of
    `extended`. Two outcomes therefore determine it.
    """
    at_0 = case.outcome(0.0)
    at_1 = case.outcome(1.0)
    error = math.log(at_0.printed / at_0.predicted)
    end = "high" if error > 0 else "low"
    square_at_0, square_at_1 = (
        math.log(getattr(outcome, end) / outcome.predicted) ** 2 for outcome in (at_0, at_1)
    )
    return math.sqrt(max(error**2 - square_at_0, 0.0) / (square_at_1 - square_at_0))


def fitted_extension(needed: Sequence[float]) -> float:
    """Return the `extended` for which the intervals of LINES_SHARE of the cases hold."""
    return float(np.quantile(needed, LINES_SHARE))


@cache
def lines_held_out() -> dict[LineCase, Outcome]:
    """Predict each case with the `extended` that fits the other nodes."""
    needed = {case: needed_extension(case) for case in line_cases(published.sound_series())}
    outcomes: dict[LineCase, Outcome] = {}
    for node in dict.fromkeys(case.row.node for case in needed):
        others = [extension for case, extension in needed.items() if case.row.node != node]
        extended = fitted_extension(others)
        outcomes |= {case: case.outcome(extended) for case in needed if case.row.node == node}
    return outcomes


# ---- the table


class Reached(NamedTuple):
    """A row of the table: its goal, the reached figures, and the same figures in words."""

    what: str
    to_beat: str
    goal: str
    figures: dict[str, float]
    words: str
    met: bool

    @property
    def row(self) -> Row:
        return self.what, self.to_beat, self.goal, self.words, "yes" if self.met else "no"


def scaling_reached() -> Reached:
    outcomes = scaling_far(lambda_fp16())
    median, mean = errors(outcomes)
    inside = covered(outcomes)
    # The width is half of an interval.
    width = float(np.median([math.log(outcome.high / outcome.low) / 2 for outcome in outcomes]))
    figures = {
        "median": median,
        "mean": mean,
        "width": width,
        "covered": inside,
        "cases": len(outcomes),
    }
    words = f"{median:.2%}, {mean:.2%}; ±{width:.1%}, {inside:.0%} covered ({len(outcomes)} cases)"
    met = median <= 0.015 and mean <= 0.03 and width <= 0.08 and 0.88 <= inside <= 0.95
    what = "T(8) from T(1), T(2), Lambda fp16: median, mean; interval"
    return Reached(
        what, "1.8%, 3.6%; ±12%", "<= 1.5%, <= 3%; <= ±8%, 88-95% covered", figures, words, met
    )


def line_reached(known: tuple[int, ...], wanted: int) -> Reached:
    """Return the row of a line.

    `covered` is for constants fitted to the other nodes, `covered_as_shipped` for EXTENDED.
    """
    cases = [case for case in lines_held_out() if (case.known, case.wanted) == (known, wanted)]
    outcomes = [lines_held_out()[case] for case in cases]
    as_shipped = covered([case.outcome(scaling.EXTENDED) for case in cases])
    median = errors(outcomes)[0]
    inside = covered(outcomes)
    figures = {
        "median": median,
        "covered": inside,
        "covered_as_shipped": as_shipped,
        "cases": len(outcomes),
    }
    words = (
        f"{inside:.1%} covered, {as_shipped:.1%} as shipped; {median:.1%} ({len(outcomes)} cases)"
    )
    met = 0.88 <= inside <= 0.95 and 0.88 <= as_shipped <= 0.95
    from_counts = ", ".join(f"T({gpus})" for gpus in known)
    what = f"T({wanted}) from {from_counts}, nodes left out: covered; median"
    return Reached(what, "-", "88-95% covered", figures, words, met)


def papers_reached() -> Reached:
    outcomes = papers_totals()
    median = errors(outcomes)[0]
    inside = covered(outcomes)
    figures = {"median": median, "covered": inside, "cases": len(outcomes)}
    words = f"{median:.1%}, {inside:.0%} inside ({len(outcomes)} times)"
    what = "papers' Tables 2, 3: T(3), T(4) from T(1), T(2)"
    met = median <= 0.02 and inside == 1.0
    return Reached(what, "1.1-3.2%", "<= 2% median, all inside", figures, words, met)


def precision_reached(what: str, to_beat: str, goal: float, probed: bool) -> Reached:
    by_source = precisions(probed)
    pooled = list(chain.from_iterable(by_source.values()))
    median = errors(pooled)[0]
    inside = covered(pooled)
    medians = {source: errors(outcomes)[0] for source, outcomes in by_source.items()}
    figures = {"median": median, "covered": inside, "cases": len(pooled)} | medians
    parts = [
        f"{source} {medians[source]:.1%} of {len(outcomes)}"
        for source, outcomes in by_source.items()
    ]
    words = f"{median:.1%}, {inside:.0%} covered ({', '.join(parts)})"
    return Reached(f"{what}: median", to_beat, f"<= {goal:.0%}", figures, words, median <= goal)


def all_rows() -> dict[str, Reached]:
    """Return the rows of the table by name."""
    lines: dict[str, Reached] = {}
    for known, wanted in LINES:
        lines[f"T({wanted}) from {', '.join(map(str, known))}"] = line_reached(known, wanted)
    return {
        "scaling": scaling_reached(),
        **lines,
        "papers": papers_reached(),
        "not probed": precision_reached(
            "a precision that was not probed", "9.8%", 0.09, probed=False
        ),
        "probed": precision_reached("a precision with a probe on one GPU", "-", 0.04, probed=True),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    as_json = options.parse_args().json
    rows_by_name = all_rows()
    count = len(published.all_series())
    sound = len(published.sound_series())
    if as_json:
        rows = {name: {**row.figures, "met": row.met} for name, row in rows_by_name.items()}
        print(json.dumps(rows | {"rows": {"all": count, "sound": sound}}))
        return
    rows = [row.row for row in rows_by_name.values()]
    print("\n".join(text_table.text(HEADINGS, rows, 200, "lllll", wrap=True)))
    print(f"{count - sound} of {count} published rows left out for their defects; {machine()}")


if __name__ == "__main__":
    main()
