"""What a summary drops is kept in every script: names, numbers, days and changes."""

from __future__ import annotations

import pytest

from agent_core.memory.consolidation.key_facts import essentials, missing
from tests.clock import ManualClock
from tests.doubles.consolidation import S, ScriptedLLM, manager_of, say
from tests.doubles.in_memory_storage import InMemoryMemory

FACTS = {
    "English": {
        "by the way our cat is called Minka": "Minka",
        "the code of the bicycle lock is 48213": "48213",
        "the survey of the boat is on 14 May": "14 May",
        "from now on I work in Lisbon": "Lisbon",
    },
    "German": {
        "übrigens heißt unsere Nachbarin Anna Weber": "Anna Weber",
        "der Code vom Fahrradschloss ist 51377": "51377",
        "die Prüfung ist am 3. Dezember": "3. Dezember",
        "seit heute kostet die Miete 1.250 Euro": "1.250",
    },
    "Japanese": {
        "うちの猫の名前はミンカです。": "ミンカ",
        "自転車の鍵の番号は60924です。": "60924",
        "船の検査は5月14日です。": "5月14日",
        "今はリスボンで働いています。": "リスボン",
    },
    "Russian": {
        "кстати, нашу кошку зовут Мурка": "Мурка",
        "код замка на велосипеде 73185": "73185",
        "осмотр лодки будет 14 мая": "14 мая",
        "теперь я работаю в Казани": "Казани",
    },
    "Arabic": {
        "اسم قطتنا الجديدة مينكا.": "مينكا",
        "رقم قفل الدراجة هو ٤٨٢٧٣.": "٤٨٢٧٣",
        "فحص القارب في ١٤ مايو.": "١٤ مايو",
        "أعمل الآن في مدينة لشبونة.": "لشبونة",
    },
}


@pytest.mark.parametrize("language", FACTS)
async def test_what_a_summary_drops_is_kept(language: str) -> None:
    """Each fact stands in the end with the words around it and its day, whatever the model has dropped."""
    storage = InMemoryMemory(clock=ManualClock())
    facts = FACTS[language]
    await say(storage, *facts, *["ok"] * 4)
    await manager_of(storage, ScriptedLLM("…"), threshold=7).consolidate_if_due(S)
    summary = await storage.load_session_summary(S)
    assert [fact for fact in facts.values() if fact not in summary] == []
    assert summary.count("(2026-01-01)") == len(facts)


@pytest.mark.parametrize(
    ("said", "summary", "survives"),
    [
        ("رقم القفل ٤٨٢٧٣", "The code is 48273.", True),
        ("رقم القفل ٤٨٢٧٣", "The code is 48274.", False),
        ("検査は5月14日", "The survey is on 14 May.", True),
        ("осмотр будет 14 мая", "Осмотр лодки 2026-05-14.", True),
        ("осмотр будет 14 мая", "Осмотр лодки 2026-05-15.", False),
        ("うちの猫の名前はミンカです。", "猫の名前はミンカ。", True),
        ("うちの猫の名前はミンカです。", "猫について話した。", False),
    ],
)
def test_what_survives_in_every_script(said: str, summary: str, survives: bool) -> None:
    """Digits and days of one script are those of another; a statement survives in most of its characters."""
    assert (missing(essentials([said])[:1], summary) == []) == survives


@pytest.mark.parametrize(
    "said",
    [
        "the dentist wants to see me on Thursday at four",
        "der Zahnarzt will mich am Montag um vier sehen",
        "el dentista me espera el miércoles a las ocho",
        "стоматолог ждёт меня в четверг в четыре",
        "歯医者の予約は木曜日の四時になりました。",
        "치과 예약은 목요일 네 시로 잡혔습니다.",
    ],
)
def test_a_day_of_the_week_is_a_fact(said: str) -> None:
    """The whole sentence, and not only the day, which may stand in a summary for another reason."""
    (fact, *_) = essentials([said])
    assert (fact.kind, missing([fact], said)) == ("weekday", [])
    assert missing([fact], "Thursday Montag miércoles четверг 木曜日 목요일") == [fact]


@pytest.mark.parametrize(
    "text", ["はい。", "ありがとう", "猫の名前は何ですか。", "ما اسم القطة الجديدة؟", "好的"]
)
def test_small_talk_and_questions_are_no_facts(text: str) -> None:
    """They need not survive."""
    assert essentials([text]) == []
