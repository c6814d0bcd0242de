"""What limits a recommended setting, and what to try next: as a diagnosis, the GPU's published
rates, the phases of its steps or its repetitions tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from multicard.config import schema
from multicard.messages import Message, code_of
from multicard.records.bounds import Bound
from multicard.records.text_table import capital

from . import rerun_commands
from .commands.ranking import RankedSetting, Ranking
from .recommended import REPETITIONS
from .runs import details, grouping
from .runs.columns import KINDS, STEPS, RunKind
from .runs.details import DetailedRun
from .runs.load import Run

PHASES = {  # what a step's largest phase is called
    "data": "waiting for data",
    "h2d": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimiser",
}
FACTORS = (1, 2, 4)  # of a batch size, to try
OF_AMOUNTS = ("amounts.unequal-repetitions", "answer.unknown-amounts")  # codes of failings


@dataclass(frozen=True)
class Advice:
    """A sentence, and the command that goes with it;
    None where Hydra left none to derive it from.
    """

    sentence: Message
    command: str | None


@dataclass(frozen=True)
class NextSteps:
    """What limits a setting, and what to try next.

    Fields:
        ranking: of its workload. best: the setting.
        command: that runs it; None where Hydra left none.
        failings: what makes its figures worth nothing.
        needed: the repetitions that would tell it from what it is compared with; None where none
            would.
        others_repeated: the setting that it is compared with, or it itself, was repeated.
    """

    ranking: Ranking
    best: RankedSetting
    command: str | None
    failings: Sequence[Message]
    needed: int | None
    others_repeated: bool

    @cached_property
    def _runs(self) -> list[DetailedRun]:
        return details.read(self.best.counted)

    @cached_property
    def limit(self) -> Advice:
        """What limits the setting: as it was diagnosed, else the largest phase of its steps."""
        bound = self._bound
        (words, shown) = self._kind.limit
        if bound is not None and bound.is_measured:
            limit = bound.finding
            return Advice(
                Message("answer.diagnosed", f"{capital(limit)}.", limit=limit), self._with(words)
            )
        if bound is not None:
            said = f"{capital(bound.finding)}. `{words}` measures it."
            return Advice(
                Message("answer.by-rates", said, limit=bound.finding, words=words),
                self._with(words),
            )
        phases = self._runs[0].phases_s
        if not sum(phases.values()):
            said = f"Not known yet: `{words}` tells, by {shown}."
            return Advice(Message("answer.limit-unknown", said, words=words), self._with(words))
        largest = max(phases, key=lambda phase: phases[phase])
        share = phases[largest] / sum(phases.values())
        said = (
            f"{capital(PHASES[largest])} takes {share:.0%} of a step. `{words}` says why: it leaves"
            " out one cost at "
        )
        said += "a time."
        return Advice(
            Message("answer.largest-phase", said, phase=largest, share=share, words=words),
            self._with(words),
        )

    @cached_property
    def next(self) -> Advice:
        """What to try next: what is known to bound it advises; longer runs where these tell
        nothing; repetitions where there are none; an axis that was not swept.
        """
        first = self.best.runs[0]
        if self._untried is not None and (self._is_diagnosed or not self.failings):
            return self._try(self._untried)
        if any(code_of(failing) in OF_AMOUNTS for failing in self.failings):
            said = "Have each run train as much, and say how much: these do not compare."
            return Advice(Message("answer.train-as-much", said), None)
        if self.failings:
            steps_first = ("max_steps", STEPS, "epochs")  # no roles: advice, in this order
            lengths = (key for key in steps_first if first[key] is not None)
            longer = next((f"{key.rpartition('.')[2]}={4 * first[key]}" for key in lengths), "")
            said = "Train longer: these runs do not measure the setting."
            return Advice(Message("answer.train-longer", said), self._with(longer))
        if len(self.best.counted) == 1:
            return self._repeated
        phases = self._runs[0].phases_s
        largest = max(phases, key=lambda phase: phases[phase]) if phases else None
        keys = self._kind.to_sweep if largest is None else schema.tries(first["kind"], largest)
        pairs = ["method"] if first["reward_accuracy"] is not None else []  # are read by dpo alone
        fixed = [*self.ranking.keys, *pairs]
        key = next((key for key in keys if key not in fixed), None)
        if key is None:
            words, shown = self._kind.limit
            return Advice(
                Message("answer.see-limit", f"See what limits it: {shown}."), self._with(words)
            )
        swept = Message("answer.sweep", f"Sweep {key}, which was not varied.", key=key)
        return Advice(swept, self._with(f"{key}={','.join(_values(first, key))}"))

    @cached_property
    def _bound(self) -> Bound | None:
        """What bounds the setting: as one of its runs was diagnosed,
        else by the GPU's published rates.
        """
        known = [run.bound for run in self._runs if run.bound is not None]
        return next((bound for bound in known if bound.is_measured), known[0] if known else None)

    @property
    def _is_diagnosed(self) -> bool:
        return self._bound is not None and self._bound.is_measured

    @property
    def _untried(self) -> str | None:
        """What to try next against what bounds the setting; by published rates,
        of keys that were not swept.
        """
        if self._bound is None:
            return None
        if self._bound.is_measured:
            return next(iter(self._bound.tries), None)
        keys = [{word.partition("=")[0] for word in words.split()} for words in self._bound.tries]
        pairs = zip(self._bound.tries, keys, strict=True)
        return next((words for words, own in pairs if not own & {*self.ranking.keys}), None)

    def _try(self, advice: str) -> Advice:
        """That an option should be tried, with the command where it is typed as overrides."""
        words = advice.split()
        typed = all("=" in word for word in words)
        said = f"Try {advice}." if typed else f"{capital(advice)}."
        return Advice(
            Message("answer.try", said, advice=advice), self._with(advice if typed else words[0])
        )

    @property
    def waits(self) -> Advice | None:
        """That its GPU computes little, and what to try next; None where that is not so,
        or a diagnosis knows more.
        """
        if self._bound is None or self._is_diagnosed:
            return None
        said = f"{capital(self._bound.finding)}."
        command = None
        if self._untried is not None:
            said, command = f"{said} Try next: `{self._untried}`.", self._with(self._untried)
        return Advice(
            Message("answer.gpu-waits", said, finding=self._bound.finding, tries=self._untried),
            command,
        )

    @property
    def _repeated(self) -> Advice:
        """That the setting has one run to go by, and the command that repeats it as often as the
        headline says, else once more than now, or three times.
        """
        runs = len(self.best.runs)
        disturbed = runs - 1
        says = "Repeat the runs: single ones do not show how runs differ."
        if disturbed:
            says = (
                f"Repeat the runs on a quiet machine: {disturbed} of the {runs} of this setting "
                f"{'was' if disturbed == 1 else 'were'} disturbed."
            )
        elif self.others_repeated:
            says = "Repeat the runs: this setting has a single one."
        repetitions = max(REPETITIONS[0], runs + 1, self.needed or 0)
        command = sweep_of(self.best)
        if command is not None:
            command = rerun_commands.with_word(command, f"repeat={repetitions}", sweeps=True)
        return Advice(Message("answer.repeat", says, runs=runs, disturbed=disturbed), command)

    @property
    def _kind(self) -> RunKind:
        return KINDS[self.best.runs[0]["kind"]]

    def _with(self, words: str) -> str | None:
        """The setting's command with other words, as a measurement of its own."""
        command = self.command if "=" in words else None
        for word in words.split() if command is not None else ():
            command = rerun_commands.with_word(command or "", word, sweeps="," in word)
        return command


def sweep_of(setting: RankedSetting) -> str | None:
    """The command of the sweep that measured a setting;
    None where Hydra left none to derive it from.
    """
    return next(iter(rerun_commands.of_sweeps(setting.runs)), None)


def _values(run: Run, key: str) -> list[str]:
    own = grouping.typed(run[key])
    if key == "batch_size":
        return [str(factor * run[key]) for factor in FACTORS]
    others = schema.values_to_try(run["kind"])[key].values
    return list(dict.fromkeys([*([own] if own != "null" else []), *others]))
