"""Which rows are held out, by default and when asked for, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.config.placement import place
from multicard.estimate.memory import facts
from multicard.estimate.memory.facts import TextFacts
from multicard.llm import preflight, torchtune_config
from multicard.llm import workload as llm
from multicard.llm.data import held_out_rows
from multicard.llm.preflight import Inputs
from multicard.run import prepare
from multicard.sweep import as_before
from tests.conftest import composed, typed_llm
from tests.helpers.messages import refused, remedies, says

ROWS = 40
# Of `main` before rows could be held out
BEFORE = {
    ("dataset=chat",): "d205f81e",
    ("dataset=chat", "dataset.data_files=x.jsonl"): "33b4a30e",
    ("dataset=preference", "method=dpo", "dataset.data_files=x.jsonl"): "d82995f9",
    ("dataset=alpaca_cleaned", "dataset.data_files=x.jsonl"): "0641aee3",
    (): "5c7050dd",
}


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def answers(count: int, first: int = 0) -> list[dict[str, str]]:
    return [
        {"instruction": f"Say {n}.", "output": f"It is {n}."} for n in range(first, first + count)
    ]


@pytest.fixture
def data(tmp_path: Path) -> str:
    return f"dataset.data_files={write(tmp_path / 'rows.jsonl', answers(ROWS))}"


def inputs(*words: str) -> Inputs:
    return preflight.prepare(typed_llm(*words))


def numbers(*words: str) -> list[int]:
    held_out = inputs(*words).held_out
    return [] if held_out is None else held_out.numbers


def said(*words: str) -> str:
    config = typed_llm(*words)
    preflight.prepare(config)
    return " ".join(preflight.notices(config))


# ---- which rows


@pytest.mark.parametrize(
    "words",
    [
        ["seed=7"],
        ["gpus=2"],
        ["method=full", "batch_size=4", "epochs=3"],
        ["packed=true", "max_seq_len=64"],
        ["engine=trl"],
        ["dataset=chat"],
    ],
    ids=" ".join,
)
def test_the_same_rows_are_held_out_whatever_else_is_set(data: str, words: list[str]):
    usual = ["dataset=alpaca_cleaned", data, "dataset.split=0.2"]
    assert numbers(*usual, *words) == numbers(*usual) and len(numbers(*usual)) == 8


def test_rows_are_trained_on_or_held_out_and_no_row_is_lost(data: str):
    found = inputs("dataset=alpaca_cleaned", data, "dataset.split=0.2", "seed=3")
    assert found.held_out is not None and found.rows is not None
    texts = [row["output"] for row in (*found.rows, *found.held_out.rows)]
    assert sorted(texts) == sorted(row["output"] for row in answers(ROWS))
    assert [row["output"] for row in found.held_out.rows] == [
        f"It is {n}." for n in found.held_out.numbers
    ]


def test_a_part_of_the_rows_holds_out_some_of_those_that_all_hold_out(data: str):
    usual = ("dataset=alpaca_cleaned", data, "dataset.split=0.2")
    some = [numbers(*usual, "dataset.rows=20", f"seed={seed}") for seed in (0, 1)]
    assert some[0] == some[1] and len(some[0]) == 4 and {*some[0]} <= {*numbers(*usual)}
    trained = [inputs(*usual, "dataset.rows=20", f"seed={seed}").rows or [] for seed in (0, 1)]
    assert len(trained[0]) == len(trained[1]) == 16 and trained[0] != trained[1]


def test_no_row_is_drawn_twice_and_more_rows_hold_the_others():
    found = [held_out_rows.drawn(1000, count) for count in (0, 10, 900, 1000)]
    assert [len(each) for each in found] == [0, 10, 900, 1000]
    assert found[1] < found[2] < found[3] == {*range(1000)}
    # it takes no memory for those that are not drawn
    assert max(held_out_rows.drawn(10**12, 3)) > 10**10


def test_generated_rows_are_held_out_by_a_seed_of_their_own():
    first, second = (
        inputs("dataset.rows=40", "dataset.split=0.1", f"seed={seed}") for seed in (0, 1)
    )
    assert first.held_out is not None and second.held_out is not None
    assert first.held_out == second.held_out and len(first.held_out.rows) == 4
    assert first.rows is not None and second.rows is not None
    assert len(first.rows) == len(second.rows) == 36 and first.rows != second.rows


def test_rows_that_are_equal_to_trained_ones_are_counted_and_said(tmp_path: Path):
    data = f"dataset.data_files={write(tmp_path / 'rows.jsonl', answers(5) * 8)}"
    words = ("dataset=alpaca_cleaned", data, "dataset.split=0.2")
    assert inputs(*words).are_trained == [True] * 8
    assert says(said(*words), "llm.also-trained", rows=8, held_out=8)
    alone = f"dataset.data_files={write(tmp_path / 'apart.jsonl', answers(40))}"
    assert not says(said(words[0], alone, words[2]), "llm.also-trained")


def asked_twice(rows: int, prompts: int, form: str) -> list[dict[str, Any]]:
    """Rows that share so many prompts and have an answer each."""
    found = list[dict[str, Any]]()
    for n in range(rows):
        prompt, answer = f"Say {n % prompts}.", f"It is {n}."
        if form == "preference":
            found.append({"prompt": prompt, "chosen": answer, "rejected": "No."})
        elif form == "alpaca_cleaned":
            found.append({"instruction": prompt, "output": answer})
        else:
            turns = [("user", prompt), ("assistant", answer)]
            found.append({"messages": [{"role": role, "content": text} for role, text in turns]})
    return found


@pytest.mark.parametrize("form", ["preference", "alpaca_cleaned", "chat"])
@pytest.mark.parametrize(("prompts", "repeated"), [(8, 8), (39, 0), (40, 0)])
def test_held_out_rows_whose_prompts_are_trained_on_are_said(
    form: str, prompts: int, repeated: int, tmp_path: Path
):
    """Pairs often come several to a prompt; one prompt of 40 that comes twice is not worth a line."""
    rows = write(tmp_path / "rows.jsonl", asked_twice(40, prompts, form))
    words = [f"dataset={form}", f"dataset.data_files={rows}", "dataset.split=0.2"]
    words += ["method=dpo"] if form == "preference" else []
    assert inputs(*words).are_trained == [False] * 8
    if repeated:
        assert says(said(*words), "llm.prompts-trained", rows=repeated, held_out=8)
    else:
        assert not says(said(*words), "llm.prompts-trained")


def test_a_text_that_is_learnt_as_a_whole_has_no_prompt(tmp_path: Path):
    rows = write(tmp_path / "rows.jsonl", [{"text": f"Once {n % 4} {n}."} for n in range(40)])
    words = ("dataset=chat", "dataset.loss=all", f"dataset.data_files={rows}", "dataset.split=0.2")
    assert not says(said(*words), "llm.prompts-trained")


def test_the_embedded_tokenizer_is_as_without_a_split(data: str):
    with_split, without = (
        inputs("dataset=alpaca_cleaned", data, f"dataset.split={share}") for share in (0.2, 0)
    )
    assert with_split.vocabulary == without.vocabulary
    assert {*(with_split.token_ranks or [])} == {*(without.token_ranks or [])}


def test_predicted_memory_knows_the_longest_row_that_is_held_out(tmp_path: Path):
    rows, (held_out, *_) = answers(ROWS), sorted(held_out_rows.drawn(ROWS, 4))
    rows[held_out]["output"] = "It is a long answer. " * 40
    words = ("dataset=alpaca_cleaned", f"dataset.data_files={write(tmp_path / 'rows.jsonl', rows)}")
    sizes = [facts.sizes(typed_llm(*words, f"dataset.split={share}")) for share in (0, 0.1)]
    assert [size.evaluates for size in sizes if isinstance(size, TextFacts)] == [False, True]
    assert len({size.length for size in sizes if isinstance(size, TextFacts)}) == 1


# ---- the default, and what was measured before it


@pytest.mark.parametrize(
    ("words", "share"),
    [
        (["dataset=chat"], 0.1),
        (["dataset=preference", "method=dpo"], 0.1),
        (["dataset=grammar", "dataset.data_files=x.jsonl"], 0.1),
        (["dataset=grammar"], None),
        (["dataset=synthetic"], None),
        (["dataset=chat", "dataset.split=0"], None),
        (["dataset=chat", "dataset.split=null"], None),
        (["dataset=chat", "dataset.split=0.3"], 0.3),
        (["dataset=chat", "dataset.test_files=x.jsonl"], None),
        (["experiment=table5", "dataset=chat"], None),
        (["experiment=engines", "dataset=grammar", "dataset.data_files=x.jsonl"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_tenth_of_ones_own_rows_is_held_out(words: list[str], share: float | None):
    assert typed_llm(*words).dataset.split == share


@pytest.mark.parametrize(("words", "identity"), BEFORE.items(), ids=str)
def test_a_run_that_holds_nothing_out_has_the_identity_that_it_had(
    words: tuple[str, ...], identity: str
):
    assert typed_llm(*words, "dataset.split=0").identity() == identity
    shares = {typed_llm(*words, f"dataset.split={share}").identity() for share in (0.1, 0.2)}
    assert len(shares | {identity}) == 3


def record(folder: Path, words: tuple[str, ...], older: bool) -> None:
    """A record of a run as it is now, or as one that knew of no held-out rows."""
    dataset = {"name": "chat", "data_files": "x.jsonl", "rows": None}
    config = {"dataset": dataset if older else dataset | {"split": 0.1, "test_files": None}}
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(
        json.dumps({"kind": "llm", "status": "ok", "config": config})
    )


@pytest.mark.parametrize("older", [True, False])
def test_a_sweep_whose_records_hold_nothing_out_goes_on_so(tmp_path: Path, older: bool):
    words = ("dataset=chat", "dataset.data_files=x.jsonl")
    record(tmp_path / "sweep" / "lr=1-12345678", words, older)
    assert as_before.trains_on_all_rows(typed_llm(*words), tmp_path / "sweep") is older
    assert not as_before.trains_on_all_rows(typed_llm(*words), tmp_path / "other")
    assert not as_before.trains_on_all_rows(
        typed_llm(*words, "dataset.split=0.1"), tmp_path / "sweep"
    )
    assert not as_before.trains_on_all_rows(typed_llm(), tmp_path / "sweep")
    cfg = composed(*words, entry="tune_llm")
    as_before.leave_split_out(cfg)
    assert prepare.typed(llm.WORKLOAD, cfg).identity() == BEFORE[words]


@pytest.mark.parametrize(
    "words", [["dataset.rows=4"], ["dataset.rows=10", "batch_size=10"]], ids=" ".join
)
def test_of_too_few_rows_none_is_held_out_by_default(data: str, words: list[str]):
    usual = ("dataset=alpaca_cleaned", data, *words)
    found = inputs(*usual)
    assert found.held_out is None and len(found.rows or ()) == int(words[0].rpartition("=")[2])
    assert says(said(*usual), "llm.too-few-to-hold-out", rows=len(found.rows or ()))


# ---- refusals


@pytest.mark.parametrize(
    ("words", "code", "key"),
    [
        (["dataset.split=1"], "config.text-split", "dataset.split"),
        (["dataset.split=-0.1"], "config.text-split", "dataset.split"),
        (["dataset.split=nan"], "config.text-split", "dataset.split"),
        (["dataset.split=many"], "config.text-split", "dataset.split"),
        (
            ["dataset=chat", "dataset.split=0.1", "dataset.test_files=x"],
            "config.split-and-test-files",
            "dataset.split",
        ),
        (["dataset=chat", "dataset.test_files=[]"], "config.data-files", "dataset.test_files"),
        (["eval_steps=4"], "config.nothing-held-out", "eval_steps"),
        (["target_loss=2.0"], "config.nothing-held-out", "target_loss"),
        (
            ["dataset.split=0.1", "stop_at_target=true"],
            "config.target-loss-missing",
            "stop_at_target",
        ),
        (["dataset.split=0.1", "target_loss=0"], "config.above", "target_loss"),
        (["dataset.split=0.1", "eval_steps=0"], "config.least", "eval_steps"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_what_cannot_be_held_out_or_measured_is_refused(words: list[str], code: str, key: str):
    with refused(code, key=key) as caught:
        typed_llm(*words)
    for remedy in remedies(caught.value):
        changed = {word.partition("=")[0]: word for word in (*words, *remedy.split())}
        typed_llm(*changed.values())


@pytest.mark.parametrize(("share", "lacking"), [(0.1, "measure"), (0.9, "train")])
def test_a_share_that_leaves_no_row_is_refused(data: str, share: float, lacking: str):
    words = ["dataset=alpaca_cleaned", data, "dataset.rows=4"]
    with refused("llm.split-empty", key="dataset.split", rows=4, lacking=lacking) as caught:
        inputs(*words, f"dataset.split={share}")
    offered = remedies(caught.value)
    assert len(offered) == 2
    for remedy in offered:
        assert inputs(*words, remedy).rows


def test_a_share_that_leaves_less_than_a_step_is_refused_with_rows_that_fill_one(data: str):
    words = ["dataset=alpaca_cleaned", data, "dataset.split=0.5", "batch_size=8"]
    with refused("llm.rows-below-a-step", key="dataset.rows", needed=8) as caught:
        inputs(*words, "dataset.rows=10")
    (remedy,) = remedies(caught.value)
    assert len(inputs(*words, remedy).rows or ()) == 8


# ---- files to measure on


def test_files_to_measure_on_hold_out_their_rows_alone(tmp_path: Path, data: str):
    tests = write(tmp_path / "tests.jsonl", answers(3, first=100))
    words = ("dataset=alpaca_cleaned", data, f"dataset.test_files={tests}")
    found = inputs(*words, "dataset.rows=20")
    assert (
        found.held_out is not None
        and found.held_out.numbers == [0, 1, 2]
        and len(found.rows or ()) == 20
    )
    assert [row["output"] for row in found.held_out.rows] == [
        "It is 100.",
        "It is 101.",
        "It is 102.",
    ]
    names = [
        [name for name, _ in preflight.data_parts(typed_llm(*own))["dataset"]]
        for own in (words, words[:2])
    ]
    assert names == [["rows", "test_rows"], ["rows"]]


def test_of_a_folder_the_split_to_test_on_is_read(tmp_path: Path, data: str):
    folder = tmp_path / "splits"
    folder.mkdir()
    for name, first in (("train", 0), ("test", 100), ("validation", 200)):
        write(folder / f"{name}.jsonl", answers(3, first))
    found = inputs("dataset=alpaca_cleaned", data, f"dataset.test_files={folder}")
    assert found.held_out is not None and found.held_out.rows[0]["output"] == "It is 200."
    alone = tmp_path / "alone"
    alone.mkdir()
    write(alone / "train.jsonl", answers(3))
    with refused("llm.data-folder-splits", key="dataset.test_files", splits=["train"]) as caught:
        inputs("dataset=alpaca_cleaned", data, f"dataset.test_files={alone}")
    (remedy,) = remedies(caught.value)
    assert inputs("dataset=alpaca_cleaned", data, remedy).held_out is not None


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        ([{"question": "One?", "reply": "Yes."}], "llm.test-rows-unlike", []),
        ([{"instruction": "One?"}], "llm.test-rows-unlike", []),
        ([{"messages": []}], "llm.test-rows-unlike", ["dataset=chat"]),
        ([], "llm.no-test-rows", []),
        (None, "llm.data-file-absent", []),
    ],
)
def test_files_that_are_not_read_as_the_others_are_refused(
    tmp_path: Path, data: str, rows: list[Any] | None, code: str, words: list[str]
):
    path = tmp_path / "tests.jsonl"
    if rows is not None:
        write(path, rows)
    own = words or ["dataset=alpaca_cleaned"]
    with refused(code, key="dataset.test_files", value=str(path)) as caught:
        inputs(*own, data, f"dataset.test_files={path}")
    for remedy in remedies(caught.value):
        assert inputs(*own, data, *remedy.split()).held_out is not None


def test_what_is_written_for_the_ranks(tmp_path: Path, data: str):
    """The rows apart, and torchtune's own configuration without them."""
    config = typed_llm("dataset=alpaca_cleaned", data, "dataset.split=0.2")
    cfg = torchtune_config.write(config, place(config, 0), tmp_path / "run")
    lines = torchtune_config.held_out_file(tmp_path / "run").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == numbers(
        "dataset=alpaca_cleaned", data, "dataset.split=0.2"
    )
    assert len((tmp_path / "run" / "inputs" / "rows.jsonl").read_text().splitlines()) == ROWS - 8
    assert "held_out" not in (tmp_path / "run" / "torchtune.yaml").read_text()
    own = torchtune_config.held_out_rows(
        cfg | {"dataset": {**cfg["dataset"], "packed": True}}, tmp_path / "run"
    )
    assert own["packed"] is False and own["builder"] == cfg["dataset"]["builder"]
