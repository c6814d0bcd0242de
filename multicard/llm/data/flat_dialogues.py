"""Split HH-RLHF's dialogues, in which one text holds "\\n\\nHuman: ... \\n\\nAssistant: ..."."""

import re
from typing import Any

from multicard.llm.data.turns import Message

SPEAKER_MARK = re.compile(r"\n\n(Human|Assistant):")
SPEAKERS = {"Human": "user", "Assistant": "assistant"}


def _parts(text: str) -> list[str]:
    return SPEAKER_MARK.split(text if text.startswith("\n\n") else f"\n\n{text}")


def is_dialogue(text: Any) -> bool:
    """Tell whether a value is a text such as "\\n\\nHuman: ... \\n\\nAssistant: ...".

    If it begins with other words, it must end with "Assistant:". Otherwise it may be a text about
    a dialogue.
    """
    if not isinstance(text, str):
        return False
    before, *speakers_and_words = _parts(text)
    if not speakers_and_words or speakers_and_words[0] != "Human":
        return False
    return not before.strip() or (
        speakers_and_words[-2] == "Assistant" and not speakers_and_words[-1].strip()
    )


def flat_turns(text: str) -> list[Message]:
    """Split a dialogue into its turns. Any other text becomes a message of the user.

    Text before the first turn becomes the system's message.
    """
    if not is_dialogue(text):
        return [{"role": "user", "content": text}]
    before, *speakers_and_words = _parts(text)
    messages: list[Message] = (
        [{"role": "system", "content": before.strip("\n")}] if before.strip() else []
    )
    for speaker, words in zip(speakers_and_words[::2], speakers_and_words[1::2], strict=True):
        if words.strip():
            messages.append({"role": SPEAKERS[speaker], "content": words.removeprefix(" ")})
    return messages
