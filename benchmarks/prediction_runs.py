"""Runs on CPU ranks for `benchmarks.prediction --measure`: each is probed, predicted from its probe alone, and run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import python

VISION = "dataset=digits model.width=0.35 dataset.image_size=48 epochs=8"
TUNING = "dataset=synthetic dataset.rows=700 epochs=1"
PROBE = ("probe=true", "probe.seconds=8")
VISION_CELLS = (
    "",
    "precision=fp64",
    "precision=bf16",
    "layout=nhwc",
    "loader=batched",
    "loader=device",
    "batch_size=16",
    "batch_size=64",
    "model.width=0.5",
    "dataset.image_size=64 epochs=5",
)
TUNING_CELLS = (
    "",
    "method=qlora",
    "method=dpo",
    "method=full",
    "precision=bf16",
    "gradient_accumulation_steps=2",
    "activation_checkpointing=true",
)


def cells() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The entry and the words of 34 cells: 10 of training and 7 of tuning, on 1 and on 2 ranks."""
    for gpus in (1, 2):
        kinds = ("train_vision", VISION, VISION_CELLS), ("tune_llm", TUNING, TUNING_CELLS)
        for entry, common, variants in kinds:
            yield from ((entry, (*f"{common} {own}".split(), f"gpus={gpus}", "device=cpu")) for own in variants)


def measured(root: Path) -> Iterator[dict[str, Any]]:
    """A row of the fixture a cell, each in a folder of its own under `root`, so that it knows no other.

    What a folder has of an earlier call is not measured again.
    """
    for number, (entry, words) in enumerate(cells()):
        cell = {"entry": entry, "words": " ".join(words), "gpus": words[-2].partition("=")[2]}
        yield cell | _pair(entry, words, root / f"{number:02}")


def _pair(entry: str, words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """The total of a run, and what its record says was predicted before it began."""
    asked = (f"{entry}.py", "-m", *words, f"hydra.sweep.dir={folder}")
    python(*asked, *PROBE)
    python(*asked)
    (path,) = (path for path in folder.glob("*/result.json") if not path.parent.name.endswith("-probe"))
    return row(json.loads(path.read_text()))


def row(record: dict[str, Any]) -> dict[str, Any]:
    """The columns that come from a record; without a prediction, as of a probe that was disturbed, they are empty."""
    predicted: dict[str, Any] = record.get("prediction") or {"basis": "unknown", "about": ""}
    total: dict[str, float] = predicted.get("total_s") or {}
    figures = (*(total.get(name) for name in ("value", "low", "high")), record["total_s"])
    names = ("predicted_s", "low_s", "high_s", "total_s")
    rounded = {name: "" if value is None else f"{value:.3f}" for name, value in zip(names, figures, strict=True)}
    return rounded | {"basis": predicted["basis"], "about": predicted["about"]}
