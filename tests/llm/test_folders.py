"""`model=hf`: models of a folder under `engine=trl`, of any architecture: made here, tuned,
or refused in a line.
"""

import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicard.llm import preflight, torchtune_config
from multicard.llm.data.pairs import CHOICES
from multicard.records import run_folder
from multicard.records.rank_files import ModelSizes
from tests.conftest import Tuning, typed_llm
from tests.helpers.messages import find, refused, remedies
from tests.llm.test_engines import ROUNDING, tuned_here

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}"
TEMPLATE = TURNS + "{% if add_generation_prompt %}<assistant>{% endif %}"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512}


# the tokenizer that tokenizer.json describes
AS_WRITTEN = {"tokenizer_class": "PreTrainedTokenizerFast"}


def byte_tokenizer(folder: Path, *special: str) -> None:
    """A tokenizer of bytes with these special tokens, after </s>, in a folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("</s>", *special)])
    tokenizer.save(str(folder / "tokenizer.json"))
    # Without a class, transformers builds that of the model's family, and Gemma's has no bytes
    (folder / "tokenizer_config.json").write_text(json.dumps(AS_WRITTEN))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with a tiny Mistral's configuration, and a tokenizer of bytes."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral", **SIZES}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def words_of(folder: Path, *words: str) -> list[str]:
    return ["engine=trl", "model=hf", f"model.path={folder}", "model.weights=random", *words]


@pytest.mark.usefixtures("processes")  # imports TRL, which takes seconds
@pytest.mark.parametrize(
    "words", [[], ["method=full", "packed=true", "max_seq_len=256"]], ids=" ".join
)
def test_a_folder_tunes_by_its_own_tokenizer_and_chat_template(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    report, steps = tuned_here(tmp_path / "run", *words_of(checkpoint, *words))
    lines = (tmp_path / "run" / "inputs" / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line)["pieces"] for line in lines]
    assert abs(steps["loss"][0] - math.log(300)) < 0.2
    layer = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 128
    assert report.sizes == ModelSizes(
        layers=2,
        weights=2 * layer + 300 * 64,
        output=300 * 64,
        width=2 * 64,
        parameters=2 * layer + 2 * 300 * 64 + 5 * 64,
        adapters=None if words else report.trainable_parameters,
    )
    assert report.parameters - 2 * layer - 2 * 300 * 64 - 5 * 64 == (
        0 if words else report.trainable_parameters
    )
    if not words:
        order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()[:6]
        length = [
            sum(len(piece["content"].replace("</s>", "x").encode()) for piece in rows[row])
            for row in order
        ]
        # the answer, and the token that ends it
        learnt = [len(rows[row][1]["content"].encode()) - 3 for row in order]
        assert steps["non_padding"].sum() == sum(length) and steps["loss_bearing"].sum() == sum(
            learnt
        )
        assert steps["tokens"].tolist() == [
            2 * max(length[first : first + 2]) for first in (0, 2, 4)
        ]


def test_a_pair_of_a_folder_is_two_conversations(checkpoint: Path):
    inputs = preflight.prepare(typed_llm(*words_of(checkpoint, "method=dpo", "dataset.rows=4")))
    chosen, rejected = (
        "".join(piece["content"] for piece in (inputs.rows or [])[0][name]) for name in CHOICES
    )
    assert (
        chosen != rejected
        and chosen.partition("<assistant>")[0] == rejected.partition("<assistant>")[0]
    )


def stored(folder: Path, *rows: Any) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"dataset.data_files={folder / 'rows.jsonl'}"


ASKED, ANSWERED = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
PREFERENCE = ("dataset=preference", "method=dpo", "batch_size=1")


@pytest.mark.parametrize("prompt", ["Q", [ASKED]])
def test_the_prompt_of_a_pair_is_before_both_answers_in_its_template(
    checkpoint: Path, tmp_path: Path, prompt: Any
):
    other = ANSWERED | {"content": "B"}
    row = {"prompt": prompt, "system": "S", "chosen": [ANSWERED], "rejected": [other]}
    inputs = preflight.prepare(typed_llm(*words_of(checkpoint, *PREFERENCE, stored(tmp_path, row))))
    chosen, rejected = (
        "".join(piece["content"] for piece in (inputs.rows or [])[0][name]) for name in CHOICES
    )
    begin = "<system>S</s>\n<user>Q</s>\n<assistant>"
    assert (chosen, rejected) == (f"{begin}A</s>\n", f"{begin}B</s>\n")


def test_turns_that_both_answers_share_are_the_prompt(checkpoint: Path, tmp_path: Path):
    """What the run folder shows as learnt is what bears loss."""
    other = ANSWERED | {"content": "B"}
    row = {"prompt": [ASKED, ANSWERED, ASKED], "chosen": [ANSWERED], "rejected": [other]}
    inputs = preflight.prepare(typed_llm(*words_of(checkpoint, *PREFERENCE, stored(tmp_path, row))))
    for name, answer in zip(CHOICES, ("A</s>", "B</s>"), strict=True):
        pieces = (inputs.rows or [])[0][name]
        assert [piece["content"] for piece in pieces if piece["learnt"]] == [answer]
        assert [piece["content"] for piece in pieces].count("A</s>") == (
            2 if name == "chosen" else 1
        )


@pytest.mark.parametrize(
    ("words", "bad", "code", "facts"),
    [
        (
            PREFERENCE,
            {"prompt": "Q", "chosen": "A", "rejected": ""},
            "llm.row-no-answer",
            {"column": "rejected"},
        ),
        (
            PREFERENCE,
            {"prompt": "Q", "chosen": [ANSWERED | {"thinking": "R"}], "rejected": "B"},
            "llm.chat-unwritten",
            {},
        ),
        (
            ["dataset=alpaca_cleaned"],
            {"instruction": "Q", "output": ""},
            "llm.row-empty-answer",
            {},
        ),
    ],
)
def test_a_row_that_the_folders_template_cannot_write_is_refused_with_its_number(
    checkpoint: Path, tmp_path: Path, words: Any, bad: Any, code: str, facts: dict[str, Any]
):
    pair, single = (
        {"prompt": "Q", "chosen": "A", "rejected": "B"},
        {
            "instruction": "Q",
            "output": "A",
        },
    )
    good = pair if words == PREFERENCE else single
    config = typed_llm(*words_of(checkpoint, *words, stored(tmp_path, good, bad)))
    with refused("llm.broken-rows", key="dataset.data_files", row=2, broken=1, rows=2) as caught:
        preflight.prepare(config)
    assert find(str(caught.value), code, **facts)


def test_a_text_is_between_the_tokens_that_the_folders_tokenizer_puts_around_one(
    checkpoint: Path, tmp_path: Path
):
    words = ("dataset=chat", "dataset.loss=all", "batch_size=1", stored(tmp_path, {"text": "Q"}))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (row,) = preflight.prepare(typed_llm(*words_of(checkpoint, *words))).rows or []
    assert row == {"pieces": [{"content": "Q</s>", "learnt": True}]}


# Architectures, with what they need beside SIZES: the six,
# which tune to the losses of transformers, and others
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 16},
    # without sdpa attention
    "gemma2": {"head_dim": 16, "sliding_window": 8, "final_logit_softcapping": 2.0},
    "gpt_neox": {},
    "gpt2": GPT2 | {f"{part}_pdrop": 0.0 for part in ("embd", "attn", "resid")},
    "cohere": {"logit_scale": 0.5},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "mamba": {"state_size": 8},
    "mixtral": EXPERTS,
    # has experts' names for linears too
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "llama4_text": EXPERTS | {"head_dim": 16, "intermediate_size_mlp": 128},
    "bert": {},
    "qwen2": {},
}
SIX = [*KINDS][:6]


def built(kind: str) -> Any:
    """A tiny model whose attention matters: weights as transformers
    draws them hardly change what embeddings say.
    """
    import transformers

    torch.manual_seed(0)
    special = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **SIZES, **special, **KINDS[kind])
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def with_head(model: Any) -> Any:
    """The model as TRL's trainers have it."""
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model)
    return model


def linears_of(model: Any) -> str:
    from multicard.llm.trl import adapters

    names = {name.rpartition(".")[2] for name in adapters.linears(model)} - {"gate"}
    return ",".join(sorted("output_proj" if name == "o_proj" else name for name in names))


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", [*SIX, "mixtral", "hunyuan_v1_moe"])
def test_an_architecture_tunes_from_the_loss_that_transformers_has(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """Its weights in several files. The loss is that of transformers' own forward pass,
    whose logits are whole.
    """
    import transformers

    from multicard.llm.trl import adapters, engine

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    built(kind).save_pretrained(checkpoint, max_shard_size="40KB")
    assert len([*checkpoint.glob("*.safetensors")]) > 5
    batches: list[Any] = []
    monkeypatch.setattr(
        engine,
        "with_transformers_names",
        lambda batch, named=engine.with_transformers_names: (
            batches.append(named(batch)) or batches[-1]
        ),
    )
    own = words_of(checkpoint, "model.weights=own", "lr=1e-3", "warmup_steps=0")
    report, steps = tuned_here(tmp_path / "full", *own, "method=full")
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, attn_implementation="eager"
    )
    tokens, labels = (batches[0][name] for name in ("input_ids", "labels"))
    mask = (tokens >= 0).long()
    loss = plain(input_ids=tokens.clamp(min=0), attention_mask=mask, labels=labels).loss.item()
    assert abs(steps["loss"][0] - loss) < ROUNDING["fp32"] and steps["loss"][2] != steps["loss"][0]
    assert report.parameters == plain.num_parameters()
    adapted = (f"method.lora_attn_modules=[{linears_of(plain)}]", "method.apply_lora_to_mlp=false")
    report, steps = tuned_here(tmp_path / "lora", *own, "method=lora", *adapted)
    assert abs(steps["loss"][0] - loss) < ROUNDING["fp32"] and steps["loss"][2] != steps["loss"][0]
    sizes = [
        sum(part.weight.shape)
        for name, part in adapters.linears(plain).items()
        if not name.endswith(".gate")
    ]
    assert report.trainable_parameters == 8 * sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("llama", ["method=lora", "activation_checkpointing=true"]),
        ("qwen3", ["method=full", "precision=bf16"]),
        # its experts are several tensors in the files, and one in the model
        ("mixtral", ["method=full"]),
    ],
)
def test_ranks_that_read_their_shards_take_the_steps_of_whole_models(
    checkpoint: Path, tuned: Tuning, kind: str, words: list[str]
):
    built(kind).save_pretrained(checkpoint, max_shard_size="40KB")
    words = [
        *words_of(checkpoint, "model.weights=own", "dataset.rows=40", "lr=1e-3", "warmup_steps=0"),
        *words,
    ]
    runs = [tuned(*words, "gpus=2", f"sharding={way}") for way in ("fsdp", "ddp")]
    assert [run["status"] for run in runs] == ["ok"] * 2, runs[0]["cause"]
    sharded, copied = (
        run_folder.read_steps(Path(run["folder"]))["loss"].to_numpy() for run in runs
    )
    assert np.nanmax(np.abs(sharded - copied)) < (
        ROUNDING["bf16"] if "precision=bf16" in words else ROUNDING["fp32"]
    )
    assert np.nanmin(sharded) < sharded[0]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("kind", "packs"), [("gpt2", True), ("gemma2", True), ("opt", False), ("mamba", False)]
)
def test_a_model_that_reads_packed_rows_as_one_is_refused(checkpoint: Path, kind: str, packs: bool):
    from multicard.llm.trl import checks

    model, config = (
        with_head(built(kind)),
        typed_llm(*words_of(checkpoint, "packed=true", "max_seq_len=64")),
    )
    if packs:
        checks.check_logits(model, config)
    else:
        with refused("llm.folder-packed", key="packed"):
            checks.check_logits(model, config)
    checks.check_logits(model, typed_llm(*words_of(checkpoint)))
    assert model.training


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_model_that_reads_later_tokens_is_refused(checkpoint: Path):
    from multicard.llm.trl import checks

    with refused("llm.folder-not-causal", key="model.path", value=str(checkpoint)):
        checks.check_logits(with_head(built("bert")), typed_llm(*words_of(checkpoint)))


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_model_that_trls_loss_does_not_read_as_it_is_is_refused(checkpoint: Path):
    from multicard.llm.trl import checks

    config = typed_llm(*words_of(checkpoint))
    with refused(
        "llm.folder-unread", key="model.path", value=str(checkpoint), reader="TRL"
    ) as caught:
        checks.check_logits(with_head(built("llama4_text")), config)
    assert "last_hidden_state" in caught.value.facts["reason"]
    capped = with_head(built("llama"))
    capped.lm_head.register_forward_hook(lambda _, __, logits: 10 * (logits / 10).tanh())
    with refused("llm.folder-logits", key="model.path", value=str(checkpoint)):
        checks.check_logits(capped, config)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("kind", "words", "left", "count"),
    [
        ("llama", [], None, 0),
        ("gpt2", [], "transformer.h.0.attn.c_attn", 8),
        ("mixtral", [], "model.layers.0.mlp.experts.gate_up_proj", 4),
        ("llama", ["method.groupsize=128"], "model.layers.0.self_attn.q_proj", 12),
    ],
)
def test_layers_that_a_method_would_not_quantise_are_refused(
    checkpoint: Path, kind: str, words: list[str], left: str | None, count: int
):
    from multicard.llm.trl import checks, fake_quantisation

    model = built(kind)
    config = typed_llm(*words_of(checkpoint, "method=qat", "method.groupsize=32", *words))
    fake_quantisation.simulate_quantisation(model, config)
    if left is None:
        checks.check_quantised(model, config)
    else:
        with refused(
            "llm.folder-unquantised",
            key="method",
            value="qat",
            first=left,
            count=count,
            groups=True,
        ) as caught:
            checks.check_quantised(model, config)
        assert remedies(caught.value) == ["method=lora", "method=full"]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("kind", "left", "count"),
    [
        ("llama", None, 0),
        ("gpt2", "transformer.h.0.attn.c_attn", 8),
        ("mixtral", "model.layers.0.mlp.experts.gate_up_proj", 4),
    ],
)
def test_a_model_of_which_int4_would_leave_layers_is_neither_kept_nor_scored_in_int4(
    checkpoint: Path, kind: str, left: str | None, count: int
):
    from multicard.llm.trl import checks, fake_quantisation

    model = built(kind)
    checks.check_quantised(model, typed_llm(*words_of(checkpoint, "method=full", "save=model")))
    config = typed_llm(*words_of(checkpoint, "method=full", "save=int4"))
    if left is None:
        checks.check_quantised(model, config)
        with fake_quantisation.in_int4(model, 32) as failures:
            assert failures == []
        return
    with refused("llm.save-unquantised", key="save", first=left, count=count) as caught:
        checks.check_quantised(model, config)
    assert remedies(caught.value) == ["save=model"]
    with pytest.raises(ValueError, match=left), fake_quantisation.in_int4(model, 32):
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("kind", "names"), [("gpt2", "c_attn,c_fc,c_proj"), ("llama", "down_proj,gate_proj,k_proj")]
)
def test_linears_that_can_be_named_are_the_remedy_of_those_that_are_not_there(
    checkpoint: Path, kind: str, names: str
):
    from multicard.llm.trl import adapters

    with refused("llm.folder-layers", key="method", value="lora") as caught:
        adapters.adapter_config(
            built(kind), typed_llm(*words_of(checkpoint, "method.lora_attn_modules=[Wqkv]"))
        )
    first = names.split(",")
    assert (
        caught.value.facts["asked"][0] == "Wqkv"
        and caught.value.facts["has"][: len(first)] == first
    )
    named, *others = remedies(caught.value)
    assert named.startswith(f"method.lora_attn_modules=[{names}")
    assert others == [
        "method.apply_lora_to_mlp=false",
        "method.lora_attn_modules=all-linear",
        "method=full",
    ]


@pytest.mark.parametrize(
    ("names", "positions"),
    [
        (("num_layers", "num_heads", "hidden_size"), "max_position_embeddings"),  # GPT-Neo
        (("n_layers", "n_heads", "d_model"), "max_seq_len"),  # MPT
        (("num_hidden_layers", "", "hidden_size"), ""),  # Mamba
    ],
)
def test_sizes_are_read_by_the_names_that_architectures_have(
    checkpoint: Path, names: tuple[str, ...], positions: str
):
    values = dict(zip((*names, positions), (2, 4, 64, 512), strict=True)) | {"vocab_size": 300}
    (checkpoint / "config.json").write_text(
        json.dumps({name: value for name, value in values.items() if name})
    )
    model = typed_llm(*words_of(checkpoint, "max_seq_len=400")).model
    config = typed_llm(*words_of(checkpoint))
    rows = torchtune_config.folder_config(config, preflight.Inputs([], None, 300), checkpoint)
    assert rows["tokenizer"]["max_seq_len"] == (512 if positions else None)
    assert (model.num_layers, model.embed_dim) == (2, 64)
    assert model.num_heads == model.num_kv_heads == (4 if names[1] else 0)
    assert model.max_seq_len == (512 if positions else 0)


def of_gemma(folder: Path) -> None:
    """Bytes beside a Gemma's configuration alone: transformers builds Gemma's own tokenizer,
    of other tokens.
    """
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma2", **SIZES}))
    (folder / "tokenizer_config.json").unlink()


# How a folder breaks, and the code and facts of the refusal
BROKEN: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    "no configuration": (
        lambda folder: (folder / "config.json").unlink(),
        "config.hf-no-config",
        {},
    ),
    "no folder": (
        lambda folder: folder.rename(folder.with_name("elsewhere")),
        "config.hf-no-folder",
        {},
    ),
    "no sizes": (
        lambda folder: (folder / "config.json").write_text('{"vocab_size": 300}'),
        "config.hf-no-size",
        {"size": None},
    ),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "llm.folder-no-tokenizer",
        {},
    ),
    "a broken tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "llm.folder-tokenizer-unread",
        {},
    ),
    "a tokenizer that its family's class cannot be": (
        of_gemma,
        "llm.folder-tokenizer-unread",
        {"reason": "Unk token `<unk>` not found in the vocabulary"},
    ),
    "no template": (
        lambda folder: (folder / "chat_template.jinja").unlink(),
        "llm.no-chat-template",
        {},
    ),
    "a template that fails": (
        lambda folder: (folder / "chat_template.jinja").write_text(
            "{{ raise_exception('no such roles') }}"
        ),
        "llm.chat-refused-by-template",
        {"key": None, "reason": "no such roles"},
    ),
    "a template that is cut off": (
        lambda folder: (folder / "chat_template.jinja").write_text("{% for m in"),
        "llm.chat-template-unread",
        {"key": "dataset.chat_template"},
    ),
    "few embeddings": (
        lambda folder: (folder / "config.json").write_text(
            json.dumps({**SIZES, "vocab_size": 200})
        ),
        "llm.folder-tokens",
        {"tokens": 257, "vocab_size": 200},
    ),
    "a token beyond them": (
        lambda folder: (file := folder / "tokenizer.json").write_text(
            file.read_text().replace(": 255", ": 400")
        ),
        "llm.folder-tokens",
        {"tokens": 401, "vocab_size": 300},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_refused(checkpoint: Path, name: str):
    breaks, code, facts = BROKEN[name]
    breaks(checkpoint)
    with refused(code, **{"key": "model.path"} | facts):
        preflight.check_rows(typed_llm(*words_of(checkpoint)))


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def refusal_of_weights(folder: Path, engine_reads: str) -> str:
    """The refusal of a folder by an engine that fills its shards, or that reads the whole model."""
    from multicard.llm.trl import models

    config = typed_llm(*words_of(folder, "model.weights=own", "gpus=2"))
    with refused("llm.folder-unread", reader="transformers") as caught:
        if engine_reads == "stored":
            models.build_model(config, {}, torch.device("cpu"), empty=False)
        else:
            models.read_weights(config.model, torch.float32, lambda *_: None)
    return str(caught.value)


@pytest.mark.parametrize("engine_reads", ["stored", "read"])
def test_a_folder_without_all_weights_is_refused(checkpoint: Path, engine_reads: str):
    built("llama").model.save_pretrained(checkpoint)  # without the output
    refusal = refusal_of_weights(checkpoint, engine_reads)
    assert find(refusal, "llm.folder-missing-tensor", tensor="lm_head.weight")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_of_other_sizes_than_the_configuration_has_are_refused(
    checkpoint: Path, tuned: Tuning, ranks: int
):
    """By one rank, which reads the whole model, and by two, which read it weight by weight."""
    built("llama").save_pretrained(checkpoint)
    written = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(written | {"intermediate_size": 96}))
    run = tuned(*words_of(checkpoint, "model.weights=own", f"gpus={ranks}", "dataset.rows=40"))
    assert run["status"] == "failed"
    said = find(
        run["cause"]["message"], "llm.folder-unread", key="model.path", value=str(checkpoint)
    )
    assert said.facts["reader"] == "transformers"
    name = "model.layers.0.mlp.down_proj.weight"
    assert said.facts["reason"].has({"tensor": name, "shape": [64, 128], "expected": [64, 96]})


def test_pickled_weights_are_refused(checkpoint: Path):
    own = words_of(checkpoint, "model.weights=own")
    with refused("llm.no-weights", key="model.path", value=str(checkpoint)):
        preflight.check_rows(typed_llm(*own))
    (checkpoint / "pytorch_model.bin").write_bytes(b"")
    with refused("llm.weights-pickled", key="model.path", value=str(checkpoint)):
        preflight.check_rows(typed_llm(*own))


OTHERS_TOKENIZER = "llm.tokenizer-of-another-model"


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["engine=torchtune"], "llm.torchtune-model", {"key": "model"}),
        (
            ["tokenizer=embedded"],
            OTHERS_TOKENIZER,
            {"key": "tokenizer", "value": "embedded", "model": "hf"},
        ),
        (
            ["model=llama3_tiny", "tokenizer=own"],
            OTHERS_TOKENIZER,
            {"value": "own", "model": "llama3_tiny"},
        ),
    ],
)
def test_what_does_not_go_with_a_folder_is_refused(
    checkpoint: Path, words: list[str], code: str, facts: dict[str, str]
):
    own = words_of(checkpoint) if "model=llama3_tiny" not in words else ["engine=trl"]
    kept = [
        word
        for word in own
        if word.partition("=")[0] not in {each.partition("=")[0] for each in words}
    ]
    with refused(code, **facts):
        preflight.refuse(typed_llm(*kept, *words))
