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


def with_known_roles(
    messages: Sequence[Message], tools: Any, render: Callable[..., str], source: str
) -> list[Message]:
    """Rename the roles of results that the template leaves out to one that it names and writes.

    Args:
        render: writes messages and tools with the template.
        source: the template's text. A template that writes any role does not name the roles of
            results.
    """
    roles = dict[str, str]()
    for place, message in enumerate(messages):
        own_role = message["role"]
        if own_role in ROLES and own_role not in roles:
            others = [role for role in ROLES if role != own_role]
            candidates = [
                own_role,
                *(role for role in others if re.search(rf"""(["']){role}\1""", source)),
            ]
            written_roles = (
                role for role in candidates if _writes_role(role, messages, place, tools, render)
            )
            roles[own_role] = next(written_roles, own_role)
    return [message | {"role": roles.get(message["role"], message["role"])} for message in messages]


def _writes_role(
    role: str, messages: Sequence[Message], place: int, tools: Any, render: Callable[..., str]
) -> bool:
    """Tell whether the template writes a message of this role at this place of a conversation."""
    conversation = [*messages[:place], messages[place] | {"role": role, "content": CONTENT}]
    try:
        return CONTENT in render(
            messages=conversation, tools=tools, documents=None, add_generation_prompt=False
        )
    except (jinja2.TemplateError, TypeError, ArithmeticError, LookupError, AttributeError):
        return False
