"""`report --watch`: the cells that run now, and the page that is served to its user alone."""

import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from analysis.report import watch, watched_report
from analysis.report.watch import Onlooker, Server
from multicard.measure.timing import clock_s
from multicard.records import ownership
from multicard.records.progress import Board
from tests.analysis.conftest import Said
from tests.analysis.test_report import swept
from tests.conftest import PATIENCE_S, ROOT, SMALL
from tests.helpers import records
from tests.helpers.messages import find, says
from tests.helpers.report_view import View

NAN = float("nan")
CELL = "gpus={},lr=0.1-1a2b3c4{}"


def begin(sweep: Path, gpus: int, pid: int = 1) -> Board:
    """A cell of a sweep as it is while process `pid` measures it, and its board."""
    folder = sweep / CELL.format(gpus, gpus)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"gpus: {gpus}\nnodes: 1\nepochs: 2\nlayout: {{name: nchw}}\n"
    )
    records.claim(folder, pid=pid)
    return Board(folder, gpus, create=True)


def end(sweep: Path, gpus: int, board: Board) -> None:
    """Leave the record of a cell, as its controller does."""
    board.remove()
    records.write(sweep / CELL.format(gpus, gpus), records.vision(gpus=gpus, total_s=100.0 / gpus))
    for path in ownership.claims(sweep / CELL.format(gpus, gpus)):
        path.unlink()


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    watch = watched_report([folder], None, mix=False)
    with Server(0, watch) as server:
        Thread(target=watch.keep_up, daemon=True).start()
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def looked(onlooker: Onlooker, now_s: float) -> list[dict[str, Any]]:
    return [cell.look(now_s) for cell in onlooker.running.values()]


def asked(server: Server, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_running_cells_show_what_their_ranks_post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now_s = 0.0
    monkeypatch.setattr(watch, "OWNER_S", 0.0)
    sweep = tmp_path / "first"
    sweep.mkdir()
    swept(sweep, "gpus=1,2,4 optimizer.lr=0.1")
    board, onlooker = begin(sweep, 2), Onlooker([tmp_path, tmp_path / "absent"])
    onlooker.scan()
    shown = {"sweep": "first", "setting": "gpus=2", "share": None, "facts": ["starting"]}
    assert looked(onlooker, now_s) == [shown] and onlooker.results == {} and onlooker.cut_off == []
    for at_s, steps, rest in ((0, 10, []), (30, 40, ["loss 0.500", "16 images/s", "0:01:00 left"])):
        now_s = at_s
        for rank in (0, 1):
            board.post(rank, steps, 100, 8 * steps, steps // 50, NAN if steps == 10 else 0.5)
        (cell,) = looked(onlooker, now_s)
        assert (cell["share"], cell["facts"]) == (steps / 100, ["epoch 1/2", f"{steps} %", *rest])
    board.post(0, 40, NAN, 8 * 40, 0, 0.5)  # whatever stands in the file for a moment
    assert looked(onlooker, now_s)[0]["facts"] == ["starting"]
    board.post(0, 100, 100, 800, 1, 0.5, evaluating=True)
    assert looked(onlooker, now_s)[0]["facts"][:2] == ["epoch 2/2, evaluating", "99 %"]

    gone = begin(sweep, 1, pid=2**30)  # no such process
    end(sweep, 2, board)
    third = begin(sweep, 4)
    (sweep / CELL.format(4, 4) / ".progress").write_text("")  # as it is made
    onlooker.scan()
    assert [cell["setting"] for cell in looked(onlooker, now_s)] == ["gpus=4"]
    assert looked(onlooker, now_s)[0]["facts"] == ["starting"]
    assert [path.name for path in onlooker.cut_off] == [CELL.format(1, 1)]
    assert [path.name for path in onlooker.results] == [CELL.format(2, 2)]
    for each in (gone, third):
        each.remove()


def test_running_cells_are_seen_while_the_page_waits_to_be_made_again(tmp_path: Path):
    watch, sweep = watched_report([tmp_path], None, mix=False), tmp_path / "first"
    end(sweep, 2, begin(sweep, 2))
    watch._next_page_s = math.inf  # as after a page that took long
    board = begin(sweep, 4)
    watch._look()
    state = json.loads(watch.state())
    assert state["version"] == 0 and [cell["facts"] for cell in state["running"]] == [["starting"]]
    board.remove()


def test_pages_take_a_third_of_a_core_however_long_they_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    onlooker, sweep = watched_report([tmp_path], None, mix=False), tmp_path / "first"
    for gpus, cpu_s in ((1, 0.0), (2, 10.0)):
        end(sweep, gpus, begin(sweep, gpus))
        monkeypatch.setattr(watch, "process_time", iter((5.0, 5.0 + cpu_s)).__next__)
        onlooker._look()
        left_s = onlooker._next_page_s - clock_s()
        assert (
            json.loads(onlooker.state())["version"] == gpus and 2 * cpu_s - 5 < left_s <= 2 * cpu_s
        )


def test_the_page_is_for_who_knows_its_address(tmp_path: Path, said: Said, refused: Said):
    end(tmp_path / "first", 2, begin(tmp_path / "first", 2))
    with served(tmp_path) as server:
        own = f"/{server.token}/"
        status, page = asked(server, own)
        assert status == 200 and b"connect-src 'self'" in page and b'id="running"' in page
        said("report", tmp_path)  # whose file asks nothing of any server
        written = (tmp_path / "report.html").read_text()
        assert (
            "connect-src" not in written
            and 'id="running"' not in written
            and "/state" not in written
        )
        assert asked(server, f"{own}state", "localhost:9")[0] == 200  # at the other end of a tunnel
        for path, host in (
            ("/", None),
            (f"/{server.token[:-1]}/", None),
            (f"/{server.token}x/state", None),
            (f"{own}../etc/passwd", None),
            (f"{own}config", None),
            (own, "rebound.example:80"),
            (own, "[::1"),
        ):
            assert asked(server, path, host) == (404, b""), (path, host)
        with socket.create_connection(("127.0.0.1", server.server_port)) as rude:
            rude.sendall(f"GET {own} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        assert asked(server, own)[0] == 200
        for port, cause in ((server.server_port, "[Errno 98]"), (99999, "bind()")):
            refusal = find(
                refused("report", tmp_path, "--watch", "--port", port), "watch.port", key="--port"
            )
            assert refusal.facts["value"] == port and refusal.facts["reason"].startswith(cause)
        assert "--out" in refused("report", tmp_path, "--watch", "--out", "x.html")


def test_a_page_that_is_open_shows_cells_as_they_run_and_end(
    browser: Any, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(watch, "OWNER_S", 0.0)
    sweep = tmp_path / "first"
    with served(tmp_path) as server:
        view = View(browser, server.address)
        status = lambda: view.page.inner_text("#running [role=status]")  # noqa: E731
        view.until(lambda: says(view.page.inner_text(".top"), "watch.waiting"))
        one, two = begin(sweep, 1), begin(sweep, 2)
        view.until(lambda: says(status(), "watch.running", cells=2))
        for rank, board in ((0, one), (0, two), (1, two)):
            board.post(rank, 30, 100, 480, 0, 0.5)
        bar = view.page.get_by_role("progressbar", name="Progress: first gpus=2 lr=0.1")
        view.until(lambda: bar.get_attribute("value") == "0.3")
        assert view.page.inner_text("#running li .quiet").split(" · ") == [
            "epoch 1/2",
            "30 %",
            "loss 0.500",
        ]

        end(sweep, 1, one)
        view.until(lambda: view.page.locator("[data-grid=training] tr.run").count() == 1)
        view.page.fill("[data-grid=training] input[type=search]", "gpus>=1")
        view.sort("total s").click()
        view.page.locator("[data-grid=training] .opens").first.click()
        view.page.evaluate("document.getElementById('runs').scrollIntoView()")
        end(sweep, 2, two)
        view.until(lambda: view.page.locator("[data-grid=training] tr.run").count() == 2)
        view.until(lambda: abs(view.page.locator("#runs").bounding_box()["y"]) < 20)
        assert view.page.input_value("[data-grid=training] input[type=search]") == "gpus>=1"
        assert (
            view.page.locator("[aria-expanded=true]").count()
            == view.page.locator(".detail").count()
            == 1
        )
        assert (
            view.page.locator("[data-grid=training] [aria-sort=ascending]").inner_text()
            == "total s"
        )
        view.until(lambda: says(status(), "watch.nothing-runs"))
        origin = server.address.removesuffix(f"{server.token}/")
        assert all(address.startswith(origin) for address in view.requests) and view.messages == []
    view.until(lambda: says(status(), "page.no-answer"))
    view.page.close()


@pytest.mark.slow
def test_a_sweep_appears_as_it_runs_and_a_signal_ends_the_page_well(browser: Any, tmp_path: Path):
    started = {
        "cwd": tmp_path,
        "env": os.environ | {"PYTHONPATH": str(ROOT)},
        "stdout": subprocess.PIPE,
        "text": True,
    }
    words = ["-m", "analysis", "report", "multirun", "--watch"]
    with subprocess.Popen([sys.executable, *words], **started) as watch:
        assert watch.stdout is not None
        try:
            view = View(browser, watch.stdout.readline().strip())
            sweep = [
                str(ROOT / "train_vision.py"),
                "-m",
                *SMALL,
                "lr=0.1,0.2",
                "name=first",
                "order=typed",
            ]
            with subprocess.Popen([sys.executable, *sweep], **started):
                bars = view.page.get_by_role("progressbar", name="Progress: first lr=0.1")
                view.until(lambda: bars.count() == 1)
            view.until(lambda: view.page.locator("[data-grid=training] tr.run").count() == 2)
            assert view.messages == []
            view.page.close()
        finally:  # Popen's exit waits for it
            watch.send_signal(signal.SIGINT)
        assert watch.wait() == 0 and says(watch.stdout.read(), "watch.private")
