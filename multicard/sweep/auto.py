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
from pathlib import Path

from hydra.types import HydraContext
from omegaconf import DictConfig

from multicard.config.job import Auto, count
from multicard.config.sweeps import starts_nothing
from multicard.estimate.estimates import Effort, Estimate, estimate
from multicard.estimate.target import targets
from multicard.machine import shares
from multicard.measure.memory import available_memory_bytes
from multicard.measure.timing import in_hours
from multicard.messages import Message, Refusal, say
from multicard.records import run_folder
from multicard.records.run_folder import RecordedRun
from multicard.records.text_table import in_bytes
from multicard.sweep.auto_refusals import REMEDIES
from multicard.sweep.auto_search import LEAST, TRIES, Search
from multicard.sweep.cells import NAMED_CELLS, Cell, RefusedCell
from multicard.sweep.command import Command
from multicard.sweep.task import run

REPEATS = ("seed=", "repetition=")  # Cells of one value may differ in words that begin with these.
RANK_BYTES = 600_000_000  # Memory of a CPU rank in addition to its tensors.


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
