"""Without a network: one line with the key that needs none, and no retries."""

import gzip
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import wandb

from multicard.llm.data import hub as text_hub
from multicard.llm.data import row_sources
from multicard.machine import network
from multicard.vision.data import datasets
from tests.conftest import Measured, typed, typed_llm
from tests.helpers.messages import refused, says
from tests.vision.test_data import mnist_folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of a server of this machine that has the files of a folder,
    and answers 404 to the rest.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that takes connections and never answers."""
    monkeypatch.setattr(network, "ANSWERS_WITHIN_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a server that does answer, on a machine that may be busy."""
    monkeypatch.setattr(network, "ANSWERS_WITHIN_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_server_that_answers_anything_is_there(tmp_path: Path):
    with served(tmp_path) as url:
        assert network.problem(url) is None and network.problem(f"{url}nothing") is None


def test_a_server_that_does_not_answer_is_named_with_the_reason(refusing: str, silent: str):
    assert network.problem(refusing) == "Connection refused"
    assert str(network.problem(silent)) == "timed out" or says(
        str(network.problem(silent)), "network.no-answer"
    )


def test_mnist_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: str, silent: str
):
    monkeypatch.setattr(datasets, "MIRRORS", (refusing, silent))
    config = typed("dataset=mnist", f"dataset.root={tmp_path}", "dataset.download=true").dataset
    with pytest.raises(ValueError) as error:
        datasets.check(config)
    message = str(error.value)
    assert "dataset.download" in message and "\n" not in message
    assert "Connection refused" in message and silent in message
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("patient")
def test_mnist_comes_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: str
):
    source, root = mnist_folder(tmp_path / "there", monkeypatch), tmp_path / "here"
    config = typed("dataset=mnist", f"dataset.root={root}", "dataset.download=true").dataset
    with served(source) as url:
        monkeypatch.setattr(datasets, "MIRRORS", (refusing, url))
        datasets.check(config)
        here = root / "MNIST" / "raw"
        assert sorted(path.name for path in here.iterdir()) == sorted(
            path.name for path in source.iterdir()
        )
        (here / "t10k-labels-idx1-ubyte.gz").unlink()
        (source / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
        with pytest.raises(ValueError) as error:
            datasets.check(config)
        assert url in str(error.value) and "t10k-labels-idx1-ubyte.gz" in str(error.value)
    assert len(list(here.iterdir())) == 3
    (source / "t10k-labels-idx1-ubyte.gz").rename(here / "t10k-labels-idx1-ubyte.gz")
    with pytest.raises(ValueError) as error:  # by hand: it is there, so nothing is fetched
        datasets.check(config)
    assert "t10k-labels-idx1-ubyte.gz" in str(error.value) and refusing not in str(error.value)


@pytest.mark.parametrize("server", ["refusing", "silent"])
def test_the_hub_is_not_waited_for(server: str, tmp_path: Path, monkeypatch, request):
    import datasets as hub
    from huggingface_hub import constants

    monkeypatch.setattr(hub.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", request.getfixturevalue(server))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    offline: list[bool] = []

    def load_dataset(source: str, revision: str | None, split: str) -> hub.Dataset:
        offline.append(constants.is_offline_mode() and hub.config.HF_HUB_OFFLINE)
        return hub.Dataset.from_list([{"instruction": "a", "input": "", "output": "b"}])

    monkeypatch.setattr(hub, "load_dataset", load_dataset)
    config = typed_llm("dataset=alpaca_cleaned", "dataset.rows=1")
    revisions = tmp_path / "yahma___alpaca-cleaned" / "default" / "0.0.0"
    (revisions / "abc.incomplete").mkdir(parents=True)  # a fetch was killed
    with refused("llm.data-unfetched", key="dataset.source", value="yahma/alpaca-cleaned") as error:
        row_sources.load_rows(config)
    assert "\n" not in str(error.value) and not offline
    assert text_hub.revision("yahma/alpaca-cleaned") is None

    (revisions / "abc").mkdir()  # it was fetched before
    assert row_sources.load_rows(config)[0] == [
        {"instruction": "a", "input": "", "output": "b"}
    ] and offline == [True]
    assert not constants.is_offline_mode() and not hub.config.HF_HUB_OFFLINE


def test_what_ends_a_fetch_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import datasets as hub

    def load_dataset(source: str, revision: str | None, split: str) -> hub.Dataset:
        raise LookupError("the connection\nwas lost")

    monkeypatch.setattr(hub, "load_dataset", load_dataset)
    monkeypatch.setattr(network, "problem", lambda url: None)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    with refused("llm.data-unfetched", reason="the connection"):
        row_sources.load_rows(typed_llm("dataset=alpaca_cleaned", "dataset.rows=1"))


def test_wandb_is_not_waited_for(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, refusing: str
):
    monkeypatch.setattr(
        wandb, "setup", lambda *_: SimpleNamespace(settings=SimpleNamespace(base_url=refusing))
    )
    monkeypatch.setattr(
        wandb, "init", lambda **_: pytest.fail("it would retry for a minute and a half")
    )
    result = measured("tracker.mode=online")
    assert result["status"] == "failed" and result["epochs"] == []
    message = result["cause"]["message"]
    assert says(message, "network.unreachable", url=refusing, reason="Connection refused")
