"""Every command of `analysis` on records in which a key became anything: read,
or left out in a line that names it.
"""

import copy
import json
import random
import re
from collections.abc import Iterator
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.figures import vega
from analysis.runs import load
from multicard.llm.data import row_sources
from multicard.observe.profiles import metrics as profiles
from multicard.records import run_folder
from multicard.records.json_values import readable
from multicard.records.schema_environment import Environment
from tests.helpers import records
from tests.helpers.messages import says

FIXTURES = Path(__file__).parents[1] / "fixtures" / "records_v1"  # measured by an early version
GONE = "gone"  # instead of a value: the key is removed
# a kind of mutation each
VALUES: list[Any] = [None, "\x1b[2J\n\u202e", 10**30, -0.5, [["a", {"b": [1]}]], GONE]
Place = tuple[str | int, ...]


def profiled(**changes: Any) -> dict[str, Any]:
    """A training run's record with every key that one may have."""
    rows = {
        ("api", "cudaLaunchKernel"): 0.1,
        ("copy", "memcpy Host-to-Device"): 0.1,
        ("phase", "forward"): 0.3,
    }
    measured: dict[str, Any] = {
        "saves_s": {"input": 0.1},
        "saves_spread_s": {"input": 0.1},
        "step_s": {"whole": 0.1},
    }
    diagnosis = {
        "bound": "input",
        "sentence": "The input.",
        **measured,
        "spread": 0.1,
        "rounds_s": {"whole": [0.1]},
    }
    own = {
        "profile": records.profile([rows] * 2, [0.1, 0.2]),
        "diagnosis": diagnosis,
        "gpu": records.gpu(by="other"),
    }
    record = records.vision(gpus=2, epochs=3, **changes) | own
    record["config"]["profile"] = {"name": "kineto"}
    return record | {"prediction": records.prediction(fits="yes")}


def whole() -> dict[str, dict[str, Any]]:
    measured = {
        path.parent.parent.name: json.loads(path.read_text())
        for path in sorted(FIXTURES.glob("*/*/result.json"))
    }
    cause = {"kind": "exception", "message": "an error", "rank": 0, "log_tail": ["a line"]}
    failed = records.vision(precision="bf16", status="failed", cause=cause)
    return measured | {
        "all": profiled(),
        "llm": records.llm(prediction=records.prediction()),
        "failed": failed,
    }


WHOLE = whole()
OTHERS = {
    "one": records.vision(epochs=3),
    "fp64": profiled(precision="fp64"),
    "llm2": records.llm(gpus=2),
}
# phases of nobody's
OTHERS["odd"] = records.vision(gpus=4, phases_s={"": 1e17, "sleep": -1.0, "forward": 0.1})
ENVIRONMENT = records.environment()


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """The keys of a record, and the first and last item of each list."""
    ends = sorted({0, len(value) - 1}) if isinstance(value, list) and value else ()
    for key in value if isinstance(value, dict) else ends:
        yield (*at, key)
        yield from places(value[key], (*at, key))


def mutated(record: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    record = copy.deepcopy(record)
    holder = reduce(getitem, place[:-1], record)
    if value is GONE:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return record


def draw_places(value: Any, count: int, seed: int) -> list[Place]:
    return random.Random(seed).sample(list(places(value)), count)


@pytest.mark.slow
def test_every_command_survives_mutations(tmp_path: Path, monkeypatch, capsys):
    """Each kind of mutation at three places of each kind of record,
    and in the environment beside it.
    """
    # figures are made whole, and not drawn
    monkeypatch.setattr(
        vega, "save", lambda figure, path: json.dumps(readable(figure.spec), allow_nan=False)
    )
    root, steps = tmp_path, records.steps([0.1 + 0.01 * (step % 4) for step in range(20)])
    for name, record in (WHOLE | OTHERS).items():
        records.write(root / "whole" / name, record, steps)
    chosen = list(product(WHOLE, VALUES))
    for number, (name, value) in enumerate(chosen):
        (elsewhere,) = draw_places(ENVIRONMENT, 1, number)
        for place in draw_places(WHOLE[name], 3, number):
            folder = root / "mutated" / f"{number}-{'.'.join(map(str, place))}"
            environment = mutated(ENVIRONMENT, elsewhere, value)
            records.write(folder, mutated(WHOLE[name], place, value), steps, environment)
    found = load.read_runs([root / "whole", root / "mutated"])
    assert len(found.runs) > len(WHOLE | OTHERS) and len(found.skipped) > 10
    for skipped in found.skipped:
        assert skipped.folder.parent.name == "mutated"
        if not says(skipped.why, "runs.copy"):
            assert re.search(r"\$|nested|field `(kind|schema_version)`|newer", skipped.why), (
                skipped.why
            )
    both = [str(root / "whole"), str(root / "mutated")]
    out = str(root / "out")
    for words in (
        [
            "list",
            *both,
            "--where",
            "total_s > 1 or gpus = 2",
            "--sort",
            "total_s desc, gpus",
            "--csv",
            f"{out}.csv",
        ],
        ["best", "--goal", "time", "--accuracy", "0.1", *both],
        ["compare", *both, "--common", "--mix", "--gate", "5%"],
        ["table", "table2", *both, "--all"],
        ["predictions", *both, "--json", f"{out}.json", "--csv", f"{out}.csv"],
        ["claims", *both, "--json", f"{out}.json"],
        ["figure", "all", *both, "--all", "--out", out],
        ["figure", "losses", *both, "--out", out],
        ["report", *both, "--out", f"{out}.html"],
    ):
        ended, printed = main(words), capsys.readouterr()
        assert printed.err == "" and (ended == 0 or words[0] == "compare"), (words[0], printed.err)
        assert "\x1b" not in printed.out and "\u202e" not in printed.out


def test_a_key_that_its_kind_of_run_lacks_counts_for_nothing(tmp_path: Path):
    records.write(tmp_path / "a", records.llm() | {"phases_s": "broken", "input": [1]})
    wrong: dict[str, Any] = {"phases_s": {"data": "long"}, "test_accuracy": 1.5, "total_s": 1e19}
    for key, value in wrong.items():
        records.write(tmp_path / key, records.vision() | {key: value})
    refused = records.vision(status="refused")
    records.write(tmp_path / "refused", refused | {"axes": refused["axes"] | {"gpus": "two"}})
    found = load.read_runs([tmp_path])
    assert [run["kind"] for run in found.runs] == ["llm"]
    why = {skipped.folder.name: skipped.why for skipped in found.skipped}
    assert set(why) == {*wrong, "refused"} and "$.axes.gpus" in why["refused"]
    assert all(f"$.{key}" in why[key] for key in wrong)


def test_nested_json_is_one_line_wherever_it_stands(tmp_path: Path):
    nested = "[" * 100_000 + "]" * 100_000
    good, bad = (
        records.write(tmp_path / "runs" / name, records.vision()) for name in ("good", "bad")
    )
    (good / "environment.json").write_text(f'{{"python": {nested}}}')
    bad = bad / "result.json"
    bad.write_text(bad.read_text().replace('"config": {', f'"config": {{"odd": {nested}, ', 1))
    found = load.read_runs([tmp_path / "runs"])
    assert [run.environment() for run in found.runs] == [Environment()]
    (skipped,) = found.skipped
    assert skipped.folder == bad.parent and "broken" in skipped.why
    assert run_folder.read_json(bad) is None
    for name in ("rows.json", "rows.jsonl"):
        (tmp_path / name).write_text(nested)
        with pytest.raises(ValueError, match=r"dataset\.data_files.*nested"):
            row_sources.read_file(str(tmp_path / name))
    (tmp_path / "trace.json").write_text(f'{{"a": {nested}, "traceEvents": []}}')
    with pytest.raises(ValueError, match=r"trace\.json.*(nested|recursion)"):
        profiles.read_profile([tmp_path / "trace.json"])
