"""
Servers that refuse what providers refuse, by name: profiles over `FakeOpenAI`.

A rule is a function of a request's body that returns the provider's words, or nothing. Each stands for
refusals that people have reported with these words, or for the provider's documentation. Rules that nothing
confirmed are left out, so a profile is not complete.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from aiohttp import web

from tests.doubles import anthropic_server as anthropic
from tests.doubles.ollama_server import FakeOllama, Pulled
from tests.doubles.openai_server import TOO_LONG, FakeOpenAI, Reply, Say, Status

Body = Mapping[str, Any]
Rule = Callable[[Body], str]


def results_answer_calls(body: Body) -> str:
    """OpenAI, DashScope and most others: results follow their calls, each call has one."""
    open_calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                return (
                    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                )
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            break
        open_calls += [call["id"] for call in message.get("tool_calls", ())]
    text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each."
    return text if open_calls else ""


def whole_schemas(body: Body) -> str:
    """OpenAI: an array says what is in it."""
    for tool in body.get("tools", ()):
        properties = tool["function"]["parameters"].get("properties", {})
        if any(each.get("type") == "array" and "items" not in each for each in properties.values()):
            return f"Invalid schema for function '{tool['function']['name']}': array schema missing items."
    return ""


def no_max_tokens(body: Body) -> str:
    """OpenAI's reasoning models."""
    text = "Unsupported parameter: 'max_tokens' is not supported with this model."
    return f"{text} Use 'max_completion_tokens' instead." if "max_tokens" in body else ""


def reasoning_comes_back(words: str) -> Rule:
    """DeepSeek and Moonshot in thinking mode: calls come back with what led to them."""

    def rule(body: Body) -> str:
        missing = [m for m in body["messages"] if m.get("tool_calls") and not m.get("reasoning_content")]
        return words if missing else ""

    return rule


def reasoning_everywhere(body: Body) -> str:
    """DeepSeek V4: every answer comes back with some, also one that called nothing."""
    missing = [m for m in body["messages"] if m["role"] == "assistant" and not m.get("reasoning_content")]
    text = "The `reasoning_content` in the thinking mode must be passed back to the API."
    return text if missing else ""


def no_effort_with_tools(body: Body) -> str:
    """OpenAI since GPT-5.6: thinks unless told not to, and then takes no tools here."""
    text = "Function tools with reasoning_effort are not supported for m in /v1/chat/completions."
    more = "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
    return f"{text} {more}" if body.get("tools") and body.get("reasoning_effort") != "none" else ""


def no_reasoning(words: str) -> Rule:
    """Groq and Mistral: messages have no fields that they do not know."""

    def rule(body: Body) -> str:
        found = [m for m in body["messages"] if {"reasoning", "reasoning_content"} & m.keys()]
        return words if found else ""

    return rule


def no_user_behind_tool(body: Body) -> str:
    """Mistral."""
    roles = [message["role"] for message in body["messages"]]
    found = ("tool", "user") in pairwise(roles)
    return "Unexpected role 'user' after role 'tool'" if found else ""


def ids_of_nine(body: Body) -> str:
    """Mistral."""
    ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
    ids += [message["tool_call_id"] for message in body["messages"] if "tool_call_id" in message]
    bad = next((name for name in ids if len(name) != 9 or not (name.isascii() and name.isalnum())), None)
    return f"Tool call id was {bad} but must be a-z, A-Z, 0-9, with a length of 9." if bad else ""


def no_more_fields(*names: str) -> Rule:
    """Mistral."""
    return lambda body: "Extra inputs are not permitted" if body.keys() & set(names) else ""


def most_tools(body: Body) -> str:
    """Groq."""
    return "'tools' : maximum number of items is 128" if len(body.get("tools", ())) > 128 else ""


def signed_calls(body: Body) -> str:
    """Gemini's compatible endpoint."""
    calls = [call for message in body["messages"] for call in message.get("tool_calls", ())]
    if all(call.get("extra_content", {}).get("google", {}).get("thought_signature") for call in calls):
        return ""
    return "Function call is missing a thought_signature in functionCall parts."


def content_everywhere(body: Body) -> str:
    """xAI and Z.AI: no message is empty."""
    empty = [message for message in body["messages"] if not message.get("content")]
    return "Invalid request content: Each message must have at least one content element." if empty else ""


def some_user(words: str) -> Rule:
    """Z.AI, and templates of Qwen."""
    return lambda body: "" if any(m["role"] == "user" for m in body["messages"]) else words


def no_prefill(body: Body) -> str:
    """llama.cpp with a model that thinks."""
    last = body["messages"][-1]["role"]
    return "Assistant response prefill is incompatible with enable_thinking." if last == "assistant" else ""


def roles_alternate(body: Body) -> str:
    """Templates of Mistral's and Google's models, where a server of one's own renders them."""
    said = [
        m["role"] for m in body["messages"] if m["role"] in ("user", "assistant") and "tool_calls" not in m
    ]
    good = said[:1] == ["user"] and all(a != b for a, b in pairwise(said))
    return "" if good else "After the optional system message, conversation roles must alternate."


def no_tools(body: Body) -> str:
    """vLLM that was started without a parser."""
    text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    return text if body.get("tools") else ""


def ollama_types(body: Body) -> str:
    """Ollama, whose fields have one type each."""
    for message in body["messages"]:
        if not isinstance(message["content"], str):
            return "json: cannot unmarshal array into Go struct field ChatRequest.messages.content"
        calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        if not all(isinstance(arguments, dict) for arguments in calls):
            return (
                "json: cannot unmarshal string into Go struct field .messages.tool_calls.function.arguments"
            )
    return ""


@dataclass(frozen=True)
class Profile:
    """
    One provider.

    Args:
        model: As it is configured.
        thinks: Its answers have `reasoning_content`; ``signs``: its calls are signed.
        in_list: Errors come in a list, as Gemini's do.
        by_address: It is configured with its `api_base`.
        learned: How many requests may be refused until the client has learned what it leaves out.
    """

    model: str
    rules: Sequence[Rule]
    thinks: bool = False
    signs: bool = False
    in_list: bool = False
    learned: int = 0
    by_address: bool = False
    calls_tools: bool = True
    effort: str = ""
    """Its `reasoning_effort`."""
    too_long: Status = TOO_LONG
    refused_tool: Status = Status(400, "Invalid schema for function 'look': no")  # noqa: RUF009 - frozen


_CLAUDE: Mapping[str, Any] = {
    "too_long": Status(400, "prompt is too long: 210000 tokens > 200000 maximum"),
    "refused_tool": Status(400, "tools.0.custom.input_schema: JSON schema is invalid."),
}
_LLAMA_TOO_LONG = Status(400, "request (9000 tokens) exceeds the available context size (4096 tokens)")
_NOT_IN_GROQ = "'messages.2' : for 'role:assistant' : property 'reasoning_content' is unsupported"
_NOT_IN_MISTRAL = "'loc': ['body', 'messages', 2, 'assistant', 'reasoning_content'], 'msg': 'Extra inputs are not permitted'"
PROFILES: Mapping[str, Profile] = {
    "openai": Profile("openai/gpt-5", [results_answer_calls, whole_schemas, no_max_tokens]),
    "openrouter": Profile("openrouter/x/y", [results_answer_calls, whole_schemas], thinks=True),
    "deepseek": Profile(
        "deepseek/deepseek-reasoner",
        [
            results_answer_calls,
            reasoning_comes_back("Missing `reasoning_content` field in the assistant message"),
        ],
        thinks=True,
    ),
    "deepseek v4": Profile(
        "deepseek/deepseek-v4-flash", [results_answer_calls, reasoning_everywhere], thinks=True, learned=1
    ),
    "openai thinking": Profile(
        "openai/gpt-5.6",
        [results_answer_calls, no_max_tokens, no_effort_with_tools],
        effort="high",
        learned=1,
    ),
    "mistral": Profile(
        "mistral/mistral-small-latest",
        [
            results_answer_calls,
            no_user_behind_tool,
            ids_of_nine,
            no_more_fields("max_completion_tokens", "stream_options"),
            no_reasoning(_NOT_IN_MISTRAL),
        ],
    ),
    "groq": Profile(
        "groq/openai/gpt-oss-120b", [no_reasoning(_NOT_IN_GROQ), most_tools], thinks=True, learned=1
    ),
    "gemini": Profile("gemini/gemini-3", [signed_calls], signs=True, in_list=True),
    "xai": Profile("xai/grok-4", [content_everywhere]),
    "moonshot": Profile(
        "openai/kimi-k2.6",
        [
            results_answer_calls,
            reasoning_comes_back(
                "thinking is enabled but reasoning_content is missing in assistant tool call"
            ),
        ],
        thinks=True,
        by_address=True,
    ),
    "zai": Profile(
        "openai/glm-4.6",
        [content_everywhere, some_user("The messages parameter is illegal.")],
        thinks=True,
        by_address=True,
    ),
    "dashscope": Profile("openai/qwen-plus", [results_answer_calls], by_address=True),
    "llama.cpp": Profile("openai/qwen3", [no_prefill, roles_alternate], thinks=True, by_address=True),
    "vllm": Profile("vllm/qwen3", [no_tools], learned=1, calls_tools=False),
    "lm_studio": Profile(
        "lm_studio/qwen3", [roles_alternate, some_user("Jinja Exception: No user query found in messages.")]
    ),
    "anthropic": Profile("anthropic/claude", [anthropic.refusal_of], **_CLAUDE),
    "anthropic thinking": Profile(
        "anthropic/claude", [anthropic.refusal_of], effort="medium", thinks=True, **_CLAUDE
    ),
    "anthropic adaptive": Profile(
        "anthropic/claude-new",
        [partial(anthropic.refusal_of, adaptive=True)],
        effort="medium",
        thinks=True,
        learned=1,
        **_CLAUDE,
    ),
    "ollama": Profile("ollama/qwen3:4b", [ollama_types], thinks=True, too_long=_LLAMA_TOO_LONG),
}


class StrictServer(FakeOpenAI):
    """A server of one profile; ``refusals`` are its words, in order."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.profile = profile
        self.refusals: list[str] = []

    answer_with = FakeOpenAI.plan

    def forget_plan(self) -> None:
        """Answer no request as planned any more."""
        self._plan.clear()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        refusal = next((words for rule in self.profile.rules if (words := rule(body))), "")
        if not refusal:
            return await super()._answer(request)
        self.requests.append(body)
        self.refusals.append(refusal)
        error = {"error": {"message": refusal, "code": 400, "type": "invalid_request_error"}}
        return web.json_response([error] if self.profile.in_list else error, status=400)


class StrictAnthropic(anthropic.FakeAnthropic):
    """The same in Anthropic's protocol."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(adaptive=profile.learned > 0)

    def answer_with(self, *replies: Reply) -> None:
        """Answer the next requests so."""
        for reply in replies:
            if isinstance(reply, Status):
                self.errors.append((reply.status, reply.type, reply.message))
                continue
            assert isinstance(reply, Say)
            blocks = [anthropic.thought("".join(reply.thinking))] if reply.thinking else []
            blocks += [anthropic.text("".join(reply.pieces))] if reply.pieces else []
            blocks += [
                anthropic.use(call.name, call.id, **json.loads(call.arguments)) for call in reply.calls
            ]
            stops = {"length": "max_tokens", "content_filter": "refusal"}
            self.say(*blocks, stop=stops.get(reply.finish or "", ""))

    def forget_plan(self) -> None:
        """Answer no request as planned any more."""
        self.plan.clear()


@dataclass
class StrictOllama(FakeOllama):
    """The same in Ollama's protocol."""

    models: dict[str, Pulled] = field(
        default_factory=lambda: {
            "qwen3:4b": Pulled(capabilities=("completion", "tools", "vision", "thinking"))
        }
    )
    refusals: list[str] = field(default_factory=list)
    replies: deque[Reply] = field(default_factory=deque)

    def answer_with(self, *replies: Reply) -> None:
        """Answer the next requests so."""
        self.replies.extend(replies)

    def forget_plan(self) -> None:
        """Answer no request as planned any more."""
        self.replies.clear()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if refusal := ollama_types(body):
            self.refusals.append(refusal)
        reply = Status(400, refusal) if refusal else self.replies.popleft()
        if isinstance(reply, Status):
            self.requests.append(body)
            return web.json_response({"error": reply.message}, status=reply.status)
        assert isinstance(reply, Say)
        said: dict[str, Any] = {"content": "".join(reply.pieces), "thinking": "".join(reply.thinking)}
        said["tool_calls"] = [
            {"function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in reply.calls
        ]
        self.answer, self.done_reason = lambda _: said, reply.finish or "stop"
        return await super()._chat(request)


def server_of(profile: Profile) -> StrictServer | StrictAnthropic | StrictOllama:
    """The server that speaks the protocol of a profile."""
    provider = profile.model.partition("/")[0]
    own = {"anthropic": lambda: StrictAnthropic(profile), "ollama": StrictOllama}
    return own.get(provider, lambda: StrictServer(profile))()
