"""Print the source that ``wire/compiler.py`` generates for one version of a message.

python tools/dump_codec.py METADATA 12 response
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import cast

from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.compiler import reader_source, writer_source
from riverrun.wire.layout import MessageModule


def main(api: str, version: int, side: str) -> None:
    name = ALL_APIS[ApiKey[api]].name
    module = cast(MessageModule, import_module(f"riverrun.wire.messages.{name}_{side}"))
    print(reader_source(module, version))
    print(writer_source(module, version))


if __name__ == "__main__":
    main(sys.argv[1].upper(), int(sys.argv[2]), sys.argv[3])
