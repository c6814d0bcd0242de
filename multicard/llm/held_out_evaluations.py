"""Evaluate held-out rows during a run's training."""

from collections.abc import Callable

from multicard.config.llm import LlmConfig
from multicard.llm.held_out import EvaluationResult, Evaluator
from multicard.llm.tuning_report import TuningReport
from multicard.measure import timing


class HeldOutEvaluations:
    """Evaluates when an evaluation is due, and reports the result and the time.

    Attributes:
        evaluator: Scores the rows. None if no rows are held out.
        last_result: The result of the last evaluation.
        lasted_s: The time of all evaluations so far, which the clock of the steps leaves out.
    """

    def __init__(self, config: LlmConfig, report: TuningReport) -> None:
        self.config = config
        self.report = report
        self.evaluator: Evaluator | None = None
        self.last_result: EvaluationResult | None = None
        self.lasted_s = 0.0
        self._last_step = 0

    def is_due(self, step: int) -> bool:
        """Return True if `eval_steps` asks for the held-out loss after this step."""
        interval = self.config.eval_steps
        return self.evaluator is not None and interval is not None and step % interval == 0

    def evaluate(self, step: int, since_s: float, post_progress: Callable[[bool], None]) -> None:
        """Measure the held-out loss after step `step` of the run, unless it is already known.

        All ranks must call this together.

        Args:
            since_s: The start of the training on the machine's clock, plus the time of all pauses.
            post_progress: Called with True when the evaluation starts, and with False when it ends.
        """
        if self.evaluator is None or self._last_step == step:
            return
        began_s = timing.clock_s()
        post_progress(True)
        self.last_result = self.evaluator.evaluate(self.report.folder)
        self._last_step = step
        post_progress(False)
        ended_s = timing.clock_s()
        lasted_s = ended_s - began_s
        self.lasted_s += lasted_s
        self.report.add_evaluation(
            self.evaluator.content, self.last_result, step, lasted_s, ended_s - since_s
        )

    @property
    def is_at_target(self) -> bool:
        """True if the run should stop. All ranks know the same loss, so they agree."""
        target = self.config.target_loss
        return (
            self.config.stop_at_target
            and self.last_result is not None
            and self.last_result.loss <= (target or 0.0)
        )

    @property
    def has_diverged(self) -> bool:
        return self.last_result is not None and not self.last_result.is_finite
