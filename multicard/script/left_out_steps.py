"""The steps that the statistics of a run leave out."""


class LeftOutSteps:
    """Collects the steps whose times say little about the others.

    A step is left out if an evaluation came before it, if its operations were watched, or if
    nobody saw when it began.
    """

    def __init__(self) -> None:
        self._reasons = 0  # Reasons to leave out the step that is under way.
        self._steps: list[int] = []
        # Steps after an evaluation in evaluation mode, and those with no other reason.
        self._after_mode: set[int] = set()
        self._after_mode_only: set[int] = set()

    def leave_out_next(self) -> None:
        """Leave out the step that is under way: there was an evaluation before it."""
        self._reasons += 1

    def leave_out_unseen_start(self) -> None:
        """Leave out the step that is under way: nobody saw when it began."""
        self._reasons = 1

    def withdraw(self) -> None:
        """Take a reason back: what seemed to be an evaluation was part of the step."""
        self._reasons -= 1

    def keep_next(self) -> None:
        """Keep the step that is under way: its mark says when it began."""
        self._reasons = 0

    def end_step(self, number: int, is_watched: bool, is_after_mode: bool) -> None:
        """Decide about a step that has ended.

        Args:
            number: the step, from 0.
            is_watched: its operations were watched, which made it slower.
            is_after_mode: an evaluation without a loader came before it, in evaluation mode.
        """
        if is_after_mode:
            self._after_mode.add(number)
        if self._reasons > 0 or is_watched:
            self._steps.append(number)
        elif is_after_mode:
            self._after_mode_only.add(number)
        self._reasons = 0

    def is_after_mode(self, number: int) -> bool:
        return number in self._after_mode

    def is_mode_usual(self, steps: int) -> bool:
        """Return True if evaluation mode belongs to most steps.

        Reinforcement learning, for instance, samples its rollouts in that mode before each update.
        """
        return 2 * len(self._after_mode_only) > steps

    def numbers(self, steps: int) -> set[int]:
        """Return the steps to leave out, of the first `steps` steps."""
        numbers = {*self._steps}
        if not self.is_mode_usual(steps):
            numbers.update(self._after_mode_only)
        return {number for number in numbers if number < steps}
