"""Words that commands and pages share."""

from multicard.records.text_table import clean

KINDS = {"vision": "training", "llm": "tuning"}  # of runs, as headings name them


def kind(run_kind: str) -> str:
    """The kind of runs as a heading names it."""
    return KINDS.get(run_kind, clean(run_kind))


def counted(number: int, noun: str) -> str:
    """The number with its noun: "1 run", "2,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
