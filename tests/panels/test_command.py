"""`python -m shardwise`: what it refuses, in which words, and what it tells Voila."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Coroutine
from pathlib import Path

import pytest

from shardwise import __main__ as command


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence says which port and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = str(Path(__file__).parents[1] / "browser" / "pages" / "building_blocks.ipynb")
        assert command.main([path, f"--port={port}", "--no-browser"]) == 1
    assert f"Port {port} is taken" in capsys.readouterr().err


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_an_impossible_port_is_refused(port: int) -> None:
    """Only ports that exist can be asked for."""
    with pytest.raises(command.CannotServe, match="does not exist"):
        command.chosen_port(port)


def test_another_port_is_taken_when_the_usual_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --port, somebody else's server is no obstacle."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(command, "USUAL_PORT", taken.getsockname()[1])
        assert command.chosen_port(None) != taken.getsockname()[1]


def test_missing_voila_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever installed the core alone learns what to install."""

    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(command, "import_module", absent)
    with pytest.raises(command.CannotServe, match=r"pip install 'shardwise\[app\]'"):
        command.voila_module()


def test_an_unknown_notebook_is_refused_with_the_known_ones() -> None:
    """A misspelled name is answered with the names there are."""
    with pytest.raises(command.CannotServe, match="no notebook 'exploror'"):
        command.notebook_path("exploror")


def test_voila_is_told_no_more_than_it_must_be(tmp_path: Path) -> None:
    """Everything else stands in voila.json, which every way of starting reads."""
    arguments = command.voila_arguments(tmp_path / "a.ipynb", 9000, False)
    assert "--port=9000" in arguments and "--no-browser" in arguments
    assert "--no-browser" not in command.voila_arguments(tmp_path / "a.ipynb", 9000, True)


def test_the_template_is_found_and_the_echo_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels inherit the environment; the reader's own Jupyter path is kept behind ours."""
    monkeypatch.setenv("JUPYTER_PATH", "/somewhere")
    monkeypatch.setenv("JUPYTER_WIDGETS_ECHO", "1")  # so that it is restored afterwards
    monkeypatch.delenv("JUPYTER_WIDGETS_ECHO")
    command.prepare_environment()
    first, last = os.environ["JUPYTER_PATH"].split(os.pathsep)
    assert (Path(first) / "nbconvert" / "templates" / "shardwise" / "index.html.j2").is_file()
    assert last == "/somewhere"
    assert os.environ["JUPYTER_WIDGETS_ECHO"] == "0"


def test_both_servers_use_the_prompt_connection_and_cull() -> None:
    """Voila and JupyterLab are configured alike; Voila's kernels are gone within two minutes."""
    folder = command.notebooks_folder()
    voila = json.loads((folder / "voila.json").read_text(encoding="utf-8"))
    server = json.loads((folder / "jupyter_server_config.json").read_text(encoding="utf-8"))
    name = "kernel_websocket_connection_class"
    assert voila["Voila"][name] == server["ServerApp"][name]
    assert voila["Voila"][name] == "shardwise.server.PromptKernelConnection"
    culling = voila["MappingKernelManager"]
    assert 0 < culling["cull_idle_timeout"] + culling["cull_interval"] <= 110
    assert server["MappingKernelManager"]["cull_idle_timeout"] > 0


def test_the_prompt_connection_sets_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP_NODELAY is set before anything is sent."""
    from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

    from shardwise.server import PromptKernelConnection

    order: list[object] = []

    class Handler:
        def set_nodelay(self, on: bool) -> None:
            order.append(on)

    class Connection(PromptKernelConnection):
        websocket_handler = Handler()

    monkeypatch.setattr(ZMQChannelsWebsocketConnection, "connect", lambda _: order.append("open"))
    PromptKernelConnection.connect(Connection.__new__(Connection))
    assert order == [True, "open"]


def finished(coroutine: Coroutine[None, None, None]) -> None:
    """Run what never waits; a browser test in the same process may hold the event loop."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_a_kernel_fresh_from_the_pool_is_not_culled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle time counts from when the pool let it go, also when it was met while it was made."""
    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from shardwise import server

    clock = [0.0]
    asked: list[float] = []

    async def parent(_: object, kernel_id: str) -> None:
        asked.append(clock[0])

    monkeypatch.setattr(AsyncMappingKernelManager, "cull_kernel_if_idle", parent)
    monkeypatch.setattr(server, "monotonic", lambda: clock[0])
    manager = server.PatientKernelManager(cull_interval=15, cull_idle_timeout=45)
    monkeypatch.setattr(type(manager), "__contains__", lambda _, kernel_id: True)
    rounds = [0.0, *range(600, 720, 15)]  # met while it was made; then ten minutes in the pool
    for clock[0] in rounds:
        finished(manager.cull_kernel_if_idle("kernel"))
    assert asked[0] == 645


def test_a_forgotten_kernel_is_not_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the manager no longer has leaves no trace."""
    from shardwise.server import PatientKernelManager

    manager = PatientKernelManager(cull_interval=15, cull_idle_timeout=45)
    finished(manager.cull_kernel_if_idle("gone"))
    assert manager._met == {}
