"""What every `SearchPort` promises. A subclass gives the fixture ``house``; see test_search.py."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from agent_core.memory_ports import SearchRequest
from agent_core.models import Attachment, MemoryScope, Message, ScopeKind, SearchHit
from agent_core.prompt import attachment_lines, transcript_line
from tests.search_house import BOB, OWNER, A, B, Harness, R

ROOM = MemoryScope(ScopeKind.ROOM, "matrix/!room")


class SearchContract:
    """The best first, in one's own scope only, whatever is in the query."""

    async def test_newest_first_over_all_sessions(self, house: Harness) -> None:
        """Of messages that are as good the newest stands first, whichever conversation it is in."""
        await house.say(A, "tea one", "nothing")
        await house.say(B, "tea two", "nothing")
        await house.say(A, "nothing", "tea three")

        assert await house.found("tea") == ["tea three", "tea two", "tea one"]
        assert await house.found("tea", max_results=2) == ["tea three", "tea two"]
        assert await house.found("tea", max_results=0) == []

    async def test_only_so_many_days_back(self, house: Harness) -> None:
        """What is older than ``since`` is not found."""
        await house.say(A, "tea one", "x", "tea two", "x", "tea three", days=1)
        since = house.clock.now() - timedelta(days=2)
        assert await house.found("tea", since=since) == ["tea three", "tea two"]

    async def test_only_a_place_or_a_person(self, house: Harness) -> None:
        """Conversations that are accepted, senders by words of their address; in one's own scope only."""
        await house.say(A, "tea one", "x")
        await house.say(B, "tea two", "x")
        await house.say(R, "tea of the room", "x", scope=ROOM)
        assert await house.found("tea", place=lambda session: session != B) == ["tea one"]
        assert await house.found("tea", place=lambda session: session == R) == []
        assert await house.found("tea", place=lambda _: False) == []
        assert await house.found("tea", person="x") == await house.found("tea", person="@X:hs")
        assert await house.found("tea", person="x") == ["tea two", "tea one"]
        assert await house.found("tea", person="eve") == await house.found("x", person="x") == []
        more = (await house.index.search(SearchRequest(OWNER, "tea", max_results=1))).more
        assert more == 1

    async def test_a_hit_comes_with_its_neighbours(self, house: Harness) -> None:
        """The message before and the one after; hits side by side are shown once."""
        await house.say(A, "before", "the tea", "after", "more")
        (hit,) = (await house.index.search(SearchRequest(OWNER, "tea"))).hits
        assert ([message.content for message in hit.messages], hit.at) == (["before", "the tea", "after"], 1)
        await house.say(A, "tea again", "tea still")
        hits = (await house.index.search(SearchRequest(OWNER, "tea"))).hits
        assert [[message.content for message in hit.messages] for hit in hits] == [
            ["tea again", "tea still"],
            ["before", "the tea", "after"],
        ]

    async def test_only_what_is_picked_is_read(self, house: Harness) -> None:
        """The best first, and no more of them than are asked for."""
        await house.say(A, "tea one", "x", "x", "tea two", "x", "x", "tea three")
        read: list[str] = []

        def pick(hits: Iterator[SearchHit]) -> Iterator[SearchHit]:
            for hit in hits:
                read.append(hit.messages[hit.at].content)
                if read[-1] != "tea two":
                    yield hit

        answer = await house.index.search(SearchRequest(OWNER, "tea", max_results=1, pick=pick))
        assert (read, answer.more) == (["tea three"], 2)
        read.clear()
        assert await house.found("tea", max_results=2, pick=pick) == ["tea three", "tea one"]
        assert read == ["tea three", "tea two", "tea one"]

    async def test_a_hit_comes_with_its_turn_alone(self, house: Harness) -> None:
        """Without neighbours beside a question stands its answer, beside an answer its question, of other turns none."""
        await house.say(A, "before", "the tea", "after", "more")
        await house.say(B, "tea there", turn="t1")
        await house.say(B, "an answer", turn="t2")
        hits = (await house.index.search(SearchRequest(OWNER, "tea", neighbours=False))).hits
        assert [([message.content for message in hit.messages], hit.at) for hit in hits] == [
            (["tea there"], 0),
            (["before", "the tea"], 1),
        ]

    async def test_nobody_finds_what_another_one_said(self, house: Harness) -> None:
        """Owner, person and room see their own, neighbours included, also when a conversation changes hands."""
        await house.say(A, "the secret of the owner")
        await house.say(B, "the secret of bob", scope=BOB)
        await house.say(R, "the secret of the room", scope=ROOM)
        await house.say(R, "the owner alone had a secret here", scope=OWNER)
        await house.say(R, "the room again without a secret", scope=ROOM)
        await house.say(A, "a secret of nobody", scope=None)

        assert await house.found("secret") == ["the secret of the owner", "the owner alone had a secret here"]
        assert await house.found("secret", BOB) == ["the secret of bob"]
        (hit,) = (await house.index.search(SearchRequest(ROOM, "secret"))).hits
        assert [each.content for each in hit.messages] == [
            "the secret of the room",
            "the room again without a secret",
        ]
        for scope in (OWNER, BOB, ROOM, MemoryScope(ScopeKind.PERSON, "@eve:hs")):
            shown = {
                each.content
                for hit in (await house.index.search(SearchRequest(scope, "secret"))).hits
                for each in hit.messages
            }
            own = {OWNER: "owner", BOB: "bob", ROOM: "room"}.get(scope, "nobody at all")
            assert all(own in text for text in shown)
        assert await house.found("secret", MemoryScope(ScopeKind.PERSON, "@eve:hs")) == []

    @pytest.mark.parametrize(
        "query",
        [
            'a" OR 1',
            "NEAR(tea, 2)",
            "tea*",
            "-tea",
            "^tea",
            "text : tea",
            '{text} : "tea"',
            "'; DROP TABLE lines; --",
            "scope:owner",
            '"',
            '""',
            "(",
            "tea AND NOT x",
            "%",
            "\x00tea",
            "tea" * 400,
            " ".join(["tea"] * 300),
        ],
    )
    async def test_special_characters_are_data(self, house: Harness, query: str) -> None:
        """No query is an error, and none reaches another scope."""
        await house.say(A, "some tea here")
        await house.say(B, "some tea there", scope=BOB)

        assert set(await house.found(query)) <= {"some tea here"}
        assert await house.found("tea") == ["some tea here"]

    @pytest.mark.parametrize(
        ("text", "query", "hits"),
        [
            ("Ünïque Straße", "unique STRASSE", True),
            ("the blue door", '"blue door"', True),
            ("the door is blue", '"blue door"', False),
            ("international cooperation agreements", '"international cooperation agreements"', True),
            ("cooperation is international", '"international cooperation"', False),
            ("the door is blue", "blue door", True),
            ("several meetings", "meeting", True),
            ("several meetings", "me", False),
            ("mail bob@hs.test today", "bob@hs.test", True),
            ("猫が好きです", "好き", True),
            ("猫が好きです", "犬", False),
            ("well-known", "well known", True),
            ("price 1,250", "1,250", True),
        ],
    )
    async def test_what_counts_as_the_same(self, house: Harness, text: str, query: str, hits: bool) -> None:
        """Case, accents and endings do not, order only inside quotation marks."""
        await house.say(A, text)
        assert (await house.found(query) == [text]) == hits

    async def test_the_word_itself_before_its_forms(self, house: Harness) -> None:
        """Another form is found too, a word with the same beginning last."""
        await house.say(A, "a meeting", "x", "x", "some meetings", "x", "x", "a meetinghouse")
        assert await house.found("meeting") == ["a meeting", "some meetings", "a meetinghouse"]

    async def test_a_question_finds_its_answer(self, house: Harness) -> None:
        """Not every word must occur; a rare one counts for more than a common one."""
        await house.say(
            A, "We bought tea for the cat.", "Our cat is called Minka.", *["tea and more tea"] * 9
        )
        assert (await house.found("What is the name of our cat, how is it called?"))[
            0
        ] == "Our cat is called Minka."
        assert (await house.found("tea minka"))[0] == "Our cat is called Minka."

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("Der Schlüssel liegt in der Schublade", "Wo sind meine Schlüssel?"),
            ("Wir haben zwei Katzen", "Katze"),
            ("Ich habe die Häuser gesehen", "Haus"),
            ("自転車の鍵は引き出しの中にあります", "自転車の鍵はどこですか"),
            ("姉とお茶を飲みました", "姉は何を飲みましたか"),
            ("今は仙台に住んでいます", "住む町"),
            ("きのうはとてもたのしかった", "たのしかった"),
            ("자전거를 부엌에 두었어요", "자전거는 어디에 있어요?"),
            ("어제 새 신발을 샀어요", "신발"),
            ("我的自行车是红色的", "自行车是什么颜色"),
            ("Мы купили новую лодку", "лодка"),
            ("Compré unos zapatos rojos", "¿De qué color es mi zapato?"),
            ("J'ai acheté deux chevaux blancs", "mon cheval blanc"),
            # By names, numbers and words that are the same in both languages.
            ("Minka was at the vet in Kiel, tablets twice a day", "Wann war Minka beim Tierarzt in Kiel?"),
            ("Minka war in Kiel beim Tierarzt", "Minkaはキールのどこ? Kiel"),
            ("猫のミンカはKielの病院へ行きました", "When was the cat in Kiel?"),
            ("Минку возили в Kiel", "Kiel Tierarzt"),
        ],
    )
    async def test_in_other_languages(self, house: Harness, text: str, query: str) -> None:
        """Endings, questions and scripts without spaces, and a question of another language."""
        await house.say(A, "x", text, "x", "something else", "x")
        assert (await house.found(query))[:1] == [text]

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            (transcript_line("note.ogg", text="the boiler is serviced in March"), "boiler March"),
            (attachment_lines([Attachment(id="a1", name="Stromrechnung-2026.pdf", path="x", media_type="x/y", size_bytes=1)]),
             "Rechnung 2026"),
            ("My answer\n\nOn Monday Ann wrote:\n> The meeting is in room 4711\n> at noon", "meeting room"),
        ],
        ids=["voice", "file name", "quoted part"],
    )  # fmt: skip
    async def test_what_is_not_typed_text(self, house: Harness, text: str, query: str) -> None:
        """The transcript of a voice message, the name of a file, what a mail quotes."""
        await house.say(A, "x", text, "x", "something else", "x")
        assert (await house.found(query))[:1] == [text]

    async def test_all_words_before_some(self, house: Harness) -> None:
        """A line with every word stands before one with a rarer one, words in a row before words apart."""
        await house.say(
            A, "the blue of the door", "x", "x", "the blue door", "x", "x", "blue blue blue", "x", "x"
        )
        assert await house.found("blue door") == ["the blue door", "the blue of the door", "blue blue blue"]

    @pytest.mark.parametrize(
        ("text", "query"),
        [
            ("Der Fahrradschlüssel liegt im Flur", "Schlüssel"),
            ("Der Schlüssel vom Fahrrad liegt im Flur", "Fahrradschlüssel"),
            ("Mir hilft nichts gegen Rückenschmerzen", "Was tun bei Schmerzen?"),
            ("Our toothbrushes are in the bathroom", "bath"),
            ("У нас новый холодильник", "холодилньик"),
            ("The dentist has an appointment for us", "dentits"),
            ("The dentist has an appointment for us", "apointment"),
        ],
    )
    async def test_compounds_and_typing_errors(self, house: Harness, text: str, query: str) -> None:
        """A word within a compound, the words of one apart, and a mistyped word that nobody ever wrote."""
        await house.say(A, "x", text, "x", "something else", "x")
        assert (await house.found(query))[:1] == [text]
        assert await house.found("unheard") == []

    async def test_words_divided_between_question_and_answer(self, house: Harness) -> None:
        """A turn with all words stands before one with some; nobody's question counts for another turn."""
        await house.say(A, "What goes into the soup instead of cream?", "I would take cashews.", turn="t1")
        await house.say(A, "The soup was too hot, and soup again tomorrow", "Yes.", turn="t2")
        await house.say(A, "Cashews are dear, cashews and nuts", "Yes.", turn="t3")
        hits = (await house.index.search(SearchRequest(OWNER, "soup cashews"))).hits
        assert hits[0].messages[hits[0].at].turn == "t1"
        await house.say(A, "x", "x", "lamp", turn="t4")
        await house.say(A, "the blue shade", "x", "lamp and blue far away", turn="t5")
        assert (await house.found("blue lamp"))[0] == "lamp and blue far away"

    async def test_words_that_stand_together_in_a_long_message(self, house: Harness) -> None:
        """Of two messages with the same words, the one in which they are of one sentence."""
        filler = "and we talked about this and that for an hour or two"
        apart = f"The cat slept. {filler}. {filler}. The vet has called us"
        together = f"The cat was at the vet. {filler}. {filler}. It has called us"
        await house.say(A, together, "x", "x", apart, "x")
        assert await house.found("cat vet") == [together, apart]

    async def test_the_newer_of_two_statements(self, house: Harness) -> None:
        """What was said again later stands first."""
        await house.say(A, "I live in Kiel now", "x", "x", "I live in Bonn now", days=60)
        assert await house.found("where do I live now") == ["I live in Bonn now", "I live in Kiel now"]

    @pytest.mark.parametrize("undone", ["t2", "2"], ids=["turn", "message"])
    async def test_what_was_taken_back_is_not_found(self, house: Harness, undone: str) -> None:
        """Neither as a hit nor beside one, a turn or a message of it, whether the mark is indexed or not."""
        for turn, text in (("t1", "tea one"), ("t2", "the wrong tea"), ("t3", "tea three")):
            await house.say(A, text, turn=turn)
        assert (await house.found("wrong tea"))[0] == "the wrong tea"
        mark = Message(role="system", content="taken back", id="u", turn="u", scope="owner", undoes=undone)
        await house.memory.append_message(A, mark)
        hits = (await house.index.search(SearchRequest(OWNER, "wrong tea"))).hits
        assert [each.content for hit in hits for each in hit.messages] == ["tea one", "tea three"]
        assert hits[0].messages[hits[0].at].turn == "t3"

    async def test_hostile_texts_are_found(self, house: Harness) -> None:
        """NUL, half a surrogate pair, words of any length and a long text hide nothing, themselves neither."""
        long = "z" * 3000
        texts = ["a\x00boiler", "half \ud800 boiler", f"{long} boiler {long}y", "boiler " + "tea " * 50_000]
        for text in texts:
            await house.say(A, text, "x", "x")

        assert len(await house.found("boiler")) == 4
        for query in (long[:450], f"boiler {'z' * 400}"):
            assert (await house.found(query))[0] == texts[2]
        assert await house.found("y" * 480) == []

    async def test_a_phrase_is_found_behind_many_repetitions(self, house: Harness) -> None:
        """Words that stand in a text very often still have their order."""
        await house.say(A, "tea cup " * 1000 + "cold tea pot", "x", "x", "the pot of tea")
        assert len(await house.found('"cold tea pot"')) == 1
        assert len(await house.found('"tea pot"')) == 1
        assert await house.found('"pot cup"') == []

    async def test_nothing_in_a_text_or_a_scope_reaches_another_scope(self, house: Harness) -> None:
        """What looks like the mark of a scope, or like a scope, is text."""
        eve = MemoryScope(ScopeKind.PERSON, "@eve:hs owner' & '@1:")
        await house.say(A, "the secret")
        await house.say(B, "scope1 @1 owner the secret", scope=eve)

        assert await house.found("scope1") == []
        assert await house.found("secret") == ["the secret"]
        assert await house.found("secret", eve) == ["scope1 @1 owner the secret"]


async def find_the_word_itself_behind_many_forms(house: Harness) -> None:
    """More lines have a word than are rated: those with another form of it make no room for the word itself."""
    forms = [f"{word} {number}" for word in ("apple", "lamp") for number in range(80)]
    await house.say(A, "apples", "x", *forms)
    assert (await house.found("apples lamps"))[0] == "apples"
