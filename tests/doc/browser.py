"""A headless Chromium without a network, and what is wrong with a page that it shows."""

import contextlib
import functools
import http.server
import shutil
import threading

# Only this machine can be reached: a page that loads anything from elsewhere has an error.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
WIDE, NARROW = (1280, 900), (390, 844)

# Elements that reach beyond the right edge and are not inside one that scrolls.
_TOO_WIDE = """
const edge = document.documentElement.clientWidth + 1;
const scrolls = (e) => {
  for (let p = e; p && p !== document.body; p = p.parentElement) {
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return true;
    if (getComputedStyle(p).position === 'fixed') return true;
  }
  return false;
};
if (document.documentElement.scrollWidth <= edge) return [];
return [...document.querySelectorAll('body *')]
  .filter((e) => e.getBoundingClientRect().right > edge && !scrolls(e))
  .slice(0, 3).map((e) => e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 60));
"""
_LOAD_IMAGES = """
const done = arguments[0];
Promise.allSettled([...document.images].map((image) => {
  image.loading = 'eager';
  return image.decode().catch(() => null);
})).then(() => done([...document.images].filter((i) => !i.naturalWidth).map((i) => i.src)));
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(folder):
    """Serve a folder on a free port; yields its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def find_chromium():
    """Return the paths of Chromium and of its driver, None where one is missing."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    return browser, shutil.which("chromedriver")


@contextlib.contextmanager
def open_browser(profile):
    """Start Chromium with a profile folder of its own; yields selenium's driver."""
    from selenium import webdriver

    browser, driver = find_chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    chrome.set_page_load_timeout(60)
    chrome.set_script_timeout(60)
    try:
        yield chrome
    finally:
        chrome.quit()


def resize(chrome, size):
    """Show pages at this width and height; a window cannot be as narrow as a telephone."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def problems(chrome, address):
    """Open a page, and return what is wrong with it, in words."""
    chrome.get_log("browser")  # what earlier pages said
    chrome.get(address)
    found = [
        f"image does not load: {source}" for source in chrome.execute_async_script(_LOAD_IMAGES)
    ]
    found += [f"wider than the screen: {what}" for what in chrome.execute_script(_TOO_WIDE)]
    found += [
        f"console: {entry['message']}"
        for entry in chrome.get_log("browser")
        if entry["level"] == "SEVERE"
    ]
    if not chrome.title or not chrome.execute_script("return document.body.innerText.trim()"):
        found.append("the page is empty")
    return found
