"""`batch_size=auto` and `max_seq_len=auto`: each cell's size, by predicted memory,
confirmed by probes.
"""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from multicard.config.base import RunConfig
from multicard.config.llm import LlmConfig
from multicard.decide.plan.jobs_file import read_jobs_file
from multicard.estimate.estimates import Predictor
from multicard.machine import environment
from multicard.records import run_folder
from multicard.records.schema_parts import PredictedInterval, Prediction
from multicard.sweep import auto
from multicard.sweep.cells import Cell
from multicard.sweep.command import Command
from tests.conftest import SMALL, Called, typed
from tests.helpers.messages import codes, find, refused, says
from tests.llm.test_folders import SIZES, TEMPLATE, byte_tokenizer

GB = 1e9
WORDS = [word for word in SMALL if not word.startswith("batch_size=")]
TUNES = [
    "tracker.mode=disabled",
    "dataset.rows=40",
    "tokenizer.vocab_size=300",
    "max_steps=2",
    "skip_steps=0",
]
SAMPLE, TOKEN = 100_000_000, 10_000_000  # bytes of one, as predicted here


@pytest.fixture(autouse=True)
def known_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores and 6.5 GB left, and memory in proportion to the batch,
    or the sequence.
    """

    def predict_all(
        _: Predictor, configs: Sequence[RunConfig], *__: bool | None
    ) -> list[Prediction]:
        lengths = [
            (config.max_seq_len or 0) * TOKEN if isinstance(config, LlmConfig) else 0
            for config in configs
        ]
        sizes = [
            length or getattr(config, "batch_size", 0) * SAMPLE
            for length, config in zip(lengths, configs, strict=True)
        ]
        return [
            Prediction(
                "unknown", memory_bytes=PredictedInterval(size, size, size), memory_basis="steps"
            )
            for size in sizes
        ]

    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(auto, "available_memory_bytes", lambda: 6_500_000_000)
    monkeypatch.setattr(Predictor, "predict_all", predict_all)


def needs(text: str, code: str, **facts: Any) -> tuple[float, float]:
    """The bytes that are needed at most, and those that there are,
    by the message with this code.
    """
    found = find(text, code, **facts).facts["needs"].facts
    return found["most_bytes"], found["has_bytes"]


def test_each_cell_has_the_largest_size_that_fits(called: Called, tmp_path: Path):
    sweep = ["-m", *WORDS, "gpus=1,2", "batch_size=auto", f"hydra.sweep.dir={tmp_path / 'x'}"]
    for starts_nothing in ("dry_run=true", "predict=true"):
        code, printed = called(*sweep, starts_nothing)
        assert code == 0, printed
        for place, size, has in (("[1/2]", 56, 6.5 * GB), ("[2/2]", 24, 3.25 * GB)):
            reasons = find(printed, "auto.chosen", cells=place, value=size).facts["reasons"]
            assert needs(reasons, "auto.fits") == (size * SAMPLE + auto.RANK_BYTES, has)
    assert not any((tmp_path / "x").glob("*/result.json"))


def test_the_samples_of_a_rank_bound_it_and_too_little_memory_is_said(
    called: Called, tmp_path: Path
):
    words = [word for word in WORDS if "train_limit" not in word]
    code, printed = called(*words, "dataset.train_limit=44", "batch_size=auto", "dry_run=true",
                           f"hydra.sweep.dir={tmp_path / 'x'}")  # fmt: skip
    assert code == 0 and says(printed, "auto.chosen", key="batch_size", value=44)
    auto.available_memory_bytes = lambda: 640_000_000
    printed = called(
        *words, "batch_size=auto", "dry_run=true", f"hydra.sweep.dir={tmp_path / 'x'}"
    )[1]
    reasons = find(printed, "auto.chosen", key="batch_size", value=1).facts["reasons"]
    assert needs(reasons, "auto.too-large", size=2) == (0.8 * GB, 0.64 * GB)


@pytest.mark.parametrize(
    ("words", "value", "most_bytes"),
    [
        (["packed=true"], 512, 5.72 * GB),
        (["packed=true", "model.max_seq_len=300"], 300, 3.6 * GB),
        (["dataset=chat", "dataset.data_files={0}/short.jsonl"], 128, 1.88 * GB),
    ],
)
def test_the_longest_sequence_that_fits_and_makes_sense(
    words: list[str], value: int, most_bytes: float, called: Called, tmp_path: Path
):
    code, printed = tuned(words, called, tmp_path)
    assert code == 0, printed
    reasons = find(printed, "auto.chosen", key="max_seq_len", value=value).facts["reasons"]
    assert needs(reasons, "auto.fits") == (most_bytes, 6.5 * GB)


@pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("positions", "value"), [(384, 384), (8192, 512)])
def test_the_longest_sequence_of_a_folders_model(
    positions: int, value: int, called: Called, tmp_path: Path
):
    place = tmp_path / "model"
    place.mkdir()
    byte_tokenizer(place)
    (place / "chat_template.jinja").write_text(TEMPLATE)
    sizes = {"model_type": "mistral", **SIZES, "max_position_embeddings": positions}
    (place / "config.json").write_text(json.dumps(sizes))
    fixed = [word for word in TUNES if "tokenizer" not in word]
    words = [
        "engine=trl",
        "model=hf",
        f"model.path={place}",
        "model.weights=random",
        "packed=true",
        "batch_size=1",
    ]
    words += ["max_seq_len=auto", "dry_run=true", f"hydra.sweep.dir={tmp_path / 'x'}"]
    code, printed = called(*fixed, *words, entry="tune_llm.py")
    assert code == 0 and says(printed, "auto.chosen", key="max_seq_len", value=value), printed


def tuned(words: list[str], called: Called, folder: Path) -> tuple[int, str]:
    """A dry run with the longest sequence, and short rows at hand."""
    fixed = [word for word in TUNES if "dataset=chat" not in words or "rows" not in word]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (folder / "short.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 4)
    words = [word.format(folder) for word in [*words, "hydra.sweep.dir={0}/x"]]
    code, printed = called(*fixed, "max_seq_len=auto", "dry_run=true", *words, entry="tune_llm.py")
    assert "Traceback" not in printed and not (folder / "x").exists()
    return code, printed


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["packed=true", "gpus=9", "device=cpu"], "auto.too-large"),
        (["dataset=chat", "dataset.data_files=none.jsonl"], "memory.data-unreadable"),
    ],
)
def test_a_length_that_cannot_be_told_is_refused(
    words: list[str], reason: str, called: Called, tmp_path: Path
):
    code, printed = tuned(words, called, tmp_path)
    refusal = find(printed, "auto.unknown", key="max_seq_len")
    assert code == 1 and says(refusal.facts["reasons"], reason)
    if reason == "auto.too-large":
        assert says(refusal.facts["reasons"], reason, size=128)


def test_a_length_is_not_chosen_beside_another_key_or_a_profile(called: Called, tmp_path: Path):
    code, printed = tuned(["batch_size=auto"], called, tmp_path)
    assert code == 1 and "max_seq_len" in printed and "batch_size" in printed
    code, printed = tuned(["profile=kineto"], called, tmp_path)
    assert code == 1 and says(printed, "auto.size-profiled", key="max_seq_len", profile="kineto")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["global_batch_size=8"], "auto.global-batch"),
        (["gpus=auto"], None),  # refused where overrides are read
        (["race=images_per_s"], "auto.size-of-race"),
        (["profile=kineto"], "auto.size-profiled"),
    ],
)
def test_what_cannot_be_with_it_is_refused(
    words: list[str], code: str | None, called: Called, tmp_path: Path
):
    ended, printed = called(
        "-m", *WORDS, "batch_size=auto", *words, f"hydra.sweep.dir={tmp_path / 'x'}"
    )
    assert ended == 1 and "batch_size" in printed and "Traceback" not in printed
    assert code is None or says(printed, code, key="batch_size")
    ended, printed = called("-m", *WORDS, "batch_size=auto,8")
    assert ended == 1 and printed.count("auto,8") == 1


def test_a_size_is_not_one_because_no_memory_is_predicted(
    called: Called, tmp_path: Path, monkeypatch
):
    unknown = Prediction("unknown", memory_basis="a reason")
    monkeypatch.setattr(
        Predictor, "predict_all", lambda _, configs, *__: [unknown for _ in configs]
    )
    code, printed = called(*WORDS, "batch_size=auto", f"hydra.sweep.dir={tmp_path / 'x'}")
    assert code == 1 and not (tmp_path / "x").exists()
    assert says(printed, "auto.unknown", key="batch_size", reasons="a reason")


def test_a_plan_is_of_given_sizes(tmp_path: Path):
    (jobs := tmp_path / "jobs.yaml").write_text(
        "jobs:\n  a: {run: train_vision.py batch_size=auto}\n"
    )
    with refused("plan.file", key="jobs.a.run") as caught:
        read_jobs_file(jobs)
    assert caught.value.facts["reason"].code == "plan.auto"


def test_it_is_no_part_of_a_runs_identity():
    assert typed("auto=batch_size").identity() == typed().identity()


@pytest.mark.parametrize(
    ("entry", "words", "key", "out", "left", "most_bytes"),
    [
        ("train_vision.py", [*WORDS, "model.width=0.35"], "batch_size", 56, 48, 5.4 * GB),
        (
            "tune_llm.py",
            [*TUNES, "packed=true", "batch_size=1"],
            "max_seq_len",
            512,
            256,
            3.16 * GB,
        ),
    ],
)
@pytest.mark.usefixtures("processes")
def test_memory_that_runs_out_lowers_it_and_a_later_command_takes_it(
    entry: str,
    words: list[str],
    key: str,
    out: int,
    left: int,
    most_bytes: float,
    called: Called,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    measure = auto.run

    def run(command: Command, cell: Cell) -> None:
        measure(command, cell)
        assert cell.result is not None
        if cell.cfg[key] == out:
            cell.result.record.status = "oom"

    monkeypatch.setattr(auto, "run", run)
    words = [*words, f"{key}=auto", f"hydra.sweep.dir={tmp_path}"]
    code, printed = called(*words, entry=entry)
    assert code == 0, printed
    reasons = find(printed, "auto.chosen", key=key, value=left).facts["reasons"]
    assert codes(reasons) == ["auto.fits", "auto.ran-out", "auto.confirmed"]
    assert says(reasons, "auto.ran-out", value=out) and needs(reasons, "auto.fits") == (
        most_bytes,
        6.5 * GB,
    )
    (made,) = [path.parent for path in tmp_path.glob(f"*{key}={left},*/result.json")]
    written_ns = (made / run_folder.RESULT).stat().st_mtime_ns
    run = run_folder.read_run(made)
    assert run is not None and run.record.config[key] == left and run.record.config["auto"] == key
    printed = called(*words, entry=entry)[1]
    kept = find(printed, "auto.chosen", key=key, value=left)
    assert codes(kept.facts["reasons"]) == ["auto.measured-before"]
    assert (made / run_folder.RESULT).stat().st_mtime_ns == written_ns
