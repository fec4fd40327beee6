"""
The rules of the demo model: the patterns that it understands and the sentences that it answers. Pure. It
reads the memory document where the prompt shows it and writes it back whole, as a real model should. When
another conversation has changed the document meanwhile it merges its facts into the text that it is told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_core.llm.demo.consolidation import between
from agent_core.models import Message, ToolCall
from agent_core.prompt import MEMORY_HEADING

_WORDS = "timeout|ratelimit|cut|toolong|auth|empty|crash|toolfail|garbage|endless|slow|long"
_MAGIC = re.compile(rf"(?:^|\s)!({_WORDS})\b(?:\s+(\d{{1,6}}|always)\b)?")
MEMORY_TOOL = "memory_write"
SCHEDULE_TOOL = "schedule"
SEND_TOOL = "send_file"
READ_TOOL = "read_attachment"
FIND_TOOL = "find_tools"
_FETCH_TOOL, _WRITE_TOOL, _SHELL_TOOL = "web_fetch", "write_file", "shell"
_LOOKED = "demo_look"

_FACTS_LINE = re.compile(r"\A\[[^\]\n]*\]\n(?:\[This is the scheduled job [^\]\n]*\][^\n]*\n)?")
_LETTER_HEAD = re.compile(r"^<mail>\n(?:From: .*\n)?(?:Subject: .*\n)?\n", re.MULTILINE)
_LETTER_END = re.compile(r"\n</mail>$", re.MULTILINE)
_GROUP_PREFIX = re.compile(r"^\[[^\]\s]+\] ", re.MULTILINE)
_REMIND = re.compile(r"\bremind me (?P<when>.{1,60}?)(?: to| that|:) (?P<what>.+)", re.IGNORECASE)
_REMEMBER = re.compile(r"\bremember(?: that|:)\s+(.+)|^(my name is .+)", re.IGNORECASE | re.MULTILINE)
_MINE = re.compile(r"^my\s", re.IGNORECASE)
_PASSAGE = re.compile(r"^<remembered>\n(.*?)\n</remembered>$", re.DOTALL | re.MULTILINE)
_FORGET = re.compile(
    r"(?:^|\bplease )forget (?:that |about |everything about )?(.+)", re.IGNORECASE | re.MULTILINE
)
_RECALL = re.compile(
    r"what (do|did) you (know|remember)|what have you (noted|remembered)|do you remember me|who am i\b",
    re.IGNORECASE,
)
_ATTACHED = re.compile(r"^\[Attachment ([0-9a-f]{12}): (.*)\]$", re.MULTILINE)
_SPOKEN = re.compile(r'^\[Spoken in "[^"\n]*", \d+ s, as a program heard it, [a-z ]+:\] (.*)$', re.MULTILINE)
_SEND_FILE = re.compile(r"(?:^|\s)!sendfile\b(?: +(?:`([^`\n]+)`|(\S+)))?")
_READ_FILE = re.compile(r"(?:^|\s)!readfile\b(?: +([0-9a-f]{12})\b)?")
_PAGE_WORK = re.compile(
    r"\bread (https?://\S+) into ([\w.-]+)(?P<count>,? and count its words)?", re.IGNORECASE
)
_FENCE = re.compile(r"^</?[a-z_]+>$|^\[.*\]$")
_FILE_WORD = re.compile(r"(?:^|\s)!(?:send|read)file\b")
_GREETING = re.compile(
    r"^\W*(hi|hello|hey|moin|hallo|servus|good (morning|afternoon|evening|day))\b", re.IGNORECASE
)
_HELP = re.compile(r"^\W*(help|what can you do)\b", re.IGNORECASE)
_WHO = re.compile(r"\b(who|what) are you\b", re.IGNORECASE)
_THANKS = re.compile(r"^\W*(thanks|thank you|cheers)\b", re.IGNORECASE)
_BYE = re.compile(r"^\W*(bye|goodbye|good night|see you)\b", re.IGNORECASE)
_CLOCK = re.compile(r"\bwhat(?:'s| is)? (?:the )?(time|date|day)\b", re.IGNORECASE)
_SILENCE = "HEARTBEAT_OK"
_SEEN = re.compile(r"^Seen just now:\n(.+?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
_OPEN_ITEM = re.compile(r"^[^\S\n]*[-*] \[ \] (.+)$", re.MULTILINE)

_HELP_TEXT = """I am the demo model: I need no key and no network, and I only know a few sentences. Try:

- `remember that my cat is called Tom` and, in any other conversation, `what do you know about me?`
- `forget cat`
- `remind me in 2 minutes to turn off the oven`, `remind me tomorrow at 09:00 to call Tom`
- `!sendfile notes.txt` for a file of the workspace, `!readfile` with a file of yours
- `read https://example.org/ into notes.txt and count its words`: a page, a file, a command
- anything else, and I will say it back

To see how failures are handled: `!timeout`, `!ratelimit`, `!cut`, `!toolong`, `!auth`, `!empty`, `!crash`, \
`!toolfail`, `!garbage`, `!endless`, `!slow`, `!long`. A number says how often: `!timeout 5`."""


@dataclass(frozen=True, slots=True)
class DemoReply:
    """One reply of the demo model: a wait, an answer, an error or tool calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    endless: bool = False
    wait_s: float = 0.0
    error: Exception | None = None


def question_in(messages: Sequence[Message]) -> str:
    """The text of the last user message, without who wrote it, where and when."""
    return _GROUP_PREFIX.sub("", last_user_text(messages)).strip()


def last_user_text(messages: Sequence[Message]) -> str:
    """The last user message without its first line of facts and without any fence."""
    users = [message.content for message in messages if message.role == "user"]
    text = _FACTS_LINE.sub("", users[-1]) if users else ""
    out, position = [], 0
    while (head := _LETTER_HEAD.search(text, position)) and (end := _LETTER_END.search(text, head.end())):
        out += [text[position : head.start()], text[head.end() : end.start()]]
        position = end.end()
    return "".join([*out, text[position:]])


def magic_word_in(text: str) -> tuple[str, str | None] | None:
    """The first magic word and what follows it (a number or ``always``), or None."""
    found = _MAGIC.search(text)
    return (found[1], found[2]) if found else None


def reply_to(messages: Sequence[Message], tools: Sequence[str]) -> DemoReply:
    """The answer to a conversation without magic, or after a tool has run."""
    text = question_in(messages)
    if (work := _PAGE_WORK.search(text)) is not None:
        return _work_on_page(work, messages, tools)
    looked = bool(messages) and messages[-1].tool_call_id == _LOOKED
    if messages and messages[-1].role == "tool" and not looked:
        return _after_tools(messages, text, tools)
    if (asked := _file_call(text, tools, looked=looked) or _remind(text, tools)) is not None:
        return asked
    memory = memory_in(messages)
    if (changed := _about_memory(text, memory, tools)) is not None:
        return changed
    spoken, attached = _SPOKEN.findall(text), _ATTACHED.findall(text)
    if attached and not spoken:
        return DemoReply(_about_files(attached, messages))
    earlier = _said_earlier(messages)
    said = _talk(" ".join(spoken), memory, earlier, how="said") if spoken else _talk(text, memory, earlier)
    return DemoReply(said)


def _about_memory(text: str, memory: str, tools: Sequence[str]) -> DemoReply | None:
    """Reply to "remember that …" and "forget …"; None without these words."""
    if facts := facts_in(text):
        return _remember(facts, memory, tools)
    if forget := _FORGET.search(text):
        return _forget(forget[1].strip().rstrip(".!"), memory, tools)
    return None


def _file_call(text: str, tools: Sequence[str], *, looked: bool = False) -> DemoReply | None:
    """Reply to ``!sendfile``/``!readfile``, else None; a missing tool is searched for unless ``looked``."""
    ids = [file_id for file_id, _ in _ATTACHED.findall(text)]
    if (wanted := _SEND_FILE.search(text)) is not None:
        name, arguments = SEND_TOOL, {"path": wanted[1] or wanted[2] or "".join(ids[:1])}
    elif (wanted := _READ_FILE.search(text)) is not None:
        name, arguments = READ_TOOL, {"id": wanted[1] or "".join(ids[:1])}
    else:
        return None
    if name not in tools:
        if FIND_TOOL in tools and not looked:
            return DemoReply(calls=(ToolCall(id=_LOOKED, name=FIND_TOOL, arguments={"query": name}),))
        return DemoReply("I cannot do anything with files here.")
    return DemoReply(calls=(ToolCall(id="demo_1", name=name, arguments=arguments),))


def _work_on_page(wish: re.Match[str], messages: Sequence[Message], tools: Sequence[str]) -> DemoReply:
    """The next step of reading a page, writing a file of it, and counting its words with a command."""
    results = _results(messages)
    if results and results[-1].startswith("Error: "):
        return DemoReply(f"That did not work. The tool said: {results[-1]}")
    steps = [_FETCH_TOOL, _WRITE_TOOL, *([_SHELL_TOOL] if wish["count"] else [])]
    if len(results) == len(steps):
        told = "\n".join(line for line in results[-1].splitlines() if not _FENCE.match(line))
        return DemoReply(f"The page is in `{wish[2]}`. The last tool said: {told}")
    name = steps[len(results)]
    if name not in tools:
        return DemoReply(f"I have no {name} here.")
    page = "\n".join(line for line in results[0].splitlines() if not _FENCE.match(line)) if results else ""
    arguments = {
        _FETCH_TOOL: {"url": wish[1]},
        _WRITE_TOOL: {"path": wish[2], "content": f"{page}\n"},
        _SHELL_TOOL: {"command": f"wc -w < ../{wish[2]}"},
    }[name]
    return DemoReply(calls=(ToolCall(id=f"demo_{len(results) + 1}", name=name, arguments=arguments),))


def _about_files(attached: Sequence[tuple[str, str]], messages: Sequence[Message]) -> str:
    """Describe the files of the last message and the number of pictures the model was shown."""
    shown = next((len(each.attachments) for each in reversed(messages) if each.role == "user"), 0)
    names = "\n".join(f"- {what}" for _, what in attached)
    seen = f"\n\nPictures that I was shown: {shown}." if shown else ""
    return f"With your message came:\n\n{names}{seen}"


def _remind(text: str, tools: Sequence[str]) -> DemoReply | None:
    """Reply to "remind me …"; None without these words."""
    wish = _REMIND.search(text)
    if wish is None:
        return None
    if SCHEDULE_TOOL not in tools:
        return DemoReply("I have no schedule to put that into here.")
    arguments = {"action": "add", "kind": "remind", "text": wish["what"].strip(), "at": wish["when"]}
    return DemoReply(calls=(ToolCall(id="demo_1", name=SCHEDULE_TOOL, arguments=arguments),))


def memory_in(messages: Sequence[Message]) -> str:
    """The memory document as the system prompt shows it under ``## Your Memory``; empty if there is none."""
    for message in messages:
        opening = f"{MEMORY_HEADING}\n\n<memory>\n"
        if message.role == "system" and (found := between(message.content, opening, "</memory>")):
            return found.strip("\n").replace(r"<\/", "</")
    return ""


def facts_in(text: str) -> list[str]:
    """The facts to remember: the rest of each line after "remember that", and "my name is …"."""
    return [(match[1] or match[2]).strip() for match in _REMEMBER.finditer(text)]


def _remember(facts: Sequence[str], memory: str, tools: Sequence[str]) -> DemoReply:
    if MEMORY_TOOL not in tools:
        return DemoReply("I would note that down, but I have no memory to write to here.")
    known = memory.split("\n")
    new = [f"- {fact}" for fact in facts if f"- {fact}" not in known]
    if not new:
        return DemoReply("I know that already.")
    return _write("\n".join([*([memory] if memory else []), *new]))


def _forget(what: str, memory: str, tools: Sequence[str]) -> DemoReply:
    if MEMORY_TOOL not in tools:
        return DemoReply("I have no memory to change here.")
    lines = memory.split("\n")
    kept = [line for line in lines if what.lower() not in line.lower()]
    if len(kept) == len(lines):
        return DemoReply(f"I know nothing about “{what}”, so there is nothing to forget.")
    return _write("\n".join(kept))


def _write(document: str) -> DemoReply:
    return DemoReply(calls=(ToolCall(id="demo_1", name=MEMORY_TOOL, arguments={"content": document}),))


def _after_tools(messages: Sequence[Message], text: str, tools: Sequence[str]) -> DemoReply:
    result = messages[-1].content.strip()
    facts, forget = facts_in(text), _FORGET.search(text)
    magic = magic_word_in(text)
    if magic is not None and magic[0] in ("toolfail", "garbage"):
        return DemoReply(f"That went wrong, as you wanted. The tool said: {result}")
    if _failed(messages) and (_FILE_WORD.search(text) or _REMIND.search(text)):
        return DemoReply(f"That did not work. The tool said: {result}")
    if _failed(messages):
        if facts and "changed the memory" in result and len(_results(messages)) < 4:
            return _remember(facts, result.partition("memory_write again.\n\n")[2].strip(), tools)
        return DemoReply(f"I could not change my memory. The tool said: {result}")
    if facts:
        told = (_MINE.sub("your ", fact.rstrip(".!")) for fact in facts)
        return DemoReply(f"I will remember that {'; '.join(told)}.")
    said = "All right." if _REMIND.search(text) else "The tool said:"
    return DemoReply(f"I have forgotten {forget[1].strip().rstrip('.!')}." if forget else f"{said} {result}")


def _results(messages: Sequence[Message]) -> list[str]:
    """Return the results of the tools that ran since the last question."""
    newest = _since_question(messages)
    return [message.content for message in messages[len(messages) - newest :] if message.role == "tool"]


def _since_question(messages: Sequence[Message]) -> int:
    """Count the messages after the last question."""
    return next(
        (number for number, each in enumerate(reversed(messages)) if each.role == "user"), len(messages)
    )


def _failed(messages: Sequence[Message]) -> bool:
    return messages[-1].content.startswith("Error: ")


def _about_checklist(text: str) -> str:
    """Reply to a check-in with what was seen and the open items; silence if there is nothing."""
    parts = [f"I have seen something:\n\n{seen.strip()}" for seen in _SEEN.findall(text)]
    if items := _OPEN_ITEM.findall(text):
        parts.append("A reminder from your checklist:\n\n" + "\n".join(f"- {item}" for item in items))
    return "\n\n".join(parts) or _SILENCE


def _said_earlier(messages: Sequence[Message]) -> list[str]:
    """Return the lines of passages that the prompt looked up and of earlier questions, the newest last."""
    passages = [
        line.partition(": ")[2]
        for message in messages
        for passage in _PASSAGE.findall(message.content)
        for line in passage.splitlines()
        if line.startswith("  ")
    ]
    users = [message for message in messages if message.role == "user"][:-1]
    return [*passages, *(line for each in users for line in question_in([each]).splitlines())]


def _talk(text: str, memory: str, earlier: Sequence[str] = (), *, how: str = "wrote") -> str:
    if _SILENCE in text:
        return _about_checklist(text)
    if _RECALL.search(text):
        return f"This is what I know about you:\n\n{memory}" if memory else "I know nothing about you yet."
    sentences = (
        (_HELP, _HELP_TEXT),
        (_GREETING, "Hello! I am the demo model of this assistant. Say `help` to see what I can do."),
        (_WHO, "I am the demo model: a stand-in without a network, until a real model is configured."),
        (_CLOCK, "I have no clock, so I cannot tell."),
        (_THANKS, "You are welcome."),
        (_BYE, "Goodbye!"),
    )
    for pattern, answer in sentences:
        if pattern.search(text):
            return answer
    if text.endswith("?") and (found := _found_earlier(text, memory, earlier)):
        return found
    if not text:
        return "I see a message without any text."
    return (
        f"You {how}: “{text}”. I am only the demo model and have nothing to add; `help` tells what I can do."
    )


def _found_earlier(question: str, memory: str, earlier: Sequence[str]) -> str:
    if lines := _lines_about(question, memory.split("\n")):
        return "I have this in my memory:\n\n" + "\n".join(lines)
    lines = _lines_about(question, [line for line in earlier if not line.endswith("?")])
    return f"You told me earlier:\n\n> {lines[-1]}" if lines else ""


def _lines_about(question: str, lines: Sequence[str]) -> list[str]:
    """Return the lines that share a word with the question; "name" counts if it has no better one."""
    asked = set(re.findall(r"\w{3,}", question.lower()))
    words = asked - _STOP_WORDS or asked & {"name", "called"}
    return [line for line in lines if words & set(re.findall(r"\w{3,}", line.lower()))]


_STOP_WORDS = set(
    re.findall(
        r"\w+",
        "the and are you your who what when where which how why does did has have had was were can could"
        " would should called name with for from that this they them his her its our about know tell"
        " please like",
    )
)
