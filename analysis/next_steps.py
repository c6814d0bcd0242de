"""Say what limits a recommended setting, and advise what to try next.

The advice follows from a diagnosis, the GPU's published rates, the phases of a step, or the number
of repetitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from multicard.config import schema
from multicard.config.job import count
from multicard.messages import Message, code_of
from multicard.records.bounds import Bound
from multicard.records.text_table import capital

from . import rerun_commands
from .commands.ranking import RankedSetting, Ranking
from .recommended import ADVISED_REPETITIONS
from .runs import details, grouping
from .runs.columns import KINDS, STEPS, RunKind
from .runs.details import DetailedRun
from .runs.load import Run

PHASE_NAMES = {  # How a sentence calls the largest phase of a step.
    "data": "waiting for data",
    "h2d": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimiser",
}
BATCH_FACTORS = (1, 2, 4)  # Batch sizes to try, as multiples of the measured one.
# The codes of failings that concern how much the runs trained.
AMOUNT_FAILINGS = ("amounts.unequal-repetitions", "answer.unknown-amounts")


@dataclass(frozen=True)
class Advice:
    """A sentence and the command that follows it.

    The command is None if the sweep's folder does not hold the command that it derives from.
    """

    sentence: Message
    command: str | None


@dataclass(frozen=True)
class NextSteps:
    """What limits a setting, and what to try next.

    ranking: the ranking of the setting's workload.
    best: the setting.
    command: the command that runs it; None if it is unknown.
    failings: the reasons why its figures are worthless.
    needed: the number of repetitions that would show how it compares with the other setting; None
        if no number would.
    others_repeated: True if this setting, or the one that it is compared with, was repeated.
    """

    ranking: Ranking
    best: RankedSetting
    command: str | None
    failings: Sequence[Message]
    needed: int | None
    others_repeated: bool

    @cached_property
    def _detailed_runs(self) -> list[DetailedRun]:
        return details.read_details(self.best.counted)

    @cached_property
    def limit(self) -> Advice:
        """What limits the setting: its diagnosis, else the largest phase of its steps."""
        bound = self._bound
        (option, method) = self._run_kind.limit
        if bound is not None and bound.is_measured:
            limit = bound.finding
            return Advice(
                Message("answer.diagnosed", f"{capital(limit)}.", limit=limit),
                self._command_with(option),
            )
        if bound is not None:
            text = f"{capital(bound.finding)}. `{option}` measures it."
            return Advice(
                Message("answer.by-rates", text, limit=bound.finding, words=option),
                self._command_with(option),
            )
        phases = self._detailed_runs[0].phases_s
        if not sum(phases.values()):
            text = f"Not known yet: `{option}` measures it, by {method}."
            return Advice(
                Message("answer.limit-unknown", text, words=option), self._command_with(option)
            )
        largest = max(phases, key=lambda phase: phases[phase])
        share = phases[largest] / sum(phases.values())
        text = (
            f"{capital(PHASE_NAMES[largest])} takes {share:.0%} of a step. `{option}` says"
            " why: it leaves"
        )
        text += " out one cost at a time."
        return Advice(
            Message("answer.largest-phase", text, phase=largest, share=share, words=option),
            self._command_with(option),
        )

    @cached_property
    def _advice_on_amounts(self) -> Advice | None:
        """Advice on how much the runs should train; None if they trained enough."""
        if any(code_of(failing) in AMOUNT_FAILINGS for failing in self.failings):
            text = (
                "Have each run train as much, and record how much: runs that differ in this do not"
                " compare."
            )
            return Advice(Message("answer.train-as-much", text), None)
        first_run = self.best.runs[0]
        steps_first = ("max_steps", STEPS, "epochs")  # no roles: the order of advice.
        lengths = (key for key in steps_first if first_run[key] is not None)
        longer_run = next((f"{key.rpartition('.')[2]}={4 * first_run[key]}" for key in lengths), "")
        if self.failings:
            text = "Train longer: these runs are too short to measure the setting."
            return Advice(Message("answer.train-longer", text), self._command_with(longer_run))
        at_chance = sum(map(self.ranking.repeated.at_chance, self._runs_by_setting))
        if not at_chance or not longer_run:
            return None
        settings = count(len(self.ranking.settings), "setting")
        text = (
            f"Train longer, as with `{longer_run}`: {at_chance} of {settings} did not learn in"
            " these runs."
        )
        return Advice(Message("answer.compare-longer", text, settings=at_chance), None)

    @property
    def _runs_by_setting(self) -> list[list[Run]]:
        return [setting.runs for setting in self.ranking.settings]

    @cached_property
    def next(self) -> Advice:
        """What to try next.

        A known bound advises first. Runs should be longer if their figures are worthless, or if
        some settings did not learn. Single runs should be repeated. Otherwise, an axis that was not
        varied should be swept.
        """
        first_run = self.best.runs[0]
        if self._untried_advice is not None and (self._is_diagnosed or not self.failings):
            return self._advise(self._untried_advice)
        if self._advice_on_amounts is not None:
            return self._advice_on_amounts
        if len(self.best.counted) == 1:
            return self._advise_repeating
        phases = self._detailed_runs[0].phases_s
        largest = max(phases, key=lambda phase: phases[phase]) if phases else None
        keys = (
            self._run_kind.to_sweep if largest is None else schema.tries(first_run["kind"], largest)
        )
        # Only DPO reads pairs, so its runs offer no other method.
        pair_keys = ["method"] if first_run["reward_accuracy"] is not None else []
        taken_keys = [*self.ranking.keys, *pair_keys]
        key = next((key for key in keys if key not in taken_keys), None)
        if key is None:
            option, method = self._run_kind.limit
            return Advice(
                Message("answer.see-limit", f"See what limits it: {method}."),
                self._command_with(option),
            )
        advice = Message("answer.sweep", f"Sweep {key}, which was not varied.", key=key)
        return Advice(
            advice, self._command_with(f"{key}={','.join(_values_to_try(first_run, key))}")
        )

    @cached_property
    def _bound(self) -> Bound | None:
        """What bounds the setting: the diagnosis of one of its runs, else the published rates."""
        bounds = [run.bound for run in self._detailed_runs if run.bound is not None]
        return next((bound for bound in bounds if bound.is_measured), bounds[0] if bounds else None)

    @property
    def _is_diagnosed(self) -> bool:
        return self._bound is not None and self._bound.is_measured

    @property
    def _untried_advice(self) -> str | None:
        """What the bound advises; published rates advise only keys that were not swept."""
        if self._bound is None:
            return None
        if self._bound.is_measured:
            return self._bound.tries[0] if self._bound.tries else None
        keys_by_advice = [
            {word.partition("=")[0] for word in words.split()} for words in self._bound.tries
        ]
        pairs = zip(self._bound.tries, keys_by_advice, strict=True)
        return next(
            (words for words, advised_keys in pairs if not advised_keys & {*self.ranking.keys}),
            None,
        )

    def _advise(self, advice: str) -> Advice:
        """Advise an option, with its command if it is typed as overrides."""
        words = advice.split()
        is_typed = all("=" in word for word in words)
        text = f"Try {advice}." if is_typed else f"{capital(advice)}."
        return Advice(
            Message("answer.try", text, advice=advice),
            self._command_with(advice if is_typed else words[0]),
        )

    @property
    def waits(self) -> Advice | None:
        """A notice that the GPU computes little, with what to try next.

        It is None if the GPU is busy, or if a diagnosis says more.
        """
        if self._bound is None or self._is_diagnosed:
            return None
        text = f"{capital(self._bound.finding)}."
        command = None
        if self._untried_advice is not None:
            text, command = (
                f"{text} Try next: `{self._untried_advice}`.",
                self._command_with(self._untried_advice),
            )
        return Advice(
            Message(
                "answer.gpu-waits", text, finding=self._bound.finding, tries=self._untried_advice
            ),
            command,
        )

    @property
    def _advise_repeating(self) -> Advice:
        """Advise to repeat the setting, which has one undisturbed run.

        The command asks for the number of repetitions in the headline. If that has none, it asks
        for one more run than there is, and at least for three.
        """
        runs = len(self.best.runs)
        disturbed = runs - 1
        text = "Repeat the runs: single ones do not show how runs differ."
        if disturbed:
            text = (
                f"Repeat the runs on a quiet machine: {disturbed} of the {runs} of this setting "
                f"{'was' if disturbed == 1 else 'were'} disturbed."
            )
        elif self.others_repeated:
            text = "Repeat the runs: this setting has a single one."
        repetitions = max(ADVISED_REPETITIONS[0], runs + 1, self.needed or 0)
        command = sweep_of(self.best)
        if command is not None:
            command = rerun_commands.with_word(command, f"repeat={repetitions}", sweeps=True)
        return Advice(Message("answer.repeat", text, runs=runs, disturbed=disturbed), command)

    @property
    def _run_kind(self) -> RunKind:
        return KINDS[self.best.runs[0]["kind"]]

    def _command_with(self, words: str) -> str | None:
        """Return the setting's command with further words, as a measurement of its own."""
        command = self.command if "=" in words else None
        for word in words.split() if command is not None else ():
            command = rerun_commands.with_word(command or "", word, sweeps="," in word)
        return command


def sweep_of(setting: RankedSetting) -> str | None:
    """Return the command of the sweep that measured a setting, or None if it is unknown."""
    commands = rerun_commands.of_sweeps(setting.runs)
    return commands[0] if commands else None


def _values_to_try(run: Run, key: str) -> list[str]:
    current_value = grouping.typed(run[key])
    if key == "batch_size":
        return [str(factor * run[key]) for factor in BATCH_FACTORS]
    other_values = schema.values_to_try(run["kind"])[key].values
    return list(
        dict.fromkeys([*([current_value] if current_value != "null" else []), *other_values])
    )
