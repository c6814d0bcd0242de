"""The table at the end of a command: one row a run."""

from collections.abc import Iterable, Sequence

from multicard.config.base import Scale
from multicard.measure import formulas
from multicard.messages import say
from multicard.records import comparable, text_table
from multicard.records.comparable import MEANINGS, SHARED
from multicard.records.figures import FIGURES, LLM, VISION
from multicard.records.run_folder import Run
from multicard.records.schema import AnyRecord, LlmRecord

AGAINST_ONE, AGAINST_FP64 = "x 1 GPU", "x fp64"
COMPARED = (AGAINST_ONE, AGAINST_FP64)  # left out where no run has its counterpart
RATES = {VISION: ("images_per_s", "warmup_steps"), LLM: ("tokens_per_s", "skip_steps")}  # and what leaves steps out
ALWAYS = {VISION: ("precision", "gpus"), LLM: ("method", "template", "gpus")}
PROBE_ENDS = {"error": "known", "seconds": "probe.seconds", "run": "last epoch", "race": "race"}  # in words
NOTE_ON_PROBES = "Probes are no results: they feed predictions (predict=true), and stand in no other table."


def show(runs: Sequence[Run], probes: bool = False) -> None:
    """Print the table of these runs, or probes, of one kind."""
    width = text_table.terminal_width()
    say("\n" + "\n".join(probe_lines(runs, width) if probes else lines(runs, width)))


def lines(runs: Sequence[Run], width: int | None = None) -> list[str]:
    """The axes that differ, status and figures of each run, then notes, and where the records are.

    Args:
        width: of the table in cells; None: any.
    """
    records = [run.record for run in runs]
    kind = records[0].kind
    axes, rows = comparable.varied(records, ALWAYS[kind]), [_figures(record, records) for record in records]
    headings = [heading for heading in rows[0] if heading not in COMPARED or any(row[heading] != "-" for row in rows)]
    printed = _table(records, axes, headings, [[row[heading] for heading in headings] for row in rows], width)
    for record in records:
        if record.status == "diverged" and record.cause is not None and len(records) > 1:
            cell = " ".join(f"{axis}={comparable.cell(record, axis)}" for axis in axes)
            printed.append(f"{cell}: diverged: {record.cause.message}")
    if any(record.oversubscribed for record in records):
        printed.append(f"{SHARED} {MEANINGS[SHARED]} (oversubscribe=true)")
    if any(record.axes.get("scale") == Scale.smoke for record in records):
        printed.append("scale=smoke: shrunk, to try the code: not figures of what the papers measured")
    rate, skipped = RATES[kind]
    heading = FIGURES[rate].heading()
    if any(record.status == "ok" and row[heading] == "-" for record, row in zip(records, rows, strict=True)):
        remedy = f"train longer, or set a smaller {skipped}"
        printed.append(f"{heading} is missing where a run has no more steps than {skipped} leaves out: {remedy}")
    if any(row[AGAINST_ONE].endswith(comparable.DOUBTFUL) for row in rows):
        printed.append(f"{comparable.DOUBTFUL} {comparable.DOUBTFUL_MEANING}")
    return [*printed, *comparable.notes(records), f"Records: {folders(runs)}"]


def probe_lines(runs: Sequence[Run], width: int | None = None) -> list[str]:
    """The axes that differ, status and figures of each probe."""
    records = [run.record for run in runs]
    axes = comparable.varied(records, ALWAYS[records[0].kind])
    headings = ["s/step", "±", "steps", "warm-up", "ended", "total s", "peak memory"]
    printed = _table(records, axes, headings, [_probe(record) for record in records], width)
    return [*printed, *comparable.notes(records), NOTE_ON_PROBES, f"Records: {folders(runs)}"]


def _probe(record: AnyRecord) -> list[str]:
    probe = record.probe
    if probe is None:
        return ["-"] * 7
    known = "-" if probe.half_width is None else f"{probe.half_width:.1%}"
    figures = [FIGURES[name].text(record) for name in ("total_s", "peak_memory_bytes")]
    ended = PROBE_ENDS[probe.ended_by]
    return [f"{probe.step_s:.4g}", known, str(probe.steps), str(probe.warmup_steps), ended, *figures]


def _table(
    records: Sequence[AnyRecord],
    axes: Sequence[str],
    headings: Sequence[str],
    figures: Iterable[Sequence[str]],
    width: int | None,
) -> list[str]:
    rows = []
    for record, texts in zip(records, figures, strict=True):
        status = record.status + comparable.marks(record)
        rows.append([*(comparable.cell(record, axis) for axis in axes), status, *texts])
    return text_table.text([*axes, "status", *headings], rows, width, "l" * (len(axes) + 1) + "r" * len(headings))


def folders(runs: Sequence[Run]) -> str:
    """Where the records are: the folder itself for a single one."""
    return f"{runs[0].folder}/" if len(runs) == 1 else f"{runs[0].folder.parent}/*/result.json"


def _figures(record: AnyRecord, records: Sequence[AnyRecord]) -> dict[str, str]:
    """The row of a run, by heading: its figures, and after its rate what compares it; of `ok` runs alone."""
    row = {}
    for figure in FIGURES.values():
        if record.kind in figure.at_end:
            row[figure.heading()] = figure.text(record)
        if figure.name == RATES[record.kind][0]:
            row[AGAINST_ONE] = _against_one(record, records)
            if record.kind == VISION:
                row[AGAINST_FP64] = _against_fp64(record, records)
    return row if record.status == "ok" else dict.fromkeys(row, "-")


def _ranks(record: AnyRecord) -> int:
    """Ranks on all nodes."""
    return int(record.axes.get("gpus") or 1) * int(record.axes.get("nodes") or 1)


def _against_one(record: AnyRecord, records: Sequence[AnyRecord]) -> str:
    """The speed-up over one GPU, and its share of the ideal. Of tuning by tokens/s: with max_steps, n GPUs take as many
    steps as one and n times the rows."""
    several = any(_ranks(other) != 1 for other in records)
    one = comparable.reference(record, records, gpus=1, nodes=1) if several else None
    taken_s = [_taken_s(each) for each in (one, record) if each is not None]
    if len(taken_s) < 2 or not all(taken_s):
        return "-"
    one_s, mine_s = (each or 0.0 for each in taken_s)
    share = formulas.parallel_efficiency(one_s, mine_s, _ranks(record))
    doubtful = share > formulas.DOUBTFUL_EFFICIENCY
    return f"{formulas.speedup(one_s, mine_s):.2f} ({share:.0%}){comparable.DOUBTFUL if doubtful else ''}"


def _taken_s(record: AnyRecord) -> float | None:
    """Seconds of the work that runs are compared by: the whole run, or a token."""
    if not isinstance(record, LlmRecord):
        return record.total_s
    rate = record.tokens_per_s and record.tokens_per_s.non_padding
    return 1 / rate if rate else None


def _against_fp64(record: AnyRecord, records: Sequence[AnyRecord]) -> str:
    fp64 = comparable.reference(record, records, precision="fp64")
    if fp64 is None or not fp64.total_s or not record.total_s:
        return "-"
    return f"{formulas.speedup(fp64.total_s, record.total_s):.2f}"
