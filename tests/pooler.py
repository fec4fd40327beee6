"""PgBouncer in transaction mode before a server of the tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Self

import psycopg

from devservers.environment import cache_folder
from devservers.ports import lease_ports
from devservers.process import Child, wait_until_ready
from tests.postgres_server import PASSWORD, ROLE, PostgresServer, as_other

_PLACES = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"


class Pooler:
    """One PgBouncer; also a context manager that ends it."""

    def __init__(self, url: str, child: Child) -> None:
        self.url = url
        self._child = child

    @classmethod
    def program(cls) -> str | None:
        """Where PgBouncer is installed, if it is."""
        return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_PLACES)

    @classmethod
    def start(cls, server: PostgresServer, database: str) -> Self:
        """A pooler with two connections to this database of the server."""
        [lease] = lease_ports(1, cache_folder() / "ports")
        config: Path = server.folder / f"pgbouncer-{lease.port}.ini"
        users = server.folder / f"users-{lease.port}.txt"
        users.write_text(f'"{ROLE}" "{PASSWORD}"\n')
        config.write_text(
            f"[databases]\n{database} = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {lease.port}\nunix_socket_dir =\n"
            f"auth_type = plain\nauth_file = {users}\npool_mode = transaction\ndefault_pool_size = 2\n"
        )
        for path in (config, users):
            path.chmod(0o644)
        child = Child(
            as_other([str(cls.program()), str(config)]),
            log=server.folder / f"pgbouncer-{lease.port}.log",
            cwd=server.folder,
        )
        url = server.url(database, port=lease.port)

        def answers() -> bool:
            try:
                psycopg.connect(url, connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until_ready(answers, name="PgBouncer", child=child)
        return cls(url, child)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
