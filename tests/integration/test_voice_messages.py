"""Voice messages through the whole daemon: a real Synapse, plain and encrypted, and a real mail server."""

from __future__ import annotations

import time

import pytest

from devservers import text_of
from devservers.transcription import Reply, TranscriptionServer
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_matrix_media import encrypted_file, upload
from tests.sounds import m4a, ogg_opus, wav

pytestmark = [pytest.mark.integration]
VOICE = {"org.matrix.msc3245.voice": {}, "org.matrix.msc1767.audio": {"duration": 2000}}


def voice_settings(server, **more):
    """A provider for transcripts, and the model that echoes what it is asked."""
    return {
        "llm": {
            "providers": {"ears": {"api_base": server.api_base, "api_key": "key"}},
            "models": {"echo": {"model": "demo/echo"}},
            "pools": {"main": ["echo"]},
        },
        "agents": {"heartbeat": {"enabled": False}},
        "voice": {"transcribe": {"provider": "ears", "model": "openai/whisper-1", "max_seconds": 60, **more}},
    }


def voice_event(content, **more):
    return {
        "msgtype": "m.audio",
        "body": "Voice message.ogg",
        "info": {"mimetype": "audio/ogg"},
        **VOICE,
        **more,
    }


class Room:
    """A person's direct room with the bot, plain or encrypted."""

    def __init__(self, person, bot, secret=None):
        self.person, self.bot, self.secret = person, bot, secret
        self.room = secret.create_room(bot) if secret else person.create_room([bot], is_direct=True)

    def speak(self, content, **more):
        if self.secret is None:
            event = voice_event(content, url=upload(self.person, content), **more)
            return self.person.send_event(self.room, "m.room.message", event)
        event = voice_event(content, file=encrypted_file(self.person, content), **more)
        return self.secret.send(self.room, event.pop("body"), to=self.bot, **event)

    def said(self):
        """What the bot has said."""
        if self.secret is None:
            found = self.person.history(self.room, limit=200)
            return [one.content["body"] for one in found if one.sender == self.bot]
        found = self.secret.read(self.room)
        return [
            content["body"] for kind, content in found if kind == "m.room.encrypted" and "body" in content
        ]


def wait_for(daemon, say, count):
    daemon.wait_until(lambda: len(say()) >= count, within_s=60)
    return say()[-1]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_voice_messages_on_matrix(synapse, fresh_credentials, tmp_path, encrypted):
    """The words reach the model, the file stays, search finds them; what cannot be heard is said at once."""
    from devservers import MatrixPeer

    bot, ann = fresh_credentials("bot"), fresh_credentials("ann")
    person = MatrixPeer.of(synapse.url, ann)
    with TranscriptionServer() as server:
        settings = {
            **voice_settings(server),
            "owner": {"aliases": [ann.user_id]},
            "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password, batching="each")},
        }
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.up()
            secret = SecretPeer(synapse.url, ann, tmp_path / "ann") if encrypted else None
            place = Room(person, bot.user_id, secret)
            daemon.wait_until(lambda: bot.user_id in person.members(place.room))

            place.speak(ogg_opus(2, says="please feed the axolotl"))
            first = wait_for(daemon, place.said, 1)
            place.speak(b"%PDF-1.7 a trap")
            second = wait_for(daemon, place.said, 2)
            place.speak(m4a(4 * 3600))
            third = wait_for(daemon, place.said, 3)
            server.plan(Reply(status=503), Reply(logprob=-1.5))
            place.speak(wav(2, says="mumble"))
            fourth = wait_for(daemon, place.said, 4)
            if encrypted:
                secret.close()
                return
            person.send(place.room, "!search axolotl")
            found = wait_for(daemon, place.said, 5)
            paid = sum(server.asked.values())
            person.send(place.room, "!retry")
            again = wait_for(daemon, place.said, 6)
            server.plan(Reply(status=429, headers={"Retry-After": "1"}), Reply(body=b'{"text": " "}'))
            place.speak(wav(2))
            silent = wait_for(daemon, place.said, 7)
            place.speak(b"")
            nothing = wait_for(daemon, place.said, 8)
            place.speak(m4a(3, handlers=(b"vide",)))
            video = wait_for(daemon, place.said, 9)

    assert (
        '[Spoken in "Voice message.ogg", 2 s, as a program heard it, which may mishear:] please feed the axolotl'
        in first
    )
    assert '"Voice message.ogg", audio/ogg' in first
    assert "I could not listen to" in second
    assert "not a sound file that I know" in second
    assert "it lasts 4 hours, and I listen to 60 seconds of one message at most" in third
    assert "I am not sure that I understood this correctly: mumble" in fourth.split("\n")[0]
    assert "`(spoken) please feed the axolotl" in found
    assert "I am not sure that I understood this correctly: mumble" in again
    assert "which is not sure:] mumble" in again
    assert "I heard no words in it" in silent
    assert "it is empty" in nothing
    assert "it is a video" in video
    assert sum(server.asked.values()) == paid + 2  # for `!retry` nobody has listened once more
    assert sum(server.answered.values()) == 2


def test_sound_files_of_mails(mail_server, fresh_mailbox, tmp_path):
    """What is said in them is in the letter that is answered; a video is told, and the letter is answered all the same."""
    bot, ann = fresh_mailbox("bot"), fresh_mailbox("ann")
    with TranscriptionServer() as server:
        settings = {
            **voice_settings(server),
            "owner": {"aliases": [ann.address]},
            "channels": {"email": email_settings(mail_server, bot.address, bot.password, batching="each")},
        }
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.up()
            sent = ann.send(
                bot.address, "A memo", "See attached.",
                attachments=[("memo.wav", "audio/x-wav", wav(2, says="buy herring")),
                             ("song.mp3", "audio/mpeg", m4a(3, handlers=(b"vide",)))],
            )  # fmt: skip
            mail = ann.wait_for(lambda mail: sent in str(mail.get("In-Reply-To", "")), 40)
            answer = " ".join(text_of(mail).split())

    assert answer.startswith("I could not listen to song.mp3: it is a video."), answer
    assert "buy herring" in answer
    assert "See attached." in answer


def test_nobody_costs_money_who_may_not_talk(synapse, fresh_credentials, fresh_user, tmp_path):
    """A stranger's voice message, and talk in a group that is not meant for the bot, are not listened to."""
    bot, ann, eve = fresh_credentials("bot"), fresh_user("ann"), fresh_user("eve")
    with TranscriptionServer() as server:
        settings = {
            **voice_settings(server),
            "owner": {"aliases": [ann.user_id]},
            "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password, batching="each")},
        }
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.up()
            room = ann.create_room([bot.user_id], name="group")
            daemon.wait_until(lambda: bot.user_id in ann.members(room))
            ann.invite(room, eve.user_id)
            eve.join(room)
            for person, mention in ((eve, True), (ann, False), (ann, True)):
                content = ogg_opus(1, says=f"{person.user_id} {mention}")
                told = {"m.mentions": {"user_ids": [bot.user_id]}} if mention else {}
                person.send_event(
                    room, "m.room.message", voice_event(content, url=upload(person, content), **told)
                )
            daemon.wait_until(
                lambda: any(one.sender == bot.user_id for one in ann.history(room, limit=50)), within_s=60
            )
            time.sleep(1)
            said = [one.body for one in ann.history(room, limit=50) if one.sender == bot.user_id]

    assert sum(server.asked.values()) == 1
    assert len(said) == 1
    assert f"{ann.user_id} True" in said[0]
