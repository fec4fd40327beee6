"""The command ``squidbot update``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.command_context import HERE, Json, Where, asker
from gateway.cli.output import print_result, quiet_logs

if TYPE_CHECKING:
    from gateway.operations.update.new_version import NewVersion
    from gateway.settings import Settings

_MAX_CHANGES = 40


def update(
    source: Path | None = None,
    /,
    *,
    check: bool = False,
    index: str | None = None,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    Say what a newer version would change, before you install it: with --check, which changes nothing.

    It shows what is new by the changelog, reads your configuration with the newer version, and starts that on
    a copy of your home, without a network. Exit codes: 0, nothing is in the way; 1, something is.

    Args:
        source: A wheel, an environment or a checkout (default: what is installed here, for a daemon that
            still runs the version before).
        check: Try it. squidbot does not install itself.
        index: The address of a package index; the libraries of a wheel are installed from it for the trial.
    """
    from gateway.operations.operation_arguments import RequestInvalid
    from gateway.operations.update.new_version import find_new_version

    if not check:
        raise RequestInvalid(
            "squidbot does not install itself. `squidbot update --check FILE` says what would change; then "
            "install it as you have installed this one"
        )
    quiet_logs(verbose=where.verbose)
    folder = Path(tempfile.mkdtemp(prefix="squidbot-update-"))
    try:
        answer = _tried(find_new_version(source, folder, index=index), folder, where)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_result(as_json, answer, _as_text(answer))
    return int(bool(answer["problems"]))


def _tried(new: NewVersion, folder: Path, where: Where) -> dict[str, Any]:
    """Try a version on a copy in ``folder``; return the answer of the command."""
    from dataclasses import asdict
    from functools import partial

    import anyio

    from gateway.operations.update.new_version import changes_between, installed_changelog
    from gateway.operations.update.trial import changed_settings, copy_home, run_trial
    from gateway.settings import load_settings
    from gateway.settings.effective import effective
    from gateway.system.home import Home, find_home
    from gateway.system.version import version

    home = Home(find_home(where.home))
    config = where.config_path or home.config_file
    settings = load_settings(config, missing_ok=where.config_path is None)
    stage, files, copy = folder / "trial", 0, None
    stage.mkdir()
    if settings.store_url is None and home.database.exists():
        snapshot = partial(asker(where).call, "backup_snapshot")
        copy, files = copy_home(home.root, home.path(settings.agents.workspace), stage / "home", snapshot)
    used = config.absolute() if config.exists() else None
    report = anyio.run(partial(run_trial, new, stage, config=used, home=copy, source=settings.source))
    news = changes_between(installed_changelog(), new.changelog, version())
    after = report.get("settings")
    warnings = [text for text in report.get("warnings", ()) if text not in settings.warnings]
    changed = changed_settings(effective(settings), after) if after else []
    return {
        "from": version(),
        "to": report["version"],
        "news": [asdict(each) for each in news],
        "settings": [asdict(each) for each in changed],
        "warnings": warnings,
        "problems": _problems(new, report, config),
        "not_tried": "" if copy else _not_tried(settings, home.root),
        "files": files,
    }


def _problems(new: NewVersion, report: dict[str, Any], config: Path) -> list[str]:
    found = [f"a library is missing or too old: {each}" for each in new.missing]
    if report["invalid"]:
        found.append(f"it does not take your configuration ({config}):\n{report['invalid']}")
    if report["failed"]:
        found.append(f"it does not start on your data: {report['failed']}")
    return found


def _not_tried(settings: Settings, home: Path) -> str:
    if settings.store_url is not None:
        return "your queue is in PostgreSQL, which is not copied: only the configuration was tried"
    return f"there are no data in {home} yet: only the configuration was tried"


def _as_text(answer: dict[str, Any]) -> str:
    lines = [f"squidbot {answer['to']}, tried beside {answer['from']}", ""]
    news = answer["news"]
    if not news:
        lines.append("New by its changelog: nothing.")
    else:
        lines.append("New by its changelog:")
        section = ""
        for each in news[:_MAX_CHANGES]:
            heading = " - ".join(filter(None, (each["release"], each["section"])))
            if heading != section:
                section = heading
                lines.append(f"  {heading}")
            lines.append(f"    - {each['text']}")
        if len(news) > _MAX_CHANGES:
            lines.append(f"    and {len(news) - _MAX_CHANGES} more (--json has all)")
    lines.append("")
    lines += [_setting_text(each) for each in answer["settings"]]
    lines += [f"New warning: {text}" for text in answer["warnings"]]
    if answer["not_tried"]:
        lines.append(f"Note: {answer['not_tried']}.")
    if answer["problems"]:
        lines += ["", "It would not work as it is:", *(f"- {text}" for text in answer["problems"])]
        lines.append("Nothing was changed. Correct this, or stay with the version that you have.")
    elif answer["not_tried"]:
        lines.append("It takes your configuration. Nothing was changed.")
    else:
        lines.append(
            f"It takes your configuration and starts on a copy of your home ({answer['files']} files; no "
            "attachments, logs or logins). Nothing was changed. Back up, install it and restart."
        )
    return "\n".join(lines)


def _setting_text(change: dict[str, Any]) -> str:
    name, before, after = change["name"], change["before"], change["after"]
    if before is None:
        return f"New setting: {name}, {after!r} until you set it"
    if after is None:
        return f"Setting that is gone: {name} (now {before!r})"
    return f"Other default: {name} is {before!r}, and would be {after!r}"
