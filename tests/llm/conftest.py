"""What tests of tuning share: a short tuning in this process, with its held-out rows."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicard.llm.held_out import Evaluator
from tests.conftest import typed_llm
from tests.helpers.tuning import SHORT
from tests.llm.test_engines import tuned_here


@pytest.fixture
def alone(processes: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Tunes in this process on one CPU rank; the report, the steps, and the evaluator as it was
    after the last evaluation, with a plain model of the weights that it measured.
    """
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kept = list[Evaluator]()
    evaluate = Evaluator.evaluate
    numbers = iter(range(100))

    def keeping(self: Evaluator, folder: Path) -> Any:
        kept.append(self)
        return evaluate(self, folder)

    monkeypatch.setattr(Evaluator, "evaluate", keeping)

    def run(*words: str, short: tuple[str, ...] = SHORT) -> SimpleNamespace:
        folder = tmp_path / f"run{next(numbers)}"
        reported, steps = tuned_here(folder, *words, short=short)
        rows = [kept[-1].rows[place] for place in sorted(kept[-1].rows)] if kept else []
        return SimpleNamespace(
            folder=folder,
            report=reported,
            steps=steps,
            rows=rows,
            model=kept[-1].engine.model if kept else None,
            config=typed_llm(*short, *words),
        )

    return run
