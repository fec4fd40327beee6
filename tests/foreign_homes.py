"""Homes of other assistants as their documentation describes them, made by hand."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

SKILL = "---\nname: {name}\ndescription: How we {name}.\n---\nDo it well.\n"
TOKEN = "sk-or-v1-0123456789abcdef0123456789abcdef"


def write(root: Path, **files: str) -> None:
    """Write files; in their names ``__`` stands for a slash."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def event(name: str, role: str, text: str, at: str) -> str:
    """A line of a history of OpenClaw."""
    message = {"role": role, "content": [{"type": "text", "text": text}]}
    return json.dumps({"type": "message", "id": name, "parentId": None, "timestamp": at, "message": message})


def openclaw(root: Path) -> Path:
    """Both ages: histories in files, and newer ones in a database; so with schedules."""
    head = {"type": "session", "version": 3, "id": "s1", "timestamp": "2026-02-01T08:00:00Z", "cwd": "/x"}
    tool = {"role": "toolResult", "content": [{"type": "text", "text": "a page"}]}
    lines = [
        json.dumps(head),
        event("a", "user", "My locker code is 4711.", "2026-02-01T08:00:01Z"),
        json.dumps({"type": "message", "timestamp": "2026-02-01T08:00:02Z", "message": tool}),
        event("b", "assistant", "I will remember the locker.", "2026-02-01T08:00:03Z"),
        event("c", "assistant", "HEARTBEAT_OK", "2026-02-01T08:30:00Z"),
    ]
    jobs = [
        job(
            "j1",
            {"kind": "cron", "expr": "0 7 * * 1-5", "tz": "Europe/Berlin"},
            "agentTurn",
            message="The news?",
        ),
        job("j2", {"kind": "at", "at": "2031-02-01T16:00:00Z"}, "systemEvent", text="Call Tom."),
        job("j3", {"kind": "every", "everyMs": 7_200_000}, "agentTurn", message="Look at the mail."),
        job("j4", {"kind": "at", "at": "2020-02-01T16:00:00Z"}, "systemEvent", text="It is over."),
        job("j5", {"kind": "sunrise"}, "agentTurn", message="Good morning."),
    ]
    write(
        root,
        **{
            "openclaw.json": '{\n  // JSON5\n  channels: {telegram: {\n    botToken: "123:abc",\n  }}}\n',
            ".env": f"OPENROUTER_API_KEY={TOKEN}\nLANG=de\n",
            "credentials/telegram-pairing.json": "{}",
            "workspace/AGENTS.md": "# AGENTS\nUse the cron tool.\n",
            "workspace/SOUL.md": "# Soul\nBe warm and brief.\n",
            "workspace/IDENTITY.md": "- **Name**: Clawd\n",
            "workspace/USER.md": "- Name: Ann\n- Zone: Europe/Berlin\n",
            "workspace/MEMORY.md": f"- The cat is called Minka.\n- The key is {TOKEN}\n",
            "workspace/HEARTBEAT.md": "# Heartbeat\n- Look at the plants.\n",
            "workspace/memory/2026-02-03.md": "# Notes\n\nAnn bought a red bicycle.\n",
            "workspace/skills/shopping/SKILL.md": SKILL.format(name="shopping"),
            "workspace/skills/shopping/references/shops.md": "Edeka\n",
            "workspace/skills/broken/SKILL.md": "no head\n",
            "agents/main/sessions/s1.jsonl": "\n".join(lines) + "\n",
            "agents/main/sessions/sessions.json": "{}",
            "cron/jobs.json": json.dumps({"version": 1, "jobs": jobs}, indent=2),
        },
    )
    newer = job("j6", {"kind": "cron", "expr": "0 9 * * *"}, "agentTurn", message="What is new?")
    rows = [event("d", "user", "The garage is in Elm Street.", "2026-09-05T10:00:00Z"), lines[1]]
    tables(
        root / "agents/main/agent/openclaw-agent.sqlite",
        "CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, created_at INTEGER)",
        *(("INSERT INTO transcript_events VALUES ('s2', ?, ?, 0)", (n, raw)) for n, raw in enumerate(rows)),
    )
    tables(
        root / "state/openclaw.sqlite",
        "CREATE TABLE cron_jobs (store_key TEXT, job_id TEXT, job_json TEXT)",
        *(
            ("INSERT INTO cron_jobs VALUES ('x', ?, ?)", (each["id"], json.dumps(each)))
            for each in (jobs[0], newer)
        ),
    )
    return root


def hermes(root: Path) -> Path:
    """Memory in sections, skills in groups, a database of messages."""
    jobs = [
        {
            "id": "h1",
            "name": "water",
            "prompt": "Remind me to drink water.",
            "schedule": {"kind": "interval", "minutes": 90, "display": "every 90m"},
            "repeat": {"times": None, "completed": 3},
            "enabled": True,
        },
        {
            "id": "h2",
            "prompt": "x",
            "script": "watch.py",
            "no_agent": True,
            "schedule": {"kind": "interval", "minutes": 5},
        },
        {
            "id": "h3",
            "prompt": "Thrice.",
            "repeat": {"times": 3, "completed": 0},
            "schedule": {"kind": "cron", "expr": "0 9 * * *"},
        },
    ]
    write(
        root,
        **{
            "config.yaml": "model:\n  provider: openrouter\n  api_key: abc\n",
            "auth.json": "{}",
            "SOUL.md": "You are Hermes.\n",
            "memories/MEMORY.md": "The server is called nas.\n§\nAnn uses uv.\n",
            "memories/USER.md": "Ann likes short answers.\n",
            "skills/.bundled_manifest": "arxiv:0123\n",
            "skills/research/arxiv/SKILL.md": SKILL.format(name="arxiv"),
            "skills/home/garden/SKILL.md": SKILL.format(name="garden"),
            "cron/jobs.json": json.dumps({"jobs": jobs, "updated_at": "2026-02-01T00:00:00+00:00"}, indent=2),
        },
    )
    parts = "\0json:" + json.dumps(
        [{"type": "text", "text": "What is on this photo?"}, {"type": "image_url"}]
    )
    said = [
        ("user", "The plumber comes on Monday.", 1770000000.5),
        ("tool", "{}", 1770000001.0),
        ("user", parts, 1770000002.0),
    ]
    tables(
        root / "state.db",
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT, timestamp REAL)",
        *(
            ("INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', ?, ?, ?)", one)
            for one in said
        ),
    )
    return root


def nanobot(root: Path) -> Path:
    """Histories in each of the three places that there have been."""
    said = {"role": "user", "content": "The bakery closes at six.", "timestamp": "2026-03-01T09:00:00.123456"}
    old = {"role": "assistant", "content": "Noted: oat milk.", "timestamp": "2026-01-01T09:00:00"}
    head = {"_type": "metadata", "key": "telegram:1", "created_at": "2026-03-01T09:00:00", "metadata": {}}
    jobs = [
        {
            "id": "n1",
            "name": "pill",
            "enabled": True,
            "schedule": {"kind": "cron", "expr": "0 8 * * *", "tz": None},
            "payload": {"kind": "agent_turn", "message": "Take the pill.", "sessionKey": "telegram:1"},
        },
        {
            "id": "n2",
            "name": "dream",
            "schedule": {"kind": "every", "everyMs": 7200000},
            "payload": {"kind": "system_event", "message": ""},
        },
    ]
    summary = {"cursor": 1, "timestamp": "2026-04-03 00:02", "content": "- Ann moved to Ulm"}
    write(
        root,
        **{
            "config.json": '{\n  "providers": {"openrouter": {\n    "apiKey": "abc"\n  }}\n}',
            "workspace/SOUL.md": "# Soul\nI am nanobot.\n",
            "workspace/USER.md": "- Ann\n",
            "workspace/memory/MEMORY.md": "- Ann lives in Ulm.\n",
            "workspace/memory/history.jsonl": json.dumps(summary) + "\n",
            "workspace/sessions/telegram_1.jsonl": json.dumps(old) + "\n",
            "sessions/0123456789abcdef0123456789abcdef/dGVsZWdyYW06MQ.jsonl": "\n".join(
                map(json.dumps, (head, said))
            ),
            "workspace/cron/jobs.json": json.dumps({"version": 1, "jobs": jobs}),
        },
    )
    return root


def job(name: str, schedule: dict[str, Any], kind: str, **payload: str) -> dict[str, Any]:
    """A schedule of OpenClaw."""
    return {
        "id": name,
        "name": name,
        "enabled": True,
        "schedule": schedule,
        "payload": {"kind": kind, **payload},
    }


def tables(path: Path, *statements: Any) -> None:
    """Make a database."""
    path.parent.mkdir(parents=True, exist_ok=True)
    link = sqlite3.connect(path)
    for each in statements:
        link.execute(*((each,) if isinstance(each, str) else each))
    link.commit()
    link.close()
