"""Predicted steps: how they grow with GPUs, their intervals, and what each prediction rests on."""

import math
from dataclasses import replace

import numpy as np
import pytest

from multicard.config.base import plain
from multicard.estimate import history, published, scaling, steps
from multicard.estimate.observations import Basis, StepObservation, differences
from multicard.estimate.scaling import Growth
from tests.conftest import typed, typed_llm

CELL = {"gpus": "1", "precision.name": '"fp32"', "batch_size": "32", "loader.name": '"torch"', "device": '"cuda"'}
CELL |= {"loader.prefetch_factor": "2", "dataset.image_size": "64", "seed": "0"}
HERE = "NVIDIA H100 NVL"


def seen(step_s, *words, error=0.0, probe=False, machine=HERE, commit: str | None = "a", published=False, marks=""):
    setting = CELL | dict(word.split("=", 1) for word in words)
    basis = Basis.probed if probe else Basis.published if published else Basis.measured
    return StepObservation(setting, step_s, error, machine, basis, commit, marks)


def predicted(*words, of=(), machine=HERE, commit: str | None = "a"):
    return steps.step(CELL | dict(word.split("=", 1) for word in words), machine, commit, of)


def spread(result):
    return math.log(result.high / result.low)


@pytest.mark.parametrize(("gpus", "share"), [(2, 0.0), (4, 0.5 / 0.75), (8, 1.0), (1, -1 / 0.75)])
def test_growth_is_what_the_second_gpu_cost_and_a_rings_share_of_what_exceeds_the_threshold(gpus, share):
    growth = Growth(threshold=0.1, slope=0.75, constant=0.01, low=-2.0, high=3.0)
    assert math.exp(growth.log_ratio(0.3, gpus)) == pytest.approx(1.3 + share * (0.75 * 0.2 + 0.01))
    assert math.exp(growth.log_ratio(0.05, gpus)) == pytest.approx(1.05 + share * 0.01)
    if gpus == 8:
        assert growth.bounds(0.3, gpus) == pytest.approx((-2 * 0.08, 3 * 0.08))
    if gpus == 2:
        assert growth.bounds(0.3, gpus) == (0, 0)


def test_what_is_published_of_a_gpu():
    left_out = {(row.source, row.workload, row.precision) for row in published.table() if row.defect}
    assert {("lambda", name, "fp16") for name in ("bert_base_squad", "ncf", "tacotron2")} <= left_out
    assert len(published.table()) - len(published.sound()) == 124
    papers = {(total.series, total.gpus): total.total_s for total in published.paper_totals()}
    assert len(papers) == 20 and papers[("table2", "fp16"), 4] == 919
    of_papers = [entry for entry in published.observations("h100-94gb") if entry.machine == published.PAPERS_NODE]
    fp64 = [entry for entry in of_papers if entry.setting.get("precision.name") == '"fp64"']
    step_s = {entry.setting["gpus"]: entry.step_s for entry in fp64}
    assert step_s["1"] == pytest.approx(6266 / (20 * (1875 + 0.35 * 313))) and len(of_papers) == 28
    nodes = {name: {seen.machine for seen in published.observations(name)} for name in ("h100-pcie", "h100-80gb")}
    assert nodes["h100-pcie"] and nodes["h100-80gb"] and not nodes["h100-pcie"] & nodes["h100-80gb"]
    assert not published.observations("no such gpu")


def test_differences_count_another_option_of_a_group_once():
    known = CELL | {"loader.name": '"batched"', "seed": "7"}
    assert differences(known, CELL) == ("loader.name", "seed")
    assert differences({}, CELL) == () and differences({"workload": "x"}, CELL) == ("workload",)


def test_a_cell_that_ran_is_measured_and_several_runs_narrow_it():
    one, four = predicted(of=[seen(0.1)]), predicted(of=[seen(0.1), seen(0.101), seen(0.1), seen(0.099, "seed=4")])
    assert (one.basis, one.runs, one.about) == (Basis.measured, 1, "1 run of this cell")
    assert one.value == pytest.approx(0.1) and spread(one) == pytest.approx(2 * 1.645 * 0.02 * math.sqrt(2), rel=1e-3)
    assert four.runs == 4 and spread(four) < spread(one)


def test_runs_on_cpu_ranks_differ_by_more_until_some_were_repeated():
    on_cpu = 'device="cpu"'
    once = predicted(on_cpu, of=[seen(0.1, on_cpu)])
    assert spread(once) == pytest.approx(2 * 1.645 * 0.08 * math.sqrt(2), rel=1e-3)
    steady = [seen(0.1, on_cpu, f"batch_size={size}") for size in range(20) for _ in range(5)]
    assert spread(predicted(on_cpu, of=[*steady, seen(0.1, on_cpu)])) < spread(once) / 5


def test_a_probe_is_wider_than_a_run_and_gives_way_to_it():
    probe = predicted(of=[seen(0.1, probe=True, error=0.005)])
    assert probe.basis == Basis.probed and spread(probe) > spread(predicted(of=[seen(0.1)]))
    both = predicted(of=[seen(0.2, probe=True), seen(0.1)])
    assert both.basis == Basis.measured and both.value == pytest.approx(0.1)
    since = predicted(of=[seen(0.2, probe=True), seen(0.1, commit="b")])
    assert since.basis == Basis.probed and since.value == pytest.approx(0.2)


def test_another_commit_is_wider_and_said_and_another_machine_says_nothing():
    other = predicted(of=[seen(0.1, commit="b")])
    assert "another commit" in other.about and spread(other) > spread(predicted(of=[seen(0.1)]))
    assert predicted(of=[seen(0.1, commit="b"), seen(0.2)]).value == pytest.approx(0.2)
    assert predicted(of=[seen(0.1, machine="another")]) is None
    assert predicted(of=[]) is None
    broken = [seen(math.nan), seen(0.0), seen(0.1, error=math.inf), seen(0.1, "gpus=null"), seen(0.1, "gpus=0")]
    assert predicted(of=broken) is None and predicted("gpus=2", of=broken) is None
    assert predicted("batch_size=null", of=[seen(0.1)]) is None


def test_more_gpus_are_scaled_from_one_and_two_in_an_interval_that_holds_the_noise_of_both():
    far = predicted("gpus=8", of=[seen(0.1), seen(0.103, "gpus=2")])
    growth = scaling.PUBLISHED
    assert far.basis == Basis.scaled and far.runs == 2 and far.about == "T(1), T(2) of gpus"
    assert far.value == pytest.approx(0.1 * math.exp(growth.log_ratio(0.03, 8)))
    sides = [math.log(end / far.value) for end in (far.low, far.high)]
    assert sides == pytest.approx(growth.bounds(0.03, 8))  # what runs differ by is in it
    near = predicted("gpus=4", of=[seen(0.1), seen(0.103, "gpus=2")])
    assert spread(predicted(of=[seen(0.1)])) < spread(near) < spread(far)
    noisy = predicted("gpus=8", of=[seen(0.1, error=0.03), seen(0.103, "gpus=2", error=0.03)])
    assert spread(noisy) > spread(far)
    assert predicted("gpus=8", of=[seen(0.1)]) is None
    known_4 = predicted("gpus=8", of=[seen(0.1), seen(0.103, "gpus=2"), seen(0.104, "gpus=4")])
    assert spread(known_4) < spread(far) and "T(4)" in known_4.about


def test_without_one_and_two_gpus_the_line_over_a_rings_bytes_is_carried_on():
    far = predicted("gpus=8", of=[seen(0.1, "gpus=2"), seen(0.11, "gpus=4")])
    assert far.value == pytest.approx(0.11 + 0.01 * (1.75 - 1.5) / (1.5 - 1)) and far.about == "T(2), T(4) of gpus"
    between = predicted("gpus=2", of=[seen(0.1), seen(0.13, "gpus=4")])
    assert between.value == pytest.approx(0.1 + 0.03 / 1.5)
    assert spread(far) > spread(predicted("gpus=4", of=[seen(0.11, "gpus=4")]))


def test_cpu_ranks_share_their_cores_so_that_a_step_grows_as_a_power_of_their_number():
    on_cpu = 'device="cpu"'
    known = [seen(0.1, on_cpu), seen(0.2, on_cpu, "gpus=2")]
    four, eight = (predicted(on_cpu, f"gpus={gpus}", of=known) for gpus in (4, 8))
    assert four.value == pytest.approx(0.4) and eight.value == pytest.approx(0.8) and spread(eight) > spread(four)
    assert math.log(eight.high / eight.value) > 1.645 * 0.25 * math.log(4)


def test_printed_growth_with_gpus_counts_as_a_ratio_for_its_times_may_be_of_a_sample():
    printed = [
        StepObservation({"workload": "resnet50", "gpus": gpus}, step_s, 0.01, "their node", Basis.published)
        for gpus, step_s in (("1", 0.001), ("2", 0.0011), ("8", 0.0013))
    ]
    assert predicted("gpus=8", of=[seen(0.1), *printed]).value == pytest.approx(0.13)
    assert predicted("gpus=2", of=[seen(0.1), *printed]).value == pytest.approx(0.11)


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
    with_words, words = {"train_vision": typed, "tune_llm": typed_llm}[entry], (f"experiment={experiment}", "gpus=2")
    theirs, another = (history.setting(plain(with_words(*words, *more))) for more in ([], change))
    printed = published.observations("h100-94gb")
    same = steps.step(theirs, "h100-94gb", "a", printed)
    assert same is not None and same.basis == Basis.published and "printed figure" in same.about
    assert steps.step(another, "h100-94gb", "a", printed) is None


def test_a_precision_is_scaled_by_another_cells_and_adds_the_seconds_of_the_exchange_on_gpus():
    half, two = 'precision.name="fp16"', "gpus=2"
    known = [seen(0.1), seen(0.11, two), seen(0.04, half)]
    assert predicted(half, two, of=known).value == pytest.approx(0.04 + 0.01)
    cpu = [replace(item, setting={**item.setting, "device": '"cpu"'}) for item in known]
    shared = predicted(half, two, 'device="cpu"', of=cpu)
    assert shared.value == pytest.approx(0.04 * 1.1)
    assert "by 1 pair of cells" in shared.about and shared.basis == Basis.scaled
    assert predicted('precision.name="fp64"', of=known) is None


def test_each_axis_that_is_crossed_widens_the_interval():
    known = [seen(0.1), seen(0.05, 'precision.name="fp16"'), seen(0.08, 'loader.name="batched"')]
    one = predicted('precision.name="fp16"', "dataset.image_size=128", of=known)
    two = predicted('precision.name="fp16"', "dataset.image_size=128", 'loader.name="batched"', of=known)
    assert one.value == pytest.approx(0.05 * 4) and two.value == pytest.approx(0.05 * 4 * 0.8)
    assert spread(known_cell := predicted(of=known)) < spread(one) < spread(two) and known_cell.basis == "measured"


def test_a_single_pair_of_cells_admits_that_it_has_no_effect_here():
    batched, here = 'loader.name="batched"', ('precision.name="fp64"', "batch_size=64")
    pair = [seen(0.464), seen(0.0196, batched), seen(0.464, *here)]
    one = predicted(batched, *here, of=pair)
    assert (one.basis, one.runs) == (Basis.scaled, 3) and one.value == pytest.approx(0.0196) and one.high > 0.464
    three = [entry for size in (16, 48) for entry in (seen(0.464, f"batch_size={size}"),
             seen(0.0196, f"batch_size={size}", batched))]  # fmt: skip
    several = predicted(batched, *here, of=[*pair, *three])
    assert "by 3 pairs" in several.about and several.high < 0.1


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
def test_what_scaled_beyond_linear_is_carried_on_as_linear_and_marked(known, wanted, step_s, marks, device):
    where = f'device="{device}"'
    of = [seen(mean_s, where, f"gpus={gpus}") for gpus, mean_s in known.items()]
    result = predicted(where, f"gpus={wanted}", of=of)
    assert result.marks == marks
    assert 0.10 < result.value < 0.12 if step_s is None else result.value == pytest.approx(step_s)


def test_an_effect_of_more_gpus_beyond_linear_is_none_elsewhere():
    half = 'precision.name="fp16"'
    known = [seen(0.1), seen(0.08, "gpus=2"), seen(0.05, half, 'layout="nhwc"')]
    result = predicted(half, 'layout="nhwc"', "gpus=2", of=known)
    assert result.marks == "?" and result.value == pytest.approx(0.05) and result.low < 0.04


def test_marked_runs_count_where_no_others_do_and_the_estimate_is_marked():
    slowed = seen(0.3, probe=True, marks="&")
    alone = predicted(of=[slowed])
    assert (alone.basis, alone.marks, alone.value) == (Basis.probed, "&", pytest.approx(0.3)) and spread(alone) > 0.9
    quiet = predicted(of=[slowed, seen(0.1)])
    assert (quiet.basis, quiet.marks, quiet.value) == (Basis.measured, "", pytest.approx(0.1))
    scaled = predicted("batch_size=64", of=[seen(0.1), seen(0.9, "batch_size=64", marks="&")])
    assert (scaled.basis, scaled.marks, scaled.value) == (Basis.scaled, "", pytest.approx(0.2))
    assert predicted("batch_size=64", of=[slowed]).marks == "&"


def test_a_batch_is_in_proportion_until_a_pair_of_cells_tells():
    assert predicted("batch_size=64", of=[seen(0.1)]).value == pytest.approx(0.2)
    pair = [seen(0.1), seen(0.3, 'precision.name="fp64"'), seen(0.45, 'precision.name="fp64"', "batch_size=64")]
    assert predicted("batch_size=64", of=pair).value == pytest.approx(0.15)


def test_printed_figures_of_the_same_gpu_are_published_and_their_ratios_lead_on():
    names = {"loader.name": '"torch"', "batch_size": "32"}

    def printed(step_s, **more):
        setting = {"gpus": "1", "precision.name": '"fp32"', **names} | more
        return StepObservation(setting, step_s, 0.05, "their node", Basis.published)

    figures = [printed(0.1), printed(0.05, **{"precision.name": '"fp16"'})]
    same = predicted(of=figures)
    assert (same.basis, same.value) == (Basis.published, pytest.approx(0.1)) and "their node" in same.about
    own = predicted('precision.name="fp16"', of=[*figures, seen(0.2, "loader.prefetch_factor=4")])
    assert own.basis == Basis.published and own.value == pytest.approx(0.05)
    ratio = [replace(figure, setting={**figure.setting, "workload": "resnet50"}) for figure in figures]
    led = predicted('precision.name="fp16"', of=[*ratio, seen(0.2)])
    assert led.basis == Basis.published and led.value == pytest.approx(0.1) and "printed" in led.about
    assert spread(led) > spread(predicted(of=[seen(0.2)]))


def test_intervals_of_steps_cover_in_simulation():
    """Cells whose effects add but for an interaction, of which two are to be predicted, and two to be run again."""
    rng = np.random.default_rng(2)
    inside: dict[str, list[bool]] = {Basis.measured: [], Basis.scaled: []}
    for _ in range(60):
        truth = rng.normal(0, 0.5, (3, 1)) + rng.normal(0, 0.5, (1, 3)) + rng.normal(-3, 0.035, (3, 3))
        words = {(a, b): (f"precision.name={a}", f"batch_size={b + 1}") for a in range(3) for b in range(3)}
        unknown = [(2, 2), (1, 1)]
        ran = [cell for cell in words if cell not in unknown]
        known = [seen(math.exp(truth[cell] + rng.normal(0, 0.02)), *words[cell]) for cell in ran]
        for cell in (*unknown, (0, 0), (0, 1)):
            result = predicted(*words[cell], of=known)
            again_s = math.exp(truth[cell] + rng.normal(0, 0.02))
            inside[result.basis].append(result.low <= again_s <= result.high)
    assert 0.84 <= np.mean(inside[Basis.measured]) <= 0.96
    assert 0.84 <= np.mean(inside[Basis.scaled]) <= 0.99
