"""Tools that need a person's yes: which do, who can be asked, and what a restarted turn remembers of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.errors import AwaitsApproval
from agent_core.messages import MessageContext, MessageNotes, Sender, SessionKey
from agent_core.models import ToolCall, ToolResult
from agent_core.provenance import Trust, person, untrusted_origin
from agent_core.tools.attachment_tools import ReadAttachmentTool, SendFileTool
from agent_core.tools.dav.dav_tools import CalendarTool, ContactsTool, TasksTool
from agent_core.tools.effects import Effect, Review
from agent_core.tools.files import file_tools
from agent_core.tools.files.change_tools import DeleteFileTool, EditFileTool, MoveFileTool, WriteFileTool
from agent_core.tools.files.read_tools import ListFilesTool, ReadFileTool, SearchFilesTool
from agent_core.tools.grants import GrantKind, Scope
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.policy import Approval, Permission, PolicyVerdict, Proposal
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.schedule_tool import ScheduleTool
from agent_core.tools.search_history import SearchHistoryTool
from agent_core.tools.shell.shell_tool import ShellTool
from agent_core.tools.web.web_fetch import WebFetchTool
from agent_core.tools.web.web_search import WebSearchTool
from gateway.routing.access import Access, Alias
from gateway.settings.cross_checks import TOOLS
from gateway.store.model import APPROVED, Question, QuestionDecision
from gateway.store.stores import Step, Turn
from gateway.turns.questions.decisions import Decision, Terms, clean_name, is_call, name_of
from gateway.turns.questions.questions import Questions
from gateway.turns.questions.tool_questions import ApprovalPending, ToolQuestions
from tests.clock import EPOCH, ManualClock
from tests.doubles.agent import FakeTool, Journey, call
from tests.inbound import inbound

DAV = (CalendarTool, ContactsTool, TasksTool)
CALL = ToolCall(id="c", name="effect", arguments={"number": 1})
PROPOSAL = Proposal(CALL, Effect.EXECUTE, guarded=True)


def turn_of(kind: str = "message") -> Turn:
    said = inbound(SessionKey("loopback", "dm-ann"), "ann", "do it", kind=kind)
    return Turn("1-x", said.session, 1, (SimpleNamespace(id=1, message=said),), 1, 0)  # type: ignore[arg-type]


class Quiet:
    """No question waits."""

    async def questions(self) -> list[Question]:
        return []


class NoGrants:
    """Nothing is allowed in advance."""

    async def find_grant(self, *_: Any) -> None:
        return None


class Now:
    """A disk that takes everything at once."""

    channels: Mapping[str, Any] = {}

    def __init__(self, store: Any) -> None:
        self.store = SimpleNamespace(approvals=store)

    def replies(self, *arguments: Any, **named: Any) -> list[Any]:
        return []

    async def retry_until_stored(self, write: Any) -> Any:
        return await write()


def asking(store: Any = None, clock: ManualClock | None = None) -> ToolQuestions:
    return ToolQuestions(
        commit=Now(store or Quiet()),  # type: ignore[arg-type] - nothing is said here
        reviews=SimpleNamespace(  # type: ignore[arg-type] - nor is the owner asked
            notifier=None,
            needs_review=lambda _: False,
            questions=SimpleNamespace(
                access=Access([Alias("test", "@ann:example.org")], {"test": ["*"], "loopback": ["*"]})
            ),
        ),
        clock=clock or ManualClock(),
        grants=NoGrants(),  # type: ignore[arg-type]
        keep=None,  # type: ignore[arg-type] - nor is anything long
        wait_s=60,
    )


def questions_of(store: Any, access: Access) -> Questions:
    queue: Any = SimpleNamespace(approvals=store)
    return Questions(store=queue, access=access, now=lambda: EPOCH)


async def test_a_tool_that_nobody_can_approve_is_not_run():
    """Without anybody to ask, a tool that needs a yes is refused, and the model is told; another one runs."""
    guarded, free = FakeTool("guarded"), FakeTool("free")
    guarded.needs_approval = True  # type: ignore[attr-defined] - as a tool may have it
    journey = Journey([call("guarded"), call("free")], "done", tools=[guarded, free])
    result = await journey.run()
    assert result.reply == "done"
    assert "a person's approval" in journey.results()[0]
    assert "Error" not in journey.results()[1]
    assert (len(guarded.runs), len(free.runs)) == (0, 1)


async def test_a_check_in_asks_nobody():
    """Where nobody waits for the answer, in check-ins and jobs, the call is refused at once."""
    for kind in ("tick", "job"):
        refused = (await asking().consent(turn_of(kind), []).permission(1, "digest", PROPOSAL)).refusal
        assert refused is not None
        assert "nobody can be asked" in refused.content


async def test_the_question_is_about_this_very_call():
    """A yes for another step, or for the same step with other arguments, is none."""
    yes = Step(1, "approval", "digest", {"until": EPOCH.isoformat(), "name": "a"}, {"verdict": "approved"})
    consent = asking().consent(turn_of(), [yes])
    assert await consent.permission(1, "digest", PROPOSAL) == Permission(
        approval=Approval("somebody", (person("somebody", EPOCH),))
    )
    for number, digest in ((1, "other"), (2, "digest")):
        with pytest.raises(AwaitsApproval):
            await consent.permission(number, digest, PROPOSAL)


async def test_what_had_begun_is_not_asked_about_again():
    """A tool that was cut off in the middle had its yes."""
    began = Step(1, "tool", "digest", {"call": CALL.model_dump()}, None)
    assert await asking().consent(turn_of(), [began]).permission(1, "digest", PROPOSAL) == Permission()


async def test_a_question_waits_until_its_time_is_over():
    """Before its end it is asked on; exactly then it is decided as too late, by one commit."""

    class Store:
        def __init__(self) -> None:
            self.settled: list[Step] = []

        async def settle(self, turn: Turn, step: Step, outbound: Any) -> Any:
            self.settled.append(step)
            return step.result

    clock, store = ManualClock(), Store()
    one = asking(store, clock)
    with pytest.raises(ApprovalPending) as first:
        await one.consent(turn_of(), []).permission(1, "digest", PROPOSAL)
    step = first.value.step
    clock.advance(59.9)
    with pytest.raises(ApprovalPending) as again:
        await one.consent(turn_of(), [step]).permission(1, "digest", PROPOSAL)
    assert again.value.step == step
    assert store.settled == []
    clock.advance(0.1)
    late = (await one.consent(turn_of(), [step]).permission(1, "digest", PROPOSAL)).refusal
    assert isinstance(late, ToolResult)
    assert "did not answer in time" in late.content
    assert [each.result for each in store.settled] == [{"verdict": "expired"}]


def test_names_of_calls():
    """A name is recognised however it is written, and a draft's or a message's is none."""
    name = name_of("0123456789abcdef")
    assert is_call(name)
    assert is_call(clean_name(f" `{name.upper()}`. "))
    for other in ("a12", "d12", "m7", "", "approve", "a12345g", "agents1"):
        assert not is_call(other)


def test_the_tools_of_the_settings_are_those_there_are():
    """What can be set in ``tools.require_approval`` are the names of the built-in tools."""
    tools = (
        *file_tools(lambda: None, None),
        *DAV,
        MemoryWriteTool,
        ReadAttachmentTool,
        ReadSkillTool,
        ScheduleTool,
        SearchHistoryTool,
        SendFileTool,
        ShellTool,
        WebFetchTool,
        WebSearchTool,
    )
    assert sorted(tool.name for tool in tools) == sorted(TOOLS)


YES = {"verdict": "approved", "by": "@ann:example.org", "owner": True}


async def test_what_is_approved_is_what_runs() -> None:
    """A yes is to the file as it was shown; if that has changed, it is asked about again, under another name."""
    states = ["hash 1"]

    async def review() -> Review:
        return Review("a diff", states[-1])

    proposal = replace(PROPOSAL, review=review)
    asked: dict[str, Any] = {"until": EPOCH.isoformat(), "name": "a", "state": "hash 1"}
    yes = Step(1, "approval", "digest", asked, YES)
    permission = await asking().consent(turn_of(), [yes]).permission(1, "digest", proposal)
    assert permission == Permission(approval=Approval("@ann:example.org", (), "hash 1"))
    names = [name_of("digest")]
    for state in ("hash 2", "hash 1"):
        states.append(state)
        with pytest.raises(ApprovalPending) as waiting:
            await asking().consent(turn_of(), [yes]).permission(1, "digest", proposal)
        request = waiting.value.step.request
        assert request["state"] == state
        names.append(request["name"])
        yes = replace(waiting.value.step, result=YES)
    assert len(set(names)) == 3


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(("effect", "asked"), [(Effect.EXECUTE, []), (Effect.PERSIST, ["ann"])])
async def test_a_guest_does_not_say_yes_to_what_reaches_further(
    effect: Effect, asked: list[str], guarded: bool
) -> None:
    """The owner alone does; that a tool always needs a yes does not make it the guest's."""
    page = (untrusted_origin("web", "https://example.org"),)
    proposal = Proposal(CALL, effect, page, guarded=guarded)
    with pytest.raises(ApprovalPending) as waiting:
        await asking().consent(turn_of(), []).permission(1, "digest", proposal)
    assert waiting.value.step.request["asked"] == asked


@pytest.mark.parametrize(
    ("asked", "people", "verdict", "is_asked"),
    [
        ((), ("ann",), None, False),
        ((), ("eve",), None, True),
        (("ann",), ("ann",), None, True),
        ((), ("ann",), {"verdict": "refused"}, True),
    ],
    ids=["hers", "somebody else's", "her own to answer", "answered"],
)
async def test_the_owner_has_one_question_of_each_guest(
    asked: tuple[str, ...], people: tuple[str, ...], verdict: Any, is_asked: bool
) -> None:
    """Nobody can bury the owner in questions: the next one is refused until the first is answered."""

    class Store:
        async def questions(self) -> list[Question]:
            session = SessionKey("loopback", "elsewhere")
            return [Question("a123456", session, asked, "effect", EPOCH, verdict, people)]

    consent = asking(Store()).consent(turn_of(), [])
    proposal = replace(PROPOSAL, origins=(untrusted_origin("web", "https://example.org"),))
    if is_asked:
        with pytest.raises(ApprovalPending):
            await consent.permission(1, "digest", proposal)
    else:
        refused = (await consent.permission(1, "digest", proposal)).refusal
        assert refused is not None
        assert "has not answered" in refused.content


async def test_a_policy_may_forbid_reading() -> None:
    """After a page; the control is the same before it."""
    one = asking()
    one.policy = {Effect.PRIVATE_READ: {Trust.UNTRUSTED: PolicyVerdict.DENY}}
    page = (untrusted_origin("web", "https://example.org"),)
    for origins, refused in (((), False), (page, True)):
        permission = await one.consent(turn_of(), []).permission(
            1, "digest", Proposal(CALL, Effect.PRIVATE_READ, origins)
        )
        assert (permission.refusal is not None) is refused


def test_every_built_in_tool_says_what_it_does() -> None:
    """One that says nothing counts as one that executes; that none of ours does by accident is seen here."""
    declared = {
        tool: hasattr(tool, "effect") or hasattr(tool, "effect_of")
        for tool in (
            *DAV,
            *(DeleteFileTool, EditFileTool, MoveFileTool, WriteFileTool),
            *(ListFilesTool, ReadFileTool, SearchFilesTool),
            *(MemoryWriteTool, ReadAttachmentTool, ReadSkillTool, ScheduleTool, SearchHistoryTool),
            *(SendFileTool, ShellTool, WebFetchTool, WebSearchTool),
        )
    }
    assert all(declared.values()), declared
    assert {tool.name for tool in declared} == set(TOOLS)


@pytest.mark.parametrize(
    ("place", "person", "may"),
    [("dm-bob", "bob", True), ("job-1", "bob", True), ("elsewhere", "bob", False), ("dm-bob", "eve", False),
     ("elsewhere", "owner", True)],
)  # fmt: skip
def test_a_guest_answers_where_the_question_was_asked(place: str, person: str, may: bool) -> None:
    """That of a background job stands in the conversation that wished for the job; the owner answers anywhere."""
    access = Access([Alias("test", "owner")], {"test": ["*"]})
    decisions = questions_of(Quiet(), access)
    asked = SessionKey("test", "dm-bob")
    question = Question(
        "a123456", SessionKey("test", "job-1"), ("bob",), "effect", EPOCH, None, ("bob",), (asked,)
    )
    said = turn_of().head.message.model_copy(
        update={
            "channel": "test",
            "session": SessionKey("test", place),
            "sender": Sender(address=person, verified=True),
        }
    )
    assert decisions.may_decide(question, said) is may


class DecidedMeanwhile:
    """Another answer is taken, and the turn ends, between a look at its question and the decision."""

    def __init__(self, question: Question) -> None:
        self.question = question

    async def questions(self) -> list[Question]:
        return [self.question]

    async def decide(self, *_: Any, **__: Any) -> None:
        return None

    async def find_decision(self, name: str) -> QuestionDecision:
        return QuestionDecision(self.question.session, APPROVED, self.question.tool)


@pytest.mark.parametrize("granted", [False, True])
async def test_an_answer_that_comes_as_the_turn_ends_hears_what_was_decided(granted: bool) -> None:
    access, place = Access([Alias("test", "owner")], {}), SessionKey("test", "dm-owner")
    offer = Scope(GrantKind.CALL, "effect", "")
    question = Question(
        "a123456", place, ("owner",), "effect", EPOCH, None, ("owner",), (place,), offer=offer
    )
    decisions = questions_of(DecidedMeanwhile(question), access)
    said = turn_of().head.message.model_copy(
        update={"channel": "test", "session": place, "sender": Sender(address="owner", verified=True)}
    )
    told = await decisions.decide(
        "a123456", Decision(terms=Terms(60)) if granted else Decision(yes=False), said
    )
    assert told.text == "`a123456` was approved before. This changes nothing."


LET_IN = MessageContext(notes=MessageNotes(admitted=True))


@pytest.mark.parametrize("context", [MessageContext(), MessageContext(proof=0), LET_IN])
def test_what_was_let_in_answers_no_question_not_even_its_own(context: MessageContext) -> None:
    """A question of the same doubtful sender needs no better proof; a person who let two in proved neither."""
    access, place = Access([Alias("test", "owner")], {}), SessionKey("test", "dm-owner")
    decisions = questions_of(Quiet(), access)
    question = Question("a123456", place, ("owner",), "effect", EPOCH, None, ("owner",), (place,), proof=0)
    said = turn_of().head.message.model_copy(
        update={
            "channel": "test",
            "session": place,
            "sender": Sender(address="owner", verified=True),
            "context": context,
        }
    )
    assert decisions.may_decide(question, said) is (context != LET_IN)
