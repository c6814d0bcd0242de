"""The search for one automatic value: the cells to try, what was measured, what a probe shows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from omegaconf import DictConfig

from multicard.config.job import Auto, Device, count
from multicard.config.llm import LlmConfig
from multicard.config.placement import place
from multicard.estimate.memory import facts
from multicard.machine import shares
from multicard.messages import Message
from multicard.records.run_folder import RecordedRun
from multicard.sweep.cells import Cell, RefusedCell, cell_of
from multicard.sweep.command import Command
from multicard.sweep.compositions import task_of

LEAST = {Auto.gpus: 1, Auto.batch_size: 1, Auto.max_seq_len: 128}  # The first value that is tried.
MOST = 1 << 12  # The largest size if the number of rows is not known.
ENDLESS = 1 << 17  # The longest sequence, in tokens, of a model with unlimited positions.
TRIES = 3  # Probes of a search: if memory runs out, the two next smaller sizes are tried.
PROBE_S = 5.0  # Seconds of training of a probe.


@dataclass
class Search:
    """The search for the value of cells that differ only in their seed or repetition.

    Attributes:
        places: places of these cells in the sweep.
        found: values that will do, with the reason. The largest is taken.
        notes: further reasons, from probes.
        problem: why no value was found.
        too_large: True if even the least value does not fit, by prediction.
    """

    command: Command
    composed: DictConfig
    places: list[int] = field(default_factory=list)
    found: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problem: str = Message("auto.not-predicted", "nothing is predicted for it")
    too_large: bool = False

    @property
    def key(self) -> Auto:
        return self.composed.auto

    @property
    def value(self) -> int:
        return max(self.found, default=LEAST[self.key])

    @property
    def sweep(self) -> Path:
        return Path(str(self.composed.hydra.sweep.dir))

    def cell(self, value: int, seed: int | None = None, probes: bool = False) -> Cell | RefusedCell:
        """Return the cell with a value, or the probe of that cell."""
        cfg = task_of(self.composed)
        word = f"{self.key}={value}"
        cfg[self.key] = value
        if seed is not None:
            cfg.seed = seed
        if probes:
            cfg.repeat = "1"
            cfg.repetition = 1
            cfg.tracker.mode = "disabled"
            cfg.diagnose = False
            cfg.probe.enabled = True
            cfg.probe.seconds = PROBE_S
        return cell_of(
            self.command.workload, self.composed, cfg, self.sweep, [word], label=f"{word} "
        )

    def reuse_measured(self, runs: Sequence[RecordedRun]) -> None:
        """Reuse the value of an earlier command's run, with any seed, or of its probe."""
        measured_values = {
            (run.record.config[self.key], run.record.config.get("seed")) for run in runs
        }
        cells = [
            cell
            for value, seed in measured_values
            if isinstance(cell := self.cell(value, seed), Cell)
        ]
        value_of_identity = {cell.config.identity(): cell.cfg[self.key] for cell in cells}
        matching_values = []
        for recorded, (identity, value) in product(runs, value_of_identity.items()):
            if f"-{identity}" in recorded.folder.name:
                matching_values.append(value)
        self.found = dict.fromkeys(
            matching_values[:1], Message("auto.measured-before", "measured so before")
        )

    def cells_of_each_count(self) -> list[Cell]:
        """Return the cells on the numbers of GPUs that can work."""
        possible_cells = list[Cell]()
        machine = shares.machine()
        on_cpu = not machine.gpus or self.composed.device is Device.cpu
        for gpus in counts(len(machine.cpus if on_cpu else machine.gpus)):
            cell = self.cell(gpus)
            if isinstance(cell, Cell):
                with suppress(ValueError):
                    self.command.workload.fits(cell.config, place(cell.config, len(machine.gpus)))
                    possible_cells.append(cell)
        return possible_cells

    def cells_of_next_sizes(self) -> list[Cell]:
        """Return the cells with the next sizes to predict.

        At first these are powers of two up to the largest useful size. Once some fit, they are
        sizes above the largest that fits and below the next power.
        """
        least = LEAST[self.key]
        largest = self._largest_useful()
        sizes = {1 << power for power in range(least.bit_length() - 1, largest.bit_length())} | {
            largest
        }
        if self.found:
            candidates = {self.value * quarters // 4 for quarters in (5, 6, 7)}
            sizes = {
                size for size in candidates if self.value < size < largest and size % least == 0
            }
        return [
            cell for size in sorted(sizes) if size and isinstance(cell := self.cell(size), Cell)
        ]

    def _largest_useful(self) -> int:
        """Return the largest useful size, or 0 if it is not known.

        For a batch, it is the number of a rank's samples. For a sequence, it is the tokens of the
        longest row, or, if rows are packed, the tokens that each sequence of a step can have.
        """
        limit = self._longest_sequence() if self.key is Auto.max_seq_len else 1
        longest_cell = self.cell(limit)
        if isinstance(longest_cell, RefusedCell):
            self.problem = longest_cell.reason
            return 0
        sizes = facts.sizes(longest_cell.config)
        if isinstance(sizes, facts.ImageFacts):
            return -(-sizes.train // (self.composed.gpus * self.composed.nodes))
        if self.key is Auto.batch_size:
            return MOST
        if isinstance(sizes, str):
            self.problem = sizes
            return 0
        config = longest_cell.config
        unit = LEAST[self.key]
        assert isinstance(config, LlmConfig)
        sequences = config.batch_size * config.world_size * config.gradient_accumulation_steps
        all_tokens = facts.all_tokens(config) if config.packed else None
        tokens = max(sizes.lengths) + unit - 1 if all_tokens is None else all_tokens // sequences
        return min(limit, max(unit, tokens // unit * unit))

    def _longest_sequence(self) -> int:
        """Return the longest sequence of the model, in tokens.

        If the model is in a folder, it is known once its cell is typed.
        """
        least_cell = self.cell(LEAST[self.key])
        max_seq_len = (
            least_cell.config.model.max_seq_len
            if isinstance(least_cell, Cell) and isinstance(least_cell.config, LlmConfig)
            else 0
        )
        return max_seq_len or ENDLESS

    def note_probe(self, probe: Cell) -> bool:
        """Note the result of the value's probe. Return False if it ran out of memory."""
        assert probe.result is not None
        status = probe.result.status
        probe_result = probe.result.record.probe
        if status == "interrupted":
            raise KeyboardInterrupt
        if status == "oom":
            del self.found[self.value]
            value = probe.cfg[self.key]
            self.notes.append(Message("auto.ran-out", f"memory ran out at {value}", value=value))
        elif probe_result:
            sentence = f"confirmed by {count(probe_result.steps, 'step')}"
            self.notes.append(Message("auto.confirmed", sentence, steps=probe_result.steps))
        else:
            self.notes.append(Message("auto.probe-ended", f"its probe {status}", status=status))
        return status != "oom"


def counts(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on up to `most`, and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))
