"""
Stems of words in the languages that people write here, and the words that say nothing alone. Pure. A message
does not say its language, so a word has a stem in each language of its script, and two words are forms of one
if they share a stem. The stems are those of the Snowball project; of a Korean word it is what stands before
its particle.
"""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from Stemmer import Stemmer

_LATIN = ("english", "german", "french", "spanish", "italian", "portuguese", "dutch", "swedish")
_OTHER = (("\u0370", "\u03ff", "greek"), ("\u0400", "\u04ff", "russian"), ("\u0600", "\u06ff", "arabic"))

# The longer ones first, in single letters as in folded words.
_PARTICLES = tuple(
    unicodedata.normalize("NFKD", particle)
    for particle in [
        "에서는",
        "이에요",
        "입니다",
        "에게서",
        "으로는",
        "에서",
        "에게",
        "한테",
        "부터",
        "까지",
        "으로",
        "이랑",
        "하고",
        "처럼",
        "보다",
        "이나",
        "예요",
        "은",
        "는",
        "이",
        "가",
        "을",
        "를",
        "에",
        "의",
        "로",
        "와",
        "과",
        "도",
        "만",
        "랑",
    ]
)
_SYLLABLE = 2  # letters at least


@cache
def _stemmers(script: str) -> tuple[Stemmer, ...]:
    from Stemmer import Stemmer  # noqa: PLC0415 - a megabyte of tables, which an idle daemon needs not

    return tuple(Stemmer(name, 0) for name in script.split())


def _script(word: str) -> str:
    first = word[:1]
    if first <= "\u024f":
        return " ".join(_LATIN)
    return next((name for low, high, name in _OTHER if low <= first <= high), "")


@lru_cache(maxsize=500)  # words take 0.4 kB each; a search asks for about six
def stems(word: str) -> frozenset[str]:
    """Return the stems of a folded word; itself, if it has none."""
    if word.isdigit() or len(word) > 60:
        return frozenset((word,))
    if "\u1100" <= word[:1] <= "\u11ff":
        particle = next((each for each in _PARTICLES if word.endswith(each)), "")
        return frozenset(
            (word[: len(word) - len(particle)] if len(word) >= _SYLLABLE + len(particle) else word,)
        )
    return frozenset(each.stemWord(word) for each in _stemmers(_script(word))) or frozenset((word,))


# The words that only hold a sentence together, a paragraph for each language, because a word of one may be a
# thing in another.
# English, German, French, Spanish, Portuguese, Italian, Dutch, Swedish, Russian, Greek, Arabic.
_STOP_WORDS = """
a about after again all am an and any are as at be been before but by can could did do does doing for from
had has have he her here him his how i if in into is it its just me my no not of on or our out she should
so some such than that the their them then there these they this those to too up us was we were what when
where which who whom why will with would you your s t don

aber als am an auch auf aus bei bin bis bist da damit dann das dass dein deine dem den der des dich die dir
doch du ein eine einem einen einer eines er es euch fur hab habe haben hat hatte hatten ich ihm ihn ihr
ihre im in ist ja kann mein meine meinem meinen meiner mich mir mit nach nicht noch nun nur ob oder ohne
sehr sein seine sich sie sind so uber um und uns unser unsere unter vom von vor war waren warum was welche
welchen welcher welches wenn wer wie wieder will wir wird wo wurde zu zum zur

ai au aux avec ce ces cet cette comment dans de des du elle en est et eu il ils j je l la le les leur lui
ma mais me mes moi mon n ne nos notre nous on ou par pas pour qu quand que quel quelle quelles quels qui sa
sans se ses son sont sur ta te tes toi ton tu un une vos votre vous y c d m

al algo algun como con cual cuales cuando de del desde donde el ella ellas ellos en entre era es esa ese
eso esta estan estas este esto estos fue ha han hay la las le les lo los mas me mi mis muy no nos o para
pero por porque que quien se si sin sobre su sus te tengo tiene tu tus un una unas uno unos y ya yo e

a ao aos as com como da das de do dos e ela ele em era essa esse esta este eu foi isso ja mas me meu minha
na nas nem no nos num numa o onde os ou para pela pelo por qual quando que quem se seu sua tem um uma voce

al che chi ci come con cosa da dal dei del della di dove e gli ha ho i il io la le lei lo lui ma mi mia mio
ne nei nella non noi per piu quando quale questo questa se sei si sono sul tra tu tuo un una voi

aan als bij dan dat de den deze die dit door een en er geen had heb heeft hem het hij hoe ik in is je kan
maar me met mij mijn naar niet nog of om onze ook op over te tot toen uit van voor waar wanneer was wat we
welke wie wij ze zich zijn zo

att av de den det dem din du efter eller en ett for fran hade han har hon hur i inte jag kan man med men
min mina mitt nar och om pa sig sin som till upp ut var vad vem vi vid vilken vilket ar

а бы был была были было быть в вам вас во вот вы где да для до его ее если есть еще же за и из или им их к
как какая какие какой когда кого кто ли меня мне мои мой моя мы на нас наш не него нее нет ни но о об он
она они от по при с со так там твой тебя тебе то только ты у уже чем что чтобы эта эти это этот я

και το τα η ο οι να με για που στο στη την της του τι πως ποιος ειναι

في من على عن الى إلى ما هل هو هي هذا هذه كان أن ان لا مع يا و
"""
STOP_WORDS = tuple(frozenset(words.split()) for words in _STOP_WORDS.split("\n\n"))
