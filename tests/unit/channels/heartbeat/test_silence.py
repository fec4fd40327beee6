"""What of the answer to a check-in is delivered: pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from channels.heartbeat.silence import SILENCE, fingerprint, is_silence, judge_silence
from tests.rows import rows

SILENT = [
    "",
    " \n",
    "HEARTBEAT_OK",
    "**HEARTBEAT_OK**",
    "`HEARTBEAT_OK`.",
    '"HEARTBEAT_OK"',
    "HEARTBEAT_OK, all is well.",
    "Nothing is due today. HEARTBEAT_OK",
    "HEARTBEAT_OK\n\nEverything is fine.",
    "<think>The milk is fine.</think>HEARTBEAT_OK",
    "<thinking>\nLet me see\n</thinking>\n\nHEARTBEAT_OK",
    "I should look at the milk. It is there.</think>HEARTBEAT_OK",
    "<think>I wonder whether",
    "<reasoning>milk?</reasoning>",
    "Let me check the list.",
    "Let me check the list…\n\nHEARTBEAT_OK",
    "Okay, I will go through the checklist now. Everything looks good.",
    "All clear.",
    "All clear!",
    "Everything looks good. No action needed.",
    "Nothing to report.",
    "There is nothing that needs your attention right now.",
    "I checked the list, and everything is fine.",
    "No updates.",
    "OK",
    "- All good\n- Nothing to report",
    "URGENT:",
    "nothing is due. HEARTBEAT_OK",
    "heartbeat_ok",
    "Heartbeat_ok, nothing is due.",
    '{"response": "HEARTBEAT_OK"}',
    '{"status": "heartbeat_ok", "message": "", "items": null}',
    '```json\n{"response": "HEARTBEAT_OK"}\n```',
    '["HEARTBEAT_OK"]',
    '"HEARTBEAT_OK"',
]
ALERTS = {
    "The milk is out.": "The milk is out.",
    "I would say HEARTBEAT_OK, but the milk is out and the door is open, so look.": None,
    "The word HEARTBEAT_OK stands in your file and I do not know what you mean by it there.": None,
    "All clear on the backups, but the disk is 97% full.": None,
    "Everything is fine except the boiler.": None,
    "Nothing is left in the fridge.": None,
    "No milk.": None,
    '{"response": "The milk is out and so is the bread; look at the list. HEARTBEAT_OK"}': None,
    '{"milk": 0}': None,
    "<think>Is it out?</think>The milk is out.": "The milk is out.",
    "Is it out?</think>\n\nThe milk is out.": "The milk is out.",
    "Let me check the list.\nThe milk is out.": "The milk is out.",
    "Okay. The milk is out.": "The milk is out.",
    "Good morning! Two mails wait for you.": None,
    "A < b and c > d: the sensor is broken.": None,
    "HEARTBEAT_OK for the milk, but bread, butter, eggs, cheese, salt, pepper and oil are out.": None,
}


@rows("answer", SILENT, ids=repr)
def test_silence(answer):
    """Nobody is disturbed by this, and a reason is known."""
    assert is_silence(answer)
    assert judge_silence(answer).reason


@rows("answer", ALERTS, ids=repr)
def test_alert(answer):
    """This is delivered, without what was only thought."""
    assert judge_silence(answer).text == (ALERTS[answer] or answer)


def test_a_simpler_rule_would_be_found_out():
    """The control: "contains the token" and "starts with all clear" swallow alerts of this list."""
    assert any(SILENCE in answer for answer in ALERTS)
    assert any(answer.lower().startswith("all clear") for answer in ALERTS)


@rows("answer", ["URGENT: the house burns", "**URGENT:** the house burns", "urgent: the house burns"])
def test_urgent_is_marked_and_the_mark_taken_off(answer):
    """The mark says how it is sent, and is not part of what is said."""
    assert (judge_silence(answer).urgent, judge_silence(answer).text) == (True, "the house burns")
    assert not judge_silence("It is not URGENT: take your time").urgent


def test_fifty_thousand_characters_become_a_readable_alert():
    """The beginning is delivered, and that there was more."""
    text = judge_silence("The milk is out. " * 3000).text
    assert len(text) < 6200
    assert "The rest of this alert was left out" in text


def test_the_same_alert_is_recognised_and_a_growing_one_is_not():
    """Case, spaces and Markdown do not make another alert; a number or a further item does."""
    assert fingerprint("- **Milk** is out") == fingerprint("milk is  OUT.")
    assert fingerprint("disk 97% full") != fingerprint("disk 98% full")
    assert fingerprint("- milk") != fingerprint("- milk\n- bread")


@given(st.text(max_size=300))
def test_any_answer_has_a_verdict(answer):
    """No text breaks it; what is delivered is never empty without a reason, and judging it again changes nothing."""
    verdict = judge_silence(answer)
    assert bool(verdict.text) != bool(verdict.reason)


@rows(
    "piece", ["<think>", "</think>", " ", "let me ", "ok ", "\n", "a.", "so so ", "nothing to report ", "<"]
)
def test_a_long_answer_of_anything_is_judged_at_once(piece):
    """No pattern becomes slow; a quadratic one would need minutes here."""
    judge_silence(piece * (200_000 // len(piece)) + "x")
