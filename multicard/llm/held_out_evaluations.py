"""The evaluations of held-out rows within a run's training."""

from collections.abc import Callable

from multicard.config.llm import LlmConfig
from multicard.llm.held_out import EvaluationResult, Evaluator
from multicard.llm.tuning_report import TuningReport
from multicard.measure import timing


class HeldOutEvaluations:
    """Evaluates when it is due, and notes what that took.

    Attributes:
        evaluator: None where no rows are held out.
        last: the last evaluation.
        lasted_s: of all so far. No clock of the steps counts them.
    """

    def __init__(self, config: LlmConfig, report: TuningReport) -> None:
        self.config = config
        self.report = report
        self.evaluator: Evaluator | None = None
        self.last: EvaluationResult | None = None
        self.lasted_s = 0.0
        self._last_step = 0

    def is_due(self, step: int) -> bool:
        """Whether the held-out loss is asked for after a step within an epoch."""
        every = self.config.eval_steps
        return self.evaluator is not None and every is not None and step % every == 0

    def evaluate(self, step: int, since_s: float, say: Callable[[bool], None]) -> None:
        """Measure the held-out loss after the run's step `step`, unless it is known. All ranks call
        it together.

        Args:
            since_s: when training started, on the machine's clock, pauses added.
            say: called with True as it begins, and with False as it has ended.
        """
        if self.evaluator is None or self._last_step == step:
            return
        began_s = timing.clock_s()
        say(True)
        self.last = self.evaluator.evaluate(self.report.folder)
        self._last_step = step
        say(False)
        ended_s = timing.clock_s()
        lasted_s = ended_s - began_s
        self.lasted_s += lasted_s
        self.report.evaluation(self.evaluator.content, self.last, step, lasted_s, ended_s - since_s)

    @property
    def is_at_target(self) -> bool:
        """Whether the run is to stop, on all ranks alike: they know the same loss."""
        target = self.config.target_loss
        return (
            self.config.stop_at_target
            and self.last is not None
            and self.last.loss <= (target or 0.0)
        )

    @property
    def has_diverged(self) -> bool:
        return self.last is not None and not self.last.is_finite
