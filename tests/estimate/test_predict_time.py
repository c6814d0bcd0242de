"""Predicted steps: how they grow with GPUs, their intervals, and what each prediction rests on."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from multicard.config.base import plain
from multicard.estimate import history, published, scaling, steps
from multicard.estimate.observations import (
    BUSY_SD,
    Basis,
    StepObservation,
    cells,
    differences,
    is_about_as_busy,
)
from multicard.estimate.scaling import Growth
from multicard.measure.noise import PRIOR_FREEDOM
from tests.conftest import typed, typed_llm
from tests.helpers.messages import Told, find, says, told

CELL = {
    "gpus": "1",
    "precision.name": '"fp32"',
    "batch_size": "32",
    "loader.name": '"torch"',
    "device": '"cuda"',
}
CELL |= {"loader.prefetch_factor": "2", "dataset.image_size": "64", "seed": "0"}
HERE = "NVIDIA H100 NVL"


CPU, HALF, BATCHED = 'device="cpu"', 'precision.name="fp16"', 'loader.name="batched"'


def seen(step_s, *words, error=0.0, basis=Basis.measured, machine=HERE, commit="a", marks=""):
    setting = CELL | dict(word.split("=", 1) for word in words)
    return StepObservation(setting, step_s, error, machine, basis, commit, marks)


def beside(step_s, busy, *words, error=0.0, marks="&"):
    """A run on CPU ranks during which others had a share of its cores."""
    return replace(seen(step_s, CPU, *words, error=error, marks=marks), busy_share=busy)


def half_as_busy(of, *words):
    """Half of the 90 % interval if others stay as busy, on a logarithm's scale;
    None where there is none.
    """
    found = predicted(CPU, *words, of=of).as_busy
    if found is None:
        return None
    assert math.log(found.high / found.value) == pytest.approx(math.log(found.value / found.low))
    return math.log(found.high / found.value)


def probe(step_s, *words, **more):
    return seen(step_s, *words, basis=Basis.probed, **more)


def printed(step_s, error=0.05, **setting):
    return StepObservation({"gpus": "1", **setting}, step_s, error, "their node", Basis.published)


def predicted(*words, of=(), machine=HERE, commit="a"):
    return steps.step(CELL | dict(word.split("=", 1) for word in words), machine, commit, of)


def spread(result):
    return math.log(result.interval.high / result.interval.low)


# keys that a source may name
OTHERS = {"precision.name": '"fp32"', "loader.name": '"torch"', "batch_size": "32"}
HALVED = OTHERS | {"precision.name": '"fp16"'}
FP64 = 'precision.name="fp64"'


@pytest.mark.parametrize(
    ("wanted", "of", "step_s", "basis", "marks"),
    [
        # runs before probes, those of the commit before others
        ((), [seen(0.1)], 0.1, "measured", ""),
        ((), [probe(0.2), seen(0.1)], 0.1, "measured", ""),
        ((), [probe(0.2), seen(0.1, commit="b")], 0.2, "probed", ""),
        ((), [seen(0.1, commit="b"), seen(0.2)], 0.2, "measured", ""),
        # marked runs where there are no others
        ((), [probe(0.3, marks="&")], 0.3, "probed", "&"),
        ((), [probe(0.3, marks="&"), seen(0.1)], 0.1, "measured", ""),
        (("batch_size=64",), [seen(0.1), seen(0.9, "batch_size=64", marks="&")], 0.2, "scaled", ""),
        (("batch_size=64",), [probe(0.3, marks="&")], 0.6, "scaled", "&"),
        # without 1 and 2 GPUs: the line over a ring's bytes; CPU ranks: a power of their number
        (("gpus=8",), [seen(0.1, "gpus=2"), seen(0.11, "gpus=4")], 0.11 + 0.01 * 0.25 / 0.5, "scaled", ""),
        (("gpus=2",), [seen(0.1), seen(0.13, "gpus=4")], 0.1 + 0.03 / 1.5, "scaled", ""),
        ((CPU, "gpus=4"), [seen(0.1, CPU), seen(0.2, CPU, "gpus=2")], 0.4, "scaled", ""),
        ((CPU, "gpus=8"), [seen(0.1, CPU), seen(0.2, CPU, "gpus=2")], 0.8, "scaled", ""),
        # on GPUs the exchange adds its seconds, on CPU ranks its share
        ((HALF, "gpus=2"), [seen(0.1), seen(0.11, "gpus=2"), seen(0.04, HALF)], 0.05, "scaled", ""),
        ((HALF, "gpus=2", CPU), [seen(0.1, CPU), seen(0.2, CPU, "gpus=2"), seen(0.04, HALF, CPU)], 0.08, "scaled", ""),
        # more GPUs beyond linear have no effect elsewhere
        ((HALF, "x=1", "gpus=2"), [seen(0.1), seen(0.08, "gpus=2"), seen(0.05, HALF, "x=1")], 0.05, "scaled", "?"),
        # a batch counts in proportion, until a pair of cells tells
        (("batch_size=64",), [seen(0.1)], 0.2, "scaled", ""),
        (("batch_size=64",), [seen(0.1), seen(0.3, FP64), seen(0.45, FP64, "batch_size=64")], 0.15, "scaled", ""),
        # printed figures of the cell, and their ratios, also of times of a sample
        ((), [printed(0.1, **OTHERS)], 0.1, "published", ""),
        ((HALF,), [printed(0.05, **HALVED), seen(0.2, "x=4")], 0.05, "published", ""),
        ((HALF,), [printed(0.1, **OTHERS, w="x"), printed(0.05, **HALVED, w="x"), seen(0.2)], 0.1, "published", ""),
        (("gpus=8",), [seen(0.1), printed(0.001, w="x"), printed(0.0013, w="x", gpus="8")], 0.13, "published", ""),
    ],
)  # fmt: skip
def test_a_step_follows_from_the_cells_that_are_known(wanted, of, step_s, basis, marks):
    result = predicted(*wanted, of=of)
    assert (result.interval.value, result.basis, result.marks) == (
        pytest.approx(step_s),
        basis,
        marks,
    )


@pytest.mark.parametrize(
    ("wanted", "of"),
    [
        ((), []),
        ((), [seen(0.1, machine="another")]),
        (("gpus=8",), [seen(0.1)]),
        ((FP64,), [seen(0.1), seen(0.11, "gpus=2"), seen(0.04, HALF)]),
        (("batch_size=null",), [seen(0.1)]),
    ],
)
def test_a_step_to_which_no_way_leads_is_unknown(wanted, of):
    assert predicted(*wanted, of=of) is None


@pytest.mark.parametrize(("gpus", "share"), [(2, 0.0), (4, 0.5 / 0.75), (8, 1.0), (1, -1 / 0.75)])
def test_growth_is_what_the_second_gpu_cost_and_a_rings_share_of_what_exceeds_the_threshold(
    gpus, share
):
    growth = Growth(threshold=0.1, slope=0.75, constant=0.01, low=-2.0, high=3.0)
    assert math.exp(growth.log_ratio(0.3, gpus)) == pytest.approx(1.3 + share * (0.75 * 0.2 + 0.01))
    assert math.exp(growth.log_ratio(0.05, gpus)) == pytest.approx(1.05 + share * 0.01)
    assert growth.bounds(0.3, gpus) == pytest.approx((share * -2 * 0.08, share * 3 * 0.08))


def test_what_is_published_of_a_gpu():
    assert len(published.all_series()) - len(published.sound_series()) == 124
    papers = {(total.series, total.gpus): total.total_s for total in published.paper_totals()}
    assert len(papers) == 20 and papers[("table2", "fp16"), 4] == 919
    of_papers = [
        entry
        for entry in published.observations("h100-94gb")
        if entry.machine == published.PAPERS_NODE
    ]
    (fp64,) = [
        e
        for e in of_papers
        if (e.setting.get("precision.name"), e.setting["gpus"]) == ('"fp64"', "1")
    ]
    assert fp64.step_s == pytest.approx(6266 / (20 * (1875 + 0.35 * 313))) and len(of_papers) == 28
    nodes = [
        {seen.machine for seen in published.observations(name)}
        for name in ("h100-pcie", "h100-80gb", "none")
    ]
    assert nodes[0] and nodes[1] and not nodes[0] & nodes[1] and not nodes[2]


def test_differences_count_another_option_of_a_group_once():
    known = CELL | {"loader.name": '"batched"', "seed": "7"}
    assert differences(known, CELL) == ("loader.name", "seed")
    # which the script's run had not
    assert differences(CELL, CELL | {"args.lr": "0.1"}) == ("args.lr",)
    assert differences({}, CELL) == () and differences({"workload": "x"}, CELL) == ("workload",)


def test_intervals_narrow_with_runs_and_widen_with_what_is_not_the_cell_itself():
    one, four = (
        predicted(of=[seen(0.1)]),
        predicted(of=[seen(0.1), seen(0.101), seen(0.1), seen(0.099, "seed=4")]),
    )
    assert (one.runs, four.runs) == (1, 4)
    assert find(one.about, "estimate.of-cell").facts == {"runs": 1, "kind": "run", "about": ""}
    assert spread(one) == pytest.approx(2 * 1.645 * 0.02 * math.sqrt(2), rel=1e-3) and spread(
        four
    ) < spread(one)
    other = predicted(of=[seen(0.1, commit="b")])
    assert find(other.about, "estimate.of-cell", runs=1).facts["about"] == Told(
        "estimate.other-commit"
    )
    assert spread(other) > spread(one)
    assert spread(predicted(of=[probe(0.1, error=0.005)])) > spread(one)
    known = [seen(0.1), seen(0.05, HALF), seen(0.08, BATCHED)]
    near, far = (
        predicted(HALF, "dataset.image_size=128", *more, of=known) for more in ([], [BATCHED])
    )
    assert near.interval.value == pytest.approx(0.05 * 4) and far.interval.value == pytest.approx(
        0.05 * 4 * 0.8
    )
    assert spread(one) < spread(near) < spread(far)
    theirs = predicted(of=[printed(0.1, **OTHERS)])
    assert says(theirs.about, "estimate.published-for", machine="their node") and spread(
        theirs
    ) > spread(one)


def test_runs_on_cpu_ranks_differ_by_more_until_some_were_repeated():
    once = predicted(CPU, of=[seen(0.1, CPU)])
    assert spread(once) == pytest.approx(2 * 1.645 * 0.08 * math.sqrt(2), rel=1e-3)
    steady = [seen(0.1, CPU, f"batch_size={size}") for size in range(20) for _ in range(5)]
    assert spread(predicted(CPU, of=[*steady, seen(0.1, CPU)])) < spread(once) / 5
    four, eight = (
        predicted(CPU, f"gpus={n}", of=[seen(0.1, CPU), seen(0.2, CPU, "gpus=2")]) for n in (4, 8)
    )
    assert spread(eight) > spread(four)
    assert math.log(eight.interval.high / eight.interval.value) > 1.645 * 0.25 * math.log(4)


def test_more_gpus_are_scaled_from_one_and_two_in_an_interval_that_holds_the_noise_of_both():
    far = predicted("gpus=8", of=[seen(0.1), seen(0.103, "gpus=2")])
    growth = scaling.PUBLISHED
    assert far.basis == Basis.scaled and far.runs == 2
    assert told(far.about) == [Told("estimate.known-gpus", None, {"gpus": [1, 2]})]
    assert far.interval.value == pytest.approx(0.1 * math.exp(growth.log_ratio(0.03, 8)))
    sides = [math.log(end / far.interval.value) for end in (far.interval.low, far.interval.high)]
    assert sides == pytest.approx(growth.bounds(0.03, 8))  # what runs differ by is in it
    near = predicted("gpus=4", of=[seen(0.1), seen(0.103, "gpus=2")])
    assert spread(predicted(of=[seen(0.1)])) < spread(near) < spread(far)
    noisy = predicted("gpus=8", of=[seen(0.1, error=0.03), seen(0.103, "gpus=2", error=0.03)])
    assert spread(noisy) > spread(far)
    known_4 = predicted("gpus=8", of=[seen(0.1), seen(0.103, "gpus=2"), seen(0.104, "gpus=4")])
    assert says(known_4.about, "estimate.known-gpus", gpus=[2, 4])


def test_a_step_if_others_stay_as_busy_is_as_wide_as_runs_beside_them_differ():
    one = 1.645 * BUSY_SD * math.sqrt(2)
    assert half_as_busy([beside(1.0, 0.9)]) == pytest.approx(one, rel=1e-3)
    assert half_as_busy([beside(1.0, 0.9, error=0.1)]) == pytest.approx(
        math.hypot(one, 0.1645), rel=1e-3
    )
    # to either side a step alone on all cores
    wide = predicted(CPU, of=[beside(1.0, 0.9)]).interval
    assert wide.value / wide.low > 10 and wide.high / wide.value > 10
    # the spread of repeated runs counts as one more degree of freedom beside the assumed one; known
    # by so few, it is unsure itself
    variance = (BUSY_SD**2 + 2 * 0.1**2) / 2
    repeated = [beside(math.exp(0.1), 0.5), beside(math.exp(-0.1), 0.6)]
    student = stdtrit(PRIOR_FREEDOM + 1, 0.95)
    assert half_as_busy(repeated) == pytest.approx(student * math.sqrt(1.5 * variance), rel=1e-3)
    # another batch adds the variance of its own way alone
    more = steps.BATCH_SD * math.log(2) * 1.645
    assert half_as_busy([beside(1.0, 0.9)], "batch_size=64") == pytest.approx(
        math.hypot(one, more), rel=1e-3
    )


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ([seen(1.0, CPU)], []),  # nobody was busy
        ([beside(1.0, 0.9), seen(1.0, CPU)], []),  # a run alone tells more
        ([beside(1.0, 0.5, marks="!")], []),  # others were on its GPUs
        ([beside(1.0, 0.5, marks="z&")], []),
        ([beside(1.0, 0.3), beside(1.0, 0.6)], []),  # not as busy in both
        ([beside(1.0, 0.5, error=0.4)], []),  # further than to twice and half
        ([beside(1.0, 0.5)], ["batch_size=512"]),
    ],
)
def test_no_step_if_others_stay_as_busy_where_it_is_not_known_or_of_no_use(of, words):
    assert half_as_busy(of, *words) is None


def test_the_same_load_is_less_beside_a_run_that_shares_the_cores_with_others():
    assert (
        is_about_as_busy(0.5, 0.5)
        and is_about_as_busy(0.5, 0.64)
        and not is_about_as_busy(0.5, 0.66)
    )
    assert (
        is_about_as_busy(1.0, 0.5)
        and is_about_as_busy(1.0, 0.36)
        and not is_about_as_busy(1.0, 0.34)
    )
    assert is_about_as_busy(1.0, 0.95) and not is_about_as_busy(0.0, 0.2)


@pytest.mark.parametrize(
    ("entry", "experiment", "change"),
    [
        ("train_vision", "table2", ["model.width=0.25"]),
        ("train_vision", "table3", ["layout=nhwc"]),
        ("train_vision", "table2", ["compile=true"]),
        ("tune_llm", "table5", ["gradient_accumulation_steps=8"]),
        ("tune_llm", "table5", ["packed=true", "max_seq_len=512"]),
        ("tune_llm", "table5", ["activation_checkpointing=true"]),
    ],
)
def test_a_cell_of_the_papers_is_known_from_print_and_none_that_differs(entry, experiment, change):
    with_words, words = (
        {"train_vision": typed, "tune_llm": typed_llm}[entry],
        (
            f"experiment={experiment}",
            "gpus=2",
        ),
    )
    theirs, another = (history.setting(plain(with_words(*words, *more))) for more in ([], change))
    printed = published.observations("h100-94gb")
    same = steps.step(theirs, "h100-94gb", "a", printed)
    assert same is not None and same.basis == Basis.published
    assert says(same.about, "estimate.of-cell", kind=steps.OBSERVATION_NAMES[Basis.published])
    assert steps.step(another, "h100-94gb", "a", printed) is None


def test_a_single_pair_of_cells_admits_that_it_has_no_effect_here():
    here = (FP64, "batch_size=64")
    pair = [seen(0.464), seen(0.0196, BATCHED), seen(0.464, *here)]
    one = predicted(BATCHED, *here, of=pair)
    assert (one.basis, one.runs) == (Basis.scaled, 3) and one.interval.value == pytest.approx(
        0.0196
    )
    assert one.interval.high > 0.464
    three = [
        seen(s, f"batch_size={n}", *more)
        for n in (16, 48)
        for s, more in ((0.464, []), (0.0196, [BATCHED]))
    ]
    several = predicted(BATCHED, *here, of=[*pair, *three])
    assert says(several.about, "estimate.by-pairs", pairs=3) and several.interval.high < 0.1


@pytest.mark.parametrize(
    ("known", "wanted", "step_s", "marks"),
    [
        ({2: 0.11, 4: 0.10}, 8, 0.10, "?"),
        ({2: 0.11, 4: 0.10}, 1, 0.11, "?"),
        ({2: 0.101, 4: 0.10}, 8, 0.10, ""),  # noise
        ({1: 0.12, 4: 0.10}, 2, None, ""),  # within what was measured
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_scaled_beyond_linear_is_carried_on_as_linear_and_marked(
    known, wanted, step_s, marks, device
):
    where = f'device="{device}"'
    of = [seen(mean_s, where, f"gpus={gpus}") for gpus, mean_s in known.items()]
    result = predicted(where, f"gpus={wanted}", of=of)
    assert result.marks == marks
    assert (
        0.10 < result.interval.value < 0.12
        if step_s is None
        else result.interval.value == pytest.approx(step_s)
    )


def test_intervals_of_steps_cover_in_simulation():
    """Cells whose effects add but for an interaction, of which two are to be predicted,
    and two to be run again.
    """
    rng = np.random.default_rng(2)
    inside: dict[str, list[bool]] = {Basis.measured: [], Basis.scaled: []}
    for _ in range(60):
        truth = (
            rng.normal(0, 0.5, (3, 1)) + rng.normal(0, 0.5, (1, 3)) + rng.normal(-3, 0.035, (3, 3))
        )
        words = {
            (a, b): (f"precision.name={a}", f"batch_size={b + 1}")
            for a in range(3)
            for b in range(3)
        }
        unknown = [(2, 2), (1, 1)]
        ran = [cell for cell in words if cell not in unknown]
        known = [seen(math.exp(truth[cell] + rng.normal(0, 0.02)), *words[cell]) for cell in ran]
        for cell in (*unknown, (0, 0), (0, 1)):
            result = predicted(*words[cell], of=known)
            again_s = math.exp(truth[cell] + rng.normal(0, 0.02))
            inside[result.basis].append(result.interval.low <= again_s <= result.interval.high)
    assert 0.84 <= np.mean(inside[Basis.measured]) <= 0.96
    assert 0.84 <= np.mean(inside[Basis.scaled]) <= 0.99


def test_a_noisy_cell_widens_the_interval_of_no_other():
    """Each cell has a variance of its own, drawn towards those of the others."""
    quiet = [seen(step_s, f"x={at}") for at in range(6) for step_s in (0.1, 0.1005, 0.1002)]
    noisy = [seen(step_s, "x=9") for step_s in (0.1, 0.16, 0.13)]
    alone, beside_noise = predicted("x=0", of=quiet), predicted("x=0", of=[*quiet, *noisy])
    assert spread(beside_noise) < 1.2 * spread(alone)
    assert spread(predicted("x=9", of=[*quiet, *noisy])) > 3 * spread(beside_noise)


def test_how_runs_differ_is_learnt_from_undisturbed_ones():
    """A run beside others is in no mean of its cell,
    and does not say how the runs of another one differ.
    """
    calm = [seen(step_s, CPU, f"x={at}") for at in range(2) for step_s in (0.1, 0.101)]
    slowed = [replace(seen(0.4, CPU, "x=1", marks="&"), busy_share=0.7)]
    only_slowed = [seen(0.2, CPU, "x=2", marks="&"), seen(0.1, CPU, "x=2", marks="!")]
    known = cells([*calm, *slowed], "a", 0.08)
    assert [cell.variance for cell in known] == pytest.approx(
        [cell.variance for cell in cells(calm, "a", 0.08)]
    )
    (*_, marked) = cells([*calm, *only_slowed], "a", 0.08)
    assert marked.marks == "&!" and marked.runs == 2
