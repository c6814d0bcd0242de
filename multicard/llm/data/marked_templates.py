"""Adapt the source of a chat template, so that it marks answers and reads the messages' form.

`{% generation %}` becomes a filter that writes MARK around an answer. For well-known templates
without the tag, TRL has training forms that have it.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2

Row = dict[str, Any]

# `{% generation %}` is the tag with which a template marks the text that the model writes. It is
# replaced by a filter that puts MARK before and after this text.
GENERATION_TAG = re.compile(r"({%[-+]?\s*)(end)?generation\b")
MARK = "\0generation\0"
CONTENT = "\0content\0"  # Replaces a message's content, to show the text that the template adds.


def with_mark_filters(source: str) -> str:
    """Replace `{% generation %}` in a template's source by the filter that writes MARK."""
    return GENERATION_TAG.sub(
        lambda tag: tag[1] + ("endfilter" if tag[2] else "filter generation"), source
    )


def adapt_to_parts(render: Callable[..., str]) -> Callable[..., str]:
    """Return a function that gives the template its messages in the form that it reads.

    Some templates of models that read images expect a list of parts, and write nothing if the
    content is a plain text.
    """

    def render_parts(messages: list[Row], **options: Any) -> str:
        return render(messages=[_with_text_part(message) for message in messages], **options)

    return render_parts if not _writes_texts(render) and _writes_texts(render_parts) else render


def _with_text_part(message: Row) -> Row:
    content = message.get("content")
    return (
        message | {"content": [{"type": "text", "text": content}]}
        if isinstance(content, str)
        else message
    )


def _writes_texts(render: Callable[..., str]) -> bool:
    """Tell whether a template writes the text of a question and of its answer."""
    messages = [{"role": role, "content": f"{CONTENT}{role}"} for role in ("user", "assistant")]
    try:
        text = render(messages=messages, tools=None, documents=None, add_generation_prompt=False)
    except (jinja2.TemplateError, TypeError, AttributeError, LookupError):
        return False
    return all(message["content"] in text for message in messages)


@lru_cache(maxsize=1)
def _training_forms() -> dict[str, Path]:
    """Map the source of each template that TRL knows to the file of its training form."""
    trl = find_spec("trl")
    folder = Path(trl.origin).parent / "chat_templates" if trl is not None and trl.origin else None
    if folder is None or not folder.is_dir():
        return {}
    forms = {
        path: path.with_name(f"{path.stem}_training.jinja")
        for path in sorted(folder.glob("*.jinja"))
    }
    return {path.read_text("utf-8").strip(): form for path, form in forms.items() if form.is_file()}


def training_form_of(source: str) -> str | None:
    """Return TRL's form of a template with marks around answers; None if TRL has none."""
    form = _training_forms().get(source.strip())
    return None if form is None else form.read_text("utf-8")
