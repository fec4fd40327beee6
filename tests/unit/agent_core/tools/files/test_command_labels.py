"""
Whose words the output of commands carries: never fewer than were there to be read, and none where none were.

Commands run unconfined here, as plain processes of ``sh``: what is tested is the looking, not the sandbox.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time

import pytest

from agent_core.provenance import Trust, trust_of, untrusted_origin
from agent_core.tools.files import workspace_contents
from agent_core.tools.files.command_origins import CommandFiles
from agent_core.tools.files.journaled_files import ChangeAuthor
from tests.file_tools_world import FileDesk

EVIL = "EVILWORDS"
PAGE = (untrusted_origin("web", "https://evil.example/"),)


class Desk(FileDesk):
    """A desk at which commands run as well."""

    def __init__(self, home, **how):
        super().__init__(home, durable=False, **how)
        (self.ws / "work").mkdir(exist_ok=True)

    def restart(self, **history):
        super().restart(**history)
        self.files = CommandFiles(self.ws, self.journaled.journal, now=self.now)

    def run(self, command, *, words=()):
        """A command and whose words its output is made of."""
        self.files.begin(words)
        said = self.sh(command)
        return said, self.files.end()

    def sh(self, command):
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.ws / "work", capture_output=True, text=True, errors="replace"
        )
        return done.stdout + done.stderr

    def put(self, path, text, *, origins=()):
        place = self.journaled.roots.place(path, write=True)
        self.journaled.replace(place, lambda _: text.encode(), kind="write", by=ChangeAuthor(origins=origins))

    def trust(self, path):
        """What the owner says of it."""
        found = self.journaled.read_whole(self.journaled.roots.place(path))
        self.journaled.journal.labels.trust(path, found.digest)

    def shown(self, path):
        """What read_file gives, and whose words."""
        place = self.journaled.roots.place(path)
        found = self.journaled.read_state(place)
        return found.content, self.journaled.origins_of(place, found.digest, found.status.st_mtime)


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "home")


def is_own(origins):
    return trust_of(origins) is Trust.OWNER


def is_anybodys(origins):
    return trust_of(origins) is Trust.UNTRUSTED


# ── where nobody else's words are ──


def test_the_second_command_of_a_conversation_is_the_owners_as_well(desk):
    """What used to ask: the output of a command in a workspace of the owner's own files."""
    desk.put("notes/list.txt", "milk\n")
    assert is_own(desk.run("cat ../notes/list.txt > copy; mkdir -p a/b; ln -s ../copy a/b/link; ls -R")[1])
    said, origins = desk.run("cat copy a/b/link")
    assert said.startswith("milk")
    assert is_own(origins)


@pytest.mark.parametrize("restarted", [False, True])
def test_only_the_folders_made_for_a_file_are_its_writers_idea(desk, restarted):
    """The control is the same with a folder that nobody here has made: its name stays anybody's."""
    desk.put("mine/deep/list.txt", "milk\n")
    (desk.ws / "EVILWORDS/sub").mkdir(parents=True)
    desk.put("EVILWORDS/sub/new/list.txt", "milk\n")
    if restarted:
        desk.restart()

    def label(path):
        return desk.journaled.journal.label_of(path, "folder")

    assert label("mine") == label("mine/deep") == label("EVILWORDS/sub/new") == ()
    assert label("EVILWORDS") is label("EVILWORDS/sub") is None
    assert is_anybodys(desk.run("ls -R ..")[1])


def test_a_file_that_a_command_has_made_is_read_as_the_owners(desk):
    desk.run("echo 42 > result")
    content, origins = desk.shown("work/result")
    assert content == b"42\n"
    assert is_own(origins)


async def test_it_is_found_and_listed_as_the_owners(desk):
    desk.run("echo answer 42 > result")
    assert is_own((await desk.ok("search_files", pattern="answer")).origins)
    assert is_own((await desk.ok("list_files", path="work")).origins)


async def test_the_folders_of_this_program_are_nobody_elses_words(desk):
    """Whoever has caused them; what is in them keeps its words, and a folder of another name is a name like any."""
    desk.put("mcp/result.txt", "found", origins=PAGE)
    assert is_own((await desk.ok("list_files")).origins)
    assert is_anybodys((await desk.ok("list_files", path="mcp")).origins)
    (desk.ws / "elsewhere").mkdir()
    assert is_anybodys((await desk.ok("list_files")).origins)


def test_what_commands_have_made_is_listed(desk):
    """Files that are still there, the newest first, also after a restart; no folders, and nothing of the file tools."""
    desk.put("note", "mine")
    desk.run("echo 1 > one; echo 2 > two; mkdir made; echo 3 > made/three")
    desk.run("echo 4 >> one; rm two")
    desk.journaled.journal.labels.trust("note", desk.journaled.journal.changes()[0].after)
    for _ in range(2):
        assert desk.journaled.made_by_commands(9) == ["work/one", "work/made/three"]
        assert desk.journaled.made_by_commands(1) == ["work/one"]
        desk.restart()


@pytest.mark.parametrize("trusted", ["Photos", "link", ""])
async def test_the_names_of_a_folder_and_a_link_can_be_trusted(desk, trusted):
    """Both were put there by hand: without a word about them each command would be asked about for ever."""
    (desk.ws / "Photos").mkdir()
    (desk.ws / "link").symlink_to("Photos")
    for name in {"Photos", "link"} - {trusted} if trusted else ():
        desk.trust(name)
    assert is_anybodys(desk.run("ls ..")[1])
    if trusted:
        desk.trust(trusted)
    assert is_own(desk.run("ls ..")[1]) is bool(trusted)
    assert is_own((await desk.ok("list_files")).origins) is bool(trusted)
    (desk.ws / "Photos" / "a.txt").write_text(EVIL)
    assert is_anybodys(desk.run("cat ../Photos/a.txt")[1])


def test_a_trusted_link_that_leads_elsewhere_now_is_anybodys(desk):
    """Its target is a text as well."""
    (desk.ws / "link").symlink_to("work")
    desk.trust("link")
    assert is_own(desk.run("readlink ../link")[1])
    (desk.ws / "link").unlink()
    (desk.ws / "link").symlink_to(EVIL)
    assert is_anybodys(desk.run("readlink ../link")[1])


async def test_the_name_of_a_trusted_file_is_the_owners_in_a_list(desk):
    """And stays so when the file changes: the name is the same."""
    (desk.ws / "note").write_text("mine")
    assert is_anybodys((await desk.ok("list_files")).origins)
    desk.trust("note")
    assert is_own((await desk.ok("list_files")).origins)
    assert is_own((await desk.ok("search_files", glob="note")).origins)
    (desk.ws / "note").write_text("yours")
    assert is_own((await desk.ok("list_files")).origins)
    assert is_anybodys(desk.run("cat ../note")[1])


def test_it_outlives_a_restart(desk):
    desk.run("mkdir made; echo 42 > made/result")
    desk.restart()
    assert is_own(desk.run("cat made/result")[1])
    assert is_own(desk.shown("work/made/result")[1])


def test_what_the_prompt_is_built_of_cannot_be_read_and_does_not_count(desk):
    (desk.ws / "skills" / "a").mkdir(parents=True)
    (desk.ws / "skills" / "a" / "SKILL.md").write_text("put there by hand")
    (desk.ws / "MEMORY.md").write_text("x")
    assert is_own(desk.run("true")[1])


def test_words_of_an_allowed_person_stay_theirs(desk):
    from agent_core.provenance import person

    desk.put("shared.txt", "hello", origins=(person("@bob:hs.test"),))
    assert trust_of(desk.run("cat ../shared.txt")[1]) is Trust.KNOWN


# ── where somebody else's are ──


def test_a_file_that_nobody_here_has_written_counts(desk):
    (desk.ws / "letter.txt").write_text(EVIL)
    said, origins = desk.run("cat ../letter.txt > copy; cat copy")
    assert EVIL in said
    assert is_anybodys(origins)
    assert {origin.where for origin in origins} == {"letter.txt"}
    (desk.ws / "letter.txt").unlink()
    assert is_anybodys(desk.run("cat copy")[1])
    assert is_anybodys(desk.shown("work/copy")[1])


def test_a_command_that_a_stranger_wrote_taints_what_it_makes(desk):
    """Nothing is to be read; the words are in the command itself."""
    assert is_anybodys(desk.run(f"echo {EVIL} > x", words=PAGE)[1])
    said, origins = desk.run("cat x")
    assert EVIL in said
    assert is_anybodys(origins)


def test_what_the_owner_approved_is_the_owners(desk):
    """A yes to this very command: its words are the owner's; what it reads is not made so by that."""
    desk.run("echo fine > x", words=())
    assert is_own(desk.run("cat x")[1])
    desk.put("page.txt", EVIL, origins=PAGE)
    assert is_anybodys(desk.run("cat ../page.txt", words=())[1])


WAYS = {
    "copy": ("cp ../page.txt c", "cat c"),
    "rename": ("mv ../page.txt c", "cat c"),
    "hard link": ("ln ../page.txt c", "cat c"),
    "link": ("ln -s ../page.txt c; cp -L c d; rm c ../page.txt", "cat d"),
    "append": ("cat ../page.txt >> own.txt", "cat own.txt"),
    "archive": ("tar cf a.tar -C .. page.txt", "tar xf a.tar; cat page.txt"),
    "compressed": ("gzip -c ../page.txt > z.gz", "zcat z.gz"),
    "in a name": ("mkdir $(cat ../page.txt)", "ls"),
    "in the target of a link": ("ln -s $(cat ../page.txt) c", "readlink c"),
    "in place": ("cat ../page.txt > own.txt; touch -d yesterday own.txt", "cat own.txt"),
    "back in time": ("cp ../page.txt c; touch -d 2001-01-01 c", "cat c"),
    "emptied and filled": ("mv own.txt o; : > own.txt; cat ../page.txt > own.txt; rm o", "cat own.txt"),
}


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize("way", sorted(WAYS))
def test_no_way_washes_words(desk, way, restarted):
    """They are moved from one file into another and the first one is removed; they stay what they are."""
    desk.put("work/own.txt", "mine\n")
    desk.put("page.txt", EVIL, origins=PAGE)
    first, second = WAYS[way]
    desk.run(first)
    (desk.ws / "page.txt").unlink(missing_ok=True)
    if restarted:
        desk.restart()
    said, origins = desk.run(second)
    assert EVIL in said
    assert is_anybodys(origins)


def test_a_file_that_is_written_again_in_the_same_instant_is_read_again(desk):
    """The same size and, on a coarse clock, the same times: what is young is not believed."""
    path = desk.ws / "work" / "x"
    for _ in range(20):
        desk.run("printf aaaa > x")
        path.write_bytes(b"bbbb")
        assert is_anybodys(desk.run("cat x")[1])


def test_what_another_conversation_writes_meanwhile_counts(desk):
    """The file is there for a moment only, between the two looks."""
    desk.files.begin(())
    desk.put("page.txt", EVIL, origins=PAGE)
    desk.sh("cat ../page.txt > copy")
    (desk.ws / "page.txt").unlink()
    assert is_anybodys(desk.files.end())
    assert is_anybodys(desk.run("cat copy")[1])


def test_a_write_that_is_given_up_counts_as_well(desk):
    desk.files.begin(())
    intended = ChangeAuthor().change("write", "x", before=None, after="y", origins=PAGE)
    change, handles = desk.journaled.journal.begin(intended, None)
    for handle in handles:
        os.close(handle)
    desk.journaled.journal.void(change)
    assert is_anybodys(desk.files.end())


def test_commands_that_run_at_the_same_time_have_read_each_other(desk):
    desk.files.begin(())
    desk.files.begin(PAGE)
    desk.sh(f"echo {EVIL} > shared; cat shared > copy; rm shared")
    assert is_anybodys(desk.files.end())
    assert is_anybodys(desk.files.end())
    assert is_anybodys(desk.run("cat copy")[1])


def test_words_go_on_through_a_command_in_between(desk):
    """One that has ended before the last began hands them on by the one that ran beside both."""
    desk.files.begin(PAGE)
    desk.files.begin(())
    desk.files.end()
    desk.files.begin(())
    assert is_anybodys(desk.files.end())
    assert is_anybodys(desk.files.end())
    assert is_own(desk.run("true")[1])


def test_a_command_that_a_kill_cut_off_leaves_files_that_nobody_knows(desk):
    desk.files.begin(())
    desk.sh("echo something > x")
    desk.restart()
    assert is_anybodys(desk.run("cat x")[1])


@pytest.mark.parametrize("when", ["begin", "end"])
def test_a_look_that_fails_leaves_no_command_behind(desk, monkeypatch, when):
    """Otherwise what comes in later would seem to be made by one that runs for ever."""
    if when == "end":
        desk.files.begin(())

    def defect(_):
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(desk.files, "_label_of", defect)
        with pytest.raises(RuntimeError):
            desk.files.end() if when == "end" else desk.files.begin(())
    (desk.ws / "work" / "letter").write_text(EVIL)
    assert is_anybodys(desk.run("cat letter")[1])
    assert desk.journaled.journal._watching == []


def test_a_file_of_another_user_is_not_the_commands(desk):
    if os.getuid():
        pytest.skip("only root can give files away")
    desk.files.begin(())
    (desk.ws / "work" / "theirs").write_text(EVIL)
    os.chown(desk.ws / "work" / "theirs", 65534, 65534)
    assert is_anybodys(desk.files.end())
    assert is_anybodys(desk.run("cat theirs")[1])


def test_further_folders_count(desk):
    """Nobody knows whose words are in a folder that the settings name."""
    desk.files = CommandFiles(desk.ws, desk.journaled.journal, outside=["/srv/music"], now=desk.now)
    assert [origin.where for origin in desk.run("true")[1]] == ["/srv/music"]


def test_more_than_can_be_looked_at_is_anybodys(desk, monkeypatch):
    desk.run("for n in 1 2 3 4 5 6; do echo $n > $n; done")
    assert is_own(desk.run("true")[1])
    monkeypatch.setattr(workspace_contents, "_MAX_ENTRIES", 5)
    assert is_anybodys(desk.run("echo new > new")[1])
    monkeypatch.setattr(workspace_contents, "_MAX_ENTRIES", 100)
    assert is_anybodys(desk.run("cat new")[1])


def test_a_pipe_is_anybodys(desk):
    """Whoever writes into it."""
    assert is_own(desk.run("mkfifo pipe")[1])
    assert is_anybodys(desk.run("true")[1])


def test_labels_that_cannot_be_kept_make_strange_files(desk, monkeypatch):
    def full(*_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(desk.journaled.journal.labels, "note", full)
    desk.run("echo x > x")
    assert is_anybodys(desk.run("cat x")[1])


def test_a_damaged_line_of_the_labels_is_a_strange_file(desk):
    desk.run("echo x > x; echo y > y")
    path = desk.home / "state" / "files" / "labels.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line.replace(b'"work/x"', b'"wo') for line in lines))
    desk.restart()
    assert [origin.where for origin in desk.run("true")[1]] == ["work/x"]


def test_an_unchanged_file_is_read_once(desk, monkeypatch):
    """The cost of a command is that of looking at names, not of reading the workspace."""
    for number in range(20):
        desk.put(f"notes/{number}", "x" * 1000)
    time.sleep(0.06)
    desk.run("true")
    read = []
    real = workspace_contents.digest_of_file
    monkeypatch.setattr(
        workspace_contents, "digest_of_file", lambda *given: read.append(given[0]) or real(*given)
    )
    desk.run("true")
    assert read == []
    desk.put("notes/7", "new")
    desk.run("true")
    assert {path.rpartition("/")[2] for path in read} == {"7"}


def test_old_labels_are_thrown_away_now_and_then(desk, monkeypatch):
    from agent_core.tools.files import change_journal

    monkeypatch.setattr(change_journal, "_FEW", 5)
    for number in range(20):
        desk.run(f"rm -f *; echo {number} > {number}; echo kept > kept")
    lines = [line for line in (desk.home / "state/files/labels.jsonl").read_bytes().splitlines() if line]
    assert len(lines) < 20
    desk.restart()
    assert is_own(desk.run("cat kept")[1])


# ── any order of anything ──

NAMES = ("a", "b", "c", "d/e", "d/f")
COMMANDS = (
    "cp {0} {1}",
    "mv {0} {1}",
    "ln -f {0} {1}",
    "ln -sf {0} {1}",
    "cat {0} >> {1}",
    "tar cf t.tar {0} {1}",
    "tar xf t.tar",
    "gzip -c {0} > {1}.gz",
    "zcat {1}.gz > {0}",
    "rm -f {0}",
    "mkdir -p d; cp -r d g",
    "base64 {0} > {1}",
    "base64 -d {0} > {1}",
    "mkdir -p $(head -c 40 {0} | tr -dc A-Z)",
    "echo mine > {0}",
    "touch -r {0} {1}",
)


def some_story(desk, seed, steps=30):
    """Anything in any order; gives what came of it that should not: words of others that seem the owner's."""
    chance = random.Random(seed)
    leaks, own = [], 0
    running = 0
    for number in range(steps):
        one, other = (f"work/{name}" for name in chance.sample(NAMES, 2))
        match chance.choice(["hand", "tool", "page", *["command"] * 6, "overlap", "end", "move", "restart"]):
            # While a command runs, what another program writes cannot be told from what the command does.
            case "hand" if not running and chance.random() < 0.3:
                (desk.ws / one).parent.mkdir(exist_ok=True)
                (desk.ws / one).unlink(missing_ok=True)
                (desk.ws / one).write_text(f"{EVIL} {number}")
            case "tool" | "page" as who:
                with_evil = who == "page" and chance.random() < 0.3
                try:
                    desk.put(one, EVIL if with_evil else f"mine {number}", origins=PAGE if with_evil else ())
                except Exception:  # a link, or a file with several names
                    continue
            case "move":
                try:
                    desk.journaled.move(
                        desk.journaled.roots.place(one), desk.journaled.roots.place(other), by=ChangeAuthor()
                    )
                except Exception:
                    continue
            case "overlap":
                words = PAGE if chance.random() < 0.2 else ()
                desk.files.begin(words)
                running += 1
                if words:
                    desk.sh(f"echo {EVIL} > {chance.choice(NAMES)}")
            case "end" if running:
                desk.files.end()
                running -= 1
            case "restart" if not running:
                desk.restart()
            case _:
                first = chance.choice(COMMANDS).format(*(name.removeprefix("work/") for name in (one, other)))
                said, origins = desk.run(f"{first}; find . -ls; cat {' '.join(NAMES)}; zcat *.gz; cat *")
                own += is_own(origins)
                if EVIL in said and is_own(origins):
                    leaks.append((number, first))
        for name in NAMES:
            try:
                content, origins = desk.shown(f"work/{name}")
            except Exception:
                continue
            if EVIL.encode() in content and is_own(origins):
                leaks.append((number, name))
    for _ in range(running):
        desk.files.end()
    return leaks, own


SEEDS = range(8)


def test_no_story_washes_words(tmp_path):
    """The promise; and stories in which nothing strange was there have output of the owner's."""
    own = 0
    for seed in SEEDS:
        leaks, calm = some_story(Desk(tmp_path / str(seed)), seed)
        assert leaks == [], seed
        own += calm
    assert own > 5


def test_a_label_of_the_command_alone_would_be_seen_through(tmp_path, monkeypatch):
    """The negative control: the same stories, in which output is only what the command's own words are."""
    whole = CommandFiles._label_of
    monkeypatch.setattr(CommandFiles, "_label_of", lambda self, found: ((), whole(self, found)[1]))
    monkeypatch.setattr(CommandFiles, "_label_of_unknown", lambda *_: ())
    leaks = [some_story(Desk(tmp_path / str(seed)), seed)[0] for seed in SEEDS]
    assert sum(map(bool, leaks)) > 2


def test_commands_that_do_not_know_of_each_other_would_be_seen_through(desk):
    """The negative control of those that run at the same time: two groups."""
    others = CommandFiles(desk.ws, desk.journaled.journal, now=desk.now)
    desk.files.begin(())
    others.begin(PAGE)
    desk.sh(f"echo {EVIL} > shared; cat shared > copy; rm shared")
    others.end()
    (desk.ws / "work" / "copy").rename(desk.ws / "work" / "copy2")
    assert is_own(desk.files.end())


def test_many_at_once_end_in_order(desk):
    """Threads: nothing is lost, and nobody waits for somebody else's command."""
    done = []

    def one(number):
        done.append(desk.run(f"echo {number} > file{number}; cat file{number}")[1])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(is_own, done))
    assert len(done) == 8
    assert is_own(desk.run("cat file*")[1])


def test_one_that_comes_while_another_ends_knows_what_that_one_has_made(desk, monkeypatch):
    """Between the end of a command and the note of what it has made nothing begins."""
    whole = desk.journaled.journal.labels.note
    thread = threading.Thread(target=desk.files.begin, args=[()])

    def note(made, origins):
        thread.start()
        thread.join(0.3)
        whole(made, origins)

    with monkeypatch.context() as patched:
        patched.setattr(desk.journaled.journal.labels, "note", note)
        desk.run("echo mine > made")
        thread.join()
    assert is_own(desk.files.end())


def test_a_file_that_comes_back_while_a_command_runs_keeps_its_words(desk):
    """Another program moves it away and back; what the command may have read of it is known."""
    desk.put("page.txt", EVIL, origins=PAGE)
    (desk.ws / "page.txt").rename(desk.home / "page.txt")
    desk.files.begin(())
    (desk.home / "page.txt").rename(desk.ws / "page.txt")
    desk.sh("cat ../page.txt > copy")
    assert is_anybodys(desk.files.end())
    assert is_anybodys(desk.shown("work/copy")[1])


def test_the_owners_trust_outlives_old_labels(desk, monkeypatch):
    from agent_core.tools.files import change_journal

    monkeypatch.setattr(change_journal, "_FEW", -1000)
    labels = desk.journaled.journal.labels
    labels.trust("/srv/notes/list", "a")
    labels.note({"work/gone": "b"}, ())
    desk.run("echo mine > made")
    desk.restart()
    labels = desk.journaled.journal.labels
    assert labels.is_trusted("/srv/notes/list", "a")
    assert labels.origins_of("work/gone", "b") is None
    assert is_own(desk.shown("work/made")[1])


def test_what_a_command_hears_from_elsewhere_is_in_its_output_and_its_files(desk):
    """Also in what another one makes of them before the first has ended."""
    desk.files.begin(())
    desk.sh("echo mine > before")
    assert trust_of(desk.files.end()) == Trust.OWNER
    desk.files.begin(())
    desk.files.begin(())
    desk.files.note_other_writer(PAGE)
    desk.sh(f"echo {EVIL} > heard; cp heard copied")
    assert trust_of(desk.files.end()) == Trust.UNTRUSTED
    assert trust_of(desk.files.end()) == Trust.UNTRUSTED
    for name in ("heard", "copied"):
        assert trust_of(desk.shown(f"work/{name}")[1]) == Trust.UNTRUSTED
    assert trust_of(desk.shown("work/before")[1]) == Trust.OWNER
