"""Commands about the installation: doctor, completion."""

from __future__ import annotations

from typing import Literal

from equipoise.cli.app import SETUP, Flag, app, command
from equipoise.cli.exit_codes import ExitCode
from equipoise.core.output import print_json, say


@command(SETUP, "doctor", "doctor --deep", "doctor --json > doctor.json    # for a bug report")
def doctor(*, deep: Flag = False, json: Flag = False) -> None:
    """Check this installation: versions, device, extras, weights, data and free space.

    The exit code is 1 if something that equipoise needs is broken. Nothing is downloaded or changed.

    Parameters
    ----------
    deep
        Also import all optional packages and verify the pretrained weights (takes a few seconds longer).
    json
        Print the findings as one JSON object, without secrets and user names.
    """
    from equipoise.app.doctor import examine

    report = examine(deep)
    if json:
        print_json(report.to_dict())
    else:
        say(*report.lines())
    if not report.healthy:
        raise SystemExit(ExitCode.PROBLEM)


@command(
    SETUP,
    'completion bash    # then: eval "$(equipoise completion bash)"',
    "completion zsh > ~/.zsh/completions/_equipoise",
    "completion fish > ~/.config/fish/completions/equipoise.fish",
)
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a shell script that completes commands and options.

    Parameters
    ----------
    shell
        The shell to write the script for.
    """
    say(*app.generate_completion(shell=shell).rstrip("\n").split("\n"))
