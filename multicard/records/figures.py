"""Declares every figure of a run once.

A figure is a number of a record that tables, charts, rankings, sweepers and W&B show. To add one,
add an entry to `FIGURES`, and a key to the schema that holds it. All other code reads this file.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from itertools import chain
from typing import Any, Literal, get_type_hints

from msgspec import UNSET, Struct

from multicard.records.schema import LlmRecord, Record, ScriptRecord, VisionRecord
from multicard.records.schema_types import described
from multicard.records.text_table import clean, in_bytes, in_joules

RECORDS: dict[str, type[Record]] = {
    record.kind: record for record in (VisionRecord, LlmRecord, ScriptRecord)
}
VISION, LLM, SCRIPT = ALL = tuple(RECORDS)
BY_STEP = LLM, SCRIPT  # Kinds of runs whose loss is known for every step.
# By kind of run, the figures that show how well the run learned; the most telling one comes first.
LEARNING: Mapping[str, tuple[str, ...]] = {
    VISION: ("test_accuracy",),
    # The training loss says little about rows that were not trained on.
    LLM: ("held_out_loss", "loss_last_tenth"),
    SCRIPT: ("test_accuracy", "loss_last_tenth"),
}
# All figures that show how well a run of any kind learned.
LEARNED = tuple(dict.fromkeys(chain.from_iterable(LEARNING.values())))


@dataclass(frozen=True)
class Scale:
    """How an axis shows a quantity: as values divided by `divisor`, in the unit `name`."""

    name: str
    divisor: float = 1.0
    least: float = 0.0  # The scale suits axes whose largest value is at least this.


@dataclass(frozen=True)
class Unit:
    """A unit in which figures are recorded, and how to show such a figure to a person."""

    name: str
    text: Callable[[float], str]
    scales: tuple[Scale, ...] = (Scale(""),)

    def scale(self, largest: float) -> Scale:
        """Return the scale for an axis whose largest value is `largest`."""
        for scale in reversed(self.scales):
            if largest >= scale.least:
                return scale
        return self.scales[0]


def seconds(count: float) -> str:
    """Format seconds with one decimal from 10 s on, and with four digits below."""
    return f"{count:,.1f}" if count >= 10 else f"{count:.4g}"


def _thousands(*names: str) -> tuple[Scale, ...]:
    return tuple(Scale(name, 1000.0**power, 1000.0**power) for power, name in enumerate(names))


SECONDS = Unit(
    "s", seconds, (Scale("ms", 1e-3), Scale("s", 1.0, 1.0), Scale("h", 3600.0, 3 * 3600.0))
)
BYTES = Unit("bytes", in_bytes, _thousands("B", "kB", "MB", "GB", "TB"))
JOULES = Unit("J", in_joules, _thousands("J", "kJ", "MJ", "GJ"))
RATE = Unit("", lambda number: f"{number:,.0f}" if number >= 100 else f"{number:.3g}")
SHARE = Unit("share", "{:.2%}".format, (Scale("%", 0.01),))
# Amounts of money are in the currency of the configured price.
MONEY = Unit("", lambda number: f"{number:,.2f}" if number >= 10 else f"{number:.3g}")
PLAIN = Unit("", lambda number: str(number) if isinstance(number, int) else f"{number:.4g}")
# The unit of a column without a figure follows from its name; the first matching ending counts.
ENDINGS = {
    "_per_s": RATE,
    "_s": SECONDS,
    "_bytes": BYTES,
    "_joules": JOULES,
    "accuracy": SHARE,
    "share": SHARE,
}


@dataclass(frozen=True)
class Figure:
    """A figure of a run.

    name: the name of its column, as `list --columns` takes it.
    title: the figure in a few words, for a chart or a panel.
    place: the attribute of the record that holds it, with dots between nested ones; by default the
        name.
    unit: the unit in which it is recorded.
    better: the direction that is better.
    head: the heading of its column in a table for people; by default the name.
    summed: how the runs of a setting are summarized. Peak memory takes the maximum, which must fit.
    log: whether differences between runs are relative, so that logarithms are compared.
    of_seeds: whether the seed determines it. Runs with one seed then do not show its spread.
    counted: whether it is exact because it is counted, not timed.
    goal: its name in `best --goal`; empty if settings are not ranked by it.
    listed: whether it is among the first columns of `list` and of the report.
    at_end: the kinds of runs whose table at the end of a command shows it.
    if_room: whether this table drops it if the terminal is too narrow for all columns.
    keys: by kind of run, the keys of result.json that a derived figure is computed from.
    in_summary: its key in W&B's summary, if result.json holds it in a list.
    """

    name: str
    title: str
    place: str = ""
    _: KW_ONLY
    unit: Unit = PLAIN
    better: Literal["lower", "higher"] | None = None
    head: str = ""
    summed: Literal["mean", "max"] = "mean"
    log: bool = True
    of_seeds: bool = False
    counted: bool = False
    goal: str = ""
    listed: bool = False
    at_end: tuple[str, ...] = ()
    if_room: bool = False
    keys: Mapping[str, tuple[str, ...]] | None = None
    in_summary: str = ""

    def value(self, record: Record) -> Any:
        """Return the figure of a record, or None if the record lacks it."""
        value: Any = record
        for part in (self.place or self.name).split("."):
            value = getattr(value, part, None)
        return None if value is UNSET else value

    @property
    def can_be_disturbed(self) -> bool:
        """True for figures that are timed: other programs or a stall change times, but not counts,
        losses or peaks.
        """
        return not (self.counted or self.of_seeds or self.summed == "max")

    def text(self, record: Record) -> str:
        """Format the figure of a record for a person; "-" if the record lacks it."""
        return text(self.name, self.value(record))

    def keys_of(self, kind: str) -> tuple[str, ...]:
        """Return the keys of result.json that hold the figure for a run of this kind."""
        if self.keys is not None:
            return self.keys.get(kind, ())
        key = (self.place or self.name).replace("steps.", f"{RECORDS[kind].steps_key}.", 1)
        return (key,) if key in numbers(RECORDS[kind]) else ()

    def summary_keys_of(self, kind: str) -> tuple[str, ...]:
        """Return the keys of W&B's summary that hold the figure for a run of this kind."""
        keys = self.keys_of(kind)
        return (self.in_summary,) if keys and self.in_summary else keys

    @property
    def sentence(self) -> str:
        """The description of the figure in the schema."""
        if self.keys is None:
            kinds_with_figure = [kind for kind in ALL if self.keys_of(kind)]
            kind = kinds_with_figure[0]
            return numbers(RECORDS[kind])[self.keys_of(kind)[0]]
        place = self.place or self.name
        structs_with_figure = [struct for struct in RECORDS.values() if hasattr(struct, place)]
        return inspect.getdoc(getattr(structs_with_figure[0], place)) or ""

    def heading(self) -> str:
        return self.head or self.name


COLLECTIVES = {
    VISION: tuple(
        f"communication_bytes.{name}"
        for name in ("all_reduce", "broadcast", "scatter", "gather", "reduce")
    ),
    LLM: tuple(
        f"communication_bytes.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter")
    ),
}


_time = partial(Figure, unit=SECONDS, better="lower")
_rate = partial(Figure, unit=RATE, better="higher")
_accuracy = partial(Figure, unit=SHARE, better="higher", of_seeds=True)
_money = partial(Figure, unit=MONEY, better="lower", keys={})
_mfu = partial(Figure, unit=SHARE, better="higher", if_room=True, at_end=(LLM,))
_counted = partial(Figure, unit=BYTES, counted=True)

# The order is that of the columns. If a run did not end ok, its figures cover the part that it
# finished.
FIGURES = {
    figure.name: figure
    for figure in (
        _time("total_s", "training time", head="total s", goal="time", listed=True, at_end=ALL),
        _time("pace_s", "time of as much work", keys={}),
        _time("startup_s", "start-up"),
        _time("train_s", "training without evaluation"),
        _time("evaluate_s", "evaluation"),
        _time("compile_s", "compilation"),
        _time("time_to_target_s", "time to the target accuracy or loss"),
        _time("step_s", "time of a step", "steps.mean", head="s/step", at_end=BY_STEP),
        _time("step_median_s", "step, median", "steps.median"),
        _time("step_p95_s", "step, 95th percentile", "steps.p95"),
        _time("step_std_s", "step, standard deviation", "steps.std"),
        Figure("steps", "steps measured", "steps.count"),
        _rate("images_per_s", "images a second", head="images/s", listed=True, at_end=(VISION,)),
        _rate("trained_images_per_s", "images trained a second"),
        _rate("evaluated_images_per_s", "images evaluated a second", keys={}),
        _rate("samples_per_s", "samples a second", head="samples/s", listed=True, at_end=(SCRIPT,)),
        _rate(
            "tokens_per_s",
            "tokens a second, without padding",
            "tokens_per_s.non_padding",
            head="tokens/s",
            listed=True,
            at_end=BY_STEP,
        ),
        _rate(
            "padded_tokens_per_s",
            "tokens a second, with padding",
            "tokens_per_s.all",
            head="with padding",
            if_room=True,
            at_end=(LLM,),
        ),
        Figure("tokens", "tokens, without padding", "tokens.non_padding"),
        Figure("padded_tokens", "tokens, with padding", "tokens.all"),
        Figure("padding_share", "share of padding among tokens", unit=SHARE, keys={}),
        Figure("samples_trained", "samples trained", head="samples", at_end=(SCRIPT,), keys={}),
        Figure("steps_of_ranks", "steps of all ranks", keys={}),
        Figure("rows_share", "share of the rows trained on", unit=SHARE, keys={}),
        _accuracy(
            "test_accuracy",
            "test accuracy",
            log=False,
            head="accuracy",
            listed=True,
            at_end=(VISION, SCRIPT),
        ),
        Figure("test_samples", "test samples", keys={}),
        Figure("chance_accuracy", "accuracy at chance", unit=SHARE, log=False, of_seeds=True),
        Figure(
            "held_out_loss",
            "held-out loss",
            better="lower",
            of_seeds=True,
            head="held-out loss",
            listed=True,
            at_end=(LLM,),
            keys={LLM: ("held_out.evaluations",)},
            in_summary="held_out.loss",
        ),
        Figure("held_out_rows", "held-out rows", "held_out.rows"),
        Figure(
            "int4_loss",
            "held-out loss in int4",
            "held_out.in_int4.loss",
            better="lower",
            of_seeds=True,
        ),
        Figure("loss_first", "first loss", "loss.first", of_seeds=True, at_end=BY_STEP),
        Figure(
            "loss_last_tenth",
            "loss, mean of the last tenth",
            "loss.mean_of_last_tenth",
            better="lower",
            of_seeds=True,
            head="loss",
            listed=True,
            at_end=BY_STEP,
        ),
        _accuracy("reward_accuracy", "accuracy of DPO's rewards", "rewards.accuracy"),
        _counted(
            "peak_memory_bytes",
            "peak memory",
            "peak_memory_bytes.max",
            better="lower",
            head="peak memory",
            summed="max",
            goal="memory",
            listed=True,
            at_end=ALL,
        ),
        _counted(
            "h2d_bytes",
            "bytes moved to the device",
            "transfer_bytes.h2d",
            head="to device",
            at_end=(VISION,),
        ),
        _counted("d2d_bytes", "bytes moved within devices", "transfer_bytes.d2d"),
        _counted("d2h_bytes", "bytes moved from the device", "transfer_bytes.d2h"),
        _counted(
            "received_bytes", "bytes received", head="collectives", at_end=(LLM,), keys=COLLECTIVES
        ),
        Figure(
            "energy_joules",
            "energy of all GPUs",
            "training_joules",
            unit=JOULES,
            better="lower",
            head="energy",
            goal="energy",
            keys=dict.fromkeys(ALL, ("gpu.energy_joules",)),
        ),
        Figure("joules_per_image", "joules an image", better="lower"),
        Figure("joules_per_token", "joules a token", better="lower"),
        _money("cost", "cost", goal="cost", at_end=ALL),
        _money("cost_per_epoch", "cost of an epoch"),
        _money("cost_per_thousand_images", "cost of a thousand images"),
        _money("cost_per_million_tokens", "cost of a million tokens"),
        Figure("parameters", "parameters"),
        _mfu("mfu_non_padding", "model FLOPs utilisation, without padding", head="MFU"),
        _mfu("mfu", "model FLOPs utilisation, with padding", head="MFU with padding"),
    )
}
# Figures of charts, which the analysis derives from several runs or from an epoch.
DERIVED = {
    figure.name: figure
    for figure in (
        Figure("efficiency", "parallel efficiency", unit=SHARE, better="higher"),
        Figure("speedup", "speed-up over one", better="higher"),
        Figure("train_loss", "training loss", better="lower"),
    )
}
GOALS = {figure.goal: figure for figure in FIGURES.values() if figure.goal}


@cache
def of_column(name: str) -> Figure:
    """Return the figure that a column shows.

    If no figure has this name, make one whose unit follows from the ending (`_s`, `_bytes`).
    """
    if name in FIGURES:
        return FIGURES[name]
    if name in DERIVED:
        return DERIVED[name]
    for ending, unit in ENDINGS.items():
        if name.endswith(ending):
            return Figure(name, name, unit=unit)
    return Figure(name, name, unit=PLAIN)


def taken_s(kind: str, value: Callable[[str], float | None]) -> float | None:
    """Return the seconds that a run took for the work by which runs of its kind are compared: the
    whole run, or one sample or token.

    Args:
        value: returns the run's figure of a given name.
    """
    rates = RECORDS[kind].work_rates
    if not rates:
        return value("total_s")
    for rate in rates:
        per_s = value(rate)
        if per_s:
            return 1 / per_s
    return None


def text(name: str, value: Any) -> str:
    """Format a column's value for a person, in its unit; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return of_column(name).unit.text(value) if isinstance(value, int | float) else clean(str(value))


@cache
def numbers(struct: type[Struct]) -> dict[str, str]:
    """Map each number of a record, such as "total_s" or "step_s.mean", to its description."""
    descriptions: dict[str, str] = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        types, text = described(hint)
        if {int, float} & {*types}:
            descriptions[name] = text
        for part in types:
            if isinstance(part, type) and issubclass(part, Struct):
                descriptions |= {f"{name}.{inner}": text for inner, text in numbers(part).items()}
    return descriptions
