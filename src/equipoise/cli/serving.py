"""The command that serves a model as a page and an API."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equipoise.cli.app import MODELS, Flag, command

TOKEN_VARIABLE = "EQUIPOISE_TOKEN"  # noqa: S105 - a name, no secret


@command(MODELS, "serve pets --open", "serve --demo", "serve pets --host 0.0.0.0 --token auto")
def serve(
    model: Path | None = None,
    *,
    port: int = 8765,
    host: str = "127.0.0.1",
    token: str | None = None,
    allow_host: Annotated[list[str] | None, Parameter(negative=())] = None,
    open_: Annotated[Flag, Parameter(name="--open")] = False,
    demo: Flag = False,
    json: Flag = False,
) -> None:
    """Serve a page to teach and try a model with photos or a webcam, and an API for other programs.

    Parameters
    ----------
    model
        Directory of the model; if it does not exist, the page creates it.
    port
        Port to listen on; 0 chooses a free one.
    host
        Address to listen on; any address that other machines can reach needs a token.
    token
        Secret that clients must send, or auto to generate one (default: the environment variable EQUIPOISE_TOKEN).
    allow_host
        Additional host name that the server answers to, for example that of a proxy; may be repeated.
    open_
        Open the page in a browser.
    demo
        Serve a temporary model with sample pictures, instead of a model of your own.
    json
        Print the address as one JSON object.
    """
    from equipoise.core.extras import require

    for package in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(package, "serve", "`equipoise serve`")
    from equipoise.serve.server import ServeOptions
    from equipoise.serve.server import serve as run

    token = token or os.environ.get(TOKEN_VARIABLE) or None
    if token == "auto":  # noqa: S105 - it asks for one
        token = secrets.token_urlsafe(24)
    run(model, ServeOptions(host, port, token, tuple(allow_host or ()), open_, demo, json))
