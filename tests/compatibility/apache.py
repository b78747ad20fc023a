"""Apache Kafka's command line tools in one long-lived JVM."""

import base64
import contextlib
import select
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.peers import find_jdk, find_kafka, need

SOURCE = Path(__file__).parent / "java" / "Tools.java"
SECONDS_MAX = 90
TOOLS = "org.apache.kafka.tools."
# Output of log4j and deprecation warnings.
NOISE = ("Reconfiguration failed", "DEPRECATED", "deprecated", "SLF4J", "StatusLogger", "KIP-848")
TROUBLE = ("Exception", "ERROR", "rror while", "isvalid: false", "corrupt", "mismatch")


@dataclass(slots=True)
class Ran:
    code: int
    text: str

    def check(self) -> "Ran":
        """Fail unless the tool exited with 0 and reported no error."""
        trouble = [line for line in self.text.splitlines() if any(w in line for w in TROUBLE)]
        assert self.code == 0 and not trouble, f"exit {self.code}: {trouble[:3]} in {self.text}"
        return self


class ApacheTools:
    def __init__(self, folder: Path) -> None:
        libraries = need(find_kafka)
        log4j = f"-Dlog4j.configuration=file:{libraries}/log4j.properties"
        flags = ["-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", log4j]
        self._java = [need(find_jdk), *flags, "-cp", f"{libraries}/*"]
        with open(folder / "tools.log", "w") as log:
            self._process = subprocess.Popen(
                [*self._java, str(SOURCE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def run(
        self, main: str, *arguments: object, given: str = "", seconds: float = SECONDS_MAX
    ) -> Ran:
        """Run a tool by its main class (default package `org.apache.kafka.tools`) or a source file
        of `java/`."""
        name = _whole(main)
        if main.endswith(".java"):
            name = str(SOURCE.with_name(main))
        words = [base64.b64encode(given.encode()).decode(), name, *map(str, arguments)]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(words).encode() + b"\n")
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        head = self._process.stdout.readline() if readable else b""
        if not head:
            self._process.kill()
            raise AssertionError(f"{main} did not end within {seconds} s or took the JVM along")
        code, length = head.decode().split("\t")
        text = self._process.stdout.read(int(length)).decode(errors="replace")
        return _ran(int(code), text)

    def run_alone(self, main: str, *arguments: object, seconds: float = SECONDS_MAX) -> Ran:
        """Run a tool in its own JVM, for tools that need the JVM to exit."""
        done = subprocess.run(
            [*self._java, _whole(main), *map(str, arguments)],
            text=True,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        return _ran(done.returncode, done.stdout + done.stderr)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _whole(main: str) -> str:
    return main if main.startswith(("kafka.", "org.")) else TOOLS + main


def _ran(code: int, text: str) -> Ran:
    lines = [line for line in text.splitlines() if not any(word in line for word in NOISE)]
    return Ran(code, "\n".join(lines))
