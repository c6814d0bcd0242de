"""What to run: one sentence for each workload, with how sure it is and its doubts.

The page, the end of a sweep, `best` and Python show these sentences; nothing else words a
recommendation. A sentence is
joined of messages: what to run, with the figures behind it,
then what it costs and why it may not be made.
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
MOST_OTHERS = 3  # alternatives that are named
BATCH_KEYS = {"batch_size", "global_batch_size"}  # no roles: what a step trains
RECOMMENDING = {"answer.run", "answer.as-good", "answer.keep", "answer.only-one"}  # codes of leads


@dataclass(frozen=True)
class Answer:
    """What to run for one workload.

    work: its name. ranking: its settings by time. best: the recommended one.
    against: what it is compared with: `best` itself where nothing is faster than the defaults; None
    where no other setting learned.
    is_default: `against` has the defaults throughout.
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
        """The recommended setting as it is typed; empty for the only one."""
        return grouping.label(self.best.cell, self.ranking.keys)

    @cached_property
    def speedup(self) -> Ratio | None:
        """How many times faster it is than `against`; below 1: slower."""
        return self.against and self.ranking.repeated.ratio(
            self.ranking.column, self.best.runs, self.against.runs
        )

    @property
    def is_told(self) -> bool:
        """True where it is faster than `against` by more than runs differ."""
        return self.against is not None and self.ranking.cheaper(self.best, self.against)

    @property
    def recommended(self) -> RankedSetting | None:
        """The setting to use; None for a single one, without a recommendation,
        and where runs do not tell.
        """
        is_told = self.lead.code in RECOMMENDING
        return self.best if is_told and len(self.ranking.settings) > 1 else None

    @cached_property
    def failings(self) -> list[Message]:
        return list(recommended.failings(self.ranking, self.best))

    @cached_property
    def marks(self) -> list[str]:
        """What limits its runs, and those compared with; what else differs between them than the
        settings; and a speed-up that more GPUs cannot give.
        """
        compared = [*self.best.counted, *(self.against.counted if self.against else ())]
        said = [
            limits.general_sentence(limit).partition(":")[0]
            for limit in limits.in_order(grouping.limits_of(compared))
        ]
        if self.against not in (None, self.best):
            names = [grouping.label(one.cell, self.apart) for one in (self.best, self.against)]
            said += circumstances.doubts(self.best.counted, self.against.counted, names)
        if self.against is not None and self.speedup is not None and self.apart == ["gpus"]:
            efficiency = self.speedup.ratio * self.against.gpus / self.best.gpus
            if efficiency > DOUBTFUL_EFFICIENCY:
                impossible = f"{efficiency:.0%} of the ideal: measure the slower one again"
                said.append(Message("answer.impossible", impossible, efficiency=efficiency))
        return said

    @property
    def statement(self) -> str:
        """The recommendation, how sure it is, what it costs, and why it cannot be made."""
        failings = f"; but {' and '.join(self.failings)}" if self.failings else ""
        parts = [self.lead, *self._enough, *self._uncounted, *self._costs, *self._fewer]
        left_out = [*self.unranked, *self._other_lengths, *self._unlike_others]
        return ", ".join(parts) + failings + "".join(f"; {one}" for one in left_out)

    @property
    def unranked(self) -> list[Message]:
        """The runs that are not in the ranking, by what limits them."""
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
        """That a script trains for longer with other values of an argument, so that these are not
        compared.
        """
        lengths = self.ranking.lengths
        if not lengths:
            return []
        named = " and ".join(lengths)
        sets = "sets" if len(lengths) == 1 else "set"
        said = f"{named} {sets} how much the script trains: no value is faster than another"
        return [Message("answer.other-lengths", said, keys=[*lengths])]

    @property
    def _unlike_others(self) -> list[Message]:
        """That settings of a script on other ranks trained neither as much nor as many steps."""
        found = works.unlike(self.ranking.runs)
        if found is None:
            return []
        said = (
            f"settings trained {found.range}, and neither as many steps: the script may go on from"
            " files that an earlier run left in its working folder"
        )
        return [Message("answer.unlike-amounts", said, least=found.least, most=found.most)]

    @property
    def sentence(self) -> str:
        marks = f" [{'; '.join(self.marks)}]" if self.marks else ""
        return f"{self.statement}{marks}."

    @property
    def evidence(self) -> str:
        """How sure it is: the 95 % interval, where any setting was repeated,
        and the number of runs.
        """
        counts = self._counts
        if {*counts} == {1}:
            runs = "one run each"
        elif len({*counts}) == 1:
            runs = f"{counts[0]} runs each"
        else:
            runs = f"{' and '.join(map(str, counts))} runs"
        if self._bounds is None:
            return runs
        low, high = self._bounds
        # the sentence says how many times slower
        if self.speedup is not None and self.speedup.ratio < 1:
            low, high = 1 / high, 1 / low
        ends = " to ".join(times(end).removesuffix("x") for end in (low, high))
        return f"{CONFIDENCE:.0%} interval {ends}, {runs}"

    @property
    def _bounds(self) -> tuple[float, float] | None:
        """The interval of the speed-up; None where nothing was repeated."""
        if self.speedup is None or not self.speedup.repeated:
            return None
        return self.speedup.bounds(self.ranking.confidence)

    @property
    def compared_with(self) -> str:
        assert self.against is not None
        if self.apart == ["gpus"] and self.against.gpus == 1:
            return "one CPU rank" if self.best.runs[0]["cpu_ranks"] else "one GPU"
        return "the default " * self.is_default + grouping.label(self.against.cell, self.apart)

    @property
    def apart(self) -> list[str]:
        own = dict(self.best.cell)
        other = dict(self.against.cell if self.against else self.best.cell)
        return [key for key in self.ranking.keys if own.get(key) != other.get(key)]

    @property
    def lead(self) -> Message:
        """What to run, or that nothing can be recommended, with the figures behind it."""
        seconds = self.ranking.time(self.best)
        settings = count(len(self.ranking.settings), "setting")
        time = {"time": self.best.cost, "column": self.ranking.column}
        measured = {"setting": self.setting, "settings": len(self.ranking.settings), **time}
        if self.failings and self.setting and self.against in (None, self.best):
            said = f"No recommendation yet: {self.setting} is the fastest of {settings} ({seconds})"
            return Message("answer.none-but-fastest", said, **measured)
        if self.against is None and self.setting:
            said = f"{self.setting} is the only setting that can be recommended: {seconds}"
            return Message("answer.only-one", said, **measured)
        if self.against is None:
            done = "can be ranked" if self.ranking.untold else "was measured"
            return Message("answer.one-setting", f"One setting {done}: {seconds}", **time)
        if self.against is self.best:
            is_fastest = self.best is self.ranking.settings[0]
            of_these = "" if is_fastest else " that can be recommended"
            said = (
                f"Keep {self.setting}: the defaults are the fastest of"
                f" {settings}{of_these} ({seconds})"
            )
            return Message("answer.keep", said, is_fastest=is_fastest, **measured)
        return self._compared

    @property
    def _compared(self) -> Message:
        """The lead where the best setting is compared with another."""
        assert self.speedup is not None and self.against is not None
        ratio = self.speedup.ratio
        else_equal = ", all else equal" if {*self.apart} < {*self.ranking.keys} else ""
        factor = faster(ratio)
        if ratio < 1 and not self.ranking.cheaper(self.against, self.best):
            factor = "not clearly slower"
        factor = f"{factor} than {self.compared_with}{else_equal} ({self.evidence})"
        if self.failings:
            said = f"No recommendation yet: {self.setting} is {factor}"
            return Message("answer.none", said, **self._comparison)
        if self.is_told or ratio < 1 or self.ranking.more_accurate(self.best, self.against):
            return Message("answer.run", f"Use {self.setting}: {factor}", **self._comparison)
        if self.ranking.equivalent(self.best, self.against):
            said = (
                f"Use {self.setting}: as fast as {self.compared_with}, within"
                f" {MARGIN:.0%} ({self.evidence})"
            )
            return Message("answer.as-good", said, margin=MARGIN, **self._comparison)
        return self._not_known(ratio)

    def _not_known(self, ratio: float) -> Message:
        """The lead where these runs do not tell which of two settings is faster."""
        assert self.against is not None
        needed = self._needed
        remedy = f"even `repeat={recommended.MOST_REPETITIONS}` may not show it"
        if needed is not None:
            remedy = f"`repeat={needed}` would show more"
        if {*self._counts} == {1}:
            said = (
                f"{self.setting} was {faster(ratio)} than {self.compared_with} in one run each;"
                f" {remedy}"
            )
            return Message("answer.one-run-each", said, needed=needed, **self._comparison)
        said = (
            f"{self.setting} is not clearly faster than {self.compared_with} ({self.evidence});"
            f" {remedy}"
        )
        return Message("answer.not-known", said, needed=needed, **self._comparison)

    @property
    def _needed(self) -> int | None:
        """The repetitions that would tell the setting from `against`; None where even the most may
        not, or where it is told already.
        """
        if self.is_told:
            return None
        return recommended.repetitions_to_tell(self.speedup, self.ranking.confidence, *self._counts)

    @property
    def _counts(self) -> list[int]:
        """The runs of the setting, and of the one that it is compared with."""
        return [len(one.counted) for one in (self.best, self.against) if one is not None]

    @property
    def _comparison(self) -> dict[str, Any]:
        """The figures of the comparison with `against`, as facts of a message."""
        assert self.speedup is not None and self.against is not None
        bounds = self._bounds or (None, None)
        return {
            "setting": self.setting,
            "against": grouping.label(self.against.cell, self.apart),
            "is_default": self.is_default,
            "cpu_ranks": bool(self.best.runs[0]["cpu_ranks"]),
            "ratio": self.speedup.ratio,
            "low": bounds[0],
            "high": bounds[1],
            "n": self._counts,
        }

    @property
    def _uncounted(self) -> list[Message]:
        """Compilation, which training times leave out."""
        compile_s, total_s = (
            of_setting(self.best.runs, column) or 0.0 for column in ("compile_s", "total_s")
        )
        if compile_s <= recommended.NOTABLE * total_s:
            return []
        said = f"not counting {figures.seconds(compile_s)} s of compilation"
        return [Message("answer.compilation", said, compile_s=compile_s)]

    @property
    def _costs(self) -> Iterator[Message]:
        best = self.best
        other = self.against
        if other is None or other is best:
            yield from learned.alone(best)
            yield from learned.how_well_measured(best)
            return
        yield from learned.beside(self.ranking, best, other)
        yield from self._other_batch(other)
        yield from learned.how_well_measured(best, other)
        did_as_much = works.did_as_much(best.runs, other.runs)
        of_whole_runs = (("energy", ENERGY), (COST, COST)) if did_as_much else ()
        for name, column in (("memory", MEMORY), *of_whole_runs):
            own, others = (of_setting(one.runs, column) for one in (best, other))
            if own and others and abs(own / others - 1) > recommended.NOTABLE:
                said = f"{own / others:.3g}x the {name}"
                yield Message("answer.times-as-much", said, of=name, ratio=own / others)

    def _other_batch(self, other: RankedSetting) -> Iterator[Message]:
        """That a step trained another amount than one of the setting compared with,
        where its keys do not say it.
        """
        if BATCH_KEYS & {*self.apart} and "gpus" not in self.apart:
            return
        works = [
            [circumstances.step_work(run.record()) for run in one.runs]
            for one in (self.best, other)
        ]
        differing = circumstances.means_apart(*works)
        if differing is not None:
            own, others = differing
            said = f"a step trains {own:,.0f} samples or tokens, not {others:,.0f}"
            yield Message("answer.other-batch", said, step=own, other=others)

    @property
    def _enough(self) -> list[Message]:
        """That fewer ranks are enough, where faster settings
        on more are shown to gain next to nothing.
        """
        ranking = self.ranking
        best = self.best
        more = [
            one
            for one in ranking.settings
            if one.gpus > best.gpus and ranking.equivalent(best, one)
        ]
        if not more or self.failings:
            return []
        bounds = ranking.repeated.ratio(ranking.column, more[0].runs, best.runs).bounds(
            ranking.confidence
        )
        most = max(0.0, (bounds[1] if bounds else 1.0) - 1)
        unit = "CPU rank" if best.runs[0]["cpu_ranks"] else "GPU"
        one = f"one {unit} is" if best.gpus == 1 else f"{count(best.gpus, unit)} are"
        said = f"{one} enough: {ranking.label(more[0])} gains at most {most:.1%}"
        return [
            Message("answer.enough", said, gpus=best.gpus, other=ranking.label(more[0]), most=most)
        ]

    @property
    def _fewer(self) -> list[Message]:
        """The fastest setting on fewer ranks that runs do not tell to be worse."""
        unit = "CPU ranks" if self.best.runs[0]["cpu_ranks"] else "GPUs"
        fewer = [self.ranking.label(one) for one in self._not_told if one.gpus < self.best.gpus]
        if not fewer:
            return []
        said = f"but whether {fewer[0]} on fewer {unit} is as fast is not known"
        return [Message("answer.fewer-ranks", said, setting=fewer[0])]

    @cached_property
    def _not_told(self) -> list[RankedSetting]:
        """Slower settings whose difference is within noise;
        none where the best is not clearly faster itself.
        """
        ranking = self.ranking
        best = self.best
        if not self.is_told and self.against is not best:
            return []
        slower = ranking.settings[ranking.settings.index(best) + 1 :]
        return [
            one
            for one in slower
            if not (ranking.cheaper(best, one) or ranking.more_accurate(best, one))
        ]

    @property
    def takes(self) -> Message:
        runs = self.best.counted
        unit = "CPU rank" if runs[0]["cpu_ranks"] else "GPU"
        mean = f" (mean of {len(runs)} runs)" if len(runs) > 1 else ""
        texts = [f"{self.ranking.time(self.best)}{mean} on {count(self.best.gpus, unit)}"]
        memory, energy = (of_setting(self.best.runs, column) for column in (MEMORY, ENERGY))
        texts += [f"up to {figures.text(MEMORY, memory)} of memory a {unit}"] if memory else []
        texts += [figures.text(ENERGY, energy)] if energy else []
        other = self.against if self.against is not self.best else None
        said = ", ".join(texts) + (
            f"; {self.compared_with} took {self.ranking.time(other)}" if other else ""
        )
        return Message(
            "answer.takes",
            said,
            time=self.best.cost,
            unit=self.ranking.unit.name,
            column=self.ranking.column,
            n=len(runs),
            gpus=self.best.gpus,
            bytes=memory,
            joules=energy,
            other=other.cost if other else None,
        )

    @property
    def others(self) -> list[Message]:
        """Faster settings that were passed over with the reason,
        then slower ones that runs do not tell to be worse.
        """
        ranking = self.ranking
        lines = list[Message]()
        quicker = ranking.settings[: ranking.settings.index(self.best)]
        if quicker:
            reasons = {ranking.label(one): ", ".join(self._passed_over(one)) for one in quicker}
            passed = [f"{label} ({reason})" for label, reason in reasons.items()]
            said = f"Faster, but passed over: {'; '.join(passed[:MOST_OTHERS])}."
            lines.append(Message("answer.passed-over", said, reasons=reasons))
        if self._not_told:
            equal = [*map(ranking.label, self._not_told)]
            said = f"As good, within noise: {first_few(equal, MOST_OTHERS)}."
            lines.append(Message("answer.equals", said, settings=equal))
        return lines

    def _passed_over(self, setting: RankedSetting) -> list[Message]:
        if failings := list(recommended.failings(self.ranking, setting)):
            return failings
        return [learned.passed_over(setting, self.best)]

    @cached_property
    def command(self) -> str | None:
        """The command that runs the setting, as a run of its own;
        None where Hydra left none of its sweep.
        """
        first = self.best.runs[0]
        sweep = [run for run in self.ranking.runs if run.folder.parent == first.folder.parent]
        words = shlex.split(rerun_commands.of_cells(sweep)[sweep.index(first)] or "")
        return shlex.join(word for word in words if not word.startswith("name=")) or None

    @cached_property
    def training(self) -> Advice | None:
        """The command that trains the setting in full and keeps the model;
        None where nothing is to be recommended.
        """
        if self.failings or self.command is None:
            return None
        command = training_command.offered(self.ranking.runs)
        does = training_command.keeps(self.best.runs[0]["kind"])
        return Advice(Message("answer.train", f"`{command}` {does}.", command=command), command)

    @property
    def elsewhere(self) -> Advice | None:
        """Where it should be measured again: runs on CPU ranks say little about GPUs."""
        if not self.best.runs[0]["cpu_ranks"]:
            return None
        said = (
            "CPU ranks say little about GPUs: the same command on your node says what to run there."
        )
        return Advice(Message("answer.on-gpus", said), self._sweep)

    @property
    def limit(self) -> Advice:
        """What limits the setting."""
        return self._steps.limit

    @property
    def next(self) -> Advice:
        """What to try next."""
        return self._steps.next

    @property
    def waits(self) -> Advice | None:
        """That its GPU computes little; None where that is not so, or a diagnosis knows more."""
        return self._steps.waits

    @cached_property
    def _steps(self) -> NextSteps:
        return NextSteps(
            self.ranking,
            self.best,
            self.command,
            self.failings,
            self._needed,
            self.speedup is not None and self.speedup.repeated,
        )

    @property
    def _sweep(self) -> str | None:
        return next_steps.sweep_of(self.best)


def answers(runs: Sequence[Run], mix: bool = False) -> list[Answer]:
    """The answer for each workload, the one that was measured last first;
    none where nothing can be ranked.
    """
    return [of_ranking(ranking) for ranking in known_rankings(runs, mix)]


def sentences(ranking: Ranking) -> RankingSummary:
    """The answer for the workload of a ranking by time, as `best` says it."""
    answer = of_ranking(ranking)
    lines = [answer.sentence, *answer.others]
    if answer.waits is not None:
        lines.append(answer.waits.sentence)
    if answer.training is not None:
        lines.append(answer.training.sentence)
    return RankingSummary(lines, answer.recommended)


def recommended_runs(found: Sequence[Answer]) -> list[Run]:
    """The runs of the settings that are recommended, for tables that mark their rows."""
    settings = [answer.recommended for answer in found]
    runs = []
    for setting in settings:
        if setting is not None:
            runs.extend(setting.runs)
    return runs


def of_ranking(ranking: Ranking) -> Answer:
    """The answer for a workload, named as in "training: mobilenet_v2 on digits at 48 px"."""
    _, _, apart = ranking.work.partition(" ")
    first = ranking.runs[0]
    size = f" at {first['image_size']} px" if first["image_size"] is not None else ""
    # no roles: a title
    model, dataset = (figures.text("", first[name]) for name in ("model", "dataset"))
    what = figures.text("", first["script"]) if first["script"] else f"{model} on {dataset}{size}"
    work = f"{KINDS[first['kind']].title}: {what}"
    if apart:
        work += f" ({apart})"
    best, against, is_default = recommended.of_ranking(ranking)
    return Answer(work, ranking, best, against, is_default)
