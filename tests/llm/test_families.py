"""Nine families of models, tuned as a plain loop of transformers
tunes them: the same tokens learnt, the same losses.

The loop knows no packing, no mask of ours and no engine: it reads each conversation by itself, in
the text that stands here, and learns what stands here as learnt.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from multicard.config.llm_texts import ChatLoss
from multicard.llm import preflight
from multicard.llm.data import chat
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused
from tests.llm.test_chat import written as file_of
from tests.llm.test_engines import ROUNDING, tuned_here
from tests.llm.test_folders import AS_WRITTEN, SIZES, byte_tokenizer, words_of

TRL = find_spec("trl")
pytestmark = pytest.mark.skipif(TRL is None, reason="pip install -e .[trl]")

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content']"
    " }}[/INST]{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
# A template that writes an answer's thoughts in the last turn alone, as those of Qwen 3,
# and that TRL does not know
FORGETS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant'"
    " %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if"
    " add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Family(NamedTuple):
    """A kind of model, its template (by TRL's name of it, or itself) and special tokens.

    text: of the conversation below, with «» around what is learnt.
    sizes: beside those of all.
    """

    kind: str
    template: str
    special: tuple[str, ...]
    text: str
    sizes: dict[str, Any]
    last_alone: bool = False


IM = ("<|im_start|>", "<|im_end|>")
# DeepSeek's special tokens, whose bars and underscores are others than ASCII's
ASKS, ANSWERS, ENDS = (
    f"<\uff5c{name}\uff5c>" for name in ("User", "Assistant", "end\u2581of\u2581sentence")
)
THOUGHT = "<think>\n\n</think>\n\n"
EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
}
FAMILIES = {
    "llama 3": Family(
        "llama",
        "llama3",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<s><|start_header_id|>user<|end_header_id|>\n\nOne?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n«Un.<|eot_id|>»"
        "<|start_header_id|>user<|end_header_id|>\n\nTwo?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n«Deux.<|eot_id|>»",
        {},
    ),
    "qwen 2.5": Family(
        "qwen2",
        "qwen2_5",
        IM,
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful"
        " assistant.<|im_end|>\n"
        "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n«Un.<|im_end|>»\n"
        "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n«Deux.<|im_end|>»\n",
        {},
    ),
    "qwen 3": Family(
        "qwen3",
        "qwen3",
        IM,
        f"<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n«{THOUGHT}Un.<|im_end|>»\n"
        f"<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n«{THOUGHT}Deux.<|im_end|>»\n",
        {"head_dim": 16},
    ),
    "gemma": Family(
        "gemma3_text",
        "gemma3",
        ("<start_of_turn>", "<end_of_turn>"),
        "<s><start_of_turn>user\nOne?<end_of_turn>\n<start_of_turn>model\n«Un.<end_of_turn>»\n"
        "<start_of_turn>user\nTwo?<end_of_turn>\n<start_of_turn>model\n«Deux.<end_of_turn>»\n",
        {"head_dim": 16, "sliding_window": 64},
    ),
    "phi 3": Family(
        "phi3",
        "phi3",
        ("<|user|>", "<|assistant|>", "<|end|>"),
        "<|user|>\nOne?<|end|>\n<|assistant|>\n«Un.<|end|>»\n<|user|>\nTwo?<|end|>\n<|assistant|>\n«Deux.<|end|>»\n</s>",
        {"pad_token_id": 1},
    ),
    "mistral": Family(
        "mistral",
        MISTRAL,
        ("[INST]", "[/INST]"),
        "<s>[INST] One?[/INST]« Un.</s>»[INST] Two?[/INST]« Deux.</s>»",
        {},
    ),
    "glm": Family(
        "glm4_moe",
        "glm4moe",
        ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "[gMASK]<sop><|user|>\nOne?<|assistant|>«\n<think></think>\nUn.<|user|>»"
        "\nTwo?<|assistant|>«\n<think></think>\nDeux.<|user|>»",
        {"head_dim": 16, **EXPERTS, "first_k_dense_replace": 1},
    ),
    "gpt-oss": Family(
        "gpt_oss",
        "gptoss",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"),
        "",  # the system's text of its template is long: see `learnt`
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64}
        | {"max_position_embeddings": 2048},
    ),
    "deepseek": Family(
        "deepseek_v3",
        "deepseekv3",
        (ASKS, ANSWERS),
        f"<s>{ASKS}One?{ANSWERS}«Un.{ENDS}»{ASKS}Two?{ANSWERS}«Deux.{ENDS}»",
        {
            **EXPERTS,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
        }
        | {
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
        },
    ),
    "one that forgets": Family(
        "llama",
        FORGETS,
        IM,
        "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\nUn.<|im_end|>\n"
        "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n«<think></think>Deux.<|im_end|>»",
        {},
        last_alone=True,
    ),
}
GPT_OSS = ["<|channel|>final<|message|>Un.<|end|>", "<|channel|>final<|message|>Deux.<|return|>"]


def conversation(*said: str) -> dict[str, Any]:
    roles = ("user", "assistant") * len(said)
    return {
        "messages": [
            {"role": role, "content": text} for role, text in zip(roles, said, strict=False)
        ]
    }


CONVERSATION = conversation("One?", "Un.", "Two?", "Deux.")


def template_of(family: Family) -> str:
    if "{" in family.template:
        return family.template
    assert TRL is not None and TRL.origin is not None
    return (Path(TRL.origin).parent / "chat_templates" / f"{family.template}.jinja").read_text(
        "utf-8"
    )


def folder_of(place: Path, family: Family) -> Path:
    """A folder with the family's template, sizes and a
    tokenizer of bytes with its special tokens.
    """
    place.mkdir()
    end = ENDS if family.kind == "deepseek_v3" else "</s>"
    byte_tokenizer(place, "<s>", *family.special, *([end] if end != "</s>" else []))
    (place / "chat_template.jinja").write_text(template_of(family))
    (place / "tokenizer_config.json").write_text(
        json.dumps(AS_WRITTEN | {"bos_token": "<s>", "eos_token": end})
    )
    sizes = {
        "model_type": family.kind,
        **SIZES,
        "bos_token_id": 2,
        "eos_token_id": 3,
        **family.sizes,
    }
    (place / "config.json").write_text(json.dumps(sizes))
    return place


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_learnt_to_the_token_that_ends_them_and_nothing_else(name: str, tmp_path: Path):
    family = FAMILIES[name]
    config = typed_llm(*words_of(folder_of(tmp_path / "model", family)))
    written = chat.template(config).pieces(CONVERSATION["messages"], None, ChatLoss.answers)
    text = "".join(
        f"«{piece['content']}»" if piece["learnt"] else piece["content"] for piece in written.pieces
    )
    learnt = [piece["content"] for piece in written.pieces if piece["learnt"]]
    if name == "gpt-oss":
        assert learnt == GPT_OSS and text.count("<|start|>assistant«") == 2
    else:
        assert text == family.text
    assert written.last_alone == family.last_alone


def test_rows_of_which_the_last_answer_alone_is_learnt_are_counted_and_said(tmp_path: Path):
    """Before the start, in a line, and in the record."""
    folder = folder_of(tmp_path / "model", FAMILIES["one that forgets"])
    rows = [CONVERSATION, conversation("One?", "Un."), CONVERSATION]
    config = typed_llm(
        *words_of(
            folder,
            "dataset=chat",
            file_of(tmp_path, *rows),
            "batch_size=1",
            "dataset.split=0",
            "epochs=9",
        )
    )
    inputs = preflight.prepare(config)
    assert inputs.last_alone == 2 and all(row.keys() == {"pieces"} for row in inputs.rows or [])
    (notice,) = preflight.notices(config)
    assert find(str(notice), "llm.last-answers-alone", rows=2)


def expected(family: Family, folder: Path, said: tuple[str, ...]) -> tuple[list[int], list[bool]]:
    """The tokens of a conversation by transformers, and which of them are learnt,
    by the text above.
    """
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    text = family.text
    if not text:
        special = json.loads((folder / "tokenizer_config.json").read_text())
        chats = conversation(*said)["messages"]
        text = tokenizer.apply_chat_template(
            chats, chat_template=template_of(family), tokenize=False, **special
        )
        # the day that rows are written on
        text = re.sub(r"(?<=Current date: )[\d-]+", "2024-07-26", str(text))
        text = re.sub(r"(?<=<\|start\|>assistant)(.+?<\|(?:end|return)\|>)", r"«\1»", text)
    else:
        for own, other in zip(("One?", "Un.", "Two?", "Deux."), said, strict=True):
            text = text.replace(own, other, 1)
    tokens, learnt = list[int](), list[bool]()
    for place, part in enumerate(re.split("[«»]", text)):
        encoded = tokenizer(part, add_special_tokens=False)["input_ids"]
        tokens += encoded
        learnt += [place % 2 == 1] * len(encoded)
    return tokens, learnt


def rows_in(
    batch: dict[str, torch.Tensor], known: dict[tuple[int, ...], list[bool]]
) -> list[tuple[int, ...]]:
    """The conversations of a batch, each by its tokens: padded,
    or one behind the other with its own positions.
    """
    found = list[tuple[int, ...]]()
    for place, tokens in enumerate(batch["input_ids"].tolist()):
        if "position_ids" not in batch:
            found.append(tuple(token for token in tokens if token >= 0))
            continue
        positions = batch["position_ids"][place].tolist()
        starts = [at for at, position in enumerate(positions) if position == 0]
        for begin, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
            row = tuple(tokens[begin:end])
            # behind the last one are paddings
            found.append(next(one for one in known if row[: len(one)] == one))
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packs"])
@pytest.mark.parametrize("name", [*FAMILIES][:9])
def test_a_family_takes_the_steps_of_a_plain_loop(
    name: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import transformers

    from multicard.llm.trl import engine

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    family = FAMILIES[name]
    folder = folder_of(tmp_path / "model", family)
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder)
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    config_json = (folder / "config.json").read_text()
    model.save_pretrained(folder)
    assert (
        json.loads(config_json)["model_type"]
        == json.loads((folder / "config.json").read_text())["model_type"]
    )
    said = [
        (f"What {i}?" * (1 + i % 3), f"That {i}." * (1 + i % 4), f"And {i}?", f"Then {i}.")
        for i in range(12)
    ]
    known = {
        tuple(tokens): learnt
        for tokens, learnt in (expected(family, folder, each) for each in said)
    }
    batches: list[Any] = []
    monkeypatch.setattr(
        engine,
        "with_transformers_names",
        lambda batch, named=engine.with_transformers_names: (
            batches.append(named(batch)) or batches[-1]
        ),
    )
    words = [
        "dataset=chat",
        file_of(tmp_path, *(conversation(*each) for each in said)),
        "method=full",
        "lr=1e-3",
    ]
    longest = 2 * max(map(len, known)) + 20
    words += (
        ["packed=true", f"max_seq_len={longest}", "batch_size=1"] if packed else ["batch_size=2"]
    )
    words = words_of(folder, "model.weights=own", "warmup_steps=1", *words)
    if name == "gpt-oss" and packed:  # transformers makes its masks without positions
        with refused("llm.folder-packed", key="packed"):
            tuned_here(tmp_path / "run", *words, short=("device=cpu", "max_steps=3"))
        return
    _, steps = tuned_here(tmp_path / "run", *words, short=("device=cpu", "max_steps=3"))

    plain: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain.train()
    optimiser = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = transformers.get_cosine_schedule_with_warmup(optimiser, 1, 3)
    for step, batch in enumerate(batches[:3]):
        rows = rows_in(batch, known)
        labels = sum(sum(known[row][1:]) for row in rows)
        loss = torch.zeros(())
        for row in rows:
            tokens = torch.tensor([row])
            scores = plain(input_ids=tokens, use_cache=False).logits[0, :-1].float()
            each = torch.nn.functional.cross_entropy(scores, tokens[0, 1:], reduction="none")
            loss = loss + each[torch.tensor(known[row][1:])].sum() / labels
        assert steps["loss_bearing"][step] == labels
        assert steps["loss"][step] == pytest.approx(loss.item(), abs=5 * ROUNDING["fp32"])
        assert steps["lr"][step] == pytest.approx(schedule.get_last_lr()[0])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
    assert max(len(rows_in(batch, known)) for batch in batches) > 1
    assert steps["loss"][2] != pytest.approx(steps["loss"][0], abs=0.01)
