"""A record as flat columns, the same for every kind and age of run: what `--where`, `--sort` and
`--columns` take; and what the analysis must know of each kind beside its record.

Beside those declared here: the axes, and the configuration's keys, which are called as they are
typed (`"dataset.train_limit"`; in SQL such a name needs its double quotes).
"""

from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from multicard.config import schema
from multicard.config.keys import flat
from multicard.config.roles import Role
from multicard.records import limits
from multicard.records.comparable import ALL_THREADS
from multicard.records.figures import FIGURES
from multicard.records.schema import AnyRecord

# Each column's place in the record (`multicard.records.schema`);
# None where a kind of run has no such place
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
STEPS = "config.steps"  # a script's key `steps`: `steps` is the figure
FOLDER = "folder"
MARKED = "marks"
LIMITS = "limits"
RESERVED = frozenset(
    {FOLDER, MARKED, LIMITS, ALL_THREADS, *ABOUT, *FIGURES, *(kind.column for kind in limits.KINDS)}
)


def columns(folder: Path, record: AnyRecord) -> dict[str, Any]:
    """The columns of a record: folder, `ABOUT`, configuration and axes, `FIGURES`, a flag for each
    known limit, their signs (`marks`) and their codes (`limits`).

    An axis goes before the configuration's key of the same name: it
    is what was in force (`device=auto` is `cpu`).
    """
    axes = {name: value for name, value in record.axes.items() if name not in RESERVED}
    own = {
        key: value for key, value in record.config.items() if key not in schema.keys(Role.forecast)
    }
    settings = {key: value for key, value in flat(own).items() if key not in RESERVED}
    settings |= {STEPS: own["steps"]} if "steps" in own else {}
    config = {key: str(value) if _is_text(value) else value for key, value in settings.items()}
    about = {FOLDER: str(folder), **{name: _value(record, place) for name, place in ABOUT.items()}}
    about["segments"] = len(record.segments)
    ranks = int(axes.get("gpus") or 1) * int(axes.get("nodes") or 1)
    about[ALL_THREADS] = None if record.threads is None else record.threads * ranks
    found = limits.of(record)
    codes = [limit.code for limit in found]
    flags = {kind.column: kind.code in codes for kind in limits.KINDS}
    measured = {name: figure.value(record) for name, figure in FIGURES.items()}
    return {
        **about,
        **config,
        **axes,
        **measured,
        **flags,
        MARKED: limits.signs(found),
        LIMITS: " ".join(codes),
    }


def _is_text(value: Any) -> bool:
    """True for lists, and for integers that neither SQL nor charts take."""
    return isinstance(value, list) or (isinstance(value, int) and abs(value) >= 2**63)


def _value(record: AnyRecord, place: str) -> Any:
    return reduce(lambda value, part: getattr(value, part, None), place.split("."), record)


# The kinds of runs, each declared once


@dataclass(frozen=True)
class RunKind:
    """How runs of a kind are read.

    title: what headings call them. entry: the script that measures them.
    setting: columns by which a claim's verdict names what was measured.
    package: whose version matters beside torch's and CUDA's.
    rest: what a step is beside its known phases.
    paced: the work of which `pace_s` is the time.
    curve: along which training losses are drawn, "epoch" or "step".
    to_sweep: keys to vary next, where a step's phases do not say which.
    limit: the words that have a run say what limits it, and what they show.
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
        # no roles: the words of a verdict
        ("dataset", "dataset.image_size", "model", "epochs", "batch_size"),
        "torchvision",
        "what the slowest rank took more than the mean, and what lies between phases",
    ),
    "llm": RunKind(
        "tuning",
        "tune_llm.py",
        # no roles: the words of a verdict
        ("model", "dataset", "template", "method", "precision", "epochs", "batch_size"),
        "torchtune",
        "torchtune's recipes compute in it; apart from it they tell the wait for a batch alone",
        "million tokens",
        curve="step",
        to_sweep=("method", "batch_size", "precision"),  # no roles: advice, best first
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
