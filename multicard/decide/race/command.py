"""Run the race of a sweep: refuse what cannot be raced, race to the end, and print the result."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from multicard.config import schema
from multicard.config.base import plain
from multicard.config.job import count
from multicard.config.roles import Role
from multicard.decide.race import processes
from multicard.decide.race.final_runs import FinalRuns
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
from multicard.decide.race.readings import figure_text, in_words, interval_text
from multicard.measure.timing import in_hours
from multicard.messages import Message, Refusal, say, typed
from multicard.records import comparable, limits, text_table
from multicard.records.figures import LLM
from multicard.records.limits import Forbids
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import Cell, Sweep, settle
from multicard.sweep.executor import run_all

LISTED = 12  # At most this many cells appear in the table at the end.
# The width of that table without a terminal. It may cut the reasons for which cells are out: they
# were printed in full when the cells dropped out.
END_WIDTH = 120


def refuse(figure: str, cells: Sequence[Cell]) -> None:
    """Refuse a figure that the entry does not measure, and cells that are the same run."""
    workload = cells[0].workload
    entry_figure = f"{cells[0].workload.unit}_per_s"
    if figure != entry_figure:
        sentence = (
            f"race={figure}: {workload.entry} measures another figure; use `race={entry_figure}`"
        )
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
        ValueError: the cells cannot be raced, or an earlier race of this name was a different one.
        KeyboardInterrupt: on Ctrl-C, once the running processes have ended.
        SameFailureError: a cell failed for a cause that the other cells share.
        JournalError: the journal cannot be written.
    """
    if not sweep.cells:
        return
    refuse(str(sweep.cells[0].config.race.figure), sweep.cells)
    race = LiveRace(sweep.cells)
    try:
        with processes.whole_machine(race.widest) as machine_share:
            race.run(machine_share)
        final_runs = FinalRuns(race)
        runs = _measure_in_full(final_runs, finals)
        if final_runs.widen(runs):
            runs = _measure_in_full(final_runs, finals)
        final_runs.take(runs)
        say("\n".join(end_lines(race, runs)))
        sweep.command.abandoned |= race.rules.verdict().winner is None
    finally:
        race.journal.close()


def _measure_in_full(final_runs: FinalRuns, finals: Sweep) -> list[Cell]:
    """Measure the finalists in full, except for runs that were measured before."""
    cells_by_folder = {cell.folder: cell for cell in finals.cells}
    runs = [cells_by_folder.get(cell.folder, cell) for cell in final_runs.cells()]
    new_runs = Sweep(finals.command, [cell for cell in runs if cell.folder not in cells_by_folder])
    settle(new_runs)
    finals.cells += new_runs.cells
    finals.refused += new_runs.refused
    if finals.left:
        say(_finals_line(final_runs.race, len(finals.left)))
        run_all(finals)
    return runs


def _finals_line(race: LiveRace, runs: int) -> Message:
    """Return the line that is printed before the full runs."""
    ending = race.rules.ending
    reason = ENDINGS[ending] if ending in (NOT_WORTH, BURSTS) else "the best in full"
    sentence = f"race={race.options.figure}: {count(runs, 'run')}: {reason}"
    return Message("race.in-full", sentence, runs=runs, reason=reason)


def end_lines(race: LiveRace, finals: Sequence[Cell]) -> list[str]:
    """Return the table of the race, its winner, and its cost, as lines for a terminal."""
    verdict = race.rules.verdict()
    standings = race.rules.standings
    options = race.options
    missed_standings = [standing for standing in standings if standing.missed]
    if verdict.winner is None and missed_standings:
        return [
            _all_missed(race),
            *(
                out_line(race.cells[standing.cell], standing.reason)
                for standing in missed_standings
            ),
        ]
    if verdict.winner is None:
        sentence = f"race={options.figure}: no cell could be measured to its end"
        return [Message("race.no-winner", sentence)]
    ranked = [standing for standing in standings if standing.blocks or standing.in_full is not None]
    ranked.sort(
        key=lambda standing: (
            standing.cell == verdict.winner,
            standing.state == IN,
            standing.log_figure,
        ),
        reverse=True,
    )
    lines = ["", *_table(race, ranked[:LISTED], verdict.winner)]
    if len(ranked) > LISTED:
        further_cells = len(ranked) - LISTED
        lines.append(
            Message(
                "race.more",
                f"and {count(further_cells, 'cell')} that ran and ranked lower",
                cells=further_cells,
            )
        )
    failed_standings = [
        standing for standing in standings if standing.failed and standing not in ranked[:LISTED]
    ]
    lines += [out_line(race.cells[standing.cell], standing.reason) for standing in failed_standings]
    unstarted_cells = [standing.cell for standing in standings if standing.state == NOT_STARTED]
    if unstarted_cells:
        lines.append(_never_ran(race, unstarted_cells))
    reason = ENDINGS[race.rules.ending]
    lines.append(Message("race.ended", f"the race ended: {reason}", reason=reason))
    lines.append(_winner(race, ranked[0]))
    lines.append(_how_sure(race, verdict))
    lines += _limited(race, ranked[0].cell, finals)
    if verdict.equal:
        cells = _labels(race, verdict.equal)
        lines.append(
            Message("race.equal", f"as good, within {options.tolerance}: {cells}", cells=cells)
        )
    if verdict.close:
        cells = _labels(race, verdict.close)
        lines.append(Message("race.close", f"too close to tell: {cells}", cells=cells))
    if missed_standings:
        sentence = (
            "cells that lost to a cell that missed its target are not tried again: race without"
            " such cells"
        )
        lines.append(Message("race.beaten-by-missed", sentence))
    lines.append(_cost(race, finals))
    if differing_keys := _differing(race.cells):
        quality = "how well it learns" if race.cells[0].workload.name == LLM else "accuracy"
        sentence = (
            f"the race does not vouch for {quality}, which {', '.join(differing_keys)} may change"
        )
        lines.append(Message("race.accuracy", sentence, keys=differing_keys))
    return [*lines, _command(race.cells[ranked[0].cell])]


def _all_missed(race: LiveRace) -> Message:
    remedy = "to look at all cells, sweep without race and with `stop_at_target=true`"
    sentence = f"race={race.options.figure}: none of the fastest reached the target; {remedy}"
    return Message("race.none-reached-target", sentence)


def _never_ran(race: LiveRace, unstarted_cells: Sequence[int]) -> Message:
    is_enough = race.rules.ending in (SURE, CLOSE)
    why = ", as cells with the same settings say enough about them" if is_enough else ""
    labels = _labels(race, unstarted_cells[:LISTED]) + (
        ", ..." if len(unstarted_cells) > LISTED else ""
    )
    sentence = f"{count(len(unstarted_cells), 'cell')} never ran{why}: {labels}"
    return Message(
        "race.never-ran", sentence, cells=len(unstarted_cells), others_say_enough=is_enough
    )


def _winner(race: LiveRace, standing: Standing) -> Message:
    cell = race.cells[standing.cell]
    figure = in_words(race.figure, standing)
    sentence = f"winner: {cell.label}{figure}"
    return Message("race.winner", sentence, cell=cell.label.strip(), figure=figure)


def _how_sure(race: LiveRace, verdict: RaceVerdict) -> Message:
    """Return the one line that says how sure it is that the winner is the best."""
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
    """Return a line for each limit of the winner's full runs, on which its figure rests."""
    runs = [
        cell
        for (_, place), cell in zip(race.rules.final_runs, finals, strict=True)
        if place == winner
    ]
    runs_by_limit = Counter[str]()
    for cell in runs:
        if cell.result is not None:
            limits_of_run = limits.forbidding(
                limits.of(cell.result.record), Forbids.rate, Forbids.speed_up, Forbids.verdict
            )
            runs_by_limit.update(limits.general_sentence(limit) for limit in limits_of_run)
    return [_limit_line(says, number, len(runs)) for says, number in runs_by_limit.items()]


def _limit_line(says: str, limited_runs: int, runs: int) -> Message:
    sentence = (
        f"the winner's figure is not sure: {says}, in {limited_runs} of {count(runs, 'full run')}"
    )
    return Message("race.limited", sentence, says=says, limited=limited_runs, runs=runs)


def _command(winner: Cell) -> Message:
    words = [str(word) for word in winner.composed.hydra.overrides.task]
    words = [word for word in words if not _belongs_to_race(word)]
    command = f"{typed(winner.workload.entry)} {shlex.join(words)}"
    return Message("race.command", f"to run it: `{command}`", command=command)


def _belongs_to_race(word: str) -> bool:
    """Return True for a word of the race's command that does not describe a cell.

    Words that only say how long a cell is tried are of this kind too.
    """
    key = re.split("[=/]", word.lstrip("+~"))[0].partition(".")[0]
    return key == "name" or bool(schema.of(key) & (Role.once | Role.sweeps | Role.trial))


def _labels(race: LiveRace, places: Sequence[int]) -> str:
    return ", ".join(race.cells[place].label.strip() for place in places)


def _table(race: LiveRace, standings: Sequence[Standing], winner: int) -> list[str]:
    records = [cell.as_record() for cell in race.cells]
    axes = comparable.varied(records, race.cells[0].workload.record.always)
    columns: dict[str, list[str]] = {
        "cell": [race.cells[standing.cell].label.strip() for standing in standings]
    }
    columns |= {
        axis: [comparable.cell(records[standing.cell], axis) for standing in standings]
        for axis in axes
    }
    columns[race.figure.head or race.figure.title] = [
        figure_text(standing.log_figure) for standing in standings
    ]
    columns["interval"] = [interval_text(standing) for standing in standings]
    if any(standing.in_full is not None for standing in standings):
        columns["in full"] = [
            "-" if standing.in_full is None else figure_text(standing.in_full)
            for standing in standings
        ]
    peaks = [race.peaks.get(standing.cell) for standing in standings]
    columns["memory"] = [in_bytes(max(rank_peaks) if rank_peaks else None) for rank_peaks in peaks]
    align = "l" * (len(axes) + 1) + "r" * (len(columns) - len(axes) - 1) + "l"
    columns["race"] = [
        "winner" if standing.cell == winner else _state(standing) for standing in standings
    ]
    rows = [*zip(*columns.values(), strict=True)]
    return text_table.text([*columns], rows, text_table.terminal_width() or END_WIDTH, align)


def _state(standing: Standing) -> str:
    if standing.state != OUT:
        return standing.state
    if not standing.failed and isinstance(standing.reason, Message):
        return f"out: {standing.reason.facts['behind']:.1%} behind"
    return f"out: {standing.reason}"


def _cost(race: LiveRace, finals: Sequence[Cell]) -> Message:
    """Compare the time of the race with the time of the whole grid."""
    records = [cell.result.record for cell in finals if cell.result is not None]
    finals_s = sum((record.startup_s or 0.0) + (record.total_s or 0.0) for record in records)
    used_s = race.raced_s + finals_s
    full_s = race.full_s()
    grid_s = None if full_s is None else full_s * len(race.cells)
    sentence = f"it took {in_hours(used_s)}, including {in_hours(finals_s)} for the final runs"
    if grid_s is not None:
        sentence += (
            f"; the whole grid, once, takes about {in_hours(grid_s)} ({used_s / grid_s:.0%})"
        )
    return Message("race.cost", sentence, seconds=used_s, final_runs_s=finals_s, grid_s=grid_s)


def _differing(cells: Sequence[Cell]) -> list[str]:
    """Return the keys that change accuracy or loss and differ between the cells.

    None are returned if the runs have a target, because the winner has then reached it.
    """
    config = cells[0].config
    if (
        getattr(config, "target_accuracy", None) is not None
        or getattr(config, "target_loss", None) is not None
    ):
        return []
    plain_configs = [plain(cell.config) for cell in cells]
    learning_keys = sorted(schema.own(type(cells[0].config), Role.learning), key=schema.place)
    differing_keys = [
        key
        for key in learning_keys
        if any(values.get(key) != plain_configs[0].get(key) for values in plain_configs)
    ]
    is_one_batch = (
        plain_configs[0].get("global_batch_size") is not None
        and "global_batch_size" not in differing_keys
    )
    return [
        key
        for key in differing_keys
        if not (is_one_batch and schema.of(key) & (Role.ranks | Role.follows))
    ]
