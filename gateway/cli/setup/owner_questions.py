"""Asks who the owner is, and which model answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from agent_core.text import time_zone
from channels.setup import TRIES, Check, Dialogue, SetupFailed, SetupForm, SetupRefused
from gateway.cli.setup.model_probe import (
    ModelOffer,
    find_offer,
    key_variable,
    offers,
    ollama_models,
    ollama_problem,
    prove,
)
from gateway.cli.setup.options import Given
from gateway.plugins import channel_kinds, setup_forms
from gateway.proactive.jobs.trigger_parsing import zone_name
from gateway.routing.access import kind_of, normalise
from gateway.settings import Settings


def ask_owner(
    given: Given,
    settings: Settings,
    dialogue: Dialogue,
    *,
    channels: Mapping[str, str],
    is_unknown: Callable[[str], bool] = lambda _person: False,
) -> tuple[str, ...]:
    """
    The owner's addresses.

    Args:
        channels: The bot's own address on each kind of channel that is on.
        is_unknown: Returns True if an address is surely nobody's.

    Raises:
        SetupRefused: An address is none, or it is the bot's own.
    """
    own, forms = {normalise(address) for address in channels.values()}, setup_forms()
    check_address = partial(_checked_address, forms, own)
    addresses: list[str] = []
    for text in given.owner:
        if "@" not in text:
            raise SetupRefused(f"--owner: {text!r} is not an address; write {_examples()}")
        try:
            addresses.append(check_address(text))
        except ValueError as error:
            raise SetupRefused(f"--owner: {error}") from error
        if is_unknown(text):
            dialogue.say(f"Warning: its server has no user {text}.")
    present = {alias.channel: alias.address for alias in reversed(settings.owner.aliases)}
    kinds = {kind_of(address) for address in addresses}
    for kind in forms:
        if kind in kinds or kind not in channels:
            continue
        known = present.get(kind, "")
        asks = dialogue.interactive and not given.owner
        answer = _own_address(kind, known, dialogue, check_address) if asks else known
        while asks and answer and _is_mistyped(answer, dialogue, is_unknown):
            answer = _own_address(kind, "", dialogue, check_address)
        addresses += [answer] if answer else []
    return tuple(addresses)


def _checked_address(forms: Mapping[str, SetupForm[Any]], own: Collection[str], text: str) -> str:
    form = forms.get(kind_of(text) or "")
    if form is None:
        raise ValueError(f"{text!r} is not a whole address, such as {_examples()}")
    text = form.check_address(text)
    if normalise(text) in own:
        raise ValueError(f"{text} is the bot's own address; give yours")
    return text


def _examples() -> str:
    return " or ".join(channel_kinds()[kind].addresses.example for kind in setup_forms())


def ask_timezone(given: Given, settings: Settings, dialogue: Dialogue) -> str:
    """The person's time zone; empty: it stays as it is."""
    present = zone_name(settings.timezone)
    if given.timezone or not dialogue.interactive:
        return given.timezone or ""
    answer = dialogue.ask(
        "Your time zone", present, check=lambda text: time_zone(text).key, flag="--timezone"
    )
    return "" if answer == present else answer


def _is_mistyped(address: str, dialogue: Dialogue, is_unknown: Callable[[str], bool]) -> bool:
    """Return True if the person confirms that the address was mistyped."""
    if not is_unknown(address):
        return False
    dialogue.say(f"  Its server has no user {address}.")
    return not dialogue.agree("  Use it anyway?", default=False)


def _own_address(kind: str, known: str, dialogue: Dialogue, check_address: Check) -> str:
    def check(text: str) -> str:
        if text and kind_of(text) != kind:
            raise ValueError(f"{text!r} is not one, such as {channel_kinds()[kind].addresses.example}")
        return check_address(text) if text else text

    return dialogue.ask(
        f"{setup_forms()[kind].owner_question} (you are the owner{'' if known else '; empty: nobody is'})",
        known,
        check=check,
        flag="--owner",
    )


def ask_model(
    given: Given, settings: Settings, dialogue: Dialogue, environ: Mapping[str, str]
) -> ModelOffer | None:
    """Choose the model; None: the configured one stays. Raises `SetupFailed` if it does not answer."""
    if given.model:
        offer = find_offer(
            given.model, api_base=given.api_base or "", api_key=given.api_key or "", environ=environ
        )
        offer = _with_present_key(offer, settings)
        return _proved(offer, given, settings, dialogue)
    present = configured_model(settings)
    if present and (
        not dialogue.interactive or dialogue.agree(f"Keep the model {present.name}?", default=True)
    ):
        return None
    found = offers(environ, ollama_models(limit_s=2.0))
    if not dialogue.interactive:
        dialogue.say(f"The model: {found[0].told}.")
        return _proved(found[0], given, settings, dialogue)
    dialogue.say("Which model should answer?")
    options = [offer.told for offer in found] + ["another one"]
    for attempt in range(TRIES):
        number = dialogue.choose("  Number", options)
        offer = found[number] if number < len(found) else _another(dialogue, environ)
        try:
            proved = _proved(offer, given, settings, dialogue)
        except SetupFailed as error:
            if attempt == TRIES - 1:
                raise
            dialogue.say(f"  {str(error).splitlines()[0]}")
        else:
            dialogue.note("--model", offer.name)
            if offer.provider == "server":
                dialogue.note("--api-base", offer.api_base)
            return proved
    raise AssertionError("the last try has raised or returned")


def _another(dialogue: Dialogue, environ: Mapping[str, str]) -> ModelOffer:
    question = "  The model as provider/name (openai/…, anthropic/…, openrouter/…, mistral/…)"
    model = dialogue.ask(question, "openai/gpt-5-mini", flag="--model")
    base = dialogue.ask("  The address of a server of your own, or - for the provider's", "-")
    offer = find_offer(model, api_base="" if base == "-" else base, api_key="", environ=environ)
    if offer.provider and not offer.api_key:
        key = dialogue.secret(
            "  Its API key", flag="--api-key-file FILE", empty="for none" if offer.api_base else ""
        )
        offer = find_offer(model, api_base=offer.api_base, api_key=key or "", environ=environ)
    return offer


def _proved(offer: ModelOffer, given: Given, settings: Settings, dialogue: Dialogue) -> ModelOffer | None:
    if offer.provider and not offer.api_base and not offer.api_key:
        raise SetupFailed(
            f"there is no key for the model {offer.name}: give --api-key-file FILE (or "
            f"SQUIDBOT_INIT_API_KEY, or {key_variable(offer.model)})"
        )
    if given.probe and offer.provider:
        dialogue.say(f"  asking {offer.name} one question …")
        if wrong := ollama_problem(offer) or prove(offer, dialogue.say):
            raise SetupFailed(
                f"the model {offer.name} does not answer: {wrong}\nNothing was written. "
                "--no-probe accepts it anyway."
            )
        dialogue.say("  It answers.")
        if offer.needs_litellm:
            dialogue.say("  (squidbot calls it through litellm, in a separate process that takes 270 MB.)")
    return None if _is_present(offer, settings) else offer


def configured_model(settings: Settings) -> ModelOffer | None:
    """The first model of the default pool, as it is configured."""
    llm = settings.llm
    members = llm.pools.get(llm.default_pool, ())
    model = llm.models.get(members[0]) if members else None
    if model is None:
        return None
    provider = llm.providers.get(model.provider)
    base, key = ("", "") if provider is None else (provider.api_base, provider.api_key.get_secret_value())
    return ModelOffer(model.model, model.provider, base, key)


def _with_present_key(offer: ModelOffer, settings: Settings) -> ModelOffer:
    """The key that is configured for this very model, if none was given."""
    present = configured_model(settings)
    same = present is not None and (present.model, present.api_base) == (offer.model, offer.api_base)
    if present is None or not same or offer.api_key:
        return offer
    return ModelOffer(offer.model, present.provider, offer.api_base, present.api_key, offer.told)


def _is_present(offer: ModelOffer, settings: Settings) -> bool:
    present = configured_model(settings)
    return (
        present is not None
        and (present.model, present.api_base) == (offer.model, offer.api_base)
        and (present.api_key == (offer.api_key or ("none" if offer.is_own_server else "")))
    )
