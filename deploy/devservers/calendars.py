"""Calendar servers: Radicale and Xandikos, each with one calendar, one task list and one address book."""

from __future__ import annotations

import base64
import http.client
import secrets
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self

from devservers.environment import cache_folder, prepare_tools
from devservers.ports import lease_ports
from devservers.process import Child, Say, wait_until_ready

if TYPE_CHECKING:
    from pathlib import Path

    from devservers.ports import PortLease

Kind = Literal["radicale", "xandikos"]
_CALDAV, _CARDDAV = "urn:ietf:params:xml:ns:caldav", "urn:ietf:params:xml:ns:carddav"


class CalendarServer:
    """A running server; also a context manager that stops it. Its account is ``you`` with ``password``."""

    username = "you"

    def __init__(
        self, kind: Kind, folder: Path, python: Path, lease: PortLease, certificate: Path | None
    ) -> None:
        """Take the parts; use `CalendarServer.start` instead."""
        self.kind = kind
        self.password = secrets.token_hex(8)
        self.port = lease.port
        self.origin = f"http{'s' if certificate else ''}://127.0.0.1:{lease.port}"
        self.url = f"{self.origin}/"
        self.home = f"/{self.username}/" if kind == "radicale" else f"/{self.username}/calendars/"
        self.books = self.home if kind == "radicale" else f"/{self.username}/contacts/"
        self._folder = folder
        self._python = python
        self._lease = lease
        self._certificate = certificate
        self._child: Child | None = None

    @classmethod
    def start(
        cls, kind: Kind, folder: Path, *, say: Say | None = None, certificate: Path | None = None
    ) -> Self:
        """
        Install what is missing and start a server with its data in ``folder``.

        Radicale speaks TLS if it has a ``certificate``, a file that contains its key, too.
        """
        python = prepare_tools("dav", say=say)
        [lease] = lease_ports(1, cache_folder() / "ports")
        server = cls(kind, folder, python, lease, certificate)
        try:
            server.launch()
            server._fill()
        except BaseException:
            server.stop()
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Start the program, also again after `kill`."""
        log = self._folder / "server.log"
        self._child = Child(self._command(), log=log, cwd=self._folder)
        wait_until_ready(self._answers, name=self.kind, child=self._child)

    def kill(self) -> None:
        """End the program at once; what it has stored stays."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stop(self) -> None:
        """End it and give its port back."""
        self.kill()
        self._lease.release()

    def request(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        """Send a request as the account: status, body and headers of the answer."""
        login = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=280)
        if self._certificate:
            context = ssl.create_default_context(cafile=self._certificate)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            link = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=280, context=context)
        try:
            sent = {"Authorization": f"Basic {login}", **(headers or {})}
            link.request(method, path, body.encode(), sent)
            answer = link.getresponse()
            return answer.status, answer.read().decode(errors="replace"), dict(answer.getheaders())
        finally:
            link.close()

    def put(self, path: str, data: str) -> None:
        """Store an object, whatever is there."""
        kind = "text/vcard" if "BEGIN:VCARD" in data else "text/calendar"
        status, told, _ = self.request("PUT", path, data, {"Content-Type": f"{kind}; charset=utf-8"})
        assert status < 300, (status, told)

    def names(self, collection: str = "main") -> list[str]:
        """The names of the objects in a collection."""
        found = self.request("PROPFIND", f"{self.home}{collection}/", headers={"Depth": "1"})[1]
        hrefs = [part.partition("<")[0] for part in found.replace("ns0:", "").split("href>")[1::2]]
        return sorted(href.rpartition("/")[2] for href in hrefs if href.endswith(".ics"))

    def _command(self) -> list[str]:
        data = self._folder / "data"
        if self.kind == "xandikos":
            options = [
                "--directory",
                str(data),
                "--defaults",
                "--current-user-principal",
                f"/{self.username}/",
            ]
            place = ["--listen-address", "127.0.0.1", "--port", str(self.port)]
            return [str(self._python), "-m", "xandikos", "serve", *options, *place]
        users = self._folder / "users"
        users.write_text(f"{self.username}:{self.password}\n")
        options = [f"--auth-htpasswd-filename={users}", f"--storage-filesystem-folder={data}"]
        return [
            *(str(self._python), "-m", "radicale", "--config=", f"--server-hosts=127.0.0.1:{self.port}"),
            *(self._tls_options()),
            *("--auth-type=htpasswd", "--auth-htpasswd-encryption=plain", "--auth-delay=0", *options),
        ]

    def _tls_options(self) -> list[str]:
        path = self._certificate
        return [f"--server-certificate={path}", f"--server-key={path}", "--server-ssl"] if path else []

    def _answers(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self.request("OPTIONS", "/")[0] < 500
        return False

    def _fill(self) -> None:
        event, todo = '<c:comp name="VEVENT"/>', '<c:comp name="VTODO"/>'
        for path, title, kinds in (
            (f"{self.home}main/", "Personal", event),
            (f"{self.home}todo/", "Tasks", todo),
            (f"{self.books}people/", "People", ""),
        ):
            kind = "<c:calendar/>" if kinds else "<a:addressbook/>"
            components = f"<c:supported-calendar-component-set>{kinds}</c:supported-calendar-component-set>"
            body = (
                f'<mkcol xmlns="DAV:" xmlns:c="{_CALDAV}" xmlns:a="{_CARDDAV}"><set><prop><resourcetype>'
                f"<collection/>{kind}</resourcetype><displayname>{title}</displayname>"
                f"{components if kinds else ''}</prop></set></mkcol>"
            )
            status, told, _ = self.request("MKCOL", path, body, {"Content-Type": "application/xml"})
            assert status == 201, (status, told)
