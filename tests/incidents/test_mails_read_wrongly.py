"""
Mails that programs really send, and of which the model was given something else: text in a charset whose label means a
larger one on the web, a greeting instead of the HTML that says all, numbers and powers that got lost, joined letters.
"""

from __future__ import annotations

import base64

from channels.email.parse.inbound_mail import ParsedMail, parse_mail
from tests.rows import rows

HTML = "Content-Type: text/html; charset=utf-8"


def read(*lines: str, body: str) -> ParsedMail:
    return parse_mail("\r\n".join(["From: a@mail.test", *lines, "", body]).encode())


@rows(
    ("label", "codec", "text"),
    [
        ("gb2312", "gb18030", "联系人朱镕基"),
        ("GBK", "gb18030", "€ 朱镕基 㐂"),
        ("shift_jis", "cp932", "①会場は㈱高橋"),
        ("x-sjis", "cp932", "①会場"),
        ("euc-kr", "cp949", "샾에서 뵙겠습니다"),
        ("ks_c_5601-1987", "cp949", "샾에서"),
        ("big5", "cp950", "恒生 粧品 裏面"),
        ("windows-874", "cp874", "สวัสดีครับ…"),
        ("tis-620", "cp874", "สวัสดี “ครับ”"),
        ("iso-8859-8-i", "iso-8859-8", "שלום לכולם"),
        ("x-mac-cyrillic", "mac-cyrillic", "Привет, коллеги"),
        ("iso-8859-9", "cp1254", "“İstanbul” €"),
        ("koi8-r", "koi8-r", "Привет"),
    ],
)
def test_a_charset_is_what_its_label_means_on_the_web(label: str, codec: str, text: str) -> None:
    """In the text, the subject and the name of a file."""
    data = base64.b64encode(text.encode(codec)).decode()
    body = read(f"Content-Type: text/plain; charset={label}", "Content-Transfer-Encoding: base64", body=data)
    assert body.text == text
    word = f"=?{label}?b?{data}?="
    file = read(
        f"Subject: {word}",
        "Content-Type: x/y",
        f'Content-Disposition: attachment; filename="{word}"',
        body="",
    )
    assert file.headers.subject() == text
    assert file.attachments[0].name == text.strip(" .")


def versions(plain: str, html: str) -> ParsedMail:
    parts = f"--b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{plain}\r\n--b\r\n{HTML}\r\n\r\n{html}\r\n--b--"
    return read("Content-Type: multipart/alternative; boundary=b", body=parts)


BILL = "<p>Invoice of 12 March: 3 chairs, 240.50 EUR, to be paid until 30 April by transfer.</p>"


@rows("plain", ["Hello", "Please use a program that shows HTML.", "\u200b", "[cid:a@b]", ""])
def test_a_plain_text_that_says_nothing_is_not_all(plain: str) -> None:
    mail = versions(plain, BILL)
    assert "240.50 EUR" in mail.text
    assert mail.is_mixed is mail.two_versions


def test_of_two_versions_that_say_the_same_one_is_shown() -> None:
    """The control."""
    mail = versions("Invoice of 12 March: 3 chairs, 240.50 EUR, to be paid until 30 April by transfer.", BILL)
    assert mail.text.count("Invoice") == 1
    assert not mail.is_mixed


@rows(
    ("html", "text"),
    [
        ("<pre>10:00 start\n  10:01 error 7\n</pre>", "10:00 start\n  10:01 error 7"),
        ("<blockquote><pre>a\n b</pre></blockquote>", "> a\n>  b"),
        ("<ol><li>Paris</li><li>Rome</li></ol>", "1. Paris\n2. Rome"),
        ("<ol start=3><li>a<ul><li>x</ul><li>b</ol><ul><li>c</ul>", "3. a\n\n- x\n\n4. b\n\n- c"),
        ("<p>10<sup>6</sup> euros, the 5<sup>th</sup></p>", "10^6 euros, the 5th"),
        ("<p>Meet on <s>Monday</s> <del>Sunday</del> Tuesday</p>", "Meet on ~~Monday~~ ~~Sunday~~ Tuesday"),
        ("می\u200cخواهم 👩\u200d💻", "می\u200cخواهم 👩\u200d💻"),
        (
            "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
            "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        ),
        ("a\u200db \U000e0067\U000e0062 \u202ec", "ab c"),
    ],
)
def test_html_says_what_it_shows(html: str, text: str) -> None:
    assert read(HTML, body=html).text == text


@rows(("name", "kept"), [("x" * 150 + ".pdf", "x" * 96 + ".pdf"), ("a.b" * 80, 100), ("a.pdf", "a.pdf")])
def test_a_long_name_keeps_its_ending(name: str, kept: str | int) -> None:
    mail = read("Content-Type: x/y", f'Content-Disposition: attachment; filename="{name}"', body="")
    found = mail.attachments[0].name
    assert (len(found) if isinstance(kept, int) else found) == kept
