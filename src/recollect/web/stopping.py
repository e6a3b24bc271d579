"""Ending a server that is asked to end, though it is in the middle of something long."""

import os
import sys
import threading
from types import FrameType
from typing import Any

PATIENCE = 5.0
"""Seconds that requests under way are waited for; to look for duplicates may take a minute."""


def end_in_time(server: Any, patience: float = PATIENCE) -> threading.Event:
    """Let a server of uvicorn end soon after a signal, at once after a second one, whatever it is doing.

    Nothing is lost by that: every click is on disk before it is answered, and what is written besides is whole or not
    there. The threads that requests are answered in cannot be stopped, so the process ends with them.

    Returns:
        To be set when the server has ended by itself.
    """
    usual, asked, ended = server.handle_exit, threading.Event(), threading.Event()

    def leave(number: int) -> None:
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(128 + number)

    def wait(number: int) -> None:
        if not ended.wait(patience):
            leave(number)

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            leave(number)
        asked.set()
        threading.Thread(target=wait, args=[number], name="ending", daemon=True).start()
        usual(number, frame)

    server.handle_exit = handle
    return ended
