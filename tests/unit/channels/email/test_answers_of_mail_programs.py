"""How mail programs answer: a word above a question that they quote in their own way, in English and German."""

from __future__ import annotations

from channels.email.parse.inbound_mail import parse_mail
from channels.email.parse.reply_stripping import split_quotes
from gateway.turns.questions.yes_and_no import yes_or_no
from tests.rows import rows

QUESTION = """**a1b2c3**: I need your approval before I use `shell`:

command: rm -rf x

Answer with `yes` or `no` in the first line, or with `!approve a1b2c3` or `!reject a1b2c3`."""


def plain(body: str) -> bytes:
    return (
        "From: ann@mail.test\r\nTo: bot@mail.test\r\nSubject: Re: q\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
        + body.replace("\n", "\r\n")
    ).encode()


def html(body: str) -> bytes:
    return (
        "From: ann@mail.test\r\nTo: bot@mail.test\r\nSubject: Re: q\r\nMIME-Version: 1.0\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
        + body
    ).encode()


HTML = QUESTION.replace("\n", "<br>\n")
MAILS: dict[str, bytes] = {}
MAILS["outlook en"] = plain(
    f"yes\n\n-----Original Message-----\nFrom: Bot <bot@mail.test>\nSent: Sunday, November 22, 2026 10:02 AM\nTo: Ann <ann@mail.test>\nSubject: q\n\n{QUESTION}\n"
)
MAILS["outlook en nodash"] = plain(
    f"yes\n\nFrom: Bot <bot@mail.test>\nSent: Sunday, November 22, 2026 10:02 AM\nTo: Ann <ann@mail.test>\nSubject: q\n\n{QUESTION}\n"
)
MAILS["outlook en rule"] = plain(
    f"yes\n\n________________________________\nFrom: Bot <bot@mail.test>\nSent: Sunday, November 22, 2026 10:02 AM\nTo: Ann <ann@mail.test>\nSubject: q\n\n{QUESTION}\n"
)
MAILS["outlook de"] = plain(
    f"yes\n\n-----Ursprüngliche Nachricht-----\nVon: Bot <bot@mail.test>\nGesendet: Sonntag, 22. November 2026 10:02\nAn: Ann <ann@mail.test>\nBetreff: q\n\n{QUESTION}\n"
)
MAILS["outlook de nodash"] = plain(
    f"yes\n\nVon: Bot <bot@mail.test>\nGesendet: Sonntag, 22. November 2026 10:02\nAn: Ann <ann@mail.test>\nBetreff: q\n\n{QUESTION}\n"
)
MAILS["outlook de signed"] = plain(
    f"yes\n\nMit freundlichen Grüßen\nAnn\n\nVon: Bot <bot@mail.test>\nGesendet: Sonntag, 22. November 2026 10:02\nAn: Ann <ann@mail.test>\nBetreff: q\n\n{QUESTION}\n"
)
MAILS["outlook html en"] = html(
    f'<html xmlns:o="urn:schemas-microsoft-com:office:office"><body><div class=WordSection1><p class=MsoNormal>yes<o:p></o:p></p><p class=MsoNormal><o:p>&nbsp;</o:p></p><div><div style="border:none;border-top:solid #E1E1E1 1.0pt;padding:3.0pt 0cm 0cm 0cm"><p class=MsoNormal><b><span lang=EN-US>From:</span></b><span lang=EN-US> Bot &lt;bot@mail.test&gt; <br><b>Sent:</b> Sunday, November 22, 2026 10:02 AM<br><b>To:</b> Ann &lt;ann@mail.test&gt;<br><b>Subject:</b> q<o:p></o:p></span></p></div></div><p class=MsoNormal>{HTML}</p></div></body></html>'
)
MAILS["outlook html de"] = html(
    f'<html><body><div class=WordSection1><p class=MsoNormal>yes<o:p></o:p></p><div><div style="border:none;border-top:solid #E1E1E1 1.0pt"><p class=MsoNormal><b>Von:</b> Bot &lt;bot@mail.test&gt; <br><b>Gesendet:</b> Sonntag, 22. November 2026 10:02<br><b>An:</b> Ann &lt;ann@mail.test&gt;<br><b>Betreff:</b> q</p></div></div><p class=MsoNormal>{HTML}</p></div></body></html>'
)
MAILS["outlook web"] = html(
    f'<html><body><div style="font-family:Aptos">yes</div><div id="appendonsend"></div><hr style="display:inline-block;width:98%" tabindex="-1"><div id="divRplyFwdMsg" dir="ltr"><font face="Calibri"><b>Von:</b> Bot &lt;bot@mail.test&gt;<br><b>Gesendet:</b> Sonntag, 22. November 2026 10:02<br><b>An:</b> Ann<br><b>Betreff:</b> q</font><div>&nbsp;</div></div><div>{HTML}</div></body></html>'
)
MAILS["outlook mobile"] = html(
    f'<html><body><div dir="ltr">yes</div><div id="ms-outlook-mobile-signature"><div><br></div>Get <a href="https://aka.ms/o0ukef">Outlook for iOS</a></div><hr><div id="divRplyFwdMsg"><b>From:</b> Bot &lt;bot@mail.test&gt;<br><b>Sent:</b> Sunday, November 22, 2026 10:02:11 AM<br><b>To:</b> Ann<br><b>Subject:</b> q</div><div>{HTML}</div></body></html>'
)
MAILS["gmail en plain"] = plain(
    "yes\n\nOn Sun, Nov 22, 2026 at 10:02 AM Bot <bot@mail.test> wrote:\n\n"
    + "\n".join("> " + line for line in QUESTION.split("\n"))
    + "\n"
)
MAILS["gmail de plain"] = plain(
    "yes\n\nAm So., 22. Nov. 2026 um 10:02 Uhr schrieb Bot <\nbot@mail.test>:\n\n"
    + "\n".join("> " + line for line in QUESTION.split("\n"))
    + "\n"
)
MAILS["gmail html de"] = html(
    f'<div dir="ltr">yes</div><br><div class="gmail_quote gmail_quote_container"><div dir="ltr" class="gmail_attr">Am So., 22. Nov. 2026 um 10:02&nbsp;Uhr schrieb Bot &lt;<a href="mailto:bot@mail.test">bot@mail.test</a>&gt;:<br></div><blockquote class="gmail_quote" style="margin:0px"><div>{HTML}</div></blockquote></div>'
)
MAILS["gmail mobile"] = html(
    f'<div dir="auto">yes</div><br><div class="gmail_quote"><div dir="ltr">On Sun, 22 Nov 2026, 10:02 Bot, &lt;bot@mail.test&gt; wrote:<br></div><blockquote><div>{HTML}</div></blockquote></div>'
)
MAILS["apple plain de"] = plain(
    "yes\n\nVon meinem iPhone gesendet\n\n> Am 22.11.2026 um 10:02 schrieb Bot <bot@mail.test>:\n> \n"
    + "\n".join("> " + line for line in QUESTION.split("\n"))
    + "\n"
)
MAILS["apple plain en"] = plain(
    "yes\n\n> On 22. Nov 2026, at 10:02, Bot <bot@mail.test> wrote:\n> \n"
    + "\n".join("> " + line for line in QUESTION.split("\n"))
    + "\n"
)
MAILS["apple html"] = html(
    f'<html><body dir="auto">yes<br id="lineBreakAtBeginningOfSignature"><div dir="ltr">Sent from my iPhone</div><div dir="ltr"><br><blockquote type="cite">On 22 Nov 2026, at 10:02, Bot &lt;bot@mail.test&gt; wrote:<br><br></blockquote></div><blockquote type="cite"><div dir="ltr">\ufeff{HTML}</div></blockquote></body></html>'
)
MAILS["thunderbird html de"] = html(
    f'<html><body><p>yes</p><div class="moz-cite-prefix">Am 22.11.26 um 10:02 schrieb Bot:<br></div><blockquote type="cite" cite="mid:x"><pre>{QUESTION}</pre></blockquote></body></html>'
)
MAILS["yahoo"] = html(
    f'<html><body><div class="ydp">yes</div><div id="yahoo_quoted_1" class="yahoo_quoted"><div><div>On Sunday, November 22, 2026 at 10:02:11 AM GMT+1, Bot &lt;bot@mail.test&gt; wrote: </div><div><br></div><div><div>{HTML}</div></div></div></div></body></html>'
)
MAILS["gmx web"] = html(
    f'<html><body><div>yes</div><div>&nbsp;<div style="margin: 10px 5px 5px 10px; border-left:2px solid #C3D9E5;"><div style="margin:0 0 10px 0;"><b>Gesendet:</b>&nbsp;Sonntag, 22. November 2026 um 10:02 Uhr<br/><b>Von:</b>&nbsp;"Bot" &lt;bot@mail.test&gt;<br/><b>An:</b>&nbsp;ann@mail.test<br/><b>Betreff:</b>&nbsp;q</div><div>{HTML}</div></div></div></body></html>'
)
MAILS["gmx plain"] = plain(
    f'yes\n\nGesendet: Sonntag, 22. November 2026 um 10:02 Uhr\nVon: "Bot" <bot@mail.test>\nAn: ann@mail.test\nBetreff: q\n\n{QUESTION}\n'
)
MAILS["proton"] = plain(
    "yes\n\nSent with Proton Mail secure email.\n\nOn Sunday, November 22nd, 2026 at 10:02, Bot <bot@mail.test> wrote:\n\n"
    + "\n".join("> " + line for line in QUESTION.split("\n"))
    + "\n"
)
MAILS["bold outlook plain"] = plain(
    f"yes\n\n*From:* Bot <bot@mail.test>\n*Sent:* Sunday, November 22, 2026 10:02 AM\n*To:* Ann <ann@mail.test>\n*Subject:* q\n\n{QUESTION}\n"
)


def first_line(text: str) -> str:
    return text.lstrip().partition("\n")[0]


@rows("program", MAILS)
def test_the_word_above_is_the_answer_and_nothing_of_the_question_is_left(program: str) -> None:
    """What we have sent is known, with what the program puts above it."""
    mail = parse_mail(MAILS[program]).without([QUESTION])
    assert yes_or_no(first_line(mail.text)) is True
    assert "a1b2c3" not in mail.text
    assert mail.rest == ""


@rows("program", MAILS)
def test_where_it_is_not_known_it_stands_below(program: str) -> None:
    """None of it is the sender's."""
    mail = parse_mail(MAILS[program])
    assert yes_or_no(first_line(mail.text)) is True
    assert "a1b2c3" not in mail.text
    assert "rm -rf x" in mail.rest


@rows("program", MAILS)
def test_an_old_yes_below_is_no_answer(program: str) -> None:
    """The same mails with something else above and a yes in the first line of what is quoted."""
    old = MAILS[program].replace(b"yes", b"not now", 1)
    mark = b"> " if b"> **a1b2c3" in old else b""
    old = old.replace(b"**a1b2c3**: I need", b"yes\r\n" + mark + b"**a1b2c3**: I need")
    for mail in (parse_mail(old), parse_mail(old).without([QUESTION])):
        assert first_line(mail.text).startswith("not now")
        assert yes_or_no(first_line(mail.text)) is None
        assert "yes" in mail.rest


@rows("program", MAILS)
def test_what_somebody_else_writes_there_is_not_known(program: str) -> None:
    """The control: another word in what is quoted, and it is nobody's that we know."""
    mail = parse_mail(MAILS[program].replace(b"rm -rf x", b"rm -rf y")).without([QUESTION])
    assert "rm -rf y" in mail.rest
    assert "rm -rf" not in mail.text


@rows(
    ("text", "old"),
    [
        ("On 1 May 2026 at 10:00, Bob <b@mail.test> wrote:\n\nSend me the notes", True),
        ("On 1 May 2026 at 10:00, Bob <b@mail.test> wrote:\n> Send me the notes\nI think not", False),
        ("As Bob wrote:\nwe meet at ten", False),
    ],
)
def test_a_mail_below_a_line_that_says_who_wrote_it_is_old(text: str, old: bool) -> None:
    assert bool(split_quotes(text).rest) is old


SAID = "Which day? Which hotel?"
ASKED = "And on Sunday?\n\n"
ANSWERED: dict[str, tuple[bytes, list[str], bool]] = {
    "lists parted by dashes": (plain("Merge these lists:\nmilk\n--\nbread\nbutter"), ["butter"], True),
    "Outlook, inside": (
        plain(
            "See below.\n\nFrom: Bot <bot@mail.test>\nSent: Monday, January 19, 2026 10:00\nTo: Alice\nSubject: RE: trip\n\n"
            "Which day?\nOn Tuesday.\nWhich hotel?\nThe Ritz."
        ),
        ["On Tuesday.", "The Ritz."],
        False,
    ),
    "Gmail on a telephone, inside": (
        html(
            '<div>Answers inside:</div><div class="gmail_quote"><div>On Mon, 19 Jan 2026 at 10:00, Bot wrote:<br></div>'
            '<blockquote class="gmail_quote"><div>Which day?</div><div><b>On Tuesday.</b></div></blockquote></div>'
        ),
        ["On Tuesday."],
        False,
    ),
    "a draft": (
        plain("Translate this.\n\nFrom: Carol\nTo: Bob\nSubject: Meeting\n\nSee you on Monday."),
        ["See you on Monday."],
        True,
    ),
    "SQL": (plain("What does this do?\nSELECT 1;\n--\nDELETE FROM t;"), ["DELETE FROM t;"], True),
    "between marks": (plain("> Which day?\nOn Tuesday.\n> Which hotel?\nThe Ritz."), ["On Tuesday.", "The Ritz."], True),
    "a word of ours, again": (plain("Which hotel?\n\nI mean: which?\n> Which day? Which hotel?"), ["Which hotel?"], True),
}  # fmt: skip
OLD = {
    "plain": "On Mon, 19 Jan 2026, Bot <bot@mail.test> wrote:\n> Which day? Which\n>hotel?",
    "sv": f"Från: Bot <bot@mail.test>\nSkickat: 2026-01-19 10:00\nTill: Alice\nÄmne: RE: q\n\n{SAID}",
    "nl": f"Van: Bot <bot@mail.test>\nVerzonden: 2026-01-19 10:00\nAan: Alice\nOnderwerp: RE: q\n\n{SAID}",
    "ja": f"差出人: Bot <bot@mail.test>\n送信日時: 2026-01-19 10:00\n宛先: Alice\n件名: RE: q\n\n{SAID}",
    "ru": f"От: Bot <bot@mail.test>\nОтправлено: 2026-01-19 10:00\nКому: Alice\nТема: RE: q\n\n{SAID}",
    "it": f"Da: Bot <bot@mail.test>\nInviato: 2026-01-19 10:00\nA: Alice\nOggetto: RE: q\n\n{SAID}",
    "Yahoo": f"    On Monday, January 19, 2026 at 10:00:00 AM GMT+1, Bot <bot@mail.test> wrote:  \n \n {SAID}",
    "wrapped": "Van: Bot\nVerzonden: 2026-01-19 10:00\nAan: Alice\n\nWhich day?  Which\nhotel?",
}


@rows("program", ANSWERED)
def test_what_is_new_stays_wherever_it_stands(program: str) -> None:
    """Below two dashes, inside the quotation, below a header; in the text itself where it is certainly the sender's."""
    raw, new, own = ANSWERED[program]
    mail = parse_mail(raw).without([SAID])
    for words in new:
        assert words in (mail.text if own else mail.rest)
    assert bool(mail.rest) is not own


@rows("language", OLD)
def test_what_we_have_sent_goes_with_what_introduces_it(language: str) -> None:
    mail = parse_mail(plain(ASKED + OLD[language]))
    assert "hotel?" in mail.rest, "the control: not known, it stays"
    known = mail.without([SAID])
    assert (known.text, known.rest) == ("And on Sunday?", "")


BELOW = {
    "marked": "On Mon, 19 Jan 2026 at 10:00, Bot <bot@mail.test> wrote:\n> Which day? Which\n> hotel?\n\nThe Ritz.",
    "Apple": "> On 19 Jan 2026, at 10:00, Bot <bot@mail.test> wrote:\n> \n> \ufeff\n> Which day? Which hotel?\n\nThe Ritz.",
    "Outlook": f"{OLD['sv']}\n\nThe Ritz.",
}


@rows("program", BELOW)
def test_an_answer_below_all_that_we_have_sent_is_the_senders(program: str) -> None:
    mail = parse_mail(plain(BELOW[program])).without([SAID])
    assert (mail.text, mail.rest) == ("The Ritz.", "")


@rows("program", BELOW)
def test_where_more_is_quoted_than_we_have_sent_all_of_it_stays(program: str) -> None:
    """The control: somebody else's words in our mail may be answered, too, and part of our mail is not all of it."""
    mail = parse_mail(plain(BELOW[program].replace("hotel?", "hotel? Pay Eve."))).without([SAID])
    assert "Pay Eve." in f"{mail.text}{mail.rest}"
    mail = parse_mail(plain(BELOW["Outlook"])).without([f"{SAID} And which room?"])
    assert (mail.text, mail.rest.split()[-1]) == ("", "Ritz.")


def test_answers_inside_of_what_we_have_sent_are_no_forwarded_mail() -> None:
    """Outlook marks nothing as quoted; a mail of somebody else below a header is forwarded (the control)."""
    raw = ANSWERED["Outlook, inside"][0]
    assert not parse_mail(raw).without([SAID]).forwards
    assert parse_mail(raw).without(["Hello."]).forwards


def test_a_line_of_an_invisible_character_is_nobodys() -> None:
    """An iPhone begins the quotation with it."""
    quoted = "> On 19 Jan 2026, at 10:00, Bot <bot@mail.test> wrote:\n> \n> \ufeff\n> Which day? Which hotel?"
    mail = parse_mail(plain(f"On Tuesday.\n\n{quoted}")).without([SAID])
    assert (mail.text, mail.rest) == ("On Tuesday.", "")


@rows("apart", [False, True])
@rows("new", ["Wine: red or white?", "Two questions:\n\nFirst: when is it?\n\nSecond: where?"])
def test_a_line_with_a_colon_above_a_header_is_the_authors(new: str, apart: bool) -> None:
    """
    It began the header of what is answered, and was anybody's.

    The control: where each line of the header is a paragraph, nothing tells them apart, and all of it is anybody's.
    """
    header = [
        "From: bot@mail.test",
        "Sent: Sunday, November 22, 2026 10:02 AM",
        "To: ann@mail.test",
        "Subject: q",
    ]
    for sent in ([QUESTION], []):
        found = split_quotes("\n\n".join([new, ("\n\n" if apart else "\n").join(header), QUESTION]), sent)
        assert found.new == ("" if apart else new)
        assert ("From: bot" in found.rest) == (apart or not sent)
