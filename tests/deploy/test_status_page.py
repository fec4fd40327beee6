"""
The status page in a real browser: what a person sees, in light and dark, and that the browser finds nothing to
complain about. ``SQUIDBOT_SCREENSHOT=1`` renews deploy/status-page.png, the picture in the README.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest

from gateway.operations.http.health import Health, serve
from gateway.operations.http.status_page import StatusPage
from tests.deploy.images import ROOT
from tests.unit.gateway.operations.test_status_page import day, report

pytestmark = [pytest.mark.deploy]

PICTURE = ROOT / "deploy" / "status-page.png"


@pytest.fixture
def browser() -> str:
    """The program."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed (make service-test installs it on Debian)")
    return found


async def _looked_at(browser: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Open the page in a browser with a profile of its own."""

    async def status():
        return report()

    history, clock = await day()
    page = StatusPage(status, history, clock)
    app = Health(list, status).app(host="127.0.0.1", more=page.routes())
    async with serve(app, host="127.0.0.1", port=0) as port:
        with anyio.fail_after(90):
            return await anyio.run_process(
                [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 "--disable-background-networking", "--no-first-run", "--enable-logging=stderr", "--v=0",
                 f"--user-data-dir={folder / 'profile'}", "--window-size=1100,1000", "--virtual-time-budget=2000",
                 *arguments, f"http://127.0.0.1:{port}/"],
                check=False, env={**os.environ, "HOME": str(folder)},
            )  # fmt: skip


async def test_a_browser_shows_it_and_has_no_complaint(browser: str, tmp_path: Path) -> None:
    """The browser has read all of it, and neither the policy nor the markup made it log anything."""
    done = await _looked_at(browser, tmp_path, "--dump-dom")
    shown = done.stdout.decode()
    assert "@bot:hs.test" in shown
    assert shown.count("<svg") == 4
    complaints = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    assert complaints == []


@pytest.mark.parametrize("dark", [False, True])
async def test_it_is_drawn_in_light_and_dark(browser: str, tmp_path: Path, dark: bool) -> None:
    """A picture with more than one colour in it, bright or dark as the person likes it."""
    picture = tmp_path / "page.png"
    await _looked_at(
        browser, tmp_path, f"--screenshot={picture}",
        *(["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]),
    )  # fmt: skip
    assert picture.stat().st_size > 20_000
    brightness = await _brightness(browser, tmp_path, picture)
    assert (brightness < 90) if dark else (brightness > 200)
    if os.environ.get("SQUIDBOT_SCREENSHOT") and not dark:
        shutil.copy(picture, PICTURE)


async def _brightness(browser: str, folder: Path, picture: Path) -> float:
    """The mean brightness of a picture from 0 to 255, as a browser's canvas sees it."""
    import base64

    data = base64.b64encode(picture.read_bytes()).decode()
    reader = folder / "reader.html"
    reader.write_text(
        "<p id=o></p><script>let i=new Image();i.onload=()=>{let c=document.createElement('canvas');"
        "c.width=c.height=32;let x=c.getContext('2d');x.drawImage(i,0,0,32,32);"
        "let d=x.getImageData(0,0,32,32).data,s=0;for(let k=0;k<d.length;k+=4)s+=d[k]+d[k+1]+d[k+2];"
        f"o.textContent='mean '+s/3072}};i.src='data:image/png;base64,{data}'</script>"
    )
    done = await anyio.run_process(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000",
         f"--user-data-dir={folder / 'profile2'}", "--dump-dom", reader.as_uri()],
        check=False, env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    found = re.search(rb"mean ([\d.]+)<", done.stdout)
    assert found, done.stdout[-300:]
    return float(found[1])


def test_the_picture_in_the_readme_is_of_a_reasonable_size() -> None:
    """It is there, and small."""
    assert 10_000 < PICTURE.stat().st_size < 200_000
