"""What the code answers, as files that a later state of the code is compared with.

    python -m tests.goldens.freeze [PART...]

Write the goldens anew: all of them, or those named (identities, compositions, analysis,
benchmarks). Only a change that is meant to alter an answer needs this.
tests/test_goldens.py computes the same and compares.

Messages are frozen as codes and facts: no golden depends on a
sentence's words but tests/goldens/messages.md.
"""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any

os.environ["MULTICARD_MESSAGES"] = "codes"  # before multicard is imported

from omegaconf import OmegaConf

from analysis import experiments
from analysis.__main__ import main as analyse

# The only names of multicard that this file needs: after a move, these lines change
from multicard import workloads
from multicard.records.text_table import escape_latex, escape_markdown
from multicard.sweep.axes import Axes
from multicard.workloads import WORKLOADS
from tests.conftest import composed
from tests.helpers import grids, records

ROOT = Path(__file__).parents[2]
GOLDENS = Path(__file__).parent
FIXTURES = ROOT / "tests" / "fixtures"
SCALES = {"full": [], "smoke": ["scale=smoke"]}
# at full scale these need a folder, which is not read here
PHOTOGRAPHS = ("layout", "loaders", "numa")
NAME = "name=golden"  # in place of the time of day
Answers = dict[str, Any]
Words = list[str]


def path(part: str) -> Path:
    """The file of a part."""
    return GOLDENS / f"{part}.json"


def read(part: str) -> Answers:
    """The frozen answers of a part."""
    return json.loads(path(part).read_text())


def dumped(content: Any, indent: str = "") -> str:
    """JSON with a line for each innermost list or value, so that a change is a line of a diff."""
    inner = indent + " "
    if isinstance(content, dict) and content:
        items = (
            f"{inner}{json.dumps(key)}: {dumped(value, inner)}" for key, value in content.items()
        )
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    nested = isinstance(content, list) and any(isinstance(value, list | dict) for value in content)
    lines = (
        isinstance(content, list)
        and len(content) > 1
        and all(isinstance(value, str) for value in content)
    )
    if nested or (lines and sum(map(len, content)) > 100):
        return (
            "[\n" + ",\n".join(inner + dumped(value, inner) for value in content) + f"\n{indent}]"
        )
    return json.dumps(content, ensure_ascii=False)


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


# Configurations


def identity(entry: str, words: Sequence[str]) -> str:
    """Eight digits, or why the configuration is refused."""
    try:
        config: Any = OmegaConf.to_object(composed(*words, entry=entry.removesuffix(".py")))
    except ValueError as error:
        return f"refused: {error}"
    return config.identity()


def sweeps() -> Iterator[tuple[str, str, list[Words]]]:
    """The entry, the name and the overrides of all cells of each experiment,
    at full scale and shrunk.
    """
    for workload in WORKLOADS:
        defaults: Any = OmegaConf.load(ROOT / "conf" / f"{workload.entry.removesuffix('.py')}.yaml")
        for name in workloads.experiments(workload):
            axes = Axes.of_experiment(name, defaults.hydra.experiment.smoke)
            for scale, words in SCALES.items():
                root = ["dataset.root=photos"] if name in PHOTOGRAPHS and scale == "full" else []
                cells = axes.cells(
                    [f"experiment={name}", *words, *root], bool(words), 1, tell=lambda _: None
                )
                yield workload.entry, f"{name} {scale}", cells


def shared(cells: Sequence[Words]) -> Words:
    """The overrides that all cells have."""
    return [word for word in cells[0] if all(word in cell for cell in cells)]


def own(cell: Words, of_all: Words) -> str:
    return " ".join(word for word in cell if word not in of_all)


def identities(known: Answers | None = None) -> Answers:
    """Experiment and scale -> the entry, the overrides of all its cells, and each cell's own with
    its identity; without those of which as many are known.
    """
    found = {}
    for entry, name, cells in sweeps():
        if len((known or {}).get(name, {"cells": ()})["cells"]) != len(cells):
            of_all = shared(cells)
            rows = [[own(cell, of_all), identity(entry, cell)] for cell in cells]
            found[name] = {"entry": entry, "all": " ".join(of_all), "cells": rows}
    return found


def added_identities() -> Answers:
    """Those of experiments that are younger than the identities frozen first, or have more cells:
    those stay as they are.
    """
    return identities(known=read("identities"))


def composition(entry: str, words: Sequence[str]) -> str:
    """What `--cfg job --resolve` prints."""
    return OmegaConf.to_yaml(composed(NAME, *words, entry=entry.removesuffix(".py")), resolve=True)


def choices() -> Iterator[tuple[str, str]]:
    """Each entry with overrides that choose, in one line or another, each option of its groups. An
    option of which others follow has a line of its own.
    """
    for workload in WORKLOADS:
        groups = workloads.groups(workload)
        alone = [group for group in ("experiment", "preset", "scale") if group in groups]
        yield from (
            (workload.entry, f"{group}={option}") for group in alone for option in groups[group]
        )
        columns = [
            [f"{group}={option}" for option in groups[group]]
            for group in groups
            if group not in alone
        ]
        yield from (
            (workload.entry, " ".join(filter(None, words))) for words in zip_longest(*columns)
        )


def compositions() -> Answers:
    """The defaults of all entries in full, and the SHA-256 of
    compositions with each option of each group.
    """
    texts = {workload.entry: composition(workload.entry, []).splitlines() for workload in WORKLOADS}
    found = {
        f"{entry} {words}": digest(composition(entry, words.split())) for entry, words in choices()
    }
    return {"defaults": texts, "sha256": found}


# Analysis

LONGEST = 6_000  # characters of a file that is kept as it is; of a longer one, its digest
EVERY_TABLE = ("", " --markdown -", " --csv -", " --latex -")
MADE = ("table2", "table3", "table5")  # experiments with printed figures: a run for each
# what claims say, in the papers' words and ours
WORDS_OF_CLAIMS = ("claim", "section", "note", "printed", "test")


def make_records(folder: Path) -> None:
    """Write sweeps of known figures beside the records of tests/fixtures."""
    shutil.copytree(FIXTURES / "records_v1", folder / "records_v1")
    for name, factor in (("before", 1.0), ("after", 1.1)):
        for index, (precision, gpus, seed) in enumerate(
            (precision, gpus, seed)
            for precision in ("fp32", "fp16")
            for gpus in (1, 2)
            for seed in range(3)
        ):
            wobble = 1 + 0.01 * ((7 * index + len(name)) % 5 - 2)
            step_s = [
                0.1 * factor / gpus * wobble * (1 + 0.05 * (number * 13 % 7 - 3))
                for number in range(100)
            ]
            record = records.vision(
                precision=precision,
                gpus=gpus,
                seed=seed,
                total_s=100 * factor / gpus * wobble,
                test_accuracy=0.99 + 0.001 * seed,
                prediction=records.prediction(error=0.02 * (index % 6 - 2)),
                step_s=records.formulas.statistics(step_s, 1),
            )
            records.write(folder / name / f"{index:02d}", record, records.steps(step_s))
    for index, method in enumerate(("lora", "qlora", "dpo", "qat")):
        step_s = [0.1 * (index + 1) * (1 + 0.04 * (number * 5 % 3 - 1)) for number in range(50)]
        statistics = records.formulas.statistics(step_s, 1)
        records.write(
            folder / "tuning" / method, records.llm(method=method, iteration_s=statistics)
        )
    for name in MADE:
        grids.write_papers(folder / "papers" / name, name)


def analysis_lines() -> list[str]:
    """The commands of `python -m analysis`, in the folder of the records."""
    every = ("records_v1", "before", "tuning", "papers")
    tables = [f"table {name} papers/{name}{form}" for name in MADE for form in EVERY_TABLE]
    return [
        *(f"list {folder} --json out.json --csv out.csv" for folder in every),
        (
            'list papers --where "gpus>=2" --sort "total_s desc" --columns gpus,precision,total_s'
            " --csv out.csv"
        ),
        *(f"best {folder} --goal {goal}" for folder in every for goal in ("time", "energy")),
        "best before --goal time --accuracy 0.99 --memory 80GB --gpus 4",
        *(f"claims {folder} --json out.json" for folder in every),
        "best before",
        "best tuning --csv -",
        "compare before after --json -",
        "compare before after",
        "compare before after --gate 5%",
        "compare before after --margin 1%",
        "compare before --by precision",
        "compare records_v1/vision records_v1/nhwc --by layout",
        "compare before tuning",
        *tables,
        *(
            f"table {name} records_v1 --all --csv -"
            for name in ("layout", "templates", "peak_memory")
        ),
        "table table4 tuning",
        "table dataset_metrics tuning",
        "table image_size before",
        "predictions before --json out.json --csv out.csv",
        "predictions tuning",
        "report before --out out.html",
        "report records_v1 --out out.html",
        "dashboard --dry-run out.json",
        "list absent",
    ]


def rounded(content: Any) -> Any:
    """Without null values, and floats with ten digits: another machine's last bits may differ."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items() if value is not None}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return float(f"{content:.10g}") if isinstance(content, float) else content


def kept(file: Path) -> Any:
    """What is frozen of a file that a command writes."""
    text = file.read_text()
    if file.suffix == ".html":  # the data that the page shows
        data = re.search(
            r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
        )
        assert data is not None
        content = {
            key: json.dumps(rounded(value), sort_keys=True)
            for key, value in json.loads(data[1]).items()
        }
        return {key: digest(text) for key, text in content.items()}
    if file.suffix == ".json":
        content = json.loads(text)
        for claim in content.get("claims", ()):
            for name in WORDS_OF_CLAIMS:
                del claim[name]
        text = json.dumps(rounded(content))
        return json.loads(text) if len(text) <= LONGEST else digest(text)
    if file.suffix == ".csv":
        table = csv.reader(io.StringIO(text))
        text = "\n".join(",".join(short(cell) for cell in row) for row in table)
    return text.splitlines() if len(text) <= LONGEST else digest(text)


def short(cell: str) -> str:
    """A cell of a table, a float with ten digits."""
    with contextlib.suppress(ValueError):
        return f"{float(cell):.10g}" if "." in cell else cell
    return cell


def analysis(lines: Sequence[str] | None = None) -> Answers:
    """Command -> exit code, what it prints and the files that it writes."""
    found = {}
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        make_records(Path())
        for line in analysis_lines() if lines is None else lines:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = analyse(shlex.split(line))
                except SystemExit as ended:
                    code = ended.code
            files = {file.name: kept(file) for file in sorted(Path().glob("out.*"))}
            for name in files:
                Path(name).unlink()
            text = untitled(out.getvalue())
            if line.startswith("claims "):
                text = without_claims(text)
            printed = {
                "out": normal(text, place),
                "err": normal(err.getvalue(), place),
                "files": files,
            }
            found[line] = {"code": code} | {key: value for key, value in printed.items() if value}
    return found


def untitled(text: str) -> str:
    """What a command printed, with the names of experiments in place of their titles,
    which are sentences.
    """
    for name in experiments.names():
        title = experiments.load_experiment(name).title.rstrip(".")
        for written in (title, escape_latex(title), escape_markdown(title)):
            text = text.replace(written, f"TITLE OF {name}")
    return text


def without_claims(text: str) -> str:
    """The notes of `claims`, below tables of what claims say: the JSON has their figures."""
    return text[text.index("[[claim.counts") :]


MACHINE = {
    r"\d+ GPUs? and \d+ cores?": "N GPUs and N cores",
    r"size_bytes=\d+": "size_bytes=N",  # of a report's page
    r"\d{4}-\d\d-\d\d[_T]\d\d[:-]\d\d[:-]\d\dZ?": "TIME",
}


def normal(text: str, *folders: str) -> list[str]:
    """The lines of what a command printed, without the paths and the figures of this machine."""
    for folder in folders:
        for name in {folder, str(Path(folder).resolve())}:
            text = text.replace(name, "FOLDER")
    text = text.replace(str(ROOT), "ROOT").replace(sys.executable, "python")
    for pattern, instead in MACHINE.items():
        text = re.sub(pattern, instead, text)
    return [line.rstrip() for line in text.splitlines()]


# Benchmarks

QUICK = ("prediction", "race --races 4")  # the same on every machine: what they draw is seeded


def benchmark(words: str) -> Answers:
    """The figures that `python -m benchmarks.WORDS` reaches, by name, with four digits."""
    line = ["nice", sys.executable, "-m", *f"benchmarks.{words} --json".split()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    found: Answers = json.loads(done.stdout)
    return {
        row: {name: _of_four_digits(figure) for name, figure in own.items()}
        for row, own in found.items()
    }


def _of_four_digits(figure: Any) -> Any:
    return float(f"{figure:.4g}") if isinstance(figure, float) else figure


def benchmarks() -> Answers:
    """Words -> the figures of the quick benchmarks."""
    return {"quick": {words: benchmark(words) for words in QUICK}}


PARTS: Mapping[str, Callable[[], Answers]] = {
    "identities": identities,
    "added_identities": added_identities,
    "compositions": compositions,
    "analysis": analysis,
    "benchmarks": benchmarks,
}


def main(names: Sequence[str]) -> None:
    """Write these parts, or all."""
    for name in names or PARTS:
        path(name).write_text(dumped(PARTS[name]()) + "\n")
        print(f"{path(name).relative_to(ROOT)}: {path(name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
