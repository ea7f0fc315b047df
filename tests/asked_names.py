"""Run a command in a network of its own, and print the names that it asks a name server for, as JSON.

    unshare --net --map-root-user python -m tests.asked_names COMMAND …

Libraries that are not written in Python open connections that no audit hook sees.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

GET_FLAGS, SET_FLAGS, SET_ADDRESS, UP = 0x8913, 0x8914, 0x8916, 1
"""Of Linux's interfaces."""


def main() -> int:
    servers = name_servers()
    for number, server in enumerate(servers):
        own(f"lo:{number + 1}", server)
    asked: set[str] = set()
    for server in servers:
        listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listening.bind((server, 53))
        threading.Thread(target=listen, args=(listening, asked), daemon=True).start()
    code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
    print(json.dumps(sorted(asked)))
    return code


def name_servers() -> list[str]:
    """Return the IPv4 addresses that programs send their questions to."""
    lines = Path("/etc/resolv.conf").read_text().splitlines()
    found = [words[1] for line in lines if (words := line.split())[:1] == ["nameserver"] and "." in words[1]]
    return found or ["127.0.0.1"]  # as the C library does


def own(interface: str, address: str) -> None:
    """Start the loopback interface, and give it another address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh14s", b"lo", UP, b""))
        packed = socket.inet_aton(address)
        described = struct.pack("16sH2s4s8s", interface.encode(), socket.AF_INET, b"", packed, b"")
        fcntl.ioctl(control, SET_ADDRESS, described)


def listen(server: socket.socket, asked: set[str]) -> None:
    """Collect names, and answer none of them."""
    while True:
        question = server.recv(4096)[12:]
        parts = []
        while question[0]:
            parts.append(question[1 : 1 + question[0]].decode("ascii", "replace"))
            question = question[1 + question[0] :]
        asked.add(".".join(parts))


if __name__ == "__main__":
    sys.exit(main())
