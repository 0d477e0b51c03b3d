"""The report in a real browser: it shows something, complains of nothing, and fits a phone."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from esmc_pyro import Dataset, ESMCClassifier
from esmc_pyro.report import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
# A headless window is never narrower than some hundred pixels, so the page is put into a frame as wide as a phone.
FRAME = """<!doctype html><body style="margin:0"><iframe id="phone" width="390" height="800" style="border:0"
src="{page}"></iframe><output id="wide"></output><script>
addEventListener("load", () => {{
  const page = document.getElementById("phone").contentDocument;
  const body = page.body.getBoundingClientRect();
  const outside = [...page.querySelectorAll("main *")].filter(
    (e) => !e.closest(".scroll, .hidden, picture") && e.getBoundingClientRect().right > 390.5
  );
  document.getElementById("wide").textContent =
    `scroll ${{page.documentElement.scrollWidth}} body ${{body.width}} outside ${{outside.length}}`;
}});</script>"""


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no chromium here: the report was not opened in a browser")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with names longer than a phone is wide."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    Y = (X @ rng.normal(size=(4, 14)) > 0.7).astype(np.float32)
    names = ["a" * 120, "many words " * 12, *(f"label {k}" for k in range(12))]
    dataset = Dataset("x" * 90, X[:40], Y[:40], X[40:], Y[40:], label_names=names)
    classifier = ESMCClassifier(inference="svi", widths=[3], epochs=2, pseudo=10).fit(dataset.X_train, dataset.Y_train)
    return write_report(classifier, dataset, tmp_path_factory.mktemp("report") / "report.html")


def run(browser, profile, *options):
    """What the browser wrote to its standard output, and what pages wrote to their console."""
    command = [browser, *QUIET, f"--user-data-dir={profile}", "--enable-logging=stderr", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_has_words_and_no_complaint(browser, page, tmp_path):
    html, console = run(browser, tmp_path, "--dump-dom", page.as_uri())
    assert console == []
    for heading in ("How good the ranking is", "Head against tail", "The latent space", "What to label next"):
        assert heading in html


def test_a_complaint_would_be_seen(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><script>nothing.here()</script>")
    assert any(
        "nothing is not defined" in line for line in run(browser, tmp_path / "profile", bad.as_uri(), "--dump-dom")[1]
    )


def test_every_picture_is_drawn(browser, page, tmp_path):
    counted = tmp_path / "counted.html"
    script = """<script>addEventListener("load", () => { document.title =
    "drawn " + [...document.images].map((image) => image.naturalWidth > 100).join(" "); });</script>"""
    counted.write_text(page.read_text(encoding="utf-8").replace("</body>", script + "</body>"), encoding="utf-8")
    html, _ = run(browser, tmp_path / "profile", "--dump-dom", counted.as_uri())
    drawn = re.search(r"<title>drawn ([a-z ]+)</title>", html)
    assert drawn is not None
    assert drawn.group(1).split() == ["true"] * 7


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_not_blank(browser, page, tmp_path, theme):
    shot = tmp_path / "shot.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    run(browser, tmp_path / "profile", *dark, "--window-size=1000,1400", f"--screenshot={shot}", page.as_uri())
    pixels = imread(shot)[..., :3]
    colours = (pixels * 255).astype(int) @ [1 << 16, 1 << 8, 1]
    assert len(np.unique(colours)) > 200
    paper = pixels[5, 5].mean()
    assert paper > 0.9 if theme == "light" else paper < 0.1


def test_it_fits_a_phone(browser, page, tmp_path):
    frame = Path(tmp_path / "frame.html")
    frame.write_text(FRAME.format(page=page.as_uri()), encoding="utf-8")
    html, _ = run(browser, tmp_path / "profile", "--allow-file-access-from-files", "--dump-dom", frame.as_uri())
    said = re.search(r"scroll (\d+) body ([\d.]+) outside (\d+)", html)
    assert said is not None
    assert int(said.group(1)) <= 390
    assert float(said.group(2)) <= 390
    assert int(said.group(3)) == 0
