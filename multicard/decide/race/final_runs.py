"""The full runs of a race's finalists, which decide the race."""

from collections.abc import Sequence
from dataclasses import replace

from multicard.decide.race import processes, readings
from multicard.decide.race.live import LiveRace, no_speed_up_reason
from multicard.decide.race.posterior import Block
from multicard.messages import Message
from multicard.records import limits
from multicard.records.limits import Forbids
from multicard.records.schema import AnyRecord, ScriptRecord, VisionRecord
from multicard.sweep.cells import Cell


class FinalRuns:
    """The full runs of a race's finalists."""

    def __init__(self, race: LiveRace) -> None:
        self.race = race

    def cells(self) -> list[Cell]:
        """Return the full runs of the finalists, each of which gets a new process."""
        runs = self.race.rules.final_runs
        return [
            processes.as_run(self.race.cells[place], turn - runs[0][0] + 1, is_probe=False)
            for turn, place in runs
        ]

    def widen(self, finals: Sequence[Cell]) -> bool:
        """Choose more cells to measure in full if the finalists' full runs show bursts of load.

        Returns:
            True if there are more runs to measure.
        """
        blocks = [
            self._as_block(*turn, cell)
            for turn, cell in zip(self.race.rules.final_runs, finals, strict=True)
        ]
        if not self.race.rules.widen([block for block in blocks if block is not None]):
            return False
        self.race.journal.add(ending=self.race.rules.ending, finalists=self.race.rules.finalists)
        return True

    def _as_block(self, turn: int, place: int, cell: Cell) -> Block | None:
        """Return a full run as a block for the rules, or None if it has no figure."""
        if cell.result is None:
            return None
        reading = readings.full_run_reading(cell.result, self.race.figure)
        if reading is None:
            return None
        busy = limits.busy_share(cell.result.record)
        slowed = readings.run_log_slowdown(cell.result)
        return Block(place, turn, *reading, process=0, is_full=True, busy=busy, slowed=slowed)

    def take(self, finals: Sequence[Cell]) -> None:
        """Add the finalists' full runs. A cell that missed its target in any run cannot win."""
        lost_reasons = dict[int, str]()
        missed_reasons = dict[int, str]()
        measured_places = set[int]()
        for (turn, place), cell in zip(self.race.rules.final_runs, finals, strict=True):
            block = self._as_block(turn, place, cell)
            if cell.result is None or block is None:
                status = "not measured" if cell.result is None else cell.result.status
                lost_reasons[place] = Message(
                    "race.lost", f"{status} when it was measured in full", status=status
                )
                continue
            forbidding_limits = limits.forbidding(limits.of(cell.result.record), Forbids.speed_up)
            if self.race.over_ranks and forbidding_limits:
                lost_reasons[place] = no_speed_up_reason(forbidding_limits[0])
                continue
            measured_places.add(place)
            reason = _missed_target(cell, cell.result.record)
            if reason is not None:
                missed_reasons[place] = reason
            self.race.started += 1
            self.race.rules.add_full(replace(block, process=self.race.started))
        for place, reason in missed_reasons.items():
            self.race.rules.out(place, reason)
        for place, reason in lost_reasons.items():
            if place not in measured_places:
                self.race.rules.out(place, reason)


def _missed_target(cell: Cell, record: AnyRecord) -> Message | None:
    """Return a message if a full run missed its target accuracy or target held-out loss.

    None if the run reached its target or had none.
    """
    if isinstance(record, ScriptRecord) or record.time_to_target_s is not None:
        return None
    if isinstance(record, VisionRecord):
        target = cell.cfg.get("target_accuracy")
        accuracy = record.test_accuracy or 0.0
        if target is None:
            return None
        sentence = f"missed target_accuracy={target:g} in a full run, which ended at {accuracy:.1%}"
        return Message("race.missed-target", sentence, target=target, reached=accuracy)
    target = cell.cfg.get("target_loss")
    loss = record.held_out_loss
    if target is None:
        return None
    ended_at = "without a held-out loss" if loss is None else f"at {loss:.3f}"
    sentence = f"missed target_loss={target:g} in a full run, which ended {ended_at}"
    return Message("race.missed-target-loss", sentence, target=target, reached=loss)
