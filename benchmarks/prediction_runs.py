"""Runs on CPU ranks for `benchmarks.prediction --measure`: each is probed, predicted from its probe alone, and run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import configuration, python
from multicard.machine import environment
from multicard.predict import history
from multicard.predict.run import Predictor, target

VISION = "dataset=digits model.width=0.35 dataset.image_size=48 epochs=6"
TUNING = "dataset=synthetic dataset.rows=1500 epochs=1"
PROBE = ("probe=true", "probe.seconds=20")
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
    "dataset.image_size=64 epochs=4",
    "optimizer=adamw",
    "dataset.augment=true",
)
TUNING_CELLS = (
    "",
    "method=qlora",
    "method=dpo",
    "method=full",
    "precision=bf16",
    "batch_size=4",
    "gradient_accumulation_steps=2",
    "activation_checkpointing=true",
)


def cells() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The entry and the words of 40 cells: 12 of training and 8 of tuning, on 1 and on 2 ranks."""
    for gpus in (1, 2):
        kinds = ("train_vision", VISION, VISION_CELLS), ("tune_llm", TUNING, TUNING_CELLS)
        for entry, common, variants in kinds:
            yield from ((entry, (*f"{common} {own}".split(), f"gpus={gpus}", "device=cpu")) for own in variants)


def measured(root: Path) -> Iterator[dict[str, Any]]:
    """A row of the fixture a cell, each in a folder of its own under `root`, so that it knows no other."""
    for number, (entry, words) in enumerate(cells()):
        folder = root / f"{number:02}"
        yield {"entry": entry, "words": " ".join(words), "gpus": words[-2].partition("=")[2]} | _pair(
            entry, words, folder
        )


def _pair(entry: str, words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    asked = (f"{entry}.py", *words, f"hydra.sweep.dir={folder}", "-m")
    python(*asked, *PROBE)
    config = configuration(entry, *words)
    git = environment.git(Path(__file__).parents[1])
    predictor = Predictor(target(config), history.read([folder]), history.commit_of(git))
    (predicted,) = predictor.predict_all([config], memory=False)
    python(*asked)
    (result,) = [path for path in folder.glob("*/result.json") if not path.parent.name.endswith("-probe")]
    total = predicted.total_s
    interval = ["", "", ""] if total is None else [f"{value:.3f}" for value in (total.value, total.low, total.high)]
    total_s = json.loads(result.read_text())["total_s"]
    names = ("predicted_s", "low_s", "high_s", "total_s", "basis", "about")
    return dict(zip(names, (*interval, f"{total_s:.3f}", predicted.basis, predicted.about), strict=True))
