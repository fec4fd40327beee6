"""What is found by which words, what is loaded by it, and how much of it is said."""

from __future__ import annotations

import pytest

from agent_core.models import ToolDefinition
from agent_core.provenance import untrusted_origin
from agent_core.tools.deferred import KEPT, DeferredTools, name_of_tool
from tests.doubles.agent import call

TOOLS = {
    "github__create_issue": "Open a new issue. It needs a title.",
    "github__list_issues": "List issues of a repository.",
    "github__mergePullRequest": "Merge a pull request.",
    "calendar__add_event": "Put an event into the calendar.\nAnd more.",
    "calendar__delete_event": "Remove an event from the calendar.",
    "bank__transfer": "Send money to somebody.",
    "send_file": "Send along a file with your answer.",
    "delete_file": "Delete a file.",
}


def shelf(**more: str) -> DeferredTools:
    parameters = {"type": "object", "properties": {"name": {"type": "string"}}}
    return DeferredTools(
        {
            name: ToolDefinition(name=name, description=text, parameters=parameters)
            for name, text in {**TOOLS, **more}.items()
        }
    )


def many() -> dict[str, str]:
    return {
        f"s{server}__do_{number}": f"Does thing {number}." for server in range(100) for number in range(30)
    }


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create an issue on GitHub", "github__create_issue"),
        ("merge pull requests", "github__mergePullRequest"),
        ("transferring money", "bank__transfer"),
        ("deleting files", "delete_file"),
        ("remove calendar events", "calendar__delete_event"),
        ("calendar__add_event", "calendar__add_event"),
        ("SEND_FILE", "send_file"),
    ],
)
def test_the_best_match_is_loaded_first(query: str, best: str) -> None:
    """By words of the name and the description, whatever their endings are."""
    tools = shelf()
    result = tools.answer(call("find_tools", query=query))
    assert result.found[0] == best
    assert not result.is_error
    tools.load(result.found)
    assert tools.loaded_definitions()[0].name == best


def test_what_is_said_of_a_tool_is_its_first_sentence() -> None:
    """Not more of it, however long it is."""
    tools = shelf(long__tool="word " * 10_000, lines__tool="word first line\nsecond line")
    told = tools.answer(call("find_tools", query="issue")).content
    assert "- github__create_issue: Open a new issue.\n" in told
    assert "title" not in told
    told = tools.answer(call("find_tools", query="word")).content
    assert "second" not in told
    assert len(told) < 500


def test_the_finder_names_the_families_with_a_count() -> None:
    """One line, which stays short with any number of servers; without deferred tools there is no finder."""
    finder = shelf().finder()
    assert finder is not None
    assert "github (3), calendar (2), bank, send_file, delete_file." in finder.description
    crowd = shelf(**many()).finder()
    assert crowd is not None
    assert "s1 (30)" in crowd.description
    assert len(crowd.description) < 700
    assert DeferredTools({}).finder() is None
    assert not DeferredTools({}).answers(call("find_tools", query="x"))


def test_words_that_fit_nothing_and_no_words() -> None:
    """The model learns what there is; nothing is loaded."""
    tools = shelf()
    for query in ("zebra", "!!", "the the"):
        result = tools.answer(call("find_tools", query=query))
        assert "github (3)" in result.content
        assert result.found == ()
    for arguments in ({}, {"query": ""}, {"query": 7}, {"query": ["issue"]}):
        result = tools.answer(call("find_tools", **arguments))
        assert result.is_error
        assert result.found == ()


def test_of_many_matches_few_are_loaded_and_some_are_named() -> None:
    """The answer is bounded, and says how many more there are."""
    tools = shelf(**many())
    result = tools.answer(call("find_tools", query="do thing"))
    assert len(result.found) == 4
    assert result.content.count("\n- ") == 12
    assert "2988 more fit less well" in result.content
    assert len(result.content) < 1000


def test_a_call_without_loading_is_told_the_schema() -> None:
    """Nothing is done, and the tool is loaded by it; once loaded it is not answered from here."""
    tools = shelf()
    wish = call("bank__transfer", "7", amount=5)
    assert tools.answers(wish)
    result = tools.answer(wish)
    assert result.is_error
    assert result.tool_call_id == "7"
    assert 'Parameters: {"type":"object","properties":{"name":{"type":"string"}}}' in result.content
    assert result.found == ("bank__transfer",)
    tools.load(result.found)
    assert not tools.answers(wish)
    assert not tools.answers(call("unknown"))


def test_the_newest_stay_and_the_order_stays() -> None:
    """What was found again keeps its place; beyond the bound the oldest is let go."""
    tools = shelf(**many())
    tools.load(["bank__transfer", "send_file"])
    tools.load(["send_file", "bank__transfer", "delete_file", "gone"])
    assert [each.name for each in tools.loaded_definitions()] == [
        "bank__transfer",
        "send_file",
        "delete_file",
    ]
    tools.load(list(many())[:KEPT])
    assert len(tools.found) == KEPT
    assert tools.answers(call("bank__transfer"))


SHOP = untrusted_origin("mcp", "shop")


def stall() -> DeferredTools:
    """A shelf with two tools of a server that anybody may speak through."""
    said = {"shop__send_file": "Send a file to the shop.", "shop__buy": "Buy something."}
    own = {name: ToolDefinition(name=name, description=text, parameters={}) for name, text in TOOLS.items()}
    theirs = {
        name: ToolDefinition(name=name, description=text, parameters={}, origins=(SHOP,))
        for name, text in said.items()
    }
    return DeferredTools({**theirs, **own})


def test_an_answer_has_the_origins_of_the_definitions_that_it_shows() -> None:
    assert stall().answer(call("find_tools", query="buy")).origins == (SHOP,)
    assert stall().answer(call("shop__buy")).origins == (SHOP,)
    assert stall().answer(call("calendar__add_event")).origins == ()
    nothing = stall().answer(call("find_tools", query="zebra"))
    assert nothing.origins == ()
    assert "buy" not in nothing.content


def test_beside_a_tool_of_ones_own_no_words_of_servers_are_shown() -> None:
    """Only the server's name, which the owner has given; who searches for that sees its words."""
    result = stall().answer(call("find_tools", query="send_file"))
    assert result.origins == ()
    assert "shop__" not in result.content
    assert "search for their names: shop." in result.content
    result = stall().answer(call("find_tools", query="shop send file"))
    assert result.found[0] == "shop__send_file"
    assert result.origins == (SHOP,)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("github__create_issue", "github__create_issue"),
        ("GitHub__Create_Issue", "github__create_issue"),
        ("github.create_issue", "github__create_issue"),
        ("github_create_issue", "github__create_issue"),
        ("mcp__github__create_issue", "github__create_issue"),
        ("functions.github__create_issue", "github__create_issue"),
        ("create_issue", "github__create_issue"),
        ("createIssue", "github__create_issue"),
        ("merge_pull_request", "github__mergePullRequest"),
        ("Send_File", "send_file"),
        ("default_api:send_file", "send_file"),
        # The controls: another server's, a part of a name, and what may be either of two.
        ("gitlab__create_issue", "gitlab__create_issue"),
        ("gitlab.send_file", "gitlab.send_file"),
        ("issue", "issue"),
        ("file", "file"),
        ("delete", "delete"),
        ("", ""),
        ("add", "add"),
    ],
)
def test_a_name_in_other_words_is_one_tool_or_none(said: str, meant: str) -> None:
    assert name_of_tool(said, [*TOOLS, "one__add", "two__add"]) == meant


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("明日の天気を調べて", "sky__forecast"),
        ("查一下明天的天气", "sky__weather"),
        ("ขอดูสภาพอากาศพรุ่งนี้", "sky__thai"),
        ("ﾃﾝｷ", "sky__kana"),
    ],
)
def test_languages_without_blanks_are_searched_by_pairs_of_letters(query: str, best: str) -> None:
    tools = shelf(
        sky__forecast="天気予報を表示します。",
        sky__weather="查询天气预报。",
        sky__thai="แสดงสภาพอากาศวันนี้",
        sky__kana="テンキを見る",
    )
    assert tools.answer(call("find_tools", query=query)).found[0] == best
