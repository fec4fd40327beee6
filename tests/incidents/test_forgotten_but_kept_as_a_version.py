"""
`squidbot forget` did not look at what the file tools keep: whoever was forgotten could be read in the earlier
versions of the files of the workspace, and stood by name in the notes of who had changed them.
"""

from __future__ import annotations

import pytest

from agent_core.provenance import Trust, person, trust_of, untrusted_origin
from agent_core.storage.layout import Layout
from agent_core.tools.files.change_journal import ChangeJournal
from agent_core.tools.files.journaled_files import ChangeAuthor, JournaledFiles
from agent_core.tools.files.roots import Roots
from gateway.operations.privacy.inventory import people
from gateway.operations.privacy.person_erasure import forget_person
from tests.home_world import ALICE, BOB, fill
from tests.integration.test_person_data import NOW, bob
from tests.persons import find_person

BOBS = (person("@bob:hs.test", NOW),)


class Files:
    """The workspace of a home, and who changes it."""

    def __init__(self, filled):
        self.root = filled.home.root
        self.ws = self.root / "workspace"
        self.again()

    def again(self):
        """As a new process."""
        roots = Roots(self.ws, home=self.root)
        self.journal = ChangeJournal(self.root / "state" / "files", now=lambda: NOW)
        self.journaled = JournaledFiles(roots, self.journal)

    def put(self, path, text, by, *, origins=(), kind="write"):
        place = self.journaled.roots.place(path, write=True)
        return self.journaled.replace(
            place,
            lambda _: text.encode(),
            kind=kind,
            by=ChangeAuthor(by[0], by[1], f"{len(self.journal.changes())}.{path}", origins),
        )

    def move(self, path, to, by):
        roots = self.journaled.roots
        return self.journaled.move(
            roots.place(path, write=True),
            roots.place(to, write=True),
            by=ChangeAuthor(by[0], by[1], path + to),
        )

    def holding(self, text):
        return sorted(
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file() and text.encode() in path.read_bytes()
        )


@pytest.fixture
async def home(tmp_path):
    return await fill(tmp_path / "home")


def turns_of(home):
    """Whose changes are whose: the turn and the conversation."""
    layout = Layout(home.home.root, home.home.root / "workspace")
    found = find_person(layout, home.home.database, bob())
    return (min(found.turns), str(BOB)), ("a-turn-of-hers", str(ALICE))


def forget(home, who=None, **how):
    root = home.home.root
    return forget_person(Layout(root, root / "workspace"), home.home.database, who or bob(), now=NOW, **how)


async def test_what_they_wrote_is_gone_with_its_versions(home):
    files, (his, hers) = Files(home), turns_of(home)
    files.put("his.txt", "canary-one", his)
    files.put("his.txt", "canary-two", his)
    files.put("hers.txt", "canary-hers", hers)
    files.put("hers.txt", "hers again", hers)
    seen = forget(home, only_look=True)
    assert (seen.counts["files"], seen.counts["file_versions"]) == (1, 1)
    assert files.holding("canary-two") == ["workspace/his.txt"]
    seen = forget(home)
    assert (seen.counts["files"], seen.counts["file_versions"]) == (1, 1)
    assert files.holding("canary-one") == files.holding("canary-two") == []
    assert len(files.holding("canary-hers")) == 1
    assert (files.ws / "hers.txt").read_text() == "hers again"
    assert "@bob:hs.test" not in (files.root / "state/files/changes.jsonl").read_text()
    assert sum(forget(home).counts.values()) == 0


async def test_a_file_that_others_have_changed_stays_without_his_versions(home):
    files, (his, hers) = Files(home), turns_of(home)
    files.put("both.txt", "hers first", hers)
    files.put("both.txt", "canary", his)
    files.put("both.txt", "hers at last", hers)
    forget(home)
    assert (files.ws / "both.txt").read_text() == "hers at last"
    assert files.holding("canary") == []
    files.again()
    _, his_now, last = reversed(files.journal.changes("both.txt"))
    assert (his_now.turn, his_now.session, his_now.key) == ("", "", "")
    assert files.journal.version(his_now.before) == b"hers first"
    with pytest.raises(LookupError, match="not kept"):
        files.journal.version(last.before)
    assert files.journal.origins_of("both.txt", last.after) == ()


async def test_a_file_of_hers_that_he_changed_last_is_not_deleted_and_keeps_its_mark(home):
    files, (his, hers) = Files(home), turns_of(home)
    files.put("both.txt", "hers", hers)
    files.put("both.txt", "his", his, origins=BOBS)
    forget(home)
    assert (files.ws / "both.txt").read_text() == "his"
    files.again()
    place = files.journaled.roots.place("both.txt")
    found = files.journaled.read_state(place)
    assert trust_of(files.journaled.origins_of(place, found.digest)) is Trust.KNOWN
    assert "@bob:hs.test" not in (files.root / "state/files/changes.jsonl").read_text()


async def test_a_file_that_he_moved_is_his_under_each_name(home):
    files, (his, hers) = Files(home), turns_of(home)
    files.put("draft.txt", "canary", his)
    files.move("draft.txt", "final.txt", his)
    files.put("hers.txt", "hers", hers)
    files.move("hers.txt", "taken.txt", his)
    forget(home)
    assert not (files.ws / "final.txt").exists()
    assert (files.ws / "taken.txt").read_text() == "hers"


async def test_what_somebody_put_there_by_hand_is_not_deleted(home):
    files, (his, _) = Files(home), turns_of(home)
    files.put("his.txt", "canary", his)
    (files.ws / "his.txt").write_text("by hand")
    forget(home)
    assert (files.ws / "his.txt").read_text() == "by hand"


async def test_versions_made_of_his_words_go_and_his_name_with_them(home):
    """In her turn, of what he had said: the file is hers, its earlier version was made of his words."""
    files, (_, hers) = Files(home), turns_of(home)
    files.put("notes.txt", "canary", hers, origins=BOBS)
    files.put("notes.txt", "her own", hers)
    other = (untrusted_origin("web", "https://a.example/", NOW),)
    files.put("page.txt", "a page", hers, origins=(*BOBS, *other))
    files.journal.labels.note({"work/made": "0" * 64}, BOBS)
    forget(home)
    assert files.holding("canary") == []
    assert [path for path in files.holding("@bob:hs.test") if path.startswith("state/files")] == []
    files.again()
    newest = files.journal.changes("page.txt")[0]
    assert {origin.kind for origin in newest.origins} == {"person", "web"}
    assert trust_of(files.journal.labels.origins_of("work/made", "0" * 64)) is Trust.KNOWN


async def test_a_number_is_not_given_again(home):
    files, (his, hers) = Files(home), turns_of(home)
    files.put("hers.txt", "hers", hers)
    last = files.put("his.txt", "his", his).id
    forget(home)
    files.again()
    assert files.put("next.txt", "next", hers).id == last + 1
    with pytest.raises(LookupError):
        files.journal.get(last)


async def test_the_owners_files_stay_when_the_owner_is_forgotten(home):
    """They are the owner's to delete; the earlier versions go."""
    files, (_, hers) = Files(home), turns_of(home)
    files.put("hers.txt", "canary", hers)
    files.put("hers.txt", "kept", hers)
    forget(home, people(["owner"], ["@alice:hs.test"]))
    assert (files.ws / "hers.txt").read_text() == "kept"
    assert files.holding("canary") == []


async def test_a_break_in_between_is_made_up_for(home, monkeypatch):
    """The notes go last, so the same command once more knows what was theirs."""
    from gateway.operations.privacy import personal_workspace_files

    files, (his, _) = Files(home), turns_of(home)
    files.put("his.txt", "canary-one", his)
    files.put("his.txt", "canary-two", his)

    def full(*_):
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(personal_workspace_files.files, "replace", full)
        with pytest.raises(OSError, match="space"):
            personal_workspace_files.forget_files(
                files.root, files.ws, find_person(Layout(files.root, files.ws), home.home.database, bob())
            )
    forget(home)
    assert files.holding("canary") == []
    files.again()
    assert files.journal.changes() == []


@pytest.mark.parametrize("swapped", [False, True])
async def test_no_link_leads_the_removal_out_of_the_workspace(home, tmp_path, swapped):
    """A folder that has become a link to one elsewhere, with the same words in it. The control has no link."""
    bobs, _ = turns_of(home)
    files = Files(home)
    files.put("notes/his.txt", "what bob said", bobs)
    outside = tmp_path / "outside"
    (files.ws / "notes").rename(outside)
    if swapped:
        (files.ws / "notes").symlink_to(outside)
    else:
        outside.rename(files.ws / "notes")
        outside = files.ws / "notes"
    forget(home)
    assert (outside / "his.txt").exists() is swapped
