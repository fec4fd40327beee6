"""What is known about rooms: encryption is never forgotten, intimacy never assumed."""

from channels.matrix.rooms.room_state import Rooms
from tests.doubles.homeserver import member

BOT, ALICE, CAROL, ROOM = "@bot:hs.test", "@alice:hs.test", "@carol:hs.test", "!r:hs.test"


def joined(*timeline, state=(), summary=None):
    room = {"state": {"events": list(state)}, "timeline": {"events": list(timeline)}}
    if summary is not None:
        room["summary"] = {"m.joined_member_count": summary[0], "m.invited_member_count": summary[1]}
    return {"rooms": {"join": {ROOM: room}}}


def direct_room():
    rooms = Rooms(BOT)
    rooms.mark_direct(ROOM, ALICE)
    rooms.update(joined(state=[member(BOT), member(ALICE)], summary=(2, 0)))
    assert rooms.is_direct(ROOM, ALICE)
    return rooms


def test_an_invited_third_ends_the_intimacy():
    """Somebody who is only invited can join at any moment and read along."""
    rooms = direct_room()
    rooms.update(joined(member(CAROL, "invite"), summary=(2, 1)))

    assert not rooms.is_direct(ROOM, ALICE)


def test_an_unexplained_change_ends_it_too():
    """A membership event without a new count makes the count unknown, until the list is fetched."""
    rooms = direct_room()
    rooms.update(joined(member(CAROL)))

    assert not rooms.is_direct(ROOM, ALICE)
    assert rooms.is_size_unknown(ROOM)
    rooms.get(ROOM).members([member(BOT), member(ALICE), member(CAROL, "leave")])
    assert rooms.is_direct(ROOM, ALICE)


def test_who_left_is_no_partner():
    """Two members, but the writer is not one of them, and the other is not the one it was made for."""
    rooms = direct_room()
    rooms.update(joined(member(CAROL), member(ALICE, "leave"), summary=(2, 0)))

    assert not rooms.is_direct(ROOM, ALICE)
    assert not rooms.is_direct(ROOM, CAROL), "what was said here was said to Alice"


def test_a_gap_makes_counts_unknown():
    """Membership events that came by another way are not counted, but they are not overlooked."""
    rooms = direct_room()
    rooms.seen_in_gap(ROOM, [member(CAROL)], [])

    assert not rooms.is_direct(ROOM, ALICE)


def test_encryption_stays():
    """Neither a strange content nor a later event makes an encrypted room plain again."""
    rooms = Rooms(BOT)
    for content in ({"algorithm": "m.megolm.v1.aes-sha2"}, {}, {"algorithm": None}):
        rooms.update(joined({"type": "m.room.encryption", "state_key": "", "content": content}))
        assert rooms.get(ROOM).encrypted


def test_a_room_that_is_left_is_forgotten():
    """Being kicked removes the room, and says so."""
    rooms = direct_room()

    assert rooms.update({"rooms": {"leave": {ROOM: {}}}}) == [ROOM]
    assert rooms.get(ROOM) is None
    assert not rooms.is_direct(ROOM, ALICE)


def test_a_huge_room_does_not_fill_the_memory():
    """Of many members only so many are kept."""
    rooms = Rooms(BOT)
    rooms.update(joined(state=[member(f"@u{n}:hs.test", displayname="n" * 500) for n in range(5000)]))

    assert len(rooms.get(ROOM).joined) <= 1000
    assert max(len(name) for name in rooms.get(ROOM).names.values()) <= 100
