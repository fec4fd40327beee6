"""
The checks that a Matrix bot has to stand, each with the tests that show it on a real homeserver.

Where it depends on the room they go through rooms of version 11 and 12, in clear and encrypted.

====  ==============================================================================================
no.   what must hold
====  ==============================================================================================
M0    ready soon after its start
M1    a question in a direct room is answered in it, with typing before
M2    typing ends with the answer; the question is marked as read
M3    an encrypted conversation has no shield
M4    the bot's device is signed; without that it would be shown red and left out
M5    emoji verification, in the room and between devices
M6    an answer in a thread stays in it
M7    an edited question is answered as it reads now
M8    strangers get nothing and their invitations are refused
M9    what was said while it was away is answered once, in order, also with a gap and after a kill
M10   SIGKILL at any moment: nothing lost, nothing doubled
M11   poisonous to-device events
M12   one-time keys that a stranger has taken
M13   a question that is taken back is not answered
M14   a storm of errors is sat out
M15   a cut after the server has taken an event makes no second one
M16   tokens that end: a new login, or one clear state
M17   soft logout keeps the device
M18   a server that asks for pauses gets them
M19   a homeserver that restarts, also in the middle of a send
M20   a crypto store that is of no use is replaced by a new signed device
M21   nothing in clear goes into an encrypted room
M22   keys that come late, and keys that are withheld
M23   who is meant in a group
M24   what a direct room is
M25   files both ways
M26   long answers are cut well and formatted
M27   reactions decide, for those who may
M28   bots and notices make no loop
M29   being put out, and upgrades of rooms
M30   commands
M31   two processes on one home
M32   a long history is not answered at the first start
M33   quick
====  ==============================================================================================

`CHECKS` names the tests; those here see that each one exists. Times (M0, M1, M33) are measured by `make bench`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
KINDS, EVERY, GROUPS, ROOMS, CHANNEL = (
    "integration/test_matrix_kinds.py",
    "integration/test_matrix_checks.py",
    "integration/test_matrix_groups.py",
    "integration/test_matrix_rooms.py",
    "integration/test_matrix_channel.py",
)
EACH, GONE, CRYPTO, LOST, POSITIONS, ELEMENT, ANSWERS, KILL = (
    "integration/test_matrix_each_kind.py",
    "integration/test_matrix_server_gone.py",
    "integration/test_matrix_encryption.py",
    "integration/test_matrix_lost_devices.py",
    "integration/test_matrix_positions.py",
    "integration/test_matrix_element.py",
    "integration/test_matrix_answers.py",
    "kill/test_matrix_kill.py",
)
ONE_TALK = {EVERY: ("test_a_conversation_in_every_kind_of_room",)}
CHECKS: dict[str, dict[str, tuple[str, ...]]] = {
    "M0": ONE_TALK,
    "M1": ONE_TALK,
    "M2": ONE_TALK,
    "M3": {ELEMENT: ("test_an_encrypted_conversation_has_no_shield",)},
    "M4": {
        ELEMENT: (
            "test_an_encrypted_conversation_has_no_shield",
            "test_without_a_signature_the_shield_would_be_red",
        )
    },
    "M5": {ELEMENT: ("test_emoji_verification_makes_the_bot_trusted",)},
    "M6": ONE_TALK,
    "M7": ONE_TALK,
    "M8": {EACH: ("test_invitations_of_strangers_are_refused",), CHANNEL: ("test_a_stranger_is_refused",)},
    "M9": {
        POSITIONS: (
            "test_what_was_said_while_away_arrives_in_order",
            "test_a_timeline_alone_would_lose_messages",
        ),
        KINDS: ("test_in_every_kind_of_room",),
        ELEMENT: ("test_a_restart_after_a_kill_reads_and_answers_everything",),
    },
    "M10": {
        KILL: (
            "test_sigkill_at_random_moments_in_encrypted_rooms",
            "test_the_oracle_sees_what_cannot_be_read",
        ),
        "kill/test_real_kill.py": ("test_sigkill_at_random_moments_on_real_servers",),
    },
    "M11": {
        EACH: ("test_poison_and_drained_keys_cost_no_question",),
        CRYPTO: ("test_malformed_to_device_events_take_nothing_along",),
    },
    "M12": {
        EACH: ("test_poison_and_drained_keys_cost_no_question",),
        CRYPTO: ("test_drained_one_time_keys_are_replaced",),
    },
    "M13": ONE_TALK,
    "M14": {GONE: ("test_a_storm_of_errors_is_sat_out",)},
    "M15": {KINDS: ("test_in_every_kind_of_room",)},
    "M16": {
        KINDS: ("test_in_every_kind_of_room",),
        "integration/test_matrix_account.py": ("test_a_revoked_token_is_one_clear_state",),
    },
    "M17": {GONE: ("test_soft_logout_keeps_the_device",)},
    "M18": {EACH: ("test_a_server_that_asks_for_pauses_gets_them",)},
    "M19": {GONE: ("test_a_homeserver_that_restarts", "test_a_homeserver_that_dies_in_the_middle_of_a_send")},
    "M20": {LOST: ("test_a_store_that_is_of_no_use_is_replaced", "test_an_older_copy_would_be_deaf")},
    "M21": {
        EACH: ("test_without_encryption_nothing_is_said_where_it_would_be_read",),
        CRYPTO: ("test_without_encryption_nothing_is_said",),
        "unit/channels/matrix/test_strangers.py": ("test_what_was_encrypted_once_stays_so",),
    },
    "M22": {
        EACH: ("test_a_key_that_never_comes_is_told_once",),
        CRYPTO: (
            "test_a_key_that_comes_late_is_used",
            "test_without_the_kept_reference_it_would_be_lost",
            "test_a_withheld_key_is_told_once_with_its_reason",
        ),
    },
    "M23": {GROUPS: ("test_who_is_meant_in_a_group",)},
    "M24": {
        EACH: ("test_two_rooms_with_the_same_two_people",),
        CHANNEL: ("test_a_room_of_two_is_not_a_direct_conversation_by_itself",),
        "integration/test_matrix_conversation.py": ("test_direct_is_what_the_account_says",),
    },
    "M25": {
        "integration/test_matrix_media.py": (
            "test_files_of_every_kind_arrive",
            "test_encrypted_files_arrive",
            "test_files_go_out_once",
        ),
        "integration/test_matrix_element_media.py": ("test_files_are_opened_on_both_sides",),
    },
    "M26": {KINDS: ("test_in_every_kind_of_room",), ANSWERS: ("test_a_long_answer_is_cut_where_it_may_be",)},
    "M27": {
        **ONE_TALK,
        "integration/test_matrix_out_of_band.py": ("test_a_tool_waits_for_the_reaction_of_who_asked",),
        "integration/test_tool_approval.py": ("test_a_reaction_of_who_asked_counts_and_of_nobody_else",),
    },
    "M28": {**ONE_TALK, GROUPS: ("test_two_bots_in_one_room",)},
    "M29": {
        GROUPS: ("test_put_out_while_it_works",),
        ROOMS: ("test_who_is_put_out_gives_up_what_waits", "test_an_upgrade_while_away_is_followed"),
        "integration/test_matrix_upgrades.py": (
            "test_an_encrypted_conversation_goes_on_encrypted_in_the_new_room",
            "test_an_answer_waits_while_the_room_is_replaced",
        ),
    },
    "M30": {
        **ONE_TALK,
        "integration/test_matrix_out_of_band.py": ("test_commands_are_answered_while_a_turn_runs",),
    },
    "M31": {"integration/test_gateway_e2e.py": ("test_a_second_instance_is_refused",)},
    "M32": {EVERY: ("test_a_long_history_is_left_alone_at_the_first_start",)},
    "M33": ONE_TALK,
}


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_has_its_tests(check: str) -> None:
    """Nothing stands in the table that is not there."""
    for file, names in CHECKS[check].items():
        tree = ast.parse((TESTS / file).read_text())
        known = {
            each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert set(names) <= known, set(names) - known


def test_each_row_is_checked() -> None:
    """No row of the table above is without tests."""
    rows = [
        line.split()[0] for line in (__doc__ or "").splitlines() if line[:1] == "M" and line[1:2].isdigit()
    ]
    assert list(CHECKS) == rows == [f"M{number}" for number in range(34)]
