"""Answers of operations in conversations, as Markdown for a phone. No content can imitate our own text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agent_core.language import _, gettext_noop, list_of, ngettext, show_number, show_time
from agent_core.operation import Who
from agent_core.text import one_line

_REFUSED_SHOWN = 20
_OUTCOMES = {
    "running": gettext_noop("goes on"),
    "done": gettext_noop("done"),
    "failed": gettext_noop("failed"),
    "unknown": gettext_noop("outcome unknown: it was cut off"),
}
_COMMAND_ENDS = ("Exit status ", "Ended ")
"""How the result of a command begins; what it has printed follows."""
_CHANGES = {
    "write": gettext_noop("written"),
    "edit": gettext_noop("edited"),
    "move": gettext_noop("moved"),
    "delete": gettext_noop("deleted"),
    "undo": gettext_noop("undone"),
}
Row = Mapping[str, Any]


def usage_text(answer: Row, who: Who) -> str:
    """Today's costs and all of them; for the owner also by purpose, and the budget."""
    days = answer["days"]
    lines = [
        _("All conversations:") if who is Who.OWNER else _("This conversation:"),
        "",
        _("- today: {usage}", usage=about_usage(answer["rows"][-1])),
        _("- the last {n} days: {usage}", n=days, usage=about_usage(answer["total"])),
    ]
    if who is Who.OWNER:
        parts = sorted(f"{_(row['name'])} {about_usage(row)}" for row in answer["purposes"])
        lines += [_("- by purpose: {parts}", parts=list_of(parts))] if len(parts) > 1 else []
        lines += _budget(answer["budget"])
    return "\n".join(lines)


def about_usage(row: Row) -> str:
    """Tokens, and money where it is known."""
    tokens, calls = row["prompt_tokens"] + row["completion_tokens"], row["calls"]
    text = ngettext(
        "{tokens} tokens in {n} call", "{tokens} tokens in {n} calls", calls, tokens=show_number(tokens)
    )
    return text if row["cost_usd"] is None else f"{text}, {show_number(row['cost_usd'], 2)} USD"


def _budget(budget: Row) -> list[str]:
    from gateway.budget.budget_policy import limit_texts

    tokens, usd = budget["tokens"], budget["usd"]
    parts = limit_texts((tokens["spent"], tokens["limit"]), (usd["spent"], usd["limit"]))
    told = {"parts": list_of(parts), "when": budget["opens"]}
    return [_("- today's budget: {parts}; a new one {when}", **told)] if parts else []


def changes_text(answer: Row, _who: Who) -> str:
    """The changes of files, and the files that commands have made."""
    made = [f"- `{one_line(path, 200).replace('`', chr(39))}`" for path in answer["made_by_commands"]]
    lists = {
        _("The newest file changes:"): [_change(row) for row in answer["changes"]],
        _("Made or changed by commands, without earlier versions:"): made,
    }
    texts = ["\n".join([title, "", *lines]) for title, lines in lists.items() if lines]
    return "\n\n".join(texts) or _("I have changed no files.")


def _change(row: Row) -> str:
    came = _(" from `{name}`", name=row["from"]) if row["from"] else ""
    undoes = _(" (change {id})", id=row["undoes"]) if row["undoes"] else ""
    begun = "" if row["made"] else _(", not finished")
    path = row["path"].replace("`", "'")
    return f"- {row['id']}: `{path}` {_(_CHANGES[row['what']])}{came}{undoes}, {_time(row['at'])}{begun}"


def undo_text(answer: Row, _who: Who) -> str:
    """The outcome of an undo."""
    return _(
        "Done: change {undoes} is undone. `!files undo {id}` takes that back.",
        undoes=answer["undoes"],
        id=answer["id"],
    )


def receipts_text(answer: Row, who: Who) -> str:
    """The effects of tools."""
    owner = who is Who.OWNER
    lines = [about_receipt(row, owner=owner) for row in answer["rows"]]
    if not lines:
        if owner:
            return _("I have not used any tool with an effect in the last 90 days.")
        return _("I have not used any tool with an effect here.")
    return "\n".join([_("What I have done, newest first:"), "", *lines])


def about_receipt(row: Row, *, owner: bool) -> str:
    """
    Describe an effect as a list item that cannot imitate our own text.

    ``owner``: The owner reads it; others do not undo changes of files.
    """
    from agent_core.tools.execution import call_in_words
    from gateway.store.model import BACKGROUND_COMMAND

    at = _("at some time")
    if row["at"]:
        at = show_time(datetime.fromisoformat(row["at"]).astimezone(), gettext_noop("%d %b %H:%M %Z"))
    whose = _(", for `{person}`", person=_plain(row["asked_by"])) if owner else ""
    parts = [f"{at}: `{_plain(call_in_words(row['tool'], row['arguments']))}`{whose}"]
    parts.append(_command_end(row) or _(_OUTCOMES[row["outcome"]]))
    if row["tool"] == BACKGROUND_COMMAND and row["result"]:
        parts.append(f"`{_plain(row['result'])}`")
    if row["origins"]:
        parts.append(_("after reading {sources}", sources=row["origins"]))
    if row["approved_by"]:
        parts.append(_("approved by `{person}`", person=_plain(row["approved_by"])))
    if row["undo"]:
        parts.append(_("undo: {how}", how=_undone_here(row["undo"], owner=owner)))
    return "- " + "; ".join(parts)


def _undone_here(undo: str, *, owner: bool) -> str:
    """The way to undo something in a chat, instead of at the machine."""
    match undo.split():
        case ["squidbot", "cron", "remove", job]:
            return f"`!remind cancel {_plain(job)}`"
        case ["squidbot", "cron", change, job]:
            return _("tell me to {change} `{job}`", change=_(_plain(change)), job=_plain(job))
        case ["squidbot", "jobs", "stop", job]:
            return f"`!jobs stop {_plain(job)}`"
        case ["squidbot", "files", "undo", number]:
            return f"`!files undo {_plain(number)}`" if owner else _("ask my owner")
        case ["squidbot", "memory", "undo", scope, "--to", version]:
            where = _(", in that conversation") if owner and scope != "owner" else ""
            return f"`!memory undo {_plain(version)}`{where}"
    return f"`{_plain(undo)}`"


def _command_end(row: Row) -> str:
    """The end of a command that was carried out and did not succeed; empty for all else."""
    if row["tool"] != "shell" or row["outcome"] != "done":
        return ""
    end = row["result"].partition(". ")[0].rstrip(".")
    return f"{end[:1].lower()}{end[1:]}" if end.startswith(_COMMAND_ENDS) and end != "Exit status 0" else ""


def jobs_text(answer: Row, _who: Who) -> str:
    """The background jobs of a person."""
    lines = [f"- {_job(row)}" for row in answer["jobs"]]
    if not lines:
        return _("You have no running background job here, and none has ended in the last week.")
    return "\n".join([_("Your background jobs, newest first:"), "", *lines])


def job_text(answer: Row, _who: Who) -> str:
    """A background job and its output."""
    return f"{_job(answer['job'])}\n\n{answer['output']}"


def _job(row: Row) -> str:
    what = one_line(row["name"] or row["text"] or "", 80)
    kind, at = _("command, ") if row["command"] else "", _time(row["started_at"])
    told = _("{id}: {kind}{state}, started {time}", id=row["id"], kind=kind, state=row["state_text"], time=at)
    return told + (f": {what}" if what else "")


def stop_text(answer: Row, _who: Who) -> str:
    """The outcome of stopping a job."""
    stopped = answer["changed"]
    return _("`{id}` is stopped." if stopped else "`{id}` had ended before.", id=answer["id"])


def grants_text(answer: Row, _who: Who) -> str:
    """The grants in effect."""
    lines = [_grant(row) for row in answer["rows"]]
    return "\n".join([_("These grants are in effect:"), "", *lines] if lines else [_("There are no grants.")])


def _grant(row: Row) -> str:
    from gateway.turns.questions.question_text import safe_line

    until = show_time(datetime.fromisoformat(row["until"]), gettext_noop("%H:%M on %d %B"))
    where = _("everywhere")
    if row["is_here"]:
        where = _("here")
    elif row["conversation"]:
        where = _("in `{place}`", place=safe_line(row["conversation"]))
    once = _(", for this job alone") if row["turn"] else ""
    what = f": `{safe_line(row['what'])}`" if row["what"] and row["kind"] == "call" else ""
    people = ", ".join(f"`{safe_line(each)}`" for each in row["people"])
    return _(
        "- `{id}`: {covers}{what}, for {people} {where}, until {time}{once}; given by `{person}`",
        id=row["id"],
        covers=row["covers"],
        what=what,
        people=people,
        where=where,
        time=until,
        once=once,
        person=safe_line(row["given_by"]),
    )


def watch_text(answer: Row, _who: Who) -> str:
    """The new watch."""
    return _(
        "`{id}` {watch}. The first look is the base line; I say what is new from then on.",
        id=answer["job"]["id"],
        watch=_watched(answer["job"]),
    )


def watches_text(answer: Row, _who: Who) -> str:
    """The watches, each with the reason if its last look failed."""
    lines = []
    for row in answer["jobs"]:
        failed = _(" (the last look failed: {why})", why=one_line(row["note"], 120)) if row["note"] else ""
        paused = _("paused, ") if row["state"] == "paused" else ""
        lines.append(f"- `{row['id']}` {paused}{_watched(row)}{failed}")
    return "\n".join(
        lines or [_("I watch nothing. `!watch https://… every 2h` tells you what is new there.")]
    )


def _watched(row: Row) -> str:
    from gateway.turns.questions.question_text import safe_line

    return safe_line(row["when"], 300)


def console_text(answer: Row, _who: Who) -> str:
    """The link to the console."""
    where = "" if answer["url"].startswith("https:") else _(", on the machine where I run")
    return _("Open this within two minutes{where}. It counts once.\n\n{url}", where=where, url=answer["url"])


def allow_text(answer: Row, _who: Who) -> str:
    """The outcome of `!allow`."""
    from gateway.turns.questions.question_text import safe_line

    who, messages = f"`{safe_line(answer['address'])}`", answer["messages"]
    if not answer["allowed"]:
        return _("{who} may not write to me any more.", who=who)
    told = _(" I have kept no message of theirs.")
    if messages:
        told = ngettext(" I answer 1 message that I kept.", " I answer {n} messages that I kept.", messages)
    told = _(" I accept their invitation.") if answer["invitations"] and not messages else told
    return _(
        "{who} may write to me now ({channels}).{more}",
        who=who,
        channels=list_of(answer["channels"]),
        more=told,
    )


def refusals_text(answer: Row, _who: Who) -> str:
    """The people who were refused, when and why."""
    from gateway.turns.questions.question_text import safe_line

    rows = answer["rows"]
    if not rows:
        return _("I have refused nothing in the last days.")
    lines = [
        _(
            "- **{name}**, {time}, `{sender}` by {channel}: {why}",
            name=row["name"],
            time=_time(row["accepted_at"]),
            sender=safe_line(row["sender"]),
            channel=row["channel"],
            why=_((row["error"] or "").replace("_", " ")),
        )
        + (f": `{_plain(row['subject'])}`" if row.get("subject") else "")
        for row in rows[:_REFUSED_SHOWN]
    ]
    if len(rows) > _REFUSED_SHOWN:
        lines.append(_("- and {n} older ones", n=len(rows) - _REFUSED_SHOWN))
    end = _("`!allow ADDRESS` lets somebody in; what I kept of them is answered.")
    return "\n".join([_("These I did not answer, newest first:"), "", *lines, "", end])


def _time(text: str) -> str:
    return show_time(datetime.fromisoformat(text).astimezone(), gettext_noop("%Y-%m-%d %H:%M %Z"))


def _plain(text: str) -> str:
    words = " ".join(text.split())
    return one_line("".join(char for char in words if char.isprintable() and char != "`"), 120)
