"""Finished runs as predictions know them, of which the figures add up,
and what is predicted by them.
"""

import json
from typing import Any

from omegaconf import OmegaConf

from multicard.config.base import RunConfig
from multicard.estimate.estimates import Effort, Predictor
from multicard.estimate.history import DECODER, PastRun
from multicard.estimate.target import TargetMachine
from multicard.measure import formulas
from multicard.records.schema_parts import Prediction
from multicard.workloads import WORKLOADS
from tests.helpers import records

CPU = TargetMachine("AMD EPYC", "16 cores", "cpu")
H200 = TargetMachine("h200", None, "cuda", "NVIDIA H200", 150_000_000_000, 4)
STEPS = 20  # of an epoch of the records here
TESTED = 300  # images
EVALUATE_S, WARMUP_S, REST_S = 0.5, 0.3, 0.01


def vision(
    mean_s: float = 0.1, device: str = "cpu", gpus: int = 1, epochs: int = 2, **changes: Any
) -> dict[str, Any]:
    """A record of which the figures add up: epochs of STEPS steps,
    and a longer first step of the run.
    """
    limits = {"dataset__train_limit": STEPS * 16 * gpus, "dataset__test_limit": TESTED}
    record = records.vision(device=device, gpus=gpus, epochs=epochs, **limits | changes)
    trained_s = [STEPS * mean_s + WARMUP_S * (epoch == 0) for epoch in range(epochs)]
    counts = {"samples": STEPS * 16 * gpus, "test_samples": TESTED, "first_batch_s": 0.0}
    parts = [
        {"epoch": k, "train_s": s, "evaluate_s": EVALUATE_S, **counts}
        for k, s in enumerate(trained_s)
    ]
    statistics = formulas.statistics([mean_s] * (STEPS * epochs), 1)
    total_s = sum(trained_s) + epochs * (EVALUATE_S + REST_S)
    own = {"epochs": parts, "step_s": statistics, "total_s": total_s}
    return record | {key: value for key, value in own.items() if key not in changes}


def probe(step_s: float = 0.1, **changes: Any) -> dict[str, Any]:
    """The record of a probe of the same: 11 steps, of which the first took longer."""
    epoch = {"epoch": 0, "steps": 11, "train_s": 11 * step_s + WARMUP_S, "evaluate_s": EVALUATE_S}
    epoch |= {"test_samples": TESTED, "samples": STEPS * 16, "first_batch_s": 0.0}
    end = {
        "ended_by": "error",
        "steps": 10,
        "warmup_steps": 0,
        "step_s": step_s,
        "half_width": 0.01,
    }
    return vision(step_s, **changes) | {
        "probe": end | {"steps_per_epoch": STEPS},
        "epochs": [epoch],
        "total_s": 1.9,
    }


def raced(step_s: float = 0.1, **changes: Any) -> dict[str, Any]:
    """The record of a race's cell: it evaluates a batch,
    and its other times are not those of a run alone.
    """
    record = probe(step_s, **changes)
    record["probe"]["ended_by"], record["startup_s"] = "race", 99.0
    record["epochs"][0] |= {
        "test_samples": 16,
        "evaluate_s": 0.05,
        "train_s": 7.0,
        "first_batch_s": 5.0,
    }
    return record


def past(*every: dict[str, Any]) -> list[PastRun]:
    return [PastRun(DECODER.decode(json.dumps(record))) for record in every]


def config(record: dict[str, Any], **changes: Any) -> RunConfig:
    """The configuration of a record, with other values of keys."""
    (workload,) = (workload for workload in WORKLOADS if workload.name == record["kind"])
    typed = OmegaConf.structured(workload.schema)
    for group, options in workload.options.items():
        chosen = record["config"].get(group)
        if chosen is not None and chosen["name"] in options:
            typed[group] = OmegaConf.structured(options[chosen["name"]])
    OmegaConf.set_struct(typed, False)
    typed_config: Any = OmegaConf.to_object(OmegaConf.merge(typed, record["config"]))
    for key, value in changes.items():
        group, _, inner = key.partition("__")
        setattr(getattr(typed_config, group) if inner else typed_config, inner or group, value)
    return typed_config


def predicted(
    wanted: RunConfig,
    known: list[PastRun],
    target: TargetMachine = CPU,
    commit: str | None = records.COMMIT,
) -> Prediction:
    (prediction,) = Predictor(target, known, commit).predict_all([wanted], Effort.records)
    return prediction
