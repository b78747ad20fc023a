"""A page of the console in Chromium, as a person with a keyboard and a screen reader uses it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, expect

from tests.secure_node import SecureNode

WAIT_MS_MAX = 30_000
HEIGHT = 900
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The browser reports failed requests itself; pages show them to people.
REQUEST_FAILED = "Failed to load resource"


@dataclass
class ConsolePage:
    page: Page
    base: str
    failures: list[str] = field(default_factory=list)
    """Exceptions and errors that the browser reported."""

    @classmethod
    def open(
        cls, browser: Browser, http: str, path: str, *, theme: str = "light", width: int = 1280
    ) -> ConsolePage:
        scheme = "dark" if theme == "dark" else "light"
        context = browser.new_context(
            viewport={"width": width, "height": HEIGHT},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        context.set_default_timeout(WAIT_MS_MAX)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        console = cls(context.new_page(), f"http://{http}")
        console.page.on("pageerror", console._crashed)
        console.page.on("console", console._said)
        console.go(path)
        return console

    def _crashed(self, error: Error) -> None:
        self.failures.append(str(error))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error" and REQUEST_FAILED not in message.text:
            self.failures.append(message.text)

    def go(self, path: str) -> None:
        self.page.goto(f"{self.base}/ui/main/{path}")

    def heading(self, text: str) -> Locator:
        return self.page.get_by_role("heading", level=1, name=text)

    def expect_heading(self, text: str) -> None:
        expect(self.heading(text)).to_be_visible(timeout=WAIT_MS_MAX)

    def settle(self) -> None:
        """Wait until the page shows data instead of placeholders."""
        expect(self.page.get_by_role("status", name="Loading")).to_have_count(
            0, timeout=WAIT_MS_MAX
        )
        busy = self.page.locator("main [aria-busy=true]")
        expect(busy).to_have_count(0, timeout=WAIT_MS_MAX)

    def button(self, name: str, *, is_exact: bool = True) -> Locator:
        return self.page.get_by_role("button", name=name, exact=is_exact).first

    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog").last

    def expect_toast(self, text: str) -> None:
        toast = self.page.locator(".toast").filter(has_text=text)
        expect(toast.first).to_be_visible(timeout=WAIT_MS_MAX)

    def expect_text(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=WAIT_MS_MAX)

    def submit(self, name: str) -> None:
        """Press the button of an open dialog, once its dry run has ended."""
        button = self.dialog().get_by_role("button", name=name, exact=True)
        expect(button).to_be_enabled(timeout=WAIT_MS_MAX)
        button.click()

    def command(self) -> str:
        """The command line that an open dialog shows."""
        shown = self.dialog().get_by_role("region", name="Command").first
        expect(shown).to_contain_text("riverrun", timeout=WAIT_MS_MAX)
        return re.sub(r"\s+", " ", shown.inner_text()).strip()

    def violations(self) -> list[str]:
        """What axe finds, with the elements."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']} ({each['impact']}): {each['help']}: "
            + "; ".join(node["html"][:160] for node in each["nodes"][:3])
            for each in found
        ]


def secure_page(browser: Browser, secure: SecureNode) -> ConsolePage:
    return ConsolePage.open(browser, secure.told["nodes"][0]["http"], "overview")
