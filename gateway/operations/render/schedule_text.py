"""Answers about check-ins and jobs as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_core.text import one_line
from gateway.operations.render.usage_text import calls
from gateway.system.terminal_text import local_time, place_of, plain_line, plain_text


def summary_lines(report: Mapping[str, Any]) -> list[str]:
    """Check-ins and jobs, for ``status``."""
    lines = []
    owner = report.get("owner") or {}
    if waiting := owner.get("alerts_waiting"):
        told = "1 alert for you waits" if waiting == 1 else f"{waiting} alerts for you wait"
        why = f": {plain_line(owner['why'])}" if owner.get("why") else ""
        lines.append(f"owner      {told}{why}")
    heartbeat = report.get("heartbeat") or {}
    if heartbeat.get("enabled"):
        last = heartbeat.get("last")
        told = "none yet"
        if last is not None:
            why = f": {plain_line(last['reason'])}" if last["reason"] else ""
            told = f"last {local_time(last['at'])} {last['outcome']}{why}"
        lines.append(f"check-ins  {told}; next {_coming(heartbeat['next'])}")
        if heartbeat.get("resting_until"):
            until = local_time(heartbeat["resting_until"])
            lines.append(f"  {heartbeat['failures']} failed in a row; resting until {until}")
        if heartbeat.get("collected"):
            lines.append(f"  {heartbeat['collected']} alerts wait for the next digest")
    schedule = report.get("schedule") or {}
    if schedule.get("jobs"):
        kept = f", {schedule['not_run']} of them not run the last time" if schedule["not_run"] else ""
        lines.append(f"scheduled  {schedule['jobs']}{kept}; next {_coming(schedule['next'])}")
    if going := (report.get("work") or {}).get("background_jobs"):
        lines.append(f"jobs       {going} in the background")
    return lines


def _coming(text: str | None) -> str:
    return local_time(text) if text else "never"


def jobs(answer: Mapping[str, Any]) -> str:
    """``cron list``."""
    return "\n".join(job(row) for row in answer["jobs"]) or "there are no jobs"


def job(row: Mapping[str, Any]) -> str:
    """One job in two lines."""
    short = one_line(plain_line(row["text"] or ""), 60)
    coming = f"; next {row['next']}" if row["next"] else ""
    following = {"paused": "; paused", "done": f"; has run on {row['last']}"}.get(row["state"], coming)
    note = f"\n       not run: {plain_line(row['note'])}" if row["note"] else ""
    said = f": {short}" if short else ""
    return (
        f"{row['id']}  {row['kind']:<6}  {plain_line(row['when'])}{following}\n"
        f"       {plain_line(row['person'])} in {place_of(row)}{said}{note}"
    )


def render_new_watch(answer: Mapping[str, Any]) -> str:
    """``watch add``."""
    return f"{job(answer['job'])}\nthe first look is the base line; what is new from then on is said"


def ledger(answer: Mapping[str, Any]) -> str:
    """``heartbeat log``."""
    return "\n".join(_entry(row) for row in answer["entries"]) or "there are no check-ins yet"


def _entry(row: Mapping[str, Any]) -> str:
    name = row["name"] if row["name"].startswith("job:") else ""
    cost = f"{row['tokens']} tokens, {calls(row['calls'])}, {row['took_s']:g} s" if row["calls"] else ""
    span = f" (and {row['ticks'] - 1} more until {row['until']})" if row["ticks"] > 1 else ""
    parts = [part for part in (name, plain_line(row["reason"]), cost) if part]
    return f"{row['at']}  {row['outcome']:<9}  {'; '.join(parts)}{span}".rstrip()


def tick(answer: Mapping[str, Any]) -> str:
    """``heartbeat now``."""
    lines = [f"{local_time(answer['at'])}  {answer['outcome']}"]
    if answer["reason"]:
        lines[0] += f": {plain_line(answer['reason'])}"
    if "prompt" in answer:
        hours = "within" if answer["active"] else "outside of"
        lines.append(f"{hours} the active hours; next check-in {_coming(answer['next'])}")
        lines.append(f"target: {plain_line(answer['target']) or 'none yet: write to me directly first'}")
        if answer["prompt"]:
            lines.append(f"about {answer['tokens']} tokens, besides memory and history:\n")
            lines.append(plain_text(answer["prompt"]))
    elif answer.get("calls"):
        lines.append(f"{answer['tokens']} tokens in {calls(answer['calls'])}, {answer['took_s']:g} s")
    elif answer["outcome"] == "running":
        lines.append("it takes a while; `squidbot heartbeat log` will show the outcome")
    return "\n".join(lines)
