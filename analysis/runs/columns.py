"""A record as flat columns, the same for every kind and age of run: what `--where`, `--sort` and `--columns` take.

Beside those declared here: the axes, and the configuration's keys, which are called as they are typed
(`"dataset.train_limit"`; in SQL such a name needs its double quotes).
"""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from analysis.runs.caveats import MARKS
from multicard.config.keys import flat
from multicard.config.prediction import PREDICTION
from multicard.records.schema import AnyRecord

# Each column's place in the record (`multicard.records.schema` has units and meanings); None where a kind of run has no
# such place. Figures of a run that did not end ok are of what it had finished by then.
FIGURES = {
    **{name: name for name in ("total_s", "startup_s", "train_s", "evaluate_s", "compile_s", "time_to_target_s")},
    "step_s": "steps.mean",
    "step_median_s": "steps.median",
    "step_p95_s": "steps.p95",
    "step_std_s": "steps.std",
    "steps": "steps.count",
    "images_per_s": "images_per_s",
    "trained_images_per_s": "trained_images_per_s",
    "tokens_per_s": "tokens_per_s.non_padding",
    "tokens": "tokens.non_padding",
    "samples_trained": "samples_trained",
    "test_accuracy": "test_accuracy",
    "test_samples": "test_samples",
    "loss_first": "loss.first",
    "loss_last_tenth": "loss.mean_of_last_tenth",
    "reward_accuracy": "rewards.accuracy",
    "peak_memory_bytes": "peak_memory_bytes.max",
    "h2d_bytes": "transfer_bytes.h2d",
    "d2d_bytes": "transfer_bytes.d2d",
    "d2h_bytes": "transfer_bytes.d2h",
    "received_bytes": "received_bytes",
    "energy_joules": "training_joules",
    **{name: name for name in ("joules_per_image", "joules_per_token", "parameters", "mfu")},
}
ABOUT = {
    **{name: name for name in ("name", "kind", "status")},
    "cause": "cause.message",
    **{name: name for name in ("commit", "dirty", "hardware", "hosts", "identity")},
    "data": "data.fingerprint",
    "threads": "threads",
    "cores": "cores",
    "others_cores": "load.others_cores",
    "stolen_cores": "load.stolen_cores",
    "beside": "beside",
    "repetition": "repetition",
    "segments": "segments",
    "started_at": "started_at",
    "ended_at": "ended_at",
}
FOLDER, MARKED = "folder", "marks"
ALL_THREADS = "all_threads"  # of all ranks
OF_COMMANDS = (*PREDICTION, "objective")  # keys that say nothing of a run
RESERVED = frozenset({FOLDER, MARKED, ALL_THREADS, *ABOUT, *FIGURES, *(mark.column for mark in MARKS)})


def columns(folder: Path, record: AnyRecord) -> dict[str, Any]:
    """The columns of a record: folder, `ABOUT`, configuration and axes, `FIGURES`, a flag for each mark.

    An axis goes before the configuration's key of the same name: it is what was in force (`device=auto` is `cpu`).
    """
    axes = {name: value for name, value in record.axes.items() if name not in RESERVED}
    own = {key: value for key, value in record.config.items() if key not in OF_COMMANDS}
    settings = {key: value for key, value in flat(own).items() if key not in RESERVED}
    config = {key: str(value) if isinstance(value, list) else value for key, value in settings.items()}
    about = {FOLDER: str(folder), **_values(record, ABOUT), "segments": len(record.segments)}
    ranks = int(axes.get("gpus") or 1) * int(axes.get("nodes") or 1)
    about[ALL_THREADS] = None if record.threads is None else record.threads * ranks
    facts = {
        "oversubscribed": bool(record.oversubscribed),
        "disturbed": bool(record.gpu and record.gpu.disturbed_by),
        "scale": record.config.get("scale"),
        "profile.window": config.get("profile.window"),
    }
    flags = {mark.column: mark.applies(about | axes | facts) for mark in MARKS}
    signs = "".join(mark.sign for mark in MARKS if flags[mark.column])
    return {**about, **config, **axes, **_values(record, FIGURES), **flags, MARKED: signs}


def _values(record: AnyRecord, places: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: reduce(lambda value, part: getattr(value, part, None), place.split("."), record)
        for name, place in places.items()
    }
