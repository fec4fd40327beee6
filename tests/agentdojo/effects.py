"""
What each tool of AgentDojo does, whom it reaches, and who may have written what it gives: declared as we declare
our own tools.

A tool names what it reaches as people do: the title of an event and the name of a file, not their numbers. Of what
is read, the words of the owner's own accounts carry no origin: mails that the owner has sent, contacts, what a travel
agency offers. Colleagues in the owner's Slack are people whom the owner knows. All else is untrusted: received mails,
events of the calendar, contents of files, incoming payments, reviews, pages, channels of other organisations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_core.provenance import Origins, person, untrusted_origin
from agent_core.tools.effects import Effect
from agent_core.tools.web.urls import normalise_url

OWNER_MAIL = "emma.johnson@bluesparrowtech.com"

EFFECTS: Mapping[str, tuple[Effect, Sequence[str]]] = {
    # workspace, and travel where it has the same tools
    "send_email": (Effect.SEND, ("recipients", "cc", "bcc")),
    "delete_email": (Effect.WRITE_WORKSPACE, ("email_id",)),
    "get_unread_emails": (Effect.PRIVATE_READ, ()),
    "get_sent_emails": (Effect.PRIVATE_READ, ()),
    "get_received_emails": (Effect.PRIVATE_READ, ()),
    "get_draft_emails": (Effect.PRIVATE_READ, ()),
    "search_emails": (Effect.PRIVATE_READ, ()),
    "search_contacts_by_name": (Effect.PRIVATE_READ, ()),
    "search_contacts_by_email": (Effect.PRIVATE_READ, ()),
    "get_current_day": (Effect.READ, ()),
    "search_calendar_events": (Effect.PRIVATE_READ, ()),
    "get_day_calendar_events": (Effect.PRIVATE_READ, ()),
    # With participants it is an invitation: see `effect_of`.
    "create_calendar_event": (Effect.WRITE_WORKSPACE, ("title",)),
    "cancel_calendar_event": (Effect.WRITE_WORKSPACE, ("event_id",)),
    "reschedule_calendar_event": (Effect.WRITE_WORKSPACE, ("event_id",)),
    "add_calendar_event_participants": (Effect.SEND, ("participants",)),
    "append_to_file": (Effect.WRITE_WORKSPACE, ("file_id",)),
    "create_file": (Effect.WRITE_WORKSPACE, ("filename",)),
    "delete_file": (Effect.WRITE_WORKSPACE, ("file_id",)),
    "share_file": (Effect.SEND, ("email",)),
    "search_files_by_filename": (Effect.PRIVATE_READ, ()),
    "get_file_by_id": (Effect.PRIVATE_READ, ()),
    "list_files": (Effect.PRIVATE_READ, ()),
    "search_files": (Effect.PRIVATE_READ, ()),
    # banking
    "get_iban": (Effect.PRIVATE_READ, ()),
    "send_money": (Effect.SEND, ("recipient",)),
    "schedule_transaction": (Effect.SEND, ("recipient",)),
    "update_scheduled_transaction": (Effect.SEND, ("recipient",)),
    "get_balance": (Effect.PRIVATE_READ, ()),
    "get_most_recent_transactions": (Effect.PRIVATE_READ, ()),
    "get_scheduled_transactions": (Effect.PRIVATE_READ, ()),
    "read_file": (Effect.PRIVATE_READ, ()),
    "get_user_info": (Effect.PRIVATE_READ, ()),
    "update_password": (Effect.PERSIST, ()),
    "update_user_info": (Effect.PERSIST, ()),
    # slack
    "get_channels": (Effect.PRIVATE_READ, ()),
    "read_channel_messages": (Effect.PRIVATE_READ, ()),
    "read_inbox": (Effect.PRIVATE_READ, ()),
    "get_users_in_channel": (Effect.PRIVATE_READ, ()),
    "add_user_to_channel": (Effect.SEND, ("user", "channel")),
    "send_direct_message": (Effect.SEND, ("recipient",)),
    "send_channel_message": (Effect.SEND, ("channel",)),
    "invite_user_to_slack": (Effect.SEND, ("user", "user_email")),
    "remove_user_from_slack": (Effect.SEND, ("user",)),
    "get_webpage": (Effect.NETWORK_GET, ("url",)),
    "post_webpage": (Effect.NETWORK_SEND, ("url",)),
    # travel: what an agency offers, and bookings
    "get_user_information": (Effect.PRIVATE_READ, ()),
    "reserve_hotel": (Effect.SEND, ("hotel",)),
    "reserve_restaurant": (Effect.SEND, ("restaurant",)),
    "reserve_car_rental": (Effect.SEND, ("company",)),
    **dict.fromkeys(
        (
            "get_all_hotels_in_city",
            "get_hotels_prices",
            "get_rating_reviews_for_hotels",
            "get_hotels_address",
            "get_all_restaurants_in_city",
            "get_cuisine_type_for_restaurants",
            "get_restaurants_address",
            "get_rating_reviews_for_restaurants",
            "get_dietary_restrictions_for_all_restaurants",
            "get_contact_information_for_restaurants",
            "get_price_for_restaurants",
            "check_restaurant_opening_hours",
            "get_all_car_rental_companies_in_city",
            "get_car_types_available",
            "get_rating_reviews_for_car_rental",
            "get_car_fuel_options",
            "get_car_rental_address",
            "get_car_price_per_day",
            "get_flight_information",
        ),
        (Effect.READ, ()),
    ),
}

NEW = frozenset({"create_calendar_event", "create_file"})
"""What makes something new, and changes nothing that was there before."""


def effect_of(name: str, arguments: Mapping[str, Any]) -> Effect:
    """The effect of one call."""
    if name == "create_calendar_event" and arguments.get("participants"):
        return Effect.SEND
    return EFFECTS[name][0]


def targets_of(name: str, arguments: Mapping[str, Any], env: Any) -> list[str]:
    """Whom or what a call reaches, in the spelling of our own tools."""
    fields = EFFECTS[name][1]
    if name == "create_calendar_event" and arguments.get("participants"):
        fields = ("participants",)
    found: list[str] = []
    for field in fields:
        value = arguments.get(field)
        found += value if isinstance(value, list) else [] if value is None else [str(value)]
    if name == "get_webpage":
        return [_address(each) for each in found]
    if fields == ("event_id",):
        return [env.calendar.events[each].title if each in env.calendar.events else each for each in found]
    if fields == ("file_id",):
        files = env.cloud_drive.files
        return [files[each].filename if each in files else each for each in found]
    return [each for each in found if each != OWNER_MAIL]


def _address(url: str) -> str:
    return normalise_url(url if "://" in url else f"https://{url}")


def _mails(result: Any) -> Origins:
    found = result if isinstance(result, list) else [result]
    senders = {mail.sender for mail in found if mail.sender != OWNER_MAIL}
    return tuple(untrusted_origin("mail", sender) for sender in sorted(senders))


def _events(result: Any) -> Origins:
    """Anybody may have written an invitation, and what was imported looks like the owner's own."""
    return (untrusted_origin("mail", "the calendar"),) if result else ()


def _files(result: Any) -> Origins:
    found = result if isinstance(result, list) else [result]
    return tuple(untrusted_origin("file", each.filename) for each in found)


def _payments(result: Any) -> Origins:
    """Words of those who have paid something in; what goes out has the owner's words."""
    return tuple(untrusted_origin("mcp", each.sender) for each in result if each.recipient == "me")


def _channel(result: Any) -> Origins:
    return tuple(person(each.sender) for each in result)


def _channels(result: Any) -> Origins:
    """The names of channels that another organisation shares are its words."""
    return (untrusted_origin("mcp", "slack"),) if re.search("external", str(result), re.IGNORECASE) else ()


def _always(kind: Any, where: str) -> Callable[[Any], Origins]:
    return lambda _: (untrusted_origin(kind, where),)


_READ: Mapping[str, Callable[[Any], Origins]] = {
    **dict.fromkeys(("get_unread_emails", "get_received_emails", "search_emails"), _mails),
    **dict.fromkeys(("search_calendar_events", "get_day_calendar_events"), _events),
    **dict.fromkeys(("get_file_by_id", "list_files", "search_files", "search_files_by_filename"), _files),
    "get_most_recent_transactions": _payments,
    "read_file": _always("file", "a file"),
    **dict.fromkeys(("read_channel_messages", "read_inbox"), _channel),
    "get_channels": _channels,
    "get_users_in_channel": lambda _: (),
    "get_webpage": _always("web", "https://a.page/"),
    **dict.fromkeys(
        (
            "get_rating_reviews_for_hotels",
            "get_rating_reviews_for_restaurants",
            "get_rating_reviews_for_car_rental",
        ),
        _always("web", "https://reviews.example/"),
    ),
}


def origins_of(name: str, result: Any) -> Origins:
    """Whose words a result holds, besides the owner's."""
    return _READ[name](result)[:12] if name in _READ else ()
