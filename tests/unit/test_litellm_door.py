"""litellm stays outside until it is needed, and comes in quietly."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run_python(code: str, **environ: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=80,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(path for path in sys.path if path), **environ},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_module_imports_litellm():
    """Every module of the program is imported in a fresh process, and litellm is not there after it."""
    out = run_python(
        """
        import importlib, pkgutil, sys
        import agent_core, channels, gateway

        for package in (agent_core, channels, gateway):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if not module.name.endswith("__main__"):
                    importlib.import_module(module.name)
        from agent_core.llm.litellm_client import litellm_loaded

        heavy = {"litellm", "openai", "tiktoken", "tokenizers"} & set(sys.modules)
        print(sorted(heavy), litellm_loaded(), "agent_core.llm.litellm_client" in sys.modules)
        """
    )

    assert out.split("\n")[-2] == "[] False True"


@pytest.mark.timeout(90)
def test_loading_is_quiet_and_off_the_loop(tmp_path):
    """
    The loop goes on while litellm is imported; afterwards it is warm, writes to nobody's stderr, has read no
    ``.env`` file, has fetched nothing, and the collector looks at few objects.
    """
    (tmp_path / ".env").write_text("LEAKED_FROM_DOTENV=1\n")
    out = run_python(
        f"""
        import asyncio, gc, logging, os, socket, sys, time
        os.chdir({str(tmp_path)!r})
        from agent_core.llm.litellm_client import close_clients, ensure_loaded, litellm_loaded

        strangers = []
        def watch(event, args):
            if event == "socket.connect" and args[1][0] not in ("127.0.0.1", "::1"):
                strangers.append(args[1])
        sys.addaudithook(watch)

        async def main():
            ticks = 0
            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1
            ticker = asyncio.create_task(tick())
            await asyncio.gather(ensure_loaded(), ensure_loaded())
            ticker.cancel()
            assert litellm_loaded()
            assert ticks > 20, ticks
            await close_clients()
            await close_clients()
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task is not ticker]
            assert not left, left

        asyncio.run(main())
        import litellm
        assert not strangers, strangers
        assert "LEAKED_FROM_DOTENV" not in os.environ
        assert not [h for n in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy") for h in logging.getLogger(n).handlers]
        assert litellm.suppress_debug_info
        assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
        assert len(gc.get_objects()) < 50_000, len(gc.get_objects())
        assert gc.isenabled()
        print("fine")
        """
    )

    assert out.endswith("fine\n")


@pytest.mark.timeout(90)
def test_a_failed_warm_up_is_not_fatal():
    """If the warm-up finds no loopback, the model works all the same, only the first call is slow."""
    out = run_python(
        """
        import asyncio, contextlib
        from agent_core.llm import litellm_client as door

        async def main():
            await door.ensure_loaded()
            print("loaded", door.litellm_loaded())

        asyncio.run(main())
        """,
        HTTP_PROXY="http://127.0.0.1:9",
        ALL_PROXY="http://127.0.0.1:9",
    )

    assert "litellm.warm_up_failed" in out
    assert out.endswith("loaded True\n")
