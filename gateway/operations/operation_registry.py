"""Finds operations: which modules declare those with a first word, and what `--help` says of a group."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from agent_core.operation import Operation, operations_of
from gateway.operations.operation_arguments import RequestInvalid

_MODULES: Mapping[str, tuple[str, ...]] = {
    "allow": ("people_operations",),
    "backup": ("backup.snapshot",),
    "calls": ("decision_operations",),
    "channel": ("status_operation",),
    "chat": ("console_chat",),
    "check": ("configuration_operations",),
    "console": ("token_operations",),
    "cron": ("job_operations",),
    "did": ("usage_operations",),
    "drafts": ("decision_operations",),
    "files": ("file_operations",),
    "grants": ("grant_operations",),
    "heartbeat": ("job_operations",),
    "import": ("migration.import_operation",),
    "inbox": ("message_operations", "people_operations"),
    "jobs": ("background_operations",),
    "log": ("configuration_operations",),
    "mcp": ("mcp_operations",),
    "memory": ("memory_operations",),
    "people": ("people_operations",),
    "person": ("people_operations",),
    "receipts": ("usage_operations",),
    "send": ("send_operation",),
    "sessions": ("session_operations",),
    "settings": ("configuration_operations",),
    "skills": ("skill_operations",),
    "status": ("status_operation",),
    "tokens": ("token_operations",),
    "trust": ("file_operations",),
    "turns": ("status_operation",),
    "usage": ("usage_operations",),
    "watch": ("job_operations",),
}
"""The modules by the first word of a command or a key, so that a command loads those that it needs."""

GROUPS: Mapping[str, str] = {
    "cron": "Reminders and scheduled questions: list, add, remove, pause, resume, run.",
    "files": "Files that the assistant has changed, and their earlier versions.",
    "grants": "What tools may do without asking, for a while.",
    "heartbeat": "Check-ins: show the log, or run one now.",
    "inbox": "Accepted messages: where they are and what became of them.",
    "jobs": "Background jobs: list, show, stop. Scheduled jobs are `squidbot cron`.",
    "mcp": "Servers whose tools the assistant uses (Model Context Protocol).",
    "memory": "Memory documents and their versions.",
    "person": "People: who may write; give somebody's data to their new address.",
    "sessions": "Conversations.",
    "skills": "Texts that teach the assistant how you want something done: list, check, add, remove.",
    "tokens": "Tokens for programs that speak OpenAI's API.",
    "watch": "Feeds, pages, JSON documents, files and mailbox folders: say what is new there.",
    "trust": "Say that what somebody else may have written counts as your own words.",
}
"""Commands of two words, by the first one, with the help of the group."""
COMMANDS = ("allow", "console", "did", "import", "send", "usage", *GROUPS)
"""The first words of commands that are operations."""

IN_CHATS: Mapping[str, str] = {
    "allow": "inbox",
    "console": "console",
    "did": "did",
    "files": "files",
    "grants": "grants",
    "jobs": "jobs",
    "usage": "usage",
    "watch": "watch",
}
"""The commands of conversations that are operations, with the first word of their keys' modules."""


def operations_in(word: str) -> list[Operation]:
    """The operations of a first word: those of our modules, or of the kind of channel; else none."""
    if word not in _MODULES:
        from gateway.plugins import channel_kinds

        plugin = channel_kinds().get(word)
        found = plugin.operations() if plugin is not None else ()
        return [each for each in found if each.key.startswith(f"{word}_")]
    modules = [import_module(f"gateway.operations.{name}") for name in _MODULES[word]]
    return [operation for module in modules for operation in operations_of(module)]


def find_operation(key: str) -> Operation:
    """The operation of a key. Raises RequestInvalid."""
    for operation in operations_in(key.partition("_")[0]):
        if operation.key == key:
            return operation
    raise RequestInvalid(f"there is no operation {key!r}")


def all_operations() -> dict[str, Operation]:
    """Every operation by its key, in the order of the words."""
    from gateway.plugins import channel_kinds

    words = (*_MODULES, *channel_kinds())
    return {operation.key: operation for word in words for operation in operations_in(word)}
