"""The commands ``squidbot backup`` and ``squidbot restore``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gateway.cli.command_context import HERE, Json, Where, asker, confirm
from gateway.cli.output import print_result, quiet_logs

if TYPE_CHECKING:
    from gateway.operations.backup.archive import VerifiedBackup
    from gateway.operations.backup.create import BackupSource, CreatedBackup
    from gateway.operations.backup.restore import RestoredBackup
    from gateway.system.home import Home

PASSPHRASE = "SQUIDBOT_BACKUP_PASSPHRASE"  # noqa: S105 - the name of a variable
_PassphraseFile = Annotated[
    Path | None,
    Parameter(help=f"A file whose first line is the passphrase (default: ${PASSPHRASE}, or a prompt)."),
]


def backup(
    file: Path,
    /,
    *,
    with_secrets: bool = False,
    encrypt: bool = False,
    passphrase_file: _PassphraseFile = None,
    keep: int | None = None,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    Back up everything into one file, whether the daemon is running or not.

    The keys of the Matrix device are left out on purpose: a restored squidbot logs in as a new one.

    Args:
        file: A folder (created if missing), in which the file is named by its time, or a new file with a
            suffix such as .tar.gz.
        with_secrets: Include the passwords and keys of the configuration and the secret files that it names.
        encrypt: Encrypt the file with a passphrase.
        keep: Keep only this many of the newest backups in the folder.
    """
    from datetime import UTC

    from gateway.operations.backup.contents import note_backup
    from gateway.operations.backup.create import backup_name, make_backup, make_folder, prune_backups
    from gateway.operations.operation_arguments import RequestInvalid
    from gateway.system.home import Home, find_home

    quiet_logs(verbose=where.verbose)
    home = Home(find_home(where.home))
    in_folder = file.is_dir() or not (file.suffix or file.exists())
    if keep is not None and (not in_folder or keep < 1):
        raise RequestInvalid("--keep needs a folder as FILE, and a number of at least 1")
    source, notes = _source(home, where, with_secrets=with_secrets)
    passphrase = _passphrase(passphrase_file, new=True) if encrypt else None
    now = datetime.now(UTC)
    if in_folder:
        make_folder(file)
    target = (file / backup_name(now, encrypted=encrypt) if in_folder else file).absolute()
    made = make_backup(target, source, now=now, passphrase=passphrase)
    note_backup(home.root, target, now=now)
    removed = prune_backups(target.parent, keep) if keep is not None else []
    answer = _made(made, notes, [str(path) for path in removed])
    print_result(as_json, answer, _made_text(made, notes, len(removed)))
    return 0


def _source(home: Home, where: Where, *, with_secrets: bool) -> tuple[BackupSource, list[str]]:
    """The content of a backup, and notes about what it lacks."""
    from gateway.operations.backup.backup_settings import kept_config
    from gateway.operations.backup.contents import BackupSelection
    from gateway.operations.backup.create import BackupSource

    ask = asker(where)
    config = kept_config(home.root, where.config_path or home.config_file, with_secrets=with_secrets)
    notes = list(config.notes)
    if not with_secrets:
        notes.append("files of secrets were left out (--with-secrets)")
    source = BackupSource(
        BackupSelection(home.root, config.workspace, with_secrets=with_secrets),
        lambda: ask.call("backup_snapshot"),
        config.text,
        {"notes": notes, "secrets": with_secrets},
        config.secrets,
    )
    return source, notes


def _made(made: CreatedBackup, notes: list[str], removed: list[str]) -> dict[str, Any]:
    return {
        "file": str(made.path),
        "files": made.files,
        "content_bytes": made.content_bytes,
        "bytes": made.bytes,
        "seconds": round(made.seconds, 3),
        "running": made.running,
        "left_out": list(made.left_out),
        "notes": notes,
        "removed": removed,
    }


def _made_text(made: CreatedBackup, notes: list[str], removed: int) -> str:
    from gateway.system.terminal_text import plain_line

    sizes = f"{_size(made.content_bytes)}, {_size(made.bytes)} on the disk"
    lines = [f"{made.path}: {made.files} files, {sizes}, in {made.seconds:.1f} s"]
    lines += [f"note: {note}" for note in notes]
    lines += [f"left out: {plain_line(name)}" for name in made.left_out[:20]]
    lines += [f"{removed} older backups were removed"] if removed else []
    return "\n".join(lines)


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def restore(
    file: Path | None = None,
    /,
    *,
    finish: bool = False,
    passphrase_file: _PassphraseFile = None,
    moved: bool = False,
    until: datetime | None = None,
    replace: bool = False,
    look: bool = False,
    yes: bool = False,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    Restore a backup into an empty home folder; the daemon must be stopped.

    Work in progress at the time of the backup is not simply repeated: squidbot looks for answers that may
    have arrived, and quarantines messages that may have been answered since.

    Args:
        file: The backup.
        finish: Finish an interrupted restore instead; this needs no file.
        moved: The daemon was stopped before the backup and has not run since, so nothing is quarantined.
        until: The latest time at which the lost daemon can have run (default: now), such as 2026-01-03T14:05.
        replace: Move the present content of the home folder aside.
        look: Only verify the file and show what it contains.
        yes: Do not ask.
    """
    from datetime import UTC

    from gateway.operations.backup.archive import needs_passphrase
    from gateway.operations.backup.restore import finish_restore
    from gateway.operations.backup.restore import restore as bring_back
    from gateway.operations.operation_arguments import RequestInvalid
    from gateway.system.home import find_home

    quiet_logs(verbose=where.verbose)
    root = find_home(where.home)
    if (file is None) is not finish:
        raise RequestInvalid("name a backup, or give --finish for an interrupted restore, not both")
    if file is None:
        return _report(finish_restore(root), where, as_json=as_json)
    passphrase = _passphrase(passphrase_file, new=False) if needs_passphrase(file) else None
    if look:
        return _show_content(file, passphrase, as_json=as_json)
    if until is not None and until.tzinfo is None:
        until = until.astimezone()
    done = bring_back(
        file,
        root,
        now=datetime.now(UTC),
        passphrase=passphrase,
        replace=replace,
        moved=moved,
        until=until,
        agreed=lambda looked: _agree(looked, root, yes=yes, as_json=as_json),
    )
    return _report(done, where, as_json=as_json)


def _show_content(file: Path, passphrase: str | None, *, as_json: bool) -> int:
    from gateway.operations.backup.archive import verify_backup

    looked = verify_backup(file, passphrase=passphrase)
    print_result(as_json, _looked(looked), _summary(looked))
    return 0


def _agree(looked: VerifiedBackup, root: Path, *, yes: bool, as_json: bool) -> bool:
    if not as_json:
        print(_summary(looked))
    return yes or confirm(f"Restore it to {root}?")


def _report(done: RestoredBackup | None, where: Where, *, as_json: bool) -> int:
    if done is None:
        print("nothing was changed", file=sys.stderr)
        return 1
    lacking = _lacking(done.home)
    check = "squidbot check" + (f" --home {shlex.quote(str(where.home))}" if where.home else "")
    print_result(as_json, {**_done(done), "configuration": lacking}, _story(done, lacking, check))
    return 0


def _lacking(root: Path) -> list[str]:
    """Return what the restored configuration lacks, such as passwords, a line each."""
    from gateway.errors import ConfigInvalid
    from gateway.settings import load_settings
    from gateway.system.home import Home

    try:
        load_settings(Home(root).config_file)
    except ConfigInvalid as error:
        return [line.strip() for line in str(error).splitlines()[1:]]
    return []


def _looked(looked: VerifiedBackup) -> dict[str, Any]:
    return {
        "made_at": looked.made_at.isoformat(),
        "version": looked.head.get("version"),
        "files": len(looked.files),
        "content_bytes": looked.bytes,
        "running": looked.database.get("running"),
        "notes": looked.head.get("notes", []),
    }


def _summary(looked: VerifiedBackup) -> str:
    made = f"{looked.made_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return (
        f"a backup of {made} by squidbot {looked.head.get('version')}: {len(looked.files)} files, "
        f"{_size(looked.bytes)}, all as its manifest says"
    )


def _done(done: RestoredBackup) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **(_looked(done.looked) if done.looked is not None else {}),
        "home": str(done.home),
        "parked": asdict(done.parked),
        "put_aside": str(done.put_aside) if done.put_aside else None,
        "notes": list(done.notes),
    }


def _story(done: RestoredBackup, lacking: list[str], check: str) -> str:
    from gateway.system.terminal_text import plain_line

    parked = done.parked
    lines = [f"restored to {done.home}"]
    lines += [f"what was there is in {done.put_aside}"] if done.put_aside else []
    for count, what, then in (
        (parked.answers, "answers on their way", "they are looked for, and sent if they are not there"),
        (parked.questions, "messages not answered yet", "squidbot inbox list --quarantine"),
        (parked.jobs, "reminders that may have been given since", "they are paused: squidbot cron list"),
    ):
        lines += [f"{what}: {count} ({then})"] if count else []
    lines += [f"note: {plain_line(note)}" for note in done.notes]
    if lacking:
        lines.append("it cannot start before this is fixed:")
        lines += [f"  {plain_line(line)}" for line in lacking]
        if any("there is no secret" in line for line in lacking):
            lines.append(f"  write each secret into {done.home}/secrets/NAME again (0600, the folder 0700)")
    lines.append(f"next: {check}, then start the daemon; on Matrix it logs in as a new device")
    return "\n".join(lines)


def _passphrase(file: Path | None, *, new: bool) -> str:
    from gateway.operations.backup.archive_encryption import WrongPassphrase

    if file is not None:
        try:
            found = (file.read_text(encoding="utf-8").splitlines() or [""])[0]
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
            raise WrongPassphrase(f"{file} cannot be read: {why}") from error
    elif PASSPHRASE in os.environ:
        found = os.environ[PASSPHRASE]
    elif sys.stdin.isatty():
        from getpass import getpass

        found = getpass("Passphrase: ")
        if new and found != getpass("Once more: "):
            raise WrongPassphrase("the two passphrases differ")
    else:
        raise WrongPassphrase(f"there is nobody to ask: give --passphrase-file, or set {PASSPHRASE}")
    if not found:
        raise WrongPassphrase("the passphrase is empty")
    return found
