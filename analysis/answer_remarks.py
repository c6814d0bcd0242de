"""Word what belongs to a recommendation beside its figures: its costs, doubts and alternatives."""

from collections.abc import Iterator

from multicard.config.job import count
from multicard.messages import Message
from multicard.records import figures

from . import learned, recommended
from .answer_comparison import SettingComparison
from .commands.ranking import COST, RankedSetting
from .runs import circumstances, works
from .runs.grouping import MEMORY, of_setting

ENERGY = "energy_joules"
# no roles: these keys set how much a step trains.
BATCH_KEYS = {"batch_size", "global_batch_size"}


def fewer_ranks_suffice(comparison: SettingComparison) -> list[Message]:
    """Say that fewer ranks are enough.

    That holds if faster settings on more ranks are shown to gain next to nothing.
    """
    ranking = comparison.ranking
    best = comparison.best
    larger_settings = [
        setting
        for setting in ranking.settings
        if setting.gpus > best.gpus and ranking.equivalent(best, setting)
    ]
    if not larger_settings or comparison.failings:
        return []
    bounds = ranking.repeated.ratio(ranking.column, larger_settings[0].runs, best.runs).bounds(
        ranking.confidence
    )
    largest_gain = max(0.0, (bounds[1] if bounds else 1.0) - 1)
    unit = "CPU rank" if best.runs[0]["cpu_ranks"] else "GPU"
    ranks = f"one {unit} is" if best.gpus == 1 else f"{count(best.gpus, unit)} are"
    text = f"{ranks} enough: {ranking.label(larger_settings[0])} gains at most {largest_gain:.1%}"
    return [
        Message(
            "answer.enough",
            text,
            gpus=best.gpus,
            other=ranking.label(larger_settings[0]),
            most=largest_gain,
        )
    ]


def repetitions(comparison: SettingComparison) -> list[Message]:
    """Say how often to repeat, if these runs cannot show which setting is faster."""
    if not comparison.is_unclear:
        return []
    needed = comparison.needed_repetitions
    text = f"`repeat={needed}` would show which is faster"
    if needed is None:
        text = f"Even `repeat={recommended.MAX_REPETITIONS}` may not show which is faster"
    return [Message("answer.repetitions", text, needed=needed)]


def compilation(comparison: SettingComparison) -> list[Message]:
    """Say how long compilation takes, because training times leave it out."""
    compile_s, total_s = (
        of_setting(comparison.best.runs, column) or 0.0 for column in ("compile_s", "total_s")
    )
    if compile_s <= recommended.NOTABLE_SHARE * total_s:
        return []
    text = f"not counting {figures.seconds(compile_s)} s of compilation"
    return [Message("answer.compilation", text, compile_s=compile_s)]


def learning_and_costs(comparison: SettingComparison) -> Iterator[Message]:
    best = comparison.best
    other = comparison.against
    if other is None or other is best:
        yield from learned.describe_learning(best)
        yield from learned.quality_caveats(best)
        return
    yield from learned.compare_learning(comparison.ranking, best, other)
    yield from learned.quality_caveats(best, other)
    yield from costs(best, other)


def costs(best: RankedSetting, other: RankedSetting) -> Iterator[Message]:
    """Say how much more or less memory and energy a setting takes than another one."""
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
            yield Message("answer.times-as-much", f"{ratio:.3g}x the {name}", of=name, ratio=ratio)


def other_batch(comparison: SettingComparison) -> list[Message]:
    """Say that a step trains another amount than a step of the other setting.

    It is not said if the settings' keys already show it.
    """
    other = comparison.against
    if other is None or other is comparison.best:
        return []
    if BATCH_KEYS & {*comparison.differing_keys} and "gpus" not in comparison.differing_keys:
        return []
    work_by_side = [
        [circumstances.step_work(run.record()) for run in setting.runs]
        for setting in (comparison.best, other)
    ]
    mean_works = circumstances.differing_means(*work_by_side)
    if mean_works is None:
        return []
    own_work, other_work = mean_works
    unit = circumstances.step_work_unit([*comparison.best.runs, *other.runs])
    text = f"A step trains {own_work:,.0f} {unit}, not {other_work:,.0f}"
    return [Message("answer.other-batch", text, step=own_work, other=other_work, unit=unit)]


def indistinguishable(comparison: SettingComparison) -> list[RankedSetting]:
    """Return the slower settings that differ from the best one by no more than noise.

    There are none if the best setting itself is not clearly faster than the one it is compared
    with.
    """
    ranking = comparison.ranking
    best = comparison.best
    if not comparison.is_clearly_faster and comparison.against is not best:
        return []
    return [
        setting
        for setting in comparison.slower_settings
        if not (ranking.cheaper(best, setting) or ranking.more_accurate(best, setting))
    ]


def unclear_fewer_ranks(comparison: SettingComparison) -> list[Message]:
    """Name the fastest setting on fewer ranks that may be as good as the best one."""
    unit = "CPU ranks" if comparison.best.runs[0]["cpu_ranks"] else "GPUs"
    labels = [
        comparison.ranking.label(setting)
        for setting in indistinguishable(comparison)
        if setting.gpus < comparison.best.gpus
    ]
    if not labels:
        return []
    text = f"It is not known whether {labels[0]}, on fewer {unit}, is just as fast"
    return [Message("answer.fewer-ranks", text, setting=labels[0])]


def unranked_runs(comparison: SettingComparison) -> list[Message]:
    """Return a message for each limit that keeps runs out of the ranking, with their number."""
    return [
        Message(
            "answer.unranked",
            f"not ranked: {count(number, 'other run')} ({says.partition(':')[0]})",
            says=says,
            runs=number,
        )
        for says, number in comparison.ranking.untold.items()
    ]


def other_lengths(comparison: SettingComparison) -> list[Message]:
    """Say that some arguments set how long the script trains.

    Their values are therefore not compared.
    """
    lengths = comparison.ranking.lengths
    if not lengths:
        return []
    names = " and ".join(lengths)
    sets = "sets" if len(lengths) == 1 else "set"
    text = f"{names} {sets} how much the script trains, so no value is faster than another"
    return [Message("answer.other-lengths", text, keys=[*lengths])]


def unexplained_amounts(comparison: SettingComparison) -> list[Message]:
    """Say that a script's settings differ both in amounts and in steps.

    Settings that differ in their ranks share one of the two if each run starts afresh.
    """
    amounts = works.unexplained_amounts(comparison.ranking.runs)
    if amounts is None:
        return []
    text = (
        f"settings trained {amounts.range}, in different numbers of steps: the script may have"
        " continued from files that an earlier run left in its working folder"
    )
    return [Message("answer.unlike-amounts", text, least=amounts.least, most=amounts.most)]
