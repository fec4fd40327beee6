"""What answers of transcription servers say, how sure they are, and what they cost."""

import pytest

from agent_core.media.transcript import cost_of, transcript_in


def segment(text, logprob=-0.2, **more):
    return {"text": text, "avg_logprob": logprob, "no_speech_prob": 0.01, "start": 0, "end": 2, **more}


def answer(*segments):
    return {"text": "whole", "language": "english", "segments": list(segments)}


@pytest.mark.parametrize(
    ("given", "text", "unsure"),
    [
        ({"text": " Hello \n there "}, "Hello there", False),
        (answer(segment(" Call"), segment(" Bob.")), "Call Bob.", False),
        (answer(segment("Call"), segment("Bob.")), "Call Bob.", False),
        (answer(segment(" Call", -1.4), segment(" Bob.", -1.2)), "Call Bob.", True),
        (answer(segment(" la la la", compression_ratio=3.1)), "la la la", True),
        (answer(segment(" Thanks for watching!", -1.3, no_speech_prob=0.9)), "", False),
        (answer(segment(" Hi.", -0.3, no_speech_prob=0.9)), "Hi.", True),
        ({"text": "yes", "logprobs": [{"token": "yes", "logprob": -2.0}]}, "yes", True),
        ({"text": "yes", "logprobs": [{"token": "yes", "logprob": -0.1}]}, "yes", False),
        ({"text": "hm", "segments": "x", "logprobs": [{"logprob": float("nan")}, 7]}, "hm", False),
    ],
)
def test_what_was_heard_and_whether_it_is_sure(given, text, unsure):
    """Improbable, repeated and half-silent words are unsure; words that were made up in silence are none."""
    heard = transcript_in(given)

    assert (heard.text, heard.unsure) == (text, unsure)


@pytest.mark.parametrize("given", [None, [], "text", {}, {"text": 7}, {"error": "x"}])
def test_anything_else_is_no_answer(given):
    """Garbage is an error, never a transcript."""
    with pytest.raises(ValueError, match="without a text"):
        transcript_in(given)


def test_the_cost_is_counted_in_tokens_and_money():
    """By the server's own count, else by the length; money by the minute."""
    told = {"usage": {"type": "tokens", "input_tokens": 140, "output_tokens": 9}}
    by_count = cost_of(told, 30, model="openai/x", usd_per_minute=0.006)
    by_length = cost_of({"usage": {"type": "duration", "seconds": 30}}, 30, model="m", usd_per_minute=None)

    assert (by_count.prompt_tokens, by_count.completion_tokens, by_count.calls) == (140, 9, 1)
    assert by_count.cost_usd == pytest.approx(0.003)
    assert (by_length.prompt_tokens, by_length.cost_usd) == (300, None)
