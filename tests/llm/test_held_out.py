"""The loss of held-out rows: that of a plain loop of transformers, with each engine, on one rank
and several; and a training that goes on as if nothing had been measured.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX as IGNORED

from multicard.llm import held_out, summary
from multicard.llm import workload as llm
from multicard.llm.collectives import ReceivedBytes
from multicard.llm.held_out import Evaluator, batches_of_rank
from multicard.llm.step_probe import Probe
from multicard.ranks.process import Rank
from multicard.records.rank_files import CountedEpoch, LlmReport
from multicard.records.schema_data import Evaluation, HeldOut
from multicard.records.schema_parts import Divergence
from tests.conftest import Called, Tuning, ok
from tests.helpers import plain_losses, traces
from tests.helpers.messages import find, remedies, says
from tests.helpers.tuning import ENGINES, NEEDS_TRL, losses_of

STAYS = ("lr=1e-30",)  # the weights stay as they were drawn
ROUNDING = 1e-5  # of a loss of about 7 in fp32


# ---- shares of ranks, sums and the summary


@pytest.mark.parametrize(("count", "ranks", "batch"), [(5, 2, 2), (1, 3, 4), (12, 3, 2), (7, 1, 3)])
def test_each_row_is_one_ranks_and_all_have_as_many_batches(count: int, ranks: int, batch: int):
    found = [batches_of_rank(count, ranks, rank, batch) for rank in range(ranks)]
    assert sorted(place for own in found for places in own for place in places) == [*range(count)]
    assert len({len(own) for own in found}) == 1
    assert all(len(places) <= batch for own in found for places in own)


class Rows(list[Any]):
    """Rows of so many labelled tokens, each token the row's place;
    in the data set they have the places 10 and more.
    """

    def __init__(self, lengths: list[int]) -> None:
        places = range(len(lengths))
        super().__init__(
            {name: [place] * (lengths[place] + 1) for name in ("tokens", "labels")}
            for place in places
        )
        self.columns = {
            "row": [10 + place for place in places],
            "is_trained": [place == 0 for place in places],
        }

    def column(self, name: str) -> list[Any]:
        return self.columns[name]


def counting(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A row's loss: each labelled token costs its own value."""
    is_label = labels[:, 1:] != IGNORED
    return (labels[:, 1:] * is_label).sum(1).double()


def evaluator(row_losses: Any, lengths: list[int], batch: int = 2) -> Evaluator:
    rank = Rank(0, 0, 1, torch.device("cpu"), "gloo", 1)
    engine: Any = SimpleNamespace(model=torch.nn.Linear(1, 1), row_losses=row_losses)
    rows: Any = Rows(lengths)
    return Evaluator(rank, engine, rows, batch, -1, ReceivedBytes())


def test_every_labelled_token_weighs_as_much_as_any_other(tmp_path: Path):
    scored = evaluator(counting, [1, 5, 2])
    found = scored.evaluate(tmp_path)
    assert found.loss == (0 * 1 + 1 * 5 + 2 * 2) / 8 and found.margin is found.ranked_right is None
    assert (scored.content.rows, scored.content.tokens, scored.content.also_trained) == (3, 8, 1)
    table = pq.read_table(tmp_path / held_out.LOSSES).to_pydict()
    assert table == {"row": [10, 11, 12], "loss": [0.0, 5.0, 4.0], "tokens": [1, 5, 2]}
    assert [path.name for path in tmp_path.iterdir()] == [held_out.LOSSES]


def test_bytes_of_an_evaluation_are_none_of_the_trainings(tmp_path: Path):
    scored = evaluator(counting, [1])

    def exchanging(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scored.traffic.bytes["all_gather"] += 100
        return counting(tokens, labels)

    scored.engine.row_losses = exchanging
    scored.traffic.bytes["all_gather"] = 7
    scored.evaluate(tmp_path)
    assert scored.traffic.rounded_counts()["all_gather"] == 7


def report(rank: int, slower_s: float, losses: list[float | None]) -> LlmReport:
    """Of a rank whose evaluations after 2, 4, 6 ... steps have these losses;
    it has ended two epochs of 4 steps.
    """
    evaluations = [
        Evaluation((step - 1) // 4, step, 1.0 + slower_s, 10.0 * step + slower_s, loss)
        for step, loss in zip(range(2, 100, 2), losses, strict=False)
    ]
    epochs = [CountedEpoch(epoch, 30.0, 40.0 * (epoch + 1), steps=4) for epoch in range(2)]
    return LlmReport(rank=rank, epochs=epochs, held_out=HeldOut(5, 50, 0, evaluations))


def test_the_record_has_the_slowest_ranks_times_of_epochs_that_ended():
    losses = [3.0, 2.5, 2.0, 1.5, 1.0]
    found = summary.held_out([report(0, 0.0, losses), report(1, 0.5, losses[:4])], ended_epochs=2)
    assert found is not None and (found.rows, found.tokens) == (5, 50)
    assert [(each.epoch, each.step, each.loss) for each in found.evaluations] == [
        (0, 2, 3.0),
        (0, 4, 2.5),
        (1, 6, 2.0),
        (1, 8, 1.5),
    ]
    assert {each.evaluate_s for each in found.evaluations} == {1.5} and found.evaluations[
        0
    ].ended_s == 20.5
    assert summary.held_out([report(0, 0.0, losses)], ended_epochs=1).evaluations[-1].step == 4  # pyright: ignore[reportOptionalMemberAccess]
    assert (
        summary.held_out([LlmReport(rank=0)], ended_epochs=1) is None
        and summary.held_out([], ended_epochs=0) is None
    )


@pytest.mark.parametrize(
    ("losses", "target", "reached_s"),
    [
        ([3.0, 2.5, 2.0, 1.5], 2.5, 40.0),
        ([3.0, 2.5, 2.0, 1.5], 1.0, None),
        ([None, 2.0], 2.0, 40.0),
        ([3.0], None, None),
    ],
)
def test_the_time_to_a_loss_is_that_of_the_first_evaluation_below_it(
    losses: list[float | None], target: float | None, reached_s: float | None
):
    found = report(0, 0.0, losses).held_out
    assert found is not None and summary._time_to_target_s(found.evaluations, target) == reached_s


def test_a_held_out_loss_that_is_not_finite_is_a_divergence():
    found = report(0, 0.0, [3.0, 2.0, None, None]).held_out
    assert found is not None
    ended: Any = [SimpleNamespace(steps=4), SimpleNamespace(steps=4)]
    assert summary._diverged_when_held_out(found.evaluations, ended) == Divergence(1, 1, None)
    assert summary._diverged_when_held_out(found.evaluations[:2], ended) is None


# ---- the same loss as a plain loop's


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "words", [["method=lora", "lr=3e-3"], ["method=full", "lr=1e-3"]], ids=lambda w: w[0]
)
def test_it_is_the_loss_of_a_plain_loop(alone: Callable[..., Any], engine: str, words: list[str]):
    run = alone(*words, f"engine={engine}", "epochs=2")
    assert len(run.rows) == run.report.held_out.rows == 8
    plain = plain_losses.plain_model(run.config, run.model, run.report.vocabulary)
    assert losses_of(run)[-1] == pytest.approx(plain_losses.loss(plain, run.rows), abs=ROUNDING)
    assert losses_of(run)[-1] < losses_of(run)[0]
    by_row = [plain_losses.row_loss(plain, row["tokens"], row["labels"]) for row in run.rows]
    table = pq.read_table(run.folder / held_out.LOSSES).to_pydict()
    assert table["tokens"] == [count for _, count in by_row] and table["row"] == [*range(8)]
    np.testing.assert_allclose(table["loss"], [nats for nats, _ in by_row], rtol=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_of_pairs_it_is_dpos_loss_of_a_plain_loop(alone: Callable[..., Any], engine: str):
    run = alone("method=dpo", "lr=3e-3", f"engine={engine}", "eval_steps=2")
    own, reference = (
        plain_losses.plain_model(run.config, run.model, run.report.vocabulary, adapted)
        for adapted in (True, False)
    )
    loss, right, margin = plain_losses.pairs(own, reference, run.config.method.beta, run.rows)
    last = run.report.held_out.evaluations[-1]
    assert (last.loss, last.ranked_right) == pytest.approx((loss, right), abs=ROUNDING)
    assert last.margin == pytest.approx(margin, abs=ROUNDING) and last.margin != 0
    assert [evaluation.step for evaluation in run.report.held_out.evaluations] == [2, 3]
    table = pq.read_table(run.folder / held_out.LOSSES).to_pydict()
    assert table["tokens"] == [1] * 8 and np.mean(table["loss"]) == pytest.approx(last.loss)


@pytest.mark.slow
@NEEDS_TRL
@pytest.mark.parametrize(
    ("words", "apart"),
    [
        (["method=qlora"], 5e-3),
        (["method=qat", "warmup_steps=null"], 1e-3),
        (["model=qwen2_5_tiny"], ROUNDING),
    ],
    ids=str,
)
def test_both_engines_measure_the_same(alone: Callable[..., Any], words: list[str], apart: float):
    """QLoRA's bases are NF4 of two libraries; of QAT,
    an activation next to a boundary may round to another int8.
    """
    found = [
        losses_of(alone(*words, *STAYS, f"engine={engine}"))[-1] for engine in ("torchtune", "trl")
    ]
    assert found[0] == pytest.approx(found[1], abs=apart)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_packed_rows_are_measured_as_they_are_without_packing(
    alone: Callable[..., Any], engine: str
):
    usual = ("method=full", *STAYS, f"engine={engine}", "max_seq_len=128", "max_steps=1")
    apart, packed = alone(*usual), alone(*usual, "packed=true")
    assert losses_of(packed)[-1] == pytest.approx(losses_of(apart)[-1], abs=ROUNDING)
    assert packed.report.held_out.tokens == apart.report.held_out.tokens


# ---- the training goes on as if nothing had been measured


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """What each evaluation changed of the model, its modes, its hooks and the random numbers."""
    found, evaluate = list[list[str]](), Evaluator.evaluate

    def compared(self: Evaluator, folder: Path) -> Any:
        before = traces.snapshot(self.engine.model)
        result = evaluate(self, folder)
        found.append(traces.changes(before, traces.snapshot(self.engine.model)))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", compared)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["method=lora", "method.lora_dropout=0.3"],
        ["method=full", "activation_checkpointing=true", "gradient_accumulation_steps=2"],
        ["method=dpo"],
        pytest.param(["method=lora", "method.lora_dropout=0.3", "engine=trl"], marks=NEEDS_TRL),
        pytest.param(["method=qlora", "method.lora_dropout=0.3", "engine=trl"], marks=NEEDS_TRL),
        pytest.param(["method=dpo", "engine=trl"], marks=NEEDS_TRL),
        pytest.param(["method=qat", "warmup_steps=null", "engine=trl"], marks=NEEDS_TRL),
    ],
    ids=" ".join,
)
def test_no_later_step_knows_of_an_evaluation(
    alone: Callable[..., Any], words: list[str], monkeypatch: pytest.MonkeyPatch
):
    """As on a CPU with AVX512-BF16, too, for which
    bitsandbytes packs 4-bit weights in evaluation mode.
    """
    if "method=qlora" in words:
        import bitsandbytes.nn.modules as quantised

        monkeypatch.setattr(quantised, "has_avx512bf16", lambda: True)
        monkeypatch.setattr(
            quantised,
            "_convert_weight_packed_for_cpu",
            lambda *_: pytest.fail("weights were packed for inference"),
        )
    usual = (*words, "lr=1e-3", "epochs=2")
    with watched(monkeypatch) as changed:
        measured = alone(*usual, "eval_steps=1")
    assert changed == [[]] * 6 and len(losses_of(measured)) == 6  # epochs end where a step does
    weights = {name: weight.clone() for name, weight in measured.model.state_dict().items()}
    nothing = held_out.EvaluationResult(0.0)
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_: nothing)
    plain = list[Any]()
    end_epoch = Probe.end_epoch
    monkeypatch.setattr(
        Probe,
        "end_epoch",
        lambda self: (plain.append(self.held_out.evaluator.engine.model), end_epoch(self))[1],
    )  # pyright: ignore[reportOptionalMemberAccess]
    without = alone(*usual)
    np.testing.assert_array_equal(measured.steps["loss"], without.steps["loss"])
    assert len(weights) > 10
    for name, weight in plain[-1].state_dict().items():
        # NF4's bits may be no numbers
        assert weight.numpy().tobytes() == weights[name].numpy().tobytes(), name


@pytest.mark.slow
def test_no_clock_of_the_steps_counts_an_evaluation(
    alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Of one that takes half a second: a step takes some ten milliseconds."""
    from multicard.measure import timing

    evaluate = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", lambda *a: (timing.pause(0.5), evaluate(*a))[1])
    run = alone("method=full", "eval_steps=1", "epochs=2", "max_steps=2")
    assert [(each.epoch, each.step) for each in run.report.held_out.evaluations] == [
        (0, 1),
        (0, 2),
        (1, 3),
        (1, 4),
    ]
    assert all(each.evaluate_s > 0.5 for each in run.report.held_out.evaluations)
    steps_s = run.steps["step_s"].sum()
    evaluated_s = sum(each.evaluate_s for each in run.report.held_out.evaluations)
    trained_s = sum(epoch.train_s for epoch in run.report.epochs)
    assert steps_s == pytest.approx(trained_s, rel=0.05) and run.steps["data_s"].max() < 0.4
    last = run.report.epochs[-1]
    assert last.ended_s == pytest.approx(trained_s + evaluated_s, abs=0.4)
    assert run.report.held_out.evaluations[-1].ended_s <= last.ended_s + 0.05
    assert run.report.spans_s[-1][1] - run.report.spans_s[0][0] == pytest.approx(last.ended_s)


@pytest.mark.slow
def test_a_run_stops_at_a_held_out_loss_within_an_epoch(alone: Callable[..., Any]):
    run = alone(
        "method=full",
        "lr=3e-3",
        "epochs=3",
        "eval_steps=2",
        "target_loss=100",
        "stop_at_target=true",
    )
    assert [each.step for each in run.report.held_out.evaluations] == [2]
    assert [epoch.steps for epoch in run.report.epochs] == [2] and len(run.steps["loss"]) == 2
    goes_on = alone("method=full", "epochs=2", "target_loss=1e-6", "stop_at_target=true")
    assert [epoch.steps for epoch in goes_on.report.epochs] == [3, 3]


@pytest.mark.slow
def test_a_run_whose_held_out_loss_is_not_finite_stops_at_the_end_of_the_epoch(
    alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_: held_out.EvaluationResult(math.nan))
    run = alone("method=full", "epochs=3")
    assert len(run.report.epochs) == 1 and np.isfinite(run.steps["loss"]).all()
    assert losses_of(run) == [None]


@pytest.mark.slow
def test_held_out_rows_that_are_all_cut_are_refused(alone: Callable[..., Any], tmp_path: Path):
    """Where some of the others keep their answer."""
    from multicard.llm.data import held_out_rows
    from tests.llm.test_held_out_rows import answers, write

    measured = held_out_rows.drawn(10, 2)
    rows = answers(10)
    for place in measured:
        rows[place]["instruction"] = "Say nothing of this. " * 80
    data = f"dataset.data_files={write(tmp_path / 'rows.jsonl', rows)}"
    words = (
        "dataset=chat",
        data,
        "dataset.split=0.2",
        "max_seq_len=100",
        "device=cpu",
        "max_steps=1",
    )
    with pytest.raises(ValueError, match=r"llm.held-out-cut-off") as caught:
        alone(*words, short=())
    message = caught.value.message  # pyright: ignore[reportAttributeAccessIssue]
    assert (message.key, message.facts["rows"]) == ("max_seq_len", 2)
    for remedy in remedies(message):
        changed = {word.partition("=")[0]: word for word in (*words, *remedy.split())}
        assert alone(*changed.values(), short=()).report.epochs


# ---- several ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["method=full"],
        ["method=dpo"],
        ["method=lora", "custom_sharded_layers=[tok_embeddings,output]"],
        pytest.param(["method=lora", "engine=trl"], marks=NEEDS_TRL),
        pytest.param(["method=full", "engine=trl", "sharding=ddp"], marks=NEEDS_TRL),
        pytest.param(["method=dpo", "engine=trl"], marks=NEEDS_TRL),
    ],
    ids=" ".join,
)
def test_two_ranks_measure_what_one_does(tuned: Tuning, words: list[str]):
    """Of an odd number of rows and batches of two, so that one rank has a batch without a row."""
    usual = [
        "dataset.rows=46",
        "dataset.split=0.11",
        "template=grammar",
        "model.vocab_size=1600",
        "warmup_steps=0",
    ]
    alone = [word for word in words if not word.startswith(("sharding", "custom"))]
    one, two = ok(tuned(*usual, *STAYS, *alone)), ok(tuned(*usual, *STAYS, *words, "gpus=2"))
    assert one["held_out"]["rows"] == two["held_out"]["rows"] == 5
    found = [run["held_out"]["evaluations"][-1]["loss"] for run in (one, two)]
    assert found[1] == pytest.approx(found[0], abs=ROUNDING)
    tables = [
        pq.read_table(Path(run["folder"]) / held_out.LOSSES).to_pydict() for run in (one, two)
    ]
    assert tables[0]["row"] == tables[1]["row"] and tables[0]["tokens"] == tables[1]["tokens"]
    np.testing.assert_allclose(tables[1]["loss"], tables[0]["loss"], rtol=ROUNDING)
    assert two["evaluate_s"] > 0 and two["total_s"] > two["evaluate_s"]
    unmeasured = ok(tuned(*usual, *STAYS, *words, "gpus=2", "dataset.rows=41", "dataset.split=0"))
    assert two["communication_bytes"] == unmeasured["communication_bytes"]


@pytest.mark.slow
@NEEDS_TRL
def test_two_ranks_of_both_engines_measure_the_same_after_some_steps(tuned: Tuning):
    usual = [
        "dataset.rows=40",
        "dataset.split=0.2",
        "gpus=2",
        "model.vocab_size=1600",
        "lr=1e-3",
        "method=full",
    ]
    found = [
        ok(tuned(*usual, *words)) for words in ([], ["engine=trl"], ["engine=trl", "sharding=ddp"])
    ]
    losses = [run["held_out"]["evaluations"][-1]["loss"] for run in found]
    assert (
        losses[1:] == pytest.approx([losses[0]] * 2, abs=1e-4)
        and losses[0] < found[0]["loss"]["first"] - 0.05
    )


@pytest.mark.slow
def test_no_graph_is_compiled_for_an_evaluation(tuned: Tuning, monkeypatch: pytest.MonkeyPatch):
    from dataclasses import replace

    work = "tests.helpers.rank_work_llm:tune_and_count_graphs"
    monkeypatch.setattr(llm, "WORKLOAD", replace(llm.WORKLOAD, work=work))
    run = ok(tuned("compile=true", "dataset.rows=40", "dataset.split=0.2", "eval_steps=1"))
    before, after = torch.load(Path(run["folder"]) / "0.pt")
    assert before == after > 0 and len(run["held_out"]["evaluations"]) == 4


# ---- a command, from its words to its record


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_resumed_sweep_measures_as_its_records(called: Called, tmp_path: Path):
    from tests.llm.test_held_out_rows import answers, write

    data = f"dataset.data_files={write(tmp_path / 'rows.jsonl', answers(40))}"
    words = [
        "-m",
        "dataset=alpaca_cleaned",
        data,
        "max_steps=2",
        "skip_steps=0",
        "device=cpu",
        "tracker.mode=disabled",
    ]
    words += [f"hydra.sweep.dir={tmp_path / 'sweep'}", "order=typed"]
    code, printed = called(*words, "dataset.split=0", "lr=1e-4", entry="tune_llm.py")
    assert code == 0 and not says(printed, "llm.held-out"), printed
    (file,) = (tmp_path / "sweep").glob("*/result.json")
    older = json.loads(file.read_text())
    for name in ("split", "test_files"):
        del older["config"]["dataset"][name]
    file.write_text(json.dumps(older))
    code, printed = called(*words, "lr=1e-4,1e-3", entry="tune_llm.py")
    assert code == 0, printed
    assert find(printed, "sweep.as-before", key="dataset.split") and says(
        printed, "sweep.as-before"
    )
    found = [json.loads(path.read_text()) for path in (tmp_path / "sweep").glob("*/result.json")]
    assert len(found) == 2 and [each.get("held_out") for each in found] == [None, None]
    code, printed = called(*words, "lr=1e-2", "dataset.split=0.1", entry="tune_llm.py")
    assert code == 0 and says(printed, "llm.held-out", rows=4, trained=36), printed
    assert len([*(tmp_path / "sweep").glob("*/held_out.parquet")]) == 1
