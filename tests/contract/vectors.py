"""What a search with vectors promises on every engine; a subclass gives the fixture ``house``, its encoder scripted."""

from __future__ import annotations

from agent_core.models import Message
from tests.search_house import BOB, OWNER, A, B, Harness


class VectorsContract:
    """A meaning is found within its scope and the filters, as soon as it is encoded and as long as it is said."""

    async def test_a_meaning_is_found_within_its_scope_and_the_filters(self, house: Harness) -> None:
        """Never in another scope, before a time, elsewhere, or of somebody else; quoted words must be there."""
        await house.say(A, "Minka is our cat.", "How nice!")
        await house.say(A, "The train was late.", "A pity.")
        await house.index.update_all()
        assert await house.found("pet name") == ["Minka is our cat."]
        assert await house.found("pet", BOB) == []
        assert await house.found("pet", since=house.clock.now()) == []
        assert await house.found("pet", place=lambda session: session == B) == []
        assert await house.found("pet", place=lambda session: session == A) == ["Minka is our cat."]
        assert await house.found("pet", person="somebody") == []
        assert await house.found("pet", person="x") == ["Minka is our cat."]
        assert await house.found('"pet"') == []

    async def test_a_question_of_another_language(self, house: Harness) -> None:
        """Is found by its meaning; without vectors, by none of its words, and nothing breaks."""
        await house.say(A, "Minka is our cat.", "How nice!")
        for query in ("Wie heißt unser Haustier?", "ペット", "Как зовут кошку?"):
            assert await house.found(query) == []
        await house.index.update_all()
        assert await house.found("Wie heißt unser Haustier?") == ["Minka is our cat."]
        assert await house.found("Как зовут кошку?") == []

    async def test_what_is_not_encoded_yet_is_found_by_its_words(self, house: Harness) -> None:
        """And by its meaning from then on, also what is said later."""
        await house.say(A, "Minka is our cat.", "How nice!")
        assert await house.found("cat") == ["Minka is our cat."]
        assert await house.found("pet") == []
        await house.index.update_all()
        assert await house.found("pet") == ["Minka is our cat."]
        await house.say(B, "Felix is a cat, too.", "How nice!")
        await house.index.update(B)
        assert await house.found("pet") == ["Felix is a cat, too.", "Minka is our cat."]

    async def test_what_was_taken_back_has_no_meaning(self, house: Harness) -> None:
        """Also for a process that still holds the vector, and after a new one was sent what is there."""
        await house.say(A, "Minka is our cat.", turn="t1")
        await house.say(A, "How nice!", turn="t1")
        await house.say(A, "Felix is our cat.", turn="t2")
        await house.index.update_all()
        mark = Message(role="system", content="taken back", id="u", turn="u", scope=str(OWNER), undoes="t1")
        await house.memory.append_message(A, mark)
        assert await house.found("pet") == ["Felix is our cat."]
        await house.index.update(A)
        assert await house.found("pet") == ["Felix is our cat."]
        house.index.vectors.forget_progress()
        await house.index.update_all()
        assert await house.found("pet") == ["Felix is our cat."]

    async def test_all_is_read_anew_when_asked(self, house: Harness) -> None:
        await house.say(A, "Minka is our cat.", "How nice!")
        await house.index.update_all()
        await house.index.rebuild()
        await house.index.update_all()
        assert await house.found("pet") == ["Minka is our cat."]
