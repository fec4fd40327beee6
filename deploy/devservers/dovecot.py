"""A private Dovecot: find it, write its configuration, start it.

The installed package is used, nothing system-wide is: configuration, sockets, mail and log live in a
scratch folder of our own. That folder is short-lived and directly under the system's temporary folder,
for two reasons:

* Dovecot makes unix sockets below it, and a socket path has about a hundred characters; test folders are
  longer;
* started by root, Dovecot works as several unprivileged users, who must be able to reach it; test folders
  are 0700.

Dovecot 2.4 renamed much of the configuration, and refuses a file for 2.3; `dovecot --version` decides.
Started by an ordinary user every helper process runs as that user, without chroot. The login penalty and
the failure delay are off (tests log in wrongly on purpose). New mail reaches an IDLE client after a fixed
500 ms.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from devservers.errors import ToolsMissing
from devservers.ports import answers_with
from devservers.process import Child, Say, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/sbin")
UNPRIVILEGED = "nobody"


@dataclass(frozen=True, slots=True)
class Installed:
    """The Dovecot on this machine."""

    program: str
    version: tuple[int, int, int]


def find_or_none() -> Installed | None:
    """Find a Dovecot new enough (2.3) to be used."""
    program = shutil.which("dovecot") or shutil.which("dovecot", path=os.pathsep.join(PLACES))
    if program is None:
        return None
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", said)
    if match is None:
        return None
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    return Installed(program, version) if version >= (2, 3, 0) else None


class Dovecot:
    """One Dovecot with its own scratch folder."""

    def __init__(
        self, installed: Installed, *, tls: Path, imap_port: int, lmtp_port: int, domain: str
    ) -> None:
        """Write everything down; `tls` holds `server.pem` and `server.key`."""
        self.folder = Path(tempfile.mkdtemp(prefix="squidbot-dovecot-"))
        self.child: Child | None = None
        self._installed = installed
        self._imap_port = imap_port
        self._lmtp_port = lmtp_port
        self._tls = tls
        self.folder.chmod(0o711)
        owner = _mail_owner()
        (self.folder / "mail").mkdir(mode=0o700)
        os.chown(self.folder / "mail", owner.pw_uid, owner.pw_gid)
        for name in ("server.pem", "server.key"):
            shutil.copy(tls / name, self.folder / name)
        (self.folder / "dovecot.conf").write_text(
            configuration(
                installed.version, self.folder, imap_port=imap_port, lmtp_port=lmtp_port, domain=domain
            )
        )

    @property
    def log(self) -> Path:
        """Where Dovecot says why."""
        return self.folder / "dovecot.log"

    def write_users(self, users: Mapping[str, str]) -> None:
        """Replace the table of users; a running Dovecot notices within a second."""
        path = self.folder / "users"
        new = path.with_suffix(".new")
        new.write_text("".join(f"{name}:{{PLAIN}}{password}::::::\n" for name, password in users.items()))
        new.chmod(0o644)
        new.replace(path)

    def launch(self, *, say: Say, limit_s: float) -> None:
        """Start the daemon and wait for both of its ports."""
        for leftover in ("run", "state"):
            shutil.rmtree(self.folder / leftover, ignore_errors=True)
        (self.folder / "state").mkdir()
        command = [self._installed.program, "-F", "-c", str(self.folder / "dovecot.conf")]
        self.child = Child(command, log=self.log, cwd=self.folder, remove_if_orphaned=self.folder)
        context = ssl.create_default_context(cafile=str(self._tls / "ca.pem"))
        wait_until_ready(
            lambda: (
                answers_with(self._imap_port, b"* OK", context) and answers_with(self._lmtp_port, b"220 ")
            ),
            name="Dovecot",
            child=self.child,
            limit_s=limit_s,
            say=say,
        )

    def kill(self) -> None:
        """End all of its processes at once; mail stays."""
        if self.child is not None:
            self.child.kill()
            self.child = None

    def remove(self) -> None:
        """End it and throw its folder away."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _mail_owner() -> pwd.struct_passwd:
    """Who owns the mailboxes: ourselves, or nobody when we are root (Dovecot refuses root)."""
    if os.getuid() == 0:
        try:
            return pwd.getpwnam(UNPRIVILEGED)
        except KeyError:
            raise ToolsMissing(f"run by root, Dovecot needs a user called {UNPRIVILEGED}") from None
    return pwd.getpwuid(os.getuid())


def configuration(
    version: tuple[int, int, int], folder: Path, *, imap_port: int, lmtp_port: int, domain: str
) -> str:
    """Write the configuration for this version, this user and these ports."""
    owner = _mail_owner()
    where = {"folder": str(folder), "uid": str(owner.pw_uid), "gid": str(owner.pw_gid)}
    dialect = _dialect_2_4(version, **where) if version >= (2, 4, 0) else _dialect_2_3(**where)
    chroot = "" if os.getuid() == 0 else "chroot ="
    return f"""{dialect}
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/dovecot.log
listen = 127.0.0.1
protocols = imap lmtp
hostname = {domain}
postmaster_address = postmaster@{domain}
ssl = required
recipient_delimiter = +
first_valid_uid = 1
mail_fsync = never
mail_max_userip_connections = 50
auth_failure_delay = 0
{"" if os.getuid() == 0 else _all_as_one_user(owner)}
namespace inbox {{
  inbox = yes
  mailbox Sent {{
    auto = subscribe
    special_use = \\Sent
  }}
  mailbox Drafts {{
    auto = subscribe
    special_use = \\Drafts
  }}
}}
service anvil {{
  {chroot}
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service stats {{
  {chroot}
}}
service imap-login {{
  {chroot}
  inet_listener imap {{
    port = 0
  }}
  inet_listener imaps {{
    port = {imap_port}
    ssl = yes
  }}
}}
service lmtp {{
  inet_listener lmtp {{
    port = {lmtp_port}
  }}
}}
"""


def _dialect_2_3(*, folder: str, uid: str, gid: str) -> str:
    return f"""ssl_cert = <{folder}/server.pem
ssl_key = <{folder}/server.key
mail_location = maildir:~/Maildir
passdb {{
  driver = passwd-file
  args = scheme=PLAIN username_format=%Ln {folder}/users
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={folder}/mail/%Ln
}}
"""


def _dialect_2_4(version: tuple[int, int, int], *, folder: str, uid: str, gid: str) -> str:
    number = ".".join(str(part) for part in version)
    return f"""dovecot_config_version = {number}
dovecot_storage_version = {number}
ssl_server_cert_file = {folder}/server.pem
ssl_server_key_file = {folder}/server.key
mail_driver = maildir
mail_path = ~/Maildir
passdb passwd-file {{
  passwd_file_path = {folder}/users
  default_password_scheme = PLAIN
  auth_username_format = %{{user | username | lower}}
}}
userdb static {{
  fields {{
    uid = {uid}
    gid = {gid}
    home = {folder}/mail/%{{user | username | lower}}
  }}
}}
"""


def _all_as_one_user(owner: pwd.struct_passwd) -> str:
    group = grp.getgrgid(os.getgid()).gr_name
    return f"""default_internal_user = {owner.pw_name}
default_internal_group = {group}
default_login_user = {owner.pw_name}
"""
