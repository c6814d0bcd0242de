"""The role of what a function returned: public data call it tool, function or ipython,
and a template knows one or two.

Qwen 2.5's leaves out messages of the role function, in whose place it writes those of tool.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from multicard.llm.data.turns import Message

ROLES = ("tool", "function", "ipython")
CONTENT = "Zx-result-Qj"  # in the place of a message's own, to see whether the template writes it


def as_known(
    said: Sequence[Message], tools: Any, render: Callable[..., str], source: str
) -> list[Message]:
    """Messages whose results have a role that the template names and writes,
    where it leaves out their own.

    Args:
        render: the template, of messages and tools.
        source: of the template. One that writes any role does not name those of results,
            and says nothing of them.
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
    """True where the template writes a message of this role at this place of a conversation."""
    asked = [*said[:place], said[place] | {"role": role, "content": CONTENT}]
    try:
        return CONTENT in render(
            messages=asked, tools=tools, documents=None, add_generation_prompt=False
        )
    except (jinja2.TemplateError, TypeError, ArithmeticError, LookupError, AttributeError):
        return False
