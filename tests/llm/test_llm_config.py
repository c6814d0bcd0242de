"""The options of tune_llm.py: all compose, and what cannot work is refused by its key."""

import json
from pathlib import Path

import pytest

from multicard.llm import preflight, torchtune_config
from multicard.llm.methods import METHODS
from tests.conftest import refusal, typed_llm

PACKED = ("packed=true", "max_seq_len=512")
# Refused by a message that begins with the word
ALONE = """
precision=tf32 max_seq_len=0 max_steps=0 skip_steps=-1 gradient_accumulation_steps=0 dataset.rows=0 model.num_heads=3
model.num_kv_heads=3 model.num_layers=0 method.lora_rank=0 tokenizer.vocab_size=100
"""
REFUSED = [
    *(([word], word) for word in ALONE.split()),
    (["precision=fp16", "method=qat"], "precision=fp16: method=qat has no such precision; it has fp32, bf16"),
    (["recipe=single_device", "gpus=2"], "recipe=single_device: is for one GPU"),
    (["recipe=single_device", "method=qat"], "recipe=single_device: torchtune has none for method=qat"),
    (["recipe=distributed", "method=qlora"], "recipe=distributed"),
    (["compile=true", "method=qat"], "compile=true: method=qat"),
    (["compile=true", "method=dpo", "gpus=2"], "compile=true: method=dpo"),
    (["packed=true", "method=dpo", "max_seq_len=512"], "packed=true: method=dpo"),
    (["packed=true"], "packed=true: needs max_seq_len"),
    (["optimizer_in_bwd=true"], "optimizer_in_bwd=true: method=lora"),
    (["optimizer_in_bwd=true", "method=full", "gradient_accumulation_steps=2"], "gradient_accumulation_steps=2"),
    (["warmup_steps=3", "method=qat"], "warmup_steps=3: method=qat"),
    (["max_seq_len=5000"], "max_seq_len=5000: is above model.max_seq_len=4096"),
    (["max_seq_len=1"], "max_seq_len=1: must be 2 or more"),
    (["dataset=samsum", "dataset.rows=0"], "dataset.rows=0"),
    (["dataset=samsum", "template=grammar"], "template=grammar: does not fit dataset=samsum; use template=summarize"),
    (["dataset=slimorca", "template=grammar"], "template=grammar: does not fit dataset=slimorca; use no template"),
    (["custom_sharded_layers=[layers]"], "custom_sharded_layers=['layers']: name some of tok_embeddings, output, each"),
    (["custom_sharded_layers=[output,output]"], "custom_sharded_layers=['output', 'output']: name some of"),
    (["custom_sharded_layers=[output]", "model=llama3_2_1b"], "custom_sharded_layers=['output']: the output of"),
    (["dataset=samsum", "method=dpo"], "dataset=samsum: method=dpo needs chosen and rejected"),
    (["dataset=preference"], "dataset=preference: holds pairs, which method=lora cannot read"),
    (["method.lora_attn_modules=[]"], "method.lora_attn_modules"),
    (["method=dpo", "method.beta=0"], "method.beta=0"),
    (["tokenizer=llama3"], "tokenizer.path is not set"),
    (["tokenizer=qwen2_5"], "tokenizer.path is not set"),
    (["tokenizer=qwen2_5", "tokenizer.path=x"], "tokenizer.merges_file is not set"),
    (["model=llama3_2_1b", "method.apply_lora_to_output=true"], "method.apply_lora_to_output=true: the output of"),
    (["model=qwen2_5_tiny", "method=qlora"], "method=qlora: torchtune quantises only linears with an adapter of"),
]


QLORA_OF_QWEN = ["method=qlora", "method.lora_attn_modules=[q_proj,k_proj,v_proj,output_proj]"]
QWENS_TOKENIZER = ["model=qwen2_5_tiny", "tokenizer=qwen2_5", "tokenizer.merges_file=x"]


def write_rows(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"dataset.data_files={path}"


FILES = [
    (["dataset=samsum"], "/none.jsonl", "no such file"),
    (["dataset=samsum"], "", "is a folder"),
    (["dataset=samsum"], "/rows.txt", "must end in"),
    (["dataset=samsum"], "/empty.jsonl", "holds no rows"),
    (["dataset=samsum"], "/cut.jsonl", "cannot be read (line 2"),
    (["dataset=samsum"], "/bytes.jsonl", "cannot be read ('utf-8' codec can't decode"),
    (["dataset=samsum"], "/cut.parquet", "cannot be read (Could not open"),
    (["dataset=samsum"], "/pairs.jsonl", "row 1 has no column dialogue, summary for template=summarize (found: input"),
    (["dataset=grammar"], "/null.jsonl", "row 2 holds no text"),
    (["dataset=slimorca"], "/pairs.jsonl", "row 1 has no column conversations for dataset=slimorca"),
    (["dataset=slimorca", "template=instruct"], "/turns.jsonl", "row 1 holds 4 turns, and template=instruct takes a"),
    (["dataset=preference", "method=dpo"], "/pairs.jsonl", "row 1 has no column chosen, rejected"),
]


# Refused once rows, tokenizer and sizes are known, still before any model: {} is a folder with the files of the cases
UNFIT = [
    (["dataset=preference", "method=dpo"], "dataset=preference: names neither a file nor a data set of the hub"),
    *(
        ([*words, f"dataset.data_files={{}}{file}"], f"dataset.data_files={{}}{file}: {says}")
        for words, file, says in FILES
    ),
    (["dataset=grammar", "dataset.data_files={}/pairs.jsonl", "dataset.rows=9"], "dataset.rows=9"),
    (["dataset.rows=3", "gpus=2"], "dataset.rows=3: is less than one step"),
    (["method=qat", "method.groupsize=512"], "method.groupsize=512: does not divide the width of attn.q_proj (256)"),
    (["method=qat", "model.intermediate_dim=700"], "method.groupsize=256: does not divide the width of mlp.w2 (700)"),
    (["method=qlora", "gpus=4"], "method=qlora: NF4 needs each layer's weights to divide by 16384 x 4 rank(s)"),
    (["model.vocab_size=300"], "model.vocab_size=300: tokenizer=embedded has"),
    (["tokenizer=llama3", "tokenizer.path={}/rows.txt"], "tokenizer.path={}/rows.txt: holds 1 tokens, not 128000"),
    (["tokenizer=llama3", "tokenizer.path={}/none"], "tokenizer.path={}/none: no such file"),
    (["model.weights={}/none"], "model.weights={}/none: no such folder"),
    (["model.weights={}"], "model.weights={}: holds no weights"),
    (["model.weights={}/broken"], "model.weights={}/broken: model.safetensors is cut off"),
    (["model.weights={}/meta"], "model.weights={}/meta: holds no weights; give a folder with *.safetensors"),
    (["model=qwen2_5_0_5b", "method=qat"], "method.groupsize=256: does not divide the width of attn.q_proj (896)"),
    (["model=qwen2_5_0_5b", *QLORA_OF_QWEN, "gpus=2"], "method=qlora: NF4 needs each layer's weights to divide"),
    ([*QWENS_TOKENIZER, "tokenizer.path={}/none"], "tokenizer.path={}/none: no such file"),
    ([*QWENS_TOKENIZER, "tokenizer.path={}/rows.txt"], "tokenizer.path={}/rows.txt: holds 0 tokens, not 151643"),
    ([*QWENS_TOKENIZER, "tokenizer.path={}/few.json"], "tokenizer.path={}/few.json: holds 1 tokens, not 151643"),
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
    write_rows(tmp_path / "pairs.jsonl", {"input": "a", "output": "b"}, {"input": "c", "output": "d"})
    turns = [{"from": who, "value": "x"} for who in ("human", "gpt", "human", "gpt")]
    write_rows(tmp_path / "turns.jsonl", {"conversations": turns})
    write_rows(tmp_path / "null.jsonl", {"input": "a", "output": "b"}, {"input": "c", "output": None})
    for folder, name in (("broken", "model.safetensors"), ("meta", "consolidated.00.pth")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"\x10" if folder == "broken" else ENDS)
        (tmp_path / folder / "config.json").write_text("{}")
    return tmp_path


CASES: list[tuple[list[str], str]] = [*REFUSED, *UNFIT]


@pytest.mark.parametrize(("words", "says"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_what_cannot_work_is_refused_by_its_key_before_any_model_is_built(words: list[str], says: str, unfit: Path):
    with refusal(says.replace("{}", str(unfit))):
        config = typed_llm(*(word.replace("{}", str(unfit)) for word in words))
        preflight.refuse(config)
        preflight.prepare(config)


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
    templates = {"alpaca_cleaned": "instruct", "grammar": "grammar", "samsum": "summarize", "slimorca": None}
    assert {name: typed_llm(f"dataset={name}").template_name for name in templates} == templates
    assert typed_llm("template=summarize").template_name == "summarize"


@pytest.mark.parametrize(("steps", "expected"), [(4, 1), (250, 25), (999, 99), (1000, 100), (9000, 100)])
def test_the_learning_rate_warms_up_over_100_steps_or_a_tenth(steps: int, expected: int):
    assert torchtune_config.warmup_steps(typed_llm(), steps) == expected
    assert torchtune_config.warmup_steps(typed_llm("warmup_steps=7"), steps) == 7
    assert torchtune_config.warmup_steps(typed_llm("warmup_steps=100"), steps) == 100


def test_the_defaults_are_the_papers_whose_warmup_goes_with_every_method():
    config = typed_llm()
    assert (config.batch_size, config.lr, config.epochs, config.dataset.rows) == (2, 3e-4, 1, 500)
    assert config.precision.name == "fp32"
    for method in METHODS:
        preflight.refuse(typed_llm(f"method={method}", "warmup_steps=100"))  # of QAT, whose recipe has none, too


def test_the_identity_is_what_is_measured():
    words = [[], ["method=qlora"], ["template=grammar"], ["lr=1e-3"], ["dataset.rows=9"], [*PACKED]]
    assert len({typed_llm(*some).identity() for some in words}) == len(words)
    assert typed_llm("custom_sharded_layers=[output]").identity() != typed_llm("custom_sharded_layers=[]").identity()
    assert typed_llm("name=a", "tracker.mode=disabled").identity() == typed_llm("name=b").identity()
