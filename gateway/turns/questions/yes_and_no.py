"""
The yes or no that a text is, in the usual languages. Pure. A text is one only if all of it is known: words
for yes or no, and what is polite beside them. So no condition, negation or further wish can stand in a yes.
What begins with a sign and is more is unclear.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum


class Sign(StrEnum):
    """The meaning of a text as an answer."""

    YES = "yes"
    FINE = "fine"
    """A yes directly after a question; after anything else it may just take note of that."""
    NO = "no"
    UNCLEAR = "unclear"
    """It begins with a yes or a no, and is more than that."""


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """
    A sign, and for how long a yes holds, such as ``1h``; empty: for once.

    ``more`` is what was written below it, in paragraphs of their own; of an unclear one, all that is more.
    ``to_all``: it is expressly to all that waits.
    """

    sign: Sign
    span: str = ""
    more: str = ""
    to_all: bool = False


_POLITE, _HOUR, _ALL = "polite", "an hour", "all"
_TABLE: dict[str, tuple[str, str, str, str, str, str]] = {
    # yes | fine/fine alone | no/no alone | polite | for an hour | to all/all
    "en": (
        "yes|yeah|yep|yup|y|approve|approved|approve it|allow it",
        (
            "ok|okay|fine|alright|all right|sure|of course|go ahead|do it|do that|run it|send it"
            "|please do it|please do that|proceed|go for it/please do|go on|carry on"
        ),
        (
            "no|nope|nah|n|reject|rejected"
            "/never mind|nevermind|never mind don't|cancel|cancel it|cancel that"
            "|stop|stop it|stop that|forget it|drop it|leave it|don't do it|don't do that"
        ),
        (
            "please|pls|thanks|thanks a lot|thank you|thx|very much"
            "|cheers|regards|best|best regards|kind regards|best wishes"
        ),
        "for an hour|for one hour",
        "to all|to all of them|to everything|to both|to both of them/all|all of them|both|both of them",
    ),
    "de": (
        "ja|jo|jep|jawohl|j|genehmigt|erlaubt",
        (
            "klar|alles klar|gerne|gern|in ordnung|einverstanden"
            "|mach das|mach es|mach's|tu das|nur zu|passt/mach mal|mach weiter"
        ),
        (
            "nein|nee|nö|ne"
            "/stopp|halt|lass es|lass das|abbrechen|vergiss es|mach das nicht|mach es nicht|tu das nicht"
        ),
        (
            "bitte|danke|danke dir|danke schön|dankeschön|vielen dank|bitteschön|viele grüße"
            "|liebe grüße|gruß|lg|vg|mfg"
        ),
        "für eine stunde|für 1 stunde|eine stunde lang",
        "zu allem|zu allen|zu beiden|zu beidem/alle|alles|beide|beides",
    ),
    "fr": (
        "oui|ouais",
        "d'accord|bien sûr|vas y|allez y|fais le|faites le|fais ça",
        "non/annule|annulez|laisse tomber|ne le fais pas|ne fais pas ça",
        "s'il te plaît|s'il vous plaît|stp|svp|merci|merci beaucoup|cordialement|bien à vous",
        "pour une heure|pendant une heure",
        "à tout|à tous|à toutes|aux deux/tout|tous|toutes|les deux",
    ),
    "es": (
        "sí|si",
        "vale|de acuerdo|claro|hazlo|adelante|dale",
        "no/cancela|cancelar|no lo hagas|déjalo",
        "por favor|gracias|muchas gracias|saludos",
        "por una hora|durante una hora",
        "a todo|a todos|a todas|a los dos|a ambos/todo|todos|todas|ambos",
    ),
    "it": (
        "sì",
        "va bene|certo|d'accordo|fallo|procedi|fai pure",
        "no/annulla|lascia stare|non farlo",
        "per favore|per piacere|grazie|grazie mille|saluti|cordiali saluti",
        "per un'ora|per una ora",
        "a tutto|a tutti|a tutte|a entrambi/tutto|tutti|tutte|entrambi",
    ),
    "pt": (
        "sim",
        "está bem|tá bom|claro|pode ser|faça isso|faz isso|pode fazer",
        "não/cancela|cancele|não faça isso|deixa pra lá",
        "por favor|se faz favor|obrigado|obrigada|cumprimentos|abraço",
        "por uma hora|durante uma hora",
        "a tudo|a todos|para todos/tudo|todos|todas|ambos",
    ),
    "nl": (
        "ja|jawel",
        "oké|prima|is goed|doe het|doe maar|doe dat|ga je gang|akkoord",
        "nee/annuleer|laat maar|niet doen|doe het niet",
        "graag|alsjeblieft|alstublieft|aub|dank je|dank u|bedankt|dank je wel|groeten|groetjes",
        "voor een uur|een uur lang",
        "op alles|op allemaal|op beide/alles|allemaal|allebei",
    ),
    "sv": (
        "ja|japp",
        "okej|visst|gör det|kör|kör på|självklart",
        "nej/avbryt|låt bli|gör det inte|glöm det",
        "tack|snälla|tack så mycket|vänliga hälsningar|mvh",
        "i en timme|för en timme",
        "till alla|till allt|till båda/alla|allt|båda",
    ),
    "da": (
        "ja|jep",
        "okay|gør det|kør|fint|gerne|tak",
        "nej|nej tak/annuller|lad være|gør det ikke|glem det",
        "mange tak|venlig hilsen|mvh",
        "i en time|for en time",
        "til alle|til alt|til begge/alle|alt|begge",
    ),
    "no": (
        "ja|jo",
        "greit|gjør det|kjør|kjør på",
        "nei/avbryt|la være|ikke gjør det|glem det",
        "takk|tusen takk|vennlig hilsen|hilsen",
        "i en time|for en time",
        "til alle|til alt|til begge/alle|alt|begge",
    ),
    "fi": (
        "kyllä|joo|juu",
        "selvä|hyvä|tee se|tee niin|toki|anna mennä",
        "ei|ei kiitos/peruuta|älä tee sitä|unohda se",
        "kiitos|kiitti|ole hyvä|terveisin|terv",
        "tunniksi|tunnin ajan|yhdeksi tunniksi",
        "kaikkiin|molempiin/kaikki|molemmat",
    ),
    "pl": (
        "tak",
        "dobrze|jasne|zgoda|zrób to|śmiało|proszę zrób to",
        "nie/anuluj|nie rób tego|zostaw to",
        "proszę|poproszę|dziękuję|dzięki|pozdrawiam",
        "na godzinę|przez godzinę|na jedną godzinę",
        "na wszystko|na wszystkie|na oba/wszystko|wszystkie|oba",
    ),
    "cs": (
        "ano|jo",
        "dobře|jasně|udělej to|do toho|souhlasím",
        "ne|nechci/zruš to|nedělej to|nech to být",
        "prosím|děkuji|díky|s pozdravem",
        "na hodinu|na jednu hodinu",
        "na všechno|na vše|na obojí/všechno|vše|všechny|obojí",
    ),
    "ru": (
        "да|ага",
        "хорошо|ладно|конечно|давай|сделай|сделай это|делай|ок|окей",
        "нет|не надо|не нужно/отмена|не делай|не делай этого",
        "пожалуйста|спасибо|с уважением",
        "на час|на один час",
        "на все|на оба/все|всё|всем|оба",
    ),
    "uk": (
        "так|ага",
        "добре|гаразд|звичайно|зроби це|зроби|давай",
        "ні|не треба/скасуй|не роби|не роби цього",
        "будь ласка|дякую|прошу|з повагою",
        "на годину|на одну годину",
        "на все|на всі|на обидва/все|всі|всім|обидва",
    ),
    "tr": (
        "evet",
        "tamam|olur|yap|yap bunu|elbette|tabii",
        "hayır|hayir|yok|olmaz/iptal|yapma|vazgeç",
        "lütfen|teşekkürler|teşekkür ederim|sağ ol|saygılar",
        "bir saat|bir saatliğine|bir saat için",
        "hepsine|tümüne|ikisine de/hepsi|tümü|ikisi de",
    ),
    "el": (
        "ναι",
        "εντάξει|οκ|κάν'το|κάντο|κάνε το|προχώρα|βεβαίως",
        "όχι/άκυρο|μην το κάνεις|άστο",
        "παρακαλώ|ευχαριστώ|σε παρακαλώ",
        "για μία ώρα|για μια ώρα",
        "σε όλα|σε όλες|και στα δύο/όλα|όλες|και τα δύο",
    ),
    "he": (
        "כן",
        "בסדר|אוקיי|אוקי|בטח|תעשה|תעשי|תעשה את זה|קדימה",
        "לא/בטל|עזוב|אל תעשה|אל תעשה את זה",
        "בבקשה|תודה|תודה רבה",
        "לשעה|למשך שעה",
        "לכולם|להכל|לשניהם/הכל|כולם|שניהם",
    ),
    "ar": (
        "نعم|أجل|ايوه|أيوه",
        "حسنا|حسنًا|موافق|تمام|طيب|افعل|افعل ذلك|تفضل",
        "لا|كلا/ألغ|الغاء|إلغاء|لا تفعل|لا تفعل ذلك",
        "من فضلك|لو سمحت|شكرا|شكرًا",
        "لمدة ساعة|لساعة",
        "للكل|للجميع|لكليهما/الكل|جميعها|كلها",
    ),
    "zh": (
        "是|是的|对|對",
        "好|好的|行|可以|同意|没问题|沒問題|做吧|去做吧",
        "不|不是|不要|不好|不行|不用|不可以|不同意|否/取消|算了",
        "请|請|谢谢|謝謝|麻烦了|麻煩了",
        "一小时|一小時|一个小时|一個小時",
        "/全部|全都|两个都|兩個都",
    ),
    "ja": (
        "はい|ええ|うん",
        "オーケー|オッケー|了解|了解です|承知しました|やって|やってください|どうぞ|実行して|実行してください",
        "いいえ|いや|だめ|ダメ|駄目/やめて|やめてください|しないで|キャンセル|却下",
        "お願い|お願いします|おねがいします|ください|ありがとう|ありがとうございます",
        "1時間|一時間",
        "/全部|すべて|全て|両方",
    ),
    "ko": (
        "네|예|응|그래|그래요",
        "좋아|좋아요|알겠어요|오케이|해줘|해 줘|해주세요|해 주세요|진행해|진행해 주세요",
        "아니|아니요|아니오|아뇨/하지마|하지 마|하지 마세요|안돼|안 돼|취소|됐어",
        "부탁해|부탁해요|부탁합니다|고마워|감사합니다|고맙습니다",
        "한 시간|한시간|한 시간 동안|1시간",
        "/모두|전부|둘 다",
    ),
    "hi": (
        "हाँ|हां|जी हाँ|जी हां|haan",
        "ठीक है|करो|कर दो|कर दीजिए|बिल्कुल",
        "नहीं|nahi|nahin/मत करो|रहने दो|रद्द करो",
        "कृपया|जी|धन्यवाद|शुक्रिया",
        "एक घंटे के लिए|एक घंटा",
        "/सब|सभी|सबको|सभी को|दोनों",
    ),
}
_SIGNS = {Sign.FINE: "👍👌✅✔☑🆗💯", Sign.NO: "👎❌✖🚫⛔", _POLITE: "🙏🙂😊😀😃❤"}
_DOUBTFUL = "yeah yeah|ja ja|да ладно|ага конечно|はいはい"
"""What is said to mean that one does not believe it, or has heard enough."""
_CONDITIONS = (
    "but only unless except if when not however aber nur wenn falls außer nicht mais sauf seulement pero",
    "solo ma se mas só maar alleen als men bara kun hvis mutta jos ale tylko jeśli pokud но если але якщо",
    "ama eğer αλλά αν אבל אם لكن إذا",
)
_LONGEST = 200
_SKIN_TONES = dict.fromkeys(range(0x1F3FB, 0x1F400))
_SPAN = re.compile(r"(?:for )?(\d{1,4}) ?(m|h|d)(?:in|ins|inutes?|ours?|ays?)?(?!\w)")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
"""Characters of languages that put no blanks between words."""
_ASKS = re.compile("[?؟‽⸮](?![A-Za-z0-9])|¿|[\u0370-\u03ff\u1f00-\u1fff];")
"""Question marks, but not that of an address; the Greek one is written as a semicolon."""


def _normal(text: str) -> str:
    """A text without case, punctuation and marks of stress."""
    text = unicodedata.normalize("NFKC", text.translate(_SKIN_TONES).replace("\ufe0f", "")).casefold()
    # What is struck out with U+0334 to U+0338 stays so.
    text = re.sub("[\u0300-\u0333\u0339-\u036f]", "", unicodedata.normalize("NFD", text)).replace("’", "'")
    kept = "".join(char if _is_instruction(char) else " " for char in text)
    return unicodedata.normalize("NFC", " ".join(kept.split()))


def _is_instruction(char: str) -> bool:
    category = unicodedata.category(char)
    return char == "'" or (category[0] in "LMNS" and category != "Sk")


def _phrases() -> dict[str, str]:
    """The meaning of each phrase; of several meanings the least decided one."""
    found: dict[str, str] = {}
    for column, kind in ((5, _ALL), (0, Sign.YES), (1, Sign.FINE), (4, _HOUR), (3, _POLITE), (2, Sign.NO)):
        for row in _TABLE.values():
            found |= dict.fromkeys(map(_normal, filter(None, re.split("[|/]", row[column]))), kind)
        found |= dict.fromkeys(_SIGNS.get(kind, ""), kind)
    return found | dict.fromkeys(map(_normal, _DOUBTFUL.split("|")), Sign.UNCLEAR)


_PHRASES = _phrases()
_BY_LENGTH = sorted({len(each) for each in _PHRASES}, reverse=True)
_OFF, _ON = (
    {_normal(each) for row in _TABLE.values() for each in row[column].partition("/")[2].split("|")}
    for column in (2, 1)
)
"""What says no or fine alone, and begins a request otherwise, such as "cancel" and "please do"."""
_SOME = {_normal(each) for row in _TABLE.values() for each in row[5].partition("/")[2].split("|")}
"""What is all beside a yes, and with a no "not all"."""


def is_question(text: str) -> bool:
    """Return True if a text may be a question."""
    return _ASKS.search(unicodedata.normalize("NFKC", text)) is not None


def continues_sentence(paragraph: str, *, after_a_no: bool = False) -> bool:
    """Return True if a paragraph seems to continue the sentence before it; a no only by a condition."""
    start = paragraph.lstrip()[:40]
    if start[:2].islower() and not after_a_no:
        return True
    return start.replace(",", " ").casefold().partition(" ")[0] in " ".join(_CONDITIONS).split()


def read_answer(text: str) -> AnswerReading | None:
    """The sign that a text is, or begins with; None for any other."""
    if len(text.strip()) > _LONGEST:
        return None
    rest, found, spans = _normal(text), list[str](), list[str]()
    while rest:
        span, phrase = _SPAN.match(rest), _first(rest)
        if span is None and not phrase:
            break
        if span is not None:
            spans.append(span[1] + span[2])
        elif _PHRASES[phrase] == _HOUR:
            spans.append("1h")
        else:
            found.append(phrase)
        rest = rest[len(phrase) if span is None else span.end() :].lstrip()
    signs = [phrase for phrase in found if _PHRASES[phrase] not in (_POLITE, _ALL)]
    means = {_PHRASES[phrase] for phrase in signs}
    of_all = {phrase for phrase in found if _PHRASES[phrase] == _ALL}
    if not signs or ((rest or of_all) and signs[0] in _OFF) or (rest and signs[0] in _ON):
        return None
    is_mixed = Sign.NO in means and (len(means) > 1 or bool(spans or of_all & _SOME))
    if rest or is_mixed or Sign.UNCLEAR in means or len(spans) > 1 or is_question(text):
        return AnswerReading(Sign.UNCLEAR, more=text.strip() if rest else "")
    sign = next(sign for sign in (Sign.NO, Sign.YES, Sign.FINE) if sign in means)
    # Of several signs, as in "ja, alles in ordnung", it may be said of the matter.
    return AnswerReading(sign, "".join(spans), to_all=bool(of_all) and len(signs) == 1)


def is_cancellation(text: str) -> bool:
    """Return True if a text is nothing but a word to leave something, such as "stop"."""
    return _normal(text[:_LONGEST]) in _OFF


def is_stop_word(text: str) -> bool:
    """Return True if a text is nothing but "stop", in English or German."""
    return _normal(text[:_LONGEST]) in ("stop", "stopp", "halt")


def is_qualified_answer(text: str) -> bool:
    """Return True if a text begins with a no, or with a yes and is more."""
    said = read_answer(text)
    return _PHRASES.get(_first(_normal(text[:_LONGEST]))) == Sign.NO or (
        said is not None and said.sign is Sign.UNCLEAR
    )


def is_polite(text: str) -> bool:
    """Return True if a text says nothing but thanks or regards, or nothing at all."""
    rest = "?" if len(text) > _LONGEST else _normal(text)
    while rest and _PHRASES.get(phrase := _first(rest)) == _POLITE:
        rest = rest[len(phrase) :].lstrip()
    return not rest


def yes_or_no(text: str) -> bool | None:
    """The yes or no that a text is; None if it is anything else."""
    found = read_answer(text)
    if found is None or found.span or found.sign is Sign.UNCLEAR:
        return None
    return found.sign is not Sign.NO


def _first(text: str) -> str:
    """The longest phrase with which a text begins; empty: none."""
    for length in _BY_LENGTH:
        phrase, after = text[:length], text[length : length + 1]
        if phrase in _PHRASES and not (after and _is_joined(phrase[-1], after)):
            return phrase
    return ""


def _is_joined(end: str, after: str) -> bool:
    """Return True if two characters belong to one word."""
    letters = all(unicodedata.category(char)[0] in "LMN" or char == "'" for char in (end, after))
    return letters and _UNSPACED.match(end) is None
