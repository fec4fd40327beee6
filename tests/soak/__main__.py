"""
``make soak``: the real daemon between a real Synapse and a real mail server, under load for half an hour.

    SOAK_MINUTES=30 SOAK_PER_SECOND=5 python -m tests.soak [--readme]

Said are whether its memory grows (slope and band, see `tests.soak.slope`), whether file descriptors and threads do,
how large its database is, and whether an answer was lost or doubled. Exit code 1 if one of these is not as it
should be. ``SOAK_CSV=FILE`` keeps the samples; ``--readme`` keeps the figures for docs/benchmarks.md.
"""

from __future__ import annotations

import csv
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from devservers import MailServer, MatrixPeer, Synapse
from tests.bench.readme import SOAK
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.soak.crowd import Crowd
from tests.soak.slope import Slope, fit
from tests.soak.vitals import Sample, sample

_SAMPLE_EVERY_S = 5.0
_WARM_SHARE = 0.1
"""What is measured begins after that: bursts of the filling are over, and the allocator has given back what it may."""
_FILL = {"room": 5500, "secret": 700, "mail": 5500}
"""
So many messages come first, as fast as they are answered, and are not measured: they fill what has a limit. That is
the page caches of SQLite (2 and 1 MB for the queue, 0.5 MB each for the search index and the keys), the decoded
lines of histories (4 MB for all of them), and what is remembered of the newest 2,000 mails and 1,000 rooms' threads.
"""
_OPEN_AT_MOST = 150
_GOAL_KB_PER_1000 = 51.2
"""0.05 MB: a thousand messages more cost no more memory than that."""


def main() -> int:
    """Run for as long as the environment says."""
    minutes = float(os.environ.get("SOAK_MINUTES", "30"))
    per_second = float(os.environ.get("SOAK_PER_SECOND", "5"))
    with tempfile.TemporaryDirectory(prefix="squidbot-soak-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with (
            Synapse.start(folder / "synapse", say=print) as synapse,
            MailServer.start(folder / "mail", say=print) as mail,
        ):
            return _soak(synapse, mail, folder, minutes=minutes, per_second=per_second)


def _soak(synapse: Synapse, mail: MailServer, folder: Path, *, minutes: float, per_second: float) -> int:
    word = secrets.token_hex(8)
    bot = synapse.register("bot", word)
    people = [MatrixPeer.of(synapse.url, synapse.register(who, word)) for who in ("ann", "bob", "eve")]
    carol = SecretPeer(synapse.url, synapse.register("carol", word), folder / "carol")
    for who in ("bot", "ann", "bob"):
        mail.add_user(who, word)
    authors = [mail.peer("ann"), mail.peer("bob")]
    allowed = [*(peer.user_id for peer in people), carol.user_id]
    quiet = dict.fromkeys(("answers_per_hour", "thread_answers_per_hour"), 0)
    settings = {
        "owner": {"aliases": [people[0].user_id, authors[0].address]},
        "llm": {
            "models": {"echo": {"model": "demo/echo"}, "mind": {"model": "demo/demo"}},
            "pools": {"main": ["echo"], "mind": ["mind"]},
            "default_pool": "main",
        },
        "agents": {
            "consolidation_pool": "mind",
            "heartbeat": {"interval_minutes": 0.5, "pool": "mind"},
        },
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, word, *allowed, batching="each"),
            "email": email_settings(
                mail,
                mail.address("bot"),
                word,
                *(one.address for one in authors),
                batching="each",
                circuit_breaker=quiet,
            ),
        },
    }
    with Daemon(folder / "home", settings) as daemon:
        (daemon.home / "workspace").mkdir(exist_ok=True)
        (daemon.home / "workspace" / "HEARTBEAT.md").write_text("- [ ] Is the kitchen on fire?\n")
        daemon.up()
        rooms = {peer.create_room([bot.user_id], is_direct=True): peer for peer in people}
        secret_room = carol.create_room(bot.user_id)
        daemon.wait_until(lambda: all(bot.user_id in peer.members(room) for room, peer in rooms.items()))
        daemon.wait_until(lambda: bot.user_id in carol.peer.members(secret_room))
        crowd = Crowd(bot.user_id, mail.address("bot"), rooms, carol, secret_room, authors, random.Random(1))
        _fill(daemon, crowd)
        samples = _load(daemon, crowd, minutes=minutes, per_second=per_second)
        daemon.wait_until(lambda: sum(crowd.answers().values()) >= crowd.said, within_s=120)
        time.sleep(3)  # a second answer would come now
        wrong = _answers(crowd)
        status = daemon.asked("/status")[1]
        daemon.terminate()
        code = daemon.ended()
    carol.close()
    _keep(samples)
    wrong += _report(samples, crowd)
    if "--readme" in sys.argv[1:]:
        SOAK.write_text(json.dumps(_figures(samples, crowd), indent=1) + "\n")
    print(f"queue at the end: {status.get('work')}; heartbeat: {status.get('heartbeat')}")
    if code != 0:
        wrong.append(f"the daemon ended with {code}")
    print("all is well" if not wrong else "wrong: " + "; ".join(wrong))
    return 1 if wrong else 0


def _fill(daemon: Daemon, crowd: Crowd) -> None:
    """Let people talk as fast as they are answered, until everything that has a limit is full."""
    begun = time.monotonic()
    ways = [way for way, count in _FILL.items() for _ in range(count)]
    crowd.chance.shuffle(ways)
    for start in range(0, len(ways), _OPEN_AT_MOST // 3):
        for way in ways[start : start + _OPEN_AT_MOST // 3]:
            crowd.say(way)
        crowd.listen()
        enough = crowd.said - _OPEN_AT_MOST
        daemon.wait_until(lambda enough=enough: daemon.work("inbox", "settled") >= enough, within_s=120)
    print(f"· {crowd.said} messages in {time.monotonic() - begun:.0f} s have filled the caches", flush=True)


def _load(daemon: Daemon, crowd: Crowd, *, minutes: float, per_second: float) -> list[Sample]:
    """Let people talk, at a steady pace with bursts, and look at the daemon meanwhile."""
    assert daemon.process is not None
    begun, before = time.monotonic(), crowd.said
    samples: list[Sample] = []
    told = 0.0
    while (now := time.monotonic() - begun) < minutes * 60:
        for _ in range(10 if crowd.chance.random() < 0.02 else 1):
            crowd.say()
        if now >= len(samples) * _SAMPLE_EVERY_S:
            crowd.listen()
            samples.append(sample(daemon.process.pid, daemon.home, at_s=now, said=crowd.said))
        if now >= told + 60:
            told = now
            print(f"· {now / 60:4.1f} min  {crowd.said} said  {samples[-1]}", flush=True)
        # Bursts are part of the pace: after one, nobody talks for a while.
        time.sleep(max(0.0, (crowd.said - before) / per_second - (time.monotonic() - begun)))
    return samples


def _answers(crowd: Crowd) -> list[str]:
    counted = crowd.answers()
    lost = [number for number in range(1, crowd.said + 1) if counted[number] == 0]
    doubled = [number for number, times in counted.items() if times > 1]
    print(f"{crowd.said} said ({dict(crowd.by_way)}), {len(lost)} lost, {len(doubled)} doubled")
    return [f"lost {lost[:10]}"] * bool(lost) + [f"doubled {doubled[:10]}"] * bool(doubled)


def _report(samples: Sequence[Sample], crowd: Crowd) -> list[str]:
    warm = [one for one in samples if one.at_s >= samples[-1].at_s * _WARM_SHARE]
    wrong: list[str] = []
    hours = [one.at_s / 3600 for one in warm]
    for what, values in (
        ("resident memory", [one.rss_kb for one in warm]),
        ("of it anonymous", [one.anonymous_kb for one in warm]),
    ):
        slope = fit(list(zip(hours, map(float, values), strict=True)))
        print(f"{what}: {values[0]} → {values[-1]} kB, {_told(slope, 'kB/h')}")
    messages = fit([(one.said / 1000, float(one.rss_kb)) for one in warm])
    print(f"per 1000 messages: {_told(messages, 'kB')}")
    if messages.each > _GOAL_KB_PER_1000:
        wrong.append(f"memory grows: {_told(messages, 'kB')} per 1000 messages")
    third = len(warm) // 3
    for what, few in (("descriptors", 3), ("threads", 8)):  # threads for what blocks come and go
        early, late = (max(getattr(one, what) for one in part) for part in (warm[:third], warm[-third:]))
        print(f"{what}: at most {early} at first, {late} at last")
        if late > early + few:
            wrong.append(f"{what} grow from {early} to {late}")
    last = samples[-1]
    print(
        f"database: {samples[0].database_kb} → {last.database_kb} kB, home folder: {last.home_kb} kB, "
        f"{crowd.said} messages in {last.at_s / 60:.1f} min"
    )
    return wrong


def _figures(samples: Sequence[Sample], crowd: Crowd) -> dict[str, str]:
    """What docs/benchmarks.md says of this run; that nothing is lost or doubled is said with what was counted."""
    warm = [one for one in samples if one.at_s >= samples[-1].at_s * _WARM_SHARE]
    slope = fit([(one.said / 1000, one.rss_kb / 1000) for one in warm])
    counted = crowd.answers()
    doubled = sum(1 for times in counted.values() if times > 1)
    return {
        "machine": f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores",
        "text": f"{samples[-1].at_s / 60:.0f} minutes, {crowd.said:,} messages in rooms and by mail, "
        f"{crowd.said - len(counted)} lost, {doubled} doubled, at most "
        f"{max(one.descriptors for one in samples)} descriptors. Memory went from {warm[0].rss_kb / 1000:.1f} to "
        f"{warm[-1].rss_kb / 1000:.1f} MB: {slope.each:+.2f} ± {slope.band:.2f} MB for each 1,000 messages "
        f"(goal: at most {_GOAL_KB_PER_1000 / 1000:.2f}).",
    }


def _told(slope: Slope, unit: str) -> str:
    verdict = "noise" if slope.is_noise else "beyond the noise"
    return f"slope {slope.each:+.0f} ± {slope.band:.0f} {unit} ({verdict})"


def _keep(samples: Sequence[Sample]) -> None:
    if target := os.environ.get("SOAK_CSV"):
        with Path(target).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(samples[0])))
            writer.writeheader()
            writer.writerows(asdict(one) for one in samples)


if __name__ == "__main__":
    sys.exit(main())
