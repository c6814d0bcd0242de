"""The options of tune_llm.py: all compose, and what cannot work is refused by its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.llm import preflight, torchtune_config
from multicard.llm.methods import METHODS
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused

PACKED = ("packed=true", "max_seq_len=512")
Case = tuple[list[str], str, dict[str, Any]]  # words, and the code, key and facts of their refusal
# Refused by the key of the word
ALONE = {
    "precision=tf32": "config.tuning-precision",
    "max_seq_len=0": "config.least",
    "max_steps=0": "config.least",
    "skip_steps=-1": "config.least",
    "gradient_accumulation_steps=0": "config.least",
    "dataset.rows=0": "config.least",
    "model.num_heads=3": "config.model-heads",
    "model.num_kv_heads=3": "config.model-kv-heads",
    "model.num_layers=0": "config.least",
    "method.lora_rank=0": "config.least",
    "method.lora_dropout=1": "llm.lora-dropout",
    "tokenizer.vocab_size=100": "config.tokenizer-vocab-size",
}
SHARDED, ADAPTED = "custom_sharded_layers", "method.apply_lora_to_output"
REFUSED: list[Case] = [
    *(([word], code, {"key": word.partition("=")[0]}) for word, code in ALONE.items()),
    (
        ["precision=fp16", "method=qat"],
        "config.tuning-precision",
        {"key": "precision", "value": "fp16"},
    ),
    (["recipe=single_device", "gpus=2"], "llm.recipe-of-one-gpu", {"key": "recipe", "gpus": 2}),
    (
        ["recipe=single_device", "method=qat"],
        "llm.no-recipe-of-one-gpu",
        {"key": "recipe", "method": "qat"},
    ),
    (["recipe=distributed", "method=qlora"], "llm.nf4-distributed-alone", {"key": "recipe"}),
    (["compile=true", "method=qat"], "llm.recipe-compile", {"key": "compile", "method": "qat"}),
    (
        ["compile=true", "method=dpo", "gpus=2"],
        "llm.recipe-compile",
        {"key": "compile", "method": "dpo"},
    ),
    (
        ["packed=true", "method=dpo", "max_seq_len=512"],
        "llm.packed-pairs",
        {"key": "packed", "method": "dpo"},
    ),
    (["packed=true"], "config.packed-unbounded", {"key": "packed"}),
    (
        ["optimizer_in_bwd=true"],
        "llm.recipe-optimizer-in-bwd",
        {"key": "optimizer_in_bwd", "method": "lora"},
    ),
    (
        ["optimizer_in_bwd=true", "method=full", "gradient_accumulation_steps=2"],
        "llm.accumulation-in-bwd",
        {"key": "gradient_accumulation_steps", "value": 2},
    ),
    (
        ["warmup_steps=3", "method=qat"],
        "llm.recipe-warmup",
        {"key": "warmup_steps", "value": 3, "method": "qat"},
    ),
    (
        ["max_seq_len=5000"],
        "config.sequence-too-long",
        {"key": "max_seq_len", "value": 5000, "most": 4096},
    ),
    (["max_seq_len=1"], "config.least", {"key": "max_seq_len", "value": 1, "least": 2}),
    (["dataset=samsum", "dataset.rows=0"], "config.least", {"key": "dataset.rows"}),
    (
        ["dataset=samsum", "template=grammar"],
        "llm.template-unfit",
        {"key": "template", "value": "grammar", "dataset": "samsum", "fitting": ["summarize"]},
    ),
    (
        ["dataset=slimorca", "template=grammar"],
        "llm.template-unfit",
        {
            "key": "template",
            "value": "grammar",
            "dataset": "slimorca",
            "fitting": [None, "instruct"],
        },
    ),
    (
        ["custom_sharded_layers=[layers]"],
        "config.sharded-layers",
        {"key": SHARDED, "value": ["layers"]},
    ),
    (["custom_sharded_layers=[output,output]"], "config.sharded-layers", {"key": SHARDED}),
    (
        ["custom_sharded_layers=[output]", "model=llama3_2_1b"],
        "llm.tied-sharded-layers",
        {"key": SHARDED, "value": ["output"]},
    ),
    (
        ["dataset=samsum", "method=dpo"],
        "llm.dataset-without-pairs",
        {"key": "dataset", "value": "samsum"},
    ),
    (
        ["dataset=preference"],
        "llm.dataset-of-pairs",
        {"key": "dataset", "method": "lora", "others": ["dpo"]},
    ),
    (["method.lora_attn_modules=[]"], "llm.no-adapted-layers", {"key": "method.lora_attn_modules"}),
    (
        ["method.lora_attn_modules=[x]"],
        "llm.unknown-layers",
        {"key": "method.lora_attn_modules", "value": ["x"]},
    ),
    (
        ["method.single_device=x"],
        "llm.no-such-recipe",
        {"key": "method.single_device", "value": "x"},
    ),
    (["method=dpo", "method.beta=0"], "config.above", {"key": "method.beta"}),
    (["tokenizer=llama3"], "config.tokenizer-llama3-path", {"key": "tokenizer.path"}),
    (["tokenizer=qwen2_5"], "config.tokenizer-qwen-path", {"key": "tokenizer.path"}),
    (
        ["tokenizer=qwen2_5", "tokenizer.path=x"],
        "config.tokenizer-qwen-merges",
        {"key": "tokenizer.merges_file"},
    ),
    (["model=llama3_2_1b", f"{ADAPTED}=true"], "llm.tied-output-adapter", {"key": ADAPTED}),
    (
        ["model=qwen2_5_tiny", "method=qlora"],
        "llm.nf4-without-adapters",
        {"key": "method", "model": "qwen2_5_tiny"},
    ),
]


TINY = dict.fromkeys(
    ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.output_proj", "mlp.w1", "mlp.w3"), 256
)
TINY["mlp.w2"] = 768
QLORA_OF_QWEN = ["method=qlora", "method.lora_attn_modules=[q_proj,k_proj,v_proj,output_proj]"]
QWENS_TOKENIZER = ["model=qwen2_5_tiny", "tokenizer=qwen2_5", "tokenizer.merges_file=x"]


def write_rows(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"dataset.data_files={path}"


# Files that the data cannot be read from; {} is a folder with the files of the cases
FILES: list[tuple[list[str], str, str, dict[str, Any]]] = [
    (["dataset=samsum"], "/none.jsonl", "llm.data-file-absent", {}),
    (["dataset=samsum"], "/nothing", "llm.data-folder-empty", {}),
    (["dataset=samsum"], "/rows.txt", "llm.data-file-suffix", {}),
    (["dataset=samsum"], "/empty.jsonl", "llm.no-rows", {}),
    (["dataset=samsum"], "/cut.jsonl", "llm.data-file-unread", {}),
    (["dataset=samsum"], "/bytes.jsonl", "llm.data-file-unread", {}),
    (["dataset=samsum"], "/cut.parquet", "llm.data-file-unread", {}),
    (["dataset=samsum"], "/object.json", "llm.data-file-unread", {}),
    (
        ["dataset=samsum"],
        "/pairs.jsonl",
        "llm.row-columns",
        {
            "row": 1,
            "missing": ["dialogue", "summary"],
            "reader": "template=summarize",
            "found": ["input", "output"],
        },
    ),
    (["dataset=grammar"], "/null.jsonl", "llm.row-no-text", {"row": 2, "columns": ["output"]}),
    (["dataset=grammar"], "/numbers.jsonl", "llm.row-no-object", {"row": 1}),
    (["dataset=slimorca"], "/unanswered.jsonl", "llm.row-pair", {"row": 1}),
    (
        ["dataset=slimorca", "template=instruct"],
        "/turns.jsonl",
        "llm.row-turns",
        {"row": 1, "turns": 4, "reader": "template=instruct"},
    ),
    (
        ["dataset=preference", "method=dpo"],
        "/pairs.jsonl",
        "llm.row-columns",
        {"row": 1, "missing": ["chosen", "rejected"]},
    ),
    (
        ["dataset=preference", "method=dpo"],
        "/unanswered.jsonl",
        "llm.row-no-answer",
        {"row": 1, "column": "chosen"},
    ),
]
PATH, WEIGHTS, GROUPS = "tokenizer.path", "model.weights", "method.groupsize"


# Refused once rows, tokenizer and sizes are known, still before any model
UNFIT: list[Case] = [
    (
        ["dataset=preference", "method=dpo"],
        "llm.no-data-source",
        {"key": "dataset", "value": "preference"},
    ),
    *(
        (
            [*words, f"dataset.data_files={{}}{file}"],
            code,
            {"key": "dataset.data_files", "value": f"{{}}{file}"} | facts,
        )
        for words, file, code, facts in FILES
    ),
    (
        ["dataset=grammar", "dataset.data_files={}/pairs.jsonl", "dataset.rows=9"],
        "llm.few-rows",
        {"key": "dataset.rows", "value": 9, "available": 2},
    ),
    (
        ["dataset.rows=3", "gpus=2"],
        "llm.rows-below-a-step",
        {"key": "dataset.rows", "value": 3, "needed": 4},
    ),
    (
        ["method=qat", "method.groupsize=512"],
        "llm.groupsize",
        {"key": GROUPS, "value": 512, "divisible": 256, "uneven": TINY},
    ),
    (
        ["method=qat", "model.intermediate_dim=700"],
        "llm.groupsize",
        {"key": GROUPS, "value": 256, "uneven": {"mlp.w2": 700}},
    ),
    (["method=qlora", "gpus=4"], "llm.nf4-blocks", {"key": "method", "block": 16384, "ranks": 4}),
    (["model.vocab_size=300"], "llm.small-vocabulary", {"key": "model.vocab_size", "value": 300}),
    (
        ["tokenizer=llama3", "tokenizer.path={}/rows.txt"],
        "llm.tokenizer-tokens",
        {"key": PATH, "value": "{}/rows.txt", "held": 1, "tokens": 128000},
    ),
    (
        ["tokenizer=llama3", "tokenizer.path={}/none"],
        "llm.tokenizer-absent",
        {"key": PATH, "value": "{}/none"},
    ),
    (["model.weights={}/none"], "llm.weights-absent", {"key": WEIGHTS, "value": "{}/none"}),
    (["model.weights={}"], "llm.no-weights", {"key": WEIGHTS, "value": "{}"}),
    (
        ["model.weights={}/broken"],
        "llm.weights-cut-off",
        {"key": WEIGHTS, "value": "{}/broken", "file": "model.safetensors"},
    ),
    (["model.weights={}/meta"], "llm.no-weights", {"key": WEIGHTS, "value": "{}/meta"}),
    (["model=qwen2_5_0_5b", "method=qat"], "llm.groupsize", {"key": GROUPS, "value": 256}),
    (
        ["model=qwen2_5_0_5b", *QLORA_OF_QWEN, "gpus=2"],
        "llm.nf4-blocks",
        {"key": "method", "ranks": 2},
    ),
    (
        [*QWENS_TOKENIZER, "tokenizer.path={}/none"],
        "llm.tokenizer-absent",
        {"key": PATH, "value": "{}/none"},
    ),
    (
        [*QWENS_TOKENIZER, "tokenizer.path={}/rows.txt"],
        "llm.tokenizer-tokens",
        {"key": PATH, "value": "{}/rows.txt", "held": 0, "tokens": 151643},
    ),
    (
        [*QWENS_TOKENIZER, "tokenizer.path={}/few.json"],
        "llm.tokenizer-tokens",
        {"key": PATH, "held": 1, "tokens": 151643},
    ),
]


ENDS = b"cos\n_exit\n(I3\ntR."  # pickled: whoever reads it ends at once


@pytest.fixture
def unfit(tmp_path: Path) -> Path:
    (tmp_path / "rows.txt").write_text("some text\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "few.json").write_text('{"a": 0}')
    (tmp_path / "cut.jsonl").write_text('{"dialogue": "a", "summary": "b"}\n{"dialogue": "a", "su')
    (tmp_path / "bytes.jsonl").write_bytes(bytes(range(256)))
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut off")
    write_rows(
        tmp_path / "pairs.jsonl", {"input": "a", "output": "b"}, {"input": "c", "output": "d"}
    )
    turns = [{"from": who, "value": "x"} for who in ("human", "gpt", "human", "gpt")]
    write_rows(tmp_path / "turns.jsonl", {"conversations": turns})
    write_rows(tmp_path / "numbers.jsonl", 1, 2)
    (tmp_path / "object.json").write_text('{"a": {"input": "a"}}')
    (tmp_path / "nothing").mkdir()
    asked = [{"role": "user", "content": "Q"}]
    write_rows(tmp_path / "unanswered.jsonl", {"chosen": asked, "rejected": asked})
    write_rows(
        tmp_path / "null.jsonl", {"input": "a", "output": "b"}, {"input": "c", "output": None}
    )
    for folder, name in (("broken", "model.safetensors"), ("meta", "consolidated.00.pth")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"\x10" if folder == "broken" else ENDS)
        (tmp_path / folder / "config.json").write_text("{}")
    return tmp_path


CASES: list[Case] = [*REFUSED, *UNFIT]


@pytest.mark.parametrize(
    ("words", "code", "facts"), CASES, ids=[" ".join(words) for words, *_ in CASES]
)
def test_what_cannot_work_is_refused_by_its_key_before_any_model_is_built(
    words: list[str], code: str, facts: dict[str, Any], unfit: Path
):
    if isinstance(value := facts.get("value"), str):
        facts = facts | {"value": value.replace("{}", str(unfit))}
    of_row = {name: value for name, value in facts.items() if name not in ("key", "value", "row")}
    is_row = "row" in facts  # which another refusal names
    if is_row:
        facts = {name: value for name, value in facts.items() if name not in of_row}
    with refused("llm.broken-rows" if is_row else code, **facts) as caught:
        config = typed_llm(*(word.replace("{}", str(unfit)) for word in words))
        preflight.refuse(config)
        preflight.prepare(config)
    if is_row:
        assert find(str(caught.value), code, **of_row)


@pytest.mark.parametrize(
    ("file", "code", "cause"),
    [
        ("cut.jsonl", "llm.bad-line", ""),
        ("bytes.jsonl", "table.encoding", ""),
        ("cut.parquet", "", "Could not open"),  # as Arrow says it
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_cause(
    file: str, code: str, cause: str, unfit: Path
):
    with refused("llm.data-file-unread") as caught:
        preflight.prepare(typed_llm("dataset=samsum", f"dataset.data_files={unfit / file}"))
    assert cause in caught.value.facts["reason"]
    assert not code or find(str(caught.value), code)


def test_the_recipe_follows_from_method_and_gpus_and_the_template_from_the_data_set():
    recipes = {
        "": "lora_finetune_single_device",
        "gpus=2": "lora_finetune_distributed",
        "recipe=distributed": "lora_finetune_distributed",
        "method=qat": "qat_distributed",
        "method=dpo": "lora_dpo_single_device",
        "method=full gpus=3": "full_finetune_distributed",
    }
    assert {words: typed_llm(*words.split()).recipe_name for words in recipes} == recipes
    templates = {
        "alpaca_cleaned": "instruct",
        "grammar": "grammar",
        "samsum": "summarize",
        "slimorca": None,
    }
    assert {name: typed_llm(f"dataset={name}").template_name for name in templates} == templates
    assert typed_llm("template=summarize").template_name == "summarize"


@pytest.mark.parametrize(
    ("steps", "expected"), [(4, 1), (250, 25), (999, 99), (1000, 100), (9000, 100)]
)
def test_the_learning_rate_warms_up_over_100_steps_or_a_tenth(steps: int, expected: int):
    assert torchtune_config.warmup_steps(typed_llm(), steps) == expected
    assert torchtune_config.warmup_steps(typed_llm("warmup_steps=7"), steps) == 7
    assert torchtune_config.warmup_steps(typed_llm("warmup_steps=100"), steps) == 100


def test_the_defaults_are_the_papers_whose_warmup_goes_with_every_method():
    config = typed_llm()
    assert (config.batch_size, config.lr, config.epochs, config.dataset.rows) == (2, 3e-4, 1, 500)
    assert config.precision.name == "fp32"
    for method in METHODS:
        # of QAT, whose recipe has none, too
        preflight.refuse(typed_llm(f"method={method}", "warmup_steps=100"))


def test_the_identity_is_what_is_measured():
    words = [[], ["method=qlora"], ["template=grammar"], ["lr=1e-3"], ["dataset.rows=9"], [*PACKED]]
    assert len({typed_llm(*some).identity() for some in words}) == len(words)
    assert (
        typed_llm("custom_sharded_layers=[output]").identity()
        != typed_llm("custom_sharded_layers=[]").identity()
    )
    assert typed_llm("name=a", "tracker.mode=disabled").identity() == typed_llm("name=b").identity()
