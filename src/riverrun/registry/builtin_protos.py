"""Protobuf files that Confluent's registry has built in, so that schemas import them freely.

``meta.proto`` has options for documentation and tags. ``decimal.proto`` has a decimal number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_META: Final = """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""

_DECIMAL: Final = """
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""

_OLD_DECIMAL: Final = """
syntax = "proto3";
import public "confluent/type/decimal.proto";
"""

BUILTIN_PROTOS: Final[Mapping[str, str]] = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _DECIMAL,
    "confluent/types/decimal.proto": _OLD_DECIMAL,
}
