"""Tells systemd that a service is ready, still answers, and stops (`Type=notify`, `WatchdogSec=`; sd_notify(3)).

Without systemd nothing is sent. The variables are taken out of the environment, so that processes that this one starts
do not speak for it.
"""

import asyncio
import contextlib
import os
import socket


class ServiceManager:
    """The service manager that started this process, if it wants to be told."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        limit_us, of_pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        is_watched = limit_us.isdecimal() and of_pid in ("", str(os.getpid()))
        # Half of the limit, as sd_watchdog_enabled(3) advises.
        self._period_s = int(limit_us) / 2e6 if is_watched else 0.0

    def ready(self) -> None:
        """Say that the service is ready, and from then on that the running event loop turns."""
        self._send("READY=1")
        if self._period_s:
            self._turn()

    def stopping(self) -> None:
        """Say that the service stops. The loop still tells that it turns: a stop may take long."""
        self._send("STOPPING=1")

    def _turn(self) -> None:
        self._send("WATCHDOG=1")
        asyncio.get_running_loop().call_later(self._period_s, self._turn)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the null byte of an abstract socket.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.send(state.encode())
