"""The loss of held-out rows with `model=hf`: that of the kept model, which transformers and PEFT
load, over exactly these rows, in a loop that shares nothing with multicard.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import cross_entropy

from multicard.llm import held_out, kept_model
from tests.conftest import Tuning, ok
from tests.llm.test_folders import KINDS, SIZES, TEMPLATE, byte_tokenizer, words_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]"),
]

ROUNDING = 1e-5  # of a loss of some 5 in fp32
ROWS = 45
QUESTIONS = [f"What is {n} and {n * n}? " + "Say it. " * (n % 4) for n in range(ROWS)]
ANSWERS = [f"It is {n + n * n}." + " Yes!" * (n % 3) for n in range(ROWS)]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny model of the kind that the test names, with a tokenizer of bytes."""
    import transformers

    place = tmp_path / "checkpoint"
    torch.manual_seed(5)
    options = SIZES | KINDS[request.param] | {"tie_word_embeddings": request.param == "qwen2"}
    kind: Any = transformers.AutoConfig.for_model(request.param, **options)
    model = transformers.AutoModelForCausalLM.from_config(kind)
    for parameter in model.parameters():
        # weights as transformers draws them hardly change what embeddings say
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(place)
    byte_tokenizer(place)
    (place / "chat_template.jinja").write_text(TEMPLATE)
    return place


def plain_loss(model: Any, tokenizer: Any, numbers: list[int]) -> float:
    """Nats a token of the answers of these rows, row by row."""
    nats, count = 0.0, 0
    for number in numbers:
        asked = tokenizer(f"<user>{QUESTIONS[number]}</s>\n<assistant>")["input_ids"]
        answer = tokenizer(f"{ANSWERS[number]}</s>")["input_ids"]
        after = tokenizer("\n")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([asked + answer + after])).logits[0]
        first = len(asked) - 1  # predicts the answer's first token
        said = logits[first : first + len(answer)]
        nats += cross_entropy(said, torch.tensor(answer), reduction="sum").double().item()
        count += len(answer)
    return nats / count


def loaded(run: Path, base: Path, method: str) -> tuple[Any, Any]:
    """The kept model, in evaluation mode, and the tokenizer beside it."""
    import transformers

    place = run / ("model" if method == "full" else "adapter")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    if method == "full":
        return transformers.AutoModelForCausalLM.from_pretrained(place).eval(), tokenizer
    assert kept_model.base_folder(place, kept_model.read_info(place)) == str(base)
    names: dict[str, Any] = {}
    exec("\n".join(kept_model.lines_to_load(run)), names)
    return names["model"].eval(), tokenizer


@pytest.mark.parametrize(
    ("folder", "method", "words"),
    [
        ("llama", "lora", []),
        ("llama", "lora", ["gpus=2"]),
        ("qwen2", "lora", ["gpus=2", "sharding=ddp"]),
        # Its shared expert has the names of experts, which PEFT would adapt instead.
        ("hunyuan_v1_moe", "lora", ["method.lora_attn_modules=all-linear"]),
        ("qwen2", "full", ["packed=true", "max_seq_len=128"]),
        ("qwen2", "full", ["gpus=2", "packed=true", "max_seq_len=128"]),
        ("llama", "full", ["gpus=2"]),
        ("llama", "full", ["gpus=2", "sharding=ddp", "activation_checkpointing=true"]),
    ],
    indirect=["folder"],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_it_is_the_loss_of_the_kept_model(
    tuned: Tuning, tmp_path: Path, folder: Path, method: str, words: list[str]
):
    """Of nine rows in batches of two, so that ranks have batches without a row,
    after steps that changed it.
    """
    rows = [
        {"instruction": question, "output": answer}
        for question, answer in zip(QUESTIONS, ANSWERS, strict=True)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [
        "dataset=chat",
        f"dataset.data_files={tmp_path / 'rows.jsonl'}",
        "dataset.split=0.2",
        "eval_steps=1",
    ]
    form = "model" if method == "full" else "adapter"
    usual = words_of(
        folder, "model.weights=own", f"method={method}", f"save={form}", "lr=1e-2", "warmup_steps=0"
    )
    run = ok(tuned(*usual, *data, "max_steps=2", *words))
    table = pq.read_table(Path(run["folder"]) / held_out.LOSSES).to_pydict()
    assert run["held_out"]["rows"] == len(table["row"]) == len({*table["row"]}) == 9
    measured = [evaluation["loss"] for evaluation in run["held_out"]["evaluations"]]
    assert measured[-1] < measured[0] - 0.05
    kept, tokenizer = loaded(Path(run["folder"]), folder, method)
    assert measured[-1] == pytest.approx(plain_loss(kept, tokenizer, table["row"]), abs=ROUNDING)
    for number, nats, count in zip(table["row"], table["loss"], table["tokens"], strict=True):
        assert nats / count == pytest.approx(plain_loss(kept, tokenizer, [number]), abs=ROUNDING), (
            number
        )
