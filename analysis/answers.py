"""What to run: one sentence for each workload, with how sure it is and its doubts.

The page, the end of a sweep, `best` and Python show these sentences; nothing else words a recommendation.

Recommended is the fastest setting that learned and whose accuracy (of tuning: loss) runs do not tell from the best one
reached. It is compared with the setting nearest to the defaults: what would have been run without measuring.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from analysis import rerun_commands
from analysis.commands.best import COST, RankedSetting, Ranking, did_as_much, known_rankings
from analysis.runs import details, grouping
from analysis.runs.columns import KINDS, STEPS, Kind
from analysis.runs.details import DetailedRun
from analysis.runs.grouping import ACCURACY, MEMORY, of_setting
from analysis.runs.load import Run
from analysis.stats.between_runs import is_less
from analysis.stats.intervals import faster, times
from multicard.config import schema
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.measure.formulas import DOUBTFUL_EFFICIENCY
from multicard.measure.repeated_runs import CONFIDENCE, Ratio
from multicard.records import figures
from multicard.records.comparable import MARKS
from multicard.records.text_table import capital, first_few

ENERGY = "energy_joules"
LEAST_STEPS = 5  # measured steps, below which a run is too short to tell
SAME_POINTS = 1.0  # of accuracy, below which settings that runs do not tell apart have the same
NOTABLE = 0.05  # relative difference of memory and energy that is said, and share of compilation
MOST_OTHERS = 3  # alternatives that are named
TO_TRY = ". To try next: "  # between what limits a run and what to try, in a diagnosis
PHASES = {  # what a step's largest phase is called
    "data": "waiting for data",
    "h2d": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimiser",
}
FACTORS = (1, 2, 4)  # of a batch size, to try


@dataclass(frozen=True)
class Advice:
    """A sentence, and the command that goes with it; None where Hydra left none to derive it from."""

    sentence: str
    command: str | None


@dataclass(frozen=True)
class Answer:
    """What to run for one workload.

    work: its name. ranking: its settings by time. best: the recommended one.
    against: what it is compared with: `best` itself where nothing is faster than the defaults; None where no other
    setting learned.
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
        return self.against and self.ranking.repeated.ratio(self.ranking.column, self.best.runs, self.against.runs)

    @property
    def is_told(self) -> bool:
        """True where it is faster than `against` by more than runs differ."""
        return self.against is not None and self.ranking.cheaper(self.best, self.against)

    @cached_property
    def failings(self) -> list[str]:
        return list(_failings(self.ranking, self.best))

    @cached_property
    def marks(self) -> list[str]:
        """What the marks of its runs, and of those compared with, say; and a speed-up that more GPUs cannot give."""
        signs = grouping.marks([*self.best.runs, *(self.against.runs if self.against else ())])
        said = [mark.meaning.partition(":")[0] for mark in MARKS if mark.sign in signs]
        if self.against is not None and self.speedup is not None and self.apart == ["gpus"]:
            efficiency = self.speedup.ratio * self.against.gpus / self.best.gpus
            if efficiency > DOUBTFUL_EFFICIENCY:
                said.append(f"{efficiency:.0%} of the ideal: measure the slower one again")
        return said

    @property
    def statement(self) -> str:
        """The recommendation, how sure it is, what it costs, and why it cannot be made."""
        failings = f"; but {' and '.join(self.failings)}" if self.failings else ""
        return ", ".join([self._lead, *self._uncounted, *self._costs, *self._fewer]) + failings

    @property
    def sentence(self) -> str:
        marks = f" [{'; '.join(self.marks)}]" if self.marks else ""
        return f"{self.statement}{marks}."

    @property
    def evidence(self) -> str:
        """How sure it is: the 95 % interval, where any setting was repeated, and the number of runs."""
        counts = [len(one.runs) for one in (self.best, self.against) if one is not None]
        each = "one run each" if {*counts} == {1} else f"{counts[0]} runs each"
        runs = each if len({*counts}) == 1 else f"{' and '.join(map(str, counts))} runs"
        bounds = self.speedup.bounds(self.ranking.confidence) if self.speedup and self.speedup.repeated else None
        ends = " to ".join(times(end).removesuffix("x") for end in bounds or ())
        return f"{CONFIDENCE:.0%} interval {ends}, {runs}" if ends else runs

    @property
    def compared_with(self) -> str:
        assert self.against is not None
        if self.apart == ["gpus"] and self.against.gpus == 1:
            return "one CPU rank" if self.best.runs[0]["cpu_ranks"] else "one GPU"
        return "the default " * self.is_default + grouping.label(self.against.cell, self.apart)

    @property
    def apart(self) -> list[str]:
        own, other = dict(self.best.cell), dict(self.against.cell if self.against else self.best.cell)
        return [key for key in self.ranking.keys if own.get(key) != other.get(key)]

    @property
    def _lead(self) -> str:
        seconds, settings = self.ranking.time(self.best), count(len(self.ranking.settings), "setting")
        if self.failings and self.setting and self.against in (None, self.best):
            return f"No recommendation yet: {self.setting} is the fastest of {settings} ({seconds})"
        if self.against is None:
            only = f"{self.setting} is the only setting that can be recommended"
            return f"{only if self.setting else 'One setting was measured'}: {seconds}"
        if self.against is self.best:
            of_these = "" if self.best is self.ranking.settings[0] else " that can be recommended"
            return f"Keep {self.setting}: the defaults are the fastest of {settings}{of_these} ({seconds})"
        assert self.speedup is not None
        ratio = self.speedup.ratio
        factor = f"{faster(ratio)} than {self.compared_with} ({self.evidence})"
        if self.failings:
            return f"No recommendation yet: {self.setting} is {factor}"
        if not self.is_told and ratio >= 1 and not self.ranking.more_accurate(self.best, self.against):
            return f"No setting is clearly faster: {self.setting} was {factor}"
        return f"Run {self.setting}: {factor}"

    @property
    def _uncounted(self) -> list[str]:
        """Compilation, which training times leave out."""
        compile_s, total_s = (of_setting(self.best.runs, column) or 0.0 for column in ("compile_s", "total_s"))
        return [f"not counting {figures.seconds(compile_s)} s of compilation"] * (compile_s > NOTABLE * total_s)

    @property
    def _costs(self) -> Iterator[str]:
        best, other = self.best, self.against
        if other is None or other is best:
            if best.accuracy is not None:
                yield f"{figures.text(ACCURACY, best.accuracy)} accuracy"
            elif best.loss is not None:
                yield f"loss {best.loss:.3f}"
            return
        more, less = self.ranking.more_accurate(best, other), self.ranking.more_accurate(other, best)
        is_one_loss = not any(Role.loss in schema.of(key) for key in self.apart)
        if best.accuracy is not None and other.accuracy is not None:
            points = 100 * abs(best.accuracy - other.accuracy)
            if more or less:
                yield f"{points:.1f} points {'more' if more else 'less'} accurate ({best.accuracy:.1%})"
            elif points < SAME_POINTS:
                yield f"same accuracy ({best.accuracy:.1%})"
            else:
                yield f"accuracy not told apart ({best.accuracy:.1%}, not {other.accuracy:.1%})"
        elif not did_as_much(best, other):
            amounts = (grouping.trained(one.runs[0]) for one in (best, other))
            yield f"loss not compared: trained on {', not '.join(amounts)}"
        elif best.loss is not None and other.loss is not None and is_one_loss:
            seem_apart = is_less(best.loss, other.loss) or is_less(other.loss, best.loss)
            same = f"loss not told apart ({best.loss:.3f}, not {other.loss:.3f})"
            same = same if seem_apart else f"the same loss ({best.loss:.3f})"
            yield f"a {'lower' if more else 'higher'} loss ({best.loss:.3f})" if more or less else same
        of_whole_runs = (("energy", ENERGY), (COST, COST)) if did_as_much(best, other) else ()
        for name, column in (("memory", MEMORY), *of_whole_runs):
            own, others = (of_setting(one.runs, column) for one in (best, other))
            if own and others and abs(own / others - 1) > NOTABLE:
                yield f"{own / others:.3g}x the {name}"

    @property
    def _fewer(self) -> list[str]:
        """The fastest setting on fewer ranks that runs do not tell to be worse."""
        unit = "CPU ranks" if self.best.runs[0]["cpu_ranks"] else "GPUs"
        fewer = [self.ranking.label(one) for one in self._not_told if one.gpus < self.best.gpus]
        return [f"not told from {label} on fewer {unit}" for label in fewer[:1]]

    @cached_property
    def _not_told(self) -> list[RankedSetting]:
        """Slower settings that runs do not tell to be worse; none where it is not told to be faster itself."""
        ranking, best = self.ranking, self.best
        if not self.is_told and self.against is not best:
            return []
        slower = ranking.settings[ranking.settings.index(best) + 1 :]
        return [one for one in slower if not (ranking.cheaper(best, one) or ranking.more_accurate(best, one))]

    @property
    def takes(self) -> str:
        runs = self.best.runs
        unit = "CPU rank" if runs[0]["cpu_ranks"] else "GPU"
        mean = f" (mean of {len(runs)} runs)" if len(runs) > 1 else ""
        texts = [f"{self.ranking.time(self.best)}{mean} on {count(self.best.gpus, unit)}"]
        memory, energy = (of_setting(runs, column) for column in (MEMORY, ENERGY))
        texts += [f"up to {figures.text(MEMORY, memory)} of memory a {unit}"] if memory else []
        texts += [figures.text(ENERGY, energy)] if energy else []
        other = self.against if self.against is not self.best else None
        return ", ".join(texts) + (f"; {self.compared_with} took {self.ranking.time(other)}" if other else "")

    @property
    def others(self) -> list[str]:
        """Faster settings that were passed over with the reason, then slower ones that runs do not tell to be worse."""
        ranking = self.ranking
        quicker = ranking.settings[: ranking.settings.index(self.best)]
        passed = [f"{ranking.label(one)} ({', '.join(self._passed_over(one))})" for one in quicker]
        lines = [f"Faster, but passed over: {'; '.join(passed[:MOST_OTHERS])}."] if passed else []
        if equal := [*map(ranking.label, self._not_told)]:
            lines.append(f"Not told from it by these runs: {first_few(equal, MOST_OTHERS)}.")
        return lines

    def _passed_over(self, setting: RankedSetting) -> list[str]:
        if failings := list(_failings(self.ranking, setting)):
            return failings
        if setting.accuracy is not None and self.best.accuracy is not None:
            return [f"{100 * (self.best.accuracy - setting.accuracy):.1f} points less accurate"]
        return [f"a loss of {setting.loss:.3f} instead of {self.best.loss:.3f}"]

    @cached_property
    def _runs(self) -> list[DetailedRun]:
        return details.read(self.best.runs)

    @cached_property
    def command(self) -> str | None:
        """The command that runs the setting, as a run of its own; None where Hydra left none of its sweep."""
        first = self.best.runs[0]
        sweep = [run for run in self.ranking.runs if run.folder.parent == first.folder.parent]
        words = shlex.split(rerun_commands.of_cells(sweep)[sweep.index(first)] or "")
        return shlex.join(word for word in words if not word.startswith("name=")) or None

    @property
    def elsewhere(self) -> Advice | None:
        """Where it should be measured again: runs on CPU ranks say little about GPUs."""
        if not self.best.runs[0]["cpu_ranks"]:
            return None
        said = "CPU ranks say little about GPUs: the same command on your node says what to run there."
        return Advice(said, self._sweep)

    @cached_property
    def limit(self) -> Advice:
        """What limits the setting: as it was diagnosed, else the largest phase of its steps."""
        diagnosed = next((run for run in self._runs if run.diagnosis), None)
        words, shown = self._kind.limit
        if diagnosed is not None:
            found = (diagnosed.diagnosis or "").partition(TO_TRY)[0].partition(": ")
            return Advice(f"{capital(found[2] or found[0])}.", self._with(words))
        phases = self._runs[0].phases_s
        if not sum(phases.values()):
            return Advice(f"Not known yet: {words} says it, by {shown}.", self._with(words))
        largest = max(phases, key=lambda phase: phases[phase])
        share = phases[largest] / sum(phases.values())
        why = f"{words} says why: it leaves out one cost at a time."
        return Advice(f"{capital(PHASES[largest])} takes {share:.0%} of a step. {why}", self._with(words))

    @cached_property
    def next(self) -> Advice:
        """What to try next: what a diagnosis advises; longer runs where these tell nothing; repetitions where there are
        none; an axis that was not swept."""
        advice = next((run.diagnosis.partition(TO_TRY)[2] for run in self._runs if run.diagnosis), "")
        if advice:
            return Advice(
                f"{'Try ' + advice if '=' in advice.split()[0] else capital(advice)}.", self._with(advice.split()[0])
            )
        first = self.best.runs[0]
        if self.failings:
            steps_first = ("max_steps", STEPS, "epochs")  # no roles: advice, in this order
            lengths = (key for key in steps_first if first[key] is not None)
            longer = next((f"{key.rpartition('.')[2]}={4 * first[key]}" for key in lengths), "")
            return Advice("Train longer: these runs are no measure of the setting.", self._with(longer))
        if len(self.best.runs) == 1:
            sure = "Repeat the runs: single ones do not show how runs differ."
            return Advice(sure, self._sweep and rerun_commands.with_word(self._sweep, "repeat=3", sweeps=True))
        phases = self._runs[0].phases_s
        largest = max(phases, key=lambda phase: phases[phase]) if phases else None
        keys = self._kind.to_sweep if largest is None else schema.tries(first["kind"], largest)
        pairs = ["method"] if first["reward_accuracy"] is not None else []  # are read by dpo alone
        fixed = [*self.ranking.keys, *pairs]
        key = next((key for key in keys if key not in fixed), None)
        if key is None:
            words, shown = self._kind.limit
            return Advice(f"See what limits it: {shown}.", self._with(words))
        return Advice(f"Sweep {key}, which was not varied.", self._with(f"{key}={','.join(_values(first, key))}"))

    @property
    def _sweep(self) -> str | None:
        return next(iter(rerun_commands.of_sweeps(self.best.runs)), None)

    @property
    def _kind(self) -> Kind:
        return KINDS[self.best.runs[0]["kind"]]

    def _with(self, words: str) -> str | None:
        """The setting's command with other words, as a measurement of its own."""
        command = self.command if "=" in words else None
        for word in words.split() if command is not None else ():
            command = rerun_commands.with_word(command or "", word, sweeps="," in word)
        return command


def _values(run: Run, key: str) -> list[str]:
    own = grouping.typed(run[key])
    if key == "batch_size":
        return [str(factor * run[key]) for factor in FACTORS]
    others = schema.values_to_try(run["kind"])[key].values
    return list(dict.fromkeys([*([own] if own != "null" else []), *others]))


def answers(runs: Sequence[Run], mix: bool = False) -> list[Answer]:
    """The answer for each workload, the one that was measured last first; none where nothing can be ranked."""
    return [of_ranking(ranking) for ranking in known_rankings(runs, mix)]


def sentences(ranking: Ranking) -> list[str]:
    """The answer for the workload of a ranking by time, as `best` says it."""
    answer = of_ranking(ranking)
    return [answer.sentence, *answer.others]


def of_ranking(ranking: Ranking) -> Answer:
    """The answer for a workload, named as in "training: mobilenet_v2 on digits at 48 px"."""
    _, _, apart = ranking.work.partition(" ")
    first = ranking.runs[0]
    size = f" at {first['image_size']} px" if first["image_size"] is not None else ""
    model, dataset = (figures.text("", first[name]) for name in ("model", "dataset"))  # no roles: a title
    what = figures.text("", first["script"]) if first["script"] else f"{model} on {dataset}{size}"
    work = f"{KINDS[first['kind']].title}: {what}" + f" ({apart})" * bool(apart)
    learned = [one for one in ranking.settings if not any(_failings(ranking, one))]
    best = _recommended(ranking, learned)
    against, is_default = _nearest_to_defaults(ranking, learned or ranking.settings)
    if against is best and not is_default:
        against = next((one for one in learned if one is not best), None)
    return Answer(work, ranking, best, against, is_default)


def _recommended(ranking: Ranking, learned: Sequence[RankedSetting]) -> RankedSetting:
    """The fastest setting that learned and is not told to be less accurate than the most accurate one; the fastest
    where there is none."""
    if ranking.runs[0]["stop_at_target"] or ranking.runs[0]["random_weights"]:
        return next(iter(learned), ranking.settings[0])  # the target says what is enough; such a loss is no model's
    reached = [one for one in learned if one.accuracy is not None or one.loss is not None]
    top = min(reached, key=lambda one: one.costs[-1] or 0.0, default=ranking.settings[0])
    return next((one for one in learned if not ranking.more_accurate(top, one)), ranking.settings[0])


def _failings(ranking: Ranking, setting: RankedSetting) -> Iterator[str]:
    """What makes a setting's figures worth nothing: it did not learn, or it is too short to tell."""
    if ranking.repeated.at_chance(setting.runs):
        yield f"its accuracy of {setting.accuracy:.1%} is at chance level"
    first = of_setting(setting.runs, "loss_first")
    if first is not None and setting.loss is not None and not is_less(setting.loss, first):
        yield f"its loss did not fall ({first:.3f} to {setting.loss:.3f})"
    if setting.runs[0]["stop_at_target"] and of_setting(setting.runs, "time_to_target_s") is None:
        target = figures.text("target_accuracy", setting.runs[0]["target_accuracy"])
        yield f"it missed the target accuracy of {target}"
    steps = min(run["steps"] or 0 for run in setting.runs)
    if steps < LEAST_STEPS:
        yield f"it is too short to tell ({count(int(steps), 'measured step')})"


def _nearest_to_defaults(ranking: Ranking, settings: Sequence[RankedSetting]) -> tuple[RankedSetting, bool]:
    """Of some settings of a ranking the one with the most axes at their defaults, on the fewest GPUs; and whether all
    axes are."""
    from multicard import workloads  # hydra, which most commands do without

    defaults = workloads.defaults(ranking.runs[0]["kind"])
    keys = [key for key in ranking.keys if key in defaults]

    def at_defaults(setting: RankedSetting) -> int:
        cell = dict(setting.cell)
        return sum(grouping.typed(cell[key]) == grouping.typed(defaults[key]) for key in keys)

    nearest = max(settings, key=lambda setting: (at_defaults(setting), -setting.gpus))
    return nearest, 0 < at_defaults(nearest) == len(ranking.keys)
