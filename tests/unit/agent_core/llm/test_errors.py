"""Failures at a model as errors of ours."""

from __future__ import annotations

import socket
from datetime import UTC, datetime

from agent_core.errors import (
    BudgetSpent,
    ContextTooLong,
    CreditSpent,
    Failure,
    ModelAuthFailed,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
    ModelUnreadable,
)
from agent_core.llm.model_errors import classify, empty_answer, failure_of, for_operator, retry_after_s
from tests.rows import rows

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def kind(**known):
    return type(classify(Failure(**known), model="m", now=NOW))


class TestClassify:
    @rows(
        ("status", "text", "expected"),
        [
            (401, "invalid_request_error", ModelAuthFailed),
            (402, "Insufficient Balance", CreditSpent),
            (400, "Your credit balance is too low to access the Anthropic API.", CreditSpent),
            (
                400,
                "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00.",
                CreditSpent,
            ),
            (
                403,
                "Your team has used all available credits or reached its monthly spending limit.",
                CreditSpent,
            ),
            (
                429,
                "You exceeded your current quota, please check your plan and billing details.",
                CreditSpent,
            ),
            (429, "You exceeded your current quota. Please retry in 45.5s.", ModelRateLimited),
            (400, "the card's credit limit must be a number", ModelRefused),
            (403, "country not supported", ModelAuthFailed),
            (403, "flagged by moderation", ModelRefused),
            (400, "API key not valid. Please pass a valid API key.", ModelAuthFailed),
            (400, "API key expired. Please renew the API key.", ModelAuthFailed),
            (403, "Sorry, your account balance is insufficient", CreditSpent),
            (412, "Account x is suspended, possibly due to reaching the monthly spending limit", CreditSpent),
            (412, "a precondition failed", ModelRefused),
            (404, "model not found", ModelRefused),
            (400, "This model's maximum context length is 8192 tokens", ContextTooLong),
            (400, "prompt is too long: 210000 tokens > 200000 maximum", ContextTooLong),
            (400, "the request exceeds the available context size", ContextTooLong),
            (413, "request_too_large", ContextTooLong),
            (
                400,
                "This model's maximum prompt length is 131072 but the request contains 537812",
                ContextTooLong,
            ),
            (400, "Prompt exceeds max length", ContextTooLong),
            (400, "Your request exceeded model token limit: 262144 (requested: 265000)", ContextTooLong),
            (413, "Request too large for model x … please reduce your message size", ContextTooLong),
            (500, "Context size has been exceeded.", ContextTooLong),
            (
                400,
                "`max_tokens` must be greater. See https://x.example/#max-tokens-and-context-window",
                ModelRefused,
            ),
            (400, "bad temperature", ModelRefused),
            (422, "bad", ModelRefused),
            (408, "timeout", ModelUnavailable),
            (429, "slow down", ModelRateLimited),
            (429, "maximum context length", ModelRateLimited),
            (500, "maximum context length", ModelUnavailable),
            (500, "error parsing tool call: raw='{', err=unexpected end of JSON input", ModelUnreadable),
            (500, "Failed to parse input at pos 12: <tool_call>", ModelUnreadable),
            (400, "tool_use_failed: Failed to call a function.", ModelUnreadable),
            (503, "overloaded", ModelUnavailable),
            (400, "Channel Error", ModelUnavailable),
            (400, "Model is unloaded.", ModelUnavailable),
            (500, "insufficient balance (1008)", CreditSpent),
            (None, "insufficient balance", CreditSpent),
            (529, "overloaded", ModelUnavailable),
            (None, "cannot be read", ModelUnavailable),
        ],
    )
    def test_by_status_then_by_text(self, status, text, expected):
        """The status decides first; the text only where the status leaves it open."""
        assert kind(status=status, text=text) is expected

    @rows(
        ("status", "text", "headers", "wait_s"),
        [
            (503, "overloaded", {"Retry-After": "20"}, 20),
            (529, "overloaded", {"retry-after": "20"}, 20),
            (429, "Rate limit reached. Please try again in 20s.", {}, 20),
            (429, "Please retry in 45.5s.", {"retry-after": "20"}, 45.5),
            (429, '{"retry_after": 20}', {}, 20),
            (429, "try again in 250ms", {}, 0.25),
            (503, '"retryDelay": "34s"', {}, 34),
        ],
    )
    def test_the_longest_wait_that_is_asked_for_counts(self, status, text, headers, wait_s):
        """On any status, in the headers or in the words."""
        error = classify(Failure(status=status, text=text, headers=headers), model="m", now=NOW)
        assert isinstance(error, ModelRateLimited)
        assert error.retry_after_s == wait_s

    def test_a_dead_connection_beats_a_made_up_status(self):
        """No answer came, so no status is believed."""
        assert kind(status=401, text="Connection error.", transport=True) is ModelUnavailable

    def test_the_key_is_not_in_the_text(self):
        """What the provider repeats of the key stays out of the log, and long texts are cut."""
        error = classify(
            Failure(status=401, text="Incorrect: sk-abcdef " + "x" * 999, secret="sk-abcdef"),
            model="m",
            now=NOW,
        )

        assert "sk-abcdef" not in str(error)
        assert len(str(error)) < 400

    def test_a_spent_quota_is_none_of_a_minute(self):
        """OpenAI says 429 to both; one needs the operator."""
        spent = Failure(status=429, text="You exceeded your quota", code="insufficient_quota")
        error = classify(spent, model="m", now=NOW)

        assert isinstance(error, CreditSpent)
        assert isinstance(error, BudgetSpent)
        assert error.fields["operator"]

    @rows(
        ("status", "words"),
        [(401, "does not accept my key (401)"), (403, "refuses"), (404, "does not exist"), (500, "")],
    )
    def test_what_the_operator_reads(self, status, words):
        """Which model it is and what tests it; of what passes by itself, nothing."""
        said = for_operator(classify(Failure(status=status, text="no"), model="mistral/small", now=NOW))

        assert words in said
        assert ("mistral/small" in said) is ("`squidbot check` and restart me" in said) is bool(words)

    @rows("finish", ["content_filter", "length"])
    def test_an_empty_answer_with_a_reason(self, finish):
        """A filter that struck, or thinking that took all tokens: asking again does not help."""
        error = empty_answer("m", finish)

        assert "empty" not in error.fields
        assert error.public != empty_answer("m", "stop").public


class TestRetryAfter:
    @rows(
        ("headers", "expected"),
        [
            ({"Retry-After": "7"}, 7.0),
            ({"retry-after": "0.5"}, 0.5),
            ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
            ({"retry-after": "Fri, 20 Nov 2026 12:00:30 GMT"}, 30.0),
            ({"retry-after": "Fri, 20 Nov 2026 11:00:00 GMT"}, 0.0),
            ({"retry-after": "99999999"}, 3600.0),
            ({"retry-after": "-5"}, None),
            ({"retry-after": "inf"}, None),
            ({"retry-after": "soon"}, None),
            ({"retry-after": ""}, None),
            ({}, None),
        ],
    )
    def test_what_is_read(self, headers, expected):
        """Seconds, milliseconds and dates; never negative, never more than an hour, nonsense is nothing."""
        assert retry_after_s(headers, NOW) == expected


class FakeResponse:
    def __init__(self):
        self.headers = {"Retry-After": "7"}


class FakeStatus(Exception):
    status_code = 429
    response = FakeResponse()


class TestCauses:
    def test_status_and_headers_from_below(self):
        """A wrapper without status gets that of its cause, and the headers as well."""
        try:
            try:
                raise FakeStatus("429")
            except FakeStatus as inner:
                raise RuntimeError("wrapped") from inner
        except RuntimeError as error:
            failure = failure_of(error)

        assert failure.status == 429
        assert failure.headers["retry-after"] == "7"
        assert not failure.transport

    def test_a_refused_connection_below_a_made_up_status(self):
        """An OSError anywhere in the chain means that no answer came."""
        try:
            try:
                raise ConnectionRefusedError(111, "refused")
            except OSError:
                raise FakeStatus("made up")  # noqa: B904 - libraries forget it, and the context is enough
        except FakeStatus as error:
            failure = failure_of(error)

        assert failure.transport
        assert failure.text == "connection refused"
        unknown = failure_of(socket.gaierror(-2, "Name or service not known"))
        assert unknown.text == "its name is not known, or cannot be looked up"

    def test_a_chain_that_bites_its_tail(self):
        """A circle of causes ends."""
        first, second = ValueError("a"), ValueError("b")
        first.__cause__, second.__cause__ = second, first

        assert failure_of(first).status is None


@rows(
    "said",
    [
        "Invalid model: mistral-larg invalid_model",
        "The model `mixtral-8x7b-32768` has been decommissioned and is no longer supported. model_decommissioned",
        "Model Not Exist",
        "anthropic/claude-sonet is not a valid model ID",
        "模型不存在，请检查模型代码。",
        'Invalid model identifier "x". Please specify a valid downloaded model',
        "Model not found",
        "Model does not exist. Please check it carefully.",
        "invalid params, unknown model 'x'",
        "The model gpt-9 does not exist or you do not have access to it",
    ],
)
def test_a_model_that_does_not_exist_at_providers_who_say_so_with_400(said):
    """The owner reads that the name is wrong, as with 404."""
    error = classify(Failure(status=400, text=said), model="m", now=NOW)
    assert isinstance(error, ModelRefused)
    assert "m does not exist at its provider (400)" in for_operator(error)


@rows("said", ["Unknown model parameter: top_k", "bad temperature", "this model does not support tools"])
def test_a_refusal_that_is_not_about_the_name_of_the_model(said):
    """Negative control."""
    assert for_operator(classify(Failure(status=400, text=said), model="m", now=NOW)) == ""
