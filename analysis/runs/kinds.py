"""The kinds of runs, each declared once: what the analysis must know of one beside its record."""

from dataclasses import dataclass

from analysis.runs.columns import STEPS


@dataclass(frozen=True)
class Kind:
    """How runs of a kind are read.

    title: what headings call them. entry: the script that measures them.
    work: columns that say what work was done; all other keys are ways to do it.
    setting: columns by which a claim's verdict names what was measured.
    package: whose version matters beside torch's and CUDA's.
    rest: what a step is beside its known phases.
    curve: along which training losses are drawn, "epoch" or "step".
    to_sweep: keys to vary next, where a step's phases do not say which.
    limit: the words that have a run say what limits it, what they do to it, and what they show.
    """

    title: str
    entry: str
    work: tuple[str, ...]
    setting: tuple[str, ...]
    package: str
    rest: str
    curve: str = "epoch"
    to_sweep: tuple[str, ...] = ()
    limit: tuple[str, str, str] = ("diagnose=true", "diagnosed", "steps with one cost removed at a time")


KINDS = {
    "vision": Kind(
        "training",
        "train_vision.py",
        ("dataset", "model", "image_size", "epochs", "target_accuracy", "stop_at_target", "scale"),
        ("dataset", "dataset.image_size", "model", "epochs", "batch_size"),
        "torchvision",
        "what the slowest rank took more than the mean, and what lies between phases",
    ),
    "llm": Kind(
        "tuning",
        "tune_llm.py",
        ("dataset", "model", "template", "tokenizer", "rows", "weights", "epochs", "max_seq_len", "scale"),
        ("model", "dataset", "template", "method", "precision", "epochs", "batch_size"),
        "torchtune",
        "torchtune's recipes compute in it; apart from it they tell the wait for a batch alone",
        curve="step",
        to_sweep=("method", "batch_size"),
    ),
    "script": Kind(
        "script",
        "measure_script.py",
        ("script", "words", STEPS, "scale"),  # arguments may be anything: they count as ways
        ("script",),
        "torch",
        "all but the wait for batches",
        curve="step",
        limit=("profile=kineto profile.window=start", "profiled", "the calls of its training"),
    ),
}
