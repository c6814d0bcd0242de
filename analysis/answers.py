"""Answer, for each workload, what to run: one sentence with its evidence and its doubts.

The page, the end of a sweep, `best` and Python all show these sentences. No other module words a
recommendation. A sentence joins several messages: what to run and the figures behind it, then what
it costs, then why it may not be recommended.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from multicard.config.job import count
from multicard.measure.formulas import DOUBTFUL_EFFICIENCY
from multicard.measure.repeated_runs import CONFIDENCE, MARGIN, Ratio
from multicard.messages import Message
from multicard.records import figures, limits
from multicard.records.text_table import first_few

from . import learned, next_steps, recommended, rerun_commands, training_command
from .commands.best import RankingSummary, known_rankings
from .commands.ranking import COST, RankedSetting, Ranking
from .next_steps import Advice, NextSteps
from .runs import circumstances, grouping, works
from .runs.columns import KINDS
from .runs.grouping import MEMORY, of_setting
from .runs.load import Run
from .stats.intervals import faster, times

ENERGY = "energy_joules"
MAX_ALTERNATIVES = 3  # The most alternatives that are named.
# no roles: these keys set how much a step trains.
BATCH_KEYS = {"batch_size", "global_batch_size"}
# The codes of the leads that recommend a setting.
RECOMMENDING_CODES = {"answer.run", "answer.as-good", "answer.keep", "answer.only-one"}


@dataclass(frozen=True)
class Answer:
    """What to run for one workload.

    work: the name of the workload.
    ranking: its settings, ranked by time.
    best: the recommended setting.
    against: the setting that `best` is compared with. It is `best` itself if nothing is faster than
        the defaults, and None if no other setting learned.
    is_default: True if every axis of `against` is at its default.
    """

    work: str
    ranking: Ranking
    best: RankedSetting
    against: RankedSetting | None
    is_default: bool

    def __repr__(self) -> str:
        return f"{self.work}: {self.sentence}"

    @property
    def setting(self) -> str:
        """The recommended setting as it is typed; empty if there is only one setting."""
        return grouping.label(self.best.cell, self.ranking.keys)

    @cached_property
    def speedup(self) -> Ratio | None:
        """How many times faster it is than `against`. Below 1 means slower."""
        return self.against and self.ranking.repeated.ratio(
            self.ranking.column, self.best.runs, self.against.runs
        )

    @property
    def is_clearly_faster(self) -> bool:
        """True if it is faster than `against`, and noise between runs does not explain that."""
        return self.against is not None and self.ranking.cheaper(self.best, self.against)

    @property
    def recommended(self) -> RankedSetting | None:
        """The setting to use, or None.

        It is None if there is only one setting, if nothing is recommended, and if the runs cannot
        show which setting is faster.
        """
        is_recommended = self.lead.code in RECOMMENDING_CODES
        return self.best if is_recommended and len(self.ranking.settings) > 1 else None

    @cached_property
    def failings(self) -> list[Message]:
        return list(recommended.failings(self.ranking, self.best))

    @cached_property
    def marks(self) -> list[str]:
        """The doubts about the comparison, for the brackets behind the sentence.

        These are the limits of both settings' runs, circumstances that differ between them, and a
        speed-up that more GPUs cannot give.
        """
        compared_runs = [*self.best.counted, *(self.against.counted if self.against else ())]
        doubts = [
            limits.general_sentence(limit).partition(":")[0]
            for limit in limits.in_order(grouping.limits_of(compared_runs))
        ]
        if self.against not in (None, self.best):
            names = [
                grouping.label(setting.cell, self.differing_keys)
                for setting in (self.best, self.against)
            ]
            doubts += circumstances.doubts(self.best.counted, self.against.counted, names)
        if (
            self.against is not None
            and self.speedup is not None
            and self.differing_keys == ["gpus"]
        ):
            efficiency = self.speedup.ratio * self.against.gpus / self.best.gpus
            if efficiency > DOUBTFUL_EFFICIENCY:
                text = f"{efficiency:.0%} of the ideal: measure the slower one again"
                doubts.append(Message("answer.impossible", text, efficiency=efficiency))
        return doubts

    @property
    def statement(self) -> str:
        """The recommendation with its evidence and costs, and why it cannot be made."""
        clauses = [
            self.lead,
            *self._fewer_ranks_suffice,
            *self._compilation,
            *self._learning_and_costs,
        ]
        text = ", ".join(clauses)
        if self.failings:
            text += f"; but {' and '.join(self.failings)}"
        for remark in [*self._other_batch, *self._unclear_fewer_ranks]:
            text += f". {remark}"
        for reservation in [*self.unranked, *self._other_lengths, *self._unexplained_amounts]:
            text += f"; {reservation}"
        return text

    @property
    def unranked(self) -> list[Message]:
        """A message for each limit that keeps runs out of the ranking, with their number."""
        return [
            Message(
                "answer.unranked",
                f"not ranked: {count(number, 'other run')} ({says.partition(':')[0]})",
                says=says,
                runs=number,
            )
            for says, number in self.ranking.untold.items()
        ]

    @property
    def _other_lengths(self) -> list[Message]:
        """Say that some arguments set how long the script trains.

        Their values are therefore not compared.
        """
        lengths = self.ranking.lengths
        if not lengths:
            return []
        names = " and ".join(lengths)
        sets = "sets" if len(lengths) == 1 else "set"
        text = f"{names} {sets} how much the script trains, so no value is faster than another"
        return [Message("answer.other-lengths", text, keys=[*lengths])]

    @property
    def _unexplained_amounts(self) -> list[Message]:
        """Say that a script's settings differ both in amounts and in steps.

        Settings that differ in their ranks share one of the two if each run starts afresh.
        """
        amounts = works.unexplained_amounts(self.ranking.runs)
        if amounts is None:
            return []
        text = (
            f"settings trained {amounts.range}, in different numbers of steps: the script may have"
            " continued from files that an earlier run left in its working folder"
        )
        return [Message("answer.unlike-amounts", text, least=amounts.least, most=amounts.most)]

    @property
    def sentence(self) -> str:
        marks = f" [{'; '.join(self.marks)}]" if self.marks else ""
        return f"{self.statement}{marks}."

    @property
    def evidence(self) -> str:
        """How sure the comparison is: its 95 % interval if a setting was repeated, and the runs."""
        counts = self._run_counts
        if {*counts} == {1}:
            runs = "one run each"
        elif len({*counts}) == 1:
            runs = f"{counts[0]} runs each"
        else:
            runs = f"{' and '.join(map(str, counts))} runs"
        if self._speedup_bounds is None:
            return runs
        low, high = self._speedup_bounds
        # The sentence then says how many times slower the setting is.
        if self.speedup is not None and self.speedup.ratio < 1:
            low, high = 1 / high, 1 / low
        ends = " to ".join(times(end).removesuffix("x") for end in (low, high))
        return f"{CONFIDENCE:.0%} interval {ends}, {runs}"

    @property
    def _speedup_bounds(self) -> tuple[float, float] | None:
        """The interval of the speed-up; None if nothing was repeated."""
        if self.speedup is None or not self.speedup.repeated:
            return None
        return self.speedup.bounds(self.ranking.confidence)

    @property
    def compared_with(self) -> str:
        assert self.against is not None
        if self.differing_keys == ["gpus"] and self.against.gpus == 1:
            return "one CPU rank" if self.best.runs[0]["cpu_ranks"] else "one GPU"
        label = grouping.label(self.against.cell, self.differing_keys)
        return f"the default {label}" if self.is_default else label

    @property
    def differing_keys(self) -> list[str]:
        best_cell = dict(self.best.cell)
        other_cell = dict(self.against.cell if self.against else self.best.cell)
        return [key for key in self.ranking.keys if best_cell.get(key) != other_cell.get(key)]

    @property
    def lead(self) -> Message:
        """What to run with the figures behind it, or that nothing can be recommended."""
        seconds = self.ranking.time(self.best)
        settings = count(len(self.ranking.settings), "setting")
        time_facts = {"time": self.best.cost, "column": self.ranking.column}
        facts = {"setting": self.setting, "settings": len(self.ranking.settings), **time_facts}
        if self.failings and self.setting and self.against in (None, self.best):
            text = f"No recommendation yet: {self.setting} is the fastest of {settings} ({seconds})"
            return Message("answer.none-but-fastest", text, **facts)
        if self.against is None and self.setting:
            text = f"{self.setting} is the only setting that can be recommended: {seconds}"
            return Message("answer.only-one", text, **facts)
        if self.against is None:
            was_done = "can be ranked" if self.ranking.untold else "was measured"
            return Message("answer.one-setting", f"One setting {was_done}: {seconds}", **time_facts)
        if self.against is self.best:
            is_fastest = self.best is self.ranking.settings[0]
            restriction = "" if is_fastest else " that can be recommended"
            text = (
                f"Keep {self.setting}: the defaults are the fastest of"
                f" {settings}{restriction} ({seconds})"
            )
            return Message("answer.keep", text, is_fastest=is_fastest, **facts)
        return self._comparison_lead

    @property
    def _comparison_lead(self) -> Message:
        """Word the lead if the best setting is compared with another one."""
        assert self.speedup is not None and self.against is not None
        ratio = self.speedup.ratio
        qualification = ", all else equal" if {*self.differing_keys} < {*self.ranking.keys} else ""
        comparison = faster(ratio)
        if ratio < 1 and not self.ranking.cheaper(self.against, self.best):
            comparison = "not clearly slower"
        comparison = f"{comparison} than {self.compared_with}{qualification} ({self.evidence})"
        if self.failings:
            text = f"No recommendation yet: {self.setting} is {comparison}"
            return Message("answer.none", text, **self._comparison_facts)
        if (
            self.is_clearly_faster
            or ratio < 1
            or self.ranking.more_accurate(self.best, self.against)
        ):
            return Message(
                "answer.run", f"Use {self.setting}: {comparison}", **self._comparison_facts
            )
        if self.ranking.equivalent(self.best, self.against):
            text = (
                f"Use {self.setting}: as fast as {self.compared_with}, within"
                f" {MARGIN:.0%} ({self.evidence})"
            )
            return Message("answer.as-good", text, margin=MARGIN, **self._comparison_facts)
        return self._unclear_lead(ratio)

    def _unclear_lead(self, ratio: float) -> Message:
        """Word the lead if these runs cannot show which of two settings is faster."""
        assert self.against is not None
        needed = self._needed_repetitions
        remedy = f"even `repeat={recommended.MAX_REPETITIONS}` may not show it"
        if needed is not None:
            remedy = f"`repeat={needed}` would show more"
        if {*self._run_counts} == {1}:
            text = (
                f"{self.setting} was {faster(ratio)} than {self.compared_with} in one run each;"
                f" {remedy}"
            )
            return Message("answer.one-run-each", text, needed=needed, **self._comparison_facts)
        text = (
            f"{self.setting} is not clearly faster than {self.compared_with} ({self.evidence});"
            f" {remedy}"
        )
        return Message("answer.not-known", text, needed=needed, **self._comparison_facts)

    @property
    def _needed_repetitions(self) -> int | None:
        """The number of repetitions that would show which setting is faster.

        It is None if the most repetitions may not show it, or if these runs already do.
        """
        if self.is_clearly_faster:
            return None
        return recommended.repetitions_to_tell(
            self.speedup, self.ranking.confidence, *self._run_counts
        )

    @property
    def _run_counts(self) -> list[int]:
        """The number of runs of the setting and of the one that it is compared with."""
        return [
            len(setting.counted) for setting in (self.best, self.against) if setting is not None
        ]

    @property
    def _comparison_facts(self) -> dict[str, Any]:
        """The figures of the comparison with `against`, as facts of a message."""
        assert self.speedup is not None and self.against is not None
        bounds = self._speedup_bounds or (None, None)
        return {
            "setting": self.setting,
            "against": grouping.label(self.against.cell, self.differing_keys),
            "is_default": self.is_default,
            "cpu_ranks": bool(self.best.runs[0]["cpu_ranks"]),
            "ratio": self.speedup.ratio,
            "low": bounds[0],
            "high": bounds[1],
            "n": self._run_counts,
        }

    @property
    def _compilation(self) -> list[Message]:
        """Say how long compilation takes, because training times leave it out."""
        compile_s, total_s = (
            of_setting(self.best.runs, column) or 0.0 for column in ("compile_s", "total_s")
        )
        if compile_s <= recommended.NOTABLE_SHARE * total_s:
            return []
        text = f"not counting {figures.seconds(compile_s)} s of compilation"
        return [Message("answer.compilation", text, compile_s=compile_s)]

    @property
    def _learning_and_costs(self) -> Iterator[Message]:
        best = self.best
        other = self.against
        if other is None or other is best:
            yield from learned.describe_learning(best)
            yield from learned.quality_caveats(best)
            return
        yield from learned.compare_learning(self.ranking, best, other)
        yield from learned.quality_caveats(best, other)
        column_by_name = {"memory": MEMORY}
        if works.did_as_much(best.runs, other.runs):
            column_by_name |= {"energy": ENERGY, COST: COST}
        for name, column in column_by_name.items():
            own_figure = of_setting(best.runs, column)
            other_figure = of_setting(other.runs, column)
            if not own_figure or not other_figure:
                continue
            ratio = own_figure / other_figure
            if abs(ratio - 1) > recommended.NOTABLE_SHARE:
                yield Message(
                    "answer.times-as-much", f"{ratio:.3g}x the {name}", of=name, ratio=ratio
                )

    @property
    def _other_batch(self) -> list[Message]:
        """Say that a step trains another amount than a step of the other setting.

        It is not said if the settings' keys already show it.
        """
        other = self.against
        if other is None or other is self.best:
            return []
        if BATCH_KEYS & {*self.differing_keys} and "gpus" not in self.differing_keys:
            return []
        work_by_side = [
            [circumstances.step_work(run.record()) for run in setting.runs]
            for setting in (self.best, other)
        ]
        mean_works = circumstances.differing_means(*work_by_side)
        if mean_works is None:
            return []
        own_work, other_work = mean_works
        unit = circumstances.step_work_unit([*self.best.runs, *other.runs])
        text = f"A step trains {own_work:,.0f} {unit}, not {other_work:,.0f}"
        return [Message("answer.other-batch", text, step=own_work, other=other_work, unit=unit)]

    @property
    def _fewer_ranks_suffice(self) -> list[Message]:
        """Say that fewer ranks are enough.

        That holds if faster settings on more ranks are shown to gain next to nothing.
        """
        ranking = self.ranking
        best = self.best
        larger_settings = [
            setting
            for setting in ranking.settings
            if setting.gpus > best.gpus and ranking.equivalent(best, setting)
        ]
        if not larger_settings or self.failings:
            return []
        bounds = ranking.repeated.ratio(ranking.column, larger_settings[0].runs, best.runs).bounds(
            ranking.confidence
        )
        largest_gain = max(0.0, (bounds[1] if bounds else 1.0) - 1)
        unit = "CPU rank" if best.runs[0]["cpu_ranks"] else "GPU"
        ranks = f"one {unit} is" if best.gpus == 1 else f"{count(best.gpus, unit)} are"
        text = (
            f"{ranks} enough: {ranking.label(larger_settings[0])} gains at most {largest_gain:.1%}"
        )
        return [
            Message(
                "answer.enough",
                text,
                gpus=best.gpus,
                other=ranking.label(larger_settings[0]),
                most=largest_gain,
            )
        ]

    @property
    def _unclear_fewer_ranks(self) -> list[Message]:
        """Name the fastest setting on fewer ranks that may be as good as the best one."""
        unit = "CPU ranks" if self.best.runs[0]["cpu_ranks"] else "GPUs"
        labels = [
            self.ranking.label(setting)
            for setting in self._indistinguishable
            if setting.gpus < self.best.gpus
        ]
        if not labels:
            return []
        text = f"It is not known whether {labels[0]}, on fewer {unit}, is just as fast"
        return [Message("answer.fewer-ranks", text, setting=labels[0])]

    @cached_property
    def _indistinguishable(self) -> list[RankedSetting]:
        """The slower settings that differ from the best one by no more than noise.

        There are none if the best setting itself is not clearly faster than the one it is compared
        with.
        """
        ranking = self.ranking
        best = self.best
        if not self.is_clearly_faster and self.against is not best:
            return []
        slower = ranking.settings[ranking.settings.index(best) + 1 :]
        return [
            setting
            for setting in slower
            if not (ranking.cheaper(best, setting) or ranking.more_accurate(best, setting))
        ]

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
            f"; {self.compared_with} took {self.ranking.time(other_setting)}"
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

        Slower settings that may be as good as the best one follow.
        """
        ranking = self.ranking
        lines = list[Message]()
        faster_settings = ranking.settings[: ranking.settings.index(self.best)]
        if faster_settings:
            reasons = {
                ranking.label(setting): ", ".join(self._passed_over(setting))
                for setting in faster_settings
            }
            passed_over = [f"{label} ({reason})" for label, reason in reasons.items()]
            text = f"Faster, but passed over: {'; '.join(passed_over[:MAX_ALTERNATIVES])}."
            lines.append(Message("answer.passed-over", text, reasons=reasons))
        if self._indistinguishable:
            labels = [*map(ranking.label, self._indistinguishable)]
            text = f"As good, within noise: {first_few(labels, MAX_ALTERNATIVES)}."
            lines.append(Message("answer.equals", text, settings=labels))
        return lines

    def _passed_over(self, setting: RankedSetting) -> list[Message]:
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
            self._needed_repetitions,
            self.speedup is not None and self.speedup.repeated,
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
    best, against, is_default = recommended.recommendation(ranking)
    return Answer(work, ranking, best, against, is_default)
