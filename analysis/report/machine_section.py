"""What the runs were measured on, and the marks that they carry."""

from collections import Counter
from collections.abc import Iterator, Sequence

from analysis.report.blocks import Facts, Section
from analysis.runs import grouping
from analysis.runs.columns import MARKS
from analysis.runs.details import DetailedRun
from analysis.runs.load import Run
from multicard.config.job import count
from multicard.records.schema_environment import Cpu
from multicard.records.text_table import clean, in_bytes

MOST_VALUES = 8  # of a fact
PACKAGES = ("torch", "torchvision", "timm", "torchtune", "torchao", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")


def warnings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Each mark of the runs, with how many have it and its meaning."""
    lines = []
    for mark in MARKS:
        count = sum(bool(run[mark.column]) for run in runs)
        if count:
            every = "The run" if len(runs) == 1 else f"All {len(runs):,} runs"
            share = every if count == len(runs) else f"{count:,} of {len(runs):,} runs"
            lines.append((mark.sign, f"{share}: {mark.meaning}"))
    return lines


def section(runs: Sequence[DetailedRun]) -> Section:
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in _facts(run):
            if value is not None:
                rows.setdefault(name, {})[clean(str(value))] = None
    facts = []
    for name, values in rows.items():
        rest = [f"and {len(values) - MOST_VALUES} more"] * (len(values) > MOST_VALUES)
        facts.append((name, [*list(values)[:MOST_VALUES], *rest]))
    question = "What were the figures measured on? They hold for this hardware, these versions and this code."
    return Section("machine", "Machine and code", question, [Facts(facts)])


def _facts(run: DetailedRun) -> Iterator[tuple[str, str | None]]:
    environment, cpu = run.surroundings, run.surroundings.cpu or Cpu()
    gpus, packages = environment.gpus, environment.packages
    yield "Computed on", "CPU ranks" if run["device"] == "cpu" else None
    if gpus:
        sizes = sorted({in_bytes(gpu.memory_bytes) for gpu in gpus if gpu.memory_bytes is not None})
        names = sorted({str(gpu.name) for gpu in gpus})
        yield "GPUs", f"{len(gpus)} x {', '.join(names)}" + (f", {', '.join(sizes)} each" if sizes else "")
    yield from (("Driver", gpu.driver) for gpu in gpus)
    known = (environment.topology or {}).get("links")
    links = [link.get("link") for link in (known if isinstance(known, list) else ()) if isinstance(link, dict)]
    counts = Counter(str(link or "an unknown path") for link in links)  # as nvidia-smi names them: "6 pairs by NV18"
    yield "Links", ", ".join(f"{count(pairs, 'pair')} by {link}" for link, pairs in counts.items()) or None
    yield "CPU", f"{cpu.model}, {cpu.cores_online or '?'} cores" if cpu.model is not None else None
    yield "Memory", in_bytes(cpu.memory_bytes) if cpu.memory_bytes is not None else None
    yield "Host", run["hosts"]
    yield "Commit", grouping.commit(run)
    versions = [f"{name} {packages[name]}" for name in PACKAGES if packages.get(name) is not None]
    yield "Versions", ", ".join([*versions, f"Python {environment.python or '?'}"]) if versions else None
