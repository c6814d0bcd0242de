"""The race of a sweep: what is refused, the race to its end, and what it prints then."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from multicard.config import schema
from multicard.config.base import plain
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.decide.race import processes
from multicard.decide.race.live import LiveRace, out_line
from multicard.decide.race.outcome import (
    BURSTS,
    CLOSE,
    ENDINGS,
    IN,
    NOT_STARTED,
    NOT_WORTH,
    OUT,
    SURE,
    RaceVerdict,
    Standing,
)
from multicard.decide.race.readings import in_words, interval, value
from multicard.measure.timing import in_hours
from multicard.messages import Message, Refusal, say, typed
from multicard.records import comparable, limits, text_table
from multicard.records.figures import LLM
from multicard.records.limits import Forbids
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import Cell, Sweep, settle
from multicard.sweep.executor import run_all

LISTED = 12  # most cells in the table at the end
# of that table where there is no terminal: why cells are out was said in full when they dropped out
END_WIDTH = 120


def refuse(figure: str, cells: Sequence[Cell]) -> None:
    """Refuse a figure that the entry does not have, and cells that are the same run."""
    workload = cells[0].workload
    own = f"{cells[0].workload.unit}_per_s"
    if figure != own:
        sentence = f"race={figure}: {workload.entry} measures another figure; use `race={own}`"
        raise Refusal("race.figure", sentence, key="race", value=figure)
    distinct = len({cell.config.identity() for cell in cells})
    if distinct < len(cells):
        sentence = f"race={figure}: several cells are the same run; leave repetition out"
        raise Refusal(
            "race.same-run", sentence, key="repetition", cells=len(cells), distinct=distinct
        )


def run(sweep: Sweep, finals: Sweep) -> None:
    """Race the cells, and measure the best of them in full, as cells of `finals`.

    Raises:
        ValueError: the cells cannot be raced, or an earlier race of this name was another one.
        KeyboardInterrupt: on Ctrl-C, once what ran has ended.
        SameFailureError: a cell failed for a cause that the others have too.
        JournalError: what it learns cannot be kept.
    """
    if not sweep.cells:
        return
    refuse(str(sweep.cells[0].config.race.figure), sweep.cells)
    race = LiveRace(sweep.cells)
    try:
        with processes.whole_machine(race.widest) as machine_share:
            race.run(machine_share)
        runs = _measure_in_full(race, finals)
        if race.widen(runs):
            runs = _measure_in_full(race, finals)
        race.take_finals(runs)
        say("\n".join(end(race, runs)))
        sweep.command.abandoned |= race.rules.verdict().winner is None
    finally:
        race.journal.close()


def _measure_in_full(race: LiveRace, finals: Sweep) -> list[Cell]:
    """The finalists' runs in full, of which those that were measured before are taken."""
    known = {cell.folder: cell for cell in finals.cells}
    runs = [known.get(cell.folder, cell) for cell in race.finals()]
    more = Sweep(finals.command, [cell for cell in runs if cell.folder not in known])
    settle(more)
    finals.cells += more.cells
    finals.refused += more.refused
    if finals.left:
        say(_finals_line(race, len(finals.left)))
        run_all(finals)
    return runs


def _finals_line(race: LiveRace, runs: int) -> Message:
    """The line before the full runs."""
    ending = race.rules.ending
    reason = ENDINGS[ending] if ending in (NOT_WORTH, BURSTS) else "the best in full"
    sentence = f"race={race.options.figure}: {count(runs, 'run')}: {reason}"
    return Message("race.in-full", sentence, runs=runs, reason=reason)


def end(race: LiveRace, finals: Sequence[Cell]) -> list[str]:
    """The table of the race, its winner, and its cost."""
    verdict = race.rules.verdict()
    standings = race.rules.standings
    options = race.options
    missed = [each for each in standings if each.missed]
    if verdict.winner is None and missed:
        return [
            _all_missed(race),
            *(out_line(race.cells[each.cell], each.reason) for each in missed),
        ]
    if verdict.winner is None:
        sentence = f"race={options.figure}: no cell could be measured to its end"
        return [Message("race.no-winner", sentence)]
    ran = [each for each in standings if each.blocks or each.in_full is not None]
    ran.sort(
        key=lambda each: (each.cell == verdict.winner, each.state == IN, each.log_figure),
        reverse=True,
    )
    lines = ["", *_table(race, ran[:LISTED], verdict.winner)]
    if len(ran) > LISTED:
        more = len(ran) - LISTED
        lines.append(
            Message(
                "race.more", f"and {count(more, 'cell')} that ran, and came after these", cells=more
            )
        )
    failed = [each for each in standings if each.failed and each not in ran[:LISTED]]
    lines += [out_line(race.cells[each.cell], each.reason) for each in failed]
    unstarted = [each.cell for each in standings if each.state == NOT_STARTED]
    if unstarted:
        lines.append(_never_ran(race, unstarted))
    reason = ENDINGS[race.rules.ending]
    lines.append(Message("race.ended", f"the race ended: {reason}", reason=reason))
    lines.append(_winner(race, ran[0]))
    lines.append(_how_sure(race, verdict))
    lines += _limited(race, ran[0].cell, finals)
    if verdict.equal:
        cells = _labels(race, verdict.equal)
        lines.append(
            Message("race.equal", f"as good, within {options.tolerance}: {cells}", cells=cells)
        )
    if verdict.close:
        cells = _labels(race, verdict.close)
        lines.append(Message("race.close", f"too close to tell: {cells}", cells=cells))
    if missed:
        sentence = (
            "cells beaten by one that missed its target are not tried again: race without such"
            " cells"
        )
        lines.append(Message("race.beaten-by-missed", sentence))
    lines.append(_cost(race, finals))
    if differ := _differing(race.cells):
        what = "how well it learns" if race.cells[0].workload.name == LLM else "accuracy"
        sentence = f"the race does not vouch for {what}, which {', '.join(differ)} may change"
        lines.append(Message("race.accuracy", sentence, keys=differ))
    return [*lines, _command(race.cells[ran[0].cell])]


def _all_missed(race: LiveRace) -> Message:
    remedy = "to look at all cells, sweep without race and with `stop_at_target=true`"
    sentence = f"race={race.options.figure}: none of the fastest reached the target; {remedy}"
    return Message("race.none-reached-target", sentence)


def _never_ran(race: LiveRace, unstarted: Sequence[int]) -> Message:
    is_enough = race.rules.ending in (SURE, CLOSE)
    why = ", as cells with the same settings say enough of them" if is_enough else ""
    labels = _labels(race, unstarted[:LISTED]) + (", ..." if len(unstarted) > LISTED else "")
    sentence = f"{count(len(unstarted), 'cell')} never ran{why}: {labels}"
    return Message("race.never-ran", sentence, cells=len(unstarted), others_say_enough=is_enough)


def _winner(race: LiveRace, standing: Standing) -> Message:
    cell = race.cells[standing.cell]
    figure = in_words(race.figure, standing)
    sentence = f"winner: {cell.label}{figure}"
    return Message("race.winner", sentence, cell=cell.label.strip(), figure=figure)


def _how_sure(race: LiveRace, verdict: RaceVerdict) -> Message:
    """How sure the winner is: the one line that says it."""
    tolerance = race.options.tolerance
    confidence = race.options.confidence
    if race.rules.bursts:
        disturbed = verdict.disturbed
        blocks = verdict.blocks
        remedy = "race again on a quiet machine"
        sentence = (
            f"not sure: {disturbed} of {blocks} blocks and full runs were disturbed by bursts of"
            f" load; {remedy}"
        )
        return Message("race.not-sure", sentence, disturbed=disturbed, blocks=blocks)
    probability = f"within {tolerance} of the best with a probability of {verdict.sure:.0%}"
    if verdict.sure >= confidence:
        return Message("race.how-sure", probability, tolerance=tolerance, sure=verdict.sure)
    return Message(
        "race.less-sure",
        f"{probability}, less than race.confidence={confidence:g}",
        key="race.confidence",
        value=confidence,
        tolerance=tolerance,
        sure=verdict.sure,
    )


def _limited(race: LiveRace, winner: int, finals: Sequence[Cell]) -> list[Message]:
    """What limits the winner's full runs, on which its figure rests."""
    runs = [
        cell
        for (_, place), cell in zip(race.rules.final_runs, finals, strict=True)
        if place == winner
    ]
    counted = Counter[str]()
    for cell in runs:
        if cell.result is not None:
            found = limits.forbidding(
                limits.of(cell.result.record), Forbids.rate, Forbids.speed_up, Forbids.verdict
            )
            counted.update(limits.general_sentence(limit) for limit in found)
    return [_limit_line(says, number, len(runs)) for says, number in counted.items()]


def _limit_line(says: str, limited: int, runs: int) -> Message:
    sentence = f"the winner's figure is not sure: {says}, in {limited} of {count(runs, 'full run')}"
    return Message("race.limited", sentence, says=says, limited=limited, runs=runs)


def _command(winner: Cell) -> Message:
    words = [str(word) for word in winner.composed.hydra.overrides.task]
    words = [word for word in words if not _is_of_the_race(word)]
    command = f"{typed(winner.workload.entry)} {shlex.join(words)}"
    return Message("race.command", f"to run it: `{command}`", command=command)


def _is_of_the_race(word: str) -> bool:
    """True for words of the race's command that say nothing of its cells,
    or only how long it tried them.
    """
    key = re.split("[=/]", word.lstrip("+~"))[0].partition(".")[0]
    return key == "name" or bool(schema.of(key) & (Role.once | Role.sweeps | Role.trial))


def _labels(race: LiveRace, places: Sequence[int]) -> str:
    return ", ".join(race.cells[place].label.strip() for place in places)


def _table(race: LiveRace, standings: Sequence[Standing], winner: int) -> list[str]:
    records = [cell.as_record() for cell in race.cells]
    axes = comparable.varied(records, race.cells[0].workload.record.always)
    columns: dict[str, list[str]] = {
        "cell": [race.cells[each.cell].label.strip() for each in standings]
    }
    columns |= {
        axis: [comparable.cell(records[each.cell], axis) for each in standings] for axis in axes
    }
    columns[race.figure.head or race.figure.title] = [value(each.log_figure) for each in standings]
    columns["interval"] = [interval(each) for each in standings]
    if any(each.in_full is not None for each in standings):
        columns["in full"] = [
            "-" if each.in_full is None else value(each.in_full) for each in standings
        ]
    peaks = [race.peaks.get(each.cell) for each in standings]
    columns["memory"] = [in_bytes(max(own) if own else None) for own in peaks]
    align = "l" * (len(axes) + 1) + "r" * (len(columns) - len(axes) - 1) + "l"
    columns["race"] = ["winner" if each.cell == winner else _state(each) for each in standings]
    rows = [*zip(*columns.values(), strict=True)]
    return text_table.text([*columns], rows, text_table.terminal_width() or END_WIDTH, align)


def _state(standing: Standing) -> str:
    if standing.state != OUT:
        return standing.state
    if not standing.failed and isinstance(standing.reason, Message):
        return f"out: {standing.reason.facts['behind']:.1%} behind"
    return f"out: {standing.reason}"


def _cost(race: LiveRace, finals: Sequence[Cell]) -> Message:
    """Time of the race compared with that of the whole grid."""
    records = [cell.result.record for cell in finals if cell.result is not None]
    finals_s = sum((record.startup_s or 0.0) + (record.total_s or 0.0) for record in records)
    used_s = race.raced_s + finals_s
    full_s = race.full_s()
    grid_s = None if full_s is None else full_s * len(race.cells)
    sentence = f"it took {in_hours(used_s)}, of it {in_hours(finals_s)} for the final runs"
    if grid_s is not None:
        sentence += (
            f"; the whole grid, once, takes about {in_hours(grid_s)} ({used_s / grid_s:.0%})"
        )
    return Message("race.cost", sentence, seconds=used_s, final_runs_s=finals_s, grid_s=grid_s)


def _differing(cells: Sequence[Cell]) -> list[str]:
    """Keys that change accuracy or loss, and differ between cells;
    none where the winner has reached its target.
    """
    config = cells[0].config
    if (
        getattr(config, "target_accuracy", None) is not None
        or getattr(config, "target_loss", None) is not None
    ):
        return []
    own = [plain(cell.config) for cell in cells]
    learning = sorted(schema.own(type(cells[0].config), Role.learning), key=schema.place)
    differ = [key for key in learning if any(values.get(key) != own[0].get(key) for values in own)]
    is_one_batch = own[0].get("global_batch_size") is not None and "global_batch_size" not in differ
    return [
        key for key in differ if not (is_one_batch and schema.of(key) & (Role.ranks | Role.follows))
    ]
