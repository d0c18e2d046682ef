"""The studio as a user meets it."""

import pathlib
import urllib.parse

import pytest
from conftest import browser
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WAIT = 60


def until(page, test, seconds=WAIT):
    return WebDriverWait(page, seconds, poll_frequency=0.05, ignored_exceptions=[Exception]).until(test)


def find(page, selector):
    return page.find_element(By.CSS_SELECTOR, selector)


def act(page, selector, action):
    """Acts on an element, which the page may replace between the two: then on its replacement."""
    def once(page):
        try:
            action(find(page, selector))
        except StaleElementReferenceException:
            return False
        return True
    WebDriverWait(page, WAIT, poll_frequency=0.05).until(once)


def press(page, selector, *keys):
    act(page, selector, lambda element: element.send_keys(*keys))


def click(page, selector):
    act(page, selector, lambda element: element.click())


def drawn(page):
    return page.execute_script("return Boolean(globalThis.studio?.complete())")


def visit(page, state=""):
    page.get("about:blank")
    page.get(page.address + (f"#{state}" if state else ""))
    until(page, lambda p: p.execute_script("return document.querySelectorAll('#gallery button').length > 0"))


def write(page, text):
    area = find(page, "#spec")
    area.send_keys(Keys.CONTROL, "a")
    area.send_keys(text)
    area.send_keys(Keys.ESCAPE)


def fine(page):
    """Whether the text has no error."""
    return "ok" in find(page, "#message").get_attribute("class")


def spec(page):
    return find(page, "#spec").get_property("value")


def pixels(page):
    """How many colors the picture has."""
    return page.execute_script("""
        const c = studio.pictures[0].canvas;
        const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
        return seen.size;""")


def test_a_spec_is_written_seen_wrong_then_right(page):
    visit(page)
    until(page, drawn)
    write(page, "scope (1,5) keep 2")
    until(page, lambda p: "does not divide" in find(p, "#message").text)
    assert find(page, "#colored .err").text == "5", "the character at fault is marked"
    assert find(page, "#spec").get_attribute("aria-invalid") == "true"
    write(page, "scope (1,8) keep 2")
    until(page, lambda p: fine(p) and drawn(p))
    assert "25%" in find(page, "#summary").text
    assert pixels(page) > 4
    press(page, "#spec", Keys.CONTROL, "z")
    until(page, lambda p: spec(p) != "scope (1,8) keep 2")


def test_clauses_are_completed_and_explained(page):
    visit(page)
    write(page, "2:4 ")
    press(page, "#spec", "ke")
    until(page, lambda p: find(p, "#completions").is_displayed())
    assert find(page, "#completions li[aria-selected=true] b").text == "keep"
    press(page, "#spec", Keys.TAB, "1")
    until(page, lambda p: spec(p) == "2:4 keep 1" and "25%" in find(p, "#summary").text)
    assert "how many blocks" in find(page, "#hint").text


def test_an_axis_is_dragged_and_a_handle_moved(page):
    visit(page, "spec=2:4@8&shape=8,32")
    until(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, "#axes .grip")) == 4)
    until(page, drawn)
    grips = page.find_elements(By.CSS_SELECTOR, "#axes .grip")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", grips[2])
    ActionChains(page).move_to_element(grips[3]).click_and_hold().move_to_element(grips[2]).release().perform()
    until(page, lambda p: "-> m g j i" in spec(p))
    until(page, lambda p: fine(p) and drawn(p))
    assert "scope (1,1,1,4)" in spec(page), "extents move with their axis"
    press(page, "#axes input[data-of=keep]", Keys.ARROW_LEFT)
    until(page, lambda p: spec(p).endswith("keep 1") and fine(p) and drawn(p))
    press(page, "#axes input[data-axis=m][data-of=block]", Keys.ARROW_RIGHT)
    until(page, lambda p: "block (2,1,2,1)" in spec(p))


def handle(page, what, axis):
    """Where a handle of the canvas is: x, y and the pixels of a weight."""
    return page.execute_async_script("""
        const [what, name, done] = arguments;
        import('/js/handles.js').then(({ rulers }) => {
          const picture = studio.pictures[0], box = picture.box.getBoundingClientRect();
          const { chip, ...ruler } = rulers(picture).find((one) => one.axis.name === name);
          const along = ruler.start + (ruler.at[what] ?? 0);
          const [x, y] = what === 'axis' ? [chip.x + chip.width / 2, chip.y + chip.height / 2]
            : ruler.horizontal ? [along, ruler.line] : [ruler.line, along];
          done([box.left + x, box.top + y, picture.zoom]);
        });""", what, axis)


def drag(page, start, end):
    mouse = ActionChains(page, duration=50)
    pointer = mouse.w3c_actions.pointer_action
    pointer.move_to_location(round(start[0]), round(start[1]))
    pointer.pointer_down()
    pointer.move_to_location(round((start[0] + end[0]) / 2), round((start[1] + end[1]) / 2))
    pointer.move_to_location(round(end[0]), round(end[1]))
    pointer.pointer_up()
    mouse.perform()


def test_handles_on_the_canvas_change_the_text(page):
    visit(page, "spec=2:4&shape=16,64")
    until(page, drawn)
    steps = [("scope", "K", 4, 0, "2:4 scope (1,8)"), ("block", "K", 1, 0, "2:4 block (1,2) scope (1,8)"),
             ("block", "M", 0, 3, "2:4 block (4,2) scope (1,8)")]
    for what, axis, right, down, expected in steps:
        x, y, zoom = handle(page, what, axis)
        drag(page, (x, y), (x + right * zoom, y + down * zoom))
        until(page, lambda p: spec(p) == expected and fine(p) and drawn(p))
    drag(page, handle(page, "axis", "M"), handle(page, "axis", "K"))
    until(page, lambda p: spec(p) == "view M K -> K M block (2,4) scope (8,1) keep 2" and fine(p))
    # A drag is one step of undo, however many extents it passed.
    for *_, expected in [*reversed(steps), ("2:4",)]:
        click(page, "#undo")
        until(page, lambda p: spec(p) == expected)


def test_hovering_shows_the_block_and_a_click_pins(page):
    visit(page, "spec=2:4@8&shape=8,32")
    until(page, drawn)
    x, y = page.execute_script("""
        const p = studio.pictures[0], box = p.box.getBoundingClientRect();
        return [box.left + p.left + 2.5 * p.zoom, box.top + p.top + 1.5 * p.zoom];""")
    mouse = ActionChains(page)
    mouse.w3c_actions.pointer_action.move_to_location(int(x), int(y))
    mouse.perform()
    until(page, lambda p: "storage offset 34" in find(p, "#readout").text)
    text = find(page, "#readout").text
    assert "(1,2)" in text and "same block (1,10)" in text and "m=1 g=0 i=2 j=0" in text, text
    ActionChains(page).click().perform()
    until(page, lambda p: "pinned" in find(p, "#readout").text)
    mouse = ActionChains(page)
    mouse.w3c_actions.pointer_action.move_to_location(int(x) + 60, int(y))
    mouse.perform()
    assert "storage offset 34" in find(page, "#readout").text, "a pinned element stays"


def test_the_picture_is_used_from_the_keyboard(page):
    visit(page, "spec=2:4&shape=8,16")
    until(page, drawn)
    canvas = find(page, "canvas.main")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    until(page, lambda p: "(1,1)" in find(p, "#readout").text)
    before = page.execute_script("return studio.pictures[0].zoom")
    canvas.send_keys("+")
    until(page, lambda p: p.execute_script("return studio.pictures[0].zoom") > before)


def test_a_paired_variant_is_designed_compared_and_copied(page):
    """The first five minutes of a new user."""
    visit(page)
    until(page, drawn)
    click(page, "#gallery button[data-spec='2:4@8']")
    until(page, lambda p: spec(p) == "2:4@8" and fine(p) and drawn(p))
    until(page, lambda p: "share them: 1 bit per kept weight instead of 2 bits" in find(p, "#why").text)
    assert "smaller than 2:4" in find(page, "#smaller").text
    click(page, "#tab-trial")
    until(page, lambda p: find(p, "#tensor").get_property("value") != "")
    patterns = [field.get_property("value") for field in page.find_elements(By.CSS_SELECTOR, "#patterns input")]
    assert patterns[:2] == ["2:4", "2:4@8"]
    click(page, "#trial-run")
    until(page, lambda p: "the error of" in find(p, "#trial-verdict").text, 300)
    verdict = find(page, "#trial-verdict").text
    assert verdict.startswith("2:4@8 has 1.") and "fewer packed bytes" in verdict, verdict
    assert len(page.find_elements(By.CSS_SELECTOR, ".result")) == 4
    errors = [float(e.text.rstrip("%")) for e in page.find_elements(By.CSS_SELECTOR, ".result .error")]
    assert all(0 < error < 100 for error in errors), errors
    assert "weights of the mask" in find(page, ".result figcaption").text
    click(page, ".result figcaption button")
    until(page, lambda p: "The whole mask" in find(p, ".result figcaption").text)
    click(page, "#tab-design")
    click(page, "#copy-spec")
    until(page, lambda p: "Copied the spec" in find(p, "#toast").text)


def test_the_address_holds_the_state(page):
    text = "view m (g j i) -> m g i j, j=2 i=8 block (1,1,1,2) scope (1,1,4,1) keep 1 # pairs & more"
    visit(page)
    until(page, drawn)
    write(page, text)
    find(page, "#shape").clear()
    press(page, "#shape", "8,64")
    click(page, "#draw-structure")
    # The address follows a moment later.
    until(page, lambda p: "8,64" in p.current_url and "draw=structure" in p.current_url and drawn(p))
    shared = page.current_url
    other = browser()
    try:
        other.get(shared)
        until(other, lambda p: spec(p) == text and find(p, "#shape").get_property("value") == "8,64" and drawn(p))
        assert find(other, "#draw-structure").get_attribute("aria-pressed") == "true"
        assert urllib.parse.unquote(other.current_url) == urllib.parse.unquote(shared)
    finally:
        other.quit()


def test_a_pattern_is_shared(page):
    visit(page, "spec=rows16&shape=32,64")
    until(page, drawn)
    click(page, "#share-open")
    until(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, ".share-item")) == 6)
    texts = {item.get_attribute("data-kind"): item.text for item in page.find_elements(By.CSS_SELECTOR, ".share-item")}
    assert 'spec = "rows16"' in texts["Recipe"] and "bind((32, 64))" in texts["Python"]
    assert "#spec=rows16" in texts["Link"]


def test_levels_and_couplings_have_pictures_side_by_side(page):
    visit(page)
    for name, count in [("venom", 2), ("neurons", 3)]:
        page.execute_script("""[...document.querySelectorAll('#gallery button')]
            .find((b) => b.textContent.startsWith(arguments[0])).click()""", name)
        until(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, ".picture")) == count and drawn(p))
        assert fine(page)


def test_a_large_tensor_is_zoomed_and_panned(page):
    visit(page, "spec=2:4&shape=4096,4096")
    until(page, drawn)
    page.execute_script("studio.pictures[0].zoomBy(40)")
    until(page, lambda p: drawn(p) and p.execute_script("return studio.pictures[0].zoom") >= 4)
    until(page, lambda p: find(p, ".minimap").is_displayed())
    canvas = find(page, "canvas.main")
    before = page.execute_script("return studio.pictures[0].left")
    ActionChains(page).move_to_element(canvas).click_and_hold().move_by_offset(-120, -60).release().perform()
    until(page, lambda p: p.execute_script("return studio.pictures[0].left") < before - 100 and drawn(p))


def test_layouts_are_composed_step_by_step(page):
    visit(page, "tab=layouts")
    until(page, lambda p: "((2,2),3):((24,2),8)" in find(p, "#steps").text)
    click(page, "#add-step")
    until(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, ".step")) == 2)
    until(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, ".step:last-child table.grid")) >= 1)


def test_runs_are_listed(page):
    visit(page, "tab=runs")
    until(page, lambda p: "no runs here yet" in find(p, "#run").text)


def test_a_run_stays_chosen_when_another_appears(page):
    """Runs are numbered by name, so a new one may take the number of another."""
    page.get("about:blank")
    page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
        globalThis.names = [["a", "finished"], ["c", "finished"]];
        const real = fetch;
        globalThis.fetch = (path, options) => {
          const run = ([name, state], number) => ({ number, name, state, spec: "2:4", method: "admm", done: 1, all: 4, layers: [], evaluations: [] });
          const answer = path === "/api/runs" ? { folder: "here", runs: names.map(run) }
            : path.startsWith("/api/run?") ? run(names[path.split("=")[1]], 0) : null;
          return answer ? Promise.resolve(Response.json(answer)) : real(path, options);
        };"""})
    visit(page, "tab=runs")
    until(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, "#runs-list button")) == 2)
    click(page, "#runs-list button[data-run=c]")
    until(page, lambda p: find(p, "#run h2").text == "c")
    page.execute_script("names = [['a', 'finished'], ['b', 'running'], ['c', 'finished']]")
    until(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, "#runs-list button")) == 3)
    shown = [b.get_attribute("data-run") for b in page.find_elements(By.CSS_SELECTOR, "#runs-list button")]
    assert shown == ["b", "a", "c"], "running ones first"
    assert find(page, "#runs-list button[aria-current=true]").get_attribute("data-run") == "c"
    assert page.execute_script("return document.activeElement.dataset.run") == "c", "the focus stays"
    assert find(page, "#run h2").text == "c"


def test_the_tensor_core_is_drawn(page):
    visit(page, "spec=rows16&shape=32,64&draw=fragment")
    until(page, lambda p: "balanced" in find(p, "#fragment").text)
    until(page, lambda p: p.execute_script("return document.querySelector('#fragment img').naturalWidth > 100"))


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast(address, dark):
    """WCAG AA: 4.5 to 1 for every visible text, in both themes."""
    driver = browser(dark=dark)
    driver.address = address
    try:
        visit(driver, "spec=2:4@8&shape=32,64")
        until(driver, drawn)
        # The theme is set by a script; colors change gradually.
        until(driver, lambda d: d.execute_script("return document.getAnimations().length === 0"))
        poor = driver.execute_script(pathlib.Path(__file__).with_name("contrast.js").read_text())
        assert not poor, poor
    finally:
        driver.quit()


@pytest.mark.parametrize("name,width,height,dark", [("light", 1400, 950, False), ("dark", 1400, 950, True), ("phone", 390, 844, False)])
def test_the_page_fits_its_screen(address, name, width, height, dark, tmp_path):
    driver = browser(width, height, dark)
    driver.address = address
    try:
        visit(driver, "spec=2:4@8&shape=32,64")
        until(driver, drawn)
        over = driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{name}: {over} pixels too wide"
        assert driver.execute_script("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
        # Nothing moves while the page loads and while a spec is typed.
        shift = driver.execute_async_script("""
            const done = arguments[arguments.length - 1];
            let sum = 0;
            new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput) sum += e.value; })
                .observe({type: 'layout-shift', buffered: true});
            setTimeout(() => done(sum), 500);""")
        assert shift < 0.1, shift
        picture = tmp_path / f"{name}.png"
        assert driver.save_screenshot(str(picture))
        assert 10_000 < picture.stat().st_size < 600_000
    finally:
        driver.quit()


def test_every_control_has_a_name(page):
    for tab in ["design", "trial", "layouts", "runs"]:
        visit(page, f"tab={tab}")
        unnamed = page.execute_script("""
            return [...document.querySelectorAll('button, input, select, textarea, [role=img]')]
                .filter((e) => e.offsetParent !== null)
                .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.alt || e.placeholder || e.title))
                .map((e) => e.outerHTML.slice(0, 120));""")
        assert not unnamed, (tab, unnamed)
