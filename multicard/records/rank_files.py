"""Reports of the ranks, `ranks/rRR.json`: what each rank has counted so far.

A rank rewrites its report every epoch. The controller reads the reports during the run, makes the
record from them, and then removes them.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from multicard.measure import formulas, series
from multicard.measure.timing import clock_s, pause
from multicard.messages import Message
from multicard.records import run_folder, steps
from multicard.records.schema_data import HeldOut, Ignored, TextRows
from multicard.records.schema_parts import Limit, Memory, Parts, ProbeEnd, SavedModel, Segment
from multicard.records.schema_types import Scalar
from multicard.records.trained_weights import Weights

SEEN_S = 60.0  # A shared file system shows files of another node within this time.


class RankEpoch(Struct):
    """An epoch that a rank has finished; `ended_s` counts from the start of training."""

    epoch: int
    train_s: float = 0.0
    ended_s: float = 0.0


class VisionRankEpoch(RankEpoch, kw_only=True):
    """An epoch of training on images; the evaluation's figures are those of all ranks together."""

    evaluate_s: float = 0.0
    test_loss: float | None = None
    test_accuracy: float | None = None
    test_right: int | None = None
    test_samples: int | None = None
    first_batch_s: float = 0.0
    evaluate_first_batch_s: float = 0.0
    gap_s: float | None = None
    evaluate_h2d_images_bytes: int = 0
    evaluate_h2d_labels_bytes: int = 0


class CountedEpoch(RankEpoch, kw_only=True):
    steps: int = 0


class RankProbe(Struct):
    """How a probe, or a cell of a race, ended on a rank. It did not measure steps in `left_out`."""

    ended_by: str
    steps_per_epoch: int
    left_out: list[int] = []


class RankReport(Struct, kw_only=True):
    """The report of a rank, with the fields that all workloads have.

    `spans_s` has start and end, on the machine's clock, of all time that `total_s` counts as
    training. There is an entry for each epoch, or part of an epoch. `counters` are readings of the
    GPUs' energy counters: the time on that clock, the GPU's UUID, and joules.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    device: str = "cpu"
    gpu: str | None = None
    threads: int | None = None
    cpus: str | None = None
    flags: dict[str, Scalar] | None = None
    openmp: dict[str, str] | None = None
    started_s: float | None = None
    spans_s: list[tuple[float, float]] = []
    counters: list[tuple[float, str, float]] = []
    peak_memory_bytes: int | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    parameter_bytes: int = 0
    compile_s: float | None = None
    cuda_graphs: bool | None = None
    cuda_graphs_recorded: int | None = None
    probe: RankProbe | None = None
    profile: dict[str, Any] | None = None
    ablations: dict[str, list[float]] | None = None
    limits: list[Limit] = []
    ignored: list[Ignored] = []


class VisionReport(RankReport, kw_only=True, tag_field="kind", tag="vision"):
    """The report of a rank that trained on images.

    `segments` are periods of training between two stops; their `trained_s` counts training and
    evaluation. `device_peaks_bytes` has the peak memory of each device of the rank.
    """

    epochs: list[VisionRankEpoch] = []
    segments: list[Segment] = []
    num_workers: int | None = None
    device_peaks_bytes: list[int] = []
    classes: int = 0
    steps_per_epoch: int = 0
    distinct_samples: int = 0
    gradient_bytes: int = 0
    buffer_bytes: int = 0
    statistics_bytes: int = 0
    input: dict[str, Any] | None = None
    chance_accuracy: float | None = None
    setup_h2d_bytes: Parts = Parts(0, 0)
    saved: SavedModel | None = None


class ModelSizes(Struct, frozen=True):
    """Sizes of a model that determine the work per token.

    Fields:
        layers: number of layers.
        weights: number of weights that matrix products with a token read, without adapters. The
            output layer counts. An embedding that is only looked up does not.
        output: number of these weights that belong to the output layer.
        width: width of the queries, summed over all layers.
        parameters: number of all weights, without adapters; shared embeddings count once.
        adapters: number of adapter parameters; None if all weights are trained.
    """

    layers: int
    weights: int
    output: int
    width: int
    parameters: int
    adapters: int | None = None

    @property
    def trained(self) -> int:
        return self.parameters if self.adapters is None else self.adapters


class LlmReport(RankReport, kw_only=True, tag_field="kind", tag="llm"):
    """The report of a rank of a tuning run.

    scoring_in_int4: training has ended, and the rank scores held-out rows with the model quantised
        to int4.
    sizes: known for models of transformers. None for mixtures of experts, because a token reads
        only some of their weights.
    """

    epochs: list[CountedEpoch] = []
    text_rows: TextRows | None = None
    vocabulary: int = 0
    sizes: ModelSizes | None = None
    attention_used: str | None = None
    eight_bit_share: float | None = None
    late_graphs: int | None = None
    warmup_steps: int | None = None
    nf4_tensors: int | None = None
    fake_quantised_linears: int | None = None
    setup_peak_memory_bytes: int | None = None
    train_peak_memory_bytes: int | None = None
    communication_bytes: dict[str, int] | None = None
    held_out: HeldOut | None = None
    scoring_in_int4: bool = False
    saved: SavedModel | None = None


class ScriptReport(RankReport, kw_only=True, tag_field="kind", tag="script"):
    """The report of a rank of a script. All its steps are one epoch, whose `train_s` leaves out
    evaluations.

    grouped: the rank joined a process group.
    stopped: the script did not end by itself.
    weights: the weights that it trained, if they are known.
    samples_unknown: steps, from 0, whose number of samples is not known, although it is for others.
    trained_part: samples that the rank drew in a step, and the smaller number of them that its
        model was given; None if it was given all.
    calls_per_step: calls of backward, the median over the steps.
    waits_known: whether it is known how long steps waited for their batches. It is not if another
        thread drew the batches.
    evaluate_s: seconds of evaluations between and after steps; None if another thread drew the
        batches of an evaluation.
    """

    epochs: list[CountedEpoch] = []
    left_out: list[int] = []
    samples_unknown: list[int] = []
    trained_part: list[int] | None = None
    calls_per_step: float = 0.0
    waits_known: bool = True
    evaluate_s: float | None = 0.0
    loads: bool = False
    test_accuracy: float | None = None
    logged: dict[str, float] = {}
    seen: list[str] = []
    seen_codes: list[str] = []
    grouped: bool = True
    stopped: bool = False
    weights: Weights | None = None


AnyReport = VisionReport | LlmReport | ScriptReport


def path_of(folder: Path, rank: int) -> Path:
    return folder / "ranks" / f"r{rank:02d}.json"


def write(folder: Path, report: AnyReport) -> None:
    run_folder.write_json(path_of(folder, report.rank), report)


def read_reports(folder: Path, expected: int = 0) -> list[Any]:
    """Read the reports of the ranks of one workload, ordered by rank.

    A report that is not complete is left out; `problem` names it.

    Args:
        expected: wait until there are this many reports, and their steps, because files of another
            node may not be visible here at once.
    """
    deadline_s = clock_s() + SEEN_S
    while (
        expected and len(list(folder.glob("ranks/r*.json"))) < expected and clock_s() < deadline_s
    ):
        pause(1.0)
    reports_or_reasons = [_report_or_reason(path) for path in folder.glob("ranks/r*.json")]
    reports = sorted(
        (report for report in reports_or_reasons if isinstance(report, RankReport)),
        key=lambda report: report.rank,
    )
    while expected and not have_steps(folder, reports) and clock_s() < deadline_s:
        pause(0.1)
    return reports


def problem(folder: Path, expected: int) -> Message | None:
    """Return why a run whose ranks ended by themselves is measured incompletely; None if nothing is
    missing.

    The problem is the first report that is missing or unreadable, or else the first missing file of
    steps that a report counts.

    Args:
        expected: the number of ranks on all nodes.
    """
    reports = []
    for rank in range(expected):
        report = _report_or_reason(path_of(folder, rank))
        if isinstance(report, str):
            return Message(
                "run.no-report",
                f"the report of rank {rank} of {expected} cannot be read ({report}): its part of"
                " the run is not measured; measure again",
                rank=rank,
                ranks=expected,
                reason=report,
            )
        reports.append(report)
    absent = next((path for path in _files_of_steps(folder, reports) if not path.exists()), None)
    if absent is None or (folder / steps.STEPS).exists():
        return None
    return Message(
        "run.no-steps",
        f"{absent.name}: the steps of an epoch are missing; measure again",
        file=absent.name,
    )


def _files_of_steps(folder: Path, reports: Sequence[AnyReport]) -> list[Path]:
    files = []
    for report in reports:
        epochs = [part.epoch for part in report.epochs]
        files.extend(run_folder.steps_file(folder, report.rank, epoch) for epoch in epochs)
    return files


def have_steps(folder: Path, reports: Sequence[AnyReport]) -> bool:
    """True if the steps of all reported epochs can be read, or an earlier start merged them."""
    return (folder / steps.STEPS).exists() or all(
        file.exists() for file in _files_of_steps(folder, reports)
    )


def _report_or_reason(path: Path) -> AnyReport | str:
    """Return the report in a file, or the reason why it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=AnyReport)
    except OSError as error:
        return error.strerror or str(error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return str(error)


def peak_memory(reports: Sequence[RankReport], device: str) -> Memory:
    """Return the record's `peak_memory_bytes`: the maximum, and the value of each rank as
    `measure.memory.peak_memory_bytes` measures it.
    """
    kind = "cuda_allocated" if device == "cuda" else "rss"
    per_rank = [report.peak_memory_bytes for report in reports]
    memory = Memory(
        max((peak for peak in per_rank if peak is not None), default=None), per_rank, kind
    )
    for report in reports:
        if isinstance(report, VisionReport) and len(report.device_peaks_bytes) > 1:
            memory.per_gpu = report.device_peaks_bytes
    return memory


def of_ended_epochs(table: Any, ranks: Sequence[AnyReport]) -> tuple[int, dict[str, np.ndarray]]:
    """Return the number of epochs that all ranks have finished, and the columns of their steps.

    There are no columns if no epoch is finished.

    Args:
        table: the steps of all ranks (an Arrow table), or None.
    """
    ended = min((len(rank.epochs) for rank in ranks), default=0)
    if table is None or not ended:
        return ended, {}
    within = table["epoch"].to_numpy() < ended
    return ended, {name: table[name].to_numpy()[within] for name in table.column_names}


def probe_end(reports: Sequence[RankReport], table: Any) -> ProbeEnd | None:
    """Return the record's `probe` from the steps of all ranks; None if the run was not a probe.

    Args:
        reports: the ranks' reports of a run that ended by itself.
        table: the steps of all ranks (an Arrow table).
    """
    probe = reports[0].probe if reports else None
    if probe is None or table is None:
        return None
    epoch, rank, step, step_s = (table[name].to_numpy() for name in steps.COLUMNS)
    seconds = formulas.step_times_s(epoch, rank, step, step_s)
    per_epoch = int(step.max()) + 1
    is_counted = np.arange(len(seconds)) % per_epoch > 0  # Skip the first step of each epoch.
    is_counted &= ~formulas.flag_stalled_steps(seconds, per_epoch)
    is_counted[probe.left_out] = False  # Skip the steps after the pauses of a race.
    mean = series.mean_step(seconds[is_counted] if is_counted.any() else seconds)
    return ProbeEnd(probe.ended_by, steps_per_epoch=probe.steps_per_epoch, **asdict(mean))
