"""Flatten a record into columns, which are the same for every kind and age of run.

`--where`, `--sort` and `--columns` take these columns. Besides the columns declared here, there are
the axes and the keys of the configuration. Keys are called as they are typed
(`"dataset.train_limit"`). In SQL such a name needs double quotes. `KINDS` declares what else the
analysis must know about each kind of run.
"""

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from multicard.config import schema
from multicard.config.keys import flat
from multicard.config.roles import Role
from multicard.records import limits
from multicard.records.comparable import ALL_THREADS, PRESET, PRESET_KEY
from multicard.records.figures import FIGURES
from multicard.records.schema import AnyRecord

# The place of each column in the record (`multicard.records.schema`). The value is None if a kind
# of run has no such place.
ABOUT = {
    **{name: name for name in ("name", "kind", "status")},
    "cause": "cause.message",
    "ran_out": "cause.ran_out",
    **{name: name for name in ("commit", "dirty", "hardware", "hosts", "identity")},
    "data": "data.fingerprint",
    **{name: name for name in ("threads", "cores")},
    **{name: f"load.{name}" for name in ("others_cores", "stolen_cores")},
    **{name: name for name in ("beside", "repetition", "segments", "started_at", "ended_at")},
}
STEPS = "config.steps"  # A script's key `steps`. The column `steps` is a figure.
FOLDER = "folder"
MARKS = "marks"
LIMITS = "limits"
RESERVED = frozenset(
    {
        FOLDER,
        MARKS,
        LIMITS,
        ALL_THREADS,
        PRESET,
        PRESET_KEY,
        *ABOUT,
        *FIGURES,
        *(kind.column for kind in limits.KINDS),
    }
)


def columns(folder: Path, record: AnyRecord) -> dict[str, Any]:
    """Return the columns of a record.

    They are its folder, `ABOUT`, the configuration and the axes, `FIGURES`, a flag for each known
    limit, the signs of its limits (`marks`) and their codes (`limits`). An axis hides the
    configuration's key of the same name, because the axis has the value in force: with
    `device=auto`, it is `cpu`.
    """
    axes = {name: value for name, value in record.axes.items() if name not in RESERVED}
    run_config = {
        key: value for key, value in record.config.items() if key not in schema.keys(Role.forecast)
    }
    flat_settings = {key: value for key, value in flat(run_config).items() if key not in RESERVED}
    flat_settings |= {STEPS: run_config["steps"]} if "steps" in run_config else {}
    config_columns = {
        key: str(value) if _becomes_text(value) else value for key, value in flat_settings.items()
    }
    columns_about_run = {
        FOLDER: str(folder),
        **{name: _value_at(record, place) for name, place in ABOUT.items()},
    }
    if PRESET_KEY in record.config:  # Older records do not name their preset.
        columns_about_run[PRESET] = record.config[PRESET_KEY]
    columns_about_run["segments"] = len(record.segments)
    ranks = int(axes.get("gpus") or 1) * int(axes.get("nodes") or 1)
    columns_about_run[ALL_THREADS] = None if record.threads is None else record.threads * ranks
    run_limits = limits.of(record)
    codes = [limit.code for limit in run_limits]
    flags = {kind.column: kind.code in codes for kind in limits.KINDS}
    figures = {name: figure.value(record) for name, figure in FIGURES.items()}
    return {
        **columns_about_run,
        **config_columns,
        **axes,
        **figures,
        **flags,
        MARKS: limits.signs(run_limits),
        LIMITS: " ".join(codes),
    }


def _becomes_text(value: Any) -> bool:
    """Return True for lists, and for integers that are too large for SQL and charts."""
    return isinstance(value, list) or (isinstance(value, int) and abs(value) >= 2**63)


def _value_at(record: AnyRecord, place: str) -> Any:
    return reduce(lambda value, part: getattr(value, part, None), place.split("."), record)


# Each kind of run is declared once.


@dataclass(frozen=True)
class RunKind:
    """How runs of a kind are read.

    title: the name of the kind in headings.
    entry: the script that measures such runs.
    setting: columns by which a claim's verdict names what was measured.
    package: the package whose version matters besides torch's and CUDA's.
    rest: what a step's time contains besides its known phases.
    paced: the amount of work that `pace_s` is the time of.
    curve: the unit along which training losses are drawn, "epoch" or "step".
    to_sweep: keys to vary next, if a step's phases do not suggest any.
    limit: the option that makes a run measure what limits it, and how it does so.
    """

    title: str
    entry: str
    setting: tuple[str, ...]
    package: str
    rest: str
    paced: str = ""
    curve: str = "epoch"
    to_sweep: tuple[str, ...] = ()
    limit: tuple[str, str] = ("diagnose=true", "steps with one cost removed at a time")


KINDS = {
    "vision": RunKind(
        "training",
        "train_vision.py",
        # no roles: these words name what a verdict is about.
        ("dataset", "dataset.image_size", "model", "epochs", "batch_size"),
        "torchvision",
        "the slowest rank's time beyond the mean, and the time between phases",
    ),
    "llm": RunKind(
        "tuning",
        "tune_llm.py",
        # no roles: these words name what a verdict is about.
        ("model", "dataset", "template", "method", "precision", "epochs", "batch_size"),
        "torchtune",
        "torchtune's recipes compute in it; apart from it, they report only the wait for a batch",
        "million tokens",
        curve="step",
        # no roles: advice, the best first.
        to_sweep=("method", "batch_size", "precision"),
    ),
    "script": RunKind(
        "script",
        "measure_script.py",
        ("script",),
        "torch",
        "all but the wait for batches",
        "thousand samples",
        curve="step",
        limit=("profile=kineto profile.window=start", "the calls of its training"),
    ),
}
