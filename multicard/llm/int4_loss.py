"""Measure the held-out loss of a quantised model at the end of a run.

A failure here must not cost the run its result. FSDP's collectives are inside the model's calls, so
a rank that fails still calls the model as often as the others. Afterwards, all ranks learn that one
failed, and none reports a loss. Only a rank that failed inside the model's call must end, which
ends the others too. The controller then reads in its report that the training itself was measured
(see `int4_missing`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from torch import nn
from torch.distributed.fsdp import FSDPModule

from multicard.config.llm import LlmConfig
from multicard.llm import int4, int4_missing
from multicard.llm.held_out import Evaluator
from multicard.llm.no_trace import without_trace
from multicard.llm.tuning_report import TuningReport
from multicard.measure import timing
from multicard.ranks.process import max_over_ranks
from multicard.records.schema_data import InInt4Loss


@dataclass
class Calls:
    """Counts how often a model was called, and how many of these calls returned."""

    begun: int = 0
    ended: int = 0


def measure(evaluator: Evaluator, config: LlmConfig, report: TuningReport) -> None:
    """Add the loss in int4 to the report, or the reason why there is none.

    Models that are not quantised have no such loss. All ranks must call this together. The time
    does not count in any figure of the run.
    """
    report.content.scoring_in_int4 = True
    report.write()
    failures: list[Exception] = []
    groupsize = int4.groupsize(config, evaluator.engine.model)
    if groupsize is not None:
        evaluator.content.in_int4 = _score_in_int4(evaluator, groupsize, failures, report.folder)
    if failures:
        evaluator.content.int4_problem = int4_missing.problem(failures[0], evaluator.rank.rank)
    report.content.scoring_in_int4 = False
    report.write()


def _score_in_int4(
    evaluator: Evaluator, groupsize: int, failures: list[Exception], folder: Path
) -> InInt4Loss | None:
    """Score all rows in int4. Return None on every rank if one of them fails.

    Args:
        failures: A failure of this rank is added.
        folder: The run folder, where each row's loss is written.
    """
    began_s = timing.clock_s()
    scores = evaluator.empty_scores()
    model = evaluator.engine.model
    with evaluator.traffic.paused(), without_trace(model), counting_calls(model) as calls:
        try:
            with evaluator.engine.in_int4(groupsize) as layer_failures:
                for indices in evaluator.batches:
                    evaluator.score_batch(scores, indices)
            failures += layer_failures
        # Several libraries may raise. The run itself was measured.
        except Exception as error:
            if calls.begun > calls.ended and _is_sharded(model):
                raise
            int4.store_failure(failures, error)
        while _is_sharded(model) and calls.ended < len(evaluator.batches):
            evaluator.score_batch(scores, [])
        if max_over_ranks(evaluator.rank, int(bool(failures))):
            return None
        evaluator.exchange(scores)
    losses, tokens, _ = scores.T
    loss = float(losses.sum() / tokens.sum())
    evaluator.add_in_int4(losses, folder)
    return InInt4Loss(loss if isfinite(loss) else None, groupsize, timing.clock_s() - began_s)


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(module, FSDPModule) for module in model.modules())


@contextmanager
def counting_calls(model: nn.Module) -> Iterator[Calls]:
    """Count the model's calls within this context."""
    calls = Calls()

    def count_begun(*_: object) -> None:
        calls.begun += 1

    def count_ended(*_: object) -> None:
        calls.ended += 1

    hooks = [
        model.register_forward_pre_hook(count_begun, prepend=True),
        model.register_forward_hook(count_ended),
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
