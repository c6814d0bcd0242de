"""Files of GPU samples: one part for each start of a run and node, whose clocks differ; merged at the end of the run.

| file | contents |
|---|---|
| gpu/sSS_nNN.parquet | start SS, node NN: a row per sample and GPU; merged to gpu.parquet |
| gpu/sSS_nNN.json | training spans on the samples' clock, foreign processes, problems |
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multicard.measure.timing import clock_s, pause
from multicard.observe.energy.readings import COLUMNS
from multicard.records import rank_files, run_folder
from multicard.records.rank_files import RankReport

MERGED = "gpu.parquet"
Span = tuple[float, float]  # from, to, in seconds on the samples' clock
Samples = dict[tuple[int, int, str], dict[str, np.ndarray]]  # COLUMNS (n,) by start, node and GPU


def training_spans(ranks: Sequence[RankReport], expected: int, sampled: Span) -> list[Span]:
    """Spans in which any of the ranks trained, on `clock_s`: what `total_s` covers. None unless all ranks say; nor of a
    cell of a race, in whose pauses others train.

    Args:
        ranks: the reports of all ranks on this machine's clock; `expected` of them.
        sampled: when the GPUs were sampled; files of an earlier start have other times.
    """
    spans: list[Span] = []
    if len(ranks) < expected or any(rank.probe is not None and rank.probe.ended_by == "race" for rank in ranks):
        return spans
    for pieces in zip(*(rank.spans_s for rank in ranks), strict=False):  # those that all ranks ended
        start_s, end_s = min(piece[0] for piece in pieces), max(piece[1] for piece in pieces)
        spans.append((max(start_s, spans[-1][1]) if spans else start_s, end_s))
    return spans if spans and sampled[0] <= spans[0][0] and spans[-1][1] <= sampled[1] else []


def with_readings(samples: np.ndarray, readings: list[list[Any]], sampled: Span) -> np.ndarray:
    """Samples (n, columns) of a GPU with a row, of energy alone, for each reading of its counter by a rank.

    Args:
        readings: time on `clock_s`, and joules; those outside of `sampled` are of an earlier start.
    """
    inside = [reading for reading in readings if sampled[0] <= reading[0] <= sampled[1]]
    rows = np.full((len(inside), len(COLUMNS)), np.nan)
    for row, (time_s, joules) in zip(rows, inside, strict=True):
        row[[COLUMNS.index("time_s"), COLUMNS.index("energy_joules")]] = time_s - sampled[0], joules
    both = np.concatenate([samples, rows])
    return both[np.argsort(both[:, 0], kind="stable")]


def write(folder: Path, part: dict[str, Any], samples: dict[str, np.ndarray]) -> None:
    """Write a part.

    Args:
        samples: of one GPU at least, (n, columns) by UUID.
    """
    import pyarrow as pa

    counts, table = [len(rows) for rows in samples.values()], np.concatenate(list(samples.values()))
    columns = {
        "start": np.full(len(table), part["start"], np.int32),
        "node": np.full(len(table), part["node"], np.int32),
        "gpu": pa.array(np.repeat(list(samples), counts).tolist(), pa.string()),
        **{name: pa.array(table[:, i], from_pandas=True) for i, name in enumerate(COLUMNS)},  # NaN is null
    }
    path = _part_file(folder, part["start"], part["node"])
    run_folder.write_parquet(path.with_suffix(".parquet"), columns)
    run_folder.write_json(path, part)  # last: its presence says that the part is complete


def merge(
    folder: Path, expected: list[tuple[int, int]], wait: bool
) -> tuple[dict[tuple[int, int], dict[str, Any] | None], Samples]:
    """Read all parts, and write their samples to one file. They stay until `remove`.

    Args:
        expected: start and node of the parts that must exist.
        wait: for parts that another node wrote, which may take a while to appear here.

    Returns:
        Each expected part, None if it is missing; and the samples of all parts.
    """
    deadline_s = clock_s() + (rank_files.SEEN_S if wait else 0.0)
    while not all(_part_file(folder, *key).exists() for key in expected) and clock_s() < deadline_s:
        pause(0.1)
    parts = {key: run_folder.read_json(_part_file(folder, *key)) for key in expected}
    return parts, _merge_samples(folder)


def remove(folder: Path) -> None:
    """Remove the parts, which the record and the merged file hold."""
    run_folder.remove_files(folder / "gpu", "s*_n*.*")


def _merge_samples(folder: Path) -> Samples:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.ParquetFile(path).read() for path in sorted(folder.glob("gpu/s*_n*.parquet"))]
    samples: Samples = {}
    for table in tables:
        uuids = np.array(table["gpu"].to_pylist())
        columns = {name: table[name].to_numpy().astype(float) for name in COLUMNS}
        for uuid in dict.fromkeys(uuids.tolist()):
            key = table["start"][0].as_py(), table["node"][0].as_py(), uuid
            samples[key] = {name: column[uuids == uuid] for name, column in columns.items()}
    if samples:
        merged = pa.concat_tables(tables)
        run_folder.write_parquet(folder / MERGED, {name: merged[name] for name in merged.column_names})
    return samples


def _part_file(folder: Path, start: int, node: int) -> Path:
    return folder / "gpu" / f"s{start:02d}_n{node:02d}.json"
