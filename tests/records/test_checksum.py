"""The checksum is the one that the library promises, however it was loaded."""

from __future__ import annotations

import subprocess
import sys

import crc32c as library

from riverrun.records.checksum import crc32c


def test_the_check_value_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"6789"), crc32c(b"12345")) == 0xE3069283


def test_it_is_the_function_of_the_library() -> None:
    for data in (b"", b"a", bytes(range(256)) * 99):
        assert crc32c(data) == library.crc32c(data)


def test_only_the_compiled_part_is_loaded() -> None:
    program = (
        "import sys\nfrom riverrun.records.checksum import crc32c\n"
        "assert 'importlib.metadata' not in sys.modules and 'argparse' not in sys.modules\n"
        "import crc32c as library\n"
        "assert library.crc32c(b'x') == crc32c(b'x')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
