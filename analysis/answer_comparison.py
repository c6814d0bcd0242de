"""Compare the recommended setting of a workload with another one, and word the recommendation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from multicard.config.job import count
from multicard.measure.formulas import DOUBTFUL_EFFICIENCY
from multicard.measure.repeated_runs import CONFIDENCE, MARGIN, Ratio
from multicard.messages import Message
from multicard.records import limits

from . import recommended
from .commands.ranking import RankedSetting, Ranking
from .runs import circumstances, grouping
from .stats.intervals import faster, times


@dataclass(frozen=True)
class SettingComparison:
    """The recommended setting of a workload, and the setting that it is compared with.

    ranking: the workload's settings, ranked by time.
    best: the recommended setting.
    against: the setting that `best` is compared with. It is `best` itself if nothing is faster than
        the defaults, and None if no other setting learned.
    is_default: True if every axis of `against` is at its default.
    """

    ranking: Ranking
    best: RankedSetting
    against: RankedSetting | None
    is_default: bool

    @property
    def setting(self) -> str:
        """The recommended setting as it is typed; empty if there is only one setting."""
        return grouping.label(self.best.cell, self.ranking.keys)

    @property
    def slower_settings(self) -> Sequence[RankedSetting]:
        """The settings that are ranked after the recommended one."""
        settings = self.ranking.settings
        return settings[settings.index(self.best) + 1 :]

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
    def evidence(self) -> str:
        """How sure the comparison is: its 95 % interval if a setting was repeated, and the runs."""
        counts = self.run_counts
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

    @cached_property
    def differing_keys(self) -> list[str]:
        best_cell = dict(self.best.cell)
        other_cell = dict(self.against.cell if self.against else self.best.cell)
        return [key for key in self.ranking.keys if best_cell.get(key) != other_cell.get(key)]

    @cached_property
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
        facts = {"needed": self.needed_repetitions, **self._comparison_facts}
        if {*self.run_counts} == {1}:
            text = f"{self.setting} was {faster(ratio)} than {self.compared_with} in one run each"
            return Message("answer.one-run-each", text, **facts)
        text = f"{self.setting} is not clearly faster than {self.compared_with} ({self.evidence})"
        return Message("answer.not-known", text, **facts)

    @property
    def is_unclear(self) -> bool:
        """True if these runs cannot show which of the two settings is faster."""
        return self.lead.code in ("answer.one-run-each", "answer.not-known")

    @property
    def needed_repetitions(self) -> int | None:
        """The number of repetitions that would show which setting is faster.

        It is None if the most repetitions may not show it, or if these runs already do.
        """
        if self.is_clearly_faster:
            return None
        return recommended.repetitions_to_tell(
            self.speedup, self.ranking.confidence, *self.run_counts
        )

    @property
    def run_counts(self) -> list[int]:
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
            "n": self.run_counts,
        }
