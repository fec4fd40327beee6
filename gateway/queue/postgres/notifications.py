"""
Notifies the other processes on a database of new work for them, with NOTIFY.

Theory of operation. One thread with a connection of its own listens, and sends the notifications. It sends
after the commit in question, in a transaction that is not synced. NOTIFY in the transaction itself would hold
a lock on the whole database during its sync, so all commits of the server would wait for each other.

A notification may get lost, with a connection or a process, so nothing may depend on one. The waiting parts
also poll, at long intervals while `Notifications.listening`, and after each new connection they are told to
poll.

A pooler in transaction mode passes NOTIFY on and loses LISTEN. Behind one, this process notifies others and
hears nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
import socket
import threading
from collections.abc import Callable

import anyio
import psycopg
import structlog
from psycopg import sql

from agent_core.backoff import BackoffPolicy
from gateway.queue.postgres.connection import SCHEMA, is_pooled
from gateway.queue.sql.engine import Connection

_AGAIN = BackoffPolicy(first_s=1.0, cap_s=30.0)
_MOST = 100
"""The maximum number of names waiting to be sent; polling finds the rest."""
_CLOSE_LIMIT_S = 3.0
# For a server that ends idle connections; it has that limit from version 14 on.
_NEVER_IDLE = (
    "SELECT set_config(name, '0', false) FROM pg_settings"
    " WHERE name = 'idle_session_timeout' AND setting <> '0'"
)
_log = structlog.get_logger(__name__)
Heard = Callable[[str | None], object]


def tell_once(db: Connection, home: int, name: str) -> None:
    """Notify all processes with the commit of this transaction; for rare events."""
    db.execute("SELECT pg_notify(?, ?)", (_channel_of(home), _payload(name)))


def _channel_of(home: int) -> str:
    return f"{SCHEMA}.{home}"


def _payload(name: str) -> str:
    return name.replace("\0", "\ufffd")


class Notifications:
    """
    The notifications between processes: names, usually of accounts, and nothing of a message.

    Args:
        connect: Opens a connection; called on a thread.
        home: Processes of another home do not receive them.
    """

    def __init__(self, where: str, connect: Callable[[], psycopg.Connection], home: int) -> None:
        self._where = where
        self._connect = connect
        self._channel = _channel_of(home)
        self._to_tell: dict[str, None] = {}
        self._changing = threading.Lock()
        self._bell: socket.socket | None = None
        self._closing = threading.Event()
        self.listening = False
        """Whether notifications of other processes are received."""

    def tell(self, name: str) -> None:
        """Notify the other processes; return at once. A name that already waits to be sent is sent once."""
        with self._changing:
            if len(self._to_tell) < _MOST:
                self._to_tell[name] = None
        self._ring()

    async def run(self, heard: Heard) -> None:
        """
        Connect, send and listen until cancelled; call it once.

        ``heard`` is called on the event loop with the name that another process has sent, and with None if a
        notification may have been missed.
        """
        loop = asyncio.get_running_loop()

        def on_loop(name: str | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(heard, name)

        bell, self._bell = socket.socketpair()
        thread = threading.Thread(
            target=self._main, args=(bell, on_loop), name="store-notifications", daemon=True
        )
        thread.start()
        try:
            await loop.create_future()
        finally:
            self._closing.set()
            self._ring()
            # It may be connecting, for which nobody waits: it ends by itself after that.
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(thread.join, _CLOSE_LIMIT_S)
            self._bell.close()

    def _ring(self) -> None:
        if self._bell is not None:
            with contextlib.suppress(OSError):  # the socket is full of wake-ups, or its other end is closed
                self._bell.send(b"\0", socket.MSG_DONTWAIT)

    # ── on the thread ──

    def _main(self, bell: socket.socket, heard: Heard) -> None:
        attempt = 0
        with bell:
            while not self._closing.is_set():
                try:
                    with self._connect() as db:
                        attempt = 0
                        self._serve(db, bell, heard)
                except (psycopg.Error, OSError) as error:
                    self.listening = False
                    attempt += 1
                    wait_s = _AGAIN.delay(attempt, random=random.random())
                    told = {"error": type(error).__name__, "retry_in_s": round(wait_s, 1)}
                    _log.info("notifications.interrupted", path=self._where, **told)
                    self._closing.wait(wait_s)
                finally:
                    self.listening = False

    def _serve(self, db: psycopg.Connection, bell: socket.socket, heard: Heard) -> None:
        own = db.info.backend_pid

        def one(pid: int, name: str) -> None:
            if pid != own:
                heard(name)

        db.add_notify_handler(lambda told: one(told.pid, told.payload))  # arrives while this process sends
        if is_pooled(db):
            _log.info("notifications.not_heard", path=self._where, why="a pooler is in between")
        else:
            db.execute(_NEVER_IDLE, prepare=False)
            db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)), prepare=False)
            self.listening = True
        heard(None)
        with selectors.DefaultSelector() as selector:
            selector.register(bell, selectors.EVENT_READ)
            selector.register(db, selectors.EVENT_READ)
            while not self._closing.is_set():
                self._send(db)
                db.pgconn.consume_input()
                while told := db.pgconn.notifies():
                    one(told.be_pid, told.extra.decode(errors="replace"))
                for ready, _ in selector.select():
                    if ready.fileobj is bell:
                        bell.recv(4096)

    def _send(self, db: psycopg.Connection) -> None:
        with self._changing:
            names, self._to_tell = self._to_tell, {}
        if not names:
            return
        each = [sql.SQL("pg_notify({}, {})").format(self._channel, _payload(name)) for name in names]
        text = "BEGIN; SET LOCAL synchronous_commit = off; SELECT {}; COMMIT"
        try:
            db.execute(sql.SQL(text).format(sql.SQL(", ").join(each)), prepare=False)
        except psycopg.Error:
            with self._changing:
                self._to_tell = {**names, **self._to_tell}
            raise
