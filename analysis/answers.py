"""Answer, for each workload, what to run: one sentence with its evidence and its doubts.

The page, the end of a sweep, `best` and Python all show these sentences. No other module words a
recommendation. A sentence joins several messages: what to run and the figures behind it
(`answer_comparison`), then what it costs and why it may not be recommended (`answer_remarks`).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from multicard.config.job import count
from multicard.messages import Message
from multicard.records import figures
from multicard.records.text_table import first_few

from . import (
    answer_remarks,
    learned,
    next_steps,
    other_options,
    recommended,
    rerun_commands,
    training_command,
)
from .answer_comparison import SettingComparison
from .answer_remarks import ENERGY
from .commands.best import RankingSummary, known_rankings
from .commands.ranking import RankedSetting, Ranking
from .next_steps import Advice, NextSteps
from .runs.columns import KINDS
from .runs.grouping import MEMORY, of_setting
from .runs.load import Run

MAX_ALTERNATIVES = 3  # The most alternatives that are named.
MAX_ANSWERS = 3  # The most workloads whose answers are printed after a sweep or a report.
# The codes of the leads that recommend a setting.
RECOMMENDING_CODES = {"answer.run", "answer.as-good", "answer.keep", "answer.only-one"}


@dataclass(frozen=True)
class Answer:
    """What to run for one workload.

    work: the name of the workload.
    comparison: the recommended setting, and the one that it is compared with.
    """

    work: str
    comparison: SettingComparison

    @property
    def ranking(self) -> Ranking:
        return self.comparison.ranking

    @property
    def best(self) -> RankedSetting:
        return self.comparison.best

    @property
    def against(self) -> RankedSetting | None:
        return self.comparison.against

    @property
    def setting(self) -> str:
        return self.comparison.setting

    @property
    def marks(self) -> list[str]:
        return self.comparison.marks

    @property
    def failings(self) -> list[Message]:
        return self.comparison.failings

    def __repr__(self) -> str:
        return f"{self.work}: {self.sentence}"

    @property
    def is_recommended(self) -> bool:
        """True if the sentence recommends the setting, or if it is the only one."""
        return self.comparison.lead.code in {*RECOMMENDING_CODES, "answer.one-setting"}

    @property
    def recommended(self) -> RankedSetting | None:
        """The setting to use, or None.

        It is None if there is only one setting, if nothing is recommended, and if the runs cannot
        show which setting is faster.
        """
        return self.best if self.is_recommended and len(self.ranking.settings) > 1 else None

    @property
    def statement(self) -> str:
        """The recommendation with its evidence and costs, and why it cannot be made."""
        comparison = self.comparison
        clauses = [
            comparison.lead,
            *answer_remarks.fewer_ranks_suffice(comparison),
            *answer_remarks.compilation(comparison),
            *answer_remarks.learning_and_costs(comparison),
        ]
        text = ", ".join(clauses)
        if self.failings:
            # A clause such as "but quality was not measured" may have come before.
            has_caveat = any(clause.startswith("but ") for clause in clauses)
            text += f"; {'and' if has_caveat else 'but'} {' and '.join(self.failings)}"
        remarks = [
            *answer_remarks.repetitions(comparison),
            *answer_remarks.other_batch(comparison),
            *answer_remarks.unclear_fewer_ranks(comparison),
        ]
        for remark in remarks:
            text += f". {remark}"
        reservations = [
            *answer_remarks.unranked_runs(comparison),
            *answer_remarks.other_lengths(comparison),
            *answer_remarks.unexplained_amounts(comparison),
        ]
        for reservation in reservations:
            text += f"; {reservation}"
        return text

    @property
    def sentence(self) -> str:
        marks = f" [{'; '.join(self.marks)}]" if self.marks else ""
        return f"{self.statement}{marks}."

    @property
    def takes(self) -> Message:
        runs = self.best.counted
        unit = "CPU rank" if runs[0]["cpu_ranks"] else "GPU"
        mean_note = f" (mean of {len(runs)} runs)" if len(runs) > 1 else ""
        texts = [f"{self.ranking.time(self.best)}{mean_note} on {count(self.best.gpus, unit)}"]
        memory, energy = (of_setting(self.best.runs, column) for column in (MEMORY, ENERGY))
        texts += [f"up to {figures.text(MEMORY, memory)} of memory a {unit}"] if memory else []
        texts += [figures.text(ENERGY, energy)] if energy else []
        other_setting = self.against if self.against is not self.best else None
        text = ", ".join(texts) + (
            f"; {self.comparison.compared_with} took {self.ranking.time(other_setting)}"
            if other_setting
            else ""
        )
        return Message(
            "answer.takes",
            text,
            time=self.best.cost,
            unit=self.ranking.unit.name,
            column=self.ranking.column,
            n=len(runs),
            gpus=self.best.gpus,
            bytes=memory,
            joules=energy,
            other=other_setting.cost if other_setting else None,
        )

    @property
    def others(self) -> list[Message]:
        """Name the faster settings that were passed over, each with the reason.

        Slower settings that may be as good as the best one follow, then slower ones that differ in
        one option.
        """
        lines = [] if self.passed_over is None else [self.passed_over]
        equals = answer_remarks.indistinguishable(self.comparison)
        if equals:
            labels = [*map(self.ranking.label, equals)]
            text = f"As good, within noise: {first_few(labels, MAX_ALTERNATIVES)}."
            lines.append(Message("answer.equals", text, settings=labels))
        return [*lines, *self.other_options]

    @cached_property
    def other_options(self) -> list[Message]:
        """What other options of single keys would give, such as another method."""
        return other_options.other_options(self.comparison)

    @cached_property
    def passed_over(self) -> Message | None:
        """The faster settings that are not recommended, each with the reason."""
        ranking = self.ranking
        faster_settings = ranking.settings[: ranking.settings.index(self.best)]
        if not faster_settings:
            return None
        reasons = {
            ranking.label(setting): ", ".join(self._reasons_against(setting))
            for setting in faster_settings
        }
        passed_over = [f"{label} ({reason})" for label, reason in reasons.items()]
        text = f"Faster, but passed over: {'; '.join(passed_over[:MAX_ALTERNATIVES])}."
        return Message("answer.passed-over", text, reasons=reasons)

    def _reasons_against(self, setting: RankedSetting) -> list[Message]:
        if failings := list(recommended.failings(self.ranking, setting)):
            return failings
        return [learned.passed_over(setting, self.best)]

    @cached_property
    def command(self) -> str | None:
        """The command that runs this setting alone.

        It is None if the sweep's folder does not hold the command of the sweep, which Hydra writes.
        """
        first = self.best.runs[0]
        sweep = [run for run in self.ranking.runs if run.folder.parent == first.folder.parent]
        words = shlex.split(rerun_commands.of_cells(sweep)[sweep.index(first)] or "")
        return shlex.join(word for word in words if not word.startswith("name=")) or None

    @cached_property
    def training(self) -> Advice | None:
        """The command that trains the setting in full and keeps the model.

        It is None if nothing is recommended.
        """
        if self.failings or self.command is None:
            return None
        command = training_command.train_command(self.ranking.runs)
        description = training_command.description(self.best.runs[0]["kind"])
        return Advice(
            Message("answer.train", f"`{command}` {description}.", command=command), command
        )

    @property
    def elsewhere(self) -> Advice | None:
        """Advice to measure again on GPUs, because runs on CPU ranks say little about them."""
        if not self.best.runs[0]["cpu_ranks"]:
            return None
        text = (
            "CPU ranks say little about GPUs: the same command on your node says what to run there."
        )
        return Advice(Message("answer.on-gpus", text), self._sweep_command)

    @property
    def limit(self) -> Advice:
        """What limits the setting."""
        return self._next_steps.limit

    @property
    def next(self) -> Advice:
        """What to try next."""
        return self._next_steps.next

    @property
    def waits(self) -> Advice | None:
        """A notice that the GPU computes little; None if it is busy or a diagnosis says more."""
        return self._next_steps.waits

    @cached_property
    def _next_steps(self) -> NextSteps:
        return NextSteps(
            self.ranking,
            self.best,
            self.command,
            self.failings,
            self.comparison.needed_repetitions,
            self.comparison.speedup is not None and self.comparison.speedup.repeated,
        )

    @property
    def _sweep_command(self) -> str | None:
        return next_steps.sweep_of(self.best)


def answers(runs: Sequence[Run], mix: bool = False) -> list[Answer]:
    """Return an answer for each workload that can be ranked, the last measured one first."""
    return [answer_for(ranking) for ranking in known_rankings(runs, mix)]


def sentences(ranking: Ranking) -> RankingSummary:
    """Return the lines that `best` prints for a ranking by time."""
    answer = answer_for(ranking)
    lines = [answer.sentence, *answer.others]
    if answer.waits is not None:
        lines.append(answer.waits.sentence)
    if answer.training is not None:
        lines.append(answer.training.sentence)
    return RankingSummary(lines, answer.recommended)


def sentences_of(answers_shown: Sequence[Answer]) -> list[str]:
    """Return the sentence of each answer; among several, each names its workload."""
    return [
        f"{answer.work}: {answer.sentence}" if len(answers_shown) > 1 else answer.sentence
        for answer in answers_shown
    ]


def recommended_runs(answers_shown: Sequence[Answer]) -> list[Run]:
    """Return the runs of the recommended settings, so that tables can mark their rows."""
    settings = [answer.recommended for answer in answers_shown]
    runs = []
    for setting in settings:
        if setting is not None:
            runs.extend(setting.runs)
    return runs


def answer_for(ranking: Ranking) -> Answer:
    """Return the answer for a workload, named as in "training: mobilenet_v2 on digits at 48 px"."""
    _, _, distinction = ranking.work.partition(" ")
    first_run = ranking.runs[0]
    size = f" at {first_run['image_size']} px" if first_run["image_size"] is not None else ""
    # no roles: a title
    model, dataset = (figures.text("", first_run[name]) for name in ("model", "dataset"))
    subject = (
        figures.text("", first_run["script"])
        if first_run["script"]
        else f"{model} on {dataset}{size}"
    )
    work = f"{KINDS[first_run['kind']].title}: {subject}"
    if distinction:
        work += f" ({distinction})"
    return Answer(work, SettingComparison(ranking, *recommended.recommendation(ranking)))
