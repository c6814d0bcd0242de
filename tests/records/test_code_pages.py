"""The encoding that a refused table is likely to have: the suggested command reads the text."""

import subprocess
from pathlib import Path

import pytest

from multicard.records.separated_text import decoded
from tests.helpers.messages import find, refused


@pytest.mark.parametrize(
    ("likely", "codec", "text"),
    [
        ("GB18030", "gbk", "什么是股票,股票是公司所有权的凭证。可以买卖。"),
        ("BIG5", "cp950", "什麼是股票,股票是公司所有權的憑證。可以買賣。開戶需要身分證。"),
        ("CP932", "cp932", "株とは何ですか,会社の所有権を示す証券で、売買できます。カタカナ"),
        ("CP949", "cp949", "주식이란 무엇입니까?,회사의 소유권을 나타내는 증권입니다."),
        ("WINDOWS-1251", "cp1251", "Что такое акция?,Это ценная бумага — доля в «Ромашке»."),
        ("WINDOWS-1252", "cp1252", "Êtes-vous prêt?,Où… déjà créée; „größer“ für Müller"),
        ("WINDOWS-1252", "cp1252", "Quanto costa?,È 5 € più il caffè"),
    ],
)
def test_the_likely_code_page_is_that_of_the_texts_script(
    likely: str, codec: str, text: str, tmp_path: Path
):
    content = f"question,answer\n{text}\n".encode(codec)
    with refused("table.encoding") as caught:
        decoded(content)
    assert find(str(caught.value), "table.encoding", likely=likely, line=2)
    file, copy = tmp_path / "a.csv", tmp_path / "copy.csv"
    file.write_bytes(content)
    subprocess.run(["iconv", "-f", likely, "-t", "UTF-8", "-o", copy, file], check=True)
    assert text in decoded(copy.read_bytes())
