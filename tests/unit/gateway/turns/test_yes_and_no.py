"""What counts as a yes and as a no in each language, what is asked back about, and what is something else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.turns.questions.yes_and_no import (
    WORDS,
    AnswerReading,
    Sign,
    is_question,
    read_answer,
    yes_or_no,
)
from tests.rows import rows

YES = {
    "en": "yess|yea, go ahead|k|kk thx|okey dokey|sounds good!|go on|Go on, please.|ok, go on|please do|please do, thanks|please do both|please do it|Yes please, do that.|yes please do it|Approve it!|yes, allow it|yes to both|Yes, send it please|run it|yes, thanks a lot|yes to all|Yes, all of them please|yes, all right|yes please|Yes.|YES!|yes, thank you|ok do it|okay|sure, go ahead|`yes`|👍|👍🏽|✅ thanks|approve",
    "de": "jup|jo passt so|oki doki|mach mal|mach weiter|ja, beide|Ja bitte, danke dir|ja, danke schön|ja, alles klar|Ja, zu allem|ja|Ja, bitte|ja danke!|mach das bitte|gerne|Klar, mach es|Ja.",
    "fr": "oui à tout|oui|Oui, s'il vous plaît|d'accord|oui merci|vas-y|OUI",
    "es": "sí|si|Sí, por favor|vale, hazlo|si, gracias|de acuerdo",
    "it": "sì|sì grazie|va bene, procedi|certo",
    "pt": "sim|sim, por favor|Sim, obrigado|pode fazer",
    "nl": "ja graag|ja|ga je gang|oké, doe maar",
    "sv": "ja tack|japp|ja, gör det|visst",
    "da": "ja tak|ja|tak",
    "no": "ja takk|jo|greit, gjør det",
    "fi": "kyllä|joo kiitos|tee se",
    "pl": "tak|tak, proszę|dobrze, zrób to",
    "cs": "ano|ano, prosím|jasně|jo, díky",
    "ru": "да|Да, пожалуйста|хорошо, давай|ага",
    "uk": "так|так, будь ласка|добре",
    "tr": "evet|Evet, lütfen|tamam|olur",
    "el": "ναι|Ναι, παρακαλώ|ΝΑΙ|εντάξει",
    "he": "כן|כן, בבקשה|בסדר",
    "ar": "نعم|نعم، من فضلك|حسنًا|تمام",
    "zh": "是|好的|是的，谢谢|可以|好|请做吧",
    "ja": "はい|はい、お願いします|うん|了解です",
    "ko": "네|네, 부탁해요|예|좋아요",
    "hi": "हाँ|हां|जी हाँ|ठीक है|हाँ, कृपया",
}
NO = {
    "en": "no to all|no|No!|no, thanks|nope|never mind|never mind, don't|nevermind|drop it|don't do it|cancel|❌|reject",
    "de": "lieber nicht|nein|Nein, danke|nee|lass es|nö",
    "fr": "non|non merci|laisse tomber",
    "es": "no|no, gracias|cancela",
    "it": "no grazie|annulla",
    "pt": "não|não, obrigada",
    "nl": "nee|nee, dank je|laat maar",
    "sv": "nej tack|låt bli",
    "da": "nej tak|nej",
    "no": "nei takk|nei",
    "fi": "ei|ei kiitos",
    "pl": "nie|nie, dziękuję",
    "cs": "ne|ne, děkuji",
    "ru": "нет|нет, спасибо|не надо",
    "uk": "ні|ні, дякую",
    "tr": "hayır|HAYIR|hayır, teşekkürler",
    "el": "όχι|όχι ευχαριστώ",
    "he": "לא|לא, תודה",
    "ar": "لا|لا، شكرا",
    "zh": "不|不要|不用，谢谢|不行",
    "ja": "いいえ|だめ|やめてください",
    "ko": "아니요|아뇨|하지 마세요",
    "hi": "नहीं|नहीं, धन्यवाद",
}
UNCLEAR = [
    "yes, but not today", "yes if it is free", "yes and also buy milk", "Yes only the first", "yes unless it rains",
    "yes to all but the last", "yes, all of them but not today", "ja zu allem außer dem letzten", "no todo", "yes all of it?",
    "no problem, go ahead", "no worries, yes", "no, yes", "of course not", "yes?", "ok?", "no idea", "y 5",
    "ja, aber nur die erste", "ja wenn es geht", "nein, doch, ja", "oui mais pas maintenant", "claro que no",
    "sí, pero mañana", "si puedes", "sim, mas não hoje", "да нет", "да, но завтра", "evet ama yarın", "ναι;",
    "好吗", "好不好", "はい、でも明日", "네, 하지만 내일", "no for an hour", "yes for an hour, 2h", "yes\nbut not today",
    "yes‽", "yes⁇", "yes﹖", "¿sí", "yes⸮", "да ладно", "ага, конечно", "Yeah, yeah", "ja ja", "はいはい",
]  # fmt: skip
OTHER = [
    "", "thanks", "please", "what is it?", "I think yes", "is that a yes?", "cancel my train", "stop the music",
    "yesterday", "nothing", "Jahr", "nein" * 80, "네가 해", "넷", "ばいばい", "okra", "not now", "don't stop",
    "forget it was me", "please do write that down", "go on with the story", "mach mal das Licht an", "1h", "~~yes~~", "y\u0336e\u0336s\u0336", "y\u0338es", "yes " * 80,
]  # fmt: skip


def each(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(language, text) for language, texts in table.items() for text in texts.split("|")]


@rows(("language", "text"), each(YES))
def test_yes(language: str, text: str) -> None:
    assert yes_or_no(text) is True


@rows(("language", "text"), each(NO))
def test_no(language: str, text: str) -> None:
    assert yes_or_no(text) is False


def test_every_language_is_tried() -> None:
    assert set(WORDS) - {"any"} == set(YES) == set(NO)


@rows("text", UNCLEAR)
def test_what_is_more_is_unclear(text: str) -> None:
    found = read_answer(text)
    assert found is not None
    assert found.sign is Sign.UNCLEAR
    assert yes_or_no(text) is None


@rows("text", OTHER)
def test_anything_else(text: str) -> None:
    assert read_answer(text) is None


@rows(
    ("text", "span"),
    [
        ("yes for an hour", "1h"), ("Yes, 1h", "1h"), ("ja, für eine Stunde", "1h"), ("yes for 30 minutes", "30m"),
        ("oui, pour une heure", "1h"), ("sí por una hora", "1h"), ("はい、1時間", "1h"), ("да, на час", "1h"),
        ("yes for 2 hours please", "2h"), ("yes, 1 day", "1d"),
    ],
)  # fmt: skip
def test_a_yes_for_a_while(text: str, span: str) -> None:
    """It is no yes for once."""
    assert read_answer(text) == AnswerReading(Sign.YES, span)
    assert yes_or_no(text) is None


@rows(
    ("text", "sign"),
    [
        ("yes to all", Sign.YES), ("No to all, thanks!", Sign.NO), ("nein zu allen", Sign.NO), ("ja, alle bitte", Sign.YES),
        ("no to both", Sign.NO), ("ok to all", Sign.FINE), ("oui, les deux", Sign.YES), ("no a todo", Sign.NO),
        ("nie na wszystko", Sign.NO), ("全部同意", Sign.FINE), ("да на все", Sign.YES), ("approve all", Sign.YES),
    ],
)  # fmt: skip
def test_what_is_said_to_all(text: str, sign: Sign) -> None:
    assert read_answer(text) == AnswerReading(sign, to_all=True)


@rows("text", ["yes", "no", "ja, alles klar", "alles klar", "ja, alles in ordnung", "yes, all right"])
def test_the_control_of_what_is_said_to_all(text: str) -> None:
    """What may be said of the matter is to none in particular."""
    found = read_answer(text)
    assert found is not None and found.sign is not Sign.UNCLEAR and not found.to_all


@rows("text", ["no todos", "nie wszystko", "όχι όλα", "לא הכל", "nej alla", "no, both", "सब नहीं"])
def test_a_no_to_not_all_is_unclear(text: str) -> None:
    found = read_answer(text)
    assert found is not None and found.sign is Sign.UNCLEAR


@rows("text", ["ok", "👍", "do it", "gerne", "好的", "tak"])
def test_what_may_take_note_of_something_is_a_weaker_yes(text: str) -> None:
    assert read_answer(text) == AnswerReading(Sign.FINE)


@rows(("text", "question"), [("Shall I?", True), ("行きますか？", True), ("Να το κάνω;", True),
                                                ("هل أفعل؟", True), ("Really‽", True), ("¿De verdad", True), ("See x.test/?a=1.", False), ("Done; all is well.", False)])  # fmt: skip
def test_a_question(text: str, question: bool) -> None:
    assert is_question(text) is question


RESTRICTING = [
    "but", "if", "only", "unless", "except", "not", "never", "later", "tomorrow", "when", "without", "aber", "nur",
    "wenn", "nicht", "kein", "mais", "pas", "seulement", "pero", "cuando", "ma", "però", "mas", "maar", "niet", "men",
    "inte", "ikke", "mutta", "ale", "nie", "jen", "но", "если", "не", "але", "якщо", "ama", "değil", "αλλά", "δεν",
    "אבל", "לא", "لكن", "لا", "但是", "不", "如果", "でも", "ない", "하지만", "लेकिन", "नहीं", "no", "nein", "нет", "hayır",
]  # fmt: skip
KNOWN = [
    phrase
    for language, row in WORDS.items()
    for key in ("yes", "fine", "fine_alone", "polite", "hour", "to_all", "all")
    for phrase in row.get(key, "").split("|")
    if phrase and language != "any"
]


@given(
    before=st.lists(st.sampled_from(KNOWN), max_size=4),
    word=st.sampled_from(RESTRICTING),
    after=st.lists(st.sampled_from([*KNOWN, "today", "x"]), max_size=4),
    between=st.sampled_from([" ", ", ", "! ", "\n", ". "]),
)
def test_nothing_with_a_condition_or_a_negation_is_a_yes(
    before: list[str], word: str, after: list[str], between: str
) -> None:
    found = read_answer(between.join([*before, word, *after]))
    assert found is None or found.sign in (Sign.UNCLEAR, Sign.NO)


@given(st.text(), st.sampled_from(KNOWN))
def test_a_text_of_any_characters_is_read(text: str, known: str) -> None:
    """Without an error, and no letter that is not known is part of a yes."""
    read_answer(text)
    found = read_answer(f"{known} qx{text}")
    assert found is None or found.sign is Sign.UNCLEAR
