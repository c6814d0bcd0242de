"""HH-RLHF's flat dialogues: "\\n\\nHuman: ... \\n\\nAssistant: ..." in one text."""

import re
from typing import Any

from multicard.llm.data.turns import Message

MARK = re.compile(r"\n\n(Human|Assistant):")  # of HH-RLHF's flat dialogues
SPEAKERS = {"Human": "user", "Assistant": "assistant"}


def _parts(text: str) -> list[str]:
    return MARK.split(text if text.startswith("\n\n") else f"\n\n{text}")


def is_dialogue(text: Any) -> bool:
    """True of "\\n\\nHuman: ... \\n\\nAssistant: ...". One that begins with other words must end
    with "Assistant:", or it is a text that speaks of a dialogue.
    """
    if not isinstance(text, str):
        return False
    before, *marked = _parts(text)
    if not marked or marked[0] != "Human":
        return False
    return not before.strip() or (marked[-2] == "Assistant" and not marked[-1].strip())


def flat_turns(text: str) -> list[Message]:
    """A text as the user's message; a flat dialogue as its turns,
    what stands before them being the system's.
    """
    if not is_dialogue(text):
        return [{"role": "user", "content": text}]
    before, *marked = _parts(text)
    said: list[Message] = (
        [{"role": "system", "content": before.strip("\n")}] if before.strip() else []
    )
    for speaker, words in zip(marked[::2], marked[1::2], strict=True):
        if words.strip():
            said.append({"role": SPEAKERS[speaker], "content": words.removeprefix(" ")})
    return said
