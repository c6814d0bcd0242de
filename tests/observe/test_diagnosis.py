"""What bounds a run: the formulas on the ablations' times, and runs with one slow part."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchtune.training

from multicard.config.placement import Placement
from multicard.llm import after_tuning, preflight, recipes
from multicard.llm import workload as llm
from multicard.llm.torchtune_engine import TorchtuneEngine
from multicard.observe import diagnosis
from multicard.ranks.process import Rank
from multicard.run import controller as run
from multicard.run import outcome
from multicard.vision import after_training
from multicard.vision import workload as vision
from multicard.vision.data.batch import Batch
from tests.conftest import SMALL, Measured, composed, ok, typed, typed_llm, warm_up
from tests.helpers import rank_work
from tests.helpers.messages import says, told
from tests.llm.test_llm_torchtune import NEEDS_TRL

ALONE = Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)
CPU, CUDA = Placement("cpu", "gloo", 1, False), Placement("cuda", "nccl", 1, False)


COSTS = ("input", "copy", "communication", "launch", "compute")
STEPS = ("whole", "host", "device", "alone", "core", "half", "input")


@pytest.mark.parametrize(
    ("step_s", "saved"),
    [
        # 100 ms: 40 of waiting, 10 of copying, 20 of exchanging; of the core's 30,
        # 6 do not shrink with the batch
        ((0.1, 0.06, 0.05, 0.08, 0.03, 0.018, 0.05), (0.04, 0.01, 0.02, 0.006, 0.024)),
        # workers prepare batches during the step,
        # and take longer: a free core would save next to nothing
        ((0.1, None, 0.06, None, None, 0.03, 0.098), (0.04, None, None, 0.0, 0.002)),
        # noise makes no cost negative
        ((0.1, 0.11, 0.12, 0.13, 0.1, 0.04, 0.0), (0, 0, 0, 0, 0.1)),
        # the core takes no longer than steps that do more
        (
            (0.135, None, 0.13, 0.12, 0.16, 0.07, 0.001),
            (0.001, None, 0.015, 2 * 0.07 - 0.12, 0.12 - 0.02),
        ),
    ],
)
def test_what_each_cost_would_save(
    step_s: tuple[float | None, ...], saved: tuple[float | None, ...]
):
    known = {
        name: seconds for name, seconds in zip(STEPS, step_s, strict=True) if seconds is not None
    }
    assert diagnosis.saved_s(known) == pytest.approx(dict(zip(COSTS, saved, strict=True)))


def test_a_step_is_its_slowest_ranks_and_the_median_of_the_rounds():
    ranks = [
        {"whole": [0.1, 0.5, 0.2], "device": [0.1, 0.1, 0.1]},
        {"whole": [0.3, 0.1, 0.2], "device": [0.2, 0.0, 0.1]},
    ]
    assert diagnosis.slowest(ranks) == {"whole": [0.3, 0.5, 0.2], "device": [0.2, 0.1, 0.1]}
    result = diagnosis.diagnose([rank | {"input": [0.25] * 3} for rank in ranks], "try {}".format)
    assert result.step_s == {"whole": 0.3, "device": 0.1, "input": 0.25}
    assert (result.bound, result.advice) == (
        "input",
        "try input",
    ) and result.spread == pytest.approx(1.0)
    (said,) = told(result.sentence)
    assert said.code == "diagnosis.bound"
    assert said.facts == {"bound": "input", "share": 0.666667, "step_s": 0.3, "advice": "try input"}


def test_ablations_take_turns_and_their_first_round_warms_up():
    blocks: list[tuple[str, int]] = []

    def ablation(name: str) -> diagnosis.Ablation:
        return lambda count: blocks.append((name, count)) or count * len(blocks)  # returns seconds

    refill = {"a": lambda count: blocks.append(("refill", count))}
    both = {"a": ablation("a"), "b": ablation("b")}
    step_s = diagnosis.measure_interleaved(both, refill, ALONE, 0.1, 4, lambda: False)
    assert blocks == [
        ("refill", 4),
        ("a", 1),
        ("b", 1),
        *[("refill", 4), ("a", 3), ("b", 3)] * diagnosis.ROUNDS,
    ]
    assert step_s == {"a": [5, 8, 11, 14, 17], "b": [6, 9, 12, 15, 18]}
    assert (
        diagnosis.measure_interleaved({"a": ablation("a")}, {}, ALONE, 0.1, 0, lambda: True) is None
    )
    blocks.clear()
    graphs = diagnosis.measure_interleaved(both, {}, ALONE, 0.1, 0, lambda: False, warm_up=3)
    assert (
        graphs is not None
        and blocks[:4] == [("a", 3), ("b", 3)] * 2
        and len(graphs["a"]) == diagnosis.ROUNDS
    )


@pytest.mark.parametrize(("has_graphs", "steps"), [(True, 3), (False, 1)])
def test_every_ablation_is_warm_where_cuda_graphs_take_three_steps(
    has_graphs: bool, steps: int, monkeypatch
):
    """Half a batch has graphs of its own: after one step they would
    be recorded in the first round that counts.
    """
    asked: list[int] = []
    monkeypatch.setattr(
        diagnosis, "measure_interleaved", lambda *arguments: asked.append(arguments[6])
    )
    batch = Batch(torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64), 0, 0)
    share = SimpleNamespace(batches_per_step=1, batch_size=4, devices=[ALONE.device])
    loop = SimpleNamespace(
        share=share,
        rank=ALONE,
        cuda_graphs=has_graphs,
        timer=SimpleNamespace(start=lambda: None, stop=lambda: None),
        move=lambda batch, _: (batch.images, batch.labels),
        board=SimpleNamespace(stop_at=0),
    )
    after_training.time_ablations(loop, cycle([batch]), 0.1, 0)  # pyright: ignore[reportArgumentType]
    assert asked == [steps]


def advises(said: str, advice: str) -> bool:
    """True where just this override is advised; or where none is, words with this key."""
    return said == advice if "=" in advice else "=" not in said and advice in said.split()


@pytest.mark.parametrize(
    ("words", "placement", "bound", "advice"),
    [
        ((), CPU, "input", "loader=device"),
        (("loader=device",), CPU, "input", "dataset.image_size"),
        (
            ("dataset=images", "dataset.root=x", "dataset.cache=none"),
            CPU,
            "input",
            "dataset.cache=mmap",
        ),
        (("loader=device", "pin_memory=false"), CUDA, "copy", "pin_memory=true"),
        (("strategy=ddp_rr", "gpus=2"), CUDA, "communication", "strategy=ddp_ds"),
        (("gpus=2",), CUDA, "communication", "batch_size"),
        ((), CUDA, "launch", "compile=true"),
        (("preset=fast",), CUDA, "launch", "compile=reduce-overhead"),  # which compiles on CUDA
        (("compile=max-autotune",), CUDA, "launch", "batch_size"),
        (("strategy=dp",), CUDA, "launch", "batch_size"),
        ((), CPU, "launch", "batch_size"),
        (("precision=fp64",), CUDA, "compute", "precision=half"),
        (("precision=fp64",), CPU, "compute", "precision=fp32"),
        (("layout=nhwc",), CPU, "compute", "gpus=2"),
    ],
)
def test_the_option_to_try_next(
    words: tuple[str, ...], placement: Placement, bound: str, advice: str
):
    assert advises(vision.advise(typed(*words), placement, bound), advice)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ((), "compile=true"),
        (("compile=true",), "packed=true max_seq_len=512"),
        (("compile=true", "packed=true", "max_seq_len=64"), "batch_size"),
        (("engine=trl",), "compile=true"),
        (("engine=trl", "method=qlora"), "packed=true max_seq_len=512"),  # it refuses compile
        (("engine=trl", "compile=true", "packed=true", "max_seq_len=64"), "batch_size"),
    ],
)
def test_what_tuning_takes_is_advised_against_launches(words: tuple[str, ...], advice: str):
    if "engine=trl" in words:
        pytest.importorskip("trl")
    config = typed_llm(*words)
    preflight.refuse(config)
    assert advises(llm.advise(config, CUDA, "launch"), advice)


def test_every_bound_has_its_words_and_its_advice():
    assert set(diagnosis.DESCRIPTIONS) == set(COSTS)
    images, text = typed("preset=fast"), typed_llm("method=dpo")
    for bound, placement in product(COSTS, (CPU, CUDA)):
        assert vision.advise(images, placement, bound) and llm.advise(text, placement, bound)


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "bound", "word"),
    [
        (rank_work.train_on_slow_data, "input", "gpus=1"),
        (rank_work.train_over_slow_gloo, "communication", "gpus=2"),
        (rank_work.train_with_a_slow_optimiser, "launch", "compile=true"),
    ],
)
def test_a_run_is_bound_by_its_slow_part(
    work: Callable[..., None], bound: str, word: str, tmp_path: Path
):
    """The slow part sleeps, so that other load on the machine makes it no faster,
    and the rest takes some ms.
    """
    warm_up()
    tiny = ("dataset.train_limit=48", "dataset.test_limit=16", "num_workers=0")
    cfg = composed(*SMALL, *tiny, word, "diagnose=true")
    workload = replace(vision.WORKLOAD, work=f"{work.__module__}:{work.__name__}")
    measured = run.measure(workload, cfg, tmp_path / "run", keep_refused=True)
    record = measured.record
    assert (
        record.status == "ok" and record.diagnosis and record.diagnosis.sentence and record.steps
    ), record.cause
    assert record.diagnosis.bound == bound, record.diagnosis
    assert (record.diagnosis.saves_s[bound] or 0.0) >= 0.8 * rank_work.SLOW_S
    assert record.diagnosis.sentence in outcome.line(measured)
    counted = (record.steps.count or 0) + (record.steps.warmup_count or 0)
    assert counted == record.segments[0].steps  # no step of an ablation counts


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("method=qat",),
        pytest.param(("engine=trl",), marks=NEEDS_TRL),
        pytest.param(("engine=trl", "sharding=ddp", "method=dpo"), marks=NEEDS_TRL),
    ],
    ids=" ".join,
)
def test_a_tuning_run_is_profiled_and_diagnosed(
    words: tuple[str, ...], tuned: Measured, monkeypatch
):
    plain = tuned("gpus=2", *words)
    monkeypatch.setattr(
        llm,
        "WORKLOAD",
        replace(llm.WORKLOAD, work="tests.helpers.rank_work_llm:tune_in_few_rounds"),
    )
    result = ok(tuned("gpus=2", *words, "profile=kineto", "profile.steps=3", "diagnose=true"))
    rows = [row for row in result["profile"]["rows"] if row["rank"] is None]
    phases = {row["metric"]: row["calls"] for row in rows if row["group"] == "phase"}
    assert {"data", "h2d", "forward", "backward", "optimizer"} <= set(phases)
    assert phases["backward"] == phases["optimizer"] == 3 * 2
    assert "gloo all_reduce" in {row["metric"] for row in rows if row["group"] == "collective"}
    step_s = result["diagnosis"]["step_s"]
    assert set(step_s) == {"whole", "device", "input", "alone", "core", "half"}
    assert step_s["input"] < step_s["whole"]
    assert result["segments"][0]["steps"] == 4
    for key in ("transfer_bytes", "communication_bytes", "loss"):
        assert result[key] == plain[key]  # no step of the window or of an ablation counts
    assert plain["diagnosis"] is None and plain["profile"] is None


def test_steps_alone_exchange_neither_weights_nor_gradients(
    tuned: Measured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        llm,
        "WORKLOAD",
        replace(llm.WORKLOAD, work="tests.helpers.rank_work_llm:tune_and_count_exchanges"),
    )
    result = ok(tuned("gpus=2", "method=lora", "diagnose=true"))
    for rank in range(2):
        calls = torch.load(Path(result["folder"]) / f"{rank}.pt")
        # alone, core and half, in the round that warms up and the other
        assert calls["blocks"] == 3 * 2
        assert calls["alone"] == 0 and calls["all"] > 0, calls
        # gradients are zero, and the steps' own numbers get nowhere
        assert calls["most_changed"] < 0.01


@pytest.mark.parametrize(("gains_s", "bound"), [((5, 6, 7), "communication"), ((0.1, 6, 12), None)])
def test_a_bound_is_named_where_rounds_agree_on_it(gains_s: tuple[float, ...], bound: str | None):
    """Steps of a second that communicate for 5 s and more;
    the machine slows down from round to round.
    """
    slow = list(zip((1.0, 1.2, 1.4), gains_s, strict=True))
    rounds = {
        name: [(1 + gain_s) * slowdown for slowdown, gain_s in slow] for name in ("whole", "device")
    }
    rest = {"alone": 1.0, "core": 1.0, "half": 0.5, "input": 0.0}
    rounds |= {name: [seconds * slowdown for slowdown, _ in slow] for name, seconds in rest.items()}
    result = diagnosis.diagnose([rounds], "try {}".format)
    assert result.bound == bound, result
    if bound is None:
        assert says(result.sentence, "diagnosis.unclear", cost="communication")
    else:
        assert says(result.sentence, "diagnosis.bound", bound=bound, advice="try communication")


DISTRIBUTED = (
    "lora_finetune_distributed",
    "full_finetune_distributed",
    "lora_dpo_distributed",
    "qat_distributed",
)


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_steps_after_the_run_keep_the_memory(name: str, monkeypatch: pytest.MonkeyPatch):
    """The recipes hand back free memory as they enter `train`, where this replaces it;
    not so the ablations' blocks.
    """
    module, recipe_class = recipes.load_recipe(name)
    tidied: list[str] = []
    monkeypatch.setattr(torchtune.training, "cleanup_before_training", lambda: tidied.append(name))

    def train_until_the_optimiser(recipe: Any) -> None:
        # this recipe has none: it gets as far as that
        with pytest.raises(AttributeError, match="_optimizer"):
            recipe_class.train(recipe)

    recipe = SimpleNamespace(_is_rank_zero=True, _model=None, _dataloader=None, _steps_per_epoch=1)
    train_until_the_optimiser(recipe)
    assert tidied == [name] and module.training is torchtune.training
    recipe.train = lambda: train_until_the_optimiser(recipe)
    probe: Any = SimpleNamespace(substitute=None)
    engine = TorchtuneEngine(recipe, typed_llm(), pad_id=0)
    after_tuning.train_on(engine, probe, iter([]))
    assert tidied == [name]
