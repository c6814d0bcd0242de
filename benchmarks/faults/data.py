"""Data that is broken, hostile, changed or gone: photographs, rows, weights, tokenizers, MNIST's files."""

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.faults.disk import mount, remount
from benchmarks.faults.fault import RUN, Act, Fault, Trial
from benchmarks.faults.points import both, held, measure_first, root, then_release, wrote

PHOTOGRAPHS = (
    *(*RUN, "gpus=2", "seed=1", "lr=1e-6", "dataset=images", "dataset.root={trial}/photographs"),
    *("dataset.train_limit=null", "dataset.test_limit=null", "batch_size=4"),
)
CLASSES, PER_CLASS = ("cats", "dogs"), 10
HUGE = (20_000, 20_000)  # pixels
TUNING = ("hydra.run.dir={sweep}", "max_steps=2", "skip_steps=0", "tracker.mode=disabled")
ROWS = (*TUNING, "dataset=alpaca_cleaned", "dataset.data_files={trial}/rows.jsonl")
ROW = b'{"instruction": "Add 1 and 2.", "input": "", "output": "3"}\n'


def photographs(trial: Trial) -> None:
    """Two classes of small pictures of noise."""
    from PIL import Image

    for part in ("train", "validation"):
        for name in CLASSES:
            folder = trial.folder / "photographs" / part / name
            folder.mkdir(parents=True)
            for number in range(PER_CLASS):
                Image.frombytes("RGB", (40, 40), os.urandom(4800)).save(folder / f"{number}.jpg", quality=90)


def one(trial: Trial) -> Path:
    """A photograph."""
    return trial.folder / "photographs" / "train" / CLASSES[0] / "3.jpg"


def huge(path: Path) -> None:
    from PIL import Image

    path.unlink()
    Image.new("1", HUGE).save(path, format="png")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def looped(path: Path) -> None:
    """The folder of the photograph holds a link to itself."""
    (path.parent / "loop").symlink_to(path.parent, target_is_directory=True)


def with_photograph(change: Callable[[Path], object]) -> Act:
    return both(photographs, lambda trial: change(one(trial)))


def remove(trial: Trial) -> None:
    one(trial).unlink()


def take_away(trial: Trial) -> None:
    (trial.folder / "photographs").rename(trial.folder / "away")


def put_back(trial: Trial) -> None:
    (trial.folder / "away").rename(trial.folder / "photographs")


def keep_and_change(trial: Trial) -> None:
    shutil.copy2(one(trial), trial.folder / "kept.jpg")
    one(trial).write_bytes(one(trial).with_name("4.jpg").read_bytes())


def restore(trial: Trial) -> None:
    shutil.copy2(trial.folder / "kept.jpg", one(trial))


def run_beside(trial: Trial) -> None:
    """Another run on the same photographs, to its end."""
    words = ("hydra.run.dir={trial}/other" if word.startswith("hydra.run") else word for word in trial.fault.words)
    trial.start(again=True, words=tuple(words)).wait()


def write(name: str, content: bytes) -> Act:
    """A file of the trial."""

    def act(trial: Trial) -> None:
        (trial.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (trial.folder / name).write_bytes(content)

    return act


class _Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


def hostile_weights(trial: Trial) -> None:
    (trial.folder / "weights").mkdir()
    content = pickle.dumps({"tok_embeddings.weight": _Hostile(trial.folder / "ran")}, protocol=2)
    (trial.folder / "weights" / "consolidated.00.pth").write_bytes(content)


_BROKEN = Fault(
    *("", "", PHOTOGRAPHS),
    mend=remove,
    says=r"^(refused|  failed): .*3\.jpg",
    lines=30,
    ends=("ok",),
)
_REFUSED = Fault("", "", RUN, ("train_vision.py",), lines=1, statuses=(), ends=None)
_ROWS = replace(_REFUSED, program=("tune_llm.py",), words=ROWS, says=r"^refused: dataset\.data_files=\S*rows\.jsonl: ")

FAULTS = (
    replace(
        _BROKEN,
        name="photograph-torn",
        what="a photograph is cut off",
        prepare=with_photograph(lambda path: path.write_bytes(path.read_bytes()[:300])),
    ),
    replace(
        _BROKEN,
        name="photograph-empty",
        what="a photograph has no bytes",
        prepare=with_photograph(lambda path: path.write_bytes(b"")),
    ),
    replace(
        _BROKEN,
        name="photograph-huge",
        what="a photograph has 20,000 x 20,000 pixels",
        prepare=with_photograph(huge),
    ),
    replace(
        _BROKEN,
        name="photograph-fifo",
        what="a photograph is a FIFO",
        prepare=with_photograph(fifo),
        lines=1,
    ),
    replace(
        _BROKEN,
        name="photograph-device",
        what="a photograph is a link to /dev/zero",
        prepare=with_photograph(endless),
        lines=1,
    ),
    replace(
        _BROKEN,
        name="symlink-loop",
        what="a folder of photographs holds a link to itself",
        prepare=with_photograph(looped),
        mend=lambda trial: (one(trial).parent / "loop").unlink(),
        says=r"^refused: .*loop",
        lines=1,
    ),
    Fault(
        "data-read-only",
        "the data set is read-only, so that nothing decoded can be stored there",
        PHOTOGRAPHS,
        prepare=both(mount("photographs", "size=8m"), photographs, remount("photographs", "ro")),
        mend=remount("photographs", "rw"),
        says=r"^refused: .*dataset\.cache",
        statuses=(),
        ends=("ok",),
        needs=root,
    ),
    Fault(
        "data-changed",
        "a photograph changes after it was trained on",
        PHOTOGRAPHS,
        prepare=both(photographs, measure_first, keep_and_change),
        says=r"^refused: the data is no longer that of the record",
        statuses=("ok",),
        ends=("ok",),
        mend=restore,
    ),
    Fault(
        "data-removed",
        "the photographs are removed in training",
        (*PHOTOGRAPHS, "dataset.cache=none"),
        inside="hold@step3",
        prepare=photographs,
        at=held,
        act=then_release(take_away),
        says=r"^  failed: rank \d: .*photographs",
        statuses=("failed",),
        ends=("ok",),
        mend=put_back,
    ),
    Fault(
        "one-cache",
        "two commands decode the same photographs at once",
        PHOTOGRAPHS,
        prepare=photographs,
        at=wrote("*/.running.json"),
        act=run_beside,
        code=0,
        statuses=("ok",),
        ends=("ok",),
        within_s=120.0,
        check=lambda trial: "the other run failed" if trial.commands[1].process.poll() else None,
    ),
    replace(
        _REFUSED,
        name="data-missing",
        what="there is no such folder",
        words=(*RUN, "dataset=images", "dataset.root=/nowhere"),
        says=r"^refused: dataset\.root=/nowhere: ",
    ),
    replace(
        _REFUSED,
        name="mnist-torn",
        what="MNIST's files are no gzip files",
        words=(*RUN, "dataset=mnist", "dataset.root={trial}/mnist"),
        prepare=both(
            *(
                write(f"mnist/MNIST/raw/{part}-{kind}-ubyte.gz", b"\x1f\x8b\x08nonsense")
                for part in ("train", "t10k")
                for kind in ("images-idx3", "labels-idx1")
            )
        ),
        says=r"^refused: dataset\.root=",
    ),
    replace(_ROWS, name="row-broken", what="a row is no JSON", prepare=write("rows.jsonl", ROW * 2 + b'{"instr\n')),
    replace(
        _ROWS,
        name="row-nested",
        what="a row is nested 100,000 times",
        prepare=write("rows.jsonl", ROW + b"[" * 100_000 + b"]" * 100_000),
    ),
    replace(
        _ROWS, name="row-incomplete", what="a row lacks a column", prepare=write("rows.jsonl", ROW + b'{"a": 1}\n')
    ),
    replace(_ROWS, name="row-binary", what="the rows are no text", prepare=write("rows.jsonl", bytes(range(256)))),
    replace(_ROWS, name="rows-empty", what="the file of rows is empty", prepare=write("rows.jsonl", b"")),
    replace(
        _ROWS,
        name="weights-hostile",
        what="unpickling the weights would run a command",
        words=(*TUNING, "model.weights={trial}/weights"),
        prepare=hostile_weights,
        says=r"model\.weights=",
        lines=None,
        statuses=None,
        check=lambda trial: "the command ran" if (trial.folder / "ran").exists() else None,
    ),
    replace(
        _ROWS,
        name="tokenizer-torn",
        what="the tokenizer's file is nonsense",
        words=(*TUNING, "tokenizer=llama3", "tokenizer.path={trial}/tokenizer.model"),
        prepare=write("tokenizer.model", b"nonsense\n" * 9),
        says=r"^refused: tokenizer\.path=",
    ),
)
