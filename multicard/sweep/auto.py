"""Choose the value of `gpus=auto`, `batch_size=auto` or `max_seq_len=auto` for each cell.

The value is chosen before the cell's folder is named. The number of GPUs, or of CPU ranks, is the
one with the least predicted time, or all there are if no time is predicted.

The other two are the largest values that fit. First the memory of powers of two is predicted, then
the memory of sizes between the largest that fits and the next. A short probe confirms the choice or
lowers it.

The command line writes `gpus=auto` as `gpus=1 auto=gpus`, and turns a single run into a sweep of
one cell. Cells keep `auto` next to the chosen value, so that a later command reuses the value.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig

from multicard.config.job import Auto, Device, count
from multicard.config.llm import LlmConfig
from multicard.config.placement import place
from multicard.config.sweeps import is_elsewhere, starts_nothing
from multicard.estimate.estimates import Effort, Estimate, estimate
from multicard.estimate.memory import facts
from multicard.estimate.target import targets
from multicard.machine import shares
from multicard.measure.memory import available_memory_bytes
from multicard.measure.timing import in_hours
from multicard.messages import Message, Refusal, say, typed
from multicard.records import run_folder
from multicard.records.run_folder import RecordedRun
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import NAMED_CELLS, Cell, RefusedCell, cell_of
from multicard.sweep.command import Command
from multicard.sweep.compositions import task_of
from multicard.sweep.task import run

REPEATS = ("seed=", "repetition=")  # Cells of one value may differ in words that begin with these.
LEAST = {Auto.gpus: 1, Auto.batch_size: 1, Auto.max_seq_len: 128}  # The first value that is tried.
MOST = 1 << 12  # The largest size if the number of rows is not known.
ENDLESS = 1 << 17  # The longest sequence, in tokens, of a model with unlimited positions.
TRIES = 3  # Probes of a search: if memory runs out, the two next smaller sizes are tried.
PROBE_S = 5.0  # Seconds of training of a probe.
RANK_BYTES = 600_000_000  # Memory of a CPU rank in addition to its tensors.
REMEDIES = {
    Auto.gpus: "give the numbers, as `gpus=1,2`",
    Auto.batch_size: "give the size, as `batch_size=32`",
    Auto.max_seq_len: "give the length, as `max_seq_len=512`",
}


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


def refuse(config: Any, on_slurm: bool, packs: bool) -> None:
    """Refuse `auto` if it has no meaning, with the remedy.

    With `packs`, cells are processes on this machine. They run beside each other unless they want
    all of it.
    """
    key = config.auto
    folders = [
        word
        for word in config.hydra.overrides.hydra
        if word.startswith(("hydra.run.dir=", "hydra.sweep.dir="))
    ]
    if len(folders) == 1 and folders[0].startswith("hydra.run.dir="):
        sentence = f"{folders[0]}: {key}=auto makes a sweep; use `hydra.sweep.dir=FOLDER`"
        raise Refusal("auto.run-folder", sentence, key="hydra.run.dir", auto=key)
    if config.cpus_per_gpu < 1:
        value = config.cpus_per_gpu
        raise Refusal(
            "auto.cpus", f"cpus_per_gpu={value}: must be 1 or more", key="cpus_per_gpu", value=value
        )
    beside = packs and config.exclusive is False
    if key is Auto.gpus:
        _refuse_gpus(config, on_slurm, beside)
    else:
        _refuse_size(config, on_slurm, beside)


def _refuse_gpus(config: Any, on_slurm: bool, beside: bool) -> None:
    remedy = REMEDIES[Auto.gpus]
    if beside and config.max_jobs != 1:
        sentence = (
            "gpus=auto: cells that run beside each other are jobs of a plan; "
            f"use `{typed('-m multicard')} plan JOBS.yaml`, or {remedy}"
        )
        raise Refusal("auto.gpus-beside", sentence, key="gpus")
    if on_slurm:
        raise Refusal(
            "auto.gpus-of-slurm",
            f"gpus=auto: chooses for this machine, not for SLURM's nodes; {remedy}",
            key="gpus",
        )
    if is_elsewhere(config):
        sentence = f"gpus=auto: chooses for this machine, not for predict.gpu; {remedy}"
        raise Refusal("auto.gpus-elsewhere", sentence, key="gpus")
    if config.race.figure is not None:
        sentence = f"gpus=auto: chooses by predictions, but a race chooses by measuring; {remedy}"
        raise Refusal("auto.gpus-of-race", sentence, key="gpus")
    if config.probe.enabled:
        sentence = f"gpus=auto: chooses by predictions, which need the probes first; {remedy}"
        raise Refusal("auto.gpus-of-probe", sentence, key="gpus")


def _refuse_size(config: Any, on_slurm: bool, beside: bool) -> None:
    key = config.auto
    remedy = REMEDIES[config.auto]
    profile = str(config.profile.name)
    if key is Auto.batch_size and config.global_batch_size is not None:
        given_size = f"global_batch_size={config.global_batch_size}"
        sentence = (
            f"batch_size=auto: {given_size} already sets the samples of a step; leave it out, or"
            f" {remedy}"
        )
        raise Refusal(
            "auto.global-batch",
            sentence,
            key="batch_size",
            global_batch_size=config.global_batch_size,
        )
    if config.race.figure is not None:
        raise Refusal(
            "auto.size-of-race", f"{key}=auto: a race compares given sizes; {remedy}", key=key
        )
    if beside:
        sentence = f"{key}=auto: cells that run beside each other share their memory; {remedy}"
        raise Refusal("auto.size-beside", sentence, key=key)
    if profile != "none":
        sentence = (
            f"{key}=auto: a probe without a profile confirms the size; leave out profile={profile},"
            f" or {remedy}"
        )
        raise Refusal("auto.size-profiled", sentence, key=key, profile=profile)
    if on_slurm and not is_elsewhere(config):
        sentence = f"{key}=auto: SLURM's GPUs are not known; give `predict.gpu=GPU`, or {remedy}"
        raise Refusal("auto.size-of-slurm", sentence, key=key)


def resolve(
    command: Command,
    context: HydraContext,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    on_slurm: bool,
) -> list[list[str]]:
    """Return the overrides of each cell with its value.

    A command that starts nothing here does not confirm sizes by probes. A cell whose memory cannot
    be predicted at all is refused.
    """
    key = config.auto
    searches = dict[tuple[str, ...], Search]()
    for index, words in enumerate(job_overrides):
        setting = tuple(sorted(word for word in words if not word.startswith(REPEATS)))
        if setting not in searches:
            searches[setting] = Search(
                command, context.config_loader.load_sweep_config(config, [*words])
            )
        searches[setting].places.append(index)
    reusable_runs = {
        sweep: _reusable_runs(sweep, key)
        for sweep in {search.sweep for search in searches.values()}
    }
    for search in searches.values():
        search.reuse_measured([] if config.rerun else reusable_runs[search.sweep])
    open_searches = [search for search in searches.values() if not search.found]
    unknown_counts = _choose_by_time(open_searches) if key is Auto.gpus else set[int]()
    if key is not Auto.gpus:
        _choose_by_memory(open_searches, probes=not (on_slurm or starts_nothing(config)))
    for search in searches.values():
        labels = " ".join(f"[{place + 1}/{len(job_overrides)}]" for place in search.places)
        label = labels if len(search.places) <= NAMED_CELLS else count(len(search.places), "cell")
        why = ", ".join(
            filter(None, (search.found.get(search.value, search.problem), *search.notes))
        )
        is_explained = (
            search.found or key is Auto.gpus or isinstance(search.cell(search.value), RefusedCell)
        )
        # If even the least batch is too large, `fit` decides what happens.
        is_explained = is_explained or (search.too_large and key is Auto.batch_size)
        if not is_explained:
            sentence = f"{label} {key}=auto: no size can be chosen ({why}); {REMEDIES[key]}"
            raise Refusal("auto.unknown", sentence, key=key, cells=label, reasons=why)
        sentence = f"{label} {key}=auto: {search.value} ({why})"
        say(Message("auto.chosen", sentence, key=key, cells=label, value=search.value, reasons=why))
    if len(unknown_counts) > 1:
        numbers = sorted(unknown_counts)
        words = f"gpus={','.join(map(str, numbers))} probe=true"
        sentence = f"to choose by times, probe first: type the same with `{words}`"
        say(Message("auto.probe-first", sentence, key="gpus", gpus=numbers))
    replaced = {key, "auto", "hydra.mode"}
    command.forget(*replaced)  # Each cell has a value of its own.
    values = {}
    for search in searches.values():
        values |= dict.fromkeys(search.places, search.value)
    remaining_words = [
        [word for word in words if word.partition("=")[0] not in replaced]
        for words in job_overrides
    ]
    return [
        [*words, f"{key}={values[place]}", f"auto={key}"]
        for place, words in enumerate(remaining_words)
    ]


def counts(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on up to `most`, and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def _reusable_runs(sweep: Path, key: Auto) -> list[RecordedRun]:
    """Return finished runs of a sweep whose value can be reused, with probes last.

    For GPUs, any run counts. For sizes, only runs whose size was chosen count.
    """
    runs = [
        run
        for path in sorted(sweep.glob(f"*/{run_folder.RESULT}"))
        if (run := run_folder.finished(path.parent))
    ]
    if key is Auto.gpus:
        return [run for run in runs if not run.record.is_probe]
    runs = [run for run in runs if run.record.config.get("auto") == key]
    return sorted(
        (run for run in runs if not run.record.is_probe or run.status == "ok"),
        key=lambda run: run.record.is_probe,
    )


def _choose_by_time(searches: Sequence[Search]) -> set[int]:
    """Choose numbers of GPUs by predicted times. Return the numbers without any prediction."""
    tried_cells = list[tuple[Search, Cell]]()
    for search in searches:
        tried_cells.extend((search, cell) for cell in search.cells_of_each_count())
    answers = (
        estimate([cell.config for _, cell in tried_cells], tried_cells[0][1].folder)
        if tried_cells
        else []
    )
    unknown_counts = set[int]()
    for search in searches:
        search_answers = [
            answer
            for (other, _), answer in zip(tried_cells, answers, strict=True)
            if other is search
        ]
        fitting = [
            answer for answer in search_answers if answer.prediction.fits != "no"
        ] or search_answers
        # A roofline is not a measurement, so it must not choose.
        timed = [answer for answer in fitting if answer.basis.is_measured]
        seconds = {
            answer.config.gpus: answer.prediction.total_s.value
            for answer in timed
            if answer.prediction.total_s
        }
        if seconds:
            least_s, gpus = min((value, gpus) for gpus, value in seconds.items())
            others = ", ".join(
                f"{other}: {in_hours(value)}" for other, value in seconds.items() if other != gpus
            )
            others = others or "nothing is predicted for other numbers"
            sentence = f"the least predicted time, {in_hours(least_s)}; {others}"
            search.found[gpus] = Message("auto.least-time", sentence, seconds=seconds)
        elif search_answers:
            largest = max(answer.config.gpus for answer in fitting)
            search.found[largest] = Message(
                "auto.no-time", "no time is predicted, so it takes all there are"
            )
            unknown_counts |= {answer.config.gpus for answer in search_answers}
        else:
            search.problem = Message("auto.no-number", "no number can work")
    return unknown_counts


def _choose_by_memory(searches: Sequence[Search], probes: bool) -> None:
    """Find the largest sizes that fit by prediction, and confirm them by probes."""
    for _ in range(2):  # First powers of two, then sizes between two of them.
        tried_cells = list[tuple[Search, Cell]]()
        for search in searches:
            tried_cells.extend((search, cell) for cell in search.cells_of_next_sizes())
        configs = [cell.config for _, cell in tried_cells]
        answers = (
            estimate(configs, tried_cells[0][1].folder, targets(configs), Effort.all)
            if tried_cells
            else []
        )
        for (search, cell), answer in zip(tried_cells, answers, strict=True):
            fits, needs = _verdict(answer)
            size = cell.cfg[search.key]
            is_unknown = not answer.prediction.memory_bytes
            if fits:
                search.found[size] = Message("auto.fits", f"predicted {needs}", needs=needs)
            # BatchNorm may not accept a batch of 1, so a failure at 2 counts too.
            elif not search.found and size <= max(2, LEAST[search.key]):
                search.too_large = not is_unknown
                search.problem = needs if is_unknown else _too_large(size, needs)
        searches = [search for search in searches if search.found]
    for _ in range(TRIES if probes else 0):
        pairs = [
            (search, search.cell(search.value, probes=True)) for search in searches if search.found
        ]
        probing = [(search, probe) for search, probe in pairs if isinstance(probe, Cell)]
        with shares.announced([probe.config for _, probe in probing]):
            for search, probe in probing:
                run(search.command, probe)
        searches = [search for search, probe in probing if not search.note_probe(probe)]


def _too_large(size: int, needs: str) -> Message:
    return Message("auto.too-large", f"not even {size} fits: {needs}", size=size, needs=needs)


def _verdict(answer: Estimate) -> tuple[bool, str]:
    """Return whether all of a run's interval fits, and a text about its memory.

    CPU ranks share the memory that the machine has left.
    """
    prediction = answer.prediction
    has = answer.target.memory_bytes
    extra = 0
    needed = prediction.memory_bytes
    fits = prediction.fits == "yes"
    if needed is None or has is None:
        return False, prediction.memory_basis
    if answer.target.device_type == "cpu":
        has = available_memory_bytes() // answer.config.gpus
        extra = RANK_BYTES
        fits = prediction.fits != "no" and needed.high + extra <= has
    likely = needed.value + extra
    most = needed.high + extra
    sentence = f"{in_bytes(likely)}, at most {in_bytes(most)} of {in_bytes(has)}"
    return fits, Message(
        "auto.needs", sentence, likely_bytes=likely, most_bytes=most, has_bytes=has
    )
