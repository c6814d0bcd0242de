"""Choose the role under which a template writes a message whose own role it may not know.

Public data call the result of a function tool, function or ipython, and a template knows one or two
of the names. Qwen 2.5's template leaves out messages of the role function, and writes those of the
role tool. OpenAI calls the system's message developer, and most templates know only system.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from multicard.llm.data.turns import Message

RESULTS = ("tool", "function", "ipython")
CONTENT = "Zx-content-Qj"  # Replaces a message's content, to see whether the template writes it.
# Some templates write the system's text together with the first question.
QUESTION: Message = {"role": "user", "content": "Q"}


def with_known_roles(
    messages: Sequence[Message], tools: Any, render: Callable[..., str], source: str
) -> list[Message]:
    """Rename the roles that the template leaves out to one that it writes.

    A result gets another name for results, if the template names it. A developer's message gets
    the role system, if it is the first one.

    Args:
        render: writes messages and tools with the template.
        source: the template's text. A template that writes any role does not name the roles of
            results.
    """
    roles = dict[str, str]()
    for place, message in enumerate(messages):
        own_role = message["role"]
        if own_role in RESULTS and own_role not in roles:
            others = [role for role in RESULTS if role != own_role]
            candidates = [
                own_role,
                *(role for role in others if re.search(rf"""(["']){role}\1""", source)),
            ]
            before = messages[:place]
            written_roles = (
                role
                for role in candidates
                if _writes([*before, message | {"role": role, "content": CONTENT}], tools, render)
            )
            roles[own_role] = next(written_roles, own_role)
    renamed = [
        message | {"role": roles.get(message["role"], message["role"])} for message in messages
    ]
    if renamed and renamed[0]["role"] == "developer":
        renamed[0] |= {"role": _role_of_developer(renamed[0], tools, render)}
    return renamed


def _role_of_developer(message: Message, tools: Any, render: Callable[..., str]) -> str:
    """Return the role under which the template writes the developer's message before a question."""
    for role in ("developer", "system"):
        if _writes([message | {"role": role, "content": CONTENT}, QUESTION], tools, render):
            return role
    return "developer"


def _writes(conversation: Sequence[Message], tools: Any, render: Callable[..., str]) -> bool:
    """Tell whether the template writes the message with CONTENT."""
    try:
        return CONTENT in render(
            messages=[*conversation], tools=tools, documents=None, add_generation_prompt=False
        )
    except (jinja2.TemplateError, TypeError, ArithmeticError, LookupError, AttributeError):
        return False
