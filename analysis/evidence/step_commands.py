"""Make the commands of the steps of `multicard evidence`: sweeps, and other programs."""

import sys
from collections.abc import Callable, Sequence

from multicard.messages import ROOT

from . import findings, needs
from .place import ROWS, TOKENIZER, Circumstances

# Overrides of an entry. A value that lists several, separated by commas, makes a sweep.
Words = dict[str, object]

# On CPU ranks, the same steps are shrunk: their figures only show that the code works.
SMALL_IMAGES: Words = {
    "dataset.image_size": 32,
    "dataset.train_limit": 96,
    "dataset.test_limit": 48,
}
SMALL_VISION: Words = {"device": "cpu", "dataset": "digits", **SMALL_IMAGES, "model.width": 0.35}
SMALL_VISION |= {
    "batch_size": 16,
    "epochs": 2,
    "warmup_steps": 1,
    "compile": False,
    "precision": "fp32",
}
SMALL_VISION |= {"oversubscribe": True}
SMALL_TUNING: Words = {
    "device": "cpu",
    "precision": "fp32",
    "dataset.rows": 24,
    "max_steps": 4,
    "skip_steps": 1,
}
SMALL_TUNING |= {"oversubscribe": True}
SMALL_PACKED: Words = {"max_seq_len": 256, "batch_size": 2, "compile": False, "dataset.rows": 60}


def multicard(*words: object) -> list[str]:
    """Return a command of multicard, which works from any folder."""
    return [sys.executable, "-m", "multicard", *map(str, words)]


def sweep(command: str, name: str, place: Circumstances, words: Words, repeat: int) -> list[str]:
    """Return the command of a sweep whose folder has the step's name.

    Predictions are turned off, because they take seconds for each cell.
    """
    fixed_overrides = {
        "name": name,
        "hydra.sweep.dir": place.runs(name),
        "tracker.mode": "disabled",
        "fit": "off",
    }
    repeat_override = {"repeat": repeat} if repeat > 1 else {}
    return multicard(
        command,
        "-m",
        *(f"{key}={value}" for key, value in (words | fixed_overrides | repeat_override).items()),
    )


def vision(
    name: str, words: Callable[[Circumstances], Words]
) -> Callable[[Circumstances, int], list[str]]:
    """Return a sweep of image training on MNIST, or on images in MNIST's form."""

    def command(place: Circumstances, repeat: int) -> list[str]:
        overrides = {"dataset": "mnist"} | words(place)
        if place.is_cuda:
            overrides |= {"dataset.root": place.images()}
        else:
            overrides |= {
                key: value
                for key, value in SMALL_VISION.items()
                if not has_several(overrides.get(key))
            }
        return sweep("vision", name, place, overrides, repeat)

    return command


def tuning(
    name: str, words: Callable[[Circumstances], Words]
) -> Callable[[Circumstances, int], list[str]]:
    """Return a sweep that tunes a model of random weights on Alpaca's rows, or generated ones."""

    def command(place: Circumstances, repeat: int) -> list[str]:
        overrides = {"model": place.model} | words(place)
        if not place.is_cuda:
            overrides |= {
                key: value
                for key, value in SMALL_TUNING.items()
                if not has_several(overrides.get(key))
            }
            overrides |= SMALL_PACKED if overrides.get("preset") == "fast" else {}
        return sweep("tune", name, place, overrides, repeat)

    return command


def has_several(value: object) -> bool:
    """Return True if an override lists several values."""
    return isinstance(value, str) and "," in value


def without_cudnns_attention(
    command: Callable[[Circumstances, int], list[str]],
) -> Callable[[Circumstances, int], list[str]]:
    """Run a command with torch's attention kernels preferred over cuDNN's.

    cuDNN plans anew for each length of rows.
    """
    return lambda place, repeat: [
        "env",
        "TORCH_CUDNN_SDPA_DEPRIORITIZED=1",
        *command(place, repeat),
    ]


def text(place: Circumstances) -> Words:
    """Use Alpaca's rows and Llama's tokenizer if they are there, else generated rows."""
    rows = place.found(ROWS)
    tokenizer = place.found(TOKENIZER)
    if not place.is_cuda:
        return {}
    words: Words = {"dataset": "alpaca_cleaned", "dataset.data_files": rows} if rows else {}
    return words | ({"tokenizer": "llama3", "tokenizer.path": tokenizer} if tokenizer else {})


def images(count: int, epochs: int = 2) -> Words:
    """Limit the training images, and the test images in MNIST's proportion."""
    return {"dataset.train_limit": count, "dataset.test_limit": count // 6, "epochs": epochs}


def comma_separated(values: Sequence[object]) -> str:
    """Write values as a sweep's override lists them."""
    return ",".join(map(str, values))


# Commands that are not sweeps.


def machine(place: Circumstances, _: int) -> list[str]:
    """Return the command that measures the rates of copies and of all-reduces."""
    device_options = [] if place.is_cuda else ["--cpu"]
    return [
        sys.executable,
        "-m",
        "multicard.machine.rates",
        "--gpus",
        str(place.gpus),
        *device_options,
    ]


def tests(place: Circumstances, _: int) -> list[str]:
    """Return the command of the tests that have not passed in an earlier call.

    It works without any plugin of pytest.
    """
    log = place.log("tests")
    outcomes = findings.test_outcomes(log.read_text(errors="replace")) if log.exists() else {}
    deselected = [
        f"--deselect={name}"
        for name, outcome in outcomes.items()
        if outcome in ("PASSED", "SKIPPED")
    ]
    pytest_options = (
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "-v",
        "--tb=short",
        "--continue-on-collection-errors",
    )
    # It runs in multicard's folder, because `tests` in the working folder may be another project's.
    return [
        "env",
        f"--chdir={ROOT}",
        sys.executable,
        "-m",
        "pytest",
        *pytest_options,
        "-m",
        "gpu",
        *needs.gpu_tests(),
        *deselected,
    ]
