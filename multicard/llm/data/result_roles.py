"""Choose the role under which a template writes the result of a function.

Public data call this role tool, function or ipython, and a template knows one or two of the names.
Qwen 2.5's template leaves out messages of the role function, and writes those of the role tool.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from multicard.llm.data.turns import Message

ROLES = ("tool", "function", "ipython")
CONTENT = "Zx-result-Qj"  # Replaces a message's content, to see whether the template writes it.


def as_known(
    said: Sequence[Message], tools: Any, render: Callable[..., str], source: str
) -> list[Message]:
    """Rename the roles of results that the template leaves out to one that it names and writes.

    Args:
        render: writes messages and tools with the template.
        source: the template's text. A template that writes any role does not name the roles of
            results.
    """
    roles = dict[str, str]()
    for place, each in enumerate(said):
        own = each["role"]
        if own in ROLES and own not in roles:
            others = [role for role in ROLES if role != own]
            names = [own, *(role for role in others if re.search(rf"""(["']){role}\1""", source))]
            written = (role for role in names if _is_written(role, said, place, tools, render))
            roles[own] = next(written, own)
    return [each | {"role": roles.get(each["role"], each["role"])} for each in said]


def _is_written(
    role: str, said: Sequence[Message], place: int, tools: Any, render: Callable[..., str]
) -> bool:
    """Tell whether the template writes a message of this role at this place of a conversation."""
    asked = [*said[:place], said[place] | {"role": role, "content": CONTENT}]
    try:
        return CONTENT in render(
            messages=asked, tools=tools, documents=None, add_generation_prompt=False
        )
    except (jinja2.TemplateError, TypeError, ArithmeticError, LookupError, AttributeError):
        return False
