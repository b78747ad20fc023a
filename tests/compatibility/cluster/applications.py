"""Java applications of Apache Kafka in JVMs of their own, which tests kill and start again."""

import subprocess
from pathlib import Path
from typing import Self

from tests.peers import find_jdk, find_kafka, find_kafka_applications, need

STOP_SECONDS_MAX = 40
LOG_TAIL_CHARACTERS = 4000
JVM = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")


class Application:
    """A main class, or a source file of ``java/``, with its arguments."""

    def __init__(self, log: Path, main: str | Path, *arguments: object) -> None:
        folders = need(find_kafka), need(find_kafka_applications)
        log4j = f"-Dlog4j.configuration=file:{folders[0]}/log4j.properties"
        classes = ":".join(f"{folder}/*" for folder in folders)
        command = [need(find_jdk), *JVM, log4j, "-cp", classes, main, *arguments]
        self._command = [str(word) for word in command]
        self._log = log

    def start(self) -> None:
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(STOP_SECONDS_MAX)

    def stop(self) -> None:
        """End the application cleanly."""
        self._process.terminate()
        self._process.wait(STOP_SECONDS_MAX)

    def check(self) -> None:
        """Fail if the application has ended."""
        code = self._process.poll()
        assert code is None, f"{self._command[-1]} exited with {code}: {self.log()}"

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
