"""A disk that says no: an error that can be waited for, and nothing lost."""

from __future__ import annotations

from pathlib import Path

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.storage_child import in_child

KEY = SessionKey("matrix", "!room:hs.test")
SESSION = str(KEY)


def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """Whatever cannot be written raises StorageUnavailable, leaves what was there, and works again later."""
    printed = in_child(
        """
        async def refused(what):
            try:
                await what
            except StorageUnavailable as error:
                print("refused", error.fields["errno"], error.temporary)

        async def main():
            big = "y" * 5000
            await memory.append_message("matrix/r", Message(role="user", content="first", id="1"))
            await memory.save_consolidation("matrix/r", summary="was", cursor=1)
            await memory.save_global_memory(owner, "fact")
            limit(2000)
            await refused(memory.append_message("matrix/r", Message(role="user", content=big, id="2")))
            await refused(memory.save_consolidation("matrix/r", summary=big, cursor=0))
            await refused(memory.save_global_memory(owner, big, base_version=1))
            limit(resource.RLIM_INFINITY)
            tail = await memory.load_segment("matrix/r", start=0, max_messages=9)
            print([m.content for m in tail.messages], await memory.load_session_summary("matrix/r"))
            print(await memory.load_consolidated_cursor("matrix/r"), await memory.load_global_memory(owner))
            await memory.append_message("matrix/r", Message(role="user", content=big, id="2"))
            await memory.save_global_memory(owner, big, base_version=1)
            tail = await memory.load_segment("matrix/r", start=0, max_messages=9)
            print([len(m.content) for m in tail.messages], tail.skipped_lines)
            print(len((await memory.load_global_memory(owner)).text))

        anyio.run(main)
        """,
        tmp_path,
    )
    wanted = [
        "refused EFBIG True",
        "refused EFBIG True",
        "refused EFBIG True",
        "['first'] was",
        "1 MemoryDocument(text='fact', version=1, origins=())",
        "[5, 5000] 1",
        "5000",
    ]
    assert [row for row in printed.splitlines() if "[warning" not in row] == wanted


def test_a_home_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    """Without the right to write, reading works, a new edit by hand is shown, and writing is refused."""
    printed = in_child(
        """
        async def main():
            global memory
            await memory.append_message("matrix/r", Message(role="user", content="first"))
            await memory.save_global_memory(owner, "fact")
            (home / "workspace" / "MEMORY.md").write_text("edited")
            os.chdir(home)
            for path in [Path("."), *Path(".").rglob("*")]:
                if os.geteuid() == 0:
                    os.chown(path, 65534, 65534)
                path.chmod(0o500 if path.is_dir() else 0o400)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            memory = JsonlMemory(Path("."), clock=ManualClock())
            print([m.content for m in (await memory.load_history("matrix/r")).messages])
            print(await memory.load_global_memory(owner))
            for what in (
                memory.append_message("matrix/r", Message(role="user", content="x")),
                memory.append_message("matrix/new", Message(role="user", content="x")),
                memory.save_session_summary("matrix/r", "x"),
                memory.save_global_memory(owner, "x"),
            ):
                try:
                    await what
                except StorageUnavailable as error:
                    print("refused", error.fields["errno"])

        anyio.run(main)
        """,
        tmp_path,
    )

    wanted = ["['first']", "MemoryDocument(text='edited', version=2, origins=())", *["refused EACCES"] * 4]
    assert [row for row in printed.splitlines() if "[warning" not in row] == wanted


async def test_something_in_the_way_is_moved_away(tmp_path: Path) -> None:
    """A folder or a link in the place of a history is not followed and not written to; it is told where it is."""
    told: list[str] = []
    memory = JsonlMemory(tmp_path, clock=ManualClock(), on_set_aside=told.append)
    history = memory.layout.history(KEY)
    history.mkdir(parents=True)
    await memory.append_message(SESSION, Message(role="user", content="x"))
    assert history.is_file()
    history.unlink()
    history.symlink_to("/dev/null")
    assert (await memory.load_history(SESSION)).messages == ()
    await memory.append_message(SESSION, Message(role="user", content="y"))
    assert history.is_file() and not history.is_symlink()
    assert [what.rpartition(".")[2] for what in told] == ["set-aside-1", "set-aside-2"]
