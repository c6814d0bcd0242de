"""Read the chat templates in a .jinja file, or in the folder of a tokenizer.

For models without a template, find the form of ours that their tokens fit.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

LLAMA3, QWEN25, PLAIN = (
    Path(__file__).with_name(f"{name}.jinja") for name in ("llama3", "qwen2_5", "plain")
)
# The form of a base model without a template, by a token that it has for turns.
FITTING = {"<|im_start|>": QWEN25, "<|start_header_id|>": LLAMA3}

# The folder in which transformers saves the templates other than the default one.
ADDITIONAL = "additional_chat_templates"


class FittingTemplate(NamedTuple):
    """One of our forms, and words for it in a message."""

    file: Path
    kind: str


class StoredTemplates(NamedTuple):
    """The chat templates in a file or a folder.

    Fields:
        source: the default template; None if there is none.
        tokens: special tokens that it may name, by role.
        others: further templates by name, such as tool_use.
    """

    source: str | None
    tokens: dict[str, str]
    others: dict[str, str]


def read_stored_templates(place: Path) -> StoredTemplates:
    """Read the templates of a .jinja file, or of the folder of a tokenizer.

    A folder has its templates in `chat_template.jinja` and a subfolder. Older folders have them in
    tokenizer_config.json, or in chat_template.json if the model reads images.
    """
    file = place if place.is_file() else place / "chat_template.jinja"
    settings_file = file.with_name("tokenizer_config.json")
    settings = json.loads(settings_file.read_text("utf-8")) if settings_file.is_file() else {}
    tokens = {
        name: _token_text(value) for name, value in settings.items() if name.endswith("_token")
    }
    tokens = {name: token for name, token in tokens.items() if token is not None}
    source = settings.get("chat_template")
    others = dict[str, str]()
    if isinstance(source, list):  # There are several templates with names.
        others = {entry["name"]: entry["template"] for entry in source}
        source = others.pop("default")
    processor_file = file.with_name("chat_template.json")
    if source is None and processor_file.is_file() and not file.is_file():
        source = json.loads(processor_file.read_text("utf-8"))["chat_template"]
    if not file.is_file() or file == settings_file:
        return StoredTemplates(source, tokens, others)
    additional = (
        sorted((file.parent / ADDITIONAL).glob("*.jinja"))
        if file.name == "chat_template.jinja"
        else []
    )
    return StoredTemplates(
        file.read_text("utf-8"), tokens, {path.stem: path.read_text("utf-8") for path in additional}
    )


def fitting_template(special: Collection[str], named: Mapping[str, str]) -> FittingTemplate | None:
    """Return the form of ours that a base model without a template can be tuned with.

    Returns None for a model without a token that ends an answer: it would never stop.

    Args:
        special: the texts of the model's special tokens.
        named: its special tokens by role.
    """
    for mark, file in FITTING.items():
        if mark in special:
            return FittingTemplate(file, "the form that its tokens fit")
    return FittingTemplate(PLAIN, "plain headers") if "eos_token" in named else None


def _token_text(value: Any) -> str | None:
    """Return a token's text, which may stand among its properties.

    Returns None for any other setting, such as a switch.
    """
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
