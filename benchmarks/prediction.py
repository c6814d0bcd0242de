"""Accuracy of predicted steps: one table with every goal, the value to beat, and the value reached.

    python -m benchmarks.prediction [--json]

Published tables are replayed: the model never sees the family of GPUs that it predicts. Rows with
defects are left out; `multicard/estimate/published.csv` has the reasons. `fitted` makes
`estimate.scaling.PUBLISHED` of them. Your own runs are compared by `python -m analysis
predictions`.
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

HERE = "here"  # the machine of the replayed row
NODE = "node"  # the key that tells the cells of another node from those of this one
HALF = ("fp16", "amp")
WITH_HBM = ("V100", "A100", "H100", "H200", "B200")
WITHOUT_TF32 = ("V100", "RTX 8000", "RTX 2080")
# NVIDIA's has one kind of GPU a precision: nothing to learn its worth from
WITHOUT_PROBE = ("lambda", "lambda-2021")
THRESHOLDS = (0, 0.02, 0.05, 0.1, 0.15, 0.2)
SLOPES = (0.25, 0.5, 0.75, 1, 1.25, 1.5)
CONSTANTS = (0, 0.005, 0.01, 0.015)
FIT_NOISE = 0.01  # in place of NOISE, so that the many cases with a small d count
LINES = (((1, 2, 4), 8), ((1, 4), 8), ((1, 8), 4))  # known numbers of GPUs, and the wanted one
LINES_SHARE = 0.93  # of the times on other nodes that the fitted interval of a line holds
HEADINGS = ("", "to beat", "goal", "reached", "met")
Row = tuple[str, str, str, str, str]


class Outcome(NamedTuple):
    predicted: float
    low: float
    high: float
    printed: float


def errors(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """The median and the mean of |predicted / printed - 1|."""
    off = [abs(outcome.predicted / outcome.printed - 1) for outcome in outcomes]
    return float(np.median(off)), float(np.mean(off))


def covered(outcomes: Sequence[Outcome]) -> float:
    return float(np.mean([outcome.low <= outcome.printed <= outcome.high for outcome in outcomes]))


def lambda_fp16() -> list[Series]:
    return [
        row for row in published.sound_series() if (row.source, row.precision) == ("lambda", "fp16")
    ]


def scaling_far(rows: Sequence[Series]) -> list[Outcome]:
    """T(8) of each row by a model of the families in `published.csv` without the row's."""
    known = cases(published.sound_series())
    models = {
        family: fitted([case for case in known if case.family != family])
        for family in sorted({row.family for row in rows})
    }
    outcomes: list[Outcome] = []
    for row in rows:
        if {1, 2, 8} <= row.rates.keys():
            seen = _here(row, row.sample_s)
            outcomes += _predicted([seen[1], seen[2]], seen[8], models[row.family])
    return outcomes


def papers_totals() -> list[Outcome]:
    """T(3) and T(4) of the series of Tables 2 and 3, each from its own T(1) and T(2)."""
    series: dict[tuple[str, ...], dict[int, StepObservation]] = defaultdict(dict)
    for row in published.paper_totals():
        series[row.series][row.gpus] = _of_papers(row)
    outcomes = []
    for of, gpus in product(series.values(), (3, 4)):
        outcomes.extend(_predicted([of[1], of[2]], of[gpus]))
    return outcomes


def _of_papers(row: PaperTotal) -> StepObservation:
    """A total of the papers as a step: a run is divided over its GPUs, and on n of them takes n
    times the share of one in the same total.
    """
    setting = {"precision.name": row.series[1], "gpus": str(row.gpus)}
    return StepObservation(setting, row.gpus * row.total_s, published.PRINTED_ERROR, HERE)


def precisions(probed: bool) -> dict[str, list[Outcome]]:
    """Half precision from single on the same node and number of GPUs, by source.

    Args:
        probed: half precision is known on one GPU of the node, and nothing of other nodes.
            Otherwise only the gain of the same workload is,
            on GPUs of the same kind and another family.
    """
    rows = published.sound_series()
    halves = {(row.source, row.node, row.workload): row for row in rows if row.precision in HALF}
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for row in rows:
        half = halves.get((row.source, row.node, row.workload))
        if row.precision in HALF or half is None:
            continue
        counts = sorted(row.rates.keys() & half.rates.keys())
        if probed:  # per step, to which the exchange adds the same seconds in both precisions
            single = _here(row, row.step_s)
            probe = _here(half, half.step_s)
            for gpus in counts[1:] if counts[0] == 1 else ():
                outcomes[row.source] += _predicted([single[1], single[gpus], probe[1]], probe[gpus])
        # per sample: the sources give half precision a larger batch
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
    """HBM or not, and TF32 or not: the gain of a precision depends on both."""
    return row.family.split()[0] in WITH_HBM, not row.family.startswith(WITHOUT_TF32)


def _of_the_same_kind(row: Series, rows: Sequence[Series]) -> list[StepObservation]:
    """The times of other families, both with TF32 or both without;
    with the same kind of memory where there is one.
    """
    chip = row.family.split()[0]
    (has_hbm, has_tf32) = _kind(row)
    others = [
        other
        for other in rows
        if other.family.split()[0] != chip and other.workload == row.workload
    ]
    alike = [
        other for other in others if other.source == row.source and _kind(other)[1] == has_tf32
    ]
    near = [other for other in alike if _kind(other)[0] == has_hbm]
    if not any(other.precision in HALF for other in near):
        near = alike
    seen = (published.row_observations(other, other.sample_s) for other in near)
    return list(chain.from_iterable(seen))


def _here(row: Series, times_s: Mapping[int, float]) -> dict[int, StepObservation]:
    """A row's times as those of this machine, by number of GPUs."""
    printed = published.row_observations(row, times_s)
    settings = [
        {key: value for key, value in seen.setting.items() if key != NODE} for seen in printed
    ]
    return {
        int(setting["gpus"]): StepObservation(setting, seen.step_s, seen.error, HERE)
        for setting, seen in zip(settings, printed, strict=True)
    }


def _predicted(
    known: Sequence[StepObservation],
    wanted: StepObservation,
    model: scaling.Growth = scaling.PUBLISHED,
) -> list[Outcome]:
    """The prediction of a step beside its time; empty where nothing can be predicted."""
    predicted = steps.step({**wanted.setting, "device": '"cuda"'}, HERE, None, known, model)
    if predicted is None:
        return []
    interval = predicted.interval
    return [Outcome(interval.value, interval.low, interval.high, wanted.step_s)]


def _papers_with_probe() -> list[Outcome]:
    """Table 2: fp32 and fp16 on 2 to 4 GPUs, by fp64 on all and by themselves on one."""
    rows = [row for row in published.paper_totals() if row.series[0] == "table2"]
    seen = {(row.series[1], row.gpus): _of_papers(row) for row in rows}
    outcomes = []
    for precision, gpus in product(("fp32", "fp16"), (2, 3, 4)):
        known = [seen["fp64", 1], seen["fp64", gpus], seen[precision, 1]]
        outcomes.extend(_predicted(known, seen[precision, gpus]))
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
    """The rows with 1, 2 and 8 GPUs."""
    growth = ((row, row.sample_s) for row in rows if {1, 2, 8} <= row.rates.keys())
    return [Case(row.family, row.workload, t[2] / t[1] - 1, t[8] / t[1] - 1) for row, t in growth]


def fit(rows: Sequence[Case]) -> Growth:
    """The model that the cases support, without its interval.

    The mean of the three figures over a grid, each point weighted by its likelihood (Laplace's
    distribution, of the scale FIT_NOISE + NOISE_SLOPE |d|). A family counts once a workload,
    however many of its nodes were measured.
    """
    growth_2 = np.array([case.growth_2 for case in rows])
    target = np.log1p([case.growth_8 for case in rows])
    same = [(case.family, case.workload) for case in rows]
    weights = np.array([1 / same.count(name) for name in same]) / (
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
    """`fit`, with the interval of split conformal prediction over families (Vovk et al. 2005; by
    groups: Dunn et al. 2023, J. Am. Stat. Assoc. 118:2491): each is scored by a fit without it.
    """
    scores: dict[str, list[float]] = {}
    for family in sorted({case.family for case in rows}):
        others = fit([case for case in rows if case.family != family])
        scores[family] = [score(others, case) for case in rows if case.family == family]
    low, high = quantiles(scores, CONFIDENCE)
    return replace(fit(rows), low=low, high=high)


def score(growth: Growth, case: Case) -> float:
    """log T(8) over the predicted, in units of the scale that grows with d."""
    error = math.log1p(case.growth_8) - growth.log_ratio(case.growth_2, REFERENCE_GPUS)
    return error / (NOISE + NOISE_SLOPE * abs(case.growth_2))


def quantiles(scores: Mapping[str, Sequence[float]], confidence: float) -> tuple[float, float]:
    """The lower and the upper quantile of signed scores. A group has a weight of 1, however many
    members it has: near duplicates would else stand for all groups.
    """
    values = np.concatenate([np.asarray(group, float) for group in scores.values()])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in scores.values()])
    high = (1 + confidence) / 2
    low, high = (
        np.quantile(side * values, high, weights=weights, method="inverted_cdf") for side in (-1, 1)
    )
    return -float(low), float(high)


# ---- the interval of a line through two numbers of GPUs


class LineCase(NamedTuple):
    """A row of the published table whose step on `wanted` GPUs lies
    on a line through two other numbers of GPUs.
    """

    known: tuple[int, ...]
    wanted: int
    row: Series

    def outcome(self, extended: float) -> Outcome:
        seen = _here(self.row, self.row.sample_s)
        model = replace(scaling.PUBLISHED, extended=extended)
        (found,) = _predicted([seen[gpus] for gpus in self.known], seen[self.wanted], model)
        return found


def line_cases(rows: Sequence[Series]) -> list[LineCase]:
    cases = []
    for (known, wanted), row in product(LINES, rows):
        if {*known, wanted} <= row.rates.keys():
            cases.append(LineCase(known, wanted, row))
    return cases


def needed_extension(case: LineCase) -> float:
    """The least `extended` with which the interval holds the printed time. The square of a side
    grows by as much with each unit of its square.
    """
    none = case.outcome(0.0)
    one = case.outcome(1.0)
    error = math.log(none.printed / none.predicted)
    end = "high" if error > 0 else "low"
    square, square_of_one = (
        math.log(getattr(each, end) / each.predicted) ** 2 for each in (none, one)
    )
    return math.sqrt(max(error**2 - square, 0.0) / (square_of_one - square))


def fitted_extension(needed: Sequence[float]) -> float:
    """The `extended` with which LINES_SHARE of the cases are held."""
    return float(np.quantile(needed, LINES_SHARE))


@cache
def lines_held_out() -> dict[LineCase, Outcome]:
    """Each case by the `extended` that the other nodes fit."""
    needed = {case: needed_extension(case) for case in line_cases(published.sound_series())}
    outcomes: dict[LineCase, Outcome] = {}
    for node in dict.fromkeys(case.row.node for case in needed):
        others = [extension for case, extension in needed.items() if case.row.node != node]
        extended = fitted_extension(others)
        outcomes |= {case: case.outcome(extended) for case in needed if case.row.node == node}
    return outcomes


# ---- the table


class Reached(NamedTuple):
    """A row of the table: its goal, the figures that were reached, and these in words."""

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
    # half of an interval
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
    """A line's row. covered: each node by the others' constant;
    covered_as_shipped: all by EXTENDED.
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
    medians = {source: errors(own)[0] for source, own in by_source.items()}
    figures = {"median": median, "covered": inside, "cases": len(pooled)} | medians
    parts = [f"{source} {medians[source]:.1%} of {len(own)}" for source, own in by_source.items()]
    words = f"{median:.1%}, {inside:.0%} covered ({', '.join(parts)})"
    return Reached(f"{what}: median", to_beat, f"<= {goal:.0%}", figures, words, median <= goal)


def reached() -> dict[str, Reached]:
    """The rows of the table by name."""
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
    found = reached()
    count = len(published.all_series())
    sound = len(published.sound_series())
    if as_json:
        rows = {name: {**each.figures, "met": each.met} for name, each in found.items()}
        print(json.dumps(rows | {"rows": {"all": count, "sound": sound}}))
        return
    rows = [each.row for each in found.values()]
    print("\n".join(text_table.text(HEADINGS, rows, 200, "lllll", wrap=True)))
    print(f"{count - sound} of {count} published rows left out for their defects; {machine()}")


if __name__ == "__main__":
    main()
