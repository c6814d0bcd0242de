"""Messages: what they are, and the one page that has all their sentences
(tests/goldens/messages.md).
"""

import pickle
import subprocess
import sys
from collections import Counter

import pytest
from torch._utils import ExceptionWrapper

from multicard import messages
from multicard.messages import Message, Refusal
from tests.goldens import messages as golden
from tests.helpers.messages import Told, codes, find, refused, told


def test_the_page_has_all_sentences():
    assert golden.page() == golden.PAGE.read_text(), (
        "sentences changed: python -m tests.goldens.messages"
    )


def test_each_code_stands_at_one_place():
    counted = Counter(place.code for place in golden.places())
    assert [code for code, places in counted.items() if places > 1] == []
    assert [code for code in counted if not golden.CODE.fullmatch(code)] == []


def test_a_message_is_its_code_and_facts_in_tests_and_its_sentence_elsewhere(monkeypatch):
    made = ("split.range", "dataset.split=3: give a share, as `dataset.split=0.2`")
    by_code = Message(*made, key="dataset.split", value=3)
    assert by_code == '[[split.range key="dataset.split" value=3]]'
    monkeypatch.setattr(messages, "BY_CODE", False)
    message = Message(*made, key="dataset.split", value=3)
    assert message == message.sentence == by_code.sentence == made[1]
    assert (message.code, message.key, message.facts) == (
        "split.range",
        "dataset.split",
        {"value": 3},
    )
    assert message.remedies == ["dataset.split=0.2"]
    assert pickle.loads(pickle.dumps(message)).facts == {"value": 3}


def test_a_refusal_is_a_value_error_whose_text_is_its_message():
    error = Refusal("split.range", "dataset.split=3: give a share", key="dataset.split", value=3)
    assert isinstance(error, ValueError)
    assert isinstance(str(error), Message)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.key, copy.facts, str(copy)) == (
        error.code,
        error.key,
        error.facts,
        str(error),
    )
    with refused("split.range", key="dataset.split", value=3):
        raise error


@pytest.mark.parametrize("by_code", [True, False])
def test_a_refusal_that_was_noted_is_made_again_from_the_text_of_its_traceback(
    by_code: bool, monkeypatch
):
    monkeypatch.setattr(messages, "BY_CODE", by_code)
    made = Refusal(
        "file.broken",
        "a\nb.png: cannot be decoded\nat all",
        key="dataset.root",
        image="a\nb.png",
        at=[1, 2],
    )
    error = ExceptionWrapper((Refusal, made, None), "in DataLoader worker process 0")
    with pytest.raises(RuntimeError) as plain:
        error.reraise()
    assert Refusal.noted(str(plain.value)) is None
    made.note()
    error = ExceptionWrapper((Refusal, made, None), "in DataLoader worker process 0")
    with pytest.raises(RuntimeError) as caught:
        error.reraise()
    again = Refusal.noted(str(caught.value))
    assert (
        again is not None and again.message.parts == made.message.parts and str(again) == str(made)
    )


def test_a_sentence_holds_nothing_that_a_terminal_obeys():
    text = (
        "\x1b[31mred\x1b[0m \x1b]8;;http://a\x07link\x1b]8;;\x1b\\ \x00\x07\x1b"
        " \x9b1m\u202egpj.exe\ta\nb"
    )
    shown = "red link \\x00\\x07\\x1b \\u202egpj.exe\ta\nb"
    assert messages.printable(text) == Message("a.b", text).sentence == shown
    assert Refusal("a.b", text).message.sentence == shown.replace("\n", "\\n")


def test_messages_are_found_in_what_a_command_prints():
    inner = Message("node.gone", "it is gone", host="a b")
    outer = Message(
        "sweep.stopped", f"stopped: {inner}", reason=inner, share=1 / 3, names=["x]]", "y"]
    )
    text = f"first {outer}\nthen {Message('last.one', 'the last')}"
    assert told(text) == [
        Told(
            "sweep.stopped",
            None,
            {"reason": Told("node.gone", None, {"host": "a b"}), "share": 0.333333}
            | {"names": ["x]]", "y"]},
        ),
        Told("last.one"),
    ]
    assert codes(text.replace(" ", "\n   ")) == ["sweep.stopped", "last.one"]
    assert find(text, "node.gone", host="a b").facts == {"host": "a b"}


@pytest.mark.core
@pytest.mark.usefixtures("processes")
def test_a_user_reads_sentences():
    code = "from multicard.messages import Message; print(Message('a.b', 'a sentence', value=1))"
    for mode, said in ((None, "a sentence\n"), ("codes", "[[a.b value=1]]\n")):
        env = {"MULTICARD_MESSAGES": mode} if mode else {}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
        )
        assert done.stdout == said
