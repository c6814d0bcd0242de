"""`method.lora_attn_modules=all-linear`, as people write it: every linear of the layers,
in both engines.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from multicard.llm import methods, peft_layers, preflight
from multicard.llm.method_options import ATTENTION, FEED_FORWARD, LoraConfig
from tests.conftest import typed_llm
from tests.helpers.messages import refused, remedies
from tests.llm.test_folders import built, checkpoint, words_of  # noqa: F401  (a fixture)

ALL = "method.lora_attn_modules=all-linear"


@pytest.mark.parametrize("word", [ALL, "method.lora_attn_modules=[all-linear]"])
@pytest.mark.parametrize("method", ["lora", "qlora", "dpo"])
def test_torchtune_adapts_every_linear_of_a_layer(word: str, method: str):
    config = typed_llm(word, f"method={method}")
    preflight.refuse(config)
    assert isinstance(config.method, LoraConfig)
    assert methods.adapted_linears(config.method) == [
        *(f"attn.{name}" for name in ATTENTION),
        *FEED_FORWARD,
    ]
    component = methods.model_component(config, 300)
    assert component["lora_attn_modules"] == list(ATTENTION) and component["apply_lora_to_mlp"]
    named = typed_llm(f"method.lora_attn_modules=[{','.join(ATTENTION)}]", f"method={method}")
    assert methods.adapter_parameters(config, 300) == methods.adapter_parameters(named, 300)


def test_one_layer_needs_no_brackets():
    config = typed_llm("method.lora_attn_modules=q_proj")
    assert config.identity() == typed_llm("method.lora_attn_modules=[q_proj]").identity()


@pytest.mark.parametrize(
    ("words", "code", "key"),
    [
        (["method.lora_attn_modules=[]"], "llm.no-adapted-layers", "method.lora_attn_modules"),
        (["method.lora_attn_modules=3"], "llm.no-adapted-layers", "method.lora_attn_modules"),
        (["method.lora_attn_modules=null"], "llm.no-adapted-layers", "method.lora_attn_modules"),
        (
            ["method.lora_attn_modules=[q_proj,3]"],
            "llm.no-adapted-layers",
            "method.lora_attn_modules",
        ),
        (
            ["method.lora_attn_modules=[q_proj,all-linear]"],
            "llm.all-linear-and-others",
            "method.lora_attn_modules",
        ),
        (
            [ALL, "method.apply_lora_to_mlp=false"],
            "llm.all-linear-without-mlp",
            "method.apply_lora_to_mlp",
        ),
        (["method.lora_attn_modules=all_linear"], "llm.unknown-layers", "method.lora_attn_modules"),
    ],
)
def test_what_names_no_layers_or_contradicts_itself_is_refused(
    words: list[str], code: str, key: str
):
    with refused(code, key=key) as caught:
        preflight.refuse(typed_llm(*words))
    for remedy in remedies(caught.value):
        kept = [word for word in words if word.partition("=")[0] != remedy.partition("=")[0]]
        preflight.refuse(typed_llm(*kept, remedy))


@pytest.mark.slow  # it imports TRL
@pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
@pytest.mark.parametrize(("kind", "count"), [("llama", 7), ("gpt2", 4), ("gpt_neox", 4)])
def test_peft_adapts_every_linear_but_the_output(checkpoint: Path, kind: str, count: int):  # noqa: F811
    import peft

    from multicard.llm.trl import adapters

    model: Any = built(kind)
    with peft_layers.adapted_as_named():
        adapted = peft.get_peft_model(
            model, adapters.adapter_config(model, typed_llm(*words_of(checkpoint, ALL)))
        )
    names = {
        name.partition(".lora_A")[0] for name, _ in adapted.named_parameters() if ".lora_A" in name
    }
    assert len(names) == 2 * count and not any(
        "lm_head" in name or "embed_out" in name for name in names
    )
