"""`python -m shardwise`: serve the explorer with Voila on this machine and open it.

Everything the page needs is on this machine; Ctrl+C ends the server and its kernels.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent
USUAL_PORT = 8866


class CannotServe(Exception):
    """A reason, in one sentence, why no server can be started."""


def notebooks_folder() -> Path:
    """Where the notebooks are: in the installed package, or in the checkout around it."""
    for folder in (PACKAGE / "notebooks", PACKAGE.parents[1] / "notebooks"):
        if (folder / "voila.json").is_file():
            return folder
    raise CannotServe(f"There are no notebooks in {PACKAGE}; install Shardwise again.")


def notebook_path(name: str) -> Path:
    """The notebook of that name, with or without `.ipynb`; a path to another one also works."""
    folder = notebooks_folder()
    for path in (folder / f"{name}.ipynb", folder / name, Path(name)):
        if path.suffix == ".ipynb" and path.is_file():
            return path.resolve()
    names = ", ".join(sorted(path.stem for path in folder.glob("*.ipynb"))) or "none"
    raise CannotServe(f"There is no notebook {name!r}; there are: {names}.")


def port_is_free(port: int) -> bool:
    """Whether a server can listen there on this machine."""
    with socket.socket() as probe:
        if os.name == "posix":  # as Tornado does; on Windows it would share the port instead
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def chosen_port(wanted: int | None) -> int:
    """The port asked for, or the usual one, or any free one."""
    if wanted is not None:
        if not 1 <= wanted <= 65535:
            raise CannotServe(f"Port {wanted} does not exist; choose one from 1024 to 65535.")
        if not port_is_free(wanted):
            raise CannotServe(
                f"Port {wanted} is taken; choose another with --port, or leave --port out."
            )
        return wanted
    if port_is_free(USUAL_PORT):
        return USUAL_PORT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def voila_module() -> ModuleType:
    """Voila's application, or the sentence that says how to install it."""
    try:
        return import_module("voila.app")
    except ImportError as missing:
        raise CannotServe(
            f"The explorer needs Voila ({missing}): python -m pip install 'shardwise[app]'"
        ) from missing


def prepare_environment() -> None:
    """Let the server find Shardwise's page template, and its kernels answer without echoes."""
    folders = [str(PACKAGE / "jupyter"), os.environ.get("JUPYTER_PATH", "")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, folders))
    os.environ.setdefault("JUPYTER_WIDGETS_ECHO", "0")


def voila_arguments(notebook: Path, port: int, browser: bool) -> list[str]:
    """What Voila is told; the rest stands in `notebooks/voila.json`."""
    arguments = [
        str(notebook),
        f"--Voila.config_file_paths={notebooks_folder()}",
        f"--port={port}",
        "--Voila.port_retries=0",
        "--Voila.ip=127.0.0.1",
        "--Voila.log_level=WARN",
    ]
    return arguments if browser else [*arguments, "--no-browser"]


def parsed(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the options meant for Voila."""
    parser = argparse.ArgumentParser(
        prog="python -m shardwise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Other options go to Voila, as in --VoilaConfiguration.theme=dark.",
        allow_abbrev=False,
    )
    parser.add_argument("notebook", nargs="?", default="explorer", help="default: explorer")
    parser.add_argument("--port", type=int, help=f"default: {USUAL_PORT}, or a free one")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    return parser.parse_known_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; 1 and one sentence when that is not possible."""
    options, for_voila = parsed(arguments)
    try:
        notebook = notebook_path(options.notebook)
        port = chosen_port(options.port)
        voila = voila_module()
    except CannotServe as reason:
        print(reason, file=sys.stderr)
        return 1
    prepare_environment()
    app = voila.Voila()
    app.initialize([*voila_arguments(notebook, port, not options.no_browser), *for_voila])
    print(f"Shardwise: http://127.0.0.1:{port}/  (Ctrl+C ends it)", flush=True)
    app.start()
    return 0


if __name__ == "__main__":
    sys.exit(main())
