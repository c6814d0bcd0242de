"""How runs differ from one another, in every interval: closed forms, published examples,
simulations.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.claims.comparison import Readings, Sides
from analysis.runs import load
from analysis.stats import between_runs, intervals
from analysis.stats.between_runs import Ratio, Spread
from analysis.stats.intervals import Interval
from multicard.measure import noise, repeated_runs
from multicard.measure.noise import Noise, Values
from multicard.measure.repeated_runs import PRIOR_SD, Term, combined
from multicard.records import text_table
from tests.conftest import ROOT
from tests.helpers import records
from tests.helpers.messages import refused
from tests.measure.test_series import autocorrelated

Random = np.random.Generator


def run_steps(random: Random, sd: float, steps: int = 60, mean_s: float = 0.1) -> np.ndarray:
    """Steps (steps,) of a run whose mean lies off by `sd`, each by 4 %."""
    return mean_s * math.exp(sd * random.normal()) * (1 + 0.04 * random.normal(size=steps))


def values_of(runs: Sequence[np.ndarray]) -> Values:
    """The runs of a setting, as `by_machine` takes them from their records."""
    return [(math.log(run.mean()), (run.std(ddof=1) / run.mean()) ** 2 / len(run)) for run in runs]


def noise_of(settings: Sequence[Sequence[np.ndarray]]) -> Noise:
    return Noise.learnt(map(values_of, settings), PRIOR_SD)


def compared(
    random: Random, sd: float, runs: int = 3, cells: int = 4, steps: int = 60, factor: float = 1.0
) -> list[Ratio]:
    """The ratios of all cells of two sweeps, B's of which take `factor` times as long."""
    sweep = [
        [[run_steps(random, sd, steps) for _ in range(runs)] for _ in range(cells)]
        for _ in range(2)
    ]
    known = noise_of([setting for side in sweep for setting in side])
    ratios = []
    for a, b in zip(*sweep, strict=True):
        spreads = known.of(values_of(a)), known.of(values_of(b))
        ratios.append(between_runs.ratio(a, [factor * run for run in b], spreads))
    return ratios


def share(verdicts: Sequence[str], *wanted: str) -> float:
    return sum(verdict in wanted for verdict in verdicts) / len(verdicts)


@pytest.mark.parametrize(("sd", "steps"), [(0.005, 500), (0.01, 100), (0.03, 60)])
def test_the_same_program_is_called_different_in_5_percent_of_the_cells(sd: float, steps: int):
    random = np.random.default_rng(1)
    verdicts = [one.verdict() for _ in range(300) for one in compared(random, sd, steps=steps)]
    assert share(verdicts, repeated_runs.ABOVE, repeated_runs.BELOW) <= 0.06


@pytest.mark.parametrize("runs", [2, 3])
def test_runs_that_refute_the_prior_are_not_drawn_to_it(runs: int):
    """One cell on a machine whose runs differ by 30 %: drawn to 2 %,
    12 and 8 % were called different.
    """
    random, wrong = np.random.default_rng(3), 0
    for _ in range(2000):
        logs = 0.3 * random.normal(size=(2, runs))
        spread = Noise.learnt(
            [[(float(log), 0.0) for log in side] for side in logs], PRIOR_SD
        ).prior
        one = repeated_runs.of_values(*np.exp(logs).tolist(), (spread, spread))
        wrong += one.verdict() in (repeated_runs.ABOVE, repeated_runs.BELOW)
    assert 0.04 <= wrong / 2000 <= 0.06


def test_no_difference_needs_an_interval_within_the_margin():
    """Of settings that differ by the margin, few are called equal; of equal ones,
    most are where runs differ little.
    """
    random = np.random.default_rng(5)
    differing = [
        one.verdict(0.03) for _ in range(250) for one in compared(random, 0.01, factor=1.03)
    ]
    assert share(differing, repeated_runs.WITHIN) <= 0.03  # 2.5 %: one of the two bounds
    equal = [one.verdict(0.03) for _ in range(100) for one in compared(random, 0.01)]
    assert share(equal, repeated_runs.WITHIN) > 0.55
    assert Ratio(1.13, 0.4, 10, True).verdict() == repeated_runs.UNDECIDED


def test_runs_of_more_scatter_than_the_repeated_ones_add_theirs():
    """The repeated cells have runs of 1000 steps, those compared of 30, which correlate."""
    random, verdicts = np.random.default_rng(13), []
    for _ in range(400):
        spread = noise_of(
            [[run_steps(random, 0.002, 1000) for _ in range(4)] for _ in range(5)]
        ).prior
        short = [[autocorrelated(random, 30, 0.1, 0.5, 0.2)] for _ in range(2)]
        verdicts.append(between_runs.ratio(short[0], short[1], (spread, spread)).verdict())
    assert share(verdicts, repeated_runs.ABOVE, repeated_runs.BELOW) <= 0.06


def test_the_pooled_variance_and_the_interval_have_their_closed_forms():
    settings = [[(0.00, 1e-6), (0.02, 3e-6)], [(1.00, 5e-6), (1.01, 5e-6), (1.02, 5e-6)]]
    spread = Noise.learnt(settings, PRIOR_SD).prior
    assert spread.repetitions == 3
    assert spread.variance == pytest.approx((PRIOR_SD**2 + 0.0002 + 0.0002) / 4)
    assert spread.within == pytest.approx((1 * 2e-6 + 2 * 5e-6) / 3)
    a, b = [np.full(20, 1.0)] * 2, [np.full(20, 1.1)] * 3
    one = between_runs.ratio(a, b, (spread, spread))
    # Student's t of 4 degrees of freedom
    half = 2.7764451 * math.sqrt(spread.variance * (1 / 2 + 1 / 3))
    assert one.bounds() == pytest.approx((1.1 * math.exp(-half), 1.1 * math.exp(half)))
    other = Spread(4e-4, 9, 9)
    mixed = between_runs.ratio(a, b, (spread, other))
    parts = [Term(spread.variance / 2, 4), Term(4e-4 / 3, 9)]
    assert (mixed.error, mixed.degrees) == pytest.approx(
        (combined(parts).variance ** 0.5, combined(parts).degrees)
    )


def test_a_claims_share_and_factor_of_repeated_runs_have_their_closed_forms(tmp_path: Path):
    for repetition in (1, 2):
        records.write(tmp_path / str(repetition), records.vision("cpu", repetition=repetition))
    runs = load.read_runs([tmp_path]).runs
    sides = Sides(runs, [], 0.95, Readings(runs))
    off = 0.02  # from the mean, for either run, and the prior's standard deviation of shares too
    # Student's t of 2 degrees of freedom
    half = 4.3026527 * math.sqrt((off**2 + 2 * off**2) / 2 / 2)
    share = sides.share(lambda _, run: 0.3 + off * (-1) ** run["repetition"])
    assert (share.estimate, share.low, share.high) == pytest.approx((0.3, 0.3 - half, 0.3 + half))
    half = 4.3026527 * math.sqrt((noise.CPU_SD**2 + 2 * off**2) / 2 / 2)  # of times on CPU ranks
    factor = sides.factor(lambda _, run: math.exp(0.7 + off * (-1) ** run["repetition"]))
    assert (factor.low, factor.high) == pytest.approx((math.exp(0.7 - half), math.exp(0.7 + half)))
    assert sides.share(lambda _, run: 0.01 + off * (-1) ** run["repetition"]).low == 0.0
    alone = Sides(runs[:1], [], 0.95, Readings(runs[:1])).share(lambda *_: 0.3)
    assert (alone.estimate, alone.low, alone.high) == (0.3, None, None)


def test_degrees_of_freedom_are_satterthwaites():
    assert combined([Term(1.0, 5), Term(1.0, 5)]) == Term(2.0, 10)
    assert combined([Term(3.0, 4), Term(0.0, 9)]).degrees == pytest.approx(4)
    assert combined([Term(4.0, 2), Term(1.0, 10)]).degrees == pytest.approx(25 / (16 / 2 + 1 / 10))
    assert combined([Term(0.0, 3)]) == Term(0.0, 3)


def test_the_least_difference_is_that_of_the_noncentral_t():
    many = Ratio(1.0, 0.01, 10**6, True).least_difference()
    assert many == pytest.approx(math.expm1(0.01 * (1.959964 + 0.841621)), rel=1e-4)
    few = Ratio(1.0, 0.01, 4, True).least_difference()
    random = np.random.default_rng(1)
    assert few is not None
    t = (random.normal(size=200_000) + math.log1p(few) / 0.01) / np.sqrt(
        random.chisquare(4, 200_000) / 4
    )
    assert np.mean(np.abs(t) > 2.7764451) == pytest.approx(0.8, abs=0.005)


def runs_needed(sd: float, difference: float) -> int | None:
    """Runs a side with which two sweeps of six cells, of runs that differ by `sd`,
    show a difference.
    """
    for runs in range(2, 51):
        values = np.resize([-1.0, 1.0], runs)
        logs = (values - values.mean()) / values.std(ddof=1) * sd
        spread = Noise.learnt([[(float(log), 0.0) for log in logs]] * 12, PRIOR_SD).prior
        least = repeated_runs.of_values(
            [1.0] * runs, [1.0] * runs, (spread, spread)
        ).least_difference()
        if least is not None and least <= difference:
            return runs
    return None


def test_the_pages_table_of_repetitions_is_right():
    lines = (ROOT / "docs" / "reference" / "intervals.md").read_text().splitlines()
    first = next(
        number
        for number, line in enumerate(lines)
        if line.startswith("| runs of a setting differ by")
    )
    table = [re.findall(r"over 50|[\d.]+", line) for line in lines[first : first + 7]]
    differences = [float(number) / 100 for number in table[0]]
    assert len(differences) == 5 and len(table[2:]) == 5 and table[1] == []
    for sd, *runs in table[2:]:
        needed = [runs_needed(float(sd) / 100, difference) for difference in differences]
        assert ["over 50" if count is None else str(count) for count in needed] == runs, sd


def by_step(*sweeps: Sequence[load.Run]) -> between_runs.Machines:
    return between_runs.RepeatedRuns(*sweeps).of_column("step_s")


def test_spreads_are_of_a_machine_and_a_kind_of_run(tmp_path: Path):
    for index, (kind, hardware, factor) in enumerate(
        [
            ("vision", "H200", 1.0),
            ("vision", "H200", 1.02),
            ("vision", "A100", 2.0),
            ("llm", "H200", 1.0),
        ]
    ):
        record = getattr(records, kind)(hardware=hardware, seed=index)
        record["step_s" if kind == "vision" else "iteration_s"]["mean"] = 0.1 * factor
        records.write(tmp_path / str(index), record)
    failed = records.vision(hardware="H200", seed=9, status="failed")
    failed["step_s"]["mean"] = 9.0
    records.write(tmp_path / "failed", failed)
    runs = load.read_runs([tmp_path]).runs
    machines = by_step(runs)
    by_run = {(run["kind"], run["hardware"]): machines.of([run]) for run in runs}
    assert {key: spread.repetitions for key, spread in by_run.items()} == {
        ("vision", "H200"): 1,
        ("vision", "A100"): 0,
        ("llm", "H200"): 0,
    }
    halves = by_step(runs[:1], runs[1:])  # of two sweeps that may differ
    assert all(halves.of([run]).repetitions == 0 for run in runs)
    assert by_run["vision", "H200"].variance == pytest.approx(
        (PRIOR_SD**2 + math.log(1.02) ** 2 / 2) / 2
    )


def test_runs_of_one_seed_do_not_show_how_losses_differ(tmp_path: Path):
    (one,) = load.read_runs([records.write(tmp_path / "a", records.llm())]).runs

    def tuned(lr: float, losses: Sequence[float], seeds: Sequence[int]) -> list[load.Run]:
        told = [
            {"seed": seed, "loss_last_tenth": loss}
            for seed, loss in zip(seeds, losses, strict=True)
        ]
        return [replace(one, columns=one.columns | {"lr": lr} | columns) for columns in told]

    alone = tuned(0.1, [2.5] * 3, [0] * 3)
    assert between_runs.RepeatedRuns(alone).figure(alone, "loss_last_tenth") == Interval(
        2.5, None, None
    )
    a, b, c = (tuned(loss, [loss - 0.1, loss, loss + 0.1], [0, 1, 2]) for loss in (2.5, 2.4, 1.5))
    repeated = between_runs.RepeatedRuns([*alone, *a, *b, *c])
    known = repeated.figure(alone, "loss_last_tenth")
    # as one run, by how seeds differ
    assert known is not None and known.low is not None and known.low < 2.4
    assert not repeated.more_accurate(b, a) and repeated.more_accurate(c, a)  # seeds differ by 4 %
    below = tuned(0.2, [-3.0, -3.0], [0, 1])
    assert not repeated.more_accurate(below[:1], below[1:])


def test_samples_that_took_no_time_or_were_not_taken_have_no_ratio():
    with refused("spread.no-steps"):
        between_runs.ratio([np.empty(0)], [np.ones(9)], (Spread(), Spread()))
    with refused("spread.no-time"):
        between_runs.ratio([np.zeros(9)], [np.ones(9)], (Spread(), Spread()))


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_that_of_newcombes_table_1(
    right: int, count: int, low: float, high: float
):
    interval = intervals.wilson(right, count, 0.95)
    assert interval.estimate == right / count
    assert (interval.low, interval.high) == (
        pytest.approx(low, abs=5e-5),
        pytest.approx(high, abs=5e-5),
    )


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_the_difference_is_that_of_newcombes_method_10(
    a: tuple[int, int], b: tuple[int, int], low: float, high: float
):
    interval = intervals.difference(intervals.wilson(*a, 0.95), intervals.wilson(*b, 0.95))
    assert interval.estimate == pytest.approx(a[0] / a[1] - b[0] / b[1])
    assert (interval.low, interval.high) == (
        pytest.approx(low, abs=1e-4),
        pytest.approx(high, abs=1e-4),
    )


def test_means_and_ratios_of_few_runs_have_students_interval_and_single_ones_none_unless_exact():
    values = [1.0, 1.2, 1.1]
    half = 4.302652729749464 * 0.1 / math.sqrt(3)
    interval = intervals.mean(values, 0.95, "3 runs")
    assert (interval.low, interval.high) == (
        pytest.approx(1.1 - half, rel=1e-9),
        pytest.approx(1.1 + half, rel=1e-9),
    )
    assert intervals.mean([7.0]).low is None
    with pytest.raises(ValueError):
        intervals.mean([])
    with pytest.raises(ValueError):
        intervals.student_quantile(0.95, 0)
    ratio = intervals.exact_ratio(values, [2.2], 0.95, "1 and 3 runs")
    assert ratio.estimate == pytest.approx(0.5)
    assert ratio.high == pytest.approx(0.5 * math.exp(half / 1.1), rel=1e-3)
    assert intervals.exact_ratio([4.0], [2.0], 0.95, "exact") == Interval(2.0, 2.0, 2.0, "exact")
    assert (
        intervals.difference(Interval(2.0, None, None, "1 run"), Interval(1.0, 0.5, 1.5, "")).low
        is None
    )
    with refused("spread.zero"):
        intervals.exact_ratio([1.0], [0.0], 0.95, "exact")


@pytest.mark.parametrize(
    ("name", "estimate", "half", "text"),
    [
        ("total_s", 61.23, 0.42, "61.23 ± 0.42"),
        ("energy_joules", 21_400.0, 420.0, "21.40 ± 0.42 kJ"),
        ("energy_joules", 999.0, 2.0, "999.0 ± 2.0 J"),
        ("peak_memory_bytes", 1.25e9, 3e6, "1.250 ± 0.003 GB"),
        ("images_per_s", 1234.0, 56.0, "1,234 ± 56"),
        ("images_per_s", 2.6, 0.4, "2.6 ± 0.4"),
        ("test_accuracy", 0.981, 0.002, "98.10% ± 0.20"),
        ("total_s", 61.0, 60.0, "61.0 (1 to 121.0)"),
    ],
)
def test_a_figure_and_its_interval_are_in_one_unit(
    name: str, estimate: float, half: float, text: str
):
    interval = Interval(estimate, estimate - half, estimate + half)
    assert intervals.text(name, interval) == text
    assert text_table.alignment([name], [[text]]) == "r"
