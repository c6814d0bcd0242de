"""Run folders as the entries leave them, for tests of what reads them: every key of a real record,
figures as told.

tests/analysis/test_data.py holds these against records that were measured.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from analysis.runs.load import Run as AnalysedRun
from multicard.config.base import plain
from multicard.llm import summary as llm_summary
from multicard.measure import formulas, timing
from multicard.observe.profiles.metrics import Profile
from multicard.records import limits, ownership, run_folder
from multicard.records.run_folder import RecordedRun
from multicard.records.schema import AnyRecord
from multicard.records.schema_parts import Limit, ProfileDerived, ProfileRank, ProfileRow
from multicard.script import summary as script_summary
from multicard.vision import summary as vision_summary
from tests.conftest import composed, typed, typed_llm

GONE = 2**22 + 1  # no process has this number
COMMIT = "8fdd49003961b229ab73624738c1943cc72646c1"


@cache
def configuration(kind: str) -> dict[str, Any]:
    """The configuration of a small run of a kind, as a record has it."""
    words = ("name=sweep", "tracker.mode=disabled")
    if kind == "vision":
        small = ("epochs=2", "batch_size=16", "warmup_steps=1", "dataset.image_size=32")
        return plain(typed(*words, *small))
    if kind == "script":
        config: Any = OmegaConf.to_object(
            composed(*words, "script=train.py", "args.lr=0.1", entry="measure_script")
        )
        return plain(config)
    return plain(typed_llm(*words, "skip_steps=1", "template=instruct"))


def axes(kind: str, config: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """The axes of a configuration, which need not be a whole one."""
    if kind == "script":
        return script_summary.axes(OmegaConf.create(config), device)
    nested = json.loads(json.dumps(config), object_hook=lambda content: SimpleNamespace(**content))
    return {"vision": vision_summary, "llm": llm_summary}[kind].axes(nested, device)


def vision(device: str = "cuda", **changes: Any) -> dict[str, Any]:
    """A training run's record.

    Args:
        changes: keys of the configuration (`precision="fp16"`, `dataset__train_limit=96`) or of the
            record;
            `profiled`: whether Nsight Systems recorded all of it.
    """
    return _record("vision", device, changes)


def llm(device: str = "cuda", **changes: Any) -> dict[str, Any]:
    """A tuning run's record."""
    return _record("llm", device, changes)


def script(device: str = "cuda", **changes: Any) -> dict[str, Any]:
    """A script's record; it told no loss."""
    return _record("script", device, changes)


def _record(kind: str, device: str, changes: dict[str, Any]) -> dict[str, Any]:
    config = json.loads(json.dumps(configuration(kind))) | {"device": device}
    own: dict[str, Any] = {}
    for key, value in changes.items():
        group, _, inner = key.partition("__")
        if key == "profiled":
            config["profile"] = {"name": "nsys", "window": "start"} if value else {"name": "none"}
        elif inner:
            config[group] |= {inner: value}
        elif key not in config:
            own[key] = value
        elif isinstance(config[key], dict) and not isinstance(value, dict):
            config[key] |= {"name": value}
        else:
            config[key] = value
    record = {
        **dict.fromkeys(("job", "cause", "divergence", "compile_s", "cuda_graphs", "changes")),
        **dict.fromkeys(("profile", "diagnosis", "probe", "prediction", "cuda_graphs_recorded")),
        "schema_version": 1,
        "kind": kind,
        "name": "sweep",
        "status": "ok",
        "started_at": "2026-11-21T09:41:29Z",
        "axes": axes(kind, config, device),
        "repetition": config["repetition"],
        "identity": "fff61eda",
        "config": config,
        "ended_at": "2026-11-21T09:41:33Z",
        "startup_s": 0.9,
        "total_s": 100.0,
        "non_finite_losses": 0,
        **{"vision": _trained, "llm": _tuned, "script": _measured}[kind](config),
        "peak_memory_bytes": {
            "max": 5_000_000_000,
            "per_rank": [5_000_000_000],
            "kind": "cuda_allocated",
        },
        "transfer_bytes": {"h2d": 1_796_384, "d2h": None, "d2d": None, "source": "counted"},
        "communication_bytes": {
            "all_reduce": 0,
            "broadcast": 0,
            "per": "rank",
            "source": "computed",
        },
        "parameters": 2_236_682,
        "threads": 1,
        "segments": [segment()],
        "oversubscribed": False,
        "gpu": None if device == "cpu" else gpu(),
        "data": data(),
        "cores": 16,
        "load": load(),
        "beside": 0,
        "ignored": [],
        "limits": [],
        "hardware": "AMD EPYC" if device == "cpu" else "NVIDIA H200",
        "commit": COMMIT,
        "dirty": False,
    }
    return record | own


def as_run(record: dict[str, Any]) -> RecordedRun:
    """A run with a record that is made here, or a part of one, in the folder that it names."""
    return RecordedRun(
        Path(record.get("folder", "")), as_record(record), record.get("tracker_error")
    )


def as_record(record: dict[str, Any]) -> Any:
    least = {"schema_version": 1, "kind": "vision", "status": "ok", "axes": {}}
    return msgspec.convert(least | record, AnyRecord)


def put(folder: Path, record: dict[str, Any]) -> None:
    """Write result.json as a run does."""
    run_folder.write_result(as_run(record | {"folder": str(folder)}))


def put_whole(folder: Path, record: dict[str, Any]) -> None:
    """Write it with the end of its steps, by which a measurement
    is known that need not be measured again.
    """
    put(folder, record)
    (folder / "steps.parquet").write_bytes(b"PAR1")


def training_joules(gpu: dict[str, Any] | None) -> float | None:
    """The energy of training of the record's `gpu`."""
    return as_record({"gpu": gpu}).training_joules


def data(fingerprint: str = "9b990dc14fcc") -> dict[str, Any]:
    sizes = {"bytes": 129_384, "hashed_bytes": 129_384}
    return {"fingerprint": fingerprint, "parts": {"dataset": fingerprint}, **sizes, "changed": None}


def load(others_cores: float = 0.0) -> dict[str, Any]:
    """The record's `load`, with so many of the run's cores busy for others."""
    return {"seconds": 101.0, "others_cores": others_cores, "stolen_cores": 0.0}


def _trained(config: dict[str, Any]) -> dict[str, Any]:
    epochs = config["epochs"]
    told = {
        "steps": 10,
        "samples": 1000,
        "samples_trained": 1000,
        "test_samples": 1000,
        "test_right": 980,
        "test_accuracy": 0.98,
    }
    train_s = 90.0 / epochs
    return {
        "train_s": 90.0,
        "evaluate_s": 10.0,
        "epochs": [
            {
                "epoch": epoch,
                "train_s": train_s,
                "ended_s": 100.0 * (epoch + 1) / epochs,
                **epoch_waits(epoch),
                **told,
            }
            for epoch in range(epochs)
        ],
        "step_s": formulas.statistics([0.1] * 10, 1),
        "images_per_s": 1234.5,
        "trained_images_per_s": 1234.5,
        "phases_s": dict.fromkeys(timing.PHASES, 0.02),
        "joules_per_image": None,
        "test_accuracy": 0.98,
        "chance_accuracy": 0.1,
        "time_to_target_s": None,
        "input": {"loader": "torch", "train": {"workers": 0}, "test": {"workers": 0}},
        "saved": None,
        "num_workers": 0,
        "trainable_parameters": 2_236_682,
    }


def accurate(share: float, images: int = 10_000) -> dict[str, Any]:
    """Fields of a record of vision, by its accuracy in a test of so many images."""
    epoch = {
        "samples": 1000,
        "samples_trained": 1000,
        "test_samples": images,
        "test_accuracy": share,
    }
    epochs = [{"epoch": index, "train_s": 9.0, **epoch} for index in range(2)]
    return {"test_accuracy": share, "epochs": epochs}


def epoch_waits(epoch: int, first_batch_s: float = 0.5) -> dict[str, Any]:
    """What an epoch's record has beside its times and answers."""
    gap_s = None if epoch == 0 else first_batch_s + 0.1
    waits = {
        "first_batch_s": first_batch_s,
        "evaluate_first_batch_s": first_batch_s,
        "gap_s": gap_s,
    }
    return waits | {"train_loss": 2.0 * 0.9**epoch}


def _tuned(config: dict[str, Any]) -> dict[str, Any]:
    rewards = {"chosen": 0.2, "rejected": -0.1, "accuracy": 0.9, "margin": 0.3}
    return {
        **({"rewards": rewards} if config["method"]["name"] == "dpo" else {}),
        "epochs": [
            {
                "epoch": 0,
                "steps": 250,
                "train_s": 90.0,
                "ended_s": 100.0,
                "train_loss": 2.0,
                "samples": 500,
            }
        ],
        "iteration_s": formulas.statistics([0.1] * 10, config["skip_steps"]),
        "data_s": 0.001,
        "tokens": {"all": 60_000, "non_padding": 50_000, "loss_bearing": 40_000},
        "tokens_per_s": {"all": 600.0, "non_padding": 500.0, "loss_bearing": 400.0},
        "joules_per_token": None,
        "loss": {"first": 7.0, "last": 2.0, "mean_of_last_tenth": 2.5},
        "text_rows": {"read": 500, "cut": 0, "left_out": 0},
        "trainable_parameters": 71_680,
        "nf4_tensors": 0,
        "fake_quantised_linears": 0,
        "attention_used": None,
        "eight_bit_share": None,
        "late_graphs": None,
        "warmup_steps": 1,
        "flops_per_token": 8.9e6,
        "mfu": None,
        "mfu_non_padding": None,
        "arithmetic": None,
        **dict.fromkeys(("evaluate_s", "held_out", "time_to_target_s", "saved")),
    }


def _measured(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "epochs": [{"epoch": 0, "steps": 100, "train_s": 90.0, "ended_s": 100.0, "samples": 1000}],
        "step_s": formulas.statistics([0.1] * 100, config["warmup_steps"]),
        "samples_per_s": 100.0,
        "evaluate_s": 0.0,
        "seen": [],
        "seen_codes": [],
    }


def prediction(
    basis: str = "scaled", error: float = 0.1, half_width: float = 0.2, **changes: Any
) -> dict[str, Any]:
    """The record's `prediction`, too high by `error`, of a run of GPUs as `vision` builds it.

    Args:
        half_width: of each interval, relative to its middle.
        changes: further keys, such as `fits`.
    """

    def interval(measured: float) -> dict[str, float]:
        value = measured * (1 + error)
        return {"value": value, "low": value * (1 - half_width), "high": value * (1 + half_width)}

    figures = {
        "step_s": 0.1,
        "total_s": 100.0,
        "energy_joules": 50_000.0,
        "allocated_bytes": 5e9,
        "memory_bytes": 6e9,
    }
    about = {
        "basis": basis,
        "runs": 2,
        "about": "T(1), T(2) of gpus",
        "memory_basis": "steps without values",
    }
    return about | {name: interval(measured) for name, measured in figures.items()} | changes


def segment(first_step: int = 0, host: str = "node1", commit: str = COMMIT) -> dict[str, Any]:
    times = {
        "started_at": "2026-11-21T09:41:29Z",
        "ended_at": "2026-11-21T09:41:33Z",
        "end": "ok",
        "job": None,
    }
    return {
        **times,
        "hosts": [host],
        "commit": commit,
        "first_step": first_step,
        "steps": 12,
        "trained_s": 100.0,
    }


def gpu(
    energy_joules: float | None = 50_000.0, sm_clock_mhz: float = 1900.0, by: str | None = None
) -> dict[str, Any]:
    """The record's `gpu`; `by` names a process of somebody else on it."""
    clocks = {"sm_clock_mean_mhz": sm_clock_mhz, "memory_clock_mean_mhz": 2600.0}
    return {
        "energy_joules": energy_joules,
        "covers": "training",
        "sampling_s": 1.0,
        "parts": [],
        "devices": [{"host": "node1", "uuid": "GPU-1", "name": "NVIDIA H200", **clocks}],
        "disturbed_by": (
            [] if by is None else [{"host": "node1", "name": by, "pid": 7, "gpu": "GPU-1"}]
        ),
        "problem": None,
    }


def profile(
    rank_rows: list[dict[tuple[str, str], float]], communication_s: list[float], steps: int = 10
) -> dict[str, Any]:
    """The record's `profile`, of torch's own profiler.

    Args:
        rank_rows: seconds of each metric, by group and name, for every rank.
        communication_s: of every rank.
    """
    ranks, rows = [], []
    for rank, found in enumerate(rank_rows):
        derived = ProfileDerived(0.9, 0.8, communication_s[rank], 0.1, 0.5, 0.01, 0.2)
        ranks.append(ProfileRank(rank, f"profile/r{rank:02d}.json.gz", 1.0, steps, [rank], derived))
        rows += [
            ProfileRow(rank, group, name, steps, total_s, total_s)
            for (group, name), total_s in found.items()
        ]
    told = Profile("kineto", ranks, rows, ()).as_dict()
    copies = dict.fromkeys(("counted_bytes", "profiled_bytes", "disagreement", "whole_run_bytes"))
    return told | {
        "files": [rank.where for rank in ranks],
        "first_step": 1,
        "steps": steps,
        "step_s": {"inside": 0.1, "outside": 0.1, "ratio": 1.0},
        "h2d": copies | {"source": "the profiler's window, scaled by steps"},
    }


def environment(**changes: Any) -> dict[str, Any]:
    driver = {"uuid": "GPU-1", "name": "NVIDIA H200", "sm_clock_max_mhz": 1980, "driver": "580.1"}
    base = {
        "recorded_at": "2026-11-21T09:41:29Z",
        "host": "node1",
        "git": {"commit": COMMIT, "dirty": False, "changes": None},
        "python": "3.11.7",
        "packages": {"torch": "2.11.0", "torchvision": "0.26.0"},
        "platform": "Linux-6.18",
        "cpu": {"model": "AMD EPYC", "cores": 2, "cores_online": 2, "memory_bytes": 25_276_502_016},
        "gpus": [driver],
        "flags": {"cudnn_allow_tf32": True},
    }
    return base | changes


def steps(step_s: Any, per_epoch: int | None = None) -> dict[str, Any]:
    """Columns of steps.parquet.

    Args:
        step_s: seconds (steps, ranks), or (steps,) of a single rank.
        per_epoch: steps an epoch; all are of one where it is not given.
    """
    seconds = np.asarray(step_s, dtype=float)
    seconds = seconds.reshape(len(seconds), -1)
    number, rank = (index.ravel() for index in np.indices(seconds.shape))
    epoch, step = np.divmod(number, per_epoch or max(len(seconds), 1))
    whole = {"epoch": epoch, "rank": rank, "step": step}
    return {name: values.astype(np.int32) for name, values in whole.items()} | {
        "step_s": seconds.ravel()
    }


def held_out_rows(losses: Any, tokens: Any = 10, first: int = 0) -> dict[str, np.ndarray]:
    """Columns of held_out.parquet.

    Args:
        losses: mean nats of a token of each row (rows,).
        tokens: of each row, or of all alike; 1 of pairs.
        first: index of the first row.
    """
    losses = np.asarray(losses, dtype=float)
    tokens = np.broadcast_to(tokens, losses.shape).astype(np.int64)
    return {"row": first + np.arange(len(losses)), "loss": losses * tokens, "tokens": tokens}


def evaluated(rows: dict[str, np.ndarray], first_loss: float | None = None) -> dict[str, Any]:
    """Fields of a record of tuning with two evaluations, the second of these rows.

    Args:
        first_loss: of the first evaluation; by default a tenth more than the second.
    """
    tokens = int(rows["tokens"].sum())
    last = float(rows["loss"].sum()) / tokens
    losses = (1.1 * last if first_loss is None else first_loss, last)
    evaluations = [
        {
            "epoch": 0,
            "step": 125 * (at + 1),
            "evaluate_s": 1.0,
            "ended_s": 50.0 * (at + 1),
            "loss": loss,
        }
        for at, loss in enumerate(losses)
    ]
    held_out = {
        "rows": len(rows["row"]),
        "tokens": tokens,
        "also_trained": 0,
        "evaluations": evaluations,
    }
    return {"evaluate_s": 2.0, "held_out": held_out}


def write(
    folder: Path,
    record: dict[str, Any],
    step_columns: dict[str, Any] | None = None,
    machine: Any = None,
    held_out: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a run folder; its environment is `machine`'s, or the builder's own.

    Args:
        held_out: the columns of held_out.parquet; the record gets evaluations of these rows,
            unless it has some.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if held_out is not None:
        if record.get("held_out") is None:
            record = record | evaluated(held_out)
        pq.write_table(pa.table(held_out), folder / "held_out.parquet")
    (folder / "config.yaml").write_text("")
    (folder / "environment.json").write_text(
        json.dumps(environment() if machine is None else machine)
    )
    if step_columns is not None:
        pq.write_table(pa.table(step_columns), folder / "steps.parquet")
    (folder / "result.json").write_text(json.dumps(record))
    return folder


def write_all(
    folder: Path, *records: dict[str, Any], step_columns: dict[str, Any] | None = None
) -> Path:
    """Write run folders 00, 01, ... below a folder."""
    for index, record in enumerate(records):
        write(folder / f"{index:02d}", record, step_columns)
    return folder


def claim(folder: Path, **who: Any) -> Path:
    """Claim a run folder as another process of this machine does, on a file system without locks.
    Returns the file.
    """
    path = folder.with_name(f".{folder.name}.{len(ownership.claims(folder))}{ownership.RUNNING}")
    told = (
        msgspec.to_builtins(ownership._this_process())
        | {"started": timing.start_ticks(who["pid"])}
        | who
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(told))
    return path


def changed(run: AnalysedRun, columns: dict[str, Any]) -> AnalysedRun:
    """A run with other columns, and the limits that those say it has."""
    flags = {
        kind.code: bool(columns[kind.column]) for kind in limits.KINDS if kind.column in columns
    }
    kept = [limit for limit in run.limits if flags.get(limit.code, True)]
    added = [kind.limit() for kind in limits.KINDS if flags.get(kind.code)]
    return replace(
        run, columns=run.columns | columns, limits=tuple(limits.in_order([*kept, *added]))
    )


def limited(run: AnalysedRun, *added: Limit) -> AnalysedRun:
    """A run with further limits."""
    return replace(run, limits=(*run.limits, *added))
