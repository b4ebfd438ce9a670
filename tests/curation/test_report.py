"""The page and the table: complete, escaped, self-contained, and readable in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from curation.corpus import open_corpus
from curation.profiles import Profile, profile
from curation.report import page, write
from curation.table import plain, profile_text

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def hostile_profile(tmp_path: Path) -> Profile:
    """A profile in which every name that comes from data is an attack."""
    folder = tmp_path / "<b>in"
    folder.mkdir()
    rows = [
        {
            "id": f"{number}",
            "source": f"{HOSTILE}{number % 30}",
            "domain": f"{HOSTILE} domain {number % 9}",
            "messages": [{"role": "user", "content": f"Question {number}?"}],
            "completion": "word " * (1 << (number % 11)),
            "finish_reason": HOSTILE if number % 2 else "length",
            "license": HOSTILE,
        }
        for number in range(90)
    ]
    lines = [orjson.dumps(row) for row in rows] + [b"{<i>broken", b'{"text": "x"}']
    (folder / "completions_000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return profile(open_corpus(folder), {HOSTILE: 0.5, "code": 0.5})


class Tags(HTMLParser):
    """Collects the tags of a page and checks that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "rect"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "rect"):
            assert self.opened.pop() == tag


def test_everything_that_comes_from_data_is_escaped(hostile_profile: Profile) -> None:
    text = page(hostile_profile)
    assert "<script" not in text
    assert "<i>broken" not in text
    assert "&lt;script&gt;" in text


def test_the_page_is_well_formed_and_fetches_nothing(hostile_profile: Profile) -> None:
    tags = Tags(page(hostile_profile))
    assert tags.opened == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in tags.seen}
    assert not any(name in ("src", "href", "onload", "onclick") for _, attributes in tags.seen for name in attributes)
    assert not re.search(r"https?://", page(hostile_profile))


def test_the_terminal_never_receives_control_characters(hostile_profile: Profile) -> None:
    text = profile_text(hostile_profile)
    assert "\x1b" not in text
    assert plain("a\x1b[2Jb\nc" + "d" * 60) == "a?[2Jb?c" + "d" * 29 + "..."


def test_both_files_are_written_and_say_the_same(hostile_profile: Profile, tmp_path: Path) -> None:
    as_json, as_html = write(hostile_profile, tmp_path / "out")
    assert orjson.loads(as_json.read_bytes())["num_rows"] == 90
    assert "90" in as_html.read_text()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("width", "scheme"), [(1000, "light"), (360, "light"), (1000, "dark")])
def test_the_page_renders_in_a_real_browser(hostile_profile: Profile, tmp_path: Path, width: int, scheme: str) -> None:
    _, as_html = write(hostile_profile, tmp_path / "out")
    measured = (
        "<script>addEventListener('load',()=>{const w=document.documentElement;const bars=[...document.querySelectorAll('svg.bar rect')];"
        "document.title=[w.scrollWidth<=w.clientWidth, bars.filter(b=>b.getBoundingClientRect().width>1).length>5,"
        "document.querySelectorAll('svg.histogram').length, getComputedStyle(document.body).backgroundColor].join('|')})</script>"
    )
    # The policy forbids scripts, so the copy that measures itself leaves it out; headless windows are 500 wide at least, hence the frame.
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', measured, as_html.read_text())
    (tmp_path / "copy.html").write_text(copy)
    frame = (
        f'<body style="margin:0"><iframe src="copy.html" style="border:0;width:{width}px;height:2000px"></iframe>'
        "<script>onload=()=>setTimeout(()=>document.title=frames[0].document.title,200)</script></body>"
    )
    (tmp_path / "frame.html").write_text(frame)
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'browser'}",
        "--virtual-time-budget=3000", "--window-size=1200,2000", "--dump-dom",
        *(["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []), f"file://{tmp_path / 'frame.html'}",
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None, dom[:500]
    fits, bars_drawn, histograms, background = title.group(1).split("|")
    assert (fits, bars_drawn, histograms) == ("true", "true", "2")
    assert background == ("rgb(20, 24, 27)" if scheme == "dark" else "rgb(251, 251, 249)")
