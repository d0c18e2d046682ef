"""A studio on a free port, and a headless browser."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = pathlib.Path(__file__).parents[4]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COMMAND = pathlib.Path(os.environ.get("OPENWORK", TARGET / "debug" / "openwork"))


def browser(width=1400, height=950, dark=False):
    options = webdriver.ChromeOptions()
    names = ["chromium", "chromium-browser", "google-chrome"]
    options.binary_location = next(filter(None, map(shutil.which, names)))
    for flag in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={width},{height}",
                 "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-background-networking"]:
        options.add_argument(flag)
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    # A window has a least width; a device need not.
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    if dark:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    return driver


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """The address of a studio whose folder of runs is empty."""
    runs = tmp_path_factory.mktemp("runs")
    server = subprocess.Popen([COMMAND, "studio", "--json", "--runs", runs], stdout=subprocess.PIPE, text=True)
    found = json.loads(server.stdout.readline())["address"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", found)
    yield found
    assert server.poll() is None, "the server must survive the tests"
    server.terminate()
    server.wait()


@pytest.fixture
def page(address):
    """A new browser; after the test, nothing may have gone wrong in its console."""
    driver = browser()
    driver.address = address
    yield driver
    wrong = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"
             and "favicon" not in entry["message"] and not entry["message"].endswith("422 (Unprocessable Entity)")]
    driver.quit()
    assert not wrong, wrong
