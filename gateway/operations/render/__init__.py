"""Answers as text for people: aligned columns and short lines, safe for any terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.text import one_line
from gateway.operations.render import schedule_text, usage_text
from gateway.system.terminal_text import LOCAL_PARTS, duration, local_time, place_of, plain_line, quote

_FAILED = {"dead": "failed", "unknown": "perhaps sent"}


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as necessary; the last one has no limit."""
    texts = [[plain_line(str(cell)) for cell in row] for row in rows]
    widths = [min(60, max(len(row[number]) for row in [list(head), *texts])) for number in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [list(head), *texts]
    ]
    return "\n".join(lines)


def status(report: Mapping[str, Any]) -> str:
    """Render ``status``."""
    lines = _process(report)
    channels = report.get("channels") or {}
    for name, one in channels.items():
        lines += _channel(name, one)
    lines += _machines(report)
    work = report["work"]
    told = report.get("given_up") or 0
    failed = max(work["inbox"].get("dead", 0) - told, 0)
    inbox = {**work["inbox"], "dead": failed, "not answered": told}
    lines.append(f"inbox      {_counts(inbox)}")
    lines.append(f"outbox     {_counts(work['outbox'])}")
    if work.get("oldest_unanswered_s") is not None:
        lines.append(f"the oldest message without an answer is {duration(work['oldest_unanswered_s'])} old")
    if work.get("oldest_unsent_s") is not None:
        lines.append(f"the oldest answer that was not sent is {duration(work['oldest_unsent_s'])} old")
    for count, what, option in (
        (work["outbox"].get("held"), "drafts that wait for you", "--held"),
        (work["inbox"].get("quarantined"), "messages in quarantine", "--quarantine"),
        (work.get("waiting_for_yes"), "tool calls that wait for approval", "--held"),
    ):
        lines += [f"{what}: {count} (squidbot inbox list {option})"] if count else []
    if work.get("oldest_question_s") is not None:
        age = duration(work["oldest_question_s"])
        lines.append(f"the oldest of them waits for {age} (squidbot inbox approve|reject NAME)")
    if report.get("sessions") is not None:
        lines.append(f"sessions   {report['sessions']}")
    lines += _models(report.get("models") or {})
    lines += _consolidating(report.get("consolidation") or {})
    lines += schedule_text.summary_lines(report)
    lines += usage_text.budget_line(report["budget"]) if report.get("budget") else []
    lines += _shell(report.get("shell") or {})
    lines += _mcp(report.get("mcp") or {})
    lines += _speech(report.get("speech") or {})
    lines += [f"files      {plain_line(report['attachments'])}"] if report.get("attachments") else []
    for head, found in (
        ("not done yet:", report.get("trying") or []),
        ("needs you (squidbot inbox show|retry|drop ID):", report.get("stuck") or []),
    ):
        lines += [head] if found else []
        for one in found:
            why = f": {_short(one['why'])}" if one.get("why") else ""
            lines.append(f"  {one['name']}  {one['channel']}: {one['what']}{why}")
    if report.get("given_up"):
        how = "squidbot inbox list --state dead, then inbox retry ID"
        lines.append(f"not answered, and the sender was told so: {report['given_up']} ({how})")
    return "\n".join(lines)


def _machines(report: Mapping[str, Any]) -> list[str]:
    machines = report.get("machines")
    if machines is None:
        return []
    lines = []
    for one in machines:
        here = " (this one)" if one["here"] else ""
        for_s = one["seen_s"] if one["does"] == "missing" else one["up_s"]
        does = one["does"].upper() if one["does"] == "missing" else one["does"]
        version = plain_line(one["version"])
        lines.append(f"  {plain_line(one['process'])}{here}: {does} for {duration(for_s)}, version {version}")
    head = ["machines of this home:"] if lines else []
    nobody = [] if any(one["does"] == "active" for one in machines) else ["NO MACHINE IS ACTIVE"]
    return head + lines + nobody


def cluster(homes: Sequence[Mapping[str, Any]]) -> str:
    """The homes of a PostgreSQL server."""
    lines = []
    for home in homes:
        lines.append(f"home {plain_line(home['name'])}")
        lines += [f"  NOT READ: {_short(home['problem'])}"] if home["problem"] else []
        lines += [] if home["problem"] else _machines({"machines": home["machines"]})
    return "\n".join(lines) or "No database of this server that the role may open has a home of squidbot."


def _channel(name: str, one: Mapping[str, Any]) -> list[str]:
    """A channel, since when it is as it is, when its server was heard of; an error only in its own time."""
    up = one["state"] in ("up", "catching_up")
    said = one["detail"] or ("" if up else one.get("last_error")) or ""
    heard = f", last heard from at {local_time(one['heard_at'])}" if one.get("heard_at") else ""
    name, since = LOCAL_PARTS.get(name, name), local_time(one["since"])
    lines = [f"  {name:<10} {one['state']:<12} since {since}{heard}  {plain_line(said)}".rstrip()]
    if up and one.get("last_error"):
        when = local_time(one.get("last_error_at"))
        lines.append(f"  {'':<10} last error, {when}: {_short(one['last_error'])}")
    return lines


def _process(report: Mapping[str, Any]) -> list[str]:
    running = bool(report.get("running"))
    does = "standing by" if report.get("standing_by") else "running" if running else "not running"
    lines = [f"squidbot {report['version']}: {does}"]
    if running:
        memory = f", {report['memory_mb']} MB" if report.get("memory_mb") else ""
        lines[0] += f" (process {report.get('pid')}, up {duration(report.get('uptime_s'))}{memory})"
    if report.get("versions"):
        names = report["versions"].items()
        lines.append(f"versions   {', '.join(f'{name} {plain_line(str(number))}' for name, number in names)}")
    if report.get("stuck_because"):
        lines.append(f"TURNS ARE STALLED: {plain_line(report['stuck_because'])}")
    if report.get("blocked"):
        lines.append("NOTHING CAN BE WRITTEN: is the disk full? New messages wait at their servers.")
    return lines


def _shell(one: Mapping[str, Any]) -> list[str]:
    if not one:
        return []
    word = {True: "ready", False: "off"}.get(one["ready"], "not ready")
    return [f"shell      {word}: {plain_line(one['told'])}"]


def _mcp(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, one in found.items():
        if one["trouble"]:
            lines.append(f"mcp        {name}: {plain_line(one['trouble'])}")
        elif one["changed"]:
            lines.append(f"mcp        {name}: {len(one['changed'])} to review (squidbot mcp tools {name})")
    return lines


def _speech(one: Mapping[str, Any]) -> list[str]:
    if not one:
        return []
    trouble = f"; the last one was not: {plain_line(one['trouble'])}" if one["trouble"] else ""
    return [f"speech     {one['spoken']} answers spoken, {one['not_spoken']} not{trouble}"]


def inbox_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Render ``inbox list``."""
    if not rows:
        return "no messages"
    return table(
        ("ID", "STATE", "WHEN", "IN", "SENDER", "TEXT"),
        [
            (
                f"m{row['id']}" if row["state"] == "quarantined" else row["id"],
                row["state"],
                local_time(row["accepted_at"]),
                place_of(row) if row.get("room") else row["channel"],
                row["sender"],
                _what(row),
            )
            for row in rows
        ],
    )


_KINDS = {"tick": "[check-in]", "job": "[scheduled]", "background_job": "[background job]"}


def _what(row: Mapping[str, Any]) -> str:
    """Render a row's subject: its error, and its text if it waits for a person."""
    kind = _KINDS.get(row["kind"], "")  # what nobody has written does not look as if somebody had
    text = f"{kind} {row['text']}".strip() if row["text"] is not None else kind or "[message]"
    if row["state"] == "quarantined" and row["error"]:
        return f"({row['error']}) {text}"
    return str(row["error"] or text)


def drafts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Render ``drafts list``."""
    if not rows:
        return "no drafts wait for you"
    return table(
        ("ID", "WHEN", "TO", "TEXT"),
        [(f"d{row['id']}", local_time(row["created_at"]), place_of(row), _draft_text(row)) for row in rows],
    )


def _draft_text(row: Mapping[str, Any]) -> str:
    return f"[squidbot inbox show d{row['id']}]" if row["text"] is None else " ".join(row["text"].split())


def render_approvals(waiting: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]]) -> str:
    """Drafts, calls of tools, and what servers ask."""
    if not waiting and not asked:
        return "nothing waits for your decision"
    told = [drafts(waiting)] if waiting else []
    calls = [row for row in asked if row["form"] is None]
    forms = [_form(row) for row in asked if row["form"] is not None]
    return "\n\n".join([*told, *([_calls(calls)] if calls else []), *forms])


def _calls(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ("CALL", "UNTIL", "TOOL", "ASKED FOR BY", "IN"),
        [
            (row["name"], local_time(row["until"]), row["tool"], ", ".join(row["asked"]), place_of(row))
            for row in rows
        ],
    )


def _form(row: Mapping[str, Any]) -> str:
    form = row["form"]
    asked = f"{', '.join(row['asked'])}, in {place_of(row)}, until {local_time(row['until'])}"
    lines = [
        plain_line(f"{row['name']}: the MCP server {row['tool']} asks {asked}"),
        f"  it says   {plain_line(form['message'])}",
    ]
    lines += [
        f"  it wants  {plain_line(each['name'])}: {plain_line(each['wants'])}" for each in form["fields"]
    ]
    lines += [f"  to open   {plain_line(form['address'])}"] if form["address"] else []
    how = f"answer {row['name']} VALUE" if form["fields"] else f"approve {row['name']}"
    return "\n".join([*lines, f"  squidbot inbox {how}, or squidbot inbox reject {row['name']}"])


def draft(row: Mapping[str, Any]) -> str:
    """Render ``drafts show``."""
    answers = [f"  answers   m{row['inbox']}"] if row["inbox"] is not None else []
    error = [f"  error     {plain_line(row['error'])}"] if row["error"] else []
    head = [
        f"draft {row['name']}: {row['state']}",
        f"  session   {plain_line(row['session'])}",
        *answers,
        *error,
    ]
    also = [f"  {plain_line(name)}: {plain_line(value)}" for name, value in row["also"].items()]
    return "\n".join([*head, f"  written   {local_time(row['created_at'])}", *also, "", quote(row["text"])])


def inbox_row(answer: Mapping[str, Any]) -> str:
    """Render ``inbox show``."""
    row = answer["row"]
    lines = [f"message {row['id']}: {row['state']}"]
    for label, value in (
        ("session", row["session"]),
        ("sender", f"{row['sender']}{'' if row['verified'] else ' (not verified)'}"),
        ("doubt", row.get("doubt")),
        ("accepted", local_time(row["accepted_at"])),
        ("attempts", f"{row['attempts']}, put off {row['deferrals']} times"),
        ("next try", local_time(row["next_at"]) if row["next_at"] else None),
        ("error", row["error"]),
    ):
        if value:
            lines.append(f"  {label:<9} {plain_line(str(value))}")
    lines += [f"  {plain_line(name)}: {plain_line(value)}" for name, value in row["also"].items()]
    lines += ["", quote(row["text"])]
    for sent in answer["outbound"]:
        said = f" ({sent['error']})" if sent["error"] else ""
        lines += [
            "",
            f"{sent['kind']} {sent['id']}: {sent['state']}{plain_line(said)}",
            quote(sent["text"]),
        ]
    return "\n".join(lines)


def sessions(answer: Mapping[str, Any]) -> str:
    """Render ``sessions list``."""
    rows = answer["sessions"]
    if not rows:
        return "no sessions"
    shown = table(
        ("SESSION", "MESSAGES", "LAST", "NAME"),
        [
            (
                row["session"],
                row["messages"],
                local_time(row["last_at"]),
                plain_line(row.get("room") or row.get("called") or ""),
            )
            for row in rows
        ],
    )
    more = answer["total"] - len(rows)
    return f"{shown}\n… and {more} more (--limit)" if more else shown


def found_messages(answer: Mapping[str, Any]) -> str:
    """Render ``sessions search``."""
    lines = [
        plain_line(f"{row.get('room') or row.get('called') or row['session']}  {row['who']}: {row['text']}")
        for row in answer["rows"]
    ]
    times = [local_time(row["at"]) for row in answer["rows"]]
    lines = [f"{at}  {line}" for at, line in zip(times, lines, strict=True)] or ["nothing was found"]
    lines += [f"… and {answer['more']} more that fit less well (--limit)"] if answer["more"] else []
    return "\n".join(lines if answer["complete"] else [*lines, "older messages cannot be searched yet"])


def session(answer: Mapping[str, Any]) -> str:
    """Render ``sessions show``."""
    lines = [f"{plain_line(answer['session'])}: {answer['messages']} messages"]
    lines += _cursor(answer)
    if answer.get("damaged_lines"):
        lines.append(f"  damaged    {answer['damaged_lines']} of the newest lines cannot be read")
    if answer.get("scope"):
        lines.append(f"  scope      {plain_line(answer['scope'])}")
    if answer.get("prompt"):
        lines += _prompt(answer["prompt"])
    if answer.get("trouble"):
        trouble = answer["trouble"]
        said = f"failed {_times(trouble['failures'])}, again in {duration(trouble['next_try_in_s'])}"
        lines.append(f"  consolidation {said}: {plain_line(trouble['error'])}")
    if answer["summary"]:
        lines += ["", "summary of what is no longer in the prompt:", quote(answer["summary"])]
    for message in answer["newest"]:
        who = message.get("sender") or message["role"]
        when = f" {local_time(message['timestamp'])}" if message.get("timestamp") else ""
        lines += ["", f"{plain_line(who)}{when}", quote(message.get("text", message["content"]))]
    if answer["messages"] and not answer["newest"]:
        lines += ["", "nothing since it was reset; squidbot sessions export writes all of it"]
    if answer["waiting"]:
        lines += ["", "waiting:", inbox_rows(answer["waiting"])]
    return "\n".join(lines)


def _cursor(answer: Mapping[str, Any]) -> list[str]:
    """Render how much of a conversation is consolidated and when the rest will be."""
    cursor, rest = answer["cursor"], answer["unconsolidated"]
    what = (
        "consolidated" if answer["summary"] or not cursor else "set aside"
    )  # without a trace: it began anew
    lines = [f"  cursor     {cursor}: {cursor} messages are {what}, {rest} are not"]
    if above := (answer.get("prompt") or {}).get("consolidated_above"):
        due = "; due with the next message" if rest > above["messages"] else ""
        lines.append(f"  consolidated  above {above['messages']} messages or {above['tokens']} tokens{due}")
    return lines


def _prompt(prompt: Mapping[str, Any]) -> list[str]:
    """Render the contents of the next prompt, with estimated tokens per part."""
    lines = [f"  prompt     about {prompt['total_tokens']} of at most {prompt['limit_tokens']} tokens:"]
    for name, tokens in prompt["tokens"].items():
        said = f", {prompt['messages']} messages" if name == "history" else ""
        lines.append(f"    {name:<8} {tokens:>6}{said}")
    if prompt["left_out"]:
        lines.append(f"    it leaves out {prompt['left_out']} messages that are not consolidated")
    return lines


def _consolidating(state: Mapping[str, Any]) -> list[str]:
    failing = state.get("failing_sessions")
    if not failing:
        done = state.get("segments")
        return [f"consolidated  {done} segments since the start"] if done else []
    again = f", again in {duration(state['next_try_in_s'])}" if state.get("next_try_in_s") else ""
    why = _short(str(state.get("last_error") or "?"))
    failures = state["failures_in_a_row"]
    row = f"{_times(failures)}{' in a row' if failures > 1 else ''}{again}"
    return [f"consolidation fails in {failing} conversation{'s' if failing > 1 else ''} ({row}): {why}"]


def render_reindex(answer: Mapping[str, Any]) -> str:
    """Render ``sessions reindex``."""
    state = "everything can be searched" if answer["complete"] else "the rest follows in the background"
    return f"{answer['messages']} messages of {answer['sessions']} sessions are in the index; {state}"


def file_changes(answer: Mapping[str, Any]) -> str:
    """Render ``files history``."""
    path = answer["path"]
    rows = [
        (
            one["id"],
            local_time(one["at"])[:16],
            one["what"]
            + (f" of {one['undoes']}" if one["undoes"] else "")
            + ("" if one["made"] else " (not done)"),
            f"{one['from']} -> {one['path']}" if one["from"] else one["path"],
            _short(one["origins"]) if one["origins"] else "",
        )
        for one in answer["changes"]
    ]
    made = [plain_line(each) for each in answer.get("made_by_commands", ())]
    if not rows and not made:
        return f"no change of {plain_line(path)} is recorded" if path else "no file was changed"
    texts = [table(("change", "at", "what", "file", "made of"), rows)] if rows else []
    texts += ["made or changed by commands, without earlier versions: " + ", ".join(made)] if made else []
    return "\n".join(texts)


def memory_diff(answer: Mapping[str, Any]) -> str:
    """Render ``memory diff``."""
    return "\n".join(plain_line(line) for line in answer["diff"]) or "nothing changed"


def memory_versions(answer: Mapping[str, Any]) -> str:
    """Render ``memory history``, with what changed in each version."""
    if not answer["versions"]:
        return "nothing was ever written to this memory"
    lines: list[str] = []
    before: list[str] = []
    for one in answer["versions"]:
        now = one["text"].splitlines()
        turn = f", turn {one['turn']}" if one.get("turn") else ""
        where = f" in {one['session']}{turn}" if one["session"] else ", by hand or by undo"
        lines.append(f"version {one['version']}, {local_time(one['written_at'])}{plain_line(where)}")
        lines += [f"  - {plain_line(line)}" for line in before if line not in now]
        lines += [f"  + {plain_line(line)}" for line in now if line not in before]
        if now == before:
            lines.append("  the same text again")
        before = now
    return "\n".join(lines)


def _models(pools: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Each pool with its models; a model that fails with what it says."""
    lines = []
    for pool, members in pools.items():
        lines.append(f"models     {pool}: {', '.join(plain_line(str(one['name'])) for one in members)}")
        for one in members:
            if one["error"]:
                again = f"; tried again in {duration(one['cooling_s'])}" if one["cooling_s"] else ""
                lines.append(f"  {plain_line(str(one['name']))} fails: {_short(one['error'])}{again}")
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _short(text: str) -> str:
    return plain_line(one_line(text, 200))


def _counts(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{count} {_FAILED.get(state, state)}" for state, count in counts.items() if count)
        or "empty"
    )
