"""
The settings: one frozen tree of values, a model for each section of ``squidbot.yaml``. The docstring below a
field is its text in the example and the schema. Channels and tools have their models in a ``config.py`` of
their own; `settings_with` adds those of plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, unquote_plus, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    create_model,
    field_validator,
    model_validator,
)

from agent_core.language import ENGLISH, check_code
from agent_core.llm.model_config import LLMSpec
from agent_core.media.media_config import ImageSettings, VoiceSettings
from agent_core.settings_section import SettingsSection
from agent_core.text import time_zone
from agent_core.tools.dav.config import DavSettings
from agent_core.tools.mcp.config import McpSettings
from agent_core.tools.shell.config import ShellSettings
from agent_core.tools.web.config import WebSettings
from channels.heartbeat.config import HeartbeatConfig
from gateway.budget.config import BudgetSettings
from gateway.plugins import channel_kinds, tool_families
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.routing.access import Alias, kinds_of
from gateway.settings.accounts import ChannelSettings, accounts_model
from gateway.settings.attachment_settings import AttachmentSettings
from gateway.settings.people_settings import PersonName, PersonSettings
from gateway.settings.problems import is_loopback, parse_listen
from gateway.settings.source import Source
from gateway.settings.tool_settings import FileToolSettings, JobSettings


def _alias(value: Any) -> Any:
    if isinstance(value, str):
        kinds = kinds_of(value.strip())
        if len(kinds) != 1:
            raise ValueError(
                f"{value!r} can be an address on {' and '.join(kinds)}; write {{channel: …, address: …}}"
                if kinds
                else f'{value!r} is neither a Matrix id ("@name:server") nor a mail address '
                '("name@domain"); for an address on another channel write {channel: …, address: '
                "…}"
            )
        return Alias(kinds[0], value.strip())
    if isinstance(value, dict):
        if set(value) != {"channel", "address"} or not all(isinstance(text, str) for text in value.values()):
            raise ValueError("must have exactly the keys channel and address, both text")
        # The name of an account is looked up when all of them are known (`check_whole`).
        if value["channel"] in channel_kinds() and value["channel"] not in kinds_of(value["address"]):
            raise ValueError(f"{value['address']!r} is not an address on the channel {value['channel']}")
        return Alias(value["channel"], value["address"])
    if isinstance(value, Alias):
        return value
    raise ValueError("must be an address, or {channel: …, address: …}")


class LogSettings(SettingsSection):
    """
    ``file`` is relative to the home folder. It is rotated at ``max_file_mb`` (millions of bytes);
    ``keep_files`` older files are kept.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level."""
    format: Literal["auto", "json", "text"] = "auto"
    """``auto``: text on a terminal, JSON elsewhere."""
    file: str | None = Field(default=None, min_length=1)
    max_file_mb: float = Field(default=10.0, ge=0.01, le=10_000)
    keep_files: int = Field(default=5, ge=1, le=1000)


class TraceSettings(SettingsSection):
    """
    Traces of turns, model calls, tool calls and deliveries, sent to an OpenTelemetry collector; needs
    ``pip install '.[otel]'``.
    """

    endpoint: str = Field(pattern=r"^https?://[^\s?#@]+$")
    """The collector's address for traces by OTLP over HTTP, such as ``http://127.0.0.1:4318/v1/traces``."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers of each request, such as ``Authorization``."""
    contents: bool = False
    """If true, traces also have what people, tools and models say; only secrets are masked."""

    @property
    def warnings(self) -> Sequence[str]:
        """Return warnings about a missing library, and about words that anybody on the way can read."""
        from gateway.observability.traces import missing_for_traces  # noqa: PLC0415 - loads the store

        found, address = [], urlsplit(self.endpoint)
        if missing := missing_for_traces():
            found.append(f"gateway.traces: install OpenTelemetry with {missing}; until then nothing is sent")
        if self.contents and address.scheme == "http" and not is_loopback(address.hostname or ""):
            found.append("gateway.traces.contents: conversations are sent unencrypted; use https")
        return found


class OwnerSettings(SettingsSection):
    """
    The owner. ``aliases`` are addresses, or ``{channel, address}`` with the name of an account that verifies
    senders differently from the first account of its kind.
    """

    aliases: tuple[Annotated[Alias, BeforeValidator(_alias)], ...] = ()
    conversation: Literal["separate", "shared"] = "separate"
    """
    `shared`: all private conversations of the owner are one, on every channel; each answer goes where its
    question came from.
    """


class TurnLimitSettings(SettingsSection):
    """Limits of one turn."""

    steps: int = Field(default=20, ge=1, le=200)
    """Model calls."""
    seconds: float = Field(default=600.0, gt=0, le=86_400)
    """Time from start to answer."""
    tokens: int = Field(default=400_000, ge=1000)
    """Prompt and completion tokens."""
    tool_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Time of one tool call."""


class LLMSettings(LLMSpec):
    """Providers, models and pools. Without any, the demo model answers."""

    limits: TurnLimitSettings = TurnLimitSettings()
    budget: BudgetSettings = BudgetSettings()

    def unpriced_models(self) -> list[str]:
        """Models in pools whose price nobody knows: not set, not listed, not told by the provider."""
        used = {member for members in self.pools.values() for member in members}
        return [name for name, model in self.models.items() if name in used and not self.has_price(model)]


class AgentSettings(SettingsSection):
    """Settings of the assistant. ``workspace`` is relative to the home folder."""

    workspace: str = Field(default="workspace", min_length=1)
    restrict_to_workspace: bool = True
    """Whether only files in the workspace and in ``tools.files.roots`` can be sent."""
    consolidation_threshold: int = Field(default=100, ge=1, le=100_000)
    """Consolidate a conversation once this many messages are not yet summarised,"""
    consolidation_tokens: int = Field(default=12_000, ge=500, le=10_000_000)
    """or this many tokens."""
    keep_recent_ratio: float = Field(default=0.2, gt=0, lt=1)
    """The share of the threshold that stays verbatim."""
    consolidation_pool: str = ""
    """The pool that consolidates. Empty: the default pool."""
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    schedule: ScheduleConfig = ScheduleConfig()


def _store(given: SecretStr) -> SecretStr:
    if not given.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql:// or be left out, for a file in the home folder")
    return given


def _listen(value: str) -> str:
    parse_listen(value)
    return value


class HookSettings(SettingsSection):
    """
    One webhook: who may send, and what is said of it. Jobs wait for it: ``squidbot cron add --hook NAME``.

    ``signature`` says how the secret comes: ``bearer`` in the header Authorization (Home Assistant, Grafana),
    ``gitlab`` as GitLab sends it, or as the key of a SHA-256 signature of the body: ``github``, or ``hmac``
    in ``header``.
    """

    secret: SecretStr = Field(min_length=16)
    """At least 16 characters, such as ``${secret:grafana-hook}``."""
    signature: Literal["bearer", "github", "gitlab", "hmac"] = "bearer"
    header: str = Field(default="X-Signature-256", pattern=r"^[A-Za-z0-9-]{1,100}$")
    """The header with the signature, for ``hmac``."""
    text: str = Field(default="", max_length=2000)
    """
    What is said, with fields of the body: ``"{title}: {alerts.0.labels.alertname}"``. Empty: the body.
    """
    per_minute: int = Field(default=60, ge=1, le=10_000)
    """More requests are asked to come later (429)."""

    @property
    def signs_body(self) -> bool:
        """Return True if the proof is a signature of the body, so that the body has to be read first."""
        return self.signature in ("github", "hmac")


class HttpSettings(SettingsSection):
    """
    Address for health checks and metrics. An address that other machines can reach requires ``allow_remote:
    true``.

    ``console`` adds pages in which you read and decide; ``squidbot console`` or ``!console`` lets you in.
    """

    listen: Annotated[str, AfterValidator(_listen)]
    """``host:port``, such as ``127.0.0.1:8811``."""
    allow_remote: bool = False
    """Whether to allow an address that other machines can reach."""
    console: bool = False
    hooks: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")], HookSettings] = Field(default={})
    """Webhooks by name, at ``/hooks/NAME``; see docs/webhooks.md."""
    console_url: str = Field(default="", pattern=r"^$|^https://[^/?#@]+$")
    """
    Address of the console if a proxy with TLS is in front of it, such as ``https://squid.example.org``;
    required for an address that other machines can reach.
    """

    @model_validator(mode="after")
    def _this_machine_only(self) -> Self:
        if not self.allow_remote and not is_loopback(parse_listen(self.listen)[0]):
            raise ValueError(
                f"{self.listen} can be reached from other machines, without a login; listen on "
                "127.0.0.1, or add allow_remote: true (in a container, for example)"
            )
        if self.console and not self.console_url and not is_loopback(parse_listen(self.listen)[0]):
            raise ValueError(
                "console: true on an address that other machines can reach requires console_url, the https "
                "address of the proxy in front of it"
            )
        return self


class GatewaySettings(SettingsSection):
    """
    Settings of the daemon.

    ``durability: full`` survives a power cut. ``process`` is faster and survives only a crash of the daemon
    itself.
    """

    http: HttpSettings | None = None
    log: LogSettings = LogSettings()
    traces: TraceSettings | None = None
    max_concurrent_turns: int = Field(default=16, ge=1, le=256)
    """Maximum number of concurrent turns; one more is reserved for the owner."""
    durability: Literal["full", "process"] = "full"
    store: Annotated[SecretStr, AfterValidator(_store)] | None = None
    """Where the queue, histories and memory are: ``postgresql://…``. Empty: in the home folder."""
    state_key: SecretStr | None = Field(default=None, min_length=20)
    """
    Encrypts the accounts' logins and keys in that database; the same on all machines. Empty: the first
    machine creates it, in ``state/state-key`` of its home.
    """
    drain_seconds: float = Field(default=20.0, ge=0, le=600)
    """How long a shutdown waits for turns in flight."""


EffectName = Literal[
    "read", "private_read", "write_workspace", "persist", "send", "network_get", "network_send", "execute"
]
VerdictName = Literal["allow", "ask", "deny"]


class PolicyRow(SettingsSection):
    """The policy for calls of one effect, by the least trusted words that the model had been shown."""

    owner: VerdictName | None = None
    """Only the owner's words."""
    known: VerdictName | None = None
    """Words of another allowed person."""
    untrusted: VerdictName | None = None
    """Words that anybody may have written: pages, files, quoted or forwarded mails."""


class ToolSettings(SettingsSection):
    """Families of tools, and tool calls that need a person's approval."""

    require_approval: tuple[str, ...] = ()
    """Tools that run only after the person who asked, or the owner, approves; for example ``send_file``."""
    approval_timeout_minutes: float = Field(default=1440.0, ge=0.01, le=10_080)
    """How long an approval may take. After that, the turn goes on without the tool."""
    policy: dict[EffectName, PolicyRow] = Field(default_factory=dict)
    """
    Changes to the table that says which calls are made, asked about (``ask``) or never made (``deny``), by
    what a call does and whose words the model had been shown. For example ``{execute: {owner: ask}}``.
    docs/tool-policy.md has the whole table.
    """
    shell: ShellSettings = ShellSettings()
    web: WebSettings = WebSettings()
    files: FileToolSettings = FileToolSettings()
    image: ImageSettings | None = None
    dav: DavSettings | None = None
    jobs: JobSettings = JobSettings()


class PluginSettings(SettingsSection):
    """
    Channels and tools of other packages. A plugin runs with all rights of squidbot: enable only what you
    trust.
    """

    enabled: tuple[str, ...] = ()
    """Their names. Each is installed into squidbot's own environment; ``squidbot check`` lists them."""
    effects: dict[str, dict[str, EffectName]] = Field(default_factory=dict)
    """
    What the tools of a plugin do, such as ``{dice: {dice_roll: read}}``. A tool that is not listed, or
    declares something else, counts as running a program, and squidbot asks before each call.
    """


class SkillSettings(SettingsSection):
    """``always``: skills whose full text is part of every prompt."""

    always: tuple[str, ...] = ()


class MemorySettings(SettingsSection):
    """Finding again what was said."""

    lookup: bool = True
    """If true, the best earlier turns about a question are shown to the model with it."""
    vectors: bool = False
    """If true, a search also finds what was said in other words; needs ``pip install '.[recall]'``."""


class Settings(SettingsSection):
    """Everything. Texts of secrets are in `SecretStr`s only."""

    owner: OwnerSettings = OwnerSettings()
    timezone: str = "local"
    """
    The zone of all times that squidbot understands and shows, such as ``Europe/Berlin``; ``local``: this
    machine's.
    """
    language: Annotated[str, AfterValidator(check_code)] = Field(default=ENGLISH, min_length=2)
    """
    The language of what squidbot itself says in conversations and mails, ``en`` or ``de``; any other is
    English. The assistant answers in the language in which it is asked.
    """
    people: dict[PersonName, PersonSettings] = Field(default_factory=dict)
    """Other people by a name of your choice: role, language, tools. ``others``: all without an entry."""
    llm: LLMSettings = LLMSettings()
    agents: AgentSettings = AgentSettings()
    channels: ChannelSettings = ChannelSettings()
    gateway: GatewaySettings = GatewaySettings()
    tools: ToolSettings = ToolSettings()
    mcp: McpSettings = McpSettings()
    plugins: PluginSettings = PluginSettings()
    attachments: AttachmentSettings = AttachmentSettings()
    skills: SkillSettings = SkillSettings()
    memory: MemorySettings = MemorySettings()
    voice: VoiceSettings = VoiceSettings()

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        return value if value == "local" else time_zone(value, or_local=True).key

    @model_validator(mode="before")
    @classmethod
    def _one_zone(cls, data: Any) -> Any:
        """Check-ins, and what follows them, use the one zone unless they have another."""
        zone, agents = (
            (data.get("timezone"), data.get("agents") or {}) if isinstance(data, dict) else (None, {})
        )
        heartbeat = (agents.get("heartbeat") or {}) if isinstance(agents, dict) else None
        if not isinstance(zone, str) or not isinstance(heartbeat, dict) or "timezone" in heartbeat:
            return data
        try:
            time_zone(zone)
        except ValueError:
            return data  # reported at its own key, or it is this machine's
        return {**data, "agents": {**agents, "heartbeat": {**heartbeat, "timezone": zone}}}

    _path: Path | None = PrivateAttr(default=None)
    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _secret_texts: frozenset[str] = PrivateAttr(default=frozenset())
    _source: Source | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path | None:
        """The file that they were read from."""
        return self._path

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about valid settings that are probably a mistake."""
        return self._warnings

    @property
    def source(self) -> Source | None:
        """The file as it was read, with its lines and references; it holds secrets."""
        return self._source

    def secrets(self) -> frozenset[str]:
        """All texts that must never be shown, for the log's redaction."""
        return self._secret_texts | frozenset(_secret_values(self)) | _password_in(self.gateway.store)

    @property
    def state_key(self) -> str | None:
        """The key of what accounts keep in a database, if the settings have one."""
        return None if self.gateway.state_key is None else self.gateway.state_key.get_secret_value()

    @property
    def store_url(self) -> str | None:
        """The address of the queue's database; None: it is a file in the home folder."""
        return None if self.gateway.store is None else self.gateway.store.get_secret_value()

    def allow_from(self) -> dict[str, tuple[str, ...]]:
        """Return the people who may talk to the bot, by channel."""
        return {name: config.allow_from for name, config in self.channels.enabled().items()}


def settings_with(plugins: Sequence[str]) -> type[Settings]:
    """The model of the settings with what these loaded plugins add to it."""
    kinds = [channel_kinds()[name] for name in plugins if name in channel_kinds()]
    families = {name: tool_families()[name].config for name in plugins if name in tool_families()}
    fields: dict[str, Any] = {}
    if kinds:
        fields["channels"] = _field(accounts_model(ChannelSettings, kinds))
    if families:
        each: dict[str, Any] = {name: _field(config) for name, config in families.items()}
        tools = create_model("ToolSettings", __base__=ToolSettings, __doc__=ToolSettings.__doc__, **each)
        fields["tools"] = _field(tools)
    return create_model("Settings", __base__=Settings, __module__=__name__, **fields) if fields else Settings


def _field(model: type[BaseModel]) -> tuple[type[BaseModel], Any]:
    """A field of this model, which may be left out if nothing in it is needed."""
    is_needed = any(field.is_required() for field in model.model_fields.values())
    return model, ... if is_needed else Field(default_factory=model)


def _password_in(url: SecretStr | None) -> set[str]:
    """Whatever may be one: a sign in it may have made it a part of something else, so both ends are tried."""
    text = "" if url is None else url.get_secret_value()
    place, _, query = text.partition("://")[2].partition("?")
    words = {
        word.partition(":")[2]
        for whole in (place, text.partition("://")[2])
        if "@" in whole
        for word in (whole.partition("@")[0], whole.rpartition("@")[0])
    }
    named = (part.partition("=") for part in query.split("&"))
    words |= {value for name, _, value in named if name.strip().lower() in ("password", "sslpassword")}
    return {spelled for word in words for spelled in (word, unquote(word), unquote_plus(word))} - {""}


def _secret_values(value: Any) -> set[str]:
    if isinstance(value, SecretStr):
        return {value.get_secret_value()} - {""}
    if isinstance(value, BaseModel):
        return {text for name in type(value).model_fields for text in _secret_values(getattr(value, name))}
    if isinstance(value, dict):
        return {text for inner in value.values() for text in _secret_values(inner)}
    if isinstance(value, tuple):
        return {text for inner in value for text in _secret_values(inner)}
    return set()
